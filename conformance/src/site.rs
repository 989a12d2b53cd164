//! Where platforms come from: the simulator makes as many as are asked for, a machine has one device and a time limit.

use hostview_sim::{MemoryMode, Profile};

use crate::case::Step;
use crate::laws::{Law, Need};
use crate::library::{Grant, Leftover};
use crate::platform::{Platform, SimPlatform};

/// Why something cannot be run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Hindrance(pub String);

/// Where platforms come from.
pub trait Site: Sync {
    /// A platform on which nothing has happened yet.
    ///
    /// # Errors
    ///
    /// There is none to be had.
    fn fresh(&self, profile: &Profile) -> Result<Box<dyn Platform>, Hindrance>;

    /// A platform on which nothing is allocated or registered; what happened there before may show in addresses.
    ///
    /// # Errors
    ///
    /// There is none to be had.
    fn clean(&self, profile: &Profile) -> Result<Box<dyn Platform>, Hindrance> {
        self.fresh(profile)
    }

    /// Platforms as `fresh` makes them, where the same calls always get the same answers; none elsewhere.
    fn afresh(&self, _profile: &Profile) -> Option<Box<dyn Fn() -> Box<dyn Platform>>> {
        None
    }

    /// How many platforms may be at work at once, where so many are asked for.
    fn parallel(&self, asked: Option<usize>) -> usize;

    /// Why what a law needs is not to be had here, so that the law does not apply.
    fn lacks(&self, _need: Need) -> Option<&'static str> {
        None
    }

    /// Why a law cannot be checked here by these steps, although it applies.
    fn hindrance(&self, _law: &Law, _steps: &[Step]) -> Option<Hindrance> {
        None
    }

    /// Why nothing more is to be run.
    fn over(&self) -> Option<Hindrance> {
        None
    }

    /// What a subject with a process of its own is to open there; none where it has the simulator beside it.
    fn grant(&self) -> Option<Grant> {
        None
    }

    /// What became of what such a subject had: what was given back, and a call of the driver that did not return.
    fn heard(&self, _left: Option<&Leftover>, _hung: Option<&str>) {}

    /// Why memory is not protected, where it is not.
    fn bookkeeping(&self, _profile: &Profile) -> Option<String> {
        None
    }
}

/// The simulator: a fresh host for every sequence.
#[derive(Clone, Copy, Debug)]
pub struct Simulator;

impl Site for Simulator {
    fn fresh(&self, profile: &Profile) -> Result<Box<dyn Platform>, Hindrance> {
        Ok(Box::new(SimPlatform::new(profile)))
    }

    fn afresh(&self, profile: &Profile) -> Option<Box<dyn Fn() -> Box<dyn Platform>>> {
        let profile = profile.clone();
        Some(Box::new(move || Box::new(SimPlatform::new(&profile))))
    }

    fn parallel(&self, asked: Option<usize>) -> usize {
        asked.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    fn bookkeeping(&self, profile: &Profile) -> Option<String> {
        match SimPlatform::new(profile).memory_mode() {
            MemoryMode::Protected => None,
            MemoryMode::Bookkeeping(reason) => Some(reason),
        }
    }
}
