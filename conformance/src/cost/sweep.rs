//! Measuring: register and unregister apart, over sizes and page policies, then copies.
//!
//! By the seed's method: a few distinct allocations of each size in turn, so that nothing is served by state that a real
//! bind would not have. On a platform with virtual time the calls take what the cost model says; elsewhere a monotonic clock
//! is read around each call, the clock's own cost is taken off, and the first calls are not counted.

use std::time::Instant;

use hostview_sim::{DeviceAddr, PagePolicy, RegisterCall};

use super::table::{CopyRow, Figures, MappingRow, Pages, RefusedRow, Sweep};
use crate::case::Via;
use crate::code::ErrorCode;
use crate::platform::Platform;

/// The seed's seven sizes.
pub const SIZES: [u64; 7] = [64, 4096, 65_536, 262_144, 4_194_304, 16_777_216, 268_435_456];

/// The seed's three sizes of copies, and larger ones that it did not measure.
pub const COPY_SIZES: [u64; 6] = [4, 8, 64, 4096, 65_536, 1_048_576];

/// What to measure.
#[derive(Clone, Debug)]
pub struct SweepOptions {
    /// The sizes to register.
    pub sizes: Vec<u64>,
    /// The sizes to copy.
    pub copy_sizes: Vec<u64>,
    /// The page policies.
    pub policies: Vec<PagePolicy>,
    /// Distinct allocations of each size.
    pub buffers: usize,
    /// Timed calls of each size.
    pub iterations: usize,
    /// Timed copies of each size.
    pub copies: usize,
    /// Read a monotonic clock even where there is virtual time.
    pub wall_clock: bool,
    /// Which layer allocates.
    pub via: Via,
}

/// Why a sweep could not be taken.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SweepError {
    /// An allocation failed.
    #[error("{bytes} bytes could not be allocated: {error}; leave the size out with --sizes")]
    Alloc {
        /// The size.
        bytes: u64,
        /// The answer.
        error: ErrorCode,
    },
    /// A call failed half-way.
    #[error("{what} of {bytes} bytes failed half-way: {error}")]
    Call {
        /// Which call.
        what: &'static str,
        /// The size.
        bytes: u64,
        /// The answer.
        error: ErrorCode,
    },
}

/// Calls made before the clock counts, on a real machine.
const WARM_UP: usize = 16;

/// How a platform's time is read.
enum Stopwatch {
    Virtual,
    Wall { own_cost: f64 },
}

impl Stopwatch {
    fn new(platform: &dyn Platform, wall_clock: bool) -> Self {
        if platform.virtual_time().is_some() && !wall_clock {
            return Self::Virtual;
        }
        let sample = (0..10_000).map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as f64 / 1e3
        });
        Self::Wall { own_cost: Figures::of(sample.collect()).map_or(0.0, |figures| figures.median) }
    }

    fn time<T>(&self, platform: &mut dyn Platform, call: impl FnOnce(&mut dyn Platform) -> T) -> (T, f64) {
        match self {
            Self::Virtual => {
                let before = platform.virtual_time().unwrap_or_default();
                let result = call(platform);
                (result, (platform.virtual_time().unwrap_or_default() - before).micros())
            }
            Self::Wall { own_cost } => {
                let start = Instant::now();
                let result = call(platform);
                let elapsed = start.elapsed().as_nanos() as f64 / 1e3;
                // A reading under the clock's own cost is a call too short to tell: a nanosecond stands for it.
                (result, (elapsed - own_cost).max(0.001))
            }
        }
    }

    fn warm_up(&self) -> usize {
        if matches!(self, Self::Wall { .. }) { WARM_UP } else { 0 }
    }
}

/// Takes a sweep.
///
/// # Errors
///
/// An allocation or a call fails; a size that the platform refuses to register is a row of its own and no error.
pub fn sweep(platform: &mut dyn Platform, pages: Pages, options: &SweepOptions) -> Result<Sweep, SweepError> {
    let stopwatch = Stopwatch::new(platform, options.wall_clock);
    let mut sweep = Sweep { pages, ..Sweep::default() };
    for policy in &options.policies {
        for bytes in &options.sizes {
            let buffers = Buffers::new(platform, (*bytes, *policy), options)?;
            let measured = measure_mapping(platform, &stopwatch, &buffers, options.iterations);
            buffers.free(platform)?;
            match measured? {
                Ok(row) => sweep.mappings.push(row),
                Err(error) => {
                    sweep.refused.push(RefusedRow { bytes: *bytes, policy: *policy, answer: error.to_string() });
                }
            }
        }
    }
    for bytes in &options.copy_sizes {
        let buffers = Buffers::new(platform, (*bytes, PagePolicy::HugeFirst), options)?;
        let measured = measure_copies(platform, &stopwatch, &buffers, options.copies);
        buffers.free(platform)?;
        sweep.copies.push(measured?);
    }
    if let Stopwatch::Wall { own_cost } = stopwatch {
        sweep.notes.push(format!("wall clock; its own cost of {own_cost:.3} µs is taken off each figure"));
        let unsteady = sweep.mappings.iter().filter(|row| too_noisy(row.register) || too_noisy(row.unregister)).count();
        if unsteady * 3 > sweep.mappings.len() {
            sweep.notes.push(format!(
                "too noisy to tell: in {unsteady} of {} rows the 99th percentile is over ten times the median; repeat on a \
                 quiet machine",
                sweep.mappings.len()
            ));
        }
    }
    Ok(sweep)
}

