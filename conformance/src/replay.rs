//! Replaying files: every case must do what it says, and every law must hold that is not said to break.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostview_cache::Held;
use serde::{Deserialize, Serialize};

use hostview_sim::{ByteCount, CallKind, MemoryMode, Profile, ProfileError, VirtualTime, cost_of, resident_bytes};

use crate::cache_run::{CacheRun, Stepped};
use crate::case::{self, Case, CaseError, Step, Through};
use crate::driver_run::DriverRun;
use crate::expect::Mismatch;
use crate::explain::Explained;
use crate::library::LibrarySite;
use crate::platform::{Loss, Platform, SimPlatform};
use crate::sequence::again;
use crate::site::{Hindrance, Simulator, Site as _};
use crate::subject::{self, Library, SubjectChoice, SubjectHome, SubjectLimits, UnknownSubject};

/// Why files could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A file is no case.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// A path that is not there, or cannot be read.
    #[error("{path}: {problem}")]
    Path {
        /// The path.
        path: String,
        /// What is wrong, and the mend.
        problem: String,
    },
    /// A case names a library that cannot be opened as a subject.
    #[error("{path}: {problem}")]
    CannotOpen {
        /// The file.
        path: String,
        /// What is wrong, and the mend.
        problem: String,
    },
    /// A case names a profile that is none.
    #[error("{path}: {error}")]
    Profile {
        /// The file.
        path: String,
        /// What is wrong with the profile.
        error: ProfileError,
    },
    /// A case names a subject that is none.
    #[error("{path}: {error}")]
    Subject {
        /// The file.
        path: String,
        /// Which.
        error: UnknownSubject,
    },
}

/// The files that paths stand for: themselves, and in folders everything that can be a case.
///
/// # Errors
///
/// A path is missing, or a folder holds no case.
pub fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, ReplayError> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let before = files.len();
            collect(path, &mut files)?;
            if files.len() == before {
                let problem = "holds no case; give a folder with .toml or .jsonl files".to_owned();
                return Err(ReplayError::Path { path: path.display().to_string(), problem });
            }
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), ReplayError> {
    let unreadable = |error: std::io::Error| ReplayError::Path {
        path: folder.display().to_string(),
        problem: format!("cannot be read: {error}"),
    };
    let entries = std::fs::read_dir(folder).map_err(unreadable)?;
    let mut entries: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(unreadable)?;
    entries.sort();
    for entry in entries {
        if entry.is_dir() {
            collect(&entry, files)?;
        } else if entry.extension().is_some_and(|ext| ext == "toml" || ext == "jsonl") {
            files.push(entry);
        }
    }
    Ok(())
}

/// The cases of a file, each with its profile and subject found.
///
/// # Errors
///
/// The file is no case, or names a profile or subject that is none.
pub fn prepare(path: &Path) -> Result<Vec<Prepared>, ReplayError> {
    let cases = case::load(path)?;
    let place = path.display().to_string();
    cases.into_iter().map(|case| prepare_case(case, &place)).collect()
}

/// A case with everything that it names.
#[derive(Debug)]
pub struct Prepared {
    /// The case.
    pub case: Case,
    profile: Profile,
    subject: SubjectChoice,
}

fn prepare_case(case: Case, place: &str) -> Result<Prepared, ReplayError> {
    let wrong = |error| ReplayError::Profile { path: place.to_owned(), error };
    let profile = Profile::find(&case.profile).map_err(wrong)?;
    let profile = profile.overridden(&case.profile_override, "[profile_override]").map_err(wrong)?;
    let named = case.subject.as_deref().unwrap_or(subject::REFERENCE);
    let subject = if subject::is_path(named) {
        let open = |home: SubjectHome| Library::open(named, home, SubjectLimits::default());
        let opened = SubjectHome::here().map_err(|error| error.to_string()).and_then(open);
        let library = opened.map_err(|problem| ReplayError::CannotOpen { path: place.to_owned(), problem })?;
        SubjectChoice::Library(Arc::new(library))
    } else {
        subject::find(named).map_err(|error| ReplayError::Subject { path: place.to_owned(), error })?
    };
    Ok(Prepared { case, profile, subject })
}

/// How a case ended that did not pass.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Discord {
    /// The step, from 0; none when it is about the whole case.
    pub step: Option<usize>,
    /// What must have come.
    pub expected: String,
    /// What came.
    pub came: String,
    /// The driver's last line.
    pub log: Option<String>,
    /// The heaps before and after the step, where an address is not as it must be.
    pub heaps: Option<(Vec<String>, Vec<String>)>,
}

/// What a case used, for those who ask.
#[derive(Clone, PartialEq, Debug)]
pub struct Usage {
    /// Virtual time of all calls.
    pub total: VirtualTime,
    /// Virtual time of unregister calls.
    pub unregister: VirtualTime,
    /// How memory was protected.
    pub memory: MemoryMode,
    /// Resident memory of this process, in bytes.
    pub resident: Option<u64>,
    /// What the subject holds at the end.
    pub held: Option<Held>,
}

