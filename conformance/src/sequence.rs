//! One sequence through one subject: what came of it.

use std::collections::BTreeMap;

use hostview_sim::{MemoryMode, Profile};

use crate::cache_run::{Again, Breach, CacheRun, Tally};
use crate::case::Step;
use crate::laws::LawId;
use crate::platform::{Loss, Platform};
use crate::site::{Hindrance, Site};
use crate::subject::SubjectChoice;

/// What a sequence through a subject came to.
#[derive(Debug)]
pub(crate) struct SequenceResult {
    /// The law that broke first.
    pub(crate) breach: Option<Breach>,
    /// How often each law was checked until then.
    pub(crate) tallies: BTreeMap<LawId, Tally>,
    /// What the driver wrote last in the step that broke it.
    pub(crate) log: Option<String>,
    /// How memory was protected.
    pub(crate) mode: MemoryMode,
    /// Why the platform or the subject answers no more.
    pub(crate) lost: Option<Loss>,
    /// What came of a view that outlived its allocation.
    pub(crate) aftermath: Option<String>,
    /// Whether the subject's process went with it.
    pub(crate) gone: bool,
}

/// What a sequence is run with.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub(crate) site: &'a dyn Site,
    pub(crate) profile: &'a Profile,
    pub(crate) subject: &'a SubjectChoice,
    /// Laws that are left out.
    pub(crate) without: &'a [LawId],
}

impl Setting<'_> {
    /// Runs steps until a law breaks, on a platform where nothing happened before.
    pub(crate) fn run_fresh(&self, steps: &[Step]) -> Result<SequenceResult, Hindrance> {
        if let SubjectChoice::Library(library) = self.subject {
            return library.run(self, steps);
        }
        self.run_on(self.site.fresh(self.profile)?, steps)
    }

    /// Runs steps until a law breaks, on a platform that is empty.
    pub(crate) fn run_clean(&self, steps: &[Step]) -> Result<SequenceResult, Hindrance> {
        if let SubjectChoice::Library(library) = self.subject {
            return library.run(self, steps);
        }
        self.run_on(self.site.clean(self.profile)?, steps)
    }

    fn run_on(&self, platform: Box<dyn Platform>, steps: &[Step]) -> Result<SequenceResult, Hindrance> {
        let subject =
            self.subject.make().ok_or_else(|| Hindrance("the subject has a process of its own".to_owned()))?;
        let run = CacheRun::new(platform, subject).without(self.without);
        let mut run = match self.site.afresh(self.profile) {
            Some(platforms) => run.with_threads(again(platforms, self.subject.clone())),
            None => run,
        };
        Ok(run_until_broken(&mut run, steps))
    }
}

/// Steps done again in this process, on platforms and with subjects made for it.
pub(crate) fn again(platforms: Box<dyn Fn() -> Box<dyn Platform>>, subject: SubjectChoice) -> Again {
    Box::new(move |steps| CacheRun::new(platforms(), subject.make()?).stand_after(steps))
}

/// Runs steps until a law breaks.
pub(crate) fn run_until_broken(run: &mut CacheRun, steps: &[Step]) -> SequenceResult {
    let (mut at, mut breach) = (0, None);
    while at < steps.len() {
        let stepped = run.step(at, steps);
        breach = stepped.breaches.into_iter().next();
        if breach.is_some() || stepped.over {
            break;
        }
        at += stepped.taken;
    }
    let outlives = breach.as_ref().is_some_and(|breach| breach.law == LawId("V01"));
    SequenceResult {
        log: run.last_words(),
        aftermath: if outlives { run.aftermath() } else { None },
        mode: run.platform().memory_mode(),
        lost: run.platform().lost(),
        tallies: run.tallies().iter().map(|(law, tally)| (*law, *tally)).collect(),
        breach,
        gone: false,
    }
}
