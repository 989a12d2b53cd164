//! The virtual clock and the cost model: what a call costs, by its mechanism.
//!
//! Register walks the range in pages of the *allocation's* kind, unregister in *host* pages whatever the kind
//! (`driver-source.md` §4.4); each pays a floor. The constants are the profile's. Wall time is no part of this.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

use crate::addr::PageKind;
use crate::profile::{Cost, CostProfile};

/// A span of virtual time. Kept in picoseconds, so that sums do not depend on their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize)]
#[serde(from = "f64", into = "f64")]
pub struct VirtualTime(u64);

impl From<f64> for VirtualTime {
    /// From microseconds.
    fn from(micros: f64) -> Self {
        Self::from_micros(micros)
    }
}

impl From<VirtualTime> for f64 {
    /// In microseconds.
    fn from(time: VirtualTime) -> Self {
        time.micros()
    }
}

impl VirtualTime {
    /// No time.
    pub const ZERO: Self = Self(0);

    fn from_micros(micros: f64) -> Self {
        // The profile's check keeps a constant under 1e9 µs; a product that is larger still stops at the end.
        #[allow(clippy::cast_sign_loss, reason = "costs are checked to be positive")]
        Self((micros * 1e6).round() as u64)
    }

    /// In microseconds.
    #[must_use]
    pub fn micros(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// In nanoseconds, rounded.
    #[must_use]
    pub fn nanos(self) -> u64 {
        (self.0 + 500) / 1000
    }

    /// In milliseconds.
    #[must_use]
    pub fn millis(self) -> f64 {
        self.micros() / 1e3
    }
}

impl Add for VirtualTime {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for VirtualTime {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for VirtualTime {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl std::iter::Sum for VirtualTime {
    fn sum<I: Iterator<Item = Self>>(times: I) -> Self {
        times.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for VirtualTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.micros();
        if micros < 1e3 { write!(f, "{micros:.2} µs") } else { write!(f, "{:.2} ms", micros / 1e3) }
    }
}

/// At which point of its distribution a cost is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CostPoint {
    /// The least that was measured.
    Min,
    /// The median.
    #[default]
    Median,
    /// Another for each call, from this seed: never under the minimum, half of the time under the median, with a tail.
    /// The shape is assumed; the measured sweep tells the two points alone. The draws are spread evenly over the
    /// distribution, so that the median of some hundred calls is the profile's.
    Drawn(u64),
}

/// The virtual clock.
#[derive(Debug)]
pub(crate) struct Clock {
    now: VirtualTime,
    point: CostPoint,
    /// The last draw, in 0 … 1.
    drawn: f64,
    costs: CostProfile,
}

impl Clock {
    pub(crate) fn new(costs: CostProfile, point: CostPoint) -> Self {
        let drawn = if let CostPoint::Drawn(seed) = point { fastrand::Rng::with_seed(seed).f64() } else { 0.0 };
        Self { now: VirtualTime::ZERO, point, drawn, costs }
    }

    pub(crate) fn now(&self) -> VirtualTime {
        self.now
    }

    /// A register call; one that was refused registers no page.
    pub(crate) fn register(&mut self, kind: PageKind, pages: u64) {
        let (floor, each) = self.costs.register(kind);
        self.spend(floor, each, pages);
    }

    /// An unregister call over so many host pages.
    pub(crate) fn unregister(&mut self, kind: PageKind, host_pages: u64) {
        let (floor, each) = self.costs.unregister(kind);
        self.spend(floor, each, host_pages);
    }

    /// A synchronous copy.
    pub(crate) fn copy(&mut self, bytes: u64) {
        self.spend(self.costs.copy, Cost::ZERO, 0);
        self.now += VirtualTime::from_micros(bytes as f64 / self.costs.copy_bandwidth);
    }

    /// The next point of a sequence that fills 0 … 1 evenly from any beginning: steps of the golden ratio.
    fn draw(&mut self) -> f64 {
        const STEP: f64 = 0.618_033_988_749_894_9;
        self.drawn = (self.drawn + STEP).fract();
        self.drawn
    }

