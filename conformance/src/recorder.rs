//! What a subject does to its platform, written down as it happens.
//!
//! The laws judge a cache by this record and by the platform, never by the cache's own word, so that they hold on hardware
//! as well, where the driver cannot be asked what it holds.

use std::collections::BTreeMap;
use std::fmt;

use hostview_cache::Held;
use hostview_sim::{
    Access, Call, CallKind, DeviceAddr, Event, FaultPlan, HostAddr, Outcome as CallOutcome, PagePolicy, PlannedFault,
    RegisterCall, RegisterFlags,
};

use crate::case::Via;
use crate::code::ErrorCode;
use crate::explain::Told;
use crate::platform::{Observed, Platform};
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

    /// Takes a registration out.
    pub(crate) fn forget(&mut self, base: DeviceAddr) {
        self.0.remove(&base);
    }

    /// Puts a registration in.
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

/// The platform as a subject sees it: what it may call.
pub trait PlatformTable {
    /// `rtMalloc`.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy) -> Result<DeviceAddr, SubjectError>;

    /// `rtFree`.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    fn free(&mut self, base: DeviceAddr) -> Result<(), SubjectError>;

    /// `halHostRegister`.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    fn register(&mut self, device: u32, base: DeviceAddr, bytes: u64) -> Result<HostAddr, SubjectError>;

    /// `halHostUnregister`.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    fn unregister(&mut self, device: u32, base: DeviceAddr) -> Result<(), SubjectError>;

    /// A copy to the device.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    fn copy_in(&mut self, to: DeviceAddr, from: &[u8]) -> Result<(), SubjectError>;

    /// A copy from the device.
    ///
    /// # Errors
    ///
    /// The platform's, or an injected one.
    fn copy_out(&mut self, from: DeviceAddr, into: &mut [u8]) -> Result<(), SubjectError>;

    /// A store through a view.
    ///
    /// # Errors
    ///
    /// It would fault.
    fn store(&mut self, view: HostAddr, from: &[u8]) -> Result<(), SubjectError>;

    /// A load through a view.
    ///
    /// # Errors
    ///
    /// It would fault.
    fn load(&mut self, view: HostAddr, into: &mut [u8]) -> Result<(), SubjectError>;

    /// The subject is called now, and may call the driver past this table. For those that do.
    fn begin(&mut self) {}

    /// The subject has come back.
    fn end(&mut self) {}

    /// Takes the subject's lock. A subject that is built in has no other, so that the suite knows which thread waits.
    fn enter(&mut self) {}

    /// Gives the subject's lock back.
    fn leave(&mut self) {}
}

/// Why a call of a subject is left in the middle: it unwinds out of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Endless {
    /// It calls the platform on and on.
    Calls,
    /// It waits for a lock that it has itself.
    Lock,
    /// What it met is over.
    Left,
}

impl Endless {
    /// What is said of a subject that was left, or that panicked.
    pub(crate) fn describe(payload: &(dyn std::any::Any + Send)) -> String {
        match payload.downcast_ref::<Self>() {
            Some(Self::Calls) => format!("does not return: it has made {CALLS_PER_STEP} calls of the platform"),
            Some(Self::Lock) => "does not return: it waits for a lock that it has".to_owned(),
            Some(Self::Left) => "does not return".to_owned(),
            None => {
                let text = payload.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
                format!("panics: {}", text.unwrap_or("without a word"))
            }
        }
    }
}

/// How many calls a subject may make in one step. Letting fifty allocations go takes a hundred.
pub(crate) const CALLS_PER_STEP: usize = 1000;

