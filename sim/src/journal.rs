//! What happened, in order, with its cost; and what the driver wrote about it.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::addr::{DeviceAddr, HostAddr, PageKind};
use crate::clock::VirtualTime;
use crate::error::DrvError;
use crate::rules::RuleId;

/// A kind of call, as fault plans and journals name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallKind {
    /// `halMemAlloc`.
    Alloc,
    /// `halMemFree`.
    Free,
    /// `halHostRegister`.
    Register,
    /// `halHostUnregister`, `halHostUnregisterEx`.
    Unregister,
    /// A copy from the host to the device.
    CopyIn,
    /// A copy from the device to the host.
    CopyOut,
}

impl CallKind {
    /// Every kind.
    pub const ALL: [Self; 6] = [Self::Alloc, Self::Free, Self::Register, Self::Unregister, Self::CopyIn, Self::CopyOut];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Register => "register",
            Self::Unregister => "unregister",
            Self::CopyIn => "copy_in",
            Self::CopyOut => "copy_out",
        }
    }
}

impl fmt::Display for CallKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call with its arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// An allocation.
    Alloc {
        /// On this device.
        device: u32,
        /// The size that was asked for.
        bytes: u64,
        /// Of these pages.
        kind: PageKind,
    },
    /// A free.
    Free {
        /// The address passed.
        address: DeviceAddr,
    },
    /// A registration.
    Register {
        /// The address passed.
        address: DeviceAddr,
        /// The size passed.
        bytes: u64,
        /// The flag word passed.
        flags: u32,
        /// The device id passed.
        device: u32,
    },
    /// The end of a registration.
    Unregister {
        /// The address passed.
        address: DeviceAddr,
        /// The device id passed.
        device: u32,
        /// The flag word passed to `halHostUnregisterEx`; `halHostUnregister` has none.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        flags: Option<u32>,
    },
    /// A copy to the device.
    CopyIn {
        /// To here.
        address: DeviceAddr,
        /// So many bytes.
        bytes: u64,
    },
    /// A copy from the device.
    CopyOut {
        /// From here.
        address: DeviceAddr,
        /// So many bytes.
        bytes: u64,
    },
}

impl Call {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> CallKind {
        match self {
            Self::Alloc { .. } => CallKind::Alloc,
            Self::Free { .. } => CallKind::Free,
            Self::Register { .. } => CallKind::Register,
            Self::Unregister { .. } => CallKind::Unregister,
            Self::CopyIn { .. } => CallKind::CopyIn,
            Self::CopyOut { .. } => CallKind::CopyOut,
        }
    }
}

/// What a call gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", content = "gave", rename_all = "snake_case")]
pub enum Outcome {
    /// Success, with nothing to give.
    Done,
    /// An allocation's base.
    Allocated(DeviceAddr),
    /// A view.
    Registered(HostAddr),
    /// An error.
    Failed(DrvError),
}

/// A call, what came of it and what it cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Event {
    /// The call.
    #[serde(flatten)]
    pub call: Call,
    /// Its outcome.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Whether it failed because a fault was planned.
    pub injected: bool,
    /// The rule that decided; none where a fault was planned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub rule: Option<RuleId>,
    /// The rule of what came of it besides.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub besides: Option<RuleId>,
    /// Its cost.
    #[serde(rename = "cost_us")]
    pub cost: VirtualTime,
}

/// A fault to inject: the nth call of a kind from now on fails with this error, before it does anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedFault {
    /// The kind of call.
    pub call: CallKind,
    /// Which one from now on; 1 is the next.
    pub nth: u32,
    /// What it answers.
    pub error: DrvError,
    /// Whether every such call from there on fails as well, until [`FaultPlan::end_lasting`].
    pub lasting: bool,
}

/// The faults that are still to come.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan(Vec<PlannedFault>);

impl FaultPlan {
    /// One more is to come.
    pub fn add(&mut self, fault: PlannedFault) {
        self.0.push(fault);
    }

    /// Those that are still to come.
    pub fn iter(&self) -> impl Iterator<Item = &PlannedFault> {
        self.0.iter()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Counts a call; the error it must answer instead of doing its work.
    pub fn strike(&mut self, call: CallKind) -> Option<DrvError> {
        let mut struck = None;
        self.0.retain_mut(|fault| {
            if fault.call != call {
                return true;
            }
            fault.nth = fault.nth.saturating_sub(1);
            if fault.nth > 0 {
                return true;
            }
            struck.get_or_insert(fault.error);
            fault.lasting
        });
        struck
    }

    /// What lasted until now is over.
    pub fn end_lasting(&mut self) {
        self.0.retain(|fault| !fault.lasting);
    }

    /// Forgets them all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_of_its_kind_fails_and_no_other() {
        let mut plan = FaultPlan::default();
        plan.add(PlannedFault { call: CallKind::Register, nth: 2, error: DrvError::Busy, lasting: false });
        assert_eq!(plan.strike(CallKind::Register), None);
        assert_eq!(plan.strike(CallKind::Unregister), None);
        assert_eq!(plan.strike(CallKind::Register), Some(DrvError::Busy));
        assert_eq!(plan.strike(CallKind::Register), None);
    }

    #[test]
    fn a_lasting_fault_strikes_from_its_nth_call_until_it_is_over() {
        let mut plan = FaultPlan::default();
        plan.add(PlannedFault { call: CallKind::Free, nth: 2, error: DrvError::Busy, lasting: true });
        assert!(!plan.is_empty());
        assert_eq!(plan.iter().map(|fault| fault.nth).collect::<Vec<_>>(), [2]);
        let struck: Vec<_> = (0..4).map(|_| plan.strike(CallKind::Free)).collect();
        assert_eq!(struck, [None, Some(DrvError::Busy), Some(DrvError::Busy), Some(DrvError::Busy)]);
        plan.add(PlannedFault { call: CallKind::Register, nth: 1, error: DrvError::Busy, lasting: false });
        plan.end_lasting();
        assert_eq!(plan.strike(CallKind::Free), None);
        assert_eq!(plan.strike(CallKind::Register), Some(DrvError::Busy));
        assert!(plan.is_empty());
    }
}
