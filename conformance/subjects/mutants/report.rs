//! Faults of the report of what is held.

use hostview_cache::{Held, Range};
use hostview_sim::{DeviceAddr, HostAddr};

use super::base::{Cache, Found};
use super::{Part, Planted};
use crate::plant::plant;
use crate::recorder::PlatformTable;
use crate::subject::SubjectError;

plant! {
    /// Every acquire counts.
    "counts-twice" CountsTwice {
        fn open(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            (range, entry): Found,
            asked: (DeviceAddr, u64),
        ) -> Result<Option<HostAddr>, SubjectError> {
            if entry.view.is_some() {
                self.count(&mut cache.state().held, range);
            }
            super::base::open(self, cache, platform, (range, entry), asked)
        }
    }

    /// Bytes are counted by whole pages.
    "counts-whole-pages" CountsWholePages {
        fn count(&self, held: &mut Held, range: Range) {
            held.count += 1;
            held.bytes += range.bytes.next_multiple_of(4096);
        }
        fn uncount(&self, held: &mut Held, range: Range) {
            held.count -= 1;
            held.bytes -= range.bytes.next_multiple_of(4096);
        }
    }

    /// The bytes of a view that goes are not taken off.
    "keeps-the-bytes-of-what-went" KeepsTheBytes {
        fn uncount(&self, held: &mut Held, _: Range) {
            held.count -= 1;
        }
    }

    /// What is reported is what is allocated, mapped or not.
    "reports-what-is-allocated" ReportsWhatIsAllocated {
        fn held(&self, cache: &Cache) -> Held {
            let ranges = cache.ranges();
            Held { count: ranges.len() as u64, bytes: ranges.iter().map(|range| range.bytes).sum() }
        }
    }
}
