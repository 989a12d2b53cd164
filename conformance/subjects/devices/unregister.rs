//! Faults of the end of a registration: which one, how much of it, and which answer.

use hostview_sim::{DeviceAddr, DrvError, RegisterCall};

use super::base::{Device, as_another, range_of};
use super::{Part, Planted};
use crate::code::ErrorCode;
use crate::plant::plant;
use crate::platform::Platform as _;

plant! {
    /// The last page of a registration stays mapped.
    "keeps-the-last-page" KeepsTheLastPage {
        fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
            let registration = device.registration_at(address);
            let page = device.page_at(address);
            device.sim.unregister(address, id)?;
            if let Some(registration) = registration.filter(|registration| registration.bytes > page) {
                let last = registration.base.wrapping_add(registration.bytes - page);
                device.sim.register(RegisterCall::view(last, page))?;
            }
            Ok(())
        }
    }

    /// Any address of a registration ends it.
    "ends-by-an-interior-address" EndsByAnInteriorAddress {
        fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
            let base = device.registration_at(address).map_or(address, |registration| registration.base);
            device.sim.unregister(base, id)
        }
    }

    /// What is not registered is unregistered, as done.
    "ends-what-never-began" EndsWhatNeverBegan {
        fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
            let there = device.allocation_from(address).is_some();
            let done = there && device.registration_at(address).is_none();
            device.sim.unregister(address, id).or_else(|error| if done { Ok(()) } else { Err(error) })
        }
    }

    /// The end of what is not even allocated is done.
    "ends-what-is-not-allocated" EndsWhatIsNotAllocated {
        fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
            let there = device.sim.memory_at(address).is_some() || device.registration_at(address).is_some();
            device.sim.unregister(address, id).or_else(|error| if there { Err(error) } else { Ok(()) })
        }
    }

    /// A second end is answered as no value, and not as no parameter.
    "an-end-too-many-has-another-number" EndTooManyHasAnotherNumber {
        fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
            as_another(device.sim.unregister(address, id), DrvError::ParaError, DrvError::NotExist)
        }
    }

    /// The mark of a first page is not looked at: registrations that touch end together.
    "ignores-the-first-mark" IgnoresTheFirstMark {
        fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
            let mut next = device.registration_at(address);
            device.sim.unregister(address, id)?;
            while let Some(registration) = next {
                next = device.registration_at(registration.base.wrapping_add(registration.bytes));
                if let Some(touching) = next {
                    device.sim.unregister(touching.base, id)?;
                }
            }
            Ok(())
        }
    }

    /// The page behind a registration is protected with it.
    "protects-the-neighbours-page" ProtectsTheNeighboursPage {
        fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
            let registration = device.registration_at(address);
            let page = device.page_at(address);
            device.sim.unregister(address, id)?;
            if let Some(registration) = registration {
                let from = device.view_of(registration.base.wrapping_add(registration.bytes)).get();
                device.closed.push(from..from + page);
            }
            Ok(())
        }
    }

    /// Every registration of the allocation ends with one of them.
    "ends-all-of-the-allocation" EndsAllOfTheAllocation {
        fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
            device.sim.unregister(address, id)?;
            if let Some(allocation) = device.allocation_at(address) {
                device.unregister_all(&range_of(&allocation));
            }
            Ok(())
        }
    }

    /// The device id must be the one of the address.
    "minds-the-device-id-at-the-end" MindsTheDeviceIdAtTheEnd {
        fn unregister(&self, device: &mut Device, address: DeviceAddr, id: u32) -> Result<(), ErrorCode> {
            let other = device.registration_at(address).is_some_and(|registration| registration.device != id);
            if other { Err(DrvError::InvalidDevice.into()) } else { device.sim.unregister(address, id) }
        }
    }

    /// halHostUnregisterEx looks at no flag.
    "ends-by-any-map-type" EndsByAnyMapType {
        fn unregister_ex(&self, device: &mut Device, address: DeviceAddr, id: u32, _: u32) -> Result<(), ErrorCode> {
            device.sim.unregister(address, id)
        }
    }

    /// halHostUnregisterEx leaves the first page registered.
    "unregister-ex-keeps-a-page" UnregisterExKeepsAPage {
        fn unregister_ex(&self, device: &mut Device, address: DeviceAddr, id: u32, flags: u32) -> Result<(), ErrorCode> {
            device.sim.unregister_ex(address, id, flags)?;
            device.sim.register(RegisterCall::view(address, 1)).map(|_| ())
        }
    }
}
