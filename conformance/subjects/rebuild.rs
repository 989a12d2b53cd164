//! The seed's alternative: a view for each access, nothing kept.
//!
//! Correct by construction, since no view lives long enough to outlive anything; and dear, since every access pays for a
//! registration and its end. Only a refused unregister keeps a view, which is tried again whenever the allocation is next
//! met.

use hostview_cache::{Held, Range, Table};
use hostview_sim::{DeviceAddr, HostAddr, PagePolicy};

use super::{Acquired, Subject, SubjectError};
use crate::recorder::PlatformTable;

#[derive(Debug)]
struct Entry {
    device: u32,
    open: Option<HostAddr>,
    /// How many of the views that were handed out are still in use.
    in_use: u32,
}

#[derive(Debug, Default)]
pub(super) struct Rebuild {
    allocations: Table<Entry>,
    finalized: bool,
}

impl Rebuild {
    /// Opens a view of the allocation that holds a range: where the range is in it.
    fn open(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<Option<HostAddr>, SubjectError> {
        if self.finalized {
            return Err(SubjectError::Refused("finalized".to_owned()));
        }
        let (range, entry) = self.allocations.find(address.get(), bytes)?;
        if entry.open.is_none() {
            entry.open = platform.register(entry.device, DeviceAddr::new(range.base), range.bytes).ok();
        }
        Ok(entry.open.map(|view| view.wrapping_add(address.get() - range.base)))
    }

    /// Closes every view that is not in use.
    fn close_unused(&mut self, platform: &mut dyn PlatformTable) {
        for (range, entry) in self.allocations.iter_mut().filter(|(_, entry)| entry.in_use == 0) {
            // A refusal leaves the view open: the allocation's free reports it.
            let _ = Self::close(platform, range, entry);
        }
    }

    fn close(platform: &mut dyn PlatformTable, range: Range, entry: &mut Entry) -> Result<(), SubjectError> {
        if entry.open.is_some() {
            platform.unregister(entry.device, DeviceAddr::new(range.base))?;
            entry.open = None;
            entry.in_use = 0;
        }
        Ok(())
    }
}

impl Subject for Rebuild {
    fn alloc(
        &mut self,
        platform: &mut dyn PlatformTable,
        device: u32,
        bytes: u64,
        policy: PagePolicy,
    ) -> Result<DeviceAddr, SubjectError> {
        if self.finalized {
            return Err(SubjectError::Refused("finalized".to_owned()));
        }
        let base = platform.alloc(device, bytes, policy)?;
        self.allocations.insert(Range { base: base.get(), bytes }, Entry { device, open: None, in_use: 0 })?;
        Ok(base)
    }

    fn free(&mut self, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError> {
        let (range, entry) = self.allocations.at(address.get())?;
        Self::close(platform, range, entry)?;
        platform.free(address)?;
        self.allocations.remove(address.get());
        Ok(())
    }

    fn acquire(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<Acquired, SubjectError> {
        let view = self.open(platform, address, bytes)?;
        if view.is_some() {
            self.allocations.find(address.get(), bytes)?.1.in_use += 1;
        }
        Ok(view.map_or(Acquired::DeviceCopies, Acquired::View))
    }

    fn release(&mut self, platform: &mut dyn PlatformTable, address: DeviceAddr) {
        if let Ok((_, entry)) = self.allocations.find(address.get(), 1) {
            entry.in_use = entry.in_use.saturating_sub(1);
        }
        self.close_unused(platform);
    }

    fn read(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        into: &mut [u8],
    ) -> Result<(), SubjectError> {
        let view = self.open(platform, address, into.len() as u64)?;
        let result = match view {
            Some(view) => platform.load(view, into),
            None => platform.copy_out(address, into),
        };
        self.close_unused(platform);
        result
    }

    fn write(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        from: &[u8],
    ) -> Result<(), SubjectError> {
        let view = self.open(platform, address, from.len() as u64)?;
        let result = match view {
            Some(view) => platform.store(view, from),
            None => platform.copy_in(address, from),
        };
        self.close_unused(platform);
        result
    }

    fn held(&self) -> Held {
        let open = self.allocations.iter().filter(|(_, entry)| entry.open.is_some());
        open.fold(Held::default(), |held, (range, _)| Held { count: held.count + 1, bytes: held.bytes + range.bytes })
    }

    fn finalize(&mut self, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
        self.finalized = true;
        self.allocations
            .iter_mut()
            .map(|(range, entry)| Self::close(platform, range, entry))
            .fold(Ok(()), std::result::Result::and)
    }
}
