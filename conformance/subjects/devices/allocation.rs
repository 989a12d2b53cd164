//! Faults of the allocator: its cache of freed blocks, its refusals, its page policy.

use hostview_sim::{AclError, DeviceAddr, DrvError, HostAddr, PageKind, PagePolicy, RegisterCall};

use super::base::{Device, Freed, Wanted, as_another, range_of};
use super::{Part, Planted};
use crate::case::Via;
use crate::code::ErrorCode;
use crate::plant::plant;
use crate::platform::Platform as _;

plant! {
    /// The cache is emptied on free: a freed block's registrations end with it.
    "empties-the-cache-on-free" EmptiesTheCache {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            let allocation = device.allocation_from(address);
            device.sim.free(address, via)?;
            if let Some(allocation) = allocation {
                device.unregister_all(&range_of(&allocation));
            }
            Ok(())
        }
    }

    /// A freed block's bytes are cleared.
    "clears-on-free" ClearsOnFree {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            let allocation = device.allocation_from(address);
            device.sim.free(address, via)?;
            if allocation.is_some() {
                // A block that the kernel has back has nothing to clear.
                let _ = device.sim.copy_in(address, &[0; 64]);
            }
            Ok(())
        }
    }

    /// A registered block is not freed, however small.
    "busy-however-small", "how v3 does it", BusyHoweverSmall {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            if via != Via::Acl && device.registration_at(address).is_some() {
                return Err(DrvError::Busy.into());
            }
            device.sim.free(address, via)
        }
    }

    /// A freed block's address is not handed out again while the registration lives.
    "reuses-no-registered-block" ReusesNoRegisteredBlock {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            let registered = device.freed_bases(|freed| freed.registered);
            device.alloc_where(wanted, |address| !registered.contains(&address))
        }
    }

    /// A freed block goes to the back of the queue.
    "reuses-the-block-behind" ReusesTheBlockBehind {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            let unregistered = device.freed_bases(|freed| !freed.registered);
            device.alloc_where(wanted, |address| !unregistered.contains(&address))
        }
    }

    /// A freed block of more than three pages, and under 1 MiB, is not handed out again.
    "reuses-a-few-pages-alone" ReusesAFewPagesAlone {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            let page = device.profile().device.page_size.bytes();
            let left = device.freed_bases(|freed| !freed.registered && freed.size > 3 * page && freed.size < 1 << 20);
            if wanted.bytes <= 3 * page {
                return device.alloc_soundly(wanted);
            }
            device.alloc_where(wanted, |address| !left.contains(&address))
        }
    }

    /// The first idle block that is large enough is taken, and not the one that fits best.
    "first-fit" FirstFit {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            let Some(lowest) = device.freed.iter().map(|freed| freed.base).min() else {
                return device.alloc_soundly(wanted);
            };
            device.alloc_where(wanted, |address| address <= lowest).or_else(|_| device.alloc_soundly(wanted))
        }
    }

    /// Of idle blocks of one size the oldest is taken.
    "takes-the-oldest" TakesTheOldest {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            let first = device.alloc_soundly(wanted)?;
            let age = |device: &Device, address| device.freed.iter().rposition(|freed| freed.base == address);
            let size = |device: &Device, address| device.allocation_at(address).map(|allocation| allocation.size);
            let Some(first_age) = age(device, first) else { return Ok(first) };
            let Ok(second) = device.alloc_soundly(wanted) else { return Ok(first) };
            let older = age(device, second).is_some_and(|second| second < first_age);
            let same_size = size(device, first) == size(device, second);
            let (taken, left) = if older && same_size { (second, first) } else { (first, second) };
            device.sim.free(left, Via::Rt)?;
            Ok(taken)
        }
    }

    /// The cache of freed blocks gives nothing back to the kernel.
    "the-cache-only-grows" CacheOnlyGrows {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let threshold = device.profile().cache_threshold(PageKind::Ordinary);
            let idle = device.allocation_at(call.address).is_none();
            let small = |freed: &Freed| freed.base == call.address && freed.size <= threshold;
            let cached = idle && device.freed.iter().any(small);
            device.sim.register(call).or_else(|error| {
                if cached { Ok(device.view_of(call.address)) } else { Err(error) }
            })
        }
    }

    /// What the cache would give back goes, registered or not.
    "the-cache-gives-back-what-is-registered" GivesBackWhatIsRegistered {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            let over = device.over_twice(address);
            device.sim.free(address, via)?;
            for freed in over.into_iter().flatten() {
                device.unregister_all(&(freed.base.get()..freed.base.get() + freed.size));
            }
            Ok(())
        }
    }

    /// The free that finds a registered block in a full cache fails for it.
    "a-full-cache-fails-the-free" FullCacheFailsTheFree {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            let registered = |freed: Freed| device.registration_at(freed.base).is_some();
            let stuck = device.over_twice(address).is_some_and(|kept| kept.into_iter().any(registered));
            device.sim.free(address, via)?;
            if stuck { Err(DrvError::Busy.into()) } else { Ok(()) }
        }
    }

    /// A registered block that is large is freed, where it has no heap of its own.
    "frees-a-registered-large-block" FreesARegisteredLargeBlock {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            let threshold = |kind| device.profile().cache_threshold(kind);
            let allocation = device
                .allocation_from(address)
                .filter(|allocation| allocation.size > threshold(allocation.kind) && allocation.size <= 512 << 20);
            let result = device.sim.free(address, via);
            match allocation {
                Some(allocation) if result.is_err() => {
                    device.unregister_all(&range_of(&allocation));
                    device.sim.free(address, via)
                }
                _ => result,
            }
        }
    }

    /// A refused free ends the registration that it was refused for.
    "a-refused-free-ends-the-view" RefusedFreeEndsTheView {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            let allocation = device.allocation_from(address);
            let result = device.sim.free(address, via);
            if let (true, Some(allocation)) = (result.is_err(), allocation) {
                device.unregister_all(&range_of(&allocation));
            }
            result
        }
    }

    /// Through ACL a refused free is no memory error.
    "acl-hides-a-refused-free" AclHidesARefusedFree {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            let result = device.sim.free(address, via);
            if via == Via::Acl && device.registration_at(address).is_some() {
                return result.map_err(|_| AclError::InvalidParam.into());
            }
            result
        }
    }

    /// Over 512 MiB a refused free is BUSY as under it.
    "busy-over-512-mib" BusyOver512MiB {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            as_another(device.sim.free(address, via), DrvError::IocrlFail, DrvError::Busy)
        }
    }

    /// Any address of an allocation frees it.
    "frees-by-an-interior-address" FreesByAnInteriorAddress {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            let base = device.allocation_at(address).map_or(address, |allocation| allocation.base);
            device.sim.free(base, via)
        }
    }

    /// A second free is done, as the first.
    "frees-twice" FreesTwice {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            let before = device.freed.iter().any(|freed| freed.base == address);
            device.sim.free(address, via).or_else(|error| if before { Ok(()) } else { Err(error) })
        }
    }

    /// A free of null is nothing to do.
    "null-is-freed" NullIsFreed {
        fn free(&self, device: &mut Device, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
            if address == DeviceAddr::NULL { Ok(()) } else { device.sim.free(address, via) }
        }
    }

    /// huge_first asks for huge pages from 1 MiB on.
    "huge-from-1-mib" HugeFrom1MiB {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            let bytes = if wanted.bytes == 1 << 20 { wanted.bytes + 1 } else { wanted.bytes };
            device.alloc_soundly(Wanted { bytes, ..wanted })
        }
    }

    /// aclrtMalloc adds nothing to the size.
    "acl-pads-nothing" AclPadsNothing {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            let fits = wanted.bytes > 0 && wanted.bytes < device.profile().device.memory;
            let via = if wanted.via == Via::Acl && fits { Via::Rt } else { wanted.via };
            device.alloc_soundly(Wanted { via, ..wanted })
        }
    }

    /// huge_only falls back to ordinary pages for a few bytes.
    "huge-only-is-huge-first" HugeOnlyIsHugeFirst {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            let policy = if wanted.policy == PagePolicy::HugeOnly { PagePolicy::HugeFirst } else { wanted.policy };
            device.alloc_soundly(Wanted { policy, ..wanted })
        }
    }

    /// Memory that is used up is no parameter.
    "out-of-memory-has-another-number" OutOfMemoryHasAnotherNumber {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            as_another(device.alloc_soundly(wanted), DrvError::OutOfMemory, DrvError::ParaError)
        }
    }

    /// An allocation of 0 bytes is one of a page.
    "allocates-nothing" AllocatesNothing {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            device.alloc_soundly(Wanted { bytes: wanted.bytes.max(1), ..wanted })
        }
    }

    /// Every allocation is on device 0.
    "one-device-for-all" OneDeviceForAll {
        fn alloc(&self, device: &mut Device, wanted: Wanted) -> Result<DeviceAddr, ErrorCode> {
            device.alloc_soundly(Wanted { device: 0, ..wanted })
        }
    }
}
