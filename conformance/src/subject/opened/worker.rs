//! The process of a subject: it runs one sequence after the other, each on a fresh simulated device.

#![allow(unsafe_code, reason = "limits of the process")]

use std::cell::OnceCell;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::FromRawFd as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};

use hostview_sim::{PagePolicy, Profile};

use super::abi::{Opened, Said, Symbols, open};
use super::notes::Notes;
use super::remote::{Ask, Came, GOING, Library, NO_SUBJECT, Ran, SubjectHome, SubjectLimits, What};
use crate::cache_run::CacheRun;
use crate::laws::{LawId, find};
use crate::library::{DropIn, Grant, LibraryPlatform, Published};
use crate::platform::{Platform, SimPlatform};
use crate::recorder::{Recorder, SubjectCall};
use crate::replay::drive_cache;
use crate::sequence::run_until_broken;
use crate::subject::Subject as _;

/// Opens the subject and runs sequences from standard input until it ends.
///
/// # Errors
///
/// Standard input or output are not there.
pub fn serve(subject: &Path, notes: &Path, memory: u64, drop_in: Option<&Path>) -> io::Result<()> {
    let (requests, mut replies) = (duplicate(0)?, duplicate(1)?);
    let requests = read(requests);
    let notes = Notes::take(notes, subject)?;
    let opened = open_beside(subject, drop_in, notes);
    let opening = opened.as_ref().map(|(_, said, _)| said).map_err(Clone::clone);
    send(&mut replies, &opening)?;
    let Ok((symbols, said, driver)) = opened else { return Ok(()) };
    limit(libc::RLIMIT_CORE, 0);
    let mut machine = None;
    let mut open_before = None;
    let sibling = said.info.thread_safe.then(|| sibling_of(subject, memory));
    for line in requests {
        let Ok(Ask { profile, without, grant, what }) = serde_json::from_str::<Ask>(&line) else { break };
        let without: Vec<LawId> = without.iter().filter_map(|id| find(id)).map(|law| law.id).collect();
        let platform = match grant {
            // A machine's driver takes what it needs.
            Some(grant) => platform_on(&grant, notes, &mut machine),
            None => {
                limit(libc::RLIMIT_DATA, memory);
                limit(libc::RLIMIT_NOFILE, u64::from(DESCRIPTORS));
                platform_of(driver.as_ref(), &profile)
            }
        };
        let open_before = *open_before.get_or_insert_with(open_descriptors);
        let mut left = None;
        let came = match (platform, Opened::new(symbols, &said, notes)) {
            (Err(why), _) => Came::NoPlatform(why),
            (Ok(_), None) => Came::NoSubject,
            (Ok(platform), Some(subject)) => {
                let run = CacheRun::new(platform, Box::new(subject)).without(&without);
                let mut run = match sibling.as_ref().filter(|_| machine.is_none()) {
                    Some(sibling) => run.with_threads(Box::new({
                        let (sibling, profile) = (sibling.clone(), profile.clone());
                        move |steps| sibling()?.again(&profile, steps)
                    })),
                    None => run,
                };
                let came = match what {
                    What::Again(steps) => Came::Stood(run.stand_after(&steps)),
                    What::Sequence(steps) => Came::from(run_until_broken(&mut run, &steps)),
                    What::Case(case) => Came::Replayed(drive_cache(&case, &mut run)),
                };
                left = run.platform().give_back();
                came
            }
        };
        // What the subject left open adds up, and would be missed by a later sequence.
        let spent = open_descriptors() > open_before + SPENT;
        // What could not be given back may go with the process.
        let spent = spent || left.as_ref().is_some_and(|left| !left.left.is_empty());
        send(&mut replies, &Ran { came, left, spent })?;
    }
    if let Some(machine) = &mut machine {
        machine.close();
        // SAFETY: ends the process, and runs nothing of the subject's.
        unsafe { libc::_exit(0) }
    }
    Ok(())
}

/// Opens the subject. A driver that it opens by name, or is linked with, is the drop-in.
fn open_beside(
    subject: &Path,
    drop_in: Option<&Path>,
    notes: &'static Notes,
) -> Result<(Symbols, Said, Option<Published>), String> {
    // First, so that no driver of the machine's own is ever met.
    let drop_in = drop_in.map(DropIn::load).transpose()?;
    let shown = subject.display();
    let (symbols, said) = open(subject).map_err(|error| match &drop_in {
        None if error.contains(DRIVER) => format!("{error}; {NO_DROP_IN}"),
        _ => error,
    })?;
    if !said.own_driver {
        return Ok((symbols, said, None));
    }
    let drop_in = drop_in.ok_or_else(|| format!("{shown}: opens {DRIVER} itself; {NO_DROP_IN}"))?;
    let driver = drop_in.publish()?;
    let profile = Profile::shipped("a2a3").map_err(|error| error.to_string())?;
    let mut recorder = Recorder::new(Box::new(driver.fresh(&profile)?));
    let mut cache = Opened::new(symbols, &said, notes).ok_or_else(|| format!("{shown}: {NO_SUBJECT}"))?;
    let base = cache.alloc(&mut recorder, 0, 4096, PagePolicy::HugeFirst).map_err(|error| {
        format!(
            "{shown}: opens {DRIVER} itself, and cannot allocate 4096 bytes on {}: {error}",
            drop_in.path().display()
        )
    })?;
    let met = recorder.take_calls().iter().any(|record| matches!(record.call, SubjectCall::Alloc { .. }));
    if !met {
        return Err(format!(
            "{shown}: opens {DRIVER} itself, and its hv_subject_alloc calls another one than {}: have it open the library by \
             its name, without a folder",
            drop_in.path().display()
        ));
    }
    let _ = cache.free(&mut recorder, base);
    Ok((symbols, said, Some(driver)))
}

