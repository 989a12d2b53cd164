//! The device whose rules can be written otherwise.

use std::collections::BTreeMap;
use std::ops::Range;

use hostview_sim::{
    Allocation, DeviceAddr, DrvError, Fault, HostAddr, MemoryMode, PagePolicy, PlannedFault, Profile, RegisterCall,
    Registration, VirtualTime,
};

use crate::case::Via;
use crate::code::ErrorCode;
use crate::platform::{Loss, MemoryAt, Platform, SimPlatform, Unsupported};

/// What an allocation asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) device: u32,
    pub(super) bytes: u64,
    pub(super) policy: PagePolicy,
    pub(super) via: Via,
}

/// What a device answers. Where nothing else is written, what the simulator does.
pub(super) trait Rules: Sync {
    /// What the device is made of.
    fn make(&self, _profile: &mut Profile) {}

    fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
        device.alloc_soundly(wanted)
    }

    fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
        device.sim.free(address, via)
    }

    fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
        device.sim.register(call)
    }

    fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
        device.sim.unregister(address, id)
    }

    fn unregister_ex(&self, device: &mut Device, address: DeviceAddr, id: u32, flags: u32) -> Result<(), ErrorCode> {
        device.sim.unregister_ex(address, id, flags)
    }

    fn copy_in(&self, device: &mut Device, address: DeviceAddr, from: &[u8]) -> Result<(), ErrorCode> {
        device.sim.copy_in(address, from)
    }

    fn host_read(&self, device: &mut Device, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
        device.sim.host_read(address, into)
    }

    fn host_write(&self, device: &mut Device, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
        device.sim.host_write(address, from)
    }

    /// Whether it writes a line that the driver writes.
    fn writes(&self, _line: &str) -> bool {
        true
    }
}

/// A block that was freed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Freed {
    pub(super) base: DeviceAddr,
    pub(super) size: u64,
    /// Whether it was registered then.
    pub(super) registered: bool,
}

/// A device with one fault.
pub(super) struct Device {
    pub(super) sim: SimPlatform,
    /// What was freed, the oldest first.
    pub(super) freed: Vec<Freed>,
    /// Host ranges that were accessible once, by where they begin.
    pub(super) opened: BTreeMap<u64, u64>,
    /// Host ranges that are closed although they are registered.
    pub(super) closed: Vec<Range<u64>>,
    /// What it wrote.
    log: Vec<String>,
    /// How many of the simulator's lines were looked at for that.
    heard: usize,
    /// Why it answers no more.
    pub(super) lost: Option<Loss>,
    rules: &'static dyn Rules,
}

impl Device {
    pub(super) fn new(rules: &'static dyn Rules, profile: &Profile) -> Self {
        let mut profile = profile.clone();
        rules.make(&mut profile);
        let sim = SimPlatform::new(&profile);
        let log = sim.log().to_vec();
        Self {
            heard: log.len(),
            log,
            sim,
            freed: Vec::new(),
            opened: BTreeMap::new(),
            closed: Vec::new(),
            lost: None,
            rules,
        }
    }

