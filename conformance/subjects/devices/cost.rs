//! Faults of what calls cost.

use hostview_sim::{Cost, PageSize, Profile};

use super::{Part, Planted};
use crate::plant::plant;

/// A cost so many times.
fn times(cost: Cost, factor: f64) -> Cost {
    Cost { min: cost.min * factor, median: cost.median * factor }
}

/// How many pages of one size are in one of the other.
fn in_one(large: PageSize, small: PageSize) -> f64 {
    large.bytes() as f64 / small.bytes() as f64
}

plant! {
    /// Registration is paid by the byte, at what a whole page costs for 4,096 of them.
    "registers-per-4096-bytes" RegistersPer4096Bytes {
        fn make(&self, profile: &mut Profile) {
            let pages = in_one(profile.device.huge_page_size, profile.device.page_size);
            profile.costs.register_per_huge_page = times(profile.costs.register_per_ordinary_page, pages);
        }
    }

    /// Huge pages are unregistered per huge page, and not per page of the host.
    "unregisters-per-huge-page" UnregistersPerHugePage {
        fn make(&self, profile: &mut Profile) {
            let pages = in_one(profile.device.huge_page_size, profile.host.page_size);
            profile.costs.unregister_per_host_page_huge = times(profile.costs.unregister_per_host_page_huge, 1.0 / pages);
        }
    }

    /// A call has no floor.
    "costs-no-floor" CostsNoFloor {
        fn make(&self, profile: &mut Profile) {
            profile.costs.register_ordinary = Cost::ZERO;
            profile.costs.register_huge = Cost::ZERO;
        }
    }

    /// A copy costs as much whatever it moves.
    "copies-for-a-flat-price" CopiesForAFlatPrice {
        fn make(&self, profile: &mut Profile) {
            profile.costs.copy_bandwidth = f64::MAX;
        }
    }

    /// A copy costs its bytes alone.
    "copies-without-a-floor" CopiesWithoutAFloor {
        fn make(&self, profile: &mut Profile) {
            profile.costs.copy = Cost::ZERO;
        }
    }
}
