//! Registration by the rules of SVM v3, in the order of its decision table (`driver-source.md` §14.3; the rules `v3-R…` and
//! `v3-U…`), whose source was read and never run. v3 keeps a list of segments for each
//! allocation: what is free in the user-space cache has no property left, and is refused.

use std::ops::Range;

use crate::addr::{DeviceAddr, HostAddr};
use crate::error::DrvError;
use crate::flags::{RegisterFlags, map_type};
use crate::heap::Allocation;
use crate::host::{RegisterCall, SimHost};
use crate::memory::Access;
use crate::rules;

impl SimHost {
    pub(crate) fn register_v3(&mut self, call: &RegisterCall) -> Result<HostAddr, DrvError> {
        let RegisterCall { address, bytes, flags, .. } = *call;
        if !call.has_dst {
            return Err(self.refusal(&rules::R3_NO_DST));
        }
        if !self.profile.driver.maps_device_memory && flags.maps_device_memory() {
            self.log_line(format!("No host-map path. (va={address})"));
            return Err(self.refusal(&rules::R3_NO_PATH));
        }
        let in_range = self.profile.in_svm_range(address);
        let whole_in_range = in_range
            && address.checked_add(bytes.saturating_sub(1)).is_some_and(|last| self.profile.in_svm_range(last));
        if address == DeviceAddr::NULL || bytes == 0 || (in_range && !whole_in_range) {
            return Err(self.refusal(&rules::R3_RANGE));
        }
        // READ_ONLY is bit 28, and v3 takes everything from bit 16 on for the process type: refused with it.
        if flags.map_type() >= map_type::LIMIT || flags.unmasked_process_type() != 0 || !flags.maps_device_memory() {
            return Err(self.refusal(&rules::R3_FLAGS));
        }
        if !in_range {
            return Err(self.refusal(&rules::R3_HOST));
        }
        let Some(allocation) = self.heaps.allocation_at(address) else {
            self.log_line(format!("Addr is not alloced. (va={address})"));
            return Err(self.refusal(&rules::R3_FREE));
        };
        let page = self.profile.page(allocation.kind);
        let host_page = self.profile.host.page_size;
        let on_pages = |aligned: &u64| {
            page.divides(address.get()) && host_page.divides(address.get()) && host_page.divides(*aligned)
        };
        let Some(aligned) = page.round_up(bytes).filter(on_pages) else {
            self.log_line(format!("Va or size is not aligned. (va={address}; size={bytes})"));
            return Err(self.refusal(&rules::R3_ALIGN));
        };
        let allowed = allocation.base.get() + allocation.requested;
        if address.checked_add(bytes).is_none_or(|end| end.get() > allowed) {
            self.log_line(format!("Size if out of bounds. (va={address}; size={bytes})"));
            return Err(self.refusal(&rules::R3_BOUNDS));
        }
        let range = address.get()..address.get() + aligned;
        if self.segment_overlaps(&range) {
            return Err(self.refusal(&rules::R3_OVERLAP));
        }
        self.decided_by(&rules::R3_DONE);
        self.segments.insert(range.start, aligned);
        let block = allocation.block.get()..allocation.block.get() + allocation.block_size;
        self.memory.allow(address, aligned, allocation.kind, block, Access::Write);
        self.clock.register(allocation.kind, aligned / page.bytes());
        Ok(self.memory.view_of(address))
    }

    fn segment_overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.segments.range(..range.end).next_back();
        before.is_some_and(|(start, bytes)| start + bytes > range.start)
    }

    pub(crate) fn unregister_v3(&mut self, address: DeviceAddr) -> Result<(), DrvError> {
        if !self.profile.in_svm_range(address) {
            return Err(self.refusal(&rules::U3_HOST));
        }
        self.unregister_ex_v3(address, RegisterFlags::VIEW)
    }

    pub(crate) fn unregister_ex_v3(&mut self, address: DeviceAddr, flags: RegisterFlags) -> Result<(), DrvError> {
        if address == DeviceAddr::NULL {
            return Err(self.refusal(&rules::U3_NULL));
        }
        if flags.map_type() >= map_type::LIMIT || flags.unmasked_process_type() != 0 {
            return Err(self.refusal(&rules::U3_FLAGS));
        }
        let Some(Allocation { kind, .. }) = self.heaps.allocation_at(address) else {
            self.log_line(format!("Addr is not alloced. (va={address})"));
            return Err(self.refusal(&rules::U3_FREE));
        };
        let Some(bytes) = self.segments.remove(&address.get()) else {
            let interior = self.segment_overlaps(&(address.get()..address.get() + 1));
            self.log_line(if interior {
                format!("Should be the registered start va. (va={address})")
            } else {
                format!("Addr is not register. (va={address})")
            });
            return Err(self.refusal(&rules::U3_NOT_FIRST));
        };
        self.decided_by(&rules::U3_DONE);
        self.memory.deny(address, bytes);
        self.clock.unregister(kind, self.profile.host.page_size.pages(bytes));
        Ok(())
    }
}
