//! The platform in another process: what the suite holds of it.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use hostview_sim::{DeviceAddr, Fault, HostAddr, PagePolicy, PlannedFault, RegisterCall};

use super::find::{CannotOpen, Paths};
use super::platform::Limits;
use super::wire::{Bytes, Leftover, MachineFacts, Reply, Request, device_address, host_address};
use crate::case::Via;
use crate::code::ErrorCode;
use crate::platform::{Loss, MemoryAt, Platform, Unsupported};

/// How often a wait looks whether it is to stop.
const GLANCE: Duration = Duration::from_millis(20);
/// What giving everything back may take.
const CLEANING: Duration = Duration::from_secs(10);
/// What a driver's log may need to reach its file.
const LOG_DELAY: Duration = Duration::from_millis(500);

/// How processes that have the library are started.
#[derive(Clone, Debug)]
pub struct Summons {
    /// The program and its arguments: `hostview` with the command that serves a library.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What to load.
    pub paths: Paths,
    /// What may be taken of the machine.
    pub limits: Limits,
    /// What a call may take on the wall clock.
    pub call_limit: Duration,
    /// The driver's log, when it is to be followed.
    pub driver_log: Option<PathBuf>,
    /// What all processes share.
    pub watch: Arc<Watch>,
}

/// What the suite and all processes with the library know together.
#[derive(Debug, Default)]
pub struct Watch {
    /// Set when the suite is to end early; a signal handler does it.
    pub stop: Arc<AtomicBool>,
    /// The first call that did not return.
    pub hung: OnceLock<String>,
    given_back: Mutex<Leftover>,
}

impl Watch {
    /// Something was given back, or could not be.
    pub(super) fn add(&self, leftover: Leftover) {
        self.given_back.lock().unwrap_or_else(PoisonError::into_inner).add(leftover);
    }

