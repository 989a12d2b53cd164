//! Two platforms, call by call.

use hostview_sim::RuleId;

use crate::case::{Op, Step};
use crate::driver_run::DriverRun;
use crate::expect::{Came, hex_of};
use crate::explain::Told;
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
    /// The rule by which it does, where there is one: what the device speaks against.
    pub rule: Option<RuleId>,
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
        let before = simulator.calls();
        let told = (tell(step, &device.perform(step), addresses), tell(step, &simulator.perform(step), addresses));
        // Of an allocation that falls back to other pages the last answer counts.
        let rule = simulator.told_since(before).last().and_then(Told::rule);
        let (device, simulator) = told;
        (device != simulator).then_some(Difference { step: index, device, simulator, rule })
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

#[cfg(test)]
mod tests {
    use hostview_sim::{DrvError, Fault, HostAddr, PagePolicy};
    use rstest::rstest;

    use super::*;

    fn address(address: u64) -> Came {
        Came { address: Some(address), ..Came::default() }
    }

    fn bytes(bytes: &[u8]) -> Came {
        Came { bytes: Some(bytes.to_vec()), ..Came::default() }
    }

    fn fault(address: u64) -> Came {
        Came { fault: Some(Fault { address: HostAddr::new(address) }), ..Came::default() }
    }

    fn error(error: DrvError) -> Came {
        Came { error: Some(error.into()), ..Came::default() }
    }

    #[rstest]
    #[case::bytes(bytes(&[1]), bytes(&[2]), true, true)]
    #[case::codes(error(DrvError::Busy), error(DrvError::ParaError), true, true)]
    #[case::a_refusal(error(DrvError::Busy), Came::default(), true, true)]
    #[case::a_fault(fault(4096), bytes(&[1]), true, true)]
    // On a machine on which others have allocated, where memory lies is no difference.
    #[case::places_of_faults(fault(4096), fault(8192), true, false)]
    #[case::places(address(4096), address(8192), true, false)]
    #[case::the_same(bytes(&[1]), bytes(&[1]), false, false)]
    fn what_is_a_difference(#[case] one: Came, #[case] other: Came, #[case] equal: bool, #[case] free: bool) {
        let step = Step::alloc("a", 4096, PagePolicy::NormalOnly);
        let differs = |addresses| tell(&step, &one, addresses) != tell(&step, &other, addresses);
        assert_eq!((differs(Addresses::Equal), differs(Addresses::Free)), (equal, free));
    }
}