fn too_noisy(figures: Figures) -> bool {
    figures.p99.is_some_and(|p99| p99 > 10.0 * figures.median)
}

/// Some allocations of one size, taken in turn.
struct Buffers {
    bytes: u64,
    policy: PagePolicy,
    via: Via,
    bases: Vec<DeviceAddr>,
}

impl Buffers {
    fn new(
        platform: &mut dyn Platform,
        (bytes, policy): (u64, PagePolicy),
        options: &SweepOptions,
    ) -> Result<Self, SweepError> {
        let mut buffers = Self { bytes, policy, via: options.via, bases: Vec::new() };
        for _ in 0..options.buffers {
            match platform.alloc(0, bytes, policy, options.via) {
                Ok(base) => buffers.bases.push(base),
                Err(error) => {
                    buffers.free(platform)?;
                    return Err(SweepError::Alloc { bytes, error });
                }
            }
        }
        Ok(buffers)
    }

    fn free(self, platform: &mut dyn Platform) -> Result<(), SweepError> {
        for base in self.bases {
            let freed = platform.free(base, self.via);
            freed.map_err(|error| SweepError::Call { what: "the free", bytes: self.bytes, error })?;
        }
        Ok(())
    }

    /// So many of them, round and round.
    fn in_turn(&self, count: usize) -> impl Iterator<Item = (usize, DeviceAddr)> + '_ {
        self.bases.iter().copied().cycle().take(count).enumerate()
    }
}

/// A row; inside, the answer of a platform that refuses the size.
fn measure_mapping(
    platform: &mut dyn Platform,
    stopwatch: &Stopwatch,
    buffers: &Buffers,
    iterations: usize,
) -> Result<Result<MappingRow, ErrorCode>, SweepError> {
    let bytes = buffers.bytes;
    let (mut register, mut unregister) = (Vec::new(), Vec::new());
    let warm_up = stopwatch.warm_up();
    for (index, base) in buffers.in_turn(warm_up + iterations) {
        let (made, up) = stopwatch.time(platform, |platform| platform.register(RegisterCall::view(base, bytes)));
        if let Err(error) = made {
            if index == 0 {
                return Ok(Err(error));
            }
            return Err(SweepError::Call { what: "the registration", bytes, error });
        }
        let (ended, down) = stopwatch.time(platform, |platform| platform.unregister(base, 0));
        ended.map_err(|error| SweepError::Call { what: "the unregistration", bytes, error })?;
        if index >= warm_up {
            register.push(up);
            unregister.push(down);
        }
    }
    let (Some(register), Some(unregister)) = (Figures::of(register), Figures::of(unregister)) else {
        unreachable!("iterations are over 0")
    };
    Ok(Ok(MappingRow { bytes, policy: buffers.policy, register, unregister }))
}

fn measure_copies(
    platform: &mut dyn Platform,
    stopwatch: &Stopwatch,
    buffers: &Buffers,
    copies: usize,
) -> Result<CopyRow, SweepError> {
    let bytes = buffers.bytes;
    let mut memory = vec![0; usize::try_from(bytes).unwrap_or(0)];
    let (mut down, mut up) = (Vec::new(), Vec::new());
    let warm_up = stopwatch.warm_up();
    for (index, base) in buffers.in_turn(warm_up + copies) {
        let (read, to_host) = stopwatch.time(platform, |platform| platform.copy_out(base, &mut memory));
        let (written, to_device) = stopwatch.time(platform, |platform| platform.copy_in(base, &memory));
        read.and(written).map_err(|error| SweepError::Call { what: "a copy", bytes, error })?;
        if index >= warm_up {
            down.push(to_host);
            up.push(to_device);
        }
    }
    let Some(to_host) = Figures::of(down) else { unreachable!("iterations are over 0") };
    Ok(CopyRow { bytes, to_host, to_device: Figures::of(up) })
}
