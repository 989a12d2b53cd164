//! A journal as steps: what a program called through the drop-in library, so that it can be called again.

use std::collections::BTreeMap;

use hostview_sim::{Call, DeviceAddr, Event, Outcome, PageKind, PagePolicy, RegisterFlags};

use super::load::MOVES_AT_MOST;
use super::{Fail, Op, Step, Via};

/// Rules of calls that no step makes: those without a place for the view, and what the register records refuse, which a feature
/// that was asked for turns on. Such a call was refused and changed nothing: it is left out.
const UNTOLD: [&str; 3] = ["v2-R4", "v3-R1", "v2-U1"];

/// The allocations of a journal so far, by their names.
#[derive(Debug, Default)]
pub(super) struct Names {
    made: usize,
    /// Base to name and size, also of what was freed: the newest that lay there.
    at: BTreeMap<u64, (String, u64)>,
}

impl Names {
    /// The step that makes a call again and asks for the same answer; none for a call that cannot be told.
    pub(super) fn step(&mut self, event: &Event) -> Option<Step> {
        if event.rule.is_some_and(|rule| UNTOLD.contains(&rule.name())) {
            return None;
        }
        let mut step = match event.call {
            Call::Alloc { device, bytes, kind } => {
                self.made += 1;
                let name = format!("a{}", self.made);
                if let Outcome::Allocated(base) = event.outcome {
                    self.at.insert(base.get(), (name.clone(), bytes));
                }
                let policy = match kind {
                    PageKind::Ordinary => PagePolicy::NormalOnly,
                    PageKind::Huge => PagePolicy::HugeOnly,
                };
                Step { name: Some(name), bytes: Some(bytes), device, policy, ..Step::new(Op::Alloc) }
            }
            Call::Free { address } => self.aimed(Op::Free, address),
            Call::Register { address, bytes, flags, device } => {
                let flags = (flags != RegisterFlags::VIEW.0).then_some(flags);
                Step { bytes: Some(bytes), flags, device, ..self.aimed(Op::Register, address) }
            }
            Call::Unregister { address, device, flags } => {
                Step { device, flags, ..self.aimed(Op::Unregister, address) }
            }
            // The bytes themselves are in no journal.
            Call::CopyIn { address, bytes } => {
                Step { bytes: Some(bytes.min(MOVES_AT_MOST)), fill: Some(0), ..self.aimed(Op::CopyIn, address) }
            }
            Call::CopyOut { address, bytes } => {
                Step { bytes: Some(bytes.min(MOVES_AT_MOST)), ..self.aimed(Op::CopyOut, address) }
            }
        };
        if matches!(step.op, Op::Alloc | Op::Free) {
            step.via = Via::Hal;
        }
        match event.outcome {
            Outcome::Failed(error) => {
                step.code = Some(error.code());
                let call = event.call.kind();
                step.fail =
                    event.injected.then(|| Fail { call, nth: 1, error: error.name().to_owned(), lasting: false });
            }
            Outcome::Allocated(base) => {
                step.code = Some(0);
                step.address = Some(base.to_string());
            }
            Outcome::Done | Outcome::Registered(_) => step.code = Some(0),
        }
        Some(step)
    }

    /// A step at an address: in the allocation that lies or lay there, else as far from null.
    fn aimed(&self, op: Op, address: DeviceAddr) -> Step {
        let address = address.get();
        let found = self.at.range(..=address).next_back();
        let found = found.filter(|(base, (_, bytes))| address == **base || address - **base < *bytes);
        let (target, offset) = found.map_or(("null", address), |(base, (name, _))| (name.as_str(), address - base));
        Step { target: Some(target.to_owned()), offset, ..Step::new(op) }
    }
}

#[cfg(test)]
mod tests {
    use hostview_sim::{CallKind, DrvError, PlannedFault, Profile, RegisterCall, SimHost};

    use super::*;

