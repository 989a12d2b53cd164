//! Touching memory without the signal: the kernel moves the bytes through a pipe, and answers EFAULT where the CPU would
//! have met a fault.
//!
//! Unlike `process_vm_readv` this needs no page that can be pinned, so that it works on a driver's mappings of device memory.

#![allow(unsafe_code, reason = "memory is probed by its address")]

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};

use hostview_sim::{Fault, HostAddr};

/// A pipe takes at least so much without waiting for a reader. Source: `limits.h`, PIPE_BUF.
const CHUNK: u64 = 4096;

/// A pipe to move bytes through.
#[derive(Debug)]
struct Pipe {
    from: File,
    to: File,
}

impl Pipe {
    fn new() -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: `ends` takes the two descriptors.
        if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: both are open, just made, and owned by nobody else.
        let [from, to] = ends.map(|end| unsafe { File::from_raw_fd(end) });
        Ok(Self { from, to })
    }
}

/// The part of a range that begins `done` bytes in and ends at the next page or the end.
fn chunk(address: HostAddr, done: u64, bytes: u64) -> (u64, usize) {
    let at = address.get().wrapping_add(done);
    let to_the_page = CHUNK - at % CHUNK;
    (at, usize::try_from((bytes - done).min(to_the_page)).unwrap_or(0))
}

/// Loads bytes as the CPU would.
///
/// # Errors
///
/// The first byte of the first page that cannot be read.
pub(super) fn read(address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
    let bytes = into.len() as u64;
    let mut pipe = None;
    let mut done = 0;
    while done < bytes {
        let (at, len) = chunk(address, done, bytes);
        let fault = Fault { address: HostAddr::new(at) };
        let Pipe { from, to } = ready(&mut pipe).map_err(|_| fault)?;
        // SAFETY: the kernel reads the range, and answers EFAULT for what cannot be read; nothing of ours is touched.
        let moved = unsafe { libc::write(to.as_raw_fd(), at as *const libc::c_void, len) };
        let moved = usize::try_from(moved).ok().filter(|moved| *moved > 0).ok_or(fault)?;
        let start = usize::try_from(done).unwrap_or(usize::MAX);
        from.read_exact(&mut into[start..start + moved]).map_err(|_| fault)?;
        done += moved as u64;
    }
    Ok(())
}

/// Stores bytes as the CPU would. What lies before a fault is stored.
///
/// # Errors
///
/// The first byte of the first page that cannot be written.
pub(super) fn write(address: HostAddr, from: &[u8]) -> Result<(), Fault> {
    let bytes = from.len() as u64;
    let mut done = 0;
    while done < bytes {
        let (at, len) = chunk(address, done, bytes);
        let fault = Fault { address: HostAddr::new(at) };
        // A pipe of its own for each: what a fault leaves in one must not reach the next.
        let mut pipe = Pipe::new().map_err(|_| fault)?;
        let start = usize::try_from(done).unwrap_or(usize::MAX);
        pipe.to.write_all(&from[start..start + len]).map_err(|_| fault)?;
        // SAFETY: the kernel writes the range, which is a view's; the caller asks for exactly that store.
        let moved = unsafe { libc::read(pipe.from.as_raw_fd(), at as *mut libc::c_void, len) };
        let moved = usize::try_from(moved).ok().filter(|moved| *moved == len).ok_or(fault)?;
        done += moved as u64;
    }
    Ok(())
}

fn ready(pipe: &mut Option<Pipe>) -> io::Result<&mut Pipe> {
    if pipe.is_none() {
        *pipe = Some(Pipe::new()?);
    }
    pipe.as_mut().ok_or_else(|| ErrorKind::Other.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three pages, the middle one without access.
    fn with_a_hole<T>(work: impl FnOnce(u64, u64) -> T) -> T {
        // SAFETY: asks the system for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).unwrap();
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                3 * page,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        // SAFETY: the middle page of the mapping that was just made.
        assert_eq!(unsafe { libc::mprotect(start.byte_add(page), page, libc::PROT_NONE) }, 0);
        let result = work(start as u64, page as u64);
        // SAFETY: the mapping made above, which nobody refers to any more.
        unsafe { libc::munmap(start, 3 * page) };
        result
    }

    #[test]
    fn what_is_written_is_read_across_pages() {
        let mut memory = vec![0_u8; 20_000];
        let address = HostAddr::new(memory.as_mut_ptr() as u64 + 7);
        let bytes: Vec<u8> = (0..19_000_u32).map(|at| at.to_le_bytes()[0]).collect();
        write(address, &bytes).unwrap();
        let mut back = vec![0; bytes.len()];
        read(address, &mut back).unwrap();
        assert_eq!(back, bytes);
        assert_eq!(memory[7..19_007], bytes[..]);
    }

    #[test]
    fn a_fault_names_the_first_byte_that_cannot_be_touched() {
        with_a_hole(|start, page| {
            let hole = HostAddr::new(start + page);
            let mut byte = [0; 2];
            assert_eq!(read(hole, &mut byte), Err(Fault { address: hole }));
            assert_eq!(write(hole, &byte), Err(Fault { address: hole }));
            // One byte before it, two bytes long: the first can be had, the second not.
            let edge = HostAddr::new(start + page - 1);
            assert_eq!(read(edge, &mut byte), Err(Fault { address: hole }));
            assert_eq!(write(edge, &[7, 8]), Err(Fault { address: hole }));
            assert_eq!(read(edge, &mut byte[..1]), Ok(()));
            assert_eq!(byte[0], 7, "what lies before the fault is stored");
        });
    }

    #[test]
    fn null_and_the_ends_of_the_address_space_fault() {
        for address in [0, 8, u64::MAX - 1, 1 << 63] {
            let address = HostAddr::new(address);
            assert_eq!(read(address, &mut [0]), Err(Fault { address }));
            assert_eq!(write(address, &[0]), Err(Fault { address }));
        }
    }
}
