//! The simulated device as `libascend_hal.so`: a thin C face over `hostview-sim`.
//!
//! Signatures, constants and error numbers are those of `ascend_hal_base.h` and `ascend_hal_error.h`. What is not simulated
//! answers `DRV_ERROR_NOT_SUPPORT`, and says so once in the log. Nothing panics across the C boundary.
//!
//! The environment configures it: `HOSTVIEW_PROFILE`, `HOSTVIEW_DEVICES`, `HOSTVIEW_LOG`, `HOSTVIEW_JOURNAL`,
//! `HOSTVIEW_FAULTS`, `HOSTVIEW_PACE`.

#![allow(unsafe_code, reason = "the C boundary")]

mod config;
pub mod control;
mod host_memory;
mod state;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use hostview_sim::{
    AGENT_LIMIT, DeviceAddr, DeviceProfile, DrvError, Generation, HostAddr, PageKind, RegisterCall, RegisterFlags,
    SimHost,
};

use state::{with_host, with_state};

/// `DRV_ERROR_NONE`.
const NONE: c_int = 0;

/// `halMemAlloc`'s flag word. Source: `ascend_hal_define.h`.
mod alloc_flags {
    pub(crate) const DEVICE: u64 = 0x3ff;
    pub(crate) const VIRTUAL_KIND: u64 = 0xf << 10;
    pub(crate) const MEM_DEV: u64 = 1 << 10;
    pub(crate) const MEM_HOST: u64 = 2 << 10;
    pub(crate) const HUGE: u64 = 1 << 17;
    pub(crate) const CONTIGUOUS: u64 = 1 << 19;
    pub(crate) const GIANT: u64 = 1 << 31;
    pub(crate) const READ_ONLY: u64 = 1 << 29;
}

/// An answer as C sees it; a panic, which would be a fault of this library, is INNER_ERR.
fn answer(call: impl FnOnce() -> Result<(), DrvError>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(DrvError::InnerErr));
    match result {
        Ok(()) => NONE,
        Err(error) => c_int::try_from(error.code()).unwrap_or(c_int::MAX),
    }
}

fn address(pointer: *const c_void) -> DeviceAddr {
    DeviceAddr::new(pointer as u64)
}

/// A number as the pointer that C wants to see; it is handed out and never followed here.
fn pointer(value: u64) -> *mut c_void {
    std::ptr::without_provenance_mut(usize::try_from(value).unwrap_or(0))
}

/// Puts a value where a caller asked for it.
///
/// # Safety
///
/// `place` is null, or points to memory that can take a `T`.
unsafe fn put<T>(place: *mut T, value: T) -> Result<(), DrvError> {
    if place.is_null() {
        return Err(DrvError::InvalidValue);
    }
    // SAFETY: not null (checked), and valid for a write by the caller's promise.
    unsafe { place.write_unaligned(value) };
    Ok(())
}

/// Allocates device memory.
///
/// # Safety
///
/// `pp` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn halMemAlloc(pp: *mut *mut c_void, size: u64, flag: u64) -> c_int {
    answer(|| {
        if pp.is_null() {
            return Err(DrvError::InvalidValue);
        }
        if flag & alloc_flags::VIRTUAL_KIND == alloc_flags::MEM_HOST {
            let memory = host_memory::allocate(size)?;
            // SAFETY: as this function's own contract says of `pp`.
            return unsafe { put(pp, memory) };
        }
        let base = with_host(|host| {
            if flag & alloc_flags::VIRTUAL_KIND != alloc_flags::MEM_DEV || flag & alloc_flags::READ_ONLY != 0 {
                return not_simulated(host, "halMemAlloc of another kind than writable MEM_DEV");
            }
            if flag & alloc_flags::GIANT != 0 {
                return not_simulated(host, "halMemAlloc of giant pages");
            }
            let huge = flag & alloc_flags::HUGE != 0;
            // Source: contiguous memory has ordinary pages and at most 4 MiB.
            if flag & alloc_flags::CONTIGUOUS != 0 && (huge || size > 4 << 20) {
                return Err(DrvError::InvalidValue);
            }
            let device = u32::try_from(flag & alloc_flags::DEVICE).unwrap_or(u32::MAX);
            host.alloc(device, if huge { PageKind::Huge } else { PageKind::Ordinary }, size)
        })?;
        // SAFETY: as this function's own contract says of `pp`.
        unsafe { put(pp, pointer(base.get())) }
    })
}

