//! A simulated host with its devices: what a process sees of the driver.

use std::collections::BTreeMap;

use crate::addr::{DeviceAddr, HostAddr, PageKind};
use crate::clock::{Clock, CostPoint, VirtualTime};
use crate::error::DrvError;
use crate::flags::{AGENT_LIMIT, RegisterFlags};
use crate::heap::{Allocation, Heaps};
use crate::journal::{Call, CallKind, Event, FaultPlan, Outcome, PlannedFault};
use crate::kernel::Kernel;
use crate::memory::{Access, Fault, Memory, MemoryMode};
use crate::profile::{Capabilities, FreeWhileRegistered, Generation, Profile};
use crate::rules::{self, Rule, RuleId};
use crate::sys;

/// `FEATURE_SVM_MEM_REGISTER_QUERY_AND_GET_ATTR`: asking for it on v2 turns the register records on.
pub const FEATURE_REGISTER_RECORDS: u32 = 11;

/// A register call with all of its arguments.
#[derive(Clone, Copy, Debug)]
pub struct RegisterCall {
    /// The address to register.
    pub address: DeviceAddr,
    /// How many bytes.
    pub bytes: u64,
    /// The flag word.
    pub flags: RegisterFlags,
    /// The device id; ignored for addresses of the shared range.
    pub device: u32,
    /// Whether the caller passed somewhere to put the view's address.
    pub has_dst: bool,
}

impl RegisterCall {
    /// A view of `bytes` from `address` on, read and written.
    #[must_use]
    pub fn view(address: DeviceAddr, bytes: u64) -> Self {
        Self { address, bytes, flags: RegisterFlags::VIEW, device: 0, has_dst: true }
    }
}

/// A live mapping that the driver holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registration {
    /// Its first page.
    pub base: DeviceAddr,
    /// Its length: whole pages.
    pub bytes: u64,
    /// The kind of its pages.
    pub kind: PageKind,
    /// The device that owns the memory.
    pub device: u32,
}

/// How a simulated host is made.
#[derive(Clone, Debug, Default)]
pub struct SimOptions {
    /// Keep books instead of protecting memory, for this reason.
    pub bookkeeping: Option<String>,
    /// At which point of their distribution costs are taken.
    pub cost_point: CostPoint,
}

/// A simulated host: one process' view of the driver, its devices and their memory.
///
/// Several may live in one process. One of them sits at the driver's own addresses, the others elsewhere; whatever this type
/// takes and gives is in the driver's addresses either way.
///
/// ```
/// use hostview_sim::{PageKind, Profile, RegisterCall, SimHost};
///
/// let mut host = SimHost::new(&Profile::shipped("a2a3")?);
/// let base = host.alloc(0, PageKind::Ordinary, 1280)?;
/// let view = host.register(RegisterCall::view(base, 1280))?;
/// host.host_write(view, b"seen by the device")?;
/// let mut bytes = [0; 18];
/// host.copy_out(base, &mut bytes)?;
/// assert_eq!(&bytes, b"seen by the device");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SimHost {
    pub(crate) profile: Profile,
    pub(crate) capabilities: Capabilities,
    pub(crate) kernel: Kernel,
    pub(crate) heaps: Heaps,
    pub(crate) memory: Memory,
    pub(crate) clock: Clock,
    pub(crate) records: Records,
    /// v3 keeps the registrations of an allocation as a list of segments: start to length.
    pub(crate) segments: BTreeMap<u64, u64>,
    faults: FaultPlan,
    /// The rules of the call that is being made.
    rule: Option<RuleId>,
    besides: Option<RuleId>,
    journal: Vec<Event>,
    log: Vec<String>,
    started: bool,
}

/// v2's user-space list of registrations. Off until a process asks for the feature.
#[derive(Debug, Default)]
pub(crate) struct Records {
    pub(crate) on: bool,
    /// Device and address, to the size that was asked for.
    pub(crate) by_address: BTreeMap<(u32, u64), u64>,
}

impl Records {
    /// An overlap answers REPEATED_USERD inside the driver, which the driver swallows: no record is made.
    pub(crate) fn add(&mut self, device: u32, address: u64, bytes: u64) {
        if !self.on {
            return;
        }
        let overlaps = self.by_address.range((device, 0)..(device, address.saturating_add(bytes.max(1)))).next_back();
        let overlaps = overlaps.is_some_and(|((_, from), len)| from + len > address);
        if !overlaps {
            self.by_address.insert((device, address), bytes);
        }
    }
}