    /// Asks the rules, and takes over what the simulator wrote meanwhile.
    fn ask<T>(&mut self, call: impl FnOnce(&'static dyn Rules, &mut Self) -> T) -> T {
        let answer = call(self.rules, self);
        let lines = &self.sim.log()[self.heard..];
        self.heard += lines.len();
        self.log.extend(lines.iter().filter(|line| self.rules.writes(line)).cloned());
        answer
    }

    pub(super) fn alloc_soundly(&mut self, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
        self.sim.alloc(wanted.device, wanted.bytes, wanted.policy, wanted.via)
    }

    /// Allocates until an address is the one that is wanted, and gives the others back.
    pub(super) fn alloc_where(
        &mut self,
        wanted: Wanted,
        is_wanted: impl Fn(DeviceAddr) -> bool,
    ) -> Result<DeviceAddr, ErrorCode> {
        // No law's sequence has more idle blocks to come by.
        const TRIES: usize = 8;
        let mut others = Vec::new();
        let mut found = self.alloc_soundly(wanted);
        for _ in 0..TRIES {
            match found {
                Ok(address) if !is_wanted(address) => others.push(address),
                _ => break,
            }
            found = self.alloc_soundly(wanted);
        }
        for other in others.into_iter().rev() {
            self.sim.free(other, Via::Rt)?;
        }
        found
    }

    pub(super) fn profile(&self) -> &Profile {
        self.sim.host().profile()
    }

    /// The live allocation at an address.
    pub(super) fn allocation_at(&self, address: DeviceAddr) -> Option<Allocation> {
        self.sim.host().allocation_at(address)
    }

    /// The live allocation that begins at an address.
    pub(super) fn allocation_from(&self, base: DeviceAddr) -> Option<Allocation> {
        self.allocation_at(base).filter(|allocation| allocation.base == base)
    }

    /// The page of the live allocation at an address, in bytes; the smallest there is, where none lives.
    pub(super) fn page_at(&self, address: DeviceAddr) -> u64 {
        self.sim.memory_at(address).map_or_else(|| self.profile().device.page_size.bytes(), |memory| memory.page)
    }

    /// The registration that covers an address.
    pub(super) fn registration_at(&self, address: DeviceAddr) -> Option<Registration> {
        let covers = |registration: &Registration| {
            (registration.base.get()..registration.base.get() + registration.bytes).contains(&address.get())
        };
        self.sim.host().registrations().find(covers)
    }

    /// Ends every registration that begins in a range.
    pub(super) fn unregister_all(&mut self, range: &Range<u64>) {
        let begins = |registration: &Registration| range.contains(&registration.base.get());
        let registrations: Vec<Registration> = self.sim.host().registrations().filter(begins).collect();
        for registration in registrations {
            // One that is gone with its block ends by itself.
            let _ = self.sim.unregister(registration.base, registration.device);
        }
    }

    /// Where freed blocks of a sort begin.
    pub(super) fn freed_bases(&self, sort: impl Fn(&Freed) -> bool) -> Vec<DeviceAddr> {
        self.freed.iter().filter(|freed| sort(freed)).map(|freed| freed.base).collect()
    }

    /// The freed blocks that the driver's cache would keep, once they are over twice its threshold with one that is freed now.
    pub(super) fn over_twice(&self, freeing: DeviceAddr) -> Option<Vec<Freed>> {
        let allocation = self.allocation_at(freeing)?;
        let threshold = self.profile().cache_threshold(allocation.kind);
        let kept = |freed: &&Freed| freed.size <= threshold && self.allocation_at(freed.base).is_none();
        let kept: Vec<Freed> = self.freed.iter().filter(kept).copied().collect();
        let bytes: u64 = kept.iter().map(|freed| freed.size).sum();
        (bytes + allocation.size > 2 * threshold).then_some(kept)
    }

    /// Where the host sees a device address.
    pub(super) fn view_of(&self, address: DeviceAddr) -> HostAddr {
        HostAddr::new(address.get().wrapping_add(self.profile().driver.view_offset))
    }

    /// What the host would see at an address, were it registered; for an address before all views, some that is no device's.
    pub(super) fn behind(&self, address: HostAddr) -> DeviceAddr {
        DeviceAddr::new(address.get().wrapping_sub(self.profile().driver.view_offset))
    }
}

/// The range of an allocation, in whole pages.
pub(super) fn range_of(allocation: &Allocation) -> Range<u64> {
    allocation.base.get()..allocation.base.get() + allocation.size
}

/// The same answer with another number.
pub(super) fn as_another<T>(result: Result<T, ErrorCode>, from: DrvError, to: DrvError) -> Result<T, ErrorCode> {
    result.map_err(|error| if error == ErrorCode::from(from) { to.into() } else { error })
}

impl Platform for Device {
    fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy, via: Via) -> Result<DeviceAddr, ErrorCode> {
        self.ask(|rules, this| rules.alloc(this, Wanted { device, bytes, policy, via }))
    }

    fn free(&mut self, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
        let registered = self.registration_at(address).is_some();
        let size = self.allocation_at(address).map_or(0, |allocation| allocation.size);
        let result = self.ask(|rules, device| rules.free(device, address, via));
        if result.is_ok() {
            self.freed.retain(|freed| freed.base != address);
            self.freed.push(Freed { base: address, size, registered });
        }
        result
    }

    fn register(&mut self, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
        let result = self.ask(|rules, device| rules.register(device, call));
        if let Ok(view) = result {
            let pages = self.page_at(call.address);
            let whole = call.bytes.checked_next_multiple_of(pages).unwrap_or(u64::MAX);
            self.opened.insert(view.get(), view.get().saturating_add(whole));
        }
        result
    }

    fn unregister(&mut self, address: DeviceAddr, device: u32) -> Result<(), ErrorCode> {
        self.ask(|rules, this| rules.unregister(this, address, device))
    }

    fn unregister_ex(&mut self, address: DeviceAddr, device: u32, flags: u32) -> Result<(), ErrorCode> {
        self.ask(|rules, this| rules.unregister_ex(this, address, device, flags))
    }

    fn copy_in(&mut self, address: DeviceAddr, from: &[u8]) -> Result<(), ErrorCode> {
        self.ask(|rules, device| rules.copy_in(device, address, from))
    }

    fn copy_out(&mut self, address: DeviceAddr, into: &mut [u8]) -> Result<(), ErrorCode> {
        self.sim.copy_out(address, into)
    }

    fn host_read(&mut self, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
        if self.closed.iter().any(|range| range.contains(&address.get())) {
            return Err(Fault { address });
        }
        self.rules.host_read(self, address, into)
    }

    fn host_write(&mut self, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
        self.rules.host_write(self, address, from)
    }

    fn plan_fault(&mut self, fault: PlannedFault) -> Result<(), Unsupported> {
        self.sim.plan_fault(fault)
    }

    fn log(&self) -> &[String] {
        &self.log
    }

    fn lost(&self) -> Option<Loss> {
        self.lost.clone()
    }

    fn registrations(&self) -> Option<Vec<Registration>> {
        self.sim.registrations()
    }

    fn memory_at(&self, address: DeviceAddr) -> Option<MemoryAt> {
        self.sim.memory_at(address)
    }

    fn pages(&self, registration: &Registration) -> u64 {
        self.sim.pages(registration)
    }

    fn virtual_time(&self) -> Option<VirtualTime> {
        self.sim.virtual_time()
    }

    fn describe(&self) -> Vec<String> {
        self.sim.describe()
    }

    fn memory_mode(&self) -> MemoryMode {
        self.sim.memory_mode()
    }
}
