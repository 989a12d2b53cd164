//! The platform over loaded libraries, in their own process.

#![allow(unsafe_code, reason = "the C boundary")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};

use hostview_sim::{AclError, DeviceAddr, DrvError, Fault, HostAddr, PageKind, PagePolicy, PlannedFault, RegisterCall};
use serde::{Deserialize, Serialize};

use super::abi::{Attribute, SupportFeature};
use super::find::{CannotOpen, Layer, Paths};
use super::open::{Loaded, open};
use super::probe;
use super::wire::{Leftover, MachineFacts};
use crate::case::Via;
use crate::code::ErrorCode;
use crate::platform::{MemoryAt, Platform, Unsupported};

/// Flag words of `halMemAlloc` as the runtime builds them. Source: `npu_driver_standard_soc.cc`.
const HBM_ORDINARY: u64 = 0x0090_4400;
const HBM_HUGE: u64 = 0x0092_4400;
/// The runtime's word for high-bandwidth memory, and its page policies. Source: `rt_external_mem.h`.
const RT_MEMORY_HBM: u32 = 2;

/// What the suite may take of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// The devices that laws call 0, 1 and so on.
    pub devices: Vec<u32>,
    /// Device memory at a time, in bytes.
    pub memory: u64,
}

/// An allocation that has not been freed.
#[derive(Clone, Copy, Debug)]
struct Live {
    bytes: u64,
    kind: PageKind,
}

/// A driver library as the platform, called from this process.
#[derive(Debug)]
pub struct LibraryPlatform {
    library: Loaded,
    via: Layer,
    limits: Limits,
    facts: MachineFacts,
    current: Option<u32>,
    allocations: BTreeMap<u64, Live>,
    /// Registrations that this process made and has not ended: base to the device id that was passed.
    registrations: BTreeMap<u64, u32>,
}

impl LibraryPlatform {
    /// Loads the libraries and opens the device.
    ///
    /// # Errors
    ///
    /// A library cannot be loaded, or the device not be opened.
    pub fn open(paths: &Paths, limits: Limits) -> Result<Self, CannotOpen> {
        let mut platform = Self::over(open(paths)?, paths.via, limits);
        if let Some(init) = platform.library.acl.init {
            // SAFETY: null is a configuration by the header.
            let code = unsafe { init(std::ptr::null()) };
            if code != 0 && code != REPEAT_INITIALIZE {
                return Err(CannotOpen::Refused(format!("aclInit answers {code}")));
            }
        }
        let device = platform.device(0);
        platform.set_device(device)?;
        platform.facts = platform.ask_facts(paths);
        Ok(platform)
    }

    /// The platform over libraries that are loaded and need no opening.
    pub(super) fn over(library: Loaded, via: Layer, limits: Limits) -> Self {
        Self {
            library,
            via,
            limits,
            facts: MachineFacts::default(),
            current: None,
            allocations: BTreeMap::new(),
            registrations: BTreeMap::new(),
        }
    }

    /// The same, with nothing allocated or registered.
    pub(crate) fn anew(&self) -> Self {
        let facts = self.facts.clone();
        Self { facts, ..Self::over(self.library.clone(), self.via, self.limits.clone()) }
    }

    /// What the machine says of itself.
    #[must_use]
    pub fn facts(&self) -> &MachineFacts {
        &self.facts
    }

    /// The device that a law's number stands for.
    fn device(&self, number: u32) -> u32 {
        self.limits.devices.get(number as usize).copied().unwrap_or(number)
    }

    fn set_device(&mut self, device: u32) -> Result<(), CannotOpen> {
        if self.current == Some(device) {
            return Ok(());
        }
        if let (Some(set), Ok(id)) = (self.library.acl.set_device, i32::try_from(device)) {
            // SAFETY: takes a number.
            let code = unsafe { set(id) };
            if code != 0 {
                return Err(CannotOpen::Refused(format!("aclrtSetDevice({device}) answers {code}")));
            }
        }
        self.current = Some(device);
        Ok(())
    }

