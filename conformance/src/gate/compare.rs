//! Two platforms, call by call.

use crate::case::{Op, Step};
use crate::driver_run::DriverRun;
use crate::expect::{Came, hex_of};
use crate::platform::Platform;

/// The first call that two platforms answer differently.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The step, from 0.
    pub step: usize,
    /// What the device answers.
    pub device: String,
    /// What the simulator answers.
    pub simulator: String,
}

impl Difference {
    /// In a line: this device accepts what the simulator refuses, and so on.
    #[must_use]
    pub fn describe(&self, step: &Step) -> String {
        let step = crate::report::describe_step(step);
        let Self { device, simulator, .. } = self;
        match (device.starts_with("ok"), simulator.starts_with("ok")) {
            (true, false) => format!("this device accepts what the simulator refuses: {step} ({simulator})"),
            (false, true) => format!("this device refuses what the simulator accepts: {step} ({device})"),
            _ => format!("this device and the simulator differ: {step}: {device}; the simulator: {simulator}"),
        }
    }
}

/// Whether addresses must be equal as well: not where others have allocated before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addresses {
    /// They must.
    Equal,
    /// They need not.
    Free,
}

/// Runs steps on both: the first difference.
pub fn compare(
    steps: &[Step],
    device: &mut dyn Platform,
    simulator: &mut dyn Platform,
    addresses: Addresses,
) -> Option<Difference> {
    let (mut device, mut simulator) = (DriverRun::new(device), DriverRun::new(simulator));
    steps.iter().enumerate().find_map(|(index, step)| {
        let told = (tell(step, &device.perform(step), addresses), tell(step, &simulator.perform(step), addresses));
        let (device, simulator) = told;
        (device != simulator).then_some(Difference { step: index, device, simulator })
    })
}

/// What came of a step, as far as it must be the same.
fn tell(step: &Step, came: &Came, addresses: Addresses) -> String {
    match (&came.fault, &came.error, &came.refused) {
        (Some(_), ..) if addresses == Addresses::Free => "a fault".to_owned(),
        (Some(fault), ..) => fault.to_string(),
        (_, Some(error), _) => error.to_string(),
        (_, _, Some(reason)) => reason.clone(),
        (None, None, None) => match (&came.bytes, came.address) {
            (Some(bytes), _) => format!("ok, {}", hex_of(bytes)),
            (_, Some(address)) if step.op == Op::Alloc && addresses == Addresses::Equal => format!("ok, {address:#x}"),
            _ => "ok".to_owned(),
        },
    }
}
