//! Locks that are missing: one mutant for each window in which another thread can come between.

use hostview_cache::{Held, Range};
use hostview_sim::{DeviceAddr, HostAddr};

use super::base::{Cache, Call, Found, thread_safe};
use super::{Part, Planted};
use crate::plant::plant;
use crate::recorder::PlatformTable;
use crate::subject::{SubjectError, SubjectInfo};

plant! {
    /// acquire takes no lock: between its look and its registration another thread frees or registers.
    "acquire-takes-no-lock" AcquireTakesNoLock {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn locks(&self, call: Call) -> bool {
            call != Call::Acquire
        }
    }

    /// free takes no lock: between its unregister and its free another thread registers.
    "free-takes-no-lock" FreeTakesNoLock {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn locks(&self, call: Call) -> bool {
            call != Call::Free
        }
    }

    /// read takes no lock: what it reads through goes meanwhile.
    "read-takes-no-lock" ReadTakesNoLock {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn locks(&self, call: Call) -> bool {
            call != Call::Read
        }
    }

    /// write takes no lock: what it writes through goes meanwhile.
    "write-takes-no-lock" WriteTakesNoLock {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn locks(&self, call: Call) -> bool {
            call != Call::Write
        }
    }

    /// finalize takes no lock: what is mapped while it works stays mapped.
    "finalize-takes-no-lock" FinalizeTakesNoLock {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn locks(&self, call: Call) -> bool {
            call != Call::Finalize
        }
    }

    /// alloc takes no lock: it is given an address whose last owner is still in the records.
    "alloc-takes-no-lock" AllocTakesNoLock {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn locks(&self, call: Call) -> bool {
            call != Call::Alloc
        }
    }

    /// The lock is let go while the platform registers, and nothing is looked at again afterwards.
    "lets-the-lock-go-to-register" LetsGoToRegister {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn register(
            &self,
            _: &Cache,
            platform: &mut dyn PlatformTable,
            (range, entry): Found,
            _: (DeviceAddr, u64),
        ) -> Result<HostAddr, SubjectError> {
            platform.leave();
            let view = platform.register(entry.device, DeviceAddr::new(range.base), range.bytes);
            platform.enter();
            view
        }
    }

    /// The lock is let go while the platform frees.
    "lets-the-lock-go-to-free" LetsGoToFree {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn free_memory(&self, _: &Cache, platform: &mut dyn PlatformTable, range: Range) -> Result<(), SubjectError> {
            platform.leave();
            let done = platform.free(DeviceAddr::new(range.base));
            platform.enter();
            done
        }
    }

    /// What is held is read before the platform is called and written back after it: a count in between is lost.
    "loses-a-count" LosesACount {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn close(&self, cache: &Cache, platform: &mut dyn PlatformTable, range: Range) -> Result<(), SubjectError> {
            let Some(entry) = cache.entry(range.base).filter(|entry| entry.view.is_some()) else { return Ok(()) };
            let mut held: Held = cache.state().held;
            platform.leave();
            self.unregister(platform, entry.device, range)?;
            platform.enter();
            cache.set_view(range, None);
            self.uncount(&mut held, range);
            cache.state().held = held;
            Ok(())
        }
    }

    /// finalize takes the lock that it has already, and waits for itself.
    "waits-for-itself" WaitsForItself {
        fn info(&self) -> SubjectInfo {
            thread_safe()
        }
        fn finalize(&self, cache: &Cache, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
            // The lock is not recursive, and finalize has it.
            platform.enter();
            let done = super::base::finalize(self, cache, platform);
            platform.leave();
            done
        }
    }
}
