//! Faults of register calls: which pages, which addresses, and which answer.

use hostview_sim::{DrvError, Generation, HostAddr, RegisterCall, RegisterFlags};

use super::base::{Device, as_another, range_of};
use super::{Part, Planted};
use crate::code::ErrorCode;
use crate::plant::plant;
use crate::platform::{Loss, Platform as _};

/// Whether the simulator refuses a call as wrong, and not as something that this host cannot do.
fn is_wrong(error: ErrorCode) -> bool {
    error == DrvError::ParaError.into() || error == DrvError::RepeatedUserd.into()
}

plant! {
    /// The size is rounded down to whole pages.
    "rounds-down" RoundsDown {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let page = device.page_at(call.address);
            let whole = call.bytes / page * page;
            device.sim.register(RegisterCall { bytes: whole.max(call.bytes.min(1)), ..call })
        }
    }

    /// One page more is registered than the size fills.
    "registers-one-page-more" OnePageMore {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let page = device.page_at(call.address);
            let more = RegisterCall { bytes: call.bytes.saturating_add(page), ..call };
            if call.bytes == 0 {
                return device.sim.register(call);
            }
            device.sim.register(more).or_else(|_| device.sim.register(call))
        }
    }

    /// A size that fills its last page exactly gets one page more.
    "a-full-page-counts-twice" FullPageTwice {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let page = device.page_at(call.address);
            let more = if call.bytes.is_multiple_of(page) && call.bytes > 0 { page } else { 0 };
            let longer = RegisterCall { bytes: call.bytes.saturating_add(more), ..call };
            device.sim.register(longer).or_else(|_| device.sim.register(call))
        }
    }

    /// An address inside a page stands for its page.
    "begins-inside-a-page" BeginsInsideAPage {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let inside = call.address.get() % device.page_at(call.address);
            if device.registration_at(call.address).is_some() {
                return device.sim.register(call);
            }
            let whole = RegisterCall {
                address: call.address.wrapping_add(inside.wrapping_neg()),
                bytes: call.bytes.saturating_add(inside),
                ..call
            };
            let view = device.sim.register(whole)?;
            Ok(view.wrapping_add(inside))
        }
    }

    /// What is registered already is registered again, as done.
    "registers-twice" RegistersTwice {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let before = device.registration_at(call.address);
            let same = before.is_some_and(|registration| registration.base == call.address);
            device.sim.register(call).or_else(|error| {
                if same && is_wrong(error) { Ok(device.view_of(call.address)) } else { Err(error) }
            })
        }
    }

    /// Of a range only the first page is looked at, and what is registered behind it is left as it is.
    "looks-at-the-first-page-alone" LooksAtTheFirstPageAlone {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let end = device.allocation_at(call.address).map_or(0, |allocation| range_of(&allocation).end);
            let inside = call.bytes > 0 && call.address.get().saturating_add(call.bytes) <= end;
            let free = device.registration_at(call.address).is_none();
            device.sim.register(call).or_else(|error| {
                let first = RegisterCall { bytes: 1, ..call };
                if inside && free && is_wrong(error) { device.sim.register(first) } else { Err(error) }
            })
        }
    }

    /// A refused overlap takes the marks of the old registration back with its own.
    "an-overlap-undoes-the-old" OverlapUndoesTheOld {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let result = device.sim.register(call);
            if result.is_err_and(is_wrong) {
                let end = call.address.get().saturating_add(call.bytes.max(1));
                device.unregister_all(&(call.address.get()..end));
            }
            result
        }
    }

    /// A refused overlap leaves the pages before it registered.
    "an-overlap-leaves-its-marks" OverlapLeavesMarks {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let result = device.sim.register(call);
            if result.is_err_and(is_wrong) && device.registration_at(call.address).is_none() && call.bytes > 0 {
                let _ = device.sim.register(RegisterCall { bytes: 1, ..call });
            }
            result
        }
    }

    /// A second registration is answered by the number of the other generation.
    "a-repeat-has-another-number" RepeatHasAnotherNumber {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let repeated = device.registration_at(call.address).is_some();
            let result = device.sim.register(call);
            if !repeated {
                return result;
            }
            match device.profile().driver.generation {
                Generation::V2 => as_another(result, DrvError::ParaError, DrvError::RepeatedUserd),
                Generation::V3 => as_another(result, DrvError::RepeatedUserd, DrvError::ParaError),
            }
        }
    }

    /// A registration of 0 bytes is one of a page.
    "registers-nothing" RegistersNothing {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            device.sim.register(RegisterCall { bytes: call.bytes.max(1), ..call })
        }
    }

    /// What is not allocated is registered, as done.
    "registers-what-is-not-there" RegistersWhatIsNotThere {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let nowhere = device.allocation_at(call.address).is_none() && call.address.get() != 0;
            device.sim.register(call).or_else(|error| {
                if nowhere && is_wrong(error) { Ok(device.view_of(call.address)) } else { Err(error) }
            })
        }
    }

    /// What is not allocated is refused as no value, and not as no parameter.
    "not-allocated-has-another-number" NotAllocatedHasAnotherNumber {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let there = device.allocation_at(call.address).is_some();
            let result = device.sim.register(call);
            if there { result } else { as_another(result, DrvError::ParaError, DrvError::InvalidValue) }
        }
    }

    /// A range is checked against the allocation and not against memory.
    "checks-the-allocation", "how v3 does it", ChecksTheAllocation {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let over = device.allocation_at(call.address).is_some_and(|allocation| {
                call.address.get().saturating_add(call.bytes) > range_of(&allocation).end
            });
            if over { Err(DrvError::ParaError.into()) } else { device.sim.register(call) }
        }
    }

    /// A range that reaches over its allocation is cut to it.
    "cuts-to-the-allocation" CutsToTheAllocation {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let end = device.allocation_at(call.address).map_or(u64::MAX, |allocation| range_of(&allocation).end);
            device.sim.register(RegisterCall { bytes: call.bytes.min(end - call.address.get()), ..call })
        }
    }

    /// What another allocation's over-long range covers can be registered all the same.
    "registers-the-covered-neighbour" CoveredNeighbour {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let is_base = |base| device.allocation_from(base).is_some();
            let covered = device.registration_at(call.address).is_some_and(|over| {
                over.base != call.address && is_base(call.address) && is_base(over.base)
            });
            device.sim.register(call).or_else(|error| {
                if covered { Ok(device.view_of(call.address)) } else { Err(error) }
            })
        }
    }

    /// A range that runs into memory that is not there is registered as far as there is memory.
    "registers-as-far-as-it-goes" AsFarAsItGoes {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let result = device.sim.register(call);
            let Some(allocation) = device.allocation_at(call.address) else { return result };
            let room = allocation.block.get() + allocation.block_size - call.address.get();
            if result.is_err_and(is_wrong) && call.bytes > room {
                return device.sim.register(RegisterCall { bytes: room, ..call });
            }
            result
        }
    }

    /// What is left of a registration across two kernel blocks can be registered again.
    "a-lost-tail-is-registered-again" LostTailAgain {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let view = device.view_of(call.address);
            let tail = device.registration_at(call.address).is_none() && device.sim.host_read(view, &mut [0]).is_ok();
            device.sim.register(call).or_else(|error| if tail { Ok(view) } else { Err(error) })
        }
    }

    /// The device id that is passed must be the one of the address.
    "minds-the-device-id" MindsTheDeviceId {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let other = device.allocation_at(call.address).is_some_and(|allocation| allocation.device != call.device);
            if other { Err(DrvError::InvalidDevice.into()) } else { device.sim.register(call) }
        }
    }

    /// Every map type stands for the one of device memory.
    "takes-every-map-type" TakesEveryMapType {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let process = call.flags.0 & 0xffff_0000;
            device.sim.register(RegisterCall { flags: RegisterFlags(RegisterFlags::VIEW.0 | process), ..call })
        }
    }

    /// The process type is not looked at.
    "takes-every-process-type" TakesEveryProcessType {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let flags = RegisterFlags(call.flags.0 & 0xf000_ffff);
            device.sim.register(RegisterCall { flags, ..call })
        }
    }

    /// A registration of null ends in a segmentation fault.
    "crashes-on-null" CrashesOnNull {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            if call.address.get() == 0 {
                device.lost = Some(Loss::Crashed("halHostRegister ends in SIGSEGV".to_owned()));
            }
            device.sim.register(call)
        }
    }
}
