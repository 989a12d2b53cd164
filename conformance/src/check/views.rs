//! V-laws: drawn sequences through a subject, every law watching.

use std::cell::RefCell;
use std::collections::BTreeMap;

use hostview_sim::{MemoryMode, Profile};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{TestCaseError, TestError};

use super::cases::case_of;
use super::{CheckOptions, Failure, LawResult, ProfileChoice, Row, Standing, rng, runner};
use crate::cache_run::{Breach, Tally};
use crate::case::Step;
use crate::generate::lower;
use crate::laws::{EVERY_CALL_RETURNS, Law, LawId, Need, view_laws};
use crate::platform::Loss;
use crate::sequence::{SequenceResult, Setting};
use crate::shrink::shrink;
use crate::site::{Hindrance, Site};
use crate::subject::SubjectChoice;

/// A sequence that broke a law.
#[derive(Clone, Debug)]
struct Broken {
    profile: Profile,
    steps: Vec<Step>,
    breach: Breach,
    log: Option<String>,
    aftermath: Option<String>,
    hung: bool,
    gone: bool,
}

/// What the sequences of one subject on one profile came to.
#[derive(Default)]
struct Judged {
    tallies: BTreeMap<LawId, Tally>,
    sequences: u32,
    hindrance: Option<Hindrance>,
    bookkeeping: Option<String>,
    broken: Option<Broken>,
}

pub(super) fn check_subject(
    options: &CheckOptions,
    site: &dyn Site,
    choice: &ProfileChoice,
    subject: &SubjectChoice,
) -> (Row, Vec<Failure>) {
    let unwanted = view_laws().iter().map(|law| law.law.id).filter(|law| !options.wants(*law));
    let mut without: Vec<LawId> = unwanted.collect();
    let mut failures: Vec<Failure> = Vec::new();
    let mut until_broken: BTreeMap<LawId, Tally> = BTreeMap::new();
    // A law that broke is left out, and the run is made again: what else is broken is of interest too.
    let judged = loop {
        let mut judged = judge_sequences(options, site, choice, subject, &without);
        let Some(broken) = judged.broken.take() else { break judged };
        let (law, gone) = (broken.breach.law, broken.gone);
        failures.push(failure(options, site, choice, subject, broken, &without));
        if law == EVERY_CALL_RETURNS {
            // It cannot be left out.
            break judged;
        }
        if gone {
            // It would go again, and again take its time.
            judged.hindrance = Some(Hindrance("the subject does not come back from a call; see V17".to_owned()));
            until_broken.insert(law, Tally::default());
            break judged;
        }
        until_broken.insert(law, judged.tallies.get(&law).copied().unwrap_or_default());
        without.push(law);
    };
    let results = view_laws().iter().map(|law| &law.law).filter(|law| options.wants(law.id)).map(|law| {
        let counted = until_broken.get(&law.id).or_else(|| judged.tallies.get(&law.id));
        let tally = counted.copied().unwrap_or_default();
        let broken = until_broken.contains_key(&law.id);
        let standing = match not_applicable(law, choice, subject) {
            _ if broken => Standing::Broken,
            Some(reason) => Standing::NotApplicable(reason.to_owned()),
            // What the platform lacks, or what cut the run short: a part of the sequences proves nothing of the rest.
            None => match (site.hindrance(law, &[]).or_else(|| judged.hindrance.clone()), tally.held, tally.refused) {
                (Some(Hindrance(reason)), ..) => Standing::NotChecked(reason),
                (None, 1.., _) => Standing::Passed,
                (None, 0, 1..) => Standing::Refused,
                (None, 0, 0) => {
                    Standing::NotChecked("it did not come up in any sequence; draw more with --cases".to_owned())
                }
            },
        };
        LawResult { id: law.id, standing, tally }
    });
    let row = Row {
        profile: choice.name().to_owned(),
        subject: Some(subject.name().to_owned()),
        laws: results.collect(),
        sequences: judged.sequences,
        bookkeeping: judged.bookkeeping,
    };
    (row, failures)
}

/// Why a law has nothing to check there.
fn not_applicable(law: &Law, choice: &ProfileChoice, subject: &SubjectChoice) -> Option<&'static str> {
    let info = subject.info();
    let one_device = choice.profile().is_some_and(|profile| profile.device.count < 2);
    law.needs.iter().find_map(|need| match need {
        Need::ThreadSafe if !info.thread_safe => Some("the subject does not say that it is thread-safe"),
        Need::Budget if info.budget.is_none() => Some("the subject has no budget"),
        Need::Report if !info.reports_held => Some("the subject does not report what it holds"),
        Need::TwoDevices if one_device => Some("there is one device"),
        _ => None,
    })
}

/// The first law that a subject breaks, and how many sequences were drawn until then.
pub(crate) fn first_failure(
    options: &CheckOptions,
    site: &dyn Site,
    choice: &ProfileChoice,
    subject: &SubjectChoice,
    without: &[LawId],
) -> (Option<Failure>, u32) {
    let mut judged = judge_sequences(options, site, choice, subject, without);
    let broken = judged.broken.take();
    let drawn = judged.sequences + u32::from(broken.is_some());
    (broken.map(|broken| failure(options, site, choice, subject, broken, without)), drawn)
}

