//! D-laws: each a sequence of driver calls on a fresh platform.

use std::cell::RefCell;

use hostview_sim::{PageKind, Profile};
use proptest::test_runner::{TestCaseError, TestError};

use super::cases::case_of;
use super::{CheckOptions, Failure, LawResult, ProfileChoice, Row, Standing, rng, runner};
use crate::cache_run::Tally;
use crate::case::Step;
use crate::driver_run::DriverRun;
use crate::expect::Mismatch;
use crate::generate::draws;
use crate::laws::{Draw, DriverLaw, LawId, Trial, driver_laws};
use crate::platform::Loss;
use crate::site::{Hindrance, Simulator, Site};

/// A trial that did not come to what it must.
#[derive(Clone, Debug)]
struct Broken {
    profile: Profile,
    steps: Vec<Step>,
    seen: Seen,
}

/// The step that did not, and what came of it.
#[derive(Clone, Debug)]
struct Seen {
    step: usize,
    mismatch: Mismatch,
    log: Option<String>,
    lost: Option<Loss>,
}

/// What became of the trials of a law so far.
#[derive(Default)]
struct Trials {
    tally: Tally,
    not_applicable: Option<String>,
    hindrance: Option<Hindrance>,
    broken: Option<Broken>,
}

impl Trials {
    /// Makes one trial. Whether it came to what it must, or to nothing.
    fn make(&mut self, site: &dyn Site, law: &'static DriverLaw, profile: &Profile, draw: &Draw) -> bool {
        if let Some(reason) = law.law.needs.iter().find_map(|need| site.lacks(*need)) {
            self.not_applicable = Some(reason.to_owned());
            return true;
        }
        let (steps, mirrored) = match (law.trial)(profile, draw) {
            Trial::Steps(steps) => (steps, false),
            Trial::Mirror(steps) => (steps, true),
            Trial::NotApplicable(reason) => {
                self.not_applicable = Some(reason);
                return true;
            }
        };
        if let Some(hindrance) = site.over().or_else(|| site.hindrance(&law.law, &steps)) {
            self.hindrance = Some(hindrance);
            return true;
        }
        match run_steps(site, profile, &steps) {
            Err(hindrance) => self.hindrance = Some(hindrance),
            Ok(Some(Seen { lost: Some(loss @ Loss::Stopped), .. })) => {
                self.hindrance = Some(Hindrance(loss.to_string()));
            }
            Ok(Some(seen)) => {
                self.broken = Some(Broken { profile: profile.clone(), steps, seen });
                return false;
            }
            Ok(None) if mirrored => self.tally.refused += 1,
            Ok(None) => self.tally.held += 1,
        }
        true
    }
}

/// Runs steps on a fresh platform: the first that does not come to what it must.
fn run_steps(site: &dyn Site, profile: &Profile, steps: &[Step]) -> Result<Option<Seen>, Hindrance> {
    let mut platform = site.fresh(profile)?;
    let mut run = DriverRun::new(&mut *platform);
    let found = steps.iter().enumerate().find_map(|(index, step)| run.step(step).map(|mismatch| (index, mismatch)));
    Ok(found.map(|(step, mismatch)| Seen { step, mismatch, log: run.last_words(), lost: run.lost() }))
}

pub(super) fn check_driver(options: &CheckOptions, site: &dyn Site, profile: &ProfileChoice) -> (Row, Vec<Failure>) {
    let mut laws = Vec::new();
    let mut failures = Vec::new();
    let mut sequences = 0;
    for law in driver_laws().iter().filter(|law| options.wants(law.law.id)) {
        let (result, failure) = check_law(options, site, profile, law);
        sequences += u32::try_from(result.tally.held + result.tally.refused).unwrap_or(u32::MAX);
        laws.push(result);
        failures.extend(failure);
    }
    let bookkeeping = profile.bookkeeping(site);
    (Row { profile: profile.name().to_owned(), subject: None, laws, sequences, bookkeeping }, failures)
}

/// The first law that a device breaks, and how many sequences of that law were run until then.
pub(crate) fn first_broken(
    options: &CheckOptions,
    site: &dyn Site,
    choice: &ProfileChoice,
    without: &[LawId],
) -> Option<(Failure, u32)> {
    let laws = driver_laws().iter().filter(|law| !without.contains(&law.law.id));
    laws.map(|law| check_law(options, site, choice, law)).find_map(|(result, failure)| {
        let before = u32::try_from(result.tally.held + result.tally.refused).unwrap_or(u32::MAX);
        Some((failure?, before + 1))
    })
}

