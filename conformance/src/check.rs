//! The suite: every law, on every profile, over drawn sequences.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostview_sim::{MemoryMode, PageKind, Profile};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};

use crate::cache_run::{Breach, CacheRun, Tally};
use crate::case::{Case, Step, Through};
use crate::driver_run::DriverRun;
use crate::expect::Mismatch;
use crate::generate::{draws, lower, profiles, sequences};
use crate::laws::{Draw, DriverLaw, Law, LawId, Need, Trial, driver_laws, view_laws};
use crate::platform::{Platform, SimPlatform};
use crate::shrink::shrink;
use crate::subject::BuiltIn;

/// A profile as a run names it.
#[derive(Clone, Debug)]
pub enum ProfileChoice {
    /// This one; the name or path that found it, for repeating the run.
    Given(Box<Profile>, String),
    /// A new one for each sequence, drawn from page sizes, capabilities and regimes.
    Drawn,
}

/// The name of the row of drawn profiles.
pub const DRAWN: &str = "drawn";

/// What drawn profiles are changed from.
const DRAWN_FROM: &str = "a2a3";

impl ProfileChoice {
    /// What reports call it.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Given(profile, _) => &profile.name,
            Self::Drawn => DRAWN,
        }
    }

    /// What the command line calls it.
    #[must_use]
    pub fn argument(&self) -> &str {
        match self {
            Self::Given(_, argument) => argument,
            Self::Drawn => DRAWN,
        }
    }

    fn strategy(&self) -> BoxedStrategy<Profile> {
        match self {
            Self::Given(profile, _) => Just(Profile::clone(profile)).boxed(),
            Self::Drawn => profiles(&drawn_from()).boxed(),
        }
    }
}

fn drawn_from() -> Profile {
    Profile::shipped(DRAWN_FROM).expect("a shipped profile")
}

/// What to check, and how much.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// The profiles.
    pub profiles: Vec<ProfileChoice>,
    /// The subjects; none when only D-laws are asked for.
    pub subjects: Vec<&'static BuiltIn>,
    /// These laws alone, when given.
    pub laws: Option<Vec<LawId>>,
    /// Sequences for each profile and subject.
    pub cases: u32,
    /// The seed of everything that is drawn.
    pub seed: u64,
}

impl CheckOptions {
    fn wants(&self, law: LawId) -> bool {
        self.laws.as_ref().is_none_or(|laws| laws.contains(&law))
    }

    /// D-laws are sequences of a few dozen shapes: a quarter of the cases meets them all.
    #[must_use]
    pub fn trials(&self) -> u32 {
        self.cases.div_ceil(4)
    }
}

/// What became of a law on a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It was checked, and held each time.
    Passed,
    /// The platform refuses what it is about, and does so as it must.
    Refused,
    /// It could not be checked, for this reason.
    NotApplicable(String),
    /// It broke.
    Broken,
}

/// A law on a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LawResult {
    /// The law.
    pub id: LawId,
    /// How it stands.
    pub standing: Standing,
    /// How often it was checked.
    pub tally: Tally,
}

/// All laws of one family on a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// The profile.
    pub profile: String,
    /// The subject; none for D-laws.
    pub subject: Option<&'static str>,
    /// The laws, in the order of their ids.
    pub laws: Vec<LawResult>,
    /// How many sequences were run.
    pub sequences: u32,
    /// How memory was protected, where it was not by the operating system.
    pub bookkeeping: Option<String>,
}

/// A law that broke, with the shortest sequence that shows it.
#[derive(Clone, PartialEq, Debug)]
pub struct Failure {
    /// The law.
    pub law: LawId,
    /// The sequence, ready to be written.
    pub case: Case,
    /// The profile, as the command line names it.
    pub profile: String,
    /// The subject; none for a D-law.
    pub subject: Option<&'static str>,
    /// The step, from 0.
    pub step: usize,
    /// How it showed.
    pub what: String,
    /// What the platform held then.
    pub holding: Vec<String>,
    /// The driver's last line.
    pub log: Option<String>,
}