/// The platform with a record of what is called.
pub struct Recorder {
    platform: Box<dyn Platform>,
    ledger: Ledger,
    calls: Vec<CallRecord>,
    made: u64,
    faults: FaultPlan,
    /// Whether the subject has its lock.
    locked: bool,
    /// What the platform did and by which rules, for those who ask.
    told: Option<Vec<Told>>,
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
        Self {
            platform,
            ledger: Ledger::default(),
            calls: Vec::new(),
            made: 0,
            faults: FaultPlan::default(),
            locked: false,
            told: None,
        }
    }

    /// From now on the rules are kept by which a simulated platform answers.
    pub(crate) fn ask_why(&mut self) {
        self.told = Some(Vec::new());
    }

    /// Takes what was told since the last time.
    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        self.told.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The platform, for a call that is told.
    pub(crate) fn heard<T>(&mut self, work: impl FnOnce(&mut dyn Platform) -> T) -> T {
        let calls = |platform: &dyn Platform| platform.simulated().map_or(0, |host| host.journal().len());
        let before = if self.told.is_some() { calls(&*self.platform) } else { 0 };
        let result = work(&mut *self.platform);
        if let (Some(told), Some(host)) = (&mut self.told, self.platform.simulated()) {
            told.extend(host.journal()[before..].iter().copied().map(Told::Called));
        }
        result
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
        self.faults.add(fault);
    }

    /// Whether some coming call is to fail.
    #[must_use]
    pub fn awaits_a_fault(&self) -> bool {
        !self.faults.is_empty()
    }

    /// The step is done: what lasted until then is over.
    pub fn end_lasting_faults(&mut self) {
        self.faults.end_lasting();
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

    fn record<T>(
        &mut self,
        kind: CallKind,
        call: SubjectCall,
        work: impl FnOnce(&mut dyn Platform) -> Result<T, ErrorCode>,
    ) -> Result<T, SubjectError> {
        self.made += 1;
        self.end_the_endless();
        let injected = self.faults.strike(kind);
        let result = match injected {
            Some(error) => {
                if let Some(told) = &mut self.told {
                    told.push(Told::MadeToFail { call: kind, error });
                }
                Err(error.into())
            }
            None => self.heard(work),
        };
        self.calls.push(CallRecord { call, error: result.as_ref().err().copied(), injected: injected.is_some() });
        result.map_err(SubjectError::Platform)
    }

    /// Takes note of a call that a subject made past the table.
    fn note(&mut self, event: &Event) {
        if matches!(event.call, Call::Register { flags, .. } if !RegisterFlags(flags).maps_device_memory()) {
            return; // No view of device memory.
        }
        let call = match event.call {
            Call::Alloc { device, bytes, .. } => SubjectCall::Alloc { device, bytes },
            Call::Free { address } => {
                let registered = self.ledger.overlapping(address, 1).is_some();
                SubjectCall::Free { base: address, registered }
            }
            Call::Register { address, bytes, device, .. } => SubjectCall::Register { device, base: address, bytes },
            Call::Unregister { address, .. } => SubjectCall::Unregister { base: address },
            Call::CopyIn { address, bytes } | Call::CopyOut { address, bytes } => SubjectCall::Copy { address, bytes },
        };
        self.made += 1;
        self.faults.strike(event.call.kind());
        let error = match event.outcome {
            CallOutcome::Failed(error) => Some(error.into()),
            CallOutcome::Registered(view) => {
                if let SubjectCall::Register { base, bytes, .. } = call {
                    self.ledger.note(LedgerEntry { base, bytes, view, made: self.made });
                }
                None
            }
            CallOutcome::Done | CallOutcome::Allocated(_) => None,
        };
        if let (SubjectCall::Unregister { base }, None) = (call, error) {
            self.ledger.forget(base);
        }
        self.calls.push(CallRecord { call, error, injected: event.injected });
    }

    fn record_access(&mut self, view: HostAddr, bytes: usize, access: Access) {
        self.end_the_endless();
        if let Some(told) = &mut self.told {
            told.extend(Told::access(&*self.platform, view, bytes as u64, access));
        }
        let call = SubjectCall::Access { view, bytes: bytes as u64 };
        self.calls.push(CallRecord { call, error: None, injected: false });
    }

    /// A subject that calls on and on is left, in the middle of its call.
    fn end_the_endless(&self) {
        if self.calls.len() >= CALLS_PER_STEP {
            std::panic::resume_unwind(Box::new(Endless::Calls));
        }
    }
}