/// How a case ended.
#[derive(Clone, PartialEq, Debug)]
pub struct Ending {
    /// What was not as it must be.
    pub discord: Option<Discord>,
    /// What it used.
    pub usage: Usage,
}

impl Prepared {
    /// Runs the case on a fresh simulated host of its profile.
    #[must_use]
    pub fn run(&self) -> Ending {
        match self.case.through {
            Through::Driver => self.run_driver(),
            Through::Cache => {
                if let SubjectChoice::Library(library) = &self.subject {
                    let usage = Usage {
                        total: VirtualTime::ZERO,
                        unregister: VirtualTime::ZERO,
                        memory: MemoryMode::Protected,
                        resident: resident_bytes(),
                        held: None,
                    };
                    return Ending { discord: library.replay(&Simulator, &self.profile, &self.case), usage };
                }
                let Some(subject) = self.subject.make() else { unreachable!("only a library is not made here") };
                let run = CacheRun::new(Box::new(self.platform()), subject);
                let mut run = run.with_threads(again(Box::new(self.maker()), self.subject.clone()));
                let discord = drive_cache(&self.case, &mut run);
                let usage = Usage {
                    total: run.platform().virtual_time().unwrap_or_default(),
                    unregister: VirtualTime::ZERO,
                    memory: run.platform().memory_mode(),
                    resident: resident_bytes(),
                    held: Some(run.held()),
                };
                Ending { discord, usage }
            }
        }
    }

    /// Runs the case on a machine's own driver library, in a fresh process.
    ///
    /// # Errors
    ///
    /// It cannot be run there: what it needs the machine does not have, or the run ended before it did.
    pub fn run_on(&self, site: &LibrarySite) -> Result<Option<Discord>, Hindrance> {
        // Of a subject the suite makes the call fail, before it comes to the driver.
        if self.case.through == Through::Driver && self.case.steps.iter().any(|step| step.fail.is_some()) {
            return Err(Hindrance("it makes a call fail on purpose, which no driver library does".to_owned()));
        }
        if let Some(hindrance) = site.over().or_else(|| site.hindrance_of(&self.case.steps)) {
            return Err(hindrance);
        }
        let discord = match (self.case.through, &self.subject) {
            (Through::Driver, _) if self.case.is_journal => {
                self.wherever_memory_lies().drive(&mut *site.fresh(&self.profile)?)
            }
            (Through::Driver, _) => self.drive(&mut *site.fresh(&self.profile)?),
            (Through::Cache, SubjectChoice::Library(library)) => library.replay(site, &self.profile, &self.case),
            (Through::Cache, subject) => {
                let Some(subject) = subject.make() else { unreachable!("only a library is not made here") };
                drive_cache(&self.case, &mut CacheRun::new(site.fresh(&self.profile)?, subject))
            }
        };
        // What was cut short is no verdict on the case.
        if site.stopped() { Err(Hindrance(Loss::Stopped.to_string())) } else { Ok(discord) }
    }

    /// Whether [`Prepared::explain`] can see the device.
    #[must_use]
    pub fn is_explained(&self) -> bool {
        self.case.through == Through::Driver || !matches!(self.subject, SubjectChoice::Library(_))
    }

    /// Runs the case on a fresh simulated host of its profile to its end, whatever comes of a step: what the host did and why.
    ///
    /// # Errors
    ///
    /// Its subject runs in a process of its own, with a host that is not seen here.
    pub fn explain(&self) -> Result<Vec<Explained>, Hindrance> {
        let steps = &self.case.steps;
        let mut explained = Vec::new();
        let mut platform = self.platform();
        if self.case.through == Through::Driver {
            let mut run = DriverRun::new(&mut platform);
            for (index, step) in steps.iter().enumerate() {
                let calls = run.calls();
                let mismatch = run.step(step);
                let told = run.told_since(calls);
                explained.push(Explained { steps: index..index + 1, told, mismatch, breaches: Vec::new() });
            }
            return Ok(explained);
        }
        let Some(subject) = self.subject.make() else {
            let why = "its subject has a process of its own, whose device is not seen from here";
            return Err(Hindrance(format!("{why}; explain the case with a built-in one, or read HOSTVIEW_JOURNAL")));
        };
        let run = CacheRun::new(Box::new(platform), subject);
        let mut run = run.with_threads(again(Box::new(self.maker()), self.subject.clone()));
        run.ask_why();
        let mut index = 0;
        while index < steps.len() {
            let Stepped { breaches, mismatch, taken, over } = run.step(index, steps);
            explained.push(Explained { steps: index..index + taken, told: run.take_told(), mismatch, breaches });
            index += taken;
            if over {
                break;
            }
        }
        Ok(explained)
    }

    /// The same case on another profile, its own changes of keys included.
    ///
    /// # Errors
    ///
    /// It is none, or the changes do not go with it.
    pub fn on(mut self, argument: &str) -> Result<Self, ProfileError> {
        self.profile = Profile::find(argument)?.overridden(&self.case.profile_override, "[profile_override]")?;
        argument.clone_into(&mut self.case.profile);
        Ok(self.wherever_memory_lies())
    }

