//! Faults of the end.

use hostview_sim::{DeviceAddr, HostAddr};

use super::base::Cache;
use super::{Part, Planted};
use crate::plant::plant;
use crate::recorder::PlatformTable;
use crate::subject::SubjectError;

plant! {
    /// finalize leaves the door open: what is acquired then is handed out.
    "hands-out-after-finalize" HandsOutAfterFinalize {
        fn view(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
            bytes: u64,
        ) -> Result<Option<HostAddr>, SubjectError> {
            let finalized = std::mem::take(&mut cache.state().finalized);
            let view = super::base::view(self, cache, platform, address, bytes);
            cache.state().finalized = finalized;
            view
        }
    }

    /// finalize frees each allocation as it goes, before the views of the others are released.
    "finalize-frees-as-it-goes", "hw-native-sys/simpler#2212", FinalizeFrees {
        fn finalize(&self, cache: &Cache, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
            cache.state().finalized = true;
            for range in cache.ranges() {
                self.close(cache, platform, range)?;
                self.free_memory(cache, platform, range)?;
            }
            Ok(())
        }
    }

    /// finalize drops every other view.
    "finalize-drops-half" FinalizeDropsHalf {
        fn finalize(&self, cache: &Cache, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
            cache.state().finalized = true;
            let mut first = Ok(());
            for range in cache.ranges().into_iter().step_by(2) {
                first = first.and(self.close(cache, platform, range));
            }
            first
        }
    }

    /// finalize closes the door and keeps the views.
    "finalize-drops-nothing" FinalizeDropsNothing {
        fn finalize(&self, cache: &Cache, _: &mut dyn PlatformTable) -> Result<(), SubjectError> {
            cache.state().finalized = true;
            Ok(())
        }
    }

    /// finalize stops at the first view that it cannot drop.
    "finalize-stops-at-a-failure" FinalizeStops {
        fn finalize(&self, cache: &Cache, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
            cache.state().finalized = true;
            for range in cache.ranges() {
                self.close(cache, platform, range)?;
            }
            Ok(())
        }
    }

    /// finalize reports success, whatever failed.
    "finalize-hides-a-failure" FinalizeHidesFailure {
        fn finalize(&self, cache: &Cache, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
            cache.state().finalized = true;
            for range in cache.ranges() {
                let _ = self.close(cache, platform, range);
            }
            Ok(())
        }
    }

    /// A second finalize unregisters once more.
    "finalize-twice-unregisters-twice" FinalizeTwice {
        fn finalize(&self, cache: &Cache, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
            cache.state().finalized = true;
            let mut first = Ok(());
            for range in cache.ranges() {
                let Some(entry) = cache.entry(range.base) else { continue };
                if entry.view.is_some() {
                    first = first.and(self.close(cache, platform, range));
                    cache.state().odd.addresses.insert(range.base);
                } else if cache.state().odd.addresses.contains(&range.base) {
                    first = first.and(self.unregister(platform, entry.device, range));
                }
            }
            first
        }
    }

    /// A second finalize is refused.
    "a-second-finalize-fails" SecondFinalizeFails {
        fn finalize(&self, cache: &Cache, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
            if cache.state().finalized {
                return Err(SubjectError::Refused("finalized".to_owned()));
            }
            super::base::finalize(self, cache, platform)
        }
    }
}
