//! The seed's alternative: a view for each access, nothing kept.
//!
//! Correct by construction, since no view lives long enough to outlive anything; and dear, since every access pays for a
//! registration and its end. Only a refused unregister keeps a view, which is tried again whenever the allocation is next
//! met.

use hostview_cache::{Held, Platform as _, Range, Table};
use hostview_sim::{DeviceAddr, HostAddr, PagePolicy};

use super::{Acquired, Subject, SubjectError};
use crate::case::Via;
use crate::recorder::Recorder;

#[derive(Debug)]
struct Entry {
    device: u32,
    open: Option<HostAddr>,
}

#[derive(Debug, Default)]
pub(super) struct Rebuild {
    allocations: Table<Entry>,
    finalized: bool,
}

impl Rebuild {
    /// Opens a view of the allocation that holds a range: where the range is in it, and the device.
    fn open(
        &mut self,
        platform: &mut Recorder,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<(Option<HostAddr>, u32), SubjectError> {
        if self.finalized {
            return Err(SubjectError::Refused("finalized".to_owned()));
        }
        let (range, entry) = self.allocations.find(address.get(), bytes)?;
        if entry.open.is_none() {
            entry.open = platform.register(entry.device, DeviceAddr::new(range.base), range.bytes).ok();
        }
        Ok((entry.open.map(|view| view.wrapping_add(address.get() - range.base)), entry.device))
    }

    fn close(platform: &mut Recorder, range: Range, entry: &mut Entry) -> Result<(), SubjectError> {
        if entry.open.is_some() {
            platform.unregister(entry.device, DeviceAddr::new(range.base))?;
            entry.open = None;
        }
        Ok(())
    }
}

impl Subject for Rebuild {
    fn alloc(
        &mut self,
        platform: &mut Recorder,
        device: u32,
        bytes: u64,
        policy: PagePolicy,
    ) -> Result<DeviceAddr, SubjectError> {
        if self.finalized {
            return Err(SubjectError::Refused("finalized".to_owned()));
        }
        let base = platform.alloc(device, bytes, policy, Via::Rt)?;
        self.allocations.insert(Range { base: base.get(), bytes }, Entry { device, open: None })?;
        Ok(base)
    }

    fn free(&mut self, platform: &mut Recorder, address: DeviceAddr) -> Result<(), SubjectError> {
        let (range, entry) = self.allocations.at(address.get())?;
        Self::close(platform, range, entry)?;
        platform.free(address, Via::Rt)?;
        self.allocations.remove(address.get());
        Ok(())
    }

    fn acquire(&mut self, platform: &mut Recorder, address: DeviceAddr, bytes: u64) -> Result<Acquired, SubjectError> {
        let (view, _) = self.open(platform, address, bytes)?;
        Ok(view.map_or(Acquired::DeviceCopies, Acquired::View))
    }

    fn end_access(&mut self, platform: &mut Recorder) {
        for (range, entry) in self.allocations.iter_mut() {
            // A refusal leaves the view open: the allocation's free reports it.
            let _ = Self::close(platform, range, entry);
        }
    }

    fn read(&mut self, platform: &mut Recorder, address: DeviceAddr, into: &mut [u8]) -> Result<(), SubjectError> {
        let (view, device) = self.open(platform, address, into.len() as u64)?;
        let result = match view {
            Some(view) => platform.load(view.get(), into),
            None => platform.copy_out(device, address.get(), into),
        };
        self.end_access(platform);
        result
    }

    fn write(&mut self, platform: &mut Recorder, address: DeviceAddr, from: &[u8]) -> Result<(), SubjectError> {
        let (view, device) = self.open(platform, address, from.len() as u64)?;
        let result = match view {
            Some(view) => platform.store(view.get(), from),
            None => platform.copy_in(device, address.get(), from),
        };
        self.end_access(platform);
        result
    }

    fn held(&self) -> Held {
        let open = self.allocations.iter().filter(|(_, entry)| entry.open.is_some());
        open.fold(Held::default(), |held, (range, _)| Held { count: held.count + 1, bytes: held.bytes + range.bytes })
    }

    fn finalize(&mut self, platform: &mut Recorder) -> Result<(), SubjectError> {
        self.finalized = true;
        self.allocations
            .iter_mut()
            .map(|(range, entry)| Self::close(platform, range, entry))
            .fold(Ok(()), std::result::Result::and)
    }
}