    fn spend(&mut self, floor: Cost, each: Cost, times: u64) {
        let total = |floor: f64, each: f64| floor + each * times as f64;
        let (min, median) = (total(floor.min, each.min), total(floor.median, each.median));
        let micros = match self.point {
            CostPoint::Min => min,
            CostPoint::Median => median,
            // Exponential, with its median at the median.
            CostPoint::Drawn(_) => min + (median - min) * -(1.0 - self.draw()).log2(),
        };
        self.now += VirtualTime::from_micros(micros);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Profile;

    /// The seed's table, medians: bytes, page kind, pages, register, unregister (µs; a2a3, CANN 9.0.0, 4 KiB host pages).
    const SEED: [(u64, PageKind, f64, f64, f64, f64); 7] = [
        (64, PageKind::Ordinary, 1.270, 1.580, 2.790, 3.741),
        (4096, PageKind::Ordinary, 1.280, 1.610, 2.600, 3.600),
        (65_536, PageKind::Ordinary, 3.470, 4.140, 3.590, 4.860),
        (262_144, PageKind::Ordinary, 10.480, 11.340, 5.980, 7.420),
        (4_194_304, PageKind::Huge, 2.350, 3.430, 27.700, 29.371),
        (16_777_216, PageKind::Huge, 6.640, 8.760, 102.851, 105.301),
        (268_435_456, PageKind::Huge, 86.460, 115.901, 1598.205, 1649.126),
    ];

    #[test]
    fn time_is_said_in_the_unit_that_fits() {
        let said = |micros: f64| VirtualTime::from_micros(micros).to_string();
        assert_eq!(said(5.2), "5.20 µs");
        assert_eq!(said(999.99), "999.99 µs");
        assert_eq!(said(255_982.626), "255.98 ms");
        let both: VirtualTime = [1.5, 2.5].map(VirtualTime::from_micros).into_iter().sum();
        assert!((both.millis() - 0.004).abs() < 1e-12);
        assert_eq!(both.nanos(), 4000);
        assert_eq!(VirtualTime::from_micros(1.599_5).nanos(), 1600);
        assert_eq!(VirtualTime::from_micros(1.599_4).nanos(), 1599);
    }

    #[test]
    fn a_copy_costs_its_floor_and_its_bytes() {
        let mut clock = Clock::new(Profile::shipped("a2a3").unwrap().costs, CostPoint::Median);
        clock.copy(2_000_000);
        assert!((clock.now().micros() - (9.7 + 100.0)).abs() < 1e-6);
    }

    #[test]
    fn drawn_costs_lie_over_the_minimum_and_half_of_them_under_the_median() {
        let profile = Profile::shipped("a2a3").unwrap();
        let one = |point| {
            let mut clock = Clock::new(profile.costs.clone(), point);
            clock.register(PageKind::Huge, 8);
            clock.now()
        };
        let (min, median) = (one(CostPoint::Min), one(CostPoint::Median));
        let drawn: Vec<_> = (0..1000).map(|seed| one(CostPoint::Drawn(seed))).collect();
        assert!(drawn.iter().all(|cost| *cost >= min));
        let under = drawn.iter().filter(|cost| **cost < median).count();
        assert!((400..600).contains(&under), "{under} of 1000");
        // Exponential with that median: a tenth is over log2(10) medians from the minimum.
        let tail = min.micros() + (median - min).micros() * 10_f64.log2();
        let over = drawn.iter().filter(|cost| cost.micros() > tail).count();
        assert!((70..130).contains(&over), "{over} of 1000");
        assert_eq!(one(CostPoint::Drawn(7)), one(CostPoint::Drawn(7)));
    }

    #[test]
    fn the_constants_give_all_28_cells_of_the_seeds_table_within_5_percent() {
        let profile = Profile::shipped("a2a3").unwrap();
        for (bytes, kind, register_min, register_median, unregister_min, unregister_median) in SEED {
            let cases = [
                (CostPoint::Min, register_min, unregister_min),
                (CostPoint::Median, register_median, unregister_median),
            ];
            for (point, register, unregister) in cases {
                let mut clock = Clock::new(profile.costs.clone(), point);
                clock.register(kind, profile.page(kind).pages(bytes));
                let registered = clock.now();
                let whole = profile.page(kind).round_up(bytes).unwrap();
                clock.unregister(kind, profile.host.page_size.pages(whole));
                for (what, measured, model) in [
                    ("register", register, registered.micros()),
                    ("unregister", unregister, (clock.now() - registered).micros()),
                ] {
                    let off = (model - measured).abs() / measured;
                    assert!(off < 0.05, "{what} {bytes} {point:?}: {model:.3} against {measured:.3} measured");
                }
            }
        }
    }
}
