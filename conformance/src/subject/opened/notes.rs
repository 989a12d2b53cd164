//! What the process of a subject leaves behind for the suite, whatever becomes of it: a page of memory that both map.

#![allow(unsafe_code, reason = "shared memory, standard output and signals")]

use std::ffi::{CStr, CString, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

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
    /// Whether it is in the subject's own code, and not in the platform or the suite: 1 or 0.
    pub(super) inside: AtomicU32,
    /// Where a fault was met, and one more: 0 where none was.
    pub(super) fault: AtomicU64,
    /// What was resident when it crashed, in KiB.
    pub(super) resident: AtomicU64,
    /// The subject's own calls that it was in, the innermost first, as text that ends with a zero.
    stack: [AtomicU8; 256],
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

    pub(super) fn stack(&self) -> String {
        let text: Vec<u8> =
            self.stack.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|byte| *byte != 0).collect();
        String::from_utf8_lossy(&text).into_owned()
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
    /// What the subject wrote before a call of a machine's driver, which may write as well.
    pending: Mutex<Option<String>>,
    on_machine: AtomicBool,
}

static PAGE: AtomicU64 = AtomicU64::new(0);
/// The path of the subject's library, as the loader has it.
static LIBRARY: OnceLock<CString> = OnceLock::new();

impl Notes {
    /// Takes standard output from the subject, and notes where in its own library it crashes.
    pub(super) fn take(path: &Path, library: &Path) -> io::Result<&'static Self> {
        let page = Page::map(&File::options().read(true).write(true).open(path)?)?;
        LIBRARY.get_or_init(|| CString::new(library.as_os_str().as_bytes()).unwrap_or_default());
        // The first one loads what the others need: not in a handler.
        frames(&mut [std::ptr::null_mut(); 1]);
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
        Ok(Box::leak(Box::new(Self {
            page,
            output,
            seen: Mutex::new(0),
            pending: Mutex::new(None),
            on_machine: AtomicBool::new(false),
        })))
    }

    pub(super) fn at_step(&self, index: usize, op: Op) {
        if self.on_machine.load(Ordering::Relaxed) {
            // The suite has called the driver since.
            self.noise();
        }
        self.page.step.store(u32::try_from(index).unwrap_or(u32::MAX), Ordering::Relaxed);
        let op = OPS.iter().position(|known| *known == op).unwrap_or(OPS.len());
        self.page.op.store(u32::try_from(op).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.page.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a call of the subject, or, with `false`, one of the platform's for it.
    pub(super) fn inside<R>(&self, inside: bool, call: impl FnOnce() -> R) -> R {
        let driver_may_write = !inside && self.on_machine.load(Ordering::Relaxed);
        if driver_may_write && let Some(noise) = self.written() {
            self.pending.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(noise);
        }
        let before = self.page.inside.swap(inside.into(), Ordering::Relaxed);
        let result = call();
        self.page.inside.store(before, Ordering::Relaxed);
        if driver_may_write {
            self.written();
        }
        result
    }

    /// What is called for the subject from now on is a machine's driver.
    pub(super) fn on_machine(&self) {
        self.on_machine.store(true, Ordering::Relaxed);
    }

    /// What the subject wrote to standard output since the last time.
    pub(super) fn noise(&self) -> Option<String> {
        let written = self.written();
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).take().or(written)
    }

    /// What was written to standard output since the last time.
    fn written(&self) -> Option<String> {
        // SAFETY: an open descriptor, and room for what is read.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            let end = libc::lseek(self.output.as_raw_fd(), 0, libc::SEEK_END);
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
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
        note_stack(&(*page).stack, signal != libc::SIGABRT);
        if libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) == 0 {
            (*page).resident.store(u64::try_from(usage.ru_maxrss).unwrap_or(0), Ordering::Relaxed);
        }
    }
}

/// The addresses of the calls that this one is in; how many.
#[cfg(target_env = "gnu")]
fn frames(into: &mut [*mut c_void]) -> usize {
    // SAFETY: so many may be written.
    let found = unsafe { libc::backtrace(into.as_mut_ptr(), i32::try_from(into.len()).unwrap_or(0)) };
    usize::try_from(found).unwrap_or(0)
}

/// There is none to be had.
#[cfg(not(target_env = "gnu"))]
fn frames(_: &mut [*mut c_void]) -> usize {
    0
}

/// Notes those of the calls that are the subject's own: `name+0x12 < name+0x34`, or the place in the library for what has
/// no name. Nothing is allocated. `faulted` says that the innermost may be where it stopped, and not where a call returns to.
fn note_stack(text: &[AtomicU8], faulted: bool) {
    let Some(library) = LIBRARY.get() else { return };
    let mut at = 0;
    let mut write = |bytes: &[u8]| {
        // The last byte stays 0.
        for byte in bytes {
            if at + 1 < text.len() {
                text[at].store(*byte, Ordering::Relaxed);
                at += 1;
            }
        }
    };
    let mut found = [std::ptr::null_mut(); 32];
    let mut first = true;
    let count = frames(&mut found).min(found.len());
    for frame in &found[..count] {
        // SAFETY: zeroes are a valid answer, which the loader fills; its texts live as long as their libraries.
        let (path, name, base) = unsafe {
            let mut info: libc::Dl_info = std::mem::zeroed();
            // A call that never returns may be its function's last: where it returns to is another's then.
            let inside = (*frame as u64).wrapping_sub(u64::from(!(first && faulted))) as *mut c_void;
            if libc::dladdr(inside, &raw mut info) == 0 || info.dli_fname.is_null() {
                continue;
            }
            let name = (!info.dli_sname.is_null()).then(|| CStr::from_ptr(info.dli_sname));
            let base = if name.is_some() { info.dli_saddr } else { info.dli_fbase };
            (CStr::from_ptr(info.dli_fname), name, base)
        };
        if path != library.as_c_str() {
            continue;
        }
        if !std::mem::take(&mut first) {
            write(b" < ");
        }
        write(name.map_or(b"the library", CStr::to_bytes));
        write(b"+0x");
        let offset = (*frame as u64).wrapping_sub(base as u64);
        let digits = (64 - offset.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            write(&[b"0123456789abcdef"[(offset >> (4 * digit)) as usize & 0xf]]);
        }
    }
}

/// Ends a process and whatever it started.
pub(super) fn kill_group(group: i32) {
    // SAFETY: sends a signal to the group that the suite made for its own child.
    unsafe { libc::kill(-group, libc::SIGKILL) };
}
