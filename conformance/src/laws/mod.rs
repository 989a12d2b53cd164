//! The laws: named properties with an id that never changes.
//!
//! Two families. *D-laws* state how registration behaves; each builds a sequence of driver calls with what must come of
//! them, so that the same law runs on the simulator, from a case file and on hardware. *V-laws* state what a view cache
//! keeps; each is a function of what one step did, and watches every sequence that is driven through a cache.

mod driver;
mod views;

use std::fmt;

use hostview_sim::Profile;
use serde::{Serialize, Serializer};

use crate::cache_run::{Bench, Evidence};
use crate::case::Step;

pub use driver::{Draw, EVERY_CALL_RETURNS, driver_laws};
pub(crate) use views::whose_bytes;
pub use views::{EVERY_CALL_OF_A_SUBJECT_RETURNS, view_laws};

/// A law's id. Ids are never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LawId(pub &'static str);

impl fmt::Display for LawId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl Serialize for LawId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

/// What a platform or a subject must have for a law to be checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Need {
    /// A registration that the platform accepts; else the refusal is checked in its place.
    Registration,
    /// Calls that can be made to fail.
    Faults,
    /// More than one device.
    TwoDevices,
    /// Time that is the same in every run.
    VirtualTime,
    /// A subject that says it is thread-safe.
    ThreadSafe,
    /// A subject with a budget.
    Budget,
    /// A subject that reports what it holds.
    Report,
}

impl Need {
    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Registration => "a registration that is accepted",
            Self::Faults => "calls that can be made to fail",
            Self::TwoDevices => "two devices",
            Self::VirtualTime => "virtual time",
            Self::ThreadSafe => "a subject that says it is thread-safe",
            Self::Budget => "a subject with a budget",
            Self::Report => "a subject that reports what it holds",
        }
    }
}

/// A law, without its check.
#[derive(Debug)]
pub struct Law {
    /// Its id.
    pub id: LawId,
    /// What holds, in one line.
    pub statement: &'static str,
    /// Where that is known from.
    pub source: &'static str,
    /// What it takes to check it.
    pub needs: &'static [Need],
}

/// What a law says of one step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It was checked and holds.
    Held,
    /// The platform refused, and the refusal is as it must be.
    Refused,
    /// It is broken; how it showed.
    Broken(String),
}

/// A V-law with its check; `None` from the check where the step says nothing about the law, and no check at all where it is
/// not one step that shows it.
#[derive(Debug)]
pub struct ViewLaw {
    /// The law.
    pub law: Law,
    /// Its check.
    pub check: Option<fn(&Evidence<'_>, &mut Bench<'_>) -> Option<Verdict>>,
}

/// What a D-law comes to on a profile.
#[derive(Clone, PartialEq, Debug)]
pub enum Trial {
    /// These steps, each with what must come of it.
    Steps(Vec<Step>),
    /// The capability is missing, and these steps check the refusal.
    Mirror(Vec<Step>),
    /// Nothing to check here, for this reason.
    NotApplicable(String),
}

/// A D-law with the sequence that checks it.
#[derive(Debug)]
pub struct DriverLaw {
    /// The law.
    pub law: Law,
    /// Its sequence, for a profile and drawn sizes.
    pub trial: fn(&Profile, &Draw) -> Trial,
}

/// Every law, D before V.
pub fn all() -> impl Iterator<Item = &'static Law> {
    driver_laws().iter().map(|law| &law.law).chain(view_laws().iter().map(|law| &law.law))
}

/// The law of this id, in either case.
#[must_use]
pub fn find(id: &str) -> Option<&'static Law> {
    all().find(|law| law.id.0.eq_ignore_ascii_case(id))
}