/// What a run found.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The rows, profile by profile.
    pub rows: Vec<Row>,
    /// What broke.
    pub failures: Vec<Failure>,
}

impl Report {
    /// Whether nothing broke.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.failures.is_empty()
    }
}

/// Where a worker puts a row and what broke in it.
type Slot = Mutex<Option<(Row, Vec<Failure>)>>;

/// One row's worth of work.
struct Job<'a> {
    profile: &'a ProfileChoice,
    subject: Option<&'static BuiltIn>,
}

/// Runs the suite; `progress` is told of each row that is done.
pub fn check(options: &CheckOptions, progress: &(dyn Fn(&str) + Sync)) -> Report {
    let wants_driver = driver_laws().iter().any(|law| options.wants(law.law.id));
    let wants_views = view_laws().iter().any(|law| options.wants(law.law.id));
    let jobs: Vec<Job<'_>> = options
        .profiles
        .iter()
        .flat_map(|profile| {
            let driver = wants_driver.then_some(Job { profile, subject: None });
            let subjects = options.subjects.iter().filter(|_| wants_views);
            driver.into_iter().chain(subjects.map(move |subject| Job { profile, subject: Some(subject) }))
        })
        .collect();
    let results: Vec<Slot> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let next = AtomicUsize::new(0);
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((job, result)) = take(&next, &jobs, &results) {
                    let found = match job.subject {
                        None => check_driver(options, job.profile),
                        Some(subject) => check_subject(options, job.profile, subject),
                    };
                    progress(job.profile.name());
                    *result.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(found);
                }
            });
        }
    });
    let mut report = Report { rows: Vec::new(), failures: Vec::new() };
    for result in results {
        if let Some((row, failures)) = result.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            report.rows.push(row);
            report.failures.extend(failures);
        }
    }
    report
}

fn take<'a, T, R>(next: &AtomicUsize, jobs: &'a [T], results: &'a [R]) -> Option<(&'a T, &'a R)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    Some((jobs.get(index)?, &results[index]))
}