/// The driver, by the name that programs open it by.
const DRIVER: &str = "libascend_hal.so";
/// What to do where there is none that a subject may call.
const NO_DROP_IN: &str = "the drop-in for it is not beside this program: build it with `cargo build --release -p hostview-hal -p \
                          hostview-acl`, or give --drop-in FILE";

/// Another process with the same subject, started when it is first asked for. What two threads come to is judged by what the steps
/// come to one after the other, and that needs the driver's addresses, which are taken in this process.
fn sibling_of(subject: &Path, memory: u64) -> Rc<dyn Fn() -> Option<&'static Library>> {
    let subject = subject.display().to_string();
    let sibling: OnceCell<Option<&'static Library>> = OnceCell::new();
    let start = move || {
        let home = SubjectHome { program: std::env::current_exe().ok()?, drop_in: None };
        let limits = SubjectLimits { memory, ..SubjectLimits::default() };
        let library = Library::open(&subject, home, limits).ok()?;
        Some(&*Box::leak(Box::new(library)))
    };
    Rc::new(move || *sibling.get_or_init(&start))
}

/// A machine's device, opened when it is first asked for.
fn platform_on(
    grant: &Grant,
    notes: &Notes,
    machine: &mut Option<LibraryPlatform>,
) -> Result<Box<dyn Platform>, String> {
    if machine.is_none() {
        notes.on_machine();
        HAS_DEVICE.store(true, Ordering::Relaxed);
        let open = || LibraryPlatform::open(&grant.paths, grant.limits.clone());
        let opened = notes.inside(false, open).map_err(|error| error.to_string())?;
        *machine = Some(opened);
    }
    let opened = machine.as_ref().map(LibraryPlatform::anew).ok_or("no device")?;
    Ok(Box::new(opened))
}

/// Whether this process has a device to give back at its end.
static HAS_DEVICE: AtomicBool = AtomicBool::new(false);

/// A fresh device for a sequence.
fn platform_of(driver: Option<&Published>, profile: &Profile) -> Result<Box<dyn Platform>, String> {
    Ok(match driver {
        Some(driver) => Box::new(driver.fresh(profile)?),
        None => Box::new(SimPlatform::new(profile)),
    })
}

/// The most descriptors of the process.
const DESCRIPTORS: u16 = 256;
/// How many a subject may have left open before its process is given up: a sequence has room for the rest.
const SPENT: usize = 16;

/// How many descriptors are open: one call tells of all.
fn open_descriptors() -> usize {
    let ask = |descriptor: u16| libc::pollfd { fd: descriptor.into(), events: 0, revents: 0 };
    let mut all: Vec<libc::pollfd> = (0..DESCRIPTORS).map(ask).collect();
    // SAFETY: so many are there.
    unsafe { libc::poll(all.as_mut_ptr(), DESCRIPTORS.into(), 0) };
    all.iter().filter(|one| one.revents & libc::POLLNVAL == 0).count()
}

/// The requests, line by line. The suite's end is this process' end, whatever the subject is at.
fn read(requests: File) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(requests).lines() {
            if line.is_err() || sender.send(line.unwrap_or_default()).is_err() {
                break;
            }
        }
        if HAS_DEVICE.load(Ordering::Relaxed) {
            // The device is given back meanwhile.
            drop(sender);
            std::thread::sleep(GOING);
        }
        // SAFETY: ends the process, and runs nothing of the subject's.
        unsafe { libc::_exit(0) }
    });
    lines
}

fn send(replies: &mut File, reply: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(reply)?;
    line.push('\n');
    replies.write_all(line.as_bytes())
}

/// A stream of this process, out of the subject's way.
fn duplicate(descriptor: i32) -> io::Result<File> {
    // SAFETY: makes a new descriptor, which nobody else has.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 100) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: open, just made, and owned by nobody else.
    Ok(unsafe { File::from_raw_fd(copy) })
}

fn limit(resource: libc::__rlimit_resource_t, most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: sets a limit of this process. Where that is refused, it stays what it was.
    unsafe { libc::setrlimit(resource, &raw const limit) };
}
