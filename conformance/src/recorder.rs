//! What a subject does to its platform, written down as it happens.
//!
//! The laws judge a cache by this record and by the platform, never by the cache's own word, so that they hold on hardware
//! as well, where the driver cannot be asked what it holds.

use std::collections::BTreeMap;
use std::fmt;

use hostview_cache::Held;
use hostview_sim::{CallKind, DeviceAddr, DrvError, HostAddr, PagePolicy, PlannedFault, RegisterCall};

use crate::case::Via;
use crate::code::ErrorCode;
use crate::platform::Platform;
use crate::subject::SubjectError;

/// A call that a subject made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SubjectCall {
    /// An allocation.
    Alloc {
        /// On this device.
        device: u32,
        /// So many bytes.
        bytes: u64,
    },
    /// A free.
    Free {
        /// Of this.
        base: DeviceAddr,
        /// Whether a registration of the subject's covered the address then.
        registered: bool,
    },
    /// A registration.
    Register {
        /// For this device.
        device: u32,
        /// From here.
        base: DeviceAddr,
        /// So many bytes.
        bytes: u64,
    },
    /// The end of a registration.
    Unregister {
        /// Of this.
        base: DeviceAddr,
    },
    /// A copy, to or from the device.
    Copy {
        /// The device address.
        address: DeviceAddr,
        /// So many bytes.
        bytes: u64,
    },
    /// A load or store through a view.
    Access {
        /// The view's address.
        view: HostAddr,
        /// So many bytes.
        bytes: u64,
    },
}

/// A call and what came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallRecord {
    /// The call.
    pub call: SubjectCall,
    /// The error, when it failed.
    pub error: Option<ErrorCode>,
    /// Whether the suite made it fail.
    pub injected: bool,
}

/// A registration that a subject made and has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LedgerEntry {
    /// Where it begins.
    pub base: DeviceAddr,
    /// How many bytes were registered.
    pub bytes: u64,
    /// The view that the driver gave.
    pub view: HostAddr,
    /// When it was made: the number of the call.
    pub made: u64,
}

impl LedgerEntry {
    /// Whether it covers a byte of a range of device memory.
    #[must_use]
    pub fn overlaps(&self, base: DeviceAddr, bytes: u64) -> bool {
        self.base.get() < base.get().saturating_add(bytes) && base.get() < self.base.get() + self.bytes
    }

    /// Whether a host address lies in its view.
    #[must_use]
    pub fn shows(&self, address: HostAddr) -> bool {
        address.offset_from(self.view).is_some_and(|offset| offset < self.bytes)
    }
}

/// The registrations that a subject holds, by their base.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Ledger(BTreeMap<DeviceAddr, LedgerEntry>);

impl Ledger {
    /// Every registration.
    pub fn iter(&self) -> impl Iterator<Item = &LedgerEntry> {
        self.0.values()
    }

    /// The registration that begins at `base`.
    #[must_use]
    pub fn at(&self, base: DeviceAddr) -> Option<&LedgerEntry> {
        self.0.get(&base)
    }

    /// A registration that covers a byte of a range.
    #[must_use]
    pub fn overlapping(&self, base: DeviceAddr, bytes: u64) -> Option<&LedgerEntry> {
        self.iter().find(|entry| entry.overlaps(base, bytes))
    }

    /// Takes a registration out of this copy.
    pub(crate) fn forget(&mut self, base: DeviceAddr) {
        self.0.remove(&base);
    }

    /// Puts a registration into this copy.
    pub(crate) fn note(&mut self, entry: LedgerEntry) {
        self.0.insert(entry.base, entry);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The platform as a subject gets it.
pub struct Recorder {
    platform: Box<dyn Platform>,
    ledger: Ledger,
    calls: Vec<CallRecord>,
    made: u64,
    faults: Vec<PlannedFault>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("ledger", &self.ledger).field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A record of what happens on a platform from now on.
    #[must_use]
    pub fn new(platform: Box<dyn Platform>) -> Self {
        Self { platform, ledger: Ledger::default(), calls: Vec::new(), made: 0, faults: Vec::new() }
    }

    /// The platform, for calls of the suite's own: not recorded, and never made to fail.
    pub fn platform(&mut self) -> &mut dyn Platform {
        &mut *self.platform
    }

    /// What the driver wrote so far.
    #[must_use]
    pub fn platform_log(&self) -> &[String] {
        self.platform.log()
    }

    /// Whether what the driver writes can be seen at all.
    #[must_use]
    pub fn keeps_log(&self) -> bool {
        self.platform.keeps_log()
    }

    /// What the subject holds.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Makes a coming call of the subject's fail.
    pub fn plan_fault(&mut self, fault: PlannedFault) {
        self.faults.push(fault);
    }

    /// How many calls there were so far.
    #[must_use]
    pub fn calls_made(&self) -> u64 {
        self.made
    }

    /// Takes the record of the calls since the last time.
    pub fn take_calls(&mut self) -> Vec<CallRecord> {
        std::mem::take(&mut self.calls)
    }

    /// `halMemAlloc`, for the subject.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    pub fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy, via: Via) -> Result<DeviceAddr, SubjectError> {
        self.record(CallKind::Alloc, SubjectCall::Alloc { device, bytes }, |platform| {
            platform.alloc(device, bytes, policy, via)
        })
    }

    /// `halMemFree`, for the subject.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    pub fn free(&mut self, base: DeviceAddr, via: Via) -> Result<(), SubjectError> {
        let registered = self.ledger.overlapping(base, 1).is_some();
        self.record(CallKind::Free, SubjectCall::Free { base, registered }, |platform| platform.free(base, via))
    }

