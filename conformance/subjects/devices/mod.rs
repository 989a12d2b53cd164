//! Planted faults in a device: the simulator, and rules of it that are not the driver's.
//!
//! What a device answers is a method of `Rules`, the simulator's where it is not written otherwise; a faulty device is one
//! such method, beside its story. `hostview mutants` runs them all: each must be caught by a D-law. The faults stand before
//! the simulator and not in it, so that the device that everybody relies on holds no wrong line.

mod access;
mod allocation;
mod base;
mod capability;
mod cost;
mod register;
mod unregister;

use std::fmt;
use std::sync::LazyLock;

use hostview_sim::Profile;

use base::{Device, Rules};
// As planting has them.
use DeviceMutant as Planted;
use Rules as Part;

use crate::platform::Platform;
use crate::site::{Hindrance, Simulator, Site};

/// A device with one fault.
pub struct DeviceMutant {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is wrong with it, in one line.
    pub story: &'static str,
    /// The public report that it resembles, where there is one.
    pub like: Option<&'static str>,
    part: &'static dyn Rules,
}

impl fmt::Debug for DeviceMutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMutant").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Site for DeviceMutant {
    fn fresh(&self, profile: &Profile) -> Result<Box<dyn Platform>, Hindrance> {
        Ok(Box::new(Device::new(self.part, profile)))
    }

    fn parallel(&self, asked: Option<usize>) -> usize {
        Simulator.parallel(asked)
    }
}

/// Every faulty device, by what its fault is about.
#[must_use]
pub fn device_mutants() -> &'static [&'static DeviceMutant] {
    static ALL: LazyLock<Vec<&'static DeviceMutant>> = LazyLock::new(|| {
        let all = [
            register::PLANTED,
            capability::PLANTED,
            unregister::PLANTED,
            access::PLANTED,
            allocation::PLANTED,
            cost::PLANTED,
        ];
        all.into_iter().flatten().collect()
    });
    &ALL
}