/// Frees device memory.
#[unsafe(no_mangle)]
pub extern "C" fn halMemFree(pp: *mut c_void) -> c_int {
    answer(|| {
        if host_memory::free(pp) {
            return Ok(());
        }
        with_host(|host| host.free(address(pp)))
    })
}

/// Registers memory.
///
/// # Safety
///
/// `dst_ptr` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn halHostRegister(
    src_ptr: *mut c_void,
    size: u64,
    flag: c_uint,
    devid: c_uint,
    dst_ptr: *mut *mut c_void,
) -> c_int {
    answer(|| {
        let view = with_host(|host| {
            let has_dst = !dst_ptr.is_null();
            let call = RegisterCall {
                flags: RegisterFlags(flag),
                device: devid,
                has_dst,
                ..RegisterCall::view(address(src_ptr), size)
            };
            let view = host.register(call)?;
            // Where another simulated host sits at the driver's addresses, the view lies elsewhere in this process.
            Ok(host.pointer(view).unwrap_or(view.get()))
        })?;
        // SAFETY: as this function's own contract says of `dst_ptr`.
        unsafe { put(dst_ptr, pointer(view)) }
    })
}

/// Ends a registration.
#[unsafe(no_mangle)]
pub extern "C" fn halHostUnregister(src_ptr: *mut c_void, devid: c_uint) -> c_int {
    answer(|| with_host(|host| host.unregister(address(src_ptr), devid)))
}

/// Ends a registration of a given kind.
#[unsafe(no_mangle)]
pub extern "C" fn halHostUnregisterEx(src_ptr: *mut c_void, devid: c_uint, flag: c_uint) -> c_int {
    answer(|| with_host(|host| host.unregister_ex(address(src_ptr), devid, RegisterFlags(flag))))
}

/// Turns a registered host pointer into a device pointer.
///
/// # Safety
///
/// `dst_ptr` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn halMemHostGetDevPointer(src_ptr: *mut c_void, devid: u32, dst_ptr: *mut *mut c_void) -> c_int {
    answer(|| {
        // Source: `devmm_svm.c`: a null on either side is PARA_ERROR here.
        if dst_ptr.is_null() {
            return Err(DrvError::ParaError);
        }
        let found = with_host(|host| host.host_device_pointer(HostAddr::new(src_ptr as u64), devid))?;
        // SAFETY: as this function's own contract says of `dst_ptr`.
        unsafe { put(dst_ptr, pointer(found.get())) }
    })
}

/// What host memory an accelerator can reach: says nothing on device memory, and is not simulated beyond its checks.
///
/// # Safety
///
/// `mem_map_cap` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn halHostRegisterCapabilities(devid: u32, acc_module_type: u32, mem_map_cap: *mut u32) -> c_int {
    const ACCELERATORS: u32 = 10;
    answer(|| {
        with_host(|host| {
            if devid >= host.profile().device.count {
                return Err(DrvError::InvalidDevice);
            }
            if mem_map_cap.is_null() {
                return Err(DrvError::InvalidValue);
            }
            if acc_module_type >= ACCELERATORS {
                return Err(DrvError::NotSupport);
            }
            not_simulated(host, "halHostRegisterCapabilities")
        })
    })
}

/// `struct supportFeaturePara`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SupportFeature {
    support_feature: u64,
    devid: u32,
}

/// Control calls: the feature query alone.
///
/// # Safety
///
/// The pointers are null or point to memory of the sizes that go with them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn halMemCtl(
    kind: c_int,
    param_value: *mut c_void,
    param_value_size: usize,
    out_value: *mut c_void,
    out_size_ret: *mut usize,
) -> c_int {
    const SUPPORT_FEATURE: c_int = 2;
    answer(|| {
        if kind != SUPPORT_FEATURE {
            return with_host(|host| not_simulated(host, "halMemCtl of another type than SUPPORT_FEATURE"));
        }
        let needed = size_of::<SupportFeature>();
        if param_value.is_null() || out_value.is_null() || param_value_size < needed {
            return Err(DrvError::InvalidValue);
        }
        // SAFETY: not null and of the size of the struct (checked), readable by the caller's promise.
        let asked = unsafe { param_value.cast::<SupportFeature>().read_unaligned() };
        let granted = with_host(|host| Ok(host.support_features(asked.devid, asked.support_feature)))?;
        // SAFETY: not null (checked), and the caller promises room for the answer, whose first member this is.
        unsafe { out_value.cast::<u64>().write_unaligned(granted) };
        if !out_size_ret.is_null() {
            // SAFETY: not null (checked), valid for a write by the caller's promise.
            unsafe { out_size_ret.write_unaligned(needed) };
        }
        Ok(())
    })
}

