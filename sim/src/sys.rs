//! Every system call of the simulator, and every `unsafe` block.
//!
//! A host without `memfd` builds the other half of this file: there [`Arena::new`] answers `Unsupported`, and the simulator
//! keeps books only.

#![allow(unsafe_code, reason = "the one module that maps memory")]

#[cfg(target_os = "linux")]
pub(crate) use linux::{Arena, mappings_allowed, resident_bytes, system_page_size};
#[cfg(not(target_os = "linux"))]
pub(crate) use portable::{Arena, mappings_allowed, resident_bytes, system_page_size};

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::c_void;
    use std::io;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
    use std::ptr;
    use std::sync::OnceLock;

    /// `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE` of Linux 6.13 (6.15 for shared memory); libc has no names for them yet.
    const MADV_GUARD_INSTALL: i32 = 102;
    const MADV_GUARD_REMOVE: i32 = 103;

    /// What one `write` to a pipe takes for sure (a pipe holds 64 KiB when it is new), and no more than a page.
    const PIPE_BYTES: usize = 4096;

    /// One sparse file of device memory, mapped twice: the device's side, always accessible to the simulator, and the
    /// host's side, which is inaccessible until a range of it is allowed.
    #[derive(Debug)]
    pub(crate) struct Arena {
        file: OwnedFd,
        device: *mut u8,
        host: *mut u8,
        len: usize,
        pipe_read: OwnedFd,
        pipe_write: OwnedFd,
    }

    // SAFETY: the mappings belong to this value alone and live until it is dropped; every access goes through a method,
    // and those that change anything take `&mut self`.
    unsafe impl Send for Arena {}

    impl Arena {
        /// Maps `len` bytes of device memory, the host's side at `host_at` when that is given and free, else anywhere.
        pub(crate) fn new(len: usize, host_at: Option<u64>) -> io::Result<Self> {
            // SAFETY: the name is a NUL-terminated literal; the call touches no memory of ours.
            let fd = unsafe { libc::memfd_create(c"hostview-device".as_ptr(), libc::MFD_CLOEXEC) };
            let file = owned(fd)?;
            let length = libc::off_t::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            // SAFETY: `file` is an open descriptor.
            check(unsafe { libc::ftruncate(file.as_raw_fd(), length) })?;

            let mut ends = [0; 2];
            // SAFETY: `ends` has room for the two descriptors.
            check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
            let (pipe_read, pipe_write) = (owned(ends[0])?, owned(ends[1])?);

            let device = map(file.as_raw_fd(), len, libc::PROT_READ | libc::PROT_WRITE, None)?;
            let seated = host_at.map(|at| map(file.as_raw_fd(), len, libc::PROT_NONE, Some(at)));
            let host = match seated {
                Some(Ok(host)) => Ok(host),
                Some(Err(_)) | None => map(file.as_raw_fd(), len, libc::PROT_NONE, None),
            };
            let host = host.inspect_err(|_| {
                // SAFETY: `device` was mapped above with this length, and nothing else knows it.
                unsafe { libc::munmap(device.cast(), len) };
            })?;
            Ok(Self { file, device, host, len, pipe_read, pipe_write })
        }

        /// Where the host's side begins in this process.
        pub(crate) fn host_base(&self) -> u64 {
            self.host as u64
        }

        fn check_range(&self, offset: u64, len: usize) -> usize {
            let offset = usize::try_from(offset).expect("an offset inside the arena");
            assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "a range inside the arena");
            offset
        }

        /// Reads device memory from the device's side.
        pub(crate) fn device_read(&self, offset: u64, into: &mut [u8]) {
            let offset = self.check_range(offset, into.len());
            // SAFETY: the range lies in the device mapping (checked above), which is readable for the life of `self`;
            // `into` is ours alone, so the two cannot overlap.
            unsafe { ptr::copy_nonoverlapping(self.device.add(offset), into.as_mut_ptr(), into.len()) };
        }

        /// Writes device memory from the device's side.
        pub(crate) fn device_write(&mut self, offset: u64, from: &[u8]) {
            let offset = self.check_range(offset, from.len());
            // SAFETY: as for `device_read`; `&mut self` keeps other writers of this mapping away.
            unsafe { ptr::copy_nonoverlapping(from.as_ptr(), self.device.add(offset), from.len()) };
        }

        /// Reads through the host's side without risking a signal: the kernel copies, and answers EFAULT where the CPU
        /// would fault. Returns how many bytes came before the fault.
        pub(crate) fn host_read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), usize> {
            let at = self.check_range(offset, into.len());
            for span in page_by_page(at, into.len()) {
                let (done, chunk) = (span.start, &mut into[span]);
                // SAFETY: `write` only reads from the address, and answers EFAULT when it is not readable; the range
                // lies in our own host mapping (checked above).
                let sent = unsafe {
                    libc::write(self.pipe_write.as_raw_fd(), self.host.add(at + done).cast::<c_void>(), chunk.len())
                };
                let Ok(sent) = usize::try_from(sent) else { return Err(done) };
                self.drain(&mut chunk[..sent]);
                if sent < chunk.len() {
                    return Err(done + sent);
                }
            }
            Ok(())
        }

        /// Writes through the host's side without risking a signal. Returns how many bytes went before the fault.
        pub(crate) fn host_write(&mut self, offset: u64, from: &[u8]) -> Result<(), usize> {
            let at = self.check_range(offset, from.len());
            for span in page_by_page(at, from.len()) {
                let (done, chunk) = (span.start, &from[span]);
                // SAFETY: `chunk` is readable; an empty pipe takes PIPE_BYTES at once.
                let sent =
                    unsafe { libc::write(self.pipe_write.as_raw_fd(), chunk.as_ptr().cast::<c_void>(), chunk.len()) };
                assert_eq!(usize::try_from(sent), Ok(chunk.len()), "an empty pipe takes a page");
                // SAFETY: `read` only writes to the address, and answers EFAULT when it is not writable; the range lies
                // in our own host mapping (checked above), through which nothing holds a reference.
                let got = unsafe {
                    libc::read(self.pipe_read.as_raw_fd(), self.host.add(at + done).cast::<c_void>(), chunk.len())
                };
                let got = usize::try_from(got).unwrap_or(0);
                if got < chunk.len() {
                    self.empty();
                    return Err(done + got);
                }
            }
            Ok(())
        }

        fn drain(&mut self, into: &mut [u8]) {
            // SAFETY: `into` is writable and ours.
            let got = unsafe { libc::read(self.pipe_read.as_raw_fd(), into.as_mut_ptr().cast::<c_void>(), into.len()) };
            assert_eq!(usize::try_from(got), Ok(into.len()), "what was written to the pipe is in it");
        }

        /// A `read` that met a fault may or may not have taken its bytes from the pipe; the next probe needs it empty.
        fn empty(&mut self) {
            let mut rest = [0_u8; PIPE_BYTES];
            loop {
                // SAFETY: `rest` is writable and ours; the pipe does not block.
                let got =
                    unsafe { libc::read(self.pipe_read.as_raw_fd(), rest.as_mut_ptr().cast::<c_void>(), rest.len()) };
                if got <= 0 {
                    return;
                }
            }
        }

        /// Sets the protection of a range of the host's side: one `mprotect`.
        pub(crate) fn protect(&mut self, offset: u64, len: u64, protection: Protection) -> io::Result<()> {
            let len = usize::try_from(len).expect("a length inside the arena");
            let offset = self.check_range(offset, len);
            let bits = match protection {
                Protection::None => libc::PROT_NONE,
                Protection::Read => libc::PROT_READ,
                Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
            };
            // SAFETY: the range lies in our own host mapping; no reference into it exists, only checked accesses.
            check(unsafe { libc::mprotect(self.host.add(offset).cast(), len, bits) })
        }

        /// Puts guard markers over a range of the host's side: inaccessible, at no cost in mappings.
        pub(crate) fn guard(&mut self, offset: u64, len: u64) -> io::Result<()> {
            self.advise(offset, len, MADV_GUARD_INSTALL)
        }

        /// Takes guard markers away from a range of the host's side.
        pub(crate) fn unguard(&mut self, offset: u64, len: u64) -> io::Result<()> {
            self.advise(offset, len, MADV_GUARD_REMOVE)
        }

        fn advise(&mut self, offset: u64, len: u64, advice: i32) -> io::Result<()> {
            let len = usize::try_from(len).expect("a length inside the arena");
            let offset = self.check_range(offset, len);
            // SAFETY: the range lies in our own host mapping; a guard marker changes access, not contents.
            check(unsafe { libc::madvise(self.host.add(offset).cast(), len, advice) })
        }

        /// Gives the memory behind a range back to the system; it reads as zeroes afterwards.
        pub(crate) fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
            self.check_range(offset, usize::try_from(len).expect("a length inside the arena"));
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let offset = libc::off_t::try_from(offset).expect("checked above");
            let len = libc::off_t::try_from(len).expect("checked above");
            // SAFETY: `file` is our own descriptor.
            check(unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) })
        }
    }

    impl Drop for Arena {
        fn drop(&mut self) {
            // SAFETY: both mappings were made with this length in `new`, and nothing can use them after this.
            unsafe {
                libc::munmap(self.device.cast(), self.len);
                libc::munmap(self.host.cast(), self.len);
            }
        }
    }

    use super::Protection;

    /// Which parts of a buffer lie in which page, so that the first byte that faults is the first of its part.
    fn page_by_page(at: usize, len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let mut done = 0;
        std::iter::from_fn(move || {
            let end = len.min(done + PIPE_BYTES - (at + done) % PIPE_BYTES);
            let span = done..end;
            done = end;
            (!span.is_empty()).then_some(span)
        })
    }

    fn owned(fd: RawFd) -> io::Result<OwnedFd> {
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call that gave `fd` succeeded just now, and nobody else has the number.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn check(result: i32) -> io::Result<()> {
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn map(fd: RawFd, len: usize, protection: i32, at: Option<u64>) -> io::Result<*mut u8> {
        let (hint, fixed) = match at {
            Some(at) => (ptr::without_provenance_mut(usize::try_from(at).unwrap_or(0)), libc::MAP_FIXED_NOREPLACE),
            None => (ptr::null_mut(), 0),
        };
        // SAFETY: the kernel chooses the place, or takes ours only where nothing is mapped (NOREPLACE), so that no
        // memory in use is touched.
        let address =
            unsafe { libc::mmap(hint, len, protection, libc::MAP_SHARED | libc::MAP_NORESERVE | fixed, fd, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        if fixed != 0 && address != hint {
            // SAFETY: a kernel that ignores NOREPLACE mapped it elsewhere just now; nobody knows of it yet.
            unsafe { libc::munmap(address, len) };
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(address.cast())
    }

    /// The page of the machine this runs on, in bytes.
    pub(crate) fn system_page_size() -> u64 {
        // SAFETY: `sysconf` only answers a number.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(size).unwrap_or(4096)
    }

    /// How many mappings a process may have: `vm.max_map_count`.
    pub(crate) fn mappings_allowed() -> usize {
        static ALLOWED: OnceLock<usize> = OnceLock::new();
        *ALLOWED.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
            text.trim().parse().unwrap_or(65_530)
        })
    }

    /// Resident memory of this process, in bytes, as `/proc/self/statm` says.
    pub(crate) fn resident_bytes() -> Option<u64> {
        let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
        let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
        Some(pages * system_page_size())
    }
}

/// What the host may do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protection {
    /// Nothing: an access faults.
    None,
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

#[cfg(not(target_os = "linux"))]
mod portable {
    use std::convert::Infallible;
    use std::io;

    use super::Protection;

    /// No memory of this kind here: a value of this type cannot be made.
    #[derive(Debug)]
    pub(crate) struct Arena(Infallible);

    #[allow(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "the shape of the other half")]
    impl Arena {
        pub(crate) fn new(_len: usize, _host_at: Option<u64>) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }
        pub(crate) fn host_base(&self) -> u64 {
            match self.0 {}
        }
        pub(crate) fn device_read(&self, _offset: u64, _into: &mut [u8]) {
            match self.0 {}
        }
        pub(crate) fn device_write(&mut self, _offset: u64, _from: &[u8]) {
            match self.0 {}
        }
        pub(crate) fn host_read(&mut self, _offset: u64, _into: &mut [u8]) -> Result<(), usize> {
            match self.0 {}
        }
        pub(crate) fn host_write(&mut self, _offset: u64, _from: &[u8]) -> Result<(), usize> {
            match self.0 {}
        }
        pub(crate) fn protect(&mut self, _offset: u64, _len: u64, _protection: Protection) -> io::Result<()> {
            match self.0 {}
        }
        pub(crate) fn guard(&mut self, _offset: u64, _len: u64) -> io::Result<()> {
            match self.0 {}
        }
        pub(crate) fn unguard(&mut self, _offset: u64, _len: u64) -> io::Result<()> {
            match self.0 {}
        }
        pub(crate) fn discard(&mut self, _offset: u64, _len: u64) -> io::Result<()> {
            match self.0 {}
        }
    }

    pub(crate) fn system_page_size() -> u64 {
        4096
    }

    pub(crate) fn mappings_allowed() -> usize {
        usize::MAX
    }

    pub(crate) fn resident_bytes() -> Option<u64> {
        None
    }
}