impl PlatformTable for Recorder {
    fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy) -> Result<DeviceAddr, SubjectError> {
        self.record(CallKind::Alloc, SubjectCall::Alloc { device, bytes }, |platform| {
            platform.alloc(device, bytes, policy, Via::Rt)
        })
    }

    fn free(&mut self, base: DeviceAddr) -> Result<(), SubjectError> {
        let registered = self.ledger.overlapping(base, 1).is_some();
        self.record(CallKind::Free, SubjectCall::Free { base, registered }, |platform| platform.free(base, Via::Rt))
    }

    fn register(&mut self, device: u32, base: DeviceAddr, bytes: u64) -> Result<HostAddr, SubjectError> {
        let call = RegisterCall { device, ..RegisterCall::view(base, bytes) };
        let view = self.record(CallKind::Register, SubjectCall::Register { device, base, bytes }, |platform| {
            platform.register(call)
        })?;
        self.ledger.note(LedgerEntry { base, bytes, view, made: self.made });
        Ok(view)
    }

    fn unregister(&mut self, device: u32, base: DeviceAddr) -> Result<(), SubjectError> {
        self.record(CallKind::Unregister, SubjectCall::Unregister { base }, |platform| {
            platform.unregister(base, device)
        })?;
        self.ledger.forget(base);
        Ok(())
    }

    fn copy_in(&mut self, to: DeviceAddr, from: &[u8]) -> Result<(), SubjectError> {
        let call = SubjectCall::Copy { address: to, bytes: from.len() as u64 };
        self.record(CallKind::CopyIn, call, |platform| platform.copy_in(to, from))
    }

    fn copy_out(&mut self, from: DeviceAddr, into: &mut [u8]) -> Result<(), SubjectError> {
        let call = SubjectCall::Copy { address: from, bytes: into.len() as u64 };
        self.record(CallKind::CopyOut, call, |platform| platform.copy_out(from, into))
    }

    fn store(&mut self, view: HostAddr, from: &[u8]) -> Result<(), SubjectError> {
        self.record_access(view, from.len(), Access::Write);
        self.platform.host_write(view, from).map_err(SubjectError::Fault)
    }

    fn load(&mut self, view: HostAddr, into: &mut [u8]) -> Result<(), SubjectError> {
        self.record_access(view, into.len(), Access::Read);
        self.platform.host_read(view, into).map_err(SubjectError::Fault)
    }

    fn begin(&mut self) {
        if let Some(observed) = self.platform.observed() {
            observed.begin(&self.faults);
        }
    }

    fn end(&mut self) {
        let events = self.platform.observed().map(Observed::end).unwrap_or_default();
        for event in events {
            self.note(&event);
        }
    }

    fn enter(&mut self) {
        // A thread that waits for itself waits for ever.
        if std::mem::replace(&mut self.locked, true) {
            std::panic::resume_unwind(Box::new(Endless::Lock));
        }
    }

    fn leave(&mut self) {
        self.locked = false;
    }
}

/// The same, as the reference cache asks for it.
impl hostview_cache::Platform for dyn PlatformTable + '_ {
    type Error = SubjectError;

    fn register(&mut self, device: u32, base: u64, bytes: u64) -> Result<u64, SubjectError> {
        PlatformTable::register(self, device, DeviceAddr::new(base), bytes).map(HostAddr::get)
    }

    fn unregister(&mut self, device: u32, base: u64) -> Result<(), SubjectError> {
        PlatformTable::unregister(self, device, DeviceAddr::new(base))
    }

    fn copy_in(&mut self, _device: u32, to: u64, from: &[u8]) -> Result<(), SubjectError> {
        PlatformTable::copy_in(self, DeviceAddr::new(to), from)
    }

    fn copy_out(&mut self, _device: u32, from: u64, into: &mut [u8]) -> Result<(), SubjectError> {
        PlatformTable::copy_out(self, DeviceAddr::new(from), into)
    }

    fn store(&mut self, view: u64, from: &[u8]) -> Result<(), SubjectError> {
        PlatformTable::store(self, HostAddr::new(view), from)
    }

    fn load(&mut self, view: u64, into: &mut [u8]) -> Result<(), SubjectError> {
        PlatformTable::load(self, HostAddr::new(view), into)
    }

    fn mapped(&mut self, _held: Held) {}
}
