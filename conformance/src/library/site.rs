//! A machine as a site: one device, a time limit, and a process of its own for each sequence that wants a fresh one.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hostview_sim::{ByteCount, Profile};

use super::abi::{Missing, Symbol};
use super::find::{CannotOpen, Grant};
use super::remote::{Home, RemotePlatform, Summons};
use super::wire::{Leftover, MachineFacts};
use crate::case::{Op, Step, Via};
use crate::laws::{Law, Need};
use crate::platform::{Loss, Platform};
use crate::site::{Hindrance, Site};

/// A driver library as a site.
#[derive(Debug)]
pub struct LibrarySite {
    summons: Summons,
    facts: MachineFacts,
    until: Instant,
    time_limit: Duration,
    /// A process without anything allocated, for whoever does not mind its past.
    idle: Home,
}

impl LibrarySite {
    /// Opens the device once and asks what the machine says of itself.
    ///
    /// # Errors
    ///
    /// The library or the device cannot be opened.
    pub fn open(summons: Summons, time_limit: Duration) -> Result<Self, CannotOpen> {
        let first = summons.open()?;
        let facts = first.facts();
        let until = Instant::now() + time_limit;
        let idle = Home::default();
        drop(first.living_at(&idle));
        Ok(Self { summons, facts, until, time_limit, idle })
    }

    /// What the machine says of itself.
    #[must_use]
    pub fn facts(&self) -> &MachineFacts {
        &self.facts
    }

    /// How processes are started.
    #[must_use]
    pub fn summons(&self) -> &Summons {
        &self.summons
    }

    /// Lets go of the process that is kept for further use: everything is given back then.
    pub fn close(&self) {
        self.idle.leave();
    }

    /// Whether the suite was told to end early.
    #[must_use]
    pub fn stopped(&self) -> bool {
        self.summons.watch.stop.load(Ordering::Relaxed)
    }

    /// Why these steps cannot be made here, whatever law they are about.
    #[must_use]
    pub fn hindrance_of(&self, steps: &[Step]) -> Option<Hindrance> {
        if let Some(hindrance) = steps.iter().find_map(|step| self.lacks_for(step)) {
            return Some(hindrance);
        }
        if !self.facts.acl && steps.iter().any(|step| step.via == Via::Acl) {
            return Some(Hindrance("it goes through ACL, and there is no libascendcl.so".to_owned()));
        }
        let (needs, limit) = (Self::memory_of(steps), self.summons.limits.memory);
        (needs > limit).then(|| {
            Hindrance(format!(
                "it takes {} of device memory, and the limit is {}; raise it with --memory-limit",
                ByteCount(needs),
                ByteCount(limit)
            ))
        })
    }

    /// The call of a step, when the library does not have it.
    #[must_use]
    pub fn lacks_for(&self, step: &Step) -> Option<Hindrance> {
        let call = match step.op {
            Op::CopyIn | Op::CopyOut => "drvMemcpy",
            Op::Unregister if step.flags.is_some() => "halHostUnregisterEx",
            Op::Alloc if step.via == Via::Acl => "aclrtMalloc",
            Op::Free if step.via == Via::Acl => "aclrtFree",
            _ => return None,
        };
        self.facts.missing.iter().filter_map(Missing::symbol).find(|symbol| symbol.name == call).map(lack)
    }

    fn open_fresh(&self) -> Result<RemotePlatform, Hindrance> {
        self.summons.open().map_err(|error| Hindrance(error.to_string()))
    }

    /// How much device memory steps take at most, by what they expect.
    fn memory_of(steps: &[Step]) -> u64 {
        let granted =
            |step: &&Step| step.op == Op::Alloc && step.expect.0.error.is_none() && step.expect.0.code.is_none();
        steps.iter().filter(granted).filter_map(|step| step.bytes).sum()
    }
}

impl Site for LibrarySite {
    fn fresh(&self, _profile: &Profile) -> Result<Box<dyn Platform>, Hindrance> {
        Ok(Box::new(self.open_fresh()?))
    }

    fn clean(&self, _profile: &Profile) -> Result<Box<dyn Platform>, Hindrance> {
        let platform = match self.idle.take() {
            Some(platform) => platform,
            None => self.open_fresh()?.living_at(&self.idle),
        };
        Ok(Box::new(platform))
    }

    /// The device is one, and its memory is limited.
    fn parallel(&self, _asked: Option<usize>) -> usize {
        1
    }

    fn lacks(&self, need: Need) -> Option<&'static str> {
        (need == Need::VirtualTime).then_some("a device keeps real time; `hostview sweep --hal` measures it")
    }

    fn hindrance(&self, law: &Law, steps: &[Step]) -> Option<Hindrance> {
        let mut missing = self.facts.missing.iter().filter_map(Missing::symbol);
        if let Some(symbol) = missing.find(|symbol| symbol.views.contains(&law.id.0)) {
            return Some(lack(symbol));
        }
        if law.needs.contains(&Need::ThreadSafe) {
            let why = "two threads are judged by doing everything again, which takes a device that answers the same";
            return Some(Hindrance(why.to_owned()));
        }
        // The suite's own limit would answer for the device.
        if law.id.0 == "D24" && self.facts.memory.is_none() {
            return Some(Hindrance("how much memory the device has is not known".to_owned()));
        }
        self.hindrance_of(steps)
    }

    fn grant(&self) -> Option<Grant> {
        Some(Grant { paths: self.summons.paths.clone(), limits: self.summons.limits.clone() })
    }

    fn heard(&self, left: Option<&Leftover>, hung: Option<&str>) {
        if let Some(left) = left {
            self.summons.watch.add(left.clone());
        }
        if let Some(hung) = hung {
            // Whatever is known of an earlier one stays.
            let _ = self.summons.watch.hung.set(hung.to_owned());
        }
    }

    fn over(&self) -> Option<Hindrance> {
        if self.stopped() {
            return Some(Hindrance(Loss::Stopped.to_string()));
        }
        if let Some(what) = self.summons.watch.hung.get() {
            return Some(Hindrance(format!("{what}; such a driver is not called again")));
        }
        (Instant::now() >= self.until)
            .then(|| Hindrance(format!("the time limit of {} s had passed", self.time_limit.as_secs_f64())))
    }
}

fn lack(symbol: &Symbol) -> Hindrance {
    Hindrance(format!("{} has no {}: {}", symbol.library, symbol.name, symbol.without))
}