    /// Each kind of call, answered well and refused, in an order that only names tell apart.
    fn lived_through() -> SimHost {
        let mut host = SimHost::new(&Profile::shipped("a2a3").unwrap());
        let first = host.alloc(0, PageKind::Ordinary, 5000).unwrap();
        host.register(RegisterCall::view(first, 5000)).unwrap();
        host.copy_in(first.wrapping_add(8), &[1; 4]).unwrap();
        host.free(first).unwrap();
        let again = host.alloc(0, PageKind::Ordinary, 5000).unwrap();
        assert_eq!(again, first);
        let _ = host.register(RegisterCall::view(again, 5000));
        let _ = host.register(RegisterCall { has_dst: false, ..RegisterCall::view(again, 5000) });
        let _ = host.unregister(again.wrapping_add(4096), 0);
        host.plan_fault(PlannedFault { call: CallKind::Unregister, nth: 1, error: DrvError::Busy, lasting: false });
        let _ = host.unregister(again, 0);
        let _ = host.unregister_ex(again, 0, RegisterFlags(7));
        host.unregister_ex(again, 1, RegisterFlags(1)).unwrap();
        let read_only = RegisterFlags::READ_ONLY_VIEW;
        host.register(RegisterCall { flags: read_only, ..RegisterCall::view(again, 1) }).unwrap();
        host.copy_out(again, &mut [0; 4]).unwrap();
        let _ = host.free(DeviceAddr::NULL);
        let _ = host.free(DeviceAddr::new(0x7f00_0000_1000));
        let huge = host.alloc(1, PageKind::Huge, 1).unwrap();
        host.free(huge).unwrap();
        let _ = host.alloc(0, PageKind::Huge, 0);
        host
    }

    /// The driver that looks at flags and null in another order.
    fn lived_through_on_v3() -> SimHost {
        let mut host = SimHost::new(&Profile::shipped("a5-v3").unwrap());
        let base = host.alloc(0, PageKind::Ordinary, 5000).unwrap();
        host.register(RegisterCall::view(base, 5000)).unwrap();
        let _ = host.register(RegisterCall { has_dst: false, ..RegisterCall::view(base, 5000) });
        let _ = host.unregister(DeviceAddr::NULL, 0);
        let _ = host.unregister_ex(DeviceAddr::NULL, 0, RegisterFlags(7));
        let _ = host.unregister_ex(base, 0, RegisterFlags(7));
        let _ = host.free(base);
        host.unregister_ex(base, 0, RegisterFlags::VIEW).unwrap();
        host.free(base).unwrap();
        host
    }

    #[rstest::rstest]
    #[case(lived_through(), "v2-R4")]
    #[case(lived_through_on_v3(), "v3-R1")]
    fn a_journal_is_called_again_and_comes_to_the_same(#[case] host: SimHost, #[case] left_out: &str) {
        let mut names = Names::default();
        let steps: Vec<Step> = host.journal().iter().filter_map(|event| names.step(event)).collect();
        // The call without a place for the view is the one that is left out.
        assert_eq!(steps.len() + 1, host.journal().len());
        let mut platform = crate::platform::SimPlatform::new(host.profile());
        let mut run = crate::driver_run::DriverRun::new(&mut platform);
        for (index, step) in steps.iter().enumerate() {
            assert_eq!(run.step(step), None, "step {index}: {step:?}");
        }
        let told = |event: &&Event| event.rule.is_none_or(|rule| rule.name() != left_out);
        let (then, now) = (host.journal().iter().filter(told), platform.host().journal());
        assert_eq!(then.copied().collect::<Vec<_>>(), now);
    }

    #[test]
    fn what_is_left_out_is_refused_by_rules_that_there_are() {
        for id in UNTOLD {
            assert!(hostview_sim::Rule::find(id).is_some_and(|rule| matches!(rule.then, hostview_sim::Then::Fails(_))));
        }
    }

    #[test]
    fn an_address_is_that_of_what_lay_there_last() {
        let host = lived_through();
        let mut names = Names::default();
        let steps: Vec<Step> = host.journal().iter().filter_map(|event| names.step(event)).collect();
        let aims: Vec<_> = steps.iter().map(|step| (step.op, step.target.as_deref(), step.offset)).collect();
        assert_eq!(aims[2], (Op::CopyIn, Some("a1"), 8));
        assert_eq!(aims[5], (Op::Register, Some("a2"), 0));
        assert_eq!(aims[6], (Op::Unregister, Some("a2"), 4096));
        assert_eq!(aims[13], (Op::Free, Some("null"), 0x7f00_0000_1000));
    }
}
