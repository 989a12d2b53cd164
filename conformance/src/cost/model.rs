//! Costs from a profile's constants, in microseconds.

use hostview_sim::{Cost, CostPoint, Generation, PageKind, PagePolicy, Profile, acl_padded_size};

use super::Standing;

/// The costs of a profile, at one point of their distribution.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    profile: &'a Profile,
    point: CostPoint,
}

impl<'a> Model<'a> {
    /// The medians.
    #[must_use]
    pub fn median(profile: &'a Profile) -> Self {
        Self { profile, point: CostPoint::Median }
    }

    /// The least values.
    #[must_use]
    pub fn min(profile: &'a Profile) -> Self {
        Self { profile, point: CostPoint::Min }
    }

    fn of(&self, cost: Cost) -> f64 {
        match self.point {
            CostPoint::Min => cost.min,
            CostPoint::Median | CostPoint::Drawn(_) => cost.median,
        }
    }

    /// Which pages an allocation of this size gets through `aclrtMalloc`.
    #[must_use]
    pub fn kind(&self, bytes: u64, policy: PagePolicy) -> PageKind {
        kind_of(bytes, policy, self.profile.driver.generation)
    }

    /// A register call over a whole allocation.
    #[must_use]
    pub fn register(&self, bytes: u64, kind: PageKind) -> f64 {
        let (floor, each) = self.profile.costs.register(kind);
        self.of(floor) + self.of(each) * self.profile.page(kind).pages(bytes) as f64
    }

    /// An unregister call over a whole allocation.
    #[must_use]
    pub fn unregister(&self, bytes: u64, kind: PageKind) -> f64 {
        let (floor, each) = self.profile.costs.unregister(kind);
        let whole = self.profile.page(kind).round_up(bytes).unwrap_or(bytes);
        self.of(floor) + self.of(each) * self.profile.host.page_size.pages(whole) as f64
    }

    /// Both.
    #[must_use]
    pub fn pair(&self, bytes: u64, kind: PageKind) -> f64 {
        self.register(bytes, kind) + self.unregister(bytes, kind)
    }

    /// The floors of both.
    #[must_use]
    pub fn floors(&self, kind: PageKind) -> (f64, f64) {
        let costs = &self.profile.costs;
        (self.of(costs.register(kind).0), self.of(costs.unregister(kind).0))
    }

    /// A device copy.
    #[must_use]
    pub fn copy(&self, bytes: u64) -> f64 {
        self.of(self.profile.costs.copy) + bytes as f64 / self.profile.costs.copy_bandwidth
    }

    /// How what this model says of this host is known: the constants were fitted on 4 KiB host pages and v2.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match self.profile.driver.generation {
            Generation::V3 => Standing::Assumed,
            Generation::V2 if self.profile.host.page_size.bytes() != 4096 => Standing::Predicted,
            Generation::V2 => Standing::Fitted,
        }
    }
}

/// Which pages an allocation of this size gets through `aclrtMalloc`.
#[must_use]
pub fn kind_of(bytes: u64, policy: PagePolicy, generation: Generation) -> PageKind {
    let padded = acl_padded_size(bytes, generation).unwrap_or(bytes);
    policy.kinds(padded)[0]
}

/// Microseconds as a person reads them, three figures where that is enough.
#[must_use]
pub fn said(micros: f64) -> String {
    match micros.abs() {
        magnitude if magnitude >= 100_000.0 => format!("{:.0} ms", micros / 1e3),
        magnitude if magnitude >= 1_000.0 => format!("{:.2} ms", micros / 1e3),
        magnitude if magnitude >= 100.0 => format!("{micros:.0} µs"),
        magnitude if magnitude >= 10.0 => format!("{micros:.1} µs"),
        _ => format!("{micros:.2} µs"),
    }
}
