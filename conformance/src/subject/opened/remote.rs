//! The suite's side of a subject's process.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hostview_sim::{MemoryMode, Profile};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use super::abi::Said;
use super::notes::Page;
use crate::cache_run::{Breach, Stood, Tally};
use crate::case::{Case, Step};
use crate::laws::{EVERY_CALL_OF_A_SUBJECT_RETURNS, find};
use crate::library::{Grant, Leftover};
use crate::platform::Loss;
use crate::replay::Discord;
use crate::sequence::{SequenceResult, Setting};
use crate::site::{Hindrance, Site};
use crate::subject::SubjectInfo;

/// How a process ends whose subject called the platform on and on.
pub(super) const CALLED_ON_AND_ON: i32 = 87;
/// A library that makes no subject.
pub(super) const NO_SUBJECT: &str = "hv_subject_create gives no subject";
/// What a process may take to give its device back.
pub(super) const GOING: Duration = Duration::from_secs(10);
/// How often a wait looks at the process.
const GLANCE: Duration = Duration::from_millis(10);
/// How much sooner a call is given up, and how much less memory granted, once the subject has gone.
const SOONER: u32 = 16;

/// What a subject may take.
#[derive(Clone, Copy, Debug)]
pub struct SubjectLimits {
    /// What a call may take on the wall clock.
    pub call: Duration,
    /// What it may allocate, in bytes.
    pub memory: u64,
}

impl Default for SubjectLimits {
    fn default() -> Self {
        Self { call: Duration::from_secs(2), memory: 512 << 20 }
    }
}

/// What is asked of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) profile: Profile,
    pub(super) without: Vec<String>,
    /// What is to be opened of a machine; none where the simulator is the device.
    pub(super) grant: Option<Grant>,
    pub(super) what: What,
}

/// What is to be run.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum What {
    /// Steps, until a law breaks.
    Sequence(Vec<Step>),
    /// A case, with what it expects.
    Case(Box<Case>),
    /// Steps whose last two are to be told of.
    Again(Vec<Step>),
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ran {
    pub(super) came: Came,
    /// What was given back of a machine, and what could not be.
    pub(super) left: Option<Leftover>,
    /// Whether the process is to run nothing more.
    pub(super) spent: bool,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Came {
    /// The library made no subject.
    NoSubject,
    /// There is no device for it, and why.
    NoPlatform(String),
    /// What of a case was not as it must be.
    Replayed(Option<Discord>),
    /// How steps ended that were done again.
    Stood(Option<Stood>),
    /// A sequence was run to its end, or until a law broke: which, at which step, how, and what was held.
    Ran {
        breach: Option<(String, usize, String, Vec<String>)>,
        tallies: Vec<(String, u64, u64)>,
        log: Option<String>,
        bookkeeping: Option<String>,
        aftermath: Option<String>,
    },
}

impl From<SequenceResult> for Came {
    fn from(result: SequenceResult) -> Self {
        Self::Ran {
            breach: result.breach.map(|breach| (breach.law.0.to_owned(), breach.step, breach.what, breach.holding)),
            tallies: result.tallies.iter().map(|(law, tally)| (law.0.to_owned(), tally.held, tally.refused)).collect(),
            log: result.log,
            bookkeeping: match result.mode {
                MemoryMode::Protected => None,
                MemoryMode::Bookkeeping(reason) => Some(reason),
            },
            aftermath: result.aftermath,
        }
    }
}

/// What the process of a subject is made of.
#[derive(Clone, Debug)]
pub struct SubjectHome {
    /// This program.
    pub program: PathBuf,
    /// The drop-in `libascend_hal.so`, for a subject that opens the driver itself.
    pub drop_in: Option<PathBuf>,
}

impl SubjectHome {
    /// This program, and the drop-in where cargo or an installation puts it.
    ///
    /// # Errors
    ///
    /// The system does not say where this program is.
    pub fn here() -> std::io::Result<Self> {
        let program = std::env::current_exe()?;
        let folders = beside(&program);
        let drop_in = folders.iter().map(|folder| folder.join("libascend_hal.so")).find(|library| library.is_file());
        Ok(Self { program, drop_in })
    }
}

/// The folders where cargo, or an installation, puts the libraries that go with a program.
#[must_use]
pub fn beside(program: &Path) -> [PathBuf; 3] {
    let folder = program.parent().unwrap_or(Path::new("."));
    [folder.to_owned(), folder.join("deps"), folder.join("../lib64")]
}

/// A library that is a subject.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    argument: String,
    name: String,
    said: Said,
    home: SubjectHome,
    limits: SubjectLimits,
    /// Processes that wait for work.
    idle: Mutex<Vec<Process>>,
    gone: AtomicBool,
}