fn check_law(
    options: &CheckOptions,
    site: &dyn Site,
    choice: &ProfileChoice,
    law: &'static DriverLaw,
) -> (LawResult, Option<Failure>) {
    let id = law.law.id;
    let mut trials = Trials::default();
    // The law as it is shown, with each kind of page; then drawn.
    let mut holds = true;
    if let Some(profile) = choice.profile() {
        let shown = [PageKind::Ordinary, PageKind::Huge].map(Draw::shown);
        holds = shown.iter().take(options.trials as usize).all(|draw| trials.make(site, law, profile, draw));
    }
    let mut aborted = None;
    if holds {
        let all = RefCell::new(trials);
        let drawn = options.trials.saturating_sub(2);
        let found = runner(drawn, rng(options.seed, &[choice.name(), id.0])).run(
            &(choice.strategy(), draws()),
            |(profile, draw)| {
                let mut trials = all.borrow_mut();
                if let Some(Hindrance(reason)) = site.over().filter(|_| trials.hindrance.is_some()) {
                    // Enough of these end the drawing.
                    return Err(TestCaseError::reject(reason));
                }
                // What hung once is not called again to find out how little it takes.
                let hung = |broken: &Broken| matches!(broken.seen.lost, Some(Loss::Hung(_)));
                if trials.broken.as_ref().is_some_and(hung) || trials.make(site, law, &profile, &draw) {
                    return Ok(());
                }
                Err(TestCaseError::fail(id.0))
            },
        );
        trials = all.into_inner();
        if let Err(TestError::Abort(reason)) = found {
            aborted = Some(Hindrance(reason.to_string()));
        }
    }
    let Trials { tally, not_applicable, hindrance, broken } = trials;
    let failure = broken.map(|broken| failure(options, site, choice, law, broken));
    let standing = match (&failure, hindrance.or(aborted), tally.held, tally.refused) {
        (Some(_), ..) => Standing::Broken,
        (None, Some(Hindrance(reason)), ..) => Standing::NotChecked(reason),
        (None, None, 1.., _) => Standing::Passed,
        (None, None, 0, 1..) => Standing::Refused,
        (None, None, 0, 0) => match not_applicable {
            Some(reason) => Standing::NotApplicable(reason),
            None => Standing::NotChecked("no trial came up".to_owned()),
        },
    };
    (LawResult { id, standing, tally }, failure)
}

/// The shortest sequence that fails in the same way; the one that was seen, where it does not fail again.
fn failure(
    options: &CheckOptions,
    site: &dyn Site,
    choice: &ProfileChoice,
    law: &'static DriverLaw,
    broken: Broken,
) -> Failure {
    let Broken { profile, mut steps, mut seen } = broken;
    let again = |steps: &[Step]| {
        let found = if site.over().is_none() { run_steps(site, &profile, steps).ok().flatten() } else { None };
        found.filter(|found| found.mismatch == seen.mismatch)
    };
    let mut note = "";
    if matches!(seen.lost, Some(Loss::Hung(_))) {
        note = " (as it was drawn: what hangs is not called again)";
    } else if again(&steps).is_none() {
        note = " (seen once: the same sequence did not fail again)";
    } else {
        // Shorter, as long as some step of the law's own still comes out in the same wrong way, and the sequence still says
        // what is right: a read whose register is left out faults on any device. The simulator tells, where it keeps the law.
        let right = |steps: &[Step]| matches!(run_steps(&Simulator, &profile, steps), Ok(None));
        let told = right(&steps);
        let shorter = drop_only(steps.clone(), |steps| (!told || right(steps)) && again(steps).is_some());
        if let Some(found) = again(&shorter) {
            (steps, seen) = (shorter, found);
        }
    }
    let what = format!("expected {}; came {}{note}", seen.mismatch.expected, seen.mismatch.came);
    Failure {
        law: law.law.id,
        case: case_of(options, choice, &profile, law.law.id, None, steps),
        profile: choice.argument().to_owned(),
        stem: choice.file_stem(),
        shown: choice.shown(),
        subject: None,
        step: seen.step,
        what,
        holding: Vec::new(),
        log: seen.log,
        aftermath: None,
    }
}

/// Leaves steps out, and changes none: what a D-law's step must come to is right for that step alone.
fn drop_only(steps: Vec<Step>, same: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut best = steps;
    let mut at = 0;
    while at < best.len() {
        let mut shorter = best.clone();
        shorter.remove(at);
        let sound = shorter.iter().enumerate().all(|(index, step)| {
            let made = |name: &String| shorter[..index].iter().any(|earlier| earlier.name.as_ref() == Some(name));
            let reserved = |name: &String| name == "null" || name == "nowhere";
            step.target.iter().chain(&step.expect.0.same_address_as).all(|name| made(name) || reserved(name))
        });
        if sound && same(&shorter) {
            best = shorter;
        } else {
            at += 1;
        }
    }
    best
}