    /// The same case without the addresses that it was recorded with: they are of its own machine.
    fn wherever_memory_lies(&self) -> Self {
        self.with_steps(self.case.steps.iter().map(|step| Step { address: None, ..step.clone() }).collect())
    }

    /// The profile that it runs on.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The same case with other steps.
    pub(crate) fn with_steps(&self, steps: Vec<Step>) -> Self {
        let case = Case { steps, ..self.case.clone() };
        Self { case, profile: self.profile.clone(), subject: self.subject.clone() }
    }

    pub(crate) fn subject(&self) -> &SubjectChoice {
        &self.subject
    }

    pub(crate) fn platform(&self) -> SimPlatform {
        platform(&self.profile, self.case.bookkeeping)
    }

    /// Makes platforms like that.
    fn maker(&self) -> impl Fn() -> Box<dyn Platform> + use<> {
        let (profile, bookkeeping) = (self.profile.clone(), self.case.bookkeeping);
        move || Box::new(platform(&profile, bookkeeping))
    }

    fn run_driver(&self) -> Ending {
        let mut platform = self.platform();
        let mut discord = self.drive(&mut platform);
        if let Some(Discord { step: Some(step), heaps, .. }) = &mut discord
            && self.case.steps[*step].address.is_some()
        {
            *heaps = Some((self.heaps_before(*step), platform.describe()));
        }
        let journal = platform.host().journal();
        let usage = Usage {
            total: platform.host().now(),
            unregister: cost_of(journal, CallKind::Unregister),
            memory: platform.memory_mode(),
            resident: resident_bytes(),
            held: None,
        };
        Ending { discord, usage }
    }

    /// Runs driver calls: the first that is not as it must be.
    fn drive(&self, platform: &mut dyn Platform) -> Option<Discord> {
        let mut run = DriverRun::new(platform);
        let (index, mismatch) =
            self.case.steps.iter().enumerate().find_map(|(index, step)| Some((index, run.step(step)?)))?;
        let Mismatch { expected, came } = mismatch;
        Some(Discord { step: Some(index), expected, came, log: run.last_words(), heaps: None })
    }

    /// The heaps as they were before a step: the sequence is run again up to it.
    fn heaps_before(&self, step: usize) -> Vec<String> {
        let mut platform = self.platform();
        let mut run = DriverRun::new(&mut platform);
        for step in &self.case.steps[..step] {
            run.step(step);
        }
        platform.describe()
    }

    /// The step of a discord.
    #[must_use]
    pub fn step(&self, index: usize) -> &Step {
        &self.case.steps[index]
    }
}

/// Runs a case's operations through its subject: what is not as it must be.
pub(crate) fn drive_cache(case: &Case, run: &mut CacheRun) -> Option<Discord> {
    let expected = &case.expect_law_broken;
    let mut seen: Vec<&str> = Vec::new();
    let mut index = 0;
    while index < case.steps.len() {
        let Stepped { breaches, mismatch, taken, over } = run.step(index, &case.steps);
        let at = index + taken - 1;
        let unexpected = breaches.iter().find(|breach| !expected.iter().any(|id| id == breach.law.0));
        // A law that breaks as it is said to may bring others with it: those are not what the case is about.
        let unexpected = unexpected.filter(|_| expected.is_empty());
        seen.extend(breaches.iter().map(|breach| breach.law.0));
        let differs = match (unexpected, mismatch) {
            (Some(breach), _) => Some((format!("{} to hold", breach.law), breach.what.clone())),
            (None, Some(mismatch)) => Some((mismatch.expected, mismatch.came)),
            (None, None) => None,
        };
        if let Some((expected, came)) = differs {
            let log = run.last_words();
            return Some(Discord { step: Some(at), expected, came, log, heaps: None });
        }
        if over {
            break;
        }
        index += taken;
    }
    let missing = expected.iter().find(|id| !seen.contains(&id.as_str()));
    missing.map(|missing| Discord {
        step: None,
        expected: format!("{missing} to break"),
        came: if seen.is_empty() { "every law holds".to_owned() } else { format!("{} broke", seen.join(", ")) },
        log: None,
        heaps: None,
    })
}

fn platform(profile: &Profile, bookkeeping: bool) -> SimPlatform {
    if bookkeeping { SimPlatform::bookkeeping(profile, "the case asks for it") } else { SimPlatform::new(profile) }
}

impl Usage {
    /// In lines.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        let mut lines = vec![format!("virtual time {}", self.total)];
        if self.unregister > VirtualTime::ZERO {
            lines.push(format!("of that in unregister {}", self.unregister));
        }
        if let Some(held) = self.held {
            lines.push(format!("held at the end: {} views of {}", held.count, ByteCount(held.bytes)));
        }
        lines.push(match &self.memory {
            MemoryMode::Protected => "memory protected by the operating system".to_owned(),
            MemoryMode::Bookkeeping(reason) => format!("memory not protected, books only: {reason}"),
        });
        if let Some(resident) = self.resident {
            lines.push(format!("resident memory of this process {:.1} MiB", resident as f64 / f64::from(1 << 20)));
        }
        lines
    }
}