/// A generator whose numbers depend on the seed and on what they are for, and on nothing else.
fn rng(seed: u64, purpose: &[&str]) -> TestRng {
    let mut bytes = [0; 32];
    for (index, part) in bytes.chunks_mut(8).enumerate() {
        // FNV-1a, four times with different beginnings.
        let mut hash = 0xcbf2_9ce4_8422_2325_u64 ^ seed ^ (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for byte in purpose.iter().flat_map(|word| word.bytes().chain([0])) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        part.copy_from_slice(&hash.to_le_bytes());
    }
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}

fn runner(cases: u32, rng: TestRng) -> TestRunner {
    let config = Config { cases, max_shrink_iters: 4096, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, rng)
}

/// What a D-law's trial came to.
enum TrialResult {
    Held,
    Refused,
    NotApplicable(String),
    Broken(Mismatch),
}

fn run_steps(profile: &Profile, steps: &[Step]) -> Option<(usize, Mismatch, Option<String>)> {
    let mut platform = SimPlatform::new(profile);
    let mut run = DriverRun::new(&mut platform);
    let (index, mismatch) =
        steps.iter().enumerate().find_map(|(index, step)| run.step(step).map(|mismatch| (index, mismatch)))?;
    Some((index, mismatch, run.last_words()))
}

fn run_trial(profile: &Profile, trial: &Trial) -> TrialResult {
    let (steps, held) = match trial {
        Trial::Steps(steps) => (steps, TrialResult::Held),
        Trial::Mirror(steps) => (steps, TrialResult::Refused),
        Trial::NotApplicable(reason) => return TrialResult::NotApplicable(reason.clone()),
    };
    match run_steps(profile, steps) {
        None => held,
        Some((_, mismatch, _)) => TrialResult::Broken(mismatch),
    }
}

fn check_driver(options: &CheckOptions, profile: &ProfileChoice) -> (Row, Vec<Failure>) {
    let mut laws = Vec::new();
    let mut failures = Vec::new();
    let mut sequences = 0;
    for law in driver_laws().iter().filter(|law| options.wants(law.law.id)) {
        let (result, failure, trials) = check_driver_law(options, profile, law);
        laws.push(result);
        failures.extend(failure);
        sequences += trials;
    }
    let bookkeeping = bookkeeping_of(profile);
    (Row { profile: profile.name().to_owned(), subject: None, laws, sequences, bookkeeping }, failures)
}

fn check_driver_law(
    options: &CheckOptions,
    choice: &ProfileChoice,
    driver_law: &'static DriverLaw,
) -> (LawResult, Option<Failure>, u32) {
    let id = driver_law.law.id;
    let tally = RefCell::new((Tally::default(), None));
    let mut runner = runner(options.trials(), rng(options.seed, &[choice.name(), id.0]));
    let found = runner.run(&(choice.strategy(), draws()), |(profile, draw)| {
        let trial = (driver_law.trial)(&profile, &draw);
        let mut tally = tally.borrow_mut();
        match run_trial(&profile, &trial) {
            TrialResult::Held => tally.0.held += 1,
            TrialResult::Refused => tally.0.refused += 1,
            TrialResult::NotApplicable(reason) => tally.1 = Some(reason),
            TrialResult::Broken(mismatch) => {
                return Err(TestCaseError::fail(format!("{} came", mismatch.came)));
            }
        }
        Ok(())
    });
    let (tally, reason) = tally.into_inner();
    let trials = u32::try_from(tally.held + tally.refused).unwrap_or(u32::MAX);
    let failure = match found {
        Err(TestError::Fail(_, (profile, draw))) => {
            driver_failure(options, choice, driver_law, &profile, &(driver_law.trial)(&profile, &draw))
        }
        Err(TestError::Abort(_)) | Ok(()) => None,
    };
    let standing = match (&failure, tally.held, tally.refused) {
        (Some(_), ..) => Standing::Broken,
        (None, 1.., _) => Standing::Passed,
        (None, 0, 1..) => Standing::Refused,
        (None, 0, 0) => Standing::NotApplicable(reason.unwrap_or_else(|| "no trial came up".to_owned())),
    };
    (LawResult { id, standing, tally }, failure, trials)
}

fn driver_failure(
    options: &CheckOptions,
    choice: &ProfileChoice,
    driver_law: &'static DriverLaw,
    profile: &Profile,
    trial: &Trial,
) -> Option<Failure> {
    let (Trial::Steps(steps) | Trial::Mirror(steps)) = trial else { return None };
    let (_, mismatch, _) = run_steps(profile, steps)?;
    // Shorter, as long as some step of the law's own still comes out in the same wrong way.
    let same = |steps: &[Step]| run_steps(profile, steps).is_some_and(|(_, found, _)| found == mismatch);
    let steps = drop_only(steps.clone(), same);
    let (step, mismatch, log) = run_steps(profile, &steps)?;
    let what = format!("expected {}; came {}", mismatch.expected, mismatch.came);
    let case = case_of(options, choice, profile, &driver_law.law.id, None, steps);
    let holding = Vec::new();
    let profile = choice.argument().to_owned();
    Some(Failure { law: driver_law.law.id, case, profile, subject: None, step, what, holding, log })
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

/// What a sequence through a subject came to.
struct SequenceResult {
    breach: Option<Breach>,
    tallies: HashMap<LawId, Tally>,
    log: Option<String>,
    mode: MemoryMode,
}

fn run_sequence(profile: &Profile, subject: &BuiltIn, steps: &[Step], without: &[LawId]) -> SequenceResult {
    let mut run = CacheRun::new(Box::new(SimPlatform::new(profile)), subject.make()).without(without);
    let breach = steps.iter().enumerate().find_map(|(index, step)| run.step(index, step).0.into_iter().next());
    let (log, mode) = (run.last_words(), run.platform().memory_mode());
    SequenceResult { breach, tallies: run.tallies().clone(), log, mode }
}

/// What the sequences of one subject on one profile came to.
#[derive(Default)]
struct Judged {
    tallies: BTreeMap<LawId, Tally>,
    sequences: u32,
    bookkeeping: Option<String>,
    failure: Option<Failure>,
}

fn check_subject(options: &CheckOptions, choice: &ProfileChoice, subject: &'static BuiltIn) -> (Row, Vec<Failure>) {
    let unwanted = view_laws().iter().map(|law| law.law.id).filter(|law| !options.wants(*law));
    let mut without: Vec<LawId> = unwanted.collect();
    let mut failures: Vec<Failure> = Vec::new();
    // A law that broke is left out, and the run is made again: what else is broken is of interest too.
    let judged = loop {
        let mut judged = judge_sequences(options, choice, subject, &without);
        match judged.failure.take() {
            None => break judged,
            Some(failure) => {
                without.push(failure.law);
                failures.push(failure);
            }
        }
    };
    let results = view_laws().iter().map(|law| &law.law).filter(|law| options.wants(law.id)).map(|law| {
        let tally = judged.tallies.get(&law.id).copied().unwrap_or_default();
        let broken = failures.iter().any(|failure| failure.law == law.id);
        let standing = match (broken, tally.held, tally.refused) {
            (true, ..) => Standing::Broken,
            (false, 1.., _) => Standing::Passed,
            (false, 0, 1..) => Standing::Refused,
            (false, 0, 0) => Standing::NotApplicable(why_not(law, choice, subject).to_owned()),
        };
        LawResult { id: law.id, standing, tally }
    });
    let row = Row {
        profile: choice.name().to_owned(),
        subject: Some(subject.name),
        laws: results.collect(),
        sequences: judged.sequences,
        bookkeeping: judged.bookkeeping,
    };
    (row, failures)
}

/// Why a law was never checked.
fn why_not(law: &Law, choice: &ProfileChoice, subject: &BuiltIn) -> &'static str {
    let info = subject.make().info();
    let one_device = matches!(choice, ProfileChoice::Given(profile, _) if profile.device.count < 2);
    if law.needs.contains(&Need::ThreadSafe) && !info.thread_safe {
        "the subject does not say that it is thread-safe"
    } else if law.needs.contains(&Need::Budget) && info.budget.is_none() {
        "the subject has no budget"
    } else if law.needs.contains(&Need::TwoDevices) && one_device {
        "there is one device"
    } else {
        "it did not come up in any sequence"
    }
}

fn judge_sequences(
    options: &CheckOptions,
    choice: &ProfileChoice,
    subject: &'static BuiltIn,
    without: &[LawId],
) -> Judged {
    let judged: RefCell<Judged> = RefCell::default();
    let first: Cell<Option<LawId>> = Cell::new(None);
    let mut runner = runner(options.cases, rng(options.seed, &[choice.name(), subject.name]));
    let found = runner.run(&(choice.strategy(), sequences()), |(profile, drawn)| {
        let steps = lower(&drawn, profile.device.count);
        let result = run_sequence(&profile, subject, &steps, without);
        if let Some(breach) = result.breach {
            // Once one law broke, proptest shrinks: only that law counts then.
            let law = first.get().unwrap_or(breach.law);
            first.set(Some(law));
            return if breach.law == law { Err(TestCaseError::fail(law.0)) } else { Ok(()) };
        }
        if first.get().is_none() {
            let mut judged = judged.borrow_mut();
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
    let mut judged = judged.into_inner();
    if let Err(TestError::Fail(_, (profile, drawn))) = found {
        let steps = lower(&drawn, profile.device.count);
        judged.failure = view_failure(options, choice, subject, &profile, (steps, without));
    }
    judged
}

fn view_failure(
    options: &CheckOptions,
    choice: &ProfileChoice,
    subject: &'static BuiltIn,
    profile: &Profile,
    (steps, without): (Vec<Step>, &[LawId]),
) -> Option<Failure> {
    let breach_of = |steps: &[Step]| run_sequence(profile, subject, steps, without).breach;
    let first = breach_of(&steps)?;
    let mut steps = shrink(steps, |candidate| breach_of(candidate).is_some_and(|breach| breach.law == first.law));
    let SequenceResult { breach, log, .. } = run_sequence(profile, subject, &steps, without);
    let breach = breach?;
    steps.truncate(breach.step + 1);
    let case = case_of(options, choice, profile, &breach.law, Some(subject), steps);
    Some(Failure {
        law: breach.law,
        case,
        profile: choice.argument().to_owned(),
        subject: Some(subject.name),
        step: breach.step,
        what: breach.what,
        holding: breach.holding,
        log,
    })
}

/// The sequence of a D-law on a profile, as a case.
///
/// # Errors
///
/// Why the law has none there.
pub fn law_as_case(law: &'static DriverLaw, profile: &Profile, argument: &str) -> Result<Case, String> {
    let trial = (law.trial)(profile, &Draw::shown(PageKind::Ordinary));
    let trial = match trial {
        // What ordinary pages do not show, huge ones may.
        Trial::NotApplicable(_) => (law.trial)(profile, &Draw::shown(PageKind::Huge)),
        other => other,
    };
    match trial {
        Trial::NotApplicable(reason) => Err(reason),
        Trial::Steps(steps) | Trial::Mirror(steps) => Ok(Case {
            title: format!("{}: {}", law.law.id, law.law.statement),
            source: law.law.source.to_owned(),
            profile: argument.to_owned(),
            through: Through::Driver,
            subject: None,
            expect_law_broken: Vec::new(),
            seed: None,
            bookkeeping: false,
            profile_override: toml::Table::new(),
            steps,
        }),
    }
}

fn case_of(
    options: &CheckOptions,
    choice: &ProfileChoice,
    profile: &Profile,
    law: &LawId,
    subject: Option<&BuiltIn>,
    steps: Vec<Step>,
) -> Case {
    let statement = crate::laws::find(law.0).map_or("", |law| law.statement);
    let (name, profile_override) = match choice {
        ProfileChoice::Given(_, argument) => (argument.clone(), toml::Table::new()),
        ProfileChoice::Drawn => (DRAWN_FROM.to_owned(), difference(&drawn_from(), profile)),
    };
    Case {
        title: format!("{law} is broken: {statement}"),
        source: format!("hostview check, seed {}", options.seed),
        profile: name,
        through: if subject.is_some() { Through::Cache } else { Through::Driver },
        subject: subject.map(|subject| subject.name.to_owned()),
        expect_law_broken: Vec::new(),
        seed: Some(options.seed),
        bookkeeping: false,
        profile_override,
        steps,
    }
}

/// The keys in which a profile differs from another.
fn difference(from: &Profile, to: &Profile) -> toml::Table {
    fn tables(from: &toml::Table, to: &toml::Table) -> toml::Table {
        to.iter()
            .filter(|(key, value)| from.get(*key) != Some(*value))
            .map(|(key, value)| match (from.get(key), value) {
                (Some(toml::Value::Table(from)), toml::Value::Table(to)) => {
                    (key.clone(), toml::Value::Table(tables(from, to)))
                }
                _ => (key.clone(), value.clone()),
            })
            .collect()
    }
    let table = |profile: &Profile| toml::Table::try_from(profile).unwrap_or_default();
    let mut changed = tables(&table(from), &table(to));
    // A name is no behaviour.
    changed.remove("name");
    changed
}

fn bookkeeping_of(choice: &ProfileChoice) -> Option<String> {
    let profile = match choice {
        ProfileChoice::Given(profile, _) => Profile::clone(profile),
        ProfileChoice::Drawn => drawn_from(),
    };
    match SimPlatform::new(&profile).memory_mode() {
        MemoryMode::Protected => None,
        MemoryMode::Bookkeeping(reason) => Some(reason),
    }
}