    /// What was given back so far, and what could not be.
    pub fn given_back(&self) -> Leftover {
        self.given_back.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Summons {
    /// Starts a process and opens the device in it.
    ///
    /// # Errors
    ///
    /// It cannot be started, or the library or the device not be opened.
    pub fn open(&self) -> Result<RemotePlatform, CannotOpen> {
        let refused = |what: String| CannotOpen::Refused(what);
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| refused(format!("{}: cannot be started: {error}", self.program.display())))?;
        let (Some(requests), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(refused("a process without streams".to_owned()));
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
        let mut process = Process {
            link: RefCell::new(Link { child, requests: Some(requests), replies, lost: None }),
            call_limit: self.call_limit,
            watch: self.watch.clone(),
            facts: MachineFacts::default(),
            log: Tail::new(self.driver_log.as_deref()),
        };
        let open = Request::Open { paths: self.paths.clone(), limits: self.limits.clone() };
        match process.ask(&open) {
            Some(Reply::Opened(facts)) => process.facts = *facts,
            Some(Reply::CannotOpen(why)) => return Err(refused(why)),
            _ => return Err(refused(process.lost().map_or_else(|| "no answer".to_owned(), |loss| loss.to_string()))),
        }
        Ok(RemotePlatform { process: Some(process), home: None })
    }
}

/// The process, and the way to it.
#[derive(Debug)]
struct Link {
    child: Child,
    requests: Option<ChildStdin>,
    replies: Receiver<String>,
    /// Why it answers no more.
    lost: Option<Loss>,
}

/// A process that has the library.
#[derive(Debug)]
struct Process {
    link: RefCell<Link>,
    call_limit: Duration,
    watch: Arc<Watch>,
    facts: MachineFacts,
    log: Tail,
}

/// Where a process waits, emptied, for whoever does not mind its past.
#[derive(Clone, Debug, Default)]
pub(super) struct Home(Arc<Mutex<Option<Process>>>);

impl Home {
    pub(super) fn take(&self) -> Option<RemotePlatform> {
        let process = self.0.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(RemotePlatform { process: Some(process), home: Some(self.clone()) })
    }

    /// Lets the process that waits here go.
    pub(super) fn leave(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// A driver library in a process of its own. A call that crashes or hangs is an answer: see [`Platform::lost`].
#[derive(Debug)]
pub struct RemotePlatform {
    /// There until it goes home, or is dropped.
    process: Option<Process>,
    home: Option<Home>,
}

/// What is answered when there is nobody to answer.
const NOBODY: ErrorCode = ErrorCode(u32::MAX);

impl Process {
    fn ask(&mut self, request: &Request) -> Option<Reply> {
        let reply = self.link.get_mut().ask(request, self.call_limit, &self.watch);
        self.log.follow();
        reply
    }

    fn lost(&self) -> Option<Loss> {
        self.link.borrow().lost.clone()
    }

    fn clean_up(&mut self) -> Leftover {
        // It is wanted whether the suite is to stop or not.
        let leftover = match self.link.get_mut().ask(&Request::CleanUp, CLEANING, &Watch::default()) {
            Some(Reply::Left(leftover)) => leftover,
            // With the process everything went that it had.
            _ => Leftover::default(),
        };
        self.watch.add(leftover.clone());
        leftover
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.clean_up();
        let link = self.link.get_mut();
        // The end of its input is the sign to close the device and go.
        link.requests = None;
        if link.wait(CLEANING).is_none() {
            let _ = link.child.kill();
            let _ = link.child.wait();
        }
    }
}

impl RemotePlatform {
    /// What the machine says of itself.
    #[must_use]
    pub fn facts(&self) -> MachineFacts {
        self.process.as_ref().map(|process| process.facts.clone()).unwrap_or_default()
    }

    /// Lets it go to `home` when it is dropped, for further use.
    #[must_use]
    pub(super) fn living_at(self, home: &Home) -> Self {
        let mut platform = self;
        platform.home = Some(home.clone());
        platform
    }

    fn ask(&mut self, request: &Request) -> Option<Reply> {
        self.process.as_mut()?.ask(request)
    }

    fn done(&mut self, request: &Request) -> Result<(), ErrorCode> {
        match self.ask(request) {
            Some(Reply::Done) => Ok(()),
            Some(Reply::Error(code)) => Err(ErrorCode(code)),
            _ => Err(NOBODY),
        }
    }

    fn address(&mut self, request: &Request) -> Result<u64, ErrorCode> {
        match self.ask(request) {
            Some(Reply::Address(address)) => Ok(address),
            Some(Reply::Error(code)) => Err(ErrorCode(code)),
            _ => Err(NOBODY),
        }
    }
}

impl Drop for RemotePlatform {
    fn drop(&mut self) {
        let (Some(mut process), Some(home)) = (self.process.take(), &self.home) else { return };
        let left = process.clean_up().left;
        // What lost its process or cannot be emptied is no good to anybody.
        if process.lost().is_none() && left.is_empty() {
            *home.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        }
    }
}

impl Link {
    /// One call and its answer; none when the process is lost, now or before.
    fn ask(&mut self, request: &Request, limit: Duration, watch: &Watch) -> Option<Reply> {
        if self.lost.is_some() {
            return None;
        }
        let mut line = serde_json::to_string(request).unwrap_or_default();
        line.push('\n');
        let sent = self
            .requests
            .as_mut()
            .is_some_and(|requests| requests.write_all(line.as_bytes()).and_then(|()| requests.flush()).is_ok());
        if !sent {
            return self.lose(|status| format!("{} was called when {status}", request.call()));
        }
        let begun = Instant::now();
        loop {
            match self.replies.recv_timeout(GLANCE) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(reply) => return Some(reply),
                    Err(_) => {
                        let _ = self.child.kill();
                        return self.lose(|_| format!("{} is answered with nonsense: {line}", request.call()));
                    }
                },
                Err(RecvTimeoutError::Disconnected) => {
                    return self.lose(|status| format!("{} does not return: {status}", request.call()));
                }
                Err(RecvTimeoutError::Timeout) if watch.stop.load(Ordering::Relaxed) => {
                    self.requests = None;
                    self.lost = Some(Loss::Stopped);
                    return None;
                }
                Err(RecvTimeoutError::Timeout) if begun.elapsed() > limit => {
                    let _ = self.child.kill();
                    let _ = self.wait(CLEANING);
                    self.requests = None;
                    let what = format!("{} does not return within {} s", request.call(), limit.as_secs_f64());
                    // Whatever is known of an earlier one stays.
                    let _ = watch.hung.set(what.clone());
                    self.lost = Some(Loss::Hung(what));
                    return None;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn lose(&mut self, say: impl FnOnce(&str) -> String) -> Option<Reply> {
        self.requests = None;
        // Whatever closed its output is not let live on.
        let status = self.wait(Duration::from_secs(1)).map_or_else(
            || {
                let _ = self.child.kill();
                let _ = self.child.wait();
                "the process closed its answers".to_owned()
            },
            describe,
        );
        self.lost = Some(Loss::Crashed(say(&status)));
        None
    }

    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let begun = Instant::now();
        while begun.elapsed() < limit {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(_) => return None,
            }
        }
        None
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.signal(), status.code()) {
        (Some(signal), _) => match signal_hook::low_level::signal_name(signal) {
            Some(name) => format!("the process is killed by {name}"),
            None => format!("the process is killed by signal {signal}"),
        },
        (None, Some(code)) => format!("the process ends with {code}"),
        (None, None) => "the process ends".to_owned(),
    }
}

impl Platform for RemotePlatform {
    fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy, via: Via) -> Result<DeviceAddr, ErrorCode> {
        self.address(&Request::Alloc { device, bytes, policy, via }).map(device_address)
    }

    fn free(&mut self, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
        self.done(&Request::Free { address: address.get(), via })
    }

    fn register(&mut self, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
        self.address(&Request::register(call)).map(host_address)
    }

    fn unregister(&mut self, address: DeviceAddr, device: u32) -> Result<(), ErrorCode> {
        self.done(&Request::Unregister { address: address.get(), device })
    }

    fn unregister_ex(&mut self, address: DeviceAddr, device: u32, flags: u32) -> Result<(), ErrorCode> {
        self.done(&Request::UnregisterEx { address: address.get(), device, flags })
    }

    fn copy_in(&mut self, address: DeviceAddr, from: &[u8]) -> Result<(), ErrorCode> {
        self.done(&Request::CopyIn { address: address.get(), data: Bytes(from.to_vec()) })
    }

    fn copy_out(&mut self, address: DeviceAddr, into: &mut [u8]) -> Result<(), ErrorCode> {
        match self.ask(&Request::CopyOut { address: address.get(), bytes: into.len() as u64 }) {
            Some(Reply::Bytes(Bytes(bytes))) if bytes.len() == into.len() => {
                into.copy_from_slice(&bytes);
                Ok(())
            }
            Some(Reply::Error(code)) => Err(ErrorCode(code)),
            _ => Err(NOBODY),
        }
    }

    fn host_read(&mut self, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
        match self.ask(&Request::HostRead { address: address.get(), bytes: into.len() as u64 }) {
            Some(Reply::Bytes(Bytes(bytes))) if bytes.len() == into.len() => {
                into.copy_from_slice(&bytes);
                Ok(())
            }
            Some(Reply::Fault(at)) => Err(Fault { address: host_address(at) }),
            _ => Err(Fault { address }),
        }
    }

    fn host_write(&mut self, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
        match self.ask(&Request::HostWrite { address: address.get(), data: Bytes(from.to_vec()) }) {
            Some(Reply::Done) => Ok(()),
            Some(Reply::Fault(at)) => Err(Fault { address: host_address(at) }),
            _ => Err(Fault { address }),
        }
    }

    fn plan_fault(&mut self, _fault: PlannedFault) -> Result<(), Unsupported> {
        Err(Unsupported("a driver library fails no call on demand".to_owned()))
    }

    fn log(&self) -> &[String] {
        self.process.as_ref().map_or(&[], |process| &process.log.lines)
    }

    fn keeps_log(&self) -> bool {
        self.process.as_ref().is_some_and(|process| process.log.path.is_some())
    }

    fn await_log(&mut self, text: &str) {
        let begun = Instant::now();
        while self.keeps_log() && begun.elapsed() < LOG_DELAY && !self.log().iter().any(|line| line.contains(text)) {
            std::thread::sleep(Duration::from_millis(5));
            if let Some(process) = &mut self.process {
                process.log.follow();
            }
        }
    }

    fn lost(&self) -> Option<Loss> {
        self.process.as_ref().and_then(Process::lost)
    }

    fn memory_at(&self, address: DeviceAddr) -> Option<MemoryAt> {
        let process = self.process.as_ref()?;
        let request = Request::MemoryAt { address: address.get() };
        match process.link.borrow_mut().ask(&request, process.call_limit, &process.watch) {
            Some(Reply::Memory(memory)) => memory,
            _ => None,
        }
    }
}

/// The lines that a file grew by since it was opened.
#[derive(Debug)]
struct Tail {
    path: Option<PathBuf>,
    read: u64,
    half: String,
    lines: Vec<String>,
}

impl Tail {
    fn new(path: Option<&Path>) -> Self {
        let read = path.and_then(|path| std::fs::metadata(path).ok()).map_or(0, |file| file.len());
        Self { path: path.map(Path::to_owned), read, half: String::new(), lines: Vec::new() }
    }

    fn follow(&mut self) {
        let Some(mut file) = self.path.as_ref().and_then(|path| File::open(path).ok()) else { return };
        let mut grown = Vec::new();
        if file.seek(SeekFrom::Start(self.read)).is_err() || file.read_to_end(&mut grown).is_err() {
            return;
        }
        self.read += grown.len() as u64;
        self.half += &String::from_utf8_lossy(&grown);
        while let Some(end) = self.half.find('\n') {
            let line: String = self.half.drain(..=end).collect();
            self.lines.push(line.trim_end().to_owned());
        }
    }
}