impl SimHost {
    /// A host of this profile, with protected memory where the system has it.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        Self::with_options(profile, &SimOptions::default())
    }

    /// A host of this profile. The profile must have passed [`Profile::check`], as every loaded one has.
    #[must_use]
    pub fn with_options(profile: &Profile, options: &SimOptions) -> Self {
        let memory = Memory::new(profile, options.bookkeeping.as_deref());
        let capabilities = profile.capabilities();
        let mut host = Self {
            capabilities,
            kernel: Kernel::new(
                profile.device.count,
                profile.device.memory,
                profile.driver.heap_size,
                profile.page(PageKind::Ordinary),
                profile.page(PageKind::Huge),
            ),
            heaps: Heaps::new(profile, &memory.window()),
            clock: Clock::new(profile.costs.clone(), options.cost_point),
            memory,
            records: Records::default(),
            segments: BTreeMap::new(),
            faults: FaultPlan::default(),
            rule: None,
            besides: None,
            journal: Vec::new(),
            log: Vec::new(),
            started: false,
            profile: profile.clone(),
        };
        for device in 0..profile.device.count {
            host.log_line(format!(
                "Device info. (devid={device}; dvpp_size=4294967296; support_bar_mem={}; support_dev_read_only=1; \
                 support_dev_mem_map_host={}; support_bar_huge_mem={}; allocated_by_malloc=0; host_rw_dev_ro=1)",
                u8::from(capabilities.bar_mem),
                u8::from(capabilities.dev_mem_map_host),
                u8::from(capabilities.bar_huge_mem),
            ));
        }
        host
    }

    /// `halMemAlloc` of high-bandwidth device memory (`MEM_DEV`), of one page kind.
    ///
    /// # Errors
    ///
    /// `INVALID_DEVICE` for an id at or over the agent limit, `NO_DEVICE` for one that is not there, `INVALID_VALUE` for
    /// 0 bytes, `OUT_OF_MEMORY` when the device's memory is used up.
    pub fn alloc(&mut self, device: u32, kind: PageKind, bytes: u64) -> Result<DeviceAddr, DrvError> {
        let call = Call::Alloc { device, bytes, kind };
        self.call(call, Outcome::Allocated, |host| {
            if device >= AGENT_LIMIT {
                return Err(host.refusal(&rules::ALLOC_DEVICE));
            }
            if device >= host.profile.device.count {
                return Err(host.refusal(&rules::ALLOC_NO_DEVICE));
            }
            if bytes == 0 {
                return Err(host.refusal(&rules::ALLOC_NOTHING));
            }
            host.started = true;
            match host.heaps.allocate(&mut host.kernel, device, kind, bytes) {
                Ok((base, rule)) => {
                    host.decided_by(rule);
                    Ok(base)
                }
                Err(rule) => {
                    host.log_line(format!(
                        "Can not alloc memory. (devid={device}; size={bytes}; used={}; total={})",
                        host.kernel.used(device),
                        host.kernel.memory()
                    ));
                    Err(host.refusal(rule))
                }
            }
        })
    }

    /// `halMemFree`.
    ///
    /// # Errors
    ///
    /// `INVALID_HANDLE` before the first allocation, `INVALID_VALUE` for anything but the base of a live allocation, and
    /// while a registration holds the block: `BUSY`, or `IOCRL_FAIL` over 512 MiB (v2: only for blocks that go back to the
    /// kernel; v3: BUSY for all).
    pub fn free(&mut self, address: DeviceAddr) -> Result<(), DrvError> {
        self.call(Call::Free { address }, |()| Outcome::Done, |host| host.free_block(address))
    }

    fn free_block(&mut self, address: DeviceAddr) -> Result<(), DrvError> {
        if !self.started {
            self.log_line(format!("Please call device_open and alloc_mem api first. (alloc_mem={address})"));
            return Err(self.refusal(&rules::FREE_UNINIT));
        }
        let allocation = self.heaps.allocation_at(address).filter(|allocation| allocation.base == address);
        if self.profile.driver.free_while_registered == FreeWhileRegistered::Busy
            && let Some(allocation) = allocation
            && self.is_registered(&allocation)
        {
            self.log_line(format!("Handle priv_ops.pre_release failed. (va={address})"));
            return Err(self.refusal(&rules::FREE_REGISTERED_V3));
        }
        match self.heaps.free(&mut self.kernel, &mut self.memory, address) {
            Ok(freed) => {
                self.decided_by(freed.rule);
                self.besides = freed.besides.map(|rule| rule.id);
                Ok(())
            }
            Err(rule) => {
                let error = self.refusal(rule);
                self.log_line(match error {
                    DrvError::InvalidValue if self.heaps.heap_end(address).is_none() => {
                        format!("Address is not allocated. please check ptr. (va={address})")
                    }
                    DrvError::InvalidValue => format!("Virtual address is not alloced, please check. (va={address})"),
                    _ => format!("Set free error. (va={address}; ref_count=2)"),
                });
                Err(error)
            }
        }
    }

    fn is_registered(&self, allocation: &Allocation) -> bool {
        let end = allocation.base.get() + allocation.size;
        self.registrations().any(|registration| {
            registration.base.get() < end && allocation.base.get() < registration.base.get() + registration.bytes
        })
    }

    /// `halHostRegister`.
    ///
    /// # Errors
    ///
    /// By the tables of `driver-source.md` §14, row by row; see the `register_v2` and `register_v3` modules.
    pub fn register(&mut self, call: RegisterCall) -> Result<HostAddr, DrvError> {
        let event =
            Call::Register { address: call.address, bytes: call.bytes, flags: call.flags.0, device: call.device };
        self.call(event, Outcome::Registered, |host| match host.profile.driver.generation {
            Generation::V2 => host.register_v2(&call),
            Generation::V3 => host.register_v3(&call),
        })
    }

    /// `halHostUnregister`.
    ///
    /// # Errors
    ///
    /// By the tables of `driver-source.md` §14.
    pub fn unregister(&mut self, address: DeviceAddr, device: u32) -> Result<(), DrvError> {
        self.call(
            Call::Unregister { address, device, flags: None },
            |()| Outcome::Done,
            |host| match host.profile.driver.generation {
                Generation::V2 => host.unregister_v2(address, device),
                Generation::V3 => host.unregister_v3(address),
            },
        )
    }

    /// `halHostUnregisterEx`.
    ///
    /// # Errors
    ///
    /// As [`SimHost::unregister`], after the checks of the flag word.
    pub fn unregister_ex(&mut self, address: DeviceAddr, device: u32, flags: RegisterFlags) -> Result<(), DrvError> {
        self.call(
            Call::Unregister { address, device, flags: Some(flags.0) },
            |()| Outcome::Done,
            |host| match host.profile.driver.generation {
                Generation::V2 => host.unregister_ex_v2(address, device, flags),
                Generation::V3 => host.unregister_ex_v3(address, flags),
            },
        )
    }

    /// `halMemHostGetDevPointer`: turns a registered *host* pointer into a device pointer, so that for device memory there
    /// is never one.
    ///
    /// # Errors
    ///
    /// v2: `PARA_ERROR` for null, `INVALID_DEVICE`, `NOT_SUPPORT` until the records were asked for, then `NOT_EXIST`. v3
    /// does not define the call: `NOT_SUPPORT`.
    pub fn host_device_pointer(&mut self, address: HostAddr, device: u32) -> Result<DeviceAddr, DrvError> {
        match self.profile.driver.generation {
            Generation::V3 => Err(DrvError::NotSupport),
            Generation::V2 if address == HostAddr::NULL => Err(DrvError::ParaError),
            Generation::V2 if device >= AGENT_LIMIT => Err(DrvError::InvalidDevice),
            Generation::V2 if !self.records.on => Err(DrvError::NotSupport),
            Generation::V2 => Err(DrvError::NotExist),
        }
    }

    /// `halSupportFeature`. On v2, asking for [`FEATURE_REGISTER_RECORDS`] has the side effect of turning them on.
    pub fn support_feature(&mut self, feature: u32) -> bool {
        let supported = self.profile.driver.generation == Generation::V2 && feature == FEATURE_REGISTER_RECORDS;
        self.records.on |= supported;
        supported
    }

    /// `halMemCtl(CTRL_TYPE_SUPPORT_FEATURE)`: the bits of `mask` that this host grants. Bit 1 ordinary pages, 2 device
    /// process memory, 3 huge pages, 4 giant pages (granted by v3 alone).
    pub fn support_features(&mut self, device: u32, mask: u64) -> u64 {
        if device >= 64 {
            return 0;
        }
        let v2 = self.profile.driver.generation == Generation::V2;
        let granted = u64::from(self.capabilities.bar_mem) << 1
            | u64::from(self.capabilities.dev_mem_map_host && v2) << 2
            | u64::from(self.capabilities.bar_huge_mem) << 3
            | u64::from(!v2) << 4;
        let out = mask & granted;
        self.log_line(format!("RTS note drv support feature. (in_feature={mask:#x}; out_feature={out:#x})"));
        out
    }

    /// A synchronous copy from the host to the device (`drvMemcpy`).
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` where a byte of the range has no device memory (assumed: what a copy to such an address gives was
    /// not read).
    pub fn copy_in(&mut self, address: DeviceAddr, from: &[u8]) -> Result<(), DrvError> {
        let call = Call::CopyIn { address, bytes: from.len() as u64 };
        self.call(
            call,
            |()| Outcome::Done,
            |host| {
                host.check_copy(address, from.len() as u64)?;
                host.clock.copy(from.len() as u64);
                host.memory.device_write(address, from);
                host.decided_by(&rules::COPY_DONE);
                Ok(())
            },
        )
    }

    /// A synchronous copy from the device to the host (`drvMemcpy`).
    ///
    /// # Errors
    ///
    /// As [`SimHost::copy_in`].
    pub fn copy_out(&mut self, address: DeviceAddr, into: &mut [u8]) -> Result<(), DrvError> {
        let call = Call::CopyOut { address, bytes: into.len() as u64 };
        self.call(
            call,
            |()| Outcome::Done,
            |host| {
                host.check_copy(address, into.len() as u64)?;
                host.clock.copy(into.len() as u64);
                host.memory.device_read(address, into);
                host.decided_by(&rules::COPY_DONE);
                Ok(())
            },
        )
    }

    fn check_copy(&mut self, address: DeviceAddr, bytes: u64) -> Result<(), DrvError> {
        let has_memory = address
            .checked_add(bytes)
            .is_some_and(|end| self.kernel.pieces(&(address.get()..end.get())).is_some() && bytes > 0);
        if has_memory {
            return Ok(());
        }
        self.log_line(format!("Copy range has no device memory. (va={address}; size={bytes})"));
        Err(self.refusal(&rules::COPY_NOWHERE))
    }

    /// Loads through the host's side, as the CPU would.
    ///
    /// # Errors
    ///
    /// The [`Fault`] that the CPU would have met, without the signal.
    pub fn host_read(&mut self, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
        self.memory.host_read(address, into)
    }

    /// Stores through the host's side, as the CPU would.
    ///
    /// # Errors
    ///
    /// The [`Fault`] that the CPU would have met, without the signal.
    pub fn host_write(&mut self, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
        self.memory.host_write(address, from)
    }

    /// Where a host address of the driver's numbering lies in this process; `None` outside the simulated range, and when
    /// memory is not mapped at all. Loading through it where no registration allows it is a real fault in protected mode.
    #[must_use]
    pub fn pointer(&self, address: HostAddr) -> Option<u64> {
        self.memory.pointer(address)
    }

    /// What the host-access table says of a range, in either mode; the operating system must agree in protected mode.
    #[must_use]
    pub fn table_allows(&self, address: HostAddr, bytes: u64, access: Access) -> bool {
        self.memory.table_allows(address, bytes, access)
    }

    /// The rule that an access of the CPU comes to, as the table has it.
    #[must_use]
    pub fn access_rule(&self, address: HostAddr, bytes: u64, access: Access) -> RuleId {
        let allows = |access| self.table_allows(address, bytes, access);
        let rule = match access {
            _ if allows(access) => &rules::ACCESS_SHOWS,
            Access::Write if allows(Access::Read) => &rules::ACCESS_READ_ONLY,
            Access::Read | Access::Write => &rules::ACCESS_FAULTS,
        };
        rule.id
    }

    /// Closes a device: its memory and registrations vanish, without an error.
    pub fn close_device(&mut self, device: u32) {
        let owned: Vec<Registration> =
            self.registrations().filter(|registration| registration.device == device).collect();
        for registration in owned {
            self.segments.remove(&registration.base.get());
        }
        self.records.by_address.retain(|(owner, _), _| *owner != device);
        self.heaps.close(&mut self.kernel, &mut self.memory, device);
    }

    /// The registrations that the driver holds, in address order.
    #[must_use]
    pub fn registrations(&self) -> Box<dyn Iterator<Item = Registration> + '_> {
        if self.profile.driver.generation == Generation::V3 {
            return Box::new(self.segments.iter().filter_map(|(start, bytes)| {
                let block = self.kernel.block_at(DeviceAddr::new(*start))?;
                let base = DeviceAddr::new(*start);
                Some(Registration { base, bytes: *bytes, kind: block.kind, device: block.device })
            }));
        }
        let kernel = &self.kernel;
        Box::new(kernel.blocks().flat_map(move |block| {
            kernel.first_pages(block).map(move |start| Registration {
                base: DeviceAddr::new(start),
                bytes: kernel.extent(start, block.end, block.kind) - start,
                kind: block.kind,
                device: block.device,
            })
        }))
    }

    /// Live allocations, in address order.
    pub fn allocations(&self) -> impl Iterator<Item = Allocation> + '_ {
        self.heaps.allocations()
    }

    /// The live allocation that holds an address.
    #[must_use]
    pub fn allocation_at(&self, address: DeviceAddr) -> Option<Allocation> {
        self.heaps.allocation_at(address)
    }

    /// Device memory in use, in bytes.
    #[must_use]
    pub fn device_memory_used(&self, device: u32) -> u64 {
        self.kernel.used(device)
    }

    /// The state of the heaps as lines of text.
    #[must_use]
    pub fn describe_heaps(&self) -> Vec<String> {
        self.heaps.describe(&self.kernel)
    }

    /// Plans a fault.
    pub fn plan_fault(&mut self, fault: PlannedFault) {
        self.faults.add(fault);
    }

    /// Forgets the faults that are still to come.
    pub fn clear_faults(&mut self) {
        self.faults.clear();
    }

    /// What happened so far.
    #[must_use]
    pub fn journal(&self) -> &[Event] {
        &self.journal
    }

    /// What the driver wrote so far.
    #[must_use]
    pub fn log(&self) -> &[String] {
        &self.log
    }

    /// Virtual time since the host was made.
    #[must_use]
    pub fn now(&self) -> VirtualTime {
        self.clock.now()
    }

    /// How host access is kept from unregistered memory.
    #[must_use]
    pub fn memory_mode(&self) -> &MemoryMode {
        self.memory.mode()
    }

    /// Whether this host's views lie at the driver's own addresses in this process.
    #[must_use]
    pub fn at_drivers_range(&self) -> bool {
        self.memory.at_drivers_range()
    }

    /// The profile.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Writes a line into the log that is in it at most once.
    pub fn note_once(&mut self, line: &str) {
        if !self.log.iter().any(|written| written == line) {
            self.log.push(line.to_owned());
        }
    }

    pub(crate) fn log_line(&mut self, line: String) {
        self.log.push(line);
    }

    /// The rule that the call follows, which is not one of a refusal.
    pub(crate) fn decided_by(&mut self, rule: &'static Rule) {
        self.rule = Some(rule.id);
    }

    /// What the call answers, by this rule.
    pub(crate) fn refusal(&mut self, rule: &'static Rule) -> DrvError {
        self.decided_by(rule);
        rule.error()
    }

    /// Runs a call: the fault plan first, then its work; its cost and outcome go into the journal.
    fn call<T: Copy>(
        &mut self,
        call: Call,
        outcome: impl FnOnce(T) -> Outcome,
        work: impl FnOnce(&mut Self) -> Result<T, DrvError>,
    ) -> Result<T, DrvError> {
        let before = self.clock.now();
        let struck = self.faults.strike(call.kind());
        let injected = struck.is_some();
        let result = match struck {
            Some(error) => {
                self.log_line(format!("Injected: {} answers {}.", call.kind(), error.name()));
                Err(error)
            }
            None => work(self),
        };
        let outcome = result.map_or_else(Outcome::Failed, outcome);
        let (rule, besides) = (self.rule.take(), self.besides.take());
        self.journal.push(Event { call, outcome, injected, rule, besides, cost: self.clock.now() - before });
        result
    }
}

/// The total cost of the calls of one kind in a journal.
#[must_use]
pub fn cost_of(journal: &[Event], kind: CallKind) -> VirtualTime {
    journal.iter().filter(|event| event.call.kind() == kind).map(|event| event.cost).sum()
}

/// Resident memory of this process, in bytes, where the system tells.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    sys::resident_bytes()
}
