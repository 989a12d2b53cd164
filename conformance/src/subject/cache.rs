//! The reference cache as a subject.

use hostview_cache::{Held, ViewCache};
use hostview_sim::{DeviceAddr, HostAddr, PagePolicy};

use super::{Acquired, Subject, SubjectError};
use crate::recorder::PlatformTable;

#[derive(Debug, Default)]
pub(super) struct CacheSubject(ViewCache);

impl Subject for CacheSubject {
    fn alloc(
        &mut self,
        platform: &mut dyn PlatformTable,
        device: u32,
        bytes: u64,
        policy: PagePolicy,
    ) -> Result<DeviceAddr, SubjectError> {
        let base = platform.alloc(device, bytes, policy)?;
        if let Err(refused) = self.0.track(device, base.get(), bytes) {
            platform.free(base)?;
            return Err(refused.into());
        }
        Ok(base)
    }

    fn free(&mut self, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError> {
        Ok(self.0.release(platform, address.get(), |platform| platform.free(address))?)
    }

    fn acquire(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<Acquired, SubjectError> {
        let view = self.0.acquire(platform, address.get(), bytes)?;
        Ok(view.map_or(Acquired::DeviceCopies, |view| Acquired::View(HostAddr::new(view))))
    }

    fn read(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        into: &mut [u8],
    ) -> Result<(), SubjectError> {
        Ok(self.0.read(platform, address.get(), into)?)
    }

    fn write(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        from: &[u8],
    ) -> Result<(), SubjectError> {
        Ok(self.0.write(platform, address.get(), from)?)
    }

    fn held(&self) -> Held {
        self.0.held()
    }

    fn finalize(&mut self, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
        Ok(self.0.finalize(platform)?)
    }
}