    /// `halHostRegister`, for the subject.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    pub fn register(&mut self, device: u32, base: DeviceAddr, bytes: u64) -> Result<HostAddr, SubjectError> {
        let call = RegisterCall { device, ..RegisterCall::view(base, bytes) };
        let view = self.record(CallKind::Register, SubjectCall::Register { device, base, bytes }, |platform| {
            platform.register(call)
        })?;
        self.ledger.0.insert(base, LedgerEntry { base, bytes, view, made: self.made });
        Ok(view)
    }

    /// `halHostUnregister`, for the subject.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    pub fn unregister(&mut self, device: u32, base: DeviceAddr) -> Result<(), SubjectError> {
        self.record(CallKind::Unregister, SubjectCall::Unregister { base }, |platform| {
            platform.unregister(base, device)
        })?;
        self.ledger.0.remove(&base);
        Ok(())
    }

    fn record<T>(
        &mut self,
        kind: CallKind,
        call: SubjectCall,
        work: impl FnOnce(&mut dyn Platform) -> Result<T, ErrorCode>,
    ) -> Result<T, SubjectError> {
        self.made += 1;
        let injected = self.strike(kind);
        let result = match injected {
            Some(error) => Err(error.into()),
            None => work(&mut *self.platform),
        };
        self.calls.push(CallRecord { call, error: result.as_ref().err().copied(), injected: injected.is_some() });
        result.map_err(SubjectError::Platform)
    }

    fn strike(&mut self, kind: CallKind) -> Option<DrvError> {
        let mut struck = None;
        self.faults.retain_mut(|fault| {
            if fault.call != kind {
                return true;
            }
            fault.nth = fault.nth.saturating_sub(1);
            if fault.nth == 0 {
                struck.get_or_insert(fault.error);
            }
            fault.nth > 0
        });
        struck
    }
}

impl hostview_cache::Platform for Recorder {
    type Error = SubjectError;

    fn register(&mut self, device: u32, base: u64, bytes: u64) -> Result<u64, SubjectError> {
        Self::register(self, device, DeviceAddr::new(base), bytes).map(HostAddr::get)
    }

    fn unregister(&mut self, device: u32, base: u64) -> Result<(), SubjectError> {
        Self::unregister(self, device, DeviceAddr::new(base))
    }

    fn copy_in(&mut self, _device: u32, to: u64, from: &[u8]) -> Result<(), SubjectError> {
        let address = DeviceAddr::new(to);
        let call = SubjectCall::Copy { address, bytes: from.len() as u64 };
        self.record(CallKind::CopyIn, call, |platform| platform.copy_in(address, from))
    }

    fn copy_out(&mut self, _device: u32, from: u64, into: &mut [u8]) -> Result<(), SubjectError> {
        let address = DeviceAddr::new(from);
        let call = SubjectCall::Copy { address, bytes: into.len() as u64 };
        self.record(CallKind::CopyOut, call, |platform| platform.copy_out(address, into))
    }

    fn store(&mut self, view: u64, from: &[u8]) -> Result<(), SubjectError> {
        let view = HostAddr::new(view);
        self.calls.push(CallRecord {
            call: SubjectCall::Access { view, bytes: from.len() as u64 },
            error: None,
            injected: false,
        });
        self.platform.host_write(view, from).map_err(SubjectError::Fault)
    }

    fn load(&mut self, view: u64, into: &mut [u8]) -> Result<(), SubjectError> {
        let view = HostAddr::new(view);
        self.calls.push(CallRecord {
            call: SubjectCall::Access { view, bytes: into.len() as u64 },
            error: None,
            injected: false,
        });
        self.platform.host_read(view, into).map_err(SubjectError::Fault)
    }

    fn mapped(&mut self, _held: Held) {}
}