impl Library {
    /// Opens a library as a subject, in a process of its own.
    ///
    /// # Errors
    ///
    /// It is no library, or no subject; the message has the mend.
    pub fn open(argument: &str, home: SubjectHome, limits: SubjectLimits) -> Result<Self, String> {
        let path = Path::new(argument).canonicalize().map_err(|error| {
            format!("{argument}: {error}; give the path of a library that implements hostview_subject.h")
        })?;
        if path.is_dir() {
            return Err(format!("{argument}: is a folder; give a library that implements hostview_subject.h"));
        }
        let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let mut library = Self {
            name: stem.strip_prefix("lib").unwrap_or(&stem).to_owned(),
            argument: argument.to_owned(),
            path,
            said: Said { name: None, build: None, own_driver: false, info: SubjectInfo::default() },
            home,
            limits,
            idle: Mutex::new(Vec::new()),
            gone: AtomicBool::new(false),
        };
        let (process, said) = library.start(library.home.drop_in.as_deref())?;
        if let Some(name) = &said.name {
            library.name.clone_from(name);
        }
        library.said = said;
        library.idle = Mutex::new(vec![process]);
        Ok(library)
    }

    /// Its name in reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the command line calls it.
    #[must_use]
    pub fn argument(&self) -> &str {
        &self.argument
    }

    /// What it says of itself.
    #[must_use]
    pub fn info(&self) -> SubjectInfo {
        self.said.info
    }

    /// Its name, its own version, and where it is from.
    #[must_use]
    pub fn describe(&self) -> String {
        let build = self.said.build.as_ref().map_or_else(String::new, |build| format!(" {build}"));
        let driver = self.home.drop_in.as_ref().filter(|_| self.said.own_driver).map_or_else(String::new, |drop_in| {
            format!(", which opens the driver itself and meets {}", drop_in.display())
        });
        format!("{}{build}, {}{driver}", self.name, self.argument)
    }

    /// Whether it opens the driver itself.
    #[must_use]
    pub fn opens_the_driver(&self) -> bool {
        self.said.own_driver
    }

    /// Takes it for well again: the full limits hold for what comes.
    pub(crate) fn forgive(&self) {
        if self.gone.swap(false, Ordering::Relaxed) {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
    }

    /// Starts a process with the subject: beside the drop-in, or for a machine's driver. Where both are, whoever opens the driver
    /// by its name meets the one that was first.
    fn start(&self, drop_in: Option<&Path>) -> Result<(Process, Said), String> {
        let failed = |error: std::io::Error| format!("{}: no process for it: {error}", self.argument);
        let file = NamedTempFile::new().map_err(failed)?;
        file.as_file().set_len(4096).map_err(failed)?;
        let page = Page::map(file.as_file()).map_err(failed)?;
        let gone = self.gone.load(Ordering::Relaxed);
        let memory = if gone { self.limits.memory / u64::from(SOONER) } else { self.limits.memory };
        let mut child = Command::new(&self.home.program)
            .arg("serve-subject")
            .arg(&self.path)
            .arg(file.path())
            .arg(memory.to_string())
            .args(drop_in)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let (Some(requests), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{}: a process without streams", self.argument));
        };
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut process =
            Process { child, requests: Some(requests), replies, page, memory, on_machine: false, is_well: true };
        let opening = process.hear::<Result<Said, String>>(self.limits.call);
        // Both have mapped it: nothing stays behind, however the suite ends.
        drop(file);
        match opening {
            Ok(opening) => opening.map(|said| (process, said)),
            Err(end) => Err(format!("{}: opening it fails: it {}", self.argument, end.describe(self.limits.call))),
        }
    }

    /// A process that waits for work of that kind.
    fn take_idle(&self, on_machine: bool) -> Option<Process> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.iter().position(|process| process.on_machine == on_machine)?;
        Some(idle.swap_remove(at))
    }

