//! A cache with the field's commonest fault, planted: a free drops the record and forgets to unregister.

use hostview_cache::{Held, ViewCache};
use hostview_sim::{DeviceAddr, HostAddr, PagePolicy};

use super::{Acquired, Subject, SubjectError};
use crate::case::Via;
use crate::recorder::Recorder;

#[derive(Debug, Default)]
pub(super) struct Leaky {
    caches: Vec<(DeviceAddr, u64, ViewCache)>,
    finalized: bool,
}

impl Leaky {
    /// One cache for each allocation, so that a record can be dropped without the cache's noticing.
    fn holding(&mut self, address: DeviceAddr) -> Result<&mut ViewCache, SubjectError> {
        if self.finalized {
            return Err(SubjectError::Refused("finalized".to_owned()));
        }
        let found = self.caches.iter_mut().find(|(base, bytes, _)| {
            address.offset_from(*base).is_some_and(|offset| offset < *bytes) && address != DeviceAddr::NULL
        });
        found.map(|(_, _, cache)| cache).ok_or_else(|| SubjectError::Refused("no such allocation".to_owned()))
    }
}

impl Subject for Leaky {
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
        let mut cache = ViewCache::new();
        cache.track(device, base.get(), bytes)?;
        self.caches.push((base, bytes, cache));
        Ok(base)
    }

    fn free(&mut self, platform: &mut Recorder, address: DeviceAddr) -> Result<(), SubjectError> {
        let Some(at) = self.caches.iter().position(|(base, ..)| *base == address) else {
            return Err(SubjectError::Refused("no such allocation".to_owned()));
        };
        platform.free(address, Via::Rt)?;
        // Here a cache would have had to unregister, and before the free.
        self.caches.remove(at);
        Ok(())
    }

    fn acquire(&mut self, platform: &mut Recorder, address: DeviceAddr, bytes: u64) -> Result<Acquired, SubjectError> {
        let view = self.holding(address)?.acquire(platform, address.get(), bytes)?;
        Ok(view.map_or(Acquired::DeviceCopies, |view| Acquired::View(HostAddr::new(view))))
    }

    fn read(&mut self, platform: &mut Recorder, address: DeviceAddr, into: &mut [u8]) -> Result<(), SubjectError> {
        Ok(self.holding(address)?.read(platform, address.get(), into)?)
    }

    fn write(&mut self, platform: &mut Recorder, address: DeviceAddr, from: &[u8]) -> Result<(), SubjectError> {
        Ok(self.holding(address)?.write(platform, address.get(), from)?)
    }

    fn held(&self) -> Held {
        self.caches
            .iter()
            .map(|(_, _, cache)| cache.held())
            .fold(Held::default(), |sum, held| Held { count: sum.count + held.count, bytes: sum.bytes + held.bytes })
    }

    fn finalize(&mut self, platform: &mut Recorder) -> Result<(), SubjectError> {
        self.finalized = true;
        for (_, _, cache) in &mut self.caches {
            cache.finalize(platform)?;
        }
        Ok(())
    }
}