/// Whether a feature is there; asking for the register records turns them on.
#[unsafe(no_mangle)]
pub extern "C" fn halSupportFeature(_devid: u32, feature: c_uint) -> bool {
    catch_unwind(|| with_host(|host| Ok(host.support_feature(feature))).unwrap_or(false)).unwrap_or(false)
}

/// How many devices there are.
///
/// # Safety
///
/// `num_dev` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drvGetDevNum(num_dev: *mut u32) -> c_int {
    answer(|| {
        let count = with_host(|host| Ok(host.profile().device.count))?;
        // SAFETY: as this function's own contract says of `num_dev`.
        unsafe { put(num_dev, count) }
    })
}

/// Device information. Nothing that a client of these calls depends on is simulated.
#[unsafe(no_mangle)]
pub extern "C" fn halGetDeviceInfo(devid: u32, _module: i32, _info: i32, value: *mut i64) -> c_int {
    answer(|| {
        with_host(|host| {
            if value.is_null() {
                return Err(DrvError::InvalidValue);
            }
            if devid >= host.profile().device.count {
                return Err(DrvError::InvalidDevice);
            }
            not_simulated(host, "halGetDeviceInfo")
        })
    })
}

/// `struct DVattribute`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Attribute {
    mem_type: u32,
    resv1: u32,
    resv2: u32,
    dev_id: u32,
    page_size: u32,
    resv: [u32; 8],
}

/// What kind of memory an address is.
///
/// # Safety
///
/// `attr` is null or points to a `struct DVattribute`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drvMemGetAttribute(vptr: u64, attr: *mut Attribute) -> c_int {
    const LOCK_HOST: u32 = 0x8;
    const LOCK_DEV: u32 = 0x10;
    answer(|| {
        if attr.is_null() {
            return Err(DrvError::InvalidValue);
        }
        let found = with_host(|host| {
            let at = DeviceAddr::new(vptr);
            let plain = Attribute { mem_type: LOCK_HOST, resv1: 0, resv2: 0, dev_id: 0, page_size: 0, resv: [0; 8] };
            if !host.profile().in_svm_range(at) {
                return Ok(plain);
            }
            let allocation = host.allocation_at(at).ok_or(DrvError::NotExist)?;
            let own = host.profile().page(allocation.kind);
            // Source: for ordinary memory the larger of the device's and the host's page, although the grain is 4 KiB.
            let page = if allocation.kind == PageKind::Huge { own } else { own.max(host.profile().host.page_size) };
            let page_size = u32::try_from(page.bytes()).unwrap_or(0);
            Ok(Attribute { mem_type: LOCK_DEV, dev_id: allocation.device, page_size, ..plain })
        })?;
        // SAFETY: as this function's own contract says of `attr`.
        unsafe { put(attr, found) }
    })
}

/// A synchronous copy; which side an address is on is told from the address.
///
/// # Safety
///
/// An address outside the shared range points to memory of this process that `byte_count` bytes can be read from or written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn drvMemcpy(dst: u64, dest_max: usize, src: u64, byte_count: usize) -> c_int {
    answer(|| {
        if byte_count == 0 || byte_count > dest_max {
            return Err(DrvError::InvalidValue);
        }
        with_host(|host| {
            let on_device = |at: u64| host.profile().in_svm_range(DeviceAddr::new(at));
            let (to, from) = (on_device(dst), on_device(src));
            if (!to && dst == 0) || (!from && src == 0) {
                return Err(DrvError::InvalidValue);
            }
            let mut passing;
            let bytes: &[u8] = if from {
                passing = vec![0; byte_count];
                host.copy_out(DeviceAddr::new(src), &mut passing)?;
                &passing
            } else {
                // SAFETY: host memory of this process by the caller's promise, not null (checked above).
                unsafe { std::slice::from_raw_parts(pointer(src).cast::<u8>(), byte_count) }
            };
            if to {
                return host.copy_in(DeviceAddr::new(dst), bytes);
            }
            // SAFETY: host memory of this process by the caller's promise, not null; `copy` allows an overlap.
            unsafe { std::ptr::copy(bytes.as_ptr(), pointer(dst).cast::<u8>(), byte_count) };
            Ok(())
        })
    })
}

