//! Registration by the rules of SVM v2, in the order of its decision table (`driver-source.md` §14.1, rows R1 to R17; the rules
//! `v2-R…` and `v2-U…`).
//!
//! Row R6, a free of the same block in progress, needs two threads inside the driver and cannot happen here.

use crate::addr::{DeviceAddr, HostAddr, PageKind};
use crate::error::DrvError;
use crate::flags::{AGENT_LIMIT, RegisterFlags};
use crate::host::{RegisterCall, SimHost};
use crate::kernel::KernelBlock;
use crate::memory::Access;
use crate::rules::{self, Rule};

impl SimHost {
    pub(crate) fn register_v2(&mut self, call: &RegisterCall) -> Result<HostAddr, DrvError> {
        let RegisterCall { address, flags, .. } = *call;
        let in_range = self.profile.in_svm_range(address);
        if !flags.known_map_type() {
            return Err(self.refusal(&rules::R1));
        }
        // For an address of the shared range the device id is replaced by 0, and cannot be wrong.
        if !(in_range && flags.maps_device_memory()) && call.device >= AGENT_LIMIT {
            return Err(self.refusal(&rules::R2));
        }
        if !flags.known_process_type() {
            return Err(self.refusal(&rules::R3));
        }
        if !call.has_dst {
            return Err(self.refusal(&rules::R4));
        }
        if !self.profile.driver.maps_device_memory && flags.maps_device_memory() {
            return Err(self.refusal(&rules::R_NO_PATH));
        }
        // Before R5: outside the range there is no heap to look for.
        if !in_range {
            if flags.maps_device_memory() {
                return self.refuse(
                    &rules::R7,
                    call,
                    format!("Map_type not match with va_attr. (map_type={})", flags.map_type()),
                );
            }
            self.log_line(format!("hostview: map type {} is not simulated", flags.map_type()));
            return Err(self.refusal(&rules::R_OTHER_TYPE));
        }
        let block = match self.block_v2(address) {
            Ok(block) => block,
            Err(line) => return self.refuse(&rules::R5, call, line),
        };
        if !flags.maps_device_memory() {
            let line = format!(
                "Map_type not match with va_attr. (map_type={}; is_locked_host=0; is_locked_device=1)",
                flags.map_type()
            );
            return self.refuse(&rules::R_DEVICE_MEMORY, call, line);
        }
        if call.bytes == 0 {
            return self.refuse(&rules::R9, call, format!("Map size is zero. (map_type={})", flags.map_type()));
        }
        if flags.process_type() != 0 {
            self.log_line(format!(
                "Svm mem not support current proc_type. (devid={}; proc_type={})",
                block.device,
                flags.process_type()
            ));
            return Err(self.refusal(&rules::R10));
        }
        self.check_capability(&block, address)?;
        // A size near 2^64 wraps to 0 in the driver, which then marks FIRST alone; refused here instead (§3.4).
        let page = self.profile.page(block.kind);
        let heap_end = self.heaps.heap_end(address).expect("a block lies in a heap");
        let end = page.round_up(call.bytes).and_then(|bytes| address.get().checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= heap_end) else {
            return self.refuse(&rules::R12, call, format!("Size is error. (va={address}, size={})", call.bytes));
        };
        if !page.divides(address.get()) {
            let line = format!(
                "Va should be aligned by chunk_page_size. (src_va={address}; chunk_page_size={})",
                page.bytes()
            );
            return self.refuse(&rules::R13, call, line);
        }
        if self.kernel.is_first(address.get()) {
            return self.refuse(&rules::R14, call, format!("Va is already mapped by remote. (va={address})"));
        }
        // The driver marks page by page and rolls its own marks back; here nothing is marked before all is checked.
        if self.kernel.any_mapped(address.get()..end, block.kind) {
            return self.refuse(&rules::R15, call, format!("Va is already mapped by remote. (va={address})"));
        }
        let Some(pieces) = self.kernel.pieces(&(address.get()..end)) else {
            return self.refuse(&rules::R16, call, format!("Find agent_pa fail. (va={address}; size={})", call.bytes));
        };
        self.decided_by(&rules::R17);
        self.kernel.mark(address.get()..end, block.kind);
        self.kernel.add_reference(block.start);
        let access = if flags.read_only() { Access::Read } else { Access::Write };
        for (piece, owner) in pieces {
            let at = DeviceAddr::new(piece.start);
            self.memory.allow(at, piece.end - piece.start, owner.kind, owner.range(), access);
        }
        self.records.add(block.device, address.get(), call.bytes);
        self.clock.register(block.kind, (end - address.get()) / page.bytes());
        Ok(self.memory.view_of(address))
    }

