//! Faults of a free.

use hostview_cache::{Range, RangeError};
use hostview_sim::DeviceAddr;

use super::base::{Cache, Found};
use super::{Part, Planted};
use crate::plant::plant;
use crate::recorder::PlatformTable;
use crate::subject::SubjectError;

plant! {
    /// A free drops the record and forgets to unregister.
    "leaky", "hw-native-sys/simpler#2205", ForgetsUnregister {
        fn close(&self, cache: &Cache, _: &mut dyn PlatformTable, range: Range) -> Result<(), SubjectError> {
            if cache.entry(range.base).is_some_and(|entry| entry.view.is_some()) {
                self.closed(cache, range);
            }
            Ok(())
        }
    }

    /// The memory is freed first and unregistered then: a block that the driver caches stays registered until then.
    "unregisters-after-free", "hw-native-sys/simpler#2212", UnregistersAfterFree {
        fn free(&self, cache: &Cache, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError> {
            let (range, _) = self.freed(cache, platform, address)?;
            self.free_memory(cache, platform, range)?;
            self.close(cache, platform, range)?;
            self.forget(cache, range);
            Ok(())
        }
    }

    /// A failed unregister is ignored, and the memory freed.
    "ignores-failed-unregister", "hw-native-sys/simpler#2212", IgnoresFailedUnregister {
        fn close(&self, cache: &Cache, platform: &mut dyn PlatformTable, range: Range) -> Result<(), SubjectError> {
            if let Some(entry) = cache.entry(range.base).filter(|entry| entry.view.is_some()) {
                let _ = self.unregister(platform, entry.device, range);
                self.closed(cache, range);
            }
            Ok(())
        }
    }

    /// A free whose unregister fails keeps everything, and reports success.
    "reports-success-for-a-failed-free" ReportsSuccess {
        fn free(&self, cache: &Cache, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError> {
            let (range, _) = self.freed(cache, platform, address)?;
            if self.close(cache, platform, range).is_err() {
                return Ok(());
            }
            self.free_memory(cache, platform, range)?;
            self.forget(cache, range);
            Ok(())
        }
    }

    /// The platform's error number is swallowed: a failed unregister is reported as the cache's own refusal.
    "swallows-the-error-number" SwallowsTheNumber {
        fn unregister(&self, platform: &mut dyn PlatformTable, device: u32, range: Range) -> Result<(), SubjectError> {
            platform
                .unregister(device, DeviceAddr::new(range.base))
                .map_err(|_| SubjectError::Refused("unregister failed".to_owned()))
        }
    }

    /// A failed unregister drops the record: the mapping is nobody's from then on.
    "drops-the-record-on-failure" DropsTheRecord {
        fn close(&self, cache: &Cache, platform: &mut dyn PlatformTable, range: Range) -> Result<(), SubjectError> {
            let Some(entry) = cache.entry(range.base).filter(|entry| entry.view.is_some()) else { return Ok(()) };
            self.closed(cache, range);
            self.unregister(platform, entry.device, range)
        }
    }

    /// A failed unregister is tried again, for ever.
    "retries-unregister-for-ever" RetriesForEver {
        fn unregister(&self, platform: &mut dyn PlatformTable, device: u32, range: Range) -> Result<(), SubjectError> {
            while platform.unregister(device, DeviceAddr::new(range.base)).is_err() {}
            Ok(())
        }
    }

    /// One free drops every view.
    "drops-all-views-on-one-free" DropsAll {
        fn freed(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
        ) -> Result<Found, SubjectError> {
            let found = cache.at(address)?;
            for range in cache.ranges() {
                self.close(cache, platform, range)?;
            }
            Ok(found)
        }
    }

    /// A free drops the view of the next allocation as well.
    "drops-the-neighbours-view" DropsTheNeighbour {
        fn freed(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
        ) -> Result<Found, SubjectError> {
            let found = cache.at(address)?;
            if let Some(next) = cache.ranges().into_iter().find(|range| range.base > found.0.base) {
                self.close(cache, platform, next)?;
            }
            Ok(found)
        }
    }

    /// A free unregisters its neighbour in its place.
    "unregisters-the-neighbour" UnregistersTheNeighbour {
        fn close(&self, cache: &Cache, platform: &mut dyn PlatformTable, range: Range) -> Result<(), SubjectError> {
            let Some(entry) = cache.entry(range.base).filter(|entry| entry.view.is_some()) else { return Ok(()) };
            let other = cache.ranges().into_iter().find(|other| {
                other.base > range.base && cache.entry(other.base).is_some_and(|entry| entry.view.is_some())
            });
            self.unregister(platform, entry.device, other.unwrap_or(range))?;
            self.closed(cache, range);
            Ok(())
        }
    }

    /// The record goes before the memory: when the platform refuses the free, the allocation is nobody's.
    "forgets-before-it-frees" ForgetsFirst {
        fn free_memory(&self, cache: &Cache, platform: &mut dyn PlatformTable, range: Range) -> Result<(), SubjectError> {
            self.forget(cache, range);
            platform.free(DeviceAddr::new(range.base))
        }
    }

    /// A free of an interior address frees the allocation around it.
    "frees-from-inside" FreesFromInside {
        fn freed(
            &self,
            cache: &Cache,
            _: &mut dyn PlatformTable,
            address: DeviceAddr,
        ) -> Result<Found, SubjectError> {
            Ok(cache.find(address, 1)?)
        }
    }

    /// A double free is reported as a success.
    "a-double-free-succeeds" DoubleFreeSucceeds {
        fn free(&self, cache: &Cache, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError> {
            let range = match self.freed(cache, platform, address) {
                Ok((range, _)) => range,
                Err(_) if cache.state().odd.addresses.contains(&address.get()) => return Ok(()),
                Err(error) => return Err(error),
            };
            self.close(cache, platform, range)?;
            self.free_memory(cache, platform, range)?;
            self.forget(cache, range);
            cache.state().odd.addresses.insert(range.base);
            Ok(())
        }
    }

    /// A free of null is reported as a success, as free() of the C library would.
    "frees-null" FreesNull {
        fn free(&self, cache: &Cache, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError> {
            if address == DeviceAddr::NULL {
                return Ok(());
            }
            let (range, _) = self.freed(cache, platform, address)?;
            self.close(cache, platform, range)?;
            self.free_memory(cache, platform, range)?;
            self.forget(cache, range);
            Ok(())
        }
    }

    /// A free of what it does not know drops every view, to be on the safe side.
    "a-wrong-free-drops-all-views" WrongFreeDropsAll {
        fn freed(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
        ) -> Result<Found, SubjectError> {
            let found = cache.at(address);
            if found.is_err() {
                for range in cache.ranges() {
                    self.close(cache, platform, range)?;
                }
            }
            Ok(found?)
        }
    }

    /// A failed allocation is reported as the last one that did not fail.
    "hides-a-failed-allocation" HidesFailedAllocation {
        fn track(&self, cache: &Cache, range: Range, device: u32) -> Result<(), RangeError> {
            cache.state().odd.last = Some(DeviceAddr::new(range.base));
            super::base::track(cache, range, device)
        }
        fn alloc_failed(
            &self,
            cache: &Cache,
            _: &mut dyn PlatformTable,
            error: SubjectError,
        ) -> Result<DeviceAddr, SubjectError> {
            cache.state().odd.last.ok_or(error)
        }
    }

    /// A failed allocation leaves its count behind.
    "leaks-on-a-failed-allocation" LeaksOnFailure {
        fn alloc_failed(
            &self,
            cache: &Cache,
            _: &mut dyn PlatformTable,
            error: SubjectError,
        ) -> Result<DeviceAddr, SubjectError> {
            cache.state().held.count += 1;
            Err(error)
        }
    }

    /// Out of memory, it drops the views that are not in use, and fails all the same.
    "drops-idle-views-out-of-memory" DropsIdleOutOfMemory {
        fn alloc_failed(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            error: SubjectError,
        ) -> Result<DeviceAddr, SubjectError> {
            let idle = |range: &Range| cache.entry(range.base).is_some_and(|entry| entry.in_use == 0);
            for range in cache.ranges().into_iter().filter(idle) {
                self.close(cache, platform, range)?;
            }
            Err(error)
        }
    }

    /// Out of memory, it drops every view to make room, and fails all the same.
    "drops-all-views-out-of-memory" DropsAllOutOfMemory {
        fn alloc_failed(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            error: SubjectError,
        ) -> Result<DeviceAddr, SubjectError> {
            for range in cache.ranges() {
                self.close(cache, platform, range)?;
            }
            Err(error)
        }
    }
}
