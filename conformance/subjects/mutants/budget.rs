//! Faults of a cache with a budget.

use hostview_cache::{Held, Range};

use super::base::{Cache, budgeted};
use super::{Part, Planted};
use crate::plant::plant;
use crate::recorder::PlatformTable;
use crate::subject::{SubjectError, SubjectInfo};

plant! {
    /// The view of what is in use is taken for a new one.
    "evicts-a-view-in-use" EvictsInUse {
        fn info(&self) -> SubjectInfo {
            budgeted()
        }
        fn victim(&self, cache: &Cache) -> Option<Range> {
            let state = cache.state();
            let open = state.allocations.iter().filter(|(_, entry)| entry.view.is_some());
            open.min_by_key(|(_, entry)| entry.used).map(|(range, _)| range)
        }
    }

    /// The budget is looked at before the new view is added: it is passed by one allocation.
    "passes-the-budget-by-one" PassesTheBudget {
        fn info(&self) -> SubjectInfo {
            budgeted()
        }
        fn fits(&self, held: Held, _: u64, budget: u64) -> bool {
            held.bytes <= budget
        }
    }

    /// Room is made after the new view was mapped.
    "makes-room-too-late" MakesRoomTooLate {
        fn info(&self) -> SubjectInfo {
            budgeted()
        }
        fn make_room(&self, _: &Cache, _: &mut dyn PlatformTable, bytes: u64) -> bool {
            self.info().budget.is_some_and(|budget| bytes <= budget)
        }
        fn acquire(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: hostview_sim::DeviceAddr,
            bytes: u64,
        ) -> Result<Option<hostview_sim::HostAddr>, SubjectError> {
            let view = self.view(cache, platform, address, bytes)?;
            if view.is_some() {
                cache.change(address, |entry| entry.in_use += 1);
            }
            super::base::make_room(self, cache, platform, 0);
            Ok(view)
        }
    }

    /// An eviction that the platform refused is taken for one that it did.
    "counts-a-failed-eviction" CountsAFailedEviction {
        fn info(&self) -> SubjectInfo {
            budgeted()
        }
        fn evict(&self, cache: &Cache, platform: &mut dyn PlatformTable, victim: Range) -> Result<(), SubjectError> {
            if self.close(cache, platform, victim).is_err() {
                self.closed(cache, victim);
            }
            Ok(())
        }
    }

    /// An evicted view stays in its record, and is handed out again.
    "keeps-the-view-of-what-it-evicts" KeepsEvictedViews {
        fn info(&self) -> SubjectInfo {
            budgeted()
        }
        fn evict(&self, cache: &Cache, platform: &mut dyn PlatformTable, victim: Range) -> Result<(), SubjectError> {
            let view = cache.entry(victim.base).and_then(|entry| entry.view);
            self.close(cache, platform, victim)?;
            cache.set_view(victim, view);
            Ok(())
        }
    }
}
