//! Faults of a registration: when, what, for whom, and what becomes of a refusal.

use hostview_cache::Range;
use hostview_sim::{DeviceAddr, HostAddr, PagePolicy};

use super::base::{Cache, Found};
use super::{Part, Planted};
use crate::plant::plant;
use crate::recorder::PlatformTable;
use crate::subject::SubjectError;

plant! {
    /// Every access registers, whatever is mapped already.
    "registers-per-access", "hw-native-sys/simpler#1848", RegistersPerAccess {
        fn open(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            (range, entry): Found,
            asked: (DeviceAddr, u64),
        ) -> Result<Option<HostAddr>, SubjectError> {
            match self.register(cache, platform, (range, entry), asked) {
                Ok(view) => {
                    self.opened(cache, range, view);
                    Ok(Some(view))
                }
                Err(_) => Ok(entry.view),
            }
        }
    }

    /// The range that was asked for is registered, and not the allocation.
    "registers-the-range" RegistersTheRange {
        fn register(
            &self,
            _: &Cache,
            platform: &mut dyn PlatformTable,
            (range, entry): Found,
            (address, bytes): (DeviceAddr, u64),
        ) -> Result<HostAddr, SubjectError> {
            let view = platform.register(entry.device, address, bytes)?;
            Ok(HostAddr::new(view.get() - (address.get() - range.base)))
        }
    }

    /// The page that was asked for is registered, and not the allocation.
    "registers-the-page" RegistersThePage {
        fn register(
            &self,
            _: &Cache,
            platform: &mut dyn PlatformTable,
            (range, entry): Found,
            (address, _): (DeviceAddr, u64),
        ) -> Result<HostAddr, SubjectError> {
            let page = (address.get() - range.base) & !4095;
            let view = platform.register(entry.device, DeviceAddr::new(range.base + page), 4096)?;
            Ok(HostAddr::new(view.get() - page))
        }
    }

    /// Pages are counted one too many where the size fills them exactly.
    "one-page-too-many" OnePageTooMany {
        fn register(
            &self,
            _: &Cache,
            platform: &mut dyn PlatformTable,
            (range, entry): Found,
            _: (DeviceAddr, u64),
        ) -> Result<HostAddr, SubjectError> {
            let more = if range.bytes.is_multiple_of(4096) && range.bytes < 65_536 { 4096 } else { 0 };
            platform.register(entry.device, DeviceAddr::new(range.base), range.bytes + more)
        }
    }

    /// An allocation of exactly 2 MiB is taken for two huge pages.
    "one-huge-page-too-many" OneHugePageTooMany {
        fn register(
            &self,
            _: &Cache,
            platform: &mut dyn PlatformTable,
            (range, entry): Found,
            _: (DeviceAddr, u64),
        ) -> Result<HostAddr, SubjectError> {
            let bytes = if range.bytes == 2 << 20 { 4 << 20 } else { range.bytes };
            platform.register(entry.device, DeviceAddr::new(range.base), bytes)
        }
    }

    /// A size is kept in 32 bits: what is asked for over 512 MiB is registered in part.
    "cuts-the-size" CutsTheSize {
        fn register(
            &self,
            _: &Cache,
            platform: &mut dyn PlatformTable,
            (range, entry): Found,
            _: (DeviceAddr, u64),
        ) -> Result<HostAddr, SubjectError> {
            platform.register(entry.device, DeviceAddr::new(range.base), range.bytes.min(512 << 20))
        }
    }

    /// Every allocation is registered at once.
    "registers-unasked", "hw-native-sys/simpler#1848", RegistersUnasked {
        fn allocated(&self, cache: &Cache, platform: &mut dyn PlatformTable, base: DeviceAddr) {
            let _ = self.view(cache, platform, base, 1);
        }
    }

    /// The first access registers whatever is allocated.
    "registers-everything" RegistersEverything {
        fn acquire(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
            bytes: u64,
        ) -> Result<Option<HostAddr>, SubjectError> {
            let view = self.view(cache, platform, address, bytes)?;
            for range in cache.ranges() {
                let _ = self.view(cache, platform, DeviceAddr::new(range.base), 1);
            }
            Ok(view)
        }
    }

    /// A refused registration fails the access.
    "fails-on-a-refusal", "hw-native-sys/simpler#1531", FailsOnRefusal {
        fn refused(
            &self,
            _: &Cache,
            _: &mut dyn PlatformTable,
            _: Range,
            error: SubjectError,
        ) -> Result<Option<HostAddr>, SubjectError> {
            Err(error)
        }
    }

    /// A refused registration is counted, and the count not rolled back.
    "counts-a-refusal" CountsARefusal {
        fn refused(
            &self,
            cache: &Cache,
            _: &mut dyn PlatformTable,
            range: Range,
            _: SubjectError,
        ) -> Result<Option<HostAddr>, SubjectError> {
            self.count(&mut cache.state().held, range);
            Ok(None)
        }
    }

    /// A refused registration is taken for a view at the device address itself.
    "takes-a-refusal-for-a-view" TakesARefusalForAView {
        fn refused(
            &self,
            _: &Cache,
            _: &mut dyn PlatformTable,
            range: Range,
            _: SubjectError,
        ) -> Result<Option<HostAddr>, SubjectError> {
            Ok(Some(HostAddr::new(range.base)))
        }
    }

    /// A refusal is remembered for the address, whoever has it next.
    "remembers-a-refusal", "hw-native-sys/simpler#1531", RemembersARefusal {
        fn open(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            found: Found,
            asked: (DeviceAddr, u64),
        ) -> Result<Option<HostAddr>, SubjectError> {
            if cache.state().odd.addresses.contains(&found.0.base) {
                return Ok(None);
            }
            super::base::open(self, cache, platform, found, asked)
        }
        fn refused(
            &self,
            cache: &Cache,
            _: &mut dyn PlatformTable,
            range: Range,
            _: SubjectError,
        ) -> Result<Option<HostAddr>, SubjectError> {
            cache.state().odd.addresses.insert(range.base);
            Ok(None)
        }
    }

    /// A refused registration is asked for again until it is granted.
    "asks-until-it-is-granted" AsksUntilGranted {
        fn refused(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            range: Range,
            error: SubjectError,
        ) -> Result<Option<HostAddr>, SubjectError> {
            let Some(entry) = cache.entry(range.base) else { return Err(error) };
            loop {
                if let Ok(view) = platform.register(entry.device, DeviceAddr::new(range.base), range.bytes) {
                    self.opened(cache, range, view);
                    return Ok(Some(view));
                }
            }
        }
    }

    /// Everything is registered for device 0.
    "ignores-the-device" IgnoresTheDevice {
        fn register(
            &self,
            _: &Cache,
            platform: &mut dyn PlatformTable,
            (range, _): Found,
            _: (DeviceAddr, u64),
        ) -> Result<HostAddr, SubjectError> {
            platform.register(0, DeviceAddr::new(range.base), range.bytes)
        }
    }

    /// Everything is registered for the device of the last allocation.
    "registers-for-the-last-device" RegistersForTheLastDevice {
        fn register(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            (range, entry): Found,
            _: (DeviceAddr, u64),
        ) -> Result<HostAddr, SubjectError> {
            let last = cache.ranges().last().and_then(|last| cache.entry(last.base)).map(|last| last.device);
            platform.register(last.unwrap_or(entry.device), DeviceAddr::new(range.base), range.bytes)
        }
    }

    /// Memory is allocated on device 0, whichever is asked for.
    "allocates-on-device-0" AllocatesOnDevice0 {
        fn alloc(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            device: u32,
            bytes: u64,
            policy: PagePolicy,
        ) -> Result<DeviceAddr, SubjectError> {
            super::base::alloc(self, cache, platform, (0, device), bytes, policy)
        }
    }
}