/// `struct memcpy_info`: the direction, which is told from the addresses anyway.
///
/// # Safety
///
/// As [`drvMemcpy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn halMemcpy(
    dst: *mut c_void,
    dst_size: usize,
    src: *mut c_void,
    count: usize,
    _info: *mut c_void,
) -> c_int {
    // SAFETY: this function's contract is that of `drvMemcpy`.
    unsafe { drvMemcpy(dst as u64, dst_size, src as u64, count) }
}

/// Sets device memory to a byte.
#[unsafe(no_mangle)]
pub extern "C" fn drvMemsetD8(dst: u64, dest_max: usize, value: u8, num: usize) -> c_int {
    const PIECE: usize = 1 << 20;
    answer(|| {
        if num == 0 || num > dest_max {
            return Err(DrvError::InvalidValue);
        }
        with_host(|host| {
            let piece = vec![value; num.min(PIECE)];
            let mut done = 0;
            while done < num {
                let len = (num - done).min(PIECE);
                host.copy_in(DeviceAddr::new(dst).wrapping_add(done as u64), &piece[..len])?;
                done += len;
            }
            Ok(())
        })
    })
}

/// Opens a device's memory: there is nothing to do.
#[unsafe(no_mangle)]
pub extern "C" fn drvMemDeviceOpen(devid: u32, _devfd: c_int) -> c_int {
    answer(|| {
        let there = with_host(|host| Ok(devid < host.profile().device.count))?;
        if devid >= AGENT_LIMIT || !there { Err(DrvError::InvalidDevice) } else { Ok(()) }
    })
}

/// Closes a device's memory: what is registered there vanishes without an error.
#[unsafe(no_mangle)]
pub extern "C" fn drvMemDeviceClose(devid: u32) -> c_int {
    answer(|| {
        with_state(|state| {
            if devid >= state.host.profile().device.count {
                return Err(DrvError::InvalidDevice);
            }
            state.close_device(devid);
            Ok(())
        })
    })
}

/// Free and total memory of a device, for `libascendcl.so`; no real driver has this.
///
/// # Safety
///
/// `free` and `total` are null or point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostviewMemInfo(devid: u32, free: *mut u64, total: *mut u64) -> c_int {
    answer(|| {
        let (left, all) = with_host(|host| {
            let DeviceProfile { count, memory, .. } = host.profile().device;
            if devid >= count {
                return Err(DrvError::InvalidDevice);
            }
            Ok((memory - host.device_memory_used(devid), memory))
        })?;
        // SAFETY: as this function's own contract says of both.
        unsafe { put(free, left).and_then(|()| put(total, all)) }
    })
}

/// The name of the chip, as the runtime asks for it. Assumed: the signature, which the facts at hand only name.
///
/// # Safety
///
/// `soc_version` is null or points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn halGetSocVersion(devid: u32, soc_version: *mut c_char, len: u32) -> c_int {
    answer(|| {
        let name = with_host(|host| {
            if devid >= host.profile().device.count {
                return Err(DrvError::InvalidDevice);
            }
            Ok(match host.profile().driver.generation {
                Generation::V2 => c"Ascend910_9392",
                Generation::V3 => c"Ascend950",
            })
        })?;
        let name = name.to_bytes_with_nul();
        if soc_version.is_null() || (len as usize) < name.len() {
            return Err(DrvError::InvalidValue);
        }
        // SAFETY: not null and long enough (checked), writable by the caller's promise; the two cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(name.as_ptr().cast(), soc_version, name.len()) };
        Ok(())
    })
}

fn not_simulated<T>(host: &mut SimHost, what: &str) -> Result<T, DrvError> {
    host.note_once(&format!("hostview: not simulated: {what}"));
    Err(DrvError::NotSupport)
}