    fn ask_facts(&self, paths: &Paths) -> MachineFacts {
        let Loaded { hal, acl, missing, simulator } = &self.library;
        let device = self.device(0);
        let devices = hal.count.and_then(|count| {
            let mut found = 0;
            // SAFETY: takes a number's place.
            (unsafe { count(&raw mut found) } == 0).then_some(found)
        });
        let memory = acl.memory.and_then(|memory| {
            const HBM_MEM: c_int = 1;
            let (mut free, mut total) = (0, 0);
            // SAFETY: takes two sizes' places.
            let code = unsafe { memory(HBM_MEM, &raw mut free, &raw mut total) };
            (code == 0 && total > 0).then_some(total as u64)
        });
        let acl_version = acl.version.and_then(|version| {
            let (mut major, mut minor, mut patch) = (0, 0, 0);
            // SAFETY: takes three numbers' places.
            let code = unsafe { version(&raw mut major, &raw mut minor, &raw mut patch) };
            (code == 0).then(|| format!("{major}.{minor}.{patch}"))
        });
        MachineFacts {
            soc: self.soc(device),
            devices,
            memory,
            features: self.features(device),
            host_page: host_page(),
            acl_version,
            missing: missing.clone(),
            acl: paths.acl.is_some(),
            simulator: *simulator,
        }
    }

    fn soc(&self, device: u32) -> Option<String> {
        if let Some(name) = self.library.acl.soc_name {
            // SAFETY: takes nothing, and gives a string that lives as long as the library, or null.
            let name = unsafe { name() };
            if !name.is_null() {
                // SAFETY: not null (checked), and ended by a zero by the header.
                return Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned());
            }
        }
        let ask = self.library.hal.soc_version?;
        let mut name = [0_u8; 64];
        // SAFETY: the buffer is longer than the length that is passed, so that it stays ended by a zero.
        let code = unsafe { ask(device, name.as_mut_ptr().cast(), 63) };
        let name = CStr::from_bytes_until_nul(&name).ok()?;
        (code == 0 && !name.is_empty()).then(|| name.to_string_lossy().into_owned())
    }

    fn features(&self, device: u32) -> Option<u64> {
        const SUPPORT_FEATURE: c_int = 2;
        /// Bits 1 to 3: what can be mapped.
        const ASKED: u64 = 0b1110;
        let control = self.library.hal.control?;
        let mut asked = SupportFeature { features: ASKED, device };
        let (mut granted, mut size) = (0_u64, 0_usize);
        // SAFETY: both structures have the size that goes with them.
        let code = unsafe {
            control(
                SUPPORT_FEATURE,
                (&raw mut asked).cast(),
                size_of::<SupportFeature>(),
                (&raw mut granted).cast(),
                &raw mut size,
            )
        };
        (code == 0).then_some(granted)
    }

    /// Ends every registration and frees every allocation that this process made.
    pub fn clean_up(&mut self) -> Leftover {
        let mut leftover = Leftover::default();
        for (base, device) in std::mem::take(&mut self.registrations) {
            match self.end_registration(DeviceAddr::new(base), device) {
                Ok(()) => leftover.unregistered += 1,
                // Nothing is registered there any more: gone with its heap.
                Err(error) if [DrvError::ParaError, DrvError::NotExist].map(ErrorCode::from).contains(&error) => {}
                Err(error) => {
                    leftover.left.push(format!("the registration from {base:#x}: halHostUnregister answers {error}"));
                }
            }
        }
        let bases: Vec<u64> = self.allocations.keys().copied().collect();
        for base in bases {
            match self.free(DeviceAddr::new(base), Via::Hal) {
                Ok(()) => leftover.freed += 1,
                Err(error) => {
                    let bytes = self.allocations.get(&base).map_or(0, |live| live.bytes);
                    leftover.left.push(format!("{bytes} bytes at {base:#x}: halMemFree answers {error}"));
                }
            }
        }
        leftover
    }

    /// Gives the device back; nothing can be called afterwards.
    pub fn close(&mut self) {
        if let (Some(reset), Some(Ok(device))) = (self.library.acl.reset_device, self.current.map(i32::try_from)) {
            // SAFETY: takes a number.
            unsafe { reset(device) };
        }
        if let Some(finalize) = self.library.acl.finalize {
            // SAFETY: takes nothing.
            unsafe { finalize() };
        }
    }

    fn end_registration(&mut self, address: DeviceAddr, device: u32) -> Result<(), ErrorCode> {
        let unregister = self.library.hal.unregister.ok_or(NOT_SUPPORT)?;
        // SAFETY: the driver checks the address; it is not followed here.
        driver(unsafe { unregister(pointer(address.get()), device) })?;
        self.registrations.remove(&address.get());
        Ok(())
    }

    /// `halMemAlloc`, by the page kind.
    fn hal_alloc(&self, device: u32, bytes: u64, kind: PageKind) -> Result<u64, ErrorCode> {
        let alloc = self.library.hal.alloc.ok_or(NOT_SUPPORT)?;
        let word = if kind == PageKind::Huge { HBM_HUGE } else { HBM_ORDINARY };
        let mut base = std::ptr::null_mut();
        // SAFETY: takes a pointer's place.
        driver(unsafe { alloc(&raw mut base, bytes, word | u64::from(device)) })?;
        Ok(base as u64)
    }

    /// The runtime's rule: the policy's kinds in turn.
    fn by_the_runtimes_rule(&self, device: u32, bytes: u64, policy: PagePolicy) -> Result<u64, ErrorCode> {
        let mut answer = Err(NOT_SUPPORT);
        for kind in policy.kinds(bytes) {
            answer = self.hal_alloc(device, bytes, *kind);
            if answer.is_ok() {
                break;
            }
        }
        answer
    }

    fn rt_malloc(&mut self, device: u32, bytes: u64, policy: PagePolicy) -> Result<u64, ErrorCode> {
        let Some(malloc) = self.library.acl.rt_malloc.filter(|_| self.via == Layer::Acl) else {
            return self.by_the_runtimes_rule(device, bytes, policy);
        };
        self.set_device(device).map_err(|_| ErrorCode::from(DrvError::InvalidDevice))?;
        let kind = RT_MEMORY_HBM
            | match policy {
                PagePolicy::HugeFirst => 0x400,
                PagePolicy::HugeOnly => 0x800,
                PagePolicy::NormalOnly => 0x1000,
            };
        let mut base = std::ptr::null_mut();
        // SAFETY: takes a pointer's place.
        let code = unsafe { malloc(&raw mut base, bytes, kind, 0) };
        // A step through the runtime is about the driver's answer, which the runtime gives by its own number.
        runtime(code).map_err(drivers_number)?;
        Ok(base as u64)
    }

    fn acl_malloc(&mut self, device: u32, bytes: u64, policy: PagePolicy) -> Result<u64, ErrorCode> {
        let malloc = self.library.acl.malloc.ok_or(NOT_SUPPORT)?;
        self.set_device(device).map_err(|_| ErrorCode::from(DrvError::InvalidDevice))?;
        let policy = match policy {
            PagePolicy::HugeFirst => 0,
            PagePolicy::HugeOnly => 1,
            PagePolicy::NormalOnly => 2,
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut base = std::ptr::null_mut();
        // SAFETY: takes a pointer's place.
        runtime(unsafe { malloc(&raw mut base, bytes, policy) })?;
        Ok(base as u64)
    }

    /// Whether the suite's own limit stands in the way: of everything but what the device could not hold either.
    fn over_the_limit(&self, bytes: u64) -> bool {
        let held: u64 = self.allocations.values().map(|live| live.bytes).sum();
        let beyond_the_device = self.facts.memory.is_some_and(|memory| bytes > memory);
        held.saturating_add(bytes) > self.limits.memory && !beyond_the_device
    }
}