    /// Has something run; none when it took the process with it, and how then.
    fn ask(&self, ask: &Ask) -> Result<Result<(Came, Option<Leftover>), Gone>, String> {
        let on_machine = ask.grant.is_some();
        if on_machine && self.said.own_driver {
            let why = format!(
                "{}: opens the driver itself, and a machine's driver keeps no journal to judge it by; hostview check does",
                self.argument
            );
            return Err(why);
        }
        let mut process = match self.take_idle(on_machine) {
            Some(process) => process,
            None => self.start(self.home.drop_in.as_deref().filter(|_| !on_machine))?.0,
        };
        process.on_machine = on_machine;
        // Once it went, it is given up sooner: what is looked for then is a shorter way to the same. A machine's driver is
        // given its time.
        let sooner = self.gone.load(Ordering::Relaxed) && !on_machine;
        let limit = if sooner { self.limits.call / SOONER } else { self.limits.call };
        let answer = process.say(ask).and_then(|()| process.hear::<Ran>(limit));
        process.is_well = answer.is_ok();
        match answer {
            Ok(Ran { came, left, spent }) => {
                if !spent {
                    self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(process);
                }
                Ok(Ok((came, left)))
            }
            Err(end) => {
                self.gone.store(true, Ordering::Relaxed);
                let step = process.page.step.load(Ordering::Relaxed) as usize;
                let what = format!("{} {}", process.page.op(), end.describe(self.limits.call));
                let in_driver = on_machine && process.page.inside.load(Ordering::Relaxed) == 0;
                let where_it_was = if in_driver { ", in a call of the driver" } else { "" };
                let what = what + where_it_was + &process.last_words(&end, (!on_machine).then_some(self.limits.memory));
                Ok(Err(Gone { step, what, driver_hangs: in_driver && matches!(end, End::Hung) }))
            }
        }
    }

    /// The same, and the site hears what became of what the subject had there.
    fn ask_on(&self, site: &dyn Site, ask: &Ask) -> Result<Result<Came, Gone>, String> {
        match self.ask(ask)? {
            Ok((came, left)) => {
                site.heard(left.as_ref(), None);
                Ok(Ok(came))
            }
            Err(gone) => {
                site.heard(None, gone.driver_hangs.then_some(&*gone.what));
                Ok(Err(gone))
            }
        }
    }

    /// Runs a sequence until a law breaks. That its calls return is asked whichever laws are.
    pub(crate) fn run(&self, setting: &Setting<'_>, steps: &[Step]) -> Result<SequenceResult, Hindrance> {
        let ask = Ask {
            profile: setting.profile.clone(),
            without: setting.without.iter().map(|law| law.0.to_owned()).collect(),
            grant: setting.site.grant(),
            what: What::Sequence(steps.to_vec()),
        };
        let law = |id: &str| find(id).map(|law| law.id);
        match self.ask_on(setting.site, &ask).map_err(Hindrance)? {
            Ok(Came::NoSubject | Came::Replayed(_) | Came::Stood(_)) => Err(Hindrance(NO_SUBJECT.to_owned())),
            Ok(Came::NoPlatform(why)) => Err(Hindrance(why)),
            Ok(Came::Ran { breach, tallies, log, bookkeeping, aftermath }) => Ok(SequenceResult {
                breach: breach
                    .and_then(|(id, step, what, holding)| Some(Breach { law: law(&id)?, step, what, holding })),
                tallies: tallies
                    .into_iter()
                    .filter_map(|(id, held, refused)| Some((law(&id)?, Tally { held, refused })))
                    .collect(),
                log,
                mode: bookkeeping.map_or(MemoryMode::Protected, MemoryMode::Bookkeeping),
                lost: None,
                aftermath,
                gone: false,
            }),
            Err(Gone { step, what, driver_hangs }) => Ok(SequenceResult {
                breach: Some(Breach { law: EVERY_CALL_OF_A_SUBJECT_RETURNS, step, what, holding: Vec::new() }),
                tallies: BTreeMap::new(),
                log: None,
                mode: MemoryMode::Protected,
                lost: driver_hangs.then(|| Loss::Hung("a call of the driver does not return".to_owned())),
                aftermath: None,
                gone: true,
            }),
        }
    }

    /// Does steps again: how the last two ended; none where the subject does not come back.
    pub(super) fn again(&self, profile: &Profile, steps: &[Step]) -> Option<Stood> {
        let ask = Ask { profile: profile.clone(), without: Vec::new(), grant: None, what: What::Again(steps.to_vec()) };
        match self.ask(&ask) {
            Ok(Ok((Came::Stood(stood), _))) => stood,
            _ => None,
        }
    }

