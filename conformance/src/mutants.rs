//! The judge, judged: planted faults, and which law catches each.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::case::Case;
use crate::check::{
    CheckOptions, Failure, Generator, ProfileChoice, first_broken, first_failure, sequences_until_broken,
};
use crate::devices::DeviceMutant;
use crate::laws::LawId;
use crate::site::Simulator;
use crate::subject::{Mutant, SubjectChoice, mutants};

/// What to run.
#[derive(Clone, Debug)]
pub struct MutantOptions {
    /// Where the mutants run.
    pub profile: ProfileChoice,
    /// The most sequences for each cache, and a quarter of that for each device and D-law.
    pub cases: u32,
    /// The seed of everything that is drawn.
    pub seed: u64,
    /// Laws that are left out.
    pub without: Vec<LawId>,
    /// How many at once.
    pub jobs: usize,
}

impl MutantOptions {
    /// The most sequences of one D-law for each device.
    #[must_use]
    pub fn trials(&self) -> u32 {
        self.cases.div_ceil(4)
    }

    fn check(&self, generator: Generator) -> CheckOptions {
        CheckOptions {
            profiles: vec![self.profile.clone()],
            subjects: Vec::new(),
            laws: None,
            cases: self.cases,
            trials: self.trials(),
            seed: self.seed,
            generator,
            jobs: None,
        }
    }
}

/// A fault that a law caught.
#[derive(Clone, PartialEq, Debug)]
pub struct Caught {
    /// The law that broke first.
    pub law: LawId,
    /// How many sequences were drawn until then.
    pub after: u32,
    /// The shortest sequence that shows it.
    pub case: Case,
    /// How it shows.
    pub what: String,
}

/// What became of one fault.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The fault's name.
    pub name: &'static str,
    /// What is wrong, in one line.
    pub story: &'static str,
    /// The public report that it resembles.
    pub like: Option<&'static str>,
    /// How it was caught, if it was.
    pub caught: Option<Caught>,
    /// What it took on the wall clock, the shrinking with it.
    pub wall: Duration,
}

/// Judges faults in caches: what became of each, in their order.
#[must_use]
pub fn judge_caches(options: &MutantOptions, chosen: &[&'static Mutant], progress: &(dyn Fn() + Sync)) -> Vec<Verdict> {
    let check = options.check(Generator::Suite);
    side_by_side(options.jobs, chosen, |mutant| {
        let begun = Instant::now();
        let subject = SubjectChoice::Mutant(mutant);
        let (failure, after) = first_failure(&check, &Simulator, &options.profile, &subject, &options.without);
        progress();
        Verdict {
            name: mutant.name,
            story: mutant.story,
            like: mutant.like,
            caught: failure.map(|failure| caught(failure, after)),
            wall: begun.elapsed(),
        }
    })
}

/// Judges faults in devices, each on the profiles in turn until a law breaks: what became of each, in their order.
///
/// Of a device's fault the sequences are counted that the law which caught it had run.
#[must_use]
pub fn judge_devices(
    options: &MutantOptions,
    profiles: &[ProfileChoice],
    chosen: &[&'static DeviceMutant],
    progress: &(dyn Fn() + Sync),
) -> Vec<Verdict> {
    let check = options.check(Generator::Suite);
    side_by_side(options.jobs, chosen, |mutant| {
        let begun = Instant::now();
        let found = profiles.iter().find_map(|profile| first_broken(&check, mutant, profile, &options.without));
        progress();
        Verdict {
            name: mutant.name,
            story: mutant.story,
            like: mutant.like,
            caught: found.map(|(failure, after)| caught(failure, after)),
            wall: begun.elapsed(),
        }
    })
}

pub(crate) fn caught(failure: Failure, after: u32) -> Caught {
    Caught { law: failure.law, after, case: failure.case, what: failure.what }
}

/// How many sequences a fault in a cache takes to be caught, as the suite draws them and as a plain generator would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strength {
    /// The fault's name.
    pub name: &'static str,
    /// As the suite draws; none when it was not caught.
    pub suite: Option<u32>,
    /// Drawn uniformly.
    pub uniform: Option<u32>,
}

/// Measures every fault in a cache under both generators.
#[must_use]
pub fn measure_strength(options: &MutantOptions) -> Vec<Strength> {
    let (suite, uniform) = (options.check(Generator::Suite), options.check(Generator::Uniform));
    side_by_side(options.jobs, mutants(), |mutant| {
        let subject = SubjectChoice::Mutant(mutant);
        let count = |check: &CheckOptions| sequences_until_broken(check, &Simulator, &options.profile, &subject);
        Strength { name: mutant.name, suite: count(&suite), uniform: count(&uniform) }
    })
}

/// Does a piece of work for each item, several at once; the results in the order of the items.
pub(crate) fn side_by_side<T: Sync + Copy, R: Send>(jobs: usize, items: &[T], work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = items.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                while let Some((item, slot)) = {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    items.get(index).zip(results.get(index))
                } {
                    let result = work(*item);
                    *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(result);
                }
            });
        }
    });
    results
        .into_iter()
        .filter_map(|slot| slot.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
        .collect()
}