const NOT_SUPPORT: ErrorCode = ErrorCode(0xfffe);
/// Source: `acl.cpp`: initialised already, by whoever, is no failure.
const REPEAT_INITIALIZE: c_int = 100_002;

/// A copy tells host from device by the address: what is in no shared range the driver would take for memory of this process,
/// and follow it. Source: `svm_define.h`; assumed: the answer, which is the simulator's.
fn on_a_device(address: DeviceAddr) -> Result<(), ErrorCode> {
    const SHARED: std::ops::Range<u64> = 0x1000_0000_0000..0x1800_0000_0000;
    if SHARED.contains(&address.get()) { Ok(()) } else { Err(DrvError::InvalidValue.into()) }
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// An answer of the driver.
fn driver(code: c_int) -> Result<(), ErrorCode> {
    // A negative number is no error of the driver's: it is shown as it is.
    if code == 0 { Ok(()) } else { Err(ErrorCode(code.cast_unsigned())) }
}

/// An answer of the runtime.
fn runtime(code: c_int) -> Result<(), ErrorCode> {
    driver(code)
}

/// The driver's number behind one of the runtime's, where there is only one. Source: `errcode_manage.cc`.
fn drivers_number(code: ErrorCode) -> ErrorCode {
    let all = DrvError::ALL.iter().copied();
    let mut behind = all.filter(|error| ErrorCode::from(AclError::from(*error)) == code);
    match (behind.next(), behind.next()) {
        (Some(error), None) => error.into(),
        _ => code,
    }
}

fn host_page() -> u64 {
    // SAFETY: asks the system for a number.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Platform for LibraryPlatform {
    fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy, via: Via) -> Result<DeviceAddr, ErrorCode> {
        if self.over_the_limit(bytes) {
            let error = DrvError::OutOfMemory;
            return Err(if via == Via::Acl { AclError::from(error).into() } else { error.into() });
        }
        let device = self.device(device);
        let base = match via {
            Via::Rt => self.rt_malloc(device, bytes, policy),
            Via::Acl => self.acl_malloc(device, bytes, policy),
            Via::Hal => self.hal_alloc(device, bytes, policy.kinds(bytes)[0]),
        }?;
        self.allocations.insert(base, Live { bytes, kind: policy.kinds(bytes)[0] });
        Ok(DeviceAddr::new(base))
    }

    fn free(&mut self, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
        let free = match via {
            Via::Rt | Via::Hal => self.library.hal.free,
            Via::Acl => self.library.acl.free,
        };
        // SAFETY: the driver checks the address; it is not followed here.
        driver(unsafe { free.ok_or(NOT_SUPPORT)?(pointer(address.get())) })?;
        self.allocations.remove(&address.get());
        Ok(())
    }

    fn register(&mut self, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
        let register = self.library.hal.register.ok_or(NOT_SUPPORT)?;
        let device = self.device(call.device);
        let mut view = std::ptr::null_mut();
        let place = if call.has_dst { &raw mut view } else { std::ptr::null_mut() };
        // SAFETY: the driver checks the address and the size; `place` is null or takes a pointer.
        driver(unsafe { register(pointer(call.address.get()), call.bytes, call.flags.0, device, place) })?;
        self.registrations.insert(call.address.get(), device);
        Ok(HostAddr::new(view as u64))
    }

    fn unregister(&mut self, address: DeviceAddr, device: u32) -> Result<(), ErrorCode> {
        self.end_registration(address, self.device(device))
    }

    fn unregister_ex(&mut self, address: DeviceAddr, device: u32, flags: u32) -> Result<(), ErrorCode> {
        let unregister = self.library.hal.unregister_ex.ok_or(NOT_SUPPORT)?;
        // SAFETY: the driver checks the address; it is not followed here.
        driver(unsafe { unregister(pointer(address.get()), self.device(device), flags) })?;
        self.registrations.remove(&address.get());
        Ok(())
    }

    fn copy_in(&mut self, address: DeviceAddr, from: &[u8]) -> Result<(), ErrorCode> {
        on_a_device(address)?;
        let copy = self.library.hal.copy.ok_or(NOT_SUPPORT)?;
        // SAFETY: `from` is ours and as long as it says; the driver checks the device's side.
        driver(unsafe { copy(address.get(), from.len(), from.as_ptr() as u64, from.len()) })
    }

    fn copy_out(&mut self, address: DeviceAddr, into: &mut [u8]) -> Result<(), ErrorCode> {
        on_a_device(address)?;
        let copy = self.library.hal.copy.ok_or(NOT_SUPPORT)?;
        // SAFETY: `into` is ours and as long as it says; the driver checks the device's side.
        driver(unsafe { copy(into.as_mut_ptr() as u64, into.len(), address.get(), into.len()) })
    }

    fn host_read(&mut self, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
        probe::read(address, into)
    }

    fn host_write(&mut self, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
        probe::write(address, from)
    }

    fn plan_fault(&mut self, _fault: PlannedFault) -> Result<(), Unsupported> {
        Err(Unsupported("a driver library fails no call on demand".to_owned()))
    }

    fn log(&self) -> &[String] {
        &[]
    }

    fn keeps_log(&self) -> bool {
        false
    }

    fn memory_at(&self, address: DeviceAddr) -> Option<MemoryAt> {
        if let Some(attribute) = self.library.hal.attribute {
            let mut found = Attribute::default();
            // SAFETY: takes the structure's place; the address is not followed here.
            let code = unsafe { attribute(address.get(), &raw mut found) };
            if code == 0 && found.page_size > 0 {
                return Some(MemoryAt { page: u64::from(found.page_size), device: Some(found.device) });
            }
        }
        let (base, live) = self.allocations.range(..=address.get()).next_back()?;
        let page = if live.kind == PageKind::Huge { 2 << 20 } else { 4096 };
        (address.get() < base + live.bytes).then_some(MemoryAt { page, device: None })
    }

    fn give_back(&mut self) -> Option<Leftover> {
        Some(self.clean_up())
    }
}