    /// Runs a case: what is not as it must be.
    pub(crate) fn replay(&self, site: &dyn Site, profile: &Profile, case: &Case) -> Option<Discord> {
        let what = What::Case(Box::new(case.clone()));
        let ask = Ask { profile: profile.clone(), without: Vec::new(), grant: site.grant(), what };
        let law = EVERY_CALL_OF_A_SUBJECT_RETURNS;
        let (step, what) = match self.ask_on(site, &ask) {
            Ok(Ok(Came::Replayed(discord))) => return discord,
            Ok(Ok(Came::NoSubject | Came::Ran { .. } | Came::Stood(_))) => (None, NO_SUBJECT.to_owned()),
            Ok(Err(_)) if case.expect_law_broken.iter().any(|id| id == law.0) => return None,
            Ok(Err(Gone { step, what, .. })) => (Some(step), what),
            Ok(Ok(Came::NoPlatform(why))) | Err(why) => (None, why),
        };
        Some(Discord { step, expected: format!("{law} to hold"), came: what, log: None, heaps: None })
    }
}

/// How a subject's process went.
struct Gone {
    /// At which step.
    step: usize,
    /// What it did.
    what: String,
    /// Whether it was a machine's driver that did not return.
    driver_hangs: bool,
}

/// How a process ended.
enum End {
    Ended(ExitStatus),
    Hung,
    Nonsense(String),
    Silent,
}

impl End {
    fn describe(&self, limit: Duration) -> String {
        match self {
            Self::Ended(status) => match (status.signal(), status.code()) {
                (_, Some(CALLED_ON_AND_ON)) => "does not return: it calls the platform on and on".to_owned(),
                (Some(signal), _) => match signal_hook::low_level::signal_name(signal) {
                    Some(name) => format!("ends the process with {name}"),
                    None => format!("ends the process with signal {signal}"),
                },
                (None, code) => format!("ends the process with exit {}", code.unwrap_or(0)),
            },
            Self::Hung => format!("does not return within {} s", limit.as_secs_f64()),
            Self::Nonsense(line) => format!("breaks the suite's own stream: {:?}", line.get(..60).unwrap_or(line)),
            Self::Silent => "closes the suite's own stream".to_owned(),
        }
    }
}

/// A process that has the subject.
#[derive(Debug)]
struct Process {
    child: Child,
    requests: Option<ChildStdin>,
    replies: Receiver<String>,
    page: &'static Page,
    memory: u64,
    /// Whether it is for a machine's driver.
    on_machine: bool,
    /// Whether its last answer came.
    is_well: bool,
}

impl Process {
    fn say(&mut self, ask: &Ask) -> Result<(), End> {
        let mut line = serde_json::to_string(ask).unwrap_or_default();
        line.push('\n');
        let sent = self.requests.as_mut().is_some_and(|requests| requests.write_all(line.as_bytes()).is_ok());
        if sent { Ok(()) } else { Err(self.end()) }
    }

    /// What it left of its end: where it crashed, and whether it had all the memory that it may take.
    fn last_words(&self, end: &End, memory: Option<u64>) -> String {
        let mut words = String::new();
        if matches!(end, End::Ended(status) if status.signal().is_some()) {
            if let Some(fault) = self.page.fault.load(Ordering::Relaxed).checked_sub(1) {
                words += &format!(" at {fault:#x}");
            }
            let stack = self.page.stack();
            if !stack.is_empty() {
                words += &format!(", in {stack}");
            }
        }
        if let Some(memory) = memory
            && (self.page.resident.load(Ordering::Relaxed) << 10) > self.memory / 4 * 3
        {
            words += &format!(", out of memory: it may take {} MiB", memory >> 20);
        }
        words
    }

    /// The next answer, as long as the process gets on.
    fn hear<T: for<'de> Deserialize<'de>>(&mut self, limit: Duration) -> Result<T, End> {
        let (mut beats, mut since) = (self.page.beats.load(Ordering::Relaxed), Instant::now());
        loop {
            match self.replies.recv_timeout(GLANCE) {
                Ok(line) => return serde_json::from_str(&line).map_err(|_| End::Nonsense(line)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.end()),
                Err(RecvTimeoutError::Timeout) => {
                    let now = self.page.beats.load(Ordering::Relaxed);
                    if now != beats {
                        (beats, since) = (now, Instant::now());
                    } else if since.elapsed() > limit {
                        return Err(End::Hung);
                    }
                }
            }
        }
    }

    fn end(&mut self) -> End {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(1) {
            if let Ok(Some(status)) = self.child.try_wait() {
                return End::Ended(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        End::Silent
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.requests = None;
        // One that has a device gives it back, and goes by itself.
        let begun = Instant::now();
        while self.on_machine && self.is_well && begun.elapsed() < GOING && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Whatever it started goes with it: its whole group.
        if let Ok(group) = i32::try_from(self.child.id()) {
            super::notes::kill_group(group);
        }
        let _ = self.child.wait();
    }
}
