//! For each V-law a cache that breaks it: a small correct cache, and one fault.
//!
//! They are what shows that each law can be seen to break, and the subjects of the counter-examples in `fixtures/cases`.

use std::collections::HashSet;

use hostview_cache::{Held, Platform as _, Range, RangeError, Table};
use hostview_sim::{DeviceAddr, HostAddr, PagePolicy};

use super::{Acquired, Subject, SubjectError};
use crate::case::Via;
use crate::recorder::Recorder;

/// What is wrong with a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// V01: a free drops the record and forgets to unregister.
    ForgetsToUnregister,
    /// V02: a failed unregister is ignored, and the memory freed.
    IgnoresFailedUnregister,
    /// V03: an interior address gets the view of its page.
    OffsetsByThePage,
    /// V04: a write through a view is lost.
    LosesWrites,
    /// V05: the range that was asked for is registered, not the allocation.
    RegistersTheRange,
    /// V06: every allocation is registered at once.
    RegistersUnasked,
    /// V07: a refused registration fails the access.
    FailsOnRefusal,
    /// V08: a refusal is remembered for the address, whoever has it.
    RemembersRefusals,
    /// V09: finalize leaves the door open.
    HandsOutAfterFinalize,
    /// V10: only the first byte of a range is checked.
    ServesPastTheEnd,
    /// V11: every acquire counts.
    CountsTwice,
    /// V12: a free of an interior address frees the allocation around it.
    FreesInterior,
    /// V13: an allocation that failed is reported as the last one that did not.
    HidesAllocationFailure,
    /// V14: everything is registered for device 0.
    IgnoresTheDevice,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    device: u32,
    view: Option<HostAddr>,
}

#[derive(Debug)]
pub(super) struct Faulty {
    fault: Fault,
    allocations: Table<Entry>,
    refused: HashSet<u64>,
    held: Held,
    last: DeviceAddr,
    finalized: bool,
}

impl Faulty {
    pub(super) fn new(fault: Fault) -> Self {
        Self {
            fault,
            allocations: Table::default(),
            refused: HashSet::new(),
            held: Held::default(),
            last: DeviceAddr::NULL,
            finalized: false,
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    fn view_of(
        &mut self,
        platform: &mut Recorder,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<(Option<HostAddr>, u32), SubjectError> {
        if self.finalized && !self.has(Fault::HandsOutAfterFinalize) {
            return Err(SubjectError::Refused("finalized".to_owned()));
        }
        let checked = if self.has(Fault::ServesPastTheEnd) { bytes.min(1) } else { bytes };
        let fault = self.fault;
        let (range, entry) = self.allocations.find(address.get(), checked)?;
        let offset = address.get() - range.base;
        let mut new = false;
        if entry.view.is_none() && !self.refused.contains(&range.base) {
            let device = if fault == Fault::IgnoresTheDevice { 0 } else { entry.device };
            let (base, len) = match fault {
                Fault::RegistersTheRange => (address, bytes),
                _ => (DeviceAddr::new(range.base), range.bytes),
            };
            match platform.register(device, base, len) {
                Ok(view) => {
                    let shift = if fault == Fault::RegistersTheRange { offset } else { 0 };
                    entry.view = Some(HostAddr::new(view.get() - shift));
                    new = true;
                }
                Err(error) if fault == Fault::FailsOnRefusal => return Err(error),
                Err(_) if fault == Fault::RemembersRefusals => drop(self.refused.insert(range.base)),
                Err(_) => {}
            }
        }
        if new || (fault == Fault::CountsTwice && entry.view.is_some()) {
            self.held.count += 1;
            self.held.bytes += range.bytes;
        }
        let offset = if fault == Fault::OffsetsByThePage { offset & !4095 } else { offset };
        Ok((entry.view.map(|view| view.wrapping_add(offset)), entry.device))
    }

    fn drop_view(
        platform: &mut Recorder,
        range: Range,
        entry: &mut Entry,
        held: &mut Held,
    ) -> Result<(), SubjectError> {
        if entry.view.is_some() {
            platform.unregister(entry.device, DeviceAddr::new(range.base))?;
            entry.view = None;
            held.count -= 1;
            held.bytes -= range.bytes;
        }
        Ok(())
    }
}

impl Subject for Faulty {
    fn alloc(
        &mut self,
        platform: &mut Recorder,
        device: u32,
        bytes: u64,
        policy: PagePolicy,
    ) -> Result<DeviceAddr, SubjectError> {
        let base = match platform.alloc(device, bytes, policy, Via::Rt) {
            Err(_) if self.has(Fault::HidesAllocationFailure) && self.last != DeviceAddr::NULL => return Ok(self.last),
            other => other?,
        };
        self.last = base;
        self.allocations.insert(Range { base: base.get(), bytes }, Entry { device, view: None })?;
        if self.has(Fault::RegistersUnasked) {
            self.view_of(platform, base, bytes)?;
        }
        Ok(base)
    }

    fn free(&mut self, platform: &mut Recorder, address: DeviceAddr) -> Result<(), SubjectError> {
        let frees_interior = self.has(Fault::FreesInterior);
        let address = match self.allocations.at(address.get()) {
            Err(RangeError::Interior { base, .. }) if frees_interior => DeviceAddr::new(base),
            _ => address,
        };
        let (forgets, ignores) = (self.has(Fault::ForgetsToUnregister), self.has(Fault::IgnoresFailedUnregister));
        let (range, entry) = self.allocations.at(address.get())?;
        let was_mapped = entry.view.is_some();
        if !forgets {
            match Self::drop_view(platform, range, entry, &mut self.held) {
                Err(_) if ignores => {}
                other => other?,
            }
        }
        platform.free(address, Via::Rt)?;
        self.allocations.remove(address.get());
        if forgets && was_mapped {
            self.held.count -= 1;
            self.held.bytes -= range.bytes;
        }
        Ok(())
    }

    fn acquire(&mut self, platform: &mut Recorder, address: DeviceAddr, bytes: u64) -> Result<Acquired, SubjectError> {
        let (view, _) = self.view_of(platform, address, bytes)?;
        Ok(view.map_or(Acquired::DeviceCopies, Acquired::View))
    }

    fn read(&mut self, platform: &mut Recorder, address: DeviceAddr, into: &mut [u8]) -> Result<(), SubjectError> {
        let (view, device) = self.view_of(platform, address, into.len() as u64)?;
        match view {
            Some(view) => platform.load(view.get(), into),
            None => platform.copy_out(device, address.get(), into),
        }
    }

    fn write(&mut self, platform: &mut Recorder, address: DeviceAddr, from: &[u8]) -> Result<(), SubjectError> {
        let (view, device) = self.view_of(platform, address, from.len() as u64)?;
        match view {
            Some(_) if self.has(Fault::LosesWrites) => Ok(()),
            Some(view) => platform.store(view.get(), from),
            None => platform.copy_in(device, address.get(), from),
        }
    }

    fn held(&self) -> Held {
        self.held
    }

    fn finalize(&mut self, platform: &mut Recorder) -> Result<(), SubjectError> {
        self.finalized = true;
        let mut first = Ok(());
        for (range, entry) in self.allocations.iter_mut() {
            first = first.and(Self::drop_view(platform, range, entry, &mut self.held));
        }
        first
    }
}
