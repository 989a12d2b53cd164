//! The suite: every law, on every profile, over drawn sequences.

mod cases;
mod driver;
mod views;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use hostview_sim::Profile;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::cache_run::Tally;
use crate::case::Case;
use crate::generate::{Drawn, profiles, sequences, uniform_sequences};
use crate::laws::{LawId, driver_laws, view_laws};
use crate::site::Site;
use crate::subject::SubjectChoice;

pub use cases::{law_as_case, overrides};
pub(crate) use driver::first_broken;
pub(crate) use views::{first_failure, sequences_until_broken};

/// A profile as a run names it.
#[derive(Clone, Debug)]
pub enum ProfileChoice {
    /// This one; the name or path that found it, for repeating the run.
    Given(Box<Profile>, String),
    /// That of the machine at hand; the name or path of the one that it is like.
    Machine(Box<Profile>, String),
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
            Self::Given(profile, _) | Self::Machine(profile, _) => &profile.name,
            Self::Drawn => DRAWN,
        }
    }

    /// What the command line calls it.
    #[must_use]
    pub fn argument(&self) -> &str {
        match self {
            Self::Given(_, argument) | Self::Machine(_, argument) => argument,
            Self::Drawn => DRAWN,
        }
    }

    /// The profile, where it is one.
    fn profile(&self) -> Option<&Profile> {
        match self {
            Self::Given(profile, _) | Self::Machine(profile, _) => Some(profile),
            Self::Drawn => None,
        }
    }

    /// What a person calls it.
    fn shown(&self) -> String {
        match self {
            Self::Given(_, argument) => argument.clone(),
            Self::Machine(..) => "this machine".to_owned(),
            Self::Drawn => format!("a drawn profile ({DRAWN_FROM} otherwise; the case has what differs)"),
        }
    }

    /// What files about it are called.
    fn file_stem(&self) -> String {
        let text = if let Self::Machine(profile, _) = self { &profile.name } else { self.argument() };
        text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect()
    }

    fn bookkeeping(&self, site: &dyn Site) -> Option<String> {
        match self {
            Self::Given(profile, _) | Self::Machine(profile, _) => site.bookkeeping(profile),
            Self::Drawn => site.bookkeeping(&drawn_from()),
        }
    }

    fn strategy(&self) -> BoxedStrategy<Profile> {
        match self {
            Self::Given(profile, _) | Self::Machine(profile, _) => Just(Profile::clone(profile)).boxed(),
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
    pub subjects: Vec<SubjectChoice>,
    /// These laws alone, when given.
    pub laws: Option<Vec<LawId>>,
    /// Sequences for each profile and subject.
    pub cases: u32,
    /// Trials for each D-law. They are sequences of a few dozen shapes, met by fewer trials than views need sequences.
    pub trials: u32,
    /// The seed of everything that is drawn.
    pub seed: u64,
    /// How sequences are drawn.
    pub generator: Generator,
    /// How many rows at once; as many as there are processors where this is not said. A site with one device has one.
    pub jobs: Option<usize>,
}

/// How sequences for subjects are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Generator {
    /// Towards the edges, as the suite does.
    #[default]
    Suite,
    /// Uniformly: what the suite's own way is measured against.
    Uniform,
}

impl Generator {
    fn strategy(self, threads: bool) -> BoxedStrategy<Vec<Drawn>> {
        match self {
            Self::Suite => sequences(threads).boxed(),
            Self::Uniform => uniform_sequences().boxed(),
        }
    }
}

impl CheckOptions {
    fn wants(&self, law: LawId) -> bool {
        self.laws.as_ref().is_none_or(|laws| laws.contains(&law))
    }
}

/// What became of a law on a profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It was checked, and held each time.
    Passed,
    /// The platform refuses what it is about, and does so as it must.
    Refused,
    /// There is nothing to check on this platform or with this subject, for this reason.
    NotApplicable(String),
    /// It applies and could not be checked, for this reason.
    NotChecked(String),
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
    pub subject: Option<String>,
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
    /// The profile, as a file name has it.
    pub stem: String,
    /// The profile, as a person calls it.
    pub shown: String,
    /// The subject; none for a D-law.
    pub subject: Option<String>,
    /// The step, from 0.
    pub step: usize,
    /// How it showed.
    pub what: String,
    /// What the platform held then.
    pub holding: Vec<String>,
    /// The driver's last line.
    pub log: Option<String>,
    /// What comes of it: the bytes of whoever has the memory next.
    pub aftermath: Option<String>,
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
    subject: Option<&'a SubjectChoice>,
}

/// Runs the suite on the platforms of a site; `progress` is told of each row that is done.
pub fn check(options: &CheckOptions, site: &dyn Site, progress: &(dyn Fn(&str) + Sync)) -> Report {
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
    let workers = site.parallel(options.jobs).min(jobs.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some((job, result)) = take(&next, &jobs, &results) {
                    let found = match job.subject {
                        None => driver::check_driver(options, site, job.profile),
                        Some(subject) => views::check_subject(options, site, job.profile, subject),
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

/// A runner for drawing things one by one.
pub(crate) fn runner_for(seed: u64, purpose: &[&str]) -> TestRunner {
    runner(1, rng(seed, purpose))
}

fn runner(cases: u32, rng: TestRng) -> TestRunner {
    let config = Config { cases, max_shrink_iters: 4096, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, rng)
}
