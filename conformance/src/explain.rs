//! Why the simulated device answers what it answers: what it did for a step, and by which rule of its own.

use std::ops::Range;

use hostview_sim::{Access, CallKind, DrvError, Event, HostAddr, RuleId};

use crate::cache_run::Breach;
use crate::expect::Mismatch;
use crate::platform::Platform;

/// Something that a simulated platform did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// It answered a call.
    Called(Event),
    /// The suite answered a subject's call in its place, with an error.
    MadeToFail {
        /// The call.
        call: CallKind,
        /// The error.
        error: DrvError,
    },
    /// The CPU loaded or stored.
    Accessed {
        /// Which.
        access: Access,
        /// The first byte.
        address: HostAddr,
        /// So many bytes.
        bytes: u64,
        /// The rule that decided what came of it.
        rule: RuleId,
        /// Whether it faults.
        faults: bool,
    },
}

impl Told {
    /// The rule by which it did.
    #[must_use]
    pub fn rule(&self) -> Option<RuleId> {
        match self {
            Self::Called(event) => event.rule,
            Self::MadeToFail { .. } => None,
            Self::Accessed { rule, .. } => Some(*rule),
        }
    }

    /// An access that is about to be made; none where nobody can say what comes of it.
    pub(crate) fn access(platform: &dyn Platform, address: HostAddr, bytes: u64, access: Access) -> Option<Self> {
        let host = platform.simulated()?;
        let rule = host.access_rule(address, bytes, access);
        let faults = !host.table_allows(address, bytes, access);
        Some(Self::Accessed { access, address, bytes, rule, faults })
    }
}

/// What came of a step of a case, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explained {
    /// The step, or two that ran at once.
    pub steps: Range<usize>,
    /// What the platform did.
    pub told: Vec<Told>,
    /// What about it is not as the case says.
    pub mismatch: Option<Mismatch>,
    /// The laws that broke.
    pub breaches: Vec<Breach>,
}
