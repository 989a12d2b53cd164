//! Faults of what the host sees: where, when, and whose bytes.

use hostview_sim::{DeviceAddr, Fault, FreeWhileRegistered, HostAddr, RegisterCall, RegisterFlags};

use super::base::Device;
use super::{Part, Planted};
use crate::code::ErrorCode;
use crate::plant::plant;
use crate::platform::Platform as _;

plant! {
    /// A view lies one page behind the memory that it shows.
    "identity-broken" IdentityBroken {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let page = device.page_at(call.address);
            let view = device.sim.register(call)?;
            Ok(view.wrapping_add(if call.bytes > page { page } else { 0 }))
        }
    }

    /// What the host stores does not come to the device.
    "stores-are-lost" StoresAreLost {
        fn host_write(&self, device: &mut Device, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
            let mut old = vec![0; from.len()];
            device.sim.host_read(address, &mut old)?;
            device.sim.host_write(address, &old)
        }
    }

    /// What the host stores into the last byte of a block that stays registered when it is freed is lost.
    "the-last-byte-is-lost" LastByteLost {
        fn host_write(&self, device: &mut Device, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
            let behind = device.behind(address);
            let keeps = device.profile().driver.free_while_registered == FreeWhileRegistered::Cached;
            let last = device.allocation_at(behind).is_some_and(|allocation| {
                keeps && allocation.size <= device.profile().cache_threshold(allocation.kind)
                    && behind == allocation.base.wrapping_add(allocation.requested - 1)
            });
            if last { device.sim.host_read(address, &mut [0]) } else { device.sim.host_write(address, from) }
        }
    }

    /// A copy to the device is not seen through a view that was there before.
    "views-are-snapshots" ViewsAreSnapshots {
        fn copy_in(&self, device: &mut Device, address: DeviceAddr, from: &[u8]) -> Result<(), ErrorCode> {
            if device.registration_at(address).is_some() {
                let mut seen = vec![0; from.len()];
                return device.sim.copy_out(address, &mut seen);
            }
            device.sim.copy_in(address, from)
        }
    }

    /// The host may load from device memory that is not registered.
    "loads-before-a-registration" LoadsBefore {
        fn host_read(&self, device: &mut Device, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
            let behind = device.behind(address);
            let at_its_base = device.allocation_from(behind).is_some();
            if device.opened.is_empty() && at_its_base && device.sim.copy_out(behind, into).is_ok() {
                return Ok(());
            }
            device.sim.host_read(address, into)
        }
    }

    /// Stores go on after the end of a registration, into nothing.
    "stores-after-the-end" StoresAfterTheEnd {
        fn host_write(&self, device: &mut Device, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
            let was_open = device.opened.iter().any(|(from, to)| (*from..*to).contains(&address.get()));
            let unregistered = device.registration_at(device.behind(address)).is_none();
            if was_open && unregistered { Ok(()) } else { device.sim.host_write(address, from) }
        }
    }

    /// The host sees one byte behind a registration.
    "shows-a-byte-behind" ShowsAByteBehind {
        fn host_read(&self, device: &mut Device, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
            let behind = device.behind(address);
            let last = DeviceAddr::new(behind.get().wrapping_sub(1));
            if device.registration_at(last).is_some() && device.sim.copy_out(behind, into).is_ok() {
                return Ok(());
            }
            device.sim.host_read(address, into)
        }
    }

    /// A registration lets the host see the whole kernel block that it is in.
    "opens-the-whole-block" OpensTheWholeBlock {
        fn host_read(&self, device: &mut Device, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
            let behind = device.behind(address);
            let block = device.sim.host().registrations().find_map(|registration| {
                let allocation = device.allocation_at(registration.base)?;
                let block = allocation.block.get()..allocation.block.get() + allocation.block_size;
                block.contains(&behind.get()).then_some(block)
            });
            if block.is_some() && device.sim.copy_out(behind, into).is_ok() {
                return Ok(());
            }
            device.sim.host_read(address, into)
        }
    }

    /// A read-only registration can be written through.
    "read-only-is-ignored" ReadOnlyIgnored {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let flags = if call.flags == RegisterFlags::READ_ONLY_VIEW { RegisterFlags::VIEW } else { call.flags };
            device.sim.register(RegisterCall { flags, ..call })
        }
    }

    /// What was once registered read-only is so for ever.
    "read-only-for-ever" ReadOnlyForEver {
        fn host_write(&self, device: &mut Device, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
            let result = device.sim.host_write(address, from);
            if result.is_err() && device.registration_at(device.behind(address)).is_some() {
                device.closed.push(address.get()..address.get() + from.len() as u64);
            }
            if device.closed.iter().any(|range| range.contains(&address.get())) { Err(Fault { address }) } else { result }
        }
    }
}