    /// Judged before bounds, alignment and overlap, so that those never show on a host that cannot register at all.
    fn check_capability(&mut self, block: &KernelBlock, address: DeviceAddr) -> Result<(), DrvError> {
        let (capable, what) = match block.kind {
            PageKind::Ordinary => (self.capabilities.bar_mem, "remote map"),
            PageKind::Huge => (self.capabilities.bar_huge_mem, "huge remote map"),
        };
        if capable {
            return Ok(());
        }
        self.log_line(format!("Not support pcie bar {what}. (svm_addr={address}; devid={})", block.device));
        self.clock.register(block.kind, 0);
        Err(self.refusal(&rules::R11))
    }

    /// The kernel block that holds an address of the shared range, or the driver's words for there being none.
    fn block_v2(&self, address: DeviceAddr) -> Result<KernelBlock, String> {
        if self.heaps.heap_end(address).is_none() {
            return Err(format!("Heap is idle, va isn't alloced. (va={address})"));
        }
        self.kernel.block_at(address).copied().ok_or_else(|| format!("Va isn't alloced. (va={address})"))
    }

    fn refuse(&mut self, rule: &'static Rule, call: &RegisterCall, line: String) -> Result<HostAddr, DrvError> {
        let error = self.refusal(rule);
        self.log_line(line);
        self.log_line(format!(
            "Mem_remote_map ioctl error. (src_va={}; size={}; devid=0; ret={})",
            call.address,
            call.bytes,
            error.code()
        ));
        Err(error)
    }

    pub(crate) fn unregister_v2(&mut self, address: DeviceAddr, device: u32) -> Result<(), DrvError> {
        if !self.records.on {
            return self.unregister_ex_v2(address, device, RegisterFlags(0));
        }
        // With records on, the device id that is passed and the exact address must name one.
        if !self.records.by_address.contains_key(&(device, address.get())) {
            return Err(self.refusal(&rules::U_NO_RECORD));
        }
        self.unregister_ex_v2(address, device, RegisterFlags::VIEW)
    }

    pub(crate) fn unregister_ex_v2(
        &mut self,
        address: DeviceAddr,
        device: u32,
        flags: RegisterFlags,
    ) -> Result<(), DrvError> {
        if !flags.known_map_type() || !flags.known_process_type() {
            return Err(self.refusal(&rules::U_FLAGS));
        }
        if !self.profile.in_svm_range(address) {
            // Tried as a registration of host memory, which this simulator never has: ENOENT.
            return Err(self.refusal(if device >= AGENT_LIMIT { &rules::U_DEVICE } else { &rules::U_HOST }));
        }
        let block = match self.block_v2(address) {
            Ok(block) => block,
            Err(line) => return self.refuse_unregister(&rules::U_NO_BLOCK, line),
        };
        let page = self.profile.page(block.kind);
        if !page.divides(address.get()) {
            let line = format!("Src_va is not page alignment. (src_va={address}; page_size={})", page.bytes());
            return self.refuse_unregister(&rules::U_ALIGN, line);
        }
        if !self.kernel.is_first(address.get()) {
            let line = format!("Src_va hasn't been remote mapped. (src_va={address})");
            return self.refuse_unregister(&rules::U_NOT_FIRST, line);
        }
        self.decided_by(&rules::U_DONE);
        let end = self.kernel.extent(address.get(), block.end, block.kind);
        self.kernel.unmark(address.get()..end, block.kind);
        self.kernel.drop_reference(block.start);
        self.memory.deny(address, end - address.get());
        // Source: with map type 0 the driver looks for the record among the host's, and leaves the device's behind.
        if flags.maps_device_memory() {
            self.records.by_address.remove(&(block.device, address.get()));
        }
        self.clock.unregister(block.kind, self.profile.host.page_size.pages(end - address.get()));
        Ok(())
    }

    fn refuse_unregister(&mut self, rule: &'static Rule, line: String) -> Result<(), DrvError> {
        self.log_line(line);
        Err(self.refusal(rule))
    }
}
