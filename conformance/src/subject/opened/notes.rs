//! What the process of a subject leaves behind for the suite, whatever becomes of it: a page of memory that both map.

#![allow(unsafe_code, reason = "shared memory, standard output and signals")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::case::Op;

/// The page.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Page {
    /// Counts steps, in all sequences: what stands still hangs.
    pub(super) beats: AtomicU64,
    /// The step, from 0.
    pub(super) step: AtomicU32,
    /// Its operation, as an index of [`OPS`].
    pub(super) op: AtomicU32,
    /// Where a fault was met, and one more: 0 where none was.
    pub(super) fault: AtomicU64,
    /// What was resident when it crashed, in KiB.
    pub(super) resident: AtomicU64,
}

const OPS: [Op; 9] =
    [Op::Alloc, Op::Free, Op::Acquire, Op::Release, Op::Read, Op::Write, Op::CopyIn, Op::CopyOut, Op::Finalize];

impl Page {
    /// Maps the page of a file of that length.
    pub(super) fn map(file: &File) -> io::Result<&'static Self> {
        // SAFETY: a new mapping of a file that is long enough; it is never unmapped, and only atomics live in it.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Self>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: zeroes are a valid page, and the mapping lives for ever.
        Ok(unsafe { &*at.cast::<Self>() })
    }

    pub(super) fn op(&self) -> &'static str {
        OPS.get(self.op.load(Ordering::Relaxed) as usize).map_or("a call", |op| op.name())
    }
}

/// The subject's side of the page, and its standard output.
#[derive(Debug)]
pub(super) struct Notes {
    page: &'static Page,
    output: OwnedFd,
    seen: Mutex<i64>,
}

static PAGE: AtomicU64 = AtomicU64::new(0);

impl Notes {
    /// Takes standard output from the subject, and notes where it crashes.
    pub(super) fn take(path: &Path) -> io::Result<&'static Self> {
        let page = Page::map(&File::options().read(true).write(true).open(path)?)?;
        PAGE.store(std::ptr::from_ref(page) as u64, Ordering::Relaxed);
        // SAFETY: the name is a literal; the descriptor is new and owned by nobody else.
        let output = unsafe {
            let output = libc::memfd_create(c"standard output".as_ptr(), libc::MFD_CLOEXEC);
            if output < 0 || libc::dup2(output, 1) < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(output)
        };
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT] {
            // SAFETY: the handler touches an atomic and the signal's own data alone, and the signal strikes again after it.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = note_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_RESETHAND | libc::SA_ONSTACK;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
        Ok(Box::leak(Box::new(Self { page, output, seen: Mutex::new(0) })))
    }

    pub(super) fn at_step(&self, index: usize, op: Op) {
        self.page.step.store(u32::try_from(index).unwrap_or(u32::MAX), Ordering::Relaxed);
        let op = OPS.iter().position(|known| *known == op).unwrap_or(OPS.len());
        self.page.op.store(u32::try_from(op).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.page.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// What was written to standard output since the last time.
    pub(super) fn noise(&self) -> Option<String> {
        // SAFETY: an open descriptor, and room for what is read.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            let end = libc::lseek(self.output.as_raw_fd(), 0, libc::SEEK_END);
            let mut seen = self.seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            if end <= *seen {
                return None;
            }
            let mut text = [0_u8; 64];
            let read = libc::pread(self.output.as_raw_fd(), text.as_mut_ptr().cast(), text.len(), *seen);
            *seen = end;
            Some(String::from_utf8_lossy(&text[..usize::try_from(read).unwrap_or(0)]).into_owned())
        }
    }
}

extern "C" fn note_fault(signal: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let page = PAGE.load(Ordering::Relaxed) as *const Page;
    // SAFETY: the kernel gives a valid `info`; the page was mapped for ever before this handler was set.
    unsafe {
        if signal != libc::SIGABRT {
            (*page).fault.store(((*info).si_addr() as u64).wrapping_add(1), Ordering::Relaxed);
        }
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) == 0 {
            (*page).resident.store(u64::try_from(usage.ru_maxrss).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

/// Ends a process and whatever it started.
pub(super) fn kill_group(group: i32) {
    // SAFETY: sends a signal to the group that the suite made for its own child.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}
