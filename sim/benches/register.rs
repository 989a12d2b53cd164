//! What registering costs in protected mode, against the bare system calls that it needs.
//!
//! `cargo bench -p hostview-sim` prints, for a few sizes, the time of a register and unregister pair through the simulator,
//! the time of the two changes of protection alone on memory laid out alike, and their ratio. Both sides alternate in one
//! run and the medians are compared, since the machine may be busy.

#![allow(unsafe_code, reason = "the bare calls are measured bare")]
#![allow(clippy::cast_precision_loss)]

use std::time::Instant;

use hostview_sim::{MemoryMode, PageKind, Profile, RegisterCall, SimHost};

const ROUNDS: usize = 2_000;

/// A mapping like the simulator's host side.
struct Bare {
    start: *mut libc::c_void,
    len: usize,
}

impl Bare {
    fn new(len: usize) -> Self {
        // SAFETY: a new mapping of a new file; nothing else refers to either.
        let start = unsafe {
            let fd = libc::memfd_create(c"bare".as_ptr(), 0);
            assert!(fd >= 0 && libc::ftruncate(fd, libc::off_t::try_from(len).unwrap()) == 0);
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_NORESERVE, fd, 0)
        };
        assert!(start != libc::MAP_FAILED);
        Self { start, len }
    }

    fn protect(&self, bytes: usize, protection: i32) {
        // SAFETY: the range is the beginning of our own mapping, through which nothing is read.
        assert_eq!(unsafe { libc::mprotect(self.start, bytes, protection) }, 0);
    }

    /// `MADV_GUARD_INSTALL` 102, `MADV_GUARD_REMOVE` 103.
    fn guard(&self, bytes: usize, advice: i32) {
        // SAFETY: as for `protect`.
        assert_eq!(unsafe { libc::madvise(self.start, bytes, advice) }, 0);
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn time(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / 1e3
}

fn main() {
    println!("{:>10} {:>10} {:>12} {:>12} {:>7}", "pages", "bytes", "simulator", "bare calls", "ratio");
    for (kind, bytes) in [
        (PageKind::Ordinary, 4_096_u64),
        (PageKind::Ordinary, 65_536),
        (PageKind::Ordinary, 262_144),
        (PageKind::Huge, 4 << 20),
        (PageKind::Huge, 256 << 20),
    ] {
        let mut host = SimHost::new(&Profile::shipped("a2a3").expect("shipped"));
        assert_eq!(host.memory_mode(), &MemoryMode::Protected, "this machine cannot protect memory");
        let allocation = host.alloc(0, kind, bytes).expect("memory is free");
        let len = usize::try_from(bytes).expect("fits");
        let bare = Bare::new(2 << 30);
        let small_block = kind == PageKind::Ordinary;
        if small_block {
            // The simulator fences small blocks of ordinary pages with guard markers; so does the bare side.
            bare.protect(2 << 20, libc::PROT_READ | libc::PROT_WRITE);
            bare.guard(2 << 20, 102);
        }
        let (mut through, mut alone) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            through.push(time(|| {
                host.register(RegisterCall::view(allocation, bytes)).expect("a capable host");
                host.unregister(allocation, 0).expect("registered above");
            }));
            alone.push(time(|| {
                if small_block {
                    bare.guard(len, 103);
                    bare.guard(len, 102);
                } else {
                    bare.protect(len, libc::PROT_READ | libc::PROT_WRITE);
                    bare.protect(len, libc::PROT_NONE);
                }
            }));
        }
        let (through, alone) = (median(through), median(alone));
        println!("{kind:>10} {bytes:>10} {through:>9.2} µs {alone:>9.2} µs {:>7.2}", through / alone);
    }
}