/// How many sequences are drawn until a subject breaks a law; none when it breaks none.
pub(crate) fn sequences_until_broken(
    options: &CheckOptions,
    site: &dyn Site,
    choice: &ProfileChoice,
    subject: &SubjectChoice,
) -> Option<u32> {
    let threads = subject.info().thread_safe;
    let strategy = (choice.strategy(), options.generator.strategy(threads));
    let mut runner = runner(options.cases, rng(options.seed, &[choice.name(), subject.name()]));
    (1..=options.cases).find(|_| {
        let Ok(drawn) = strategy.new_tree(&mut runner) else { return false };
        let (profile, drawn) = drawn.current();
        let setting = Setting { site, profile: &profile, subject, without: &[] };
        let steps = lower(&drawn, profile.device.count, threads);
        setting.run_fresh(&steps).is_ok_and(|result| result.breach.is_some())
    })
}

fn judge_sequences(
    options: &CheckOptions,
    site: &dyn Site,
    choice: &ProfileChoice,
    subject: &SubjectChoice,
    without: &[LawId],
) -> Judged {
    let threads = subject.info().thread_safe;
    let all: RefCell<Judged> = RefCell::default();
    let mut runner = runner(options.cases, rng(options.seed, &[choice.name(), subject.name()]));
    let found = runner.run(&(choice.strategy(), options.generator.strategy(threads)), |(profile, drawn)| {
        let mut judged = all.borrow_mut();
        let already = judged.broken.as_ref().map(|broken| (broken.breach.law, broken.hung));
        if let Some(Hindrance(reason)) = &judged.hindrance {
            // Enough of these end the drawing.
            return Err(TestCaseError::reject(reason.clone()));
        }
        if matches!(already, Some((_, true))) {
            return Ok(());
        }
        let steps = lower(&drawn, profile.device.count, threads);
        let setting = Setting { site, profile: &profile, subject, without };
        let result = match site.over() {
            Some(hindrance) => Err(hindrance),
            // Once a law broke, proptest shrinks: what came before must not show then.
            None if already.is_some() => setting.run_fresh(&steps),
            None => setting.run_clean(&steps),
        };
        let result = match result {
            Ok(result) => result,
            Err(hindrance) => {
                judged.hindrance = Some(hindrance);
                return Ok(());
            }
        };
        if result.lost == Some(Loss::Stopped) {
            judged.hindrance = Some(Hindrance(Loss::Stopped.to_string()));
            return Ok(());
        }
        if let Some(breach) = result.breach {
            // Only the law that broke first counts then.
            let law = already.map_or(breach.law, |(law, _)| law);
            if breach.law != law {
                return Ok(());
            }
            let hung = matches!(result.lost, Some(Loss::Hung(_)));
            judged.broken = Some(Broken {
                profile,
                steps,
                breach,
                log: result.log,
                aftermath: result.aftermath,
                hung,
                gone: result.gone,
            });
            return Err(TestCaseError::fail(law.0));
        }
        if already.is_none() {
            judged.sequences += 1;
            if let MemoryMode::Bookkeeping(reason) = result.mode {
                judged.bookkeeping = Some(reason);
            }
            for (law, tally) in result.tallies {
                let total = judged.tallies.entry(law).or_default();
                total.held += tally.held;
                total.refused += tally.refused;
            }
        }
        Ok(())
    });
    let mut judged = all.into_inner();
    if let Err(TestError::Abort(reason)) = found {
        judged.hindrance.get_or_insert(Hindrance(reason.to_string()));
    }
    judged
}

/// The shortest sequence that breaks the same law; the one that was seen, where it does not break it again.
fn failure(
    options: &CheckOptions,
    site: &dyn Site,
    choice: &ProfileChoice,
    subject: &SubjectChoice,
    broken: Broken,
    without: &[LawId],
) -> Failure {
    let Broken { profile, mut steps, mut breach, mut log, mut aftermath, hung, gone: _ } = broken;
    let law = breach.law;
    let setting = Setting { site, profile: &profile, subject, without };
    let run = |steps: &[Step]| -> Option<SequenceResult> {
        let result = if site.over().is_none() { setting.run_fresh(steps).ok()? } else { return None };
        let same = result.breach.as_ref().is_some_and(|breach| breach.law == law);
        same.then_some(result)
    };
    if hung {
        breach.what += " (as it was drawn: what hangs is not called again)";
    } else if run(&steps).is_none() {
        breach.what += " (seen once: the same sequence did not fail again)";
    } else {
        let shorter = shrink(steps.clone(), |candidate| run(candidate).is_some());
        // What was given up soon while it was made shorter must be seen once more with all the time that it may take.
        if let SubjectChoice::Library(library) = subject {
            library.forgive();
        }
        if let Some(SequenceResult { breach: Some(found), log: words, aftermath: after, .. }) = run(&shorter) {
            (breach, log, aftermath) = (found, words, after);
            steps = shorter;
        }
    }
    steps.truncate(breach.step + 1);
    Failure {
        law,
        case: case_of(options, choice, &profile, law, Some(subject), steps),
        profile: choice.argument().to_owned(),
        stem: choice.file_stem(),
        shown: choice.shown(),
        subject: Some(subject.name().to_owned()),
        step: breach.step,
        what: breach.what,
        holding: breach.holding,
        log,
        aftermath,
    }
}
