//! `libascendcl.so` for the simulated device: the ACL and runtime calls of memory, over the HAL library beside it.
//!
//! The checks, their order and their numbers are those of the open CANN runtime (`memory.cpp`, `api_error.cc`, `api_impl.cc`, `npu_driver_mem.cc`). It reaches memory only
//! through `libascend_hal.so`, as the real one does. What is not simulated answers 207000. Nothing panics across the C boundary.

#![allow(unsafe_code, reason = "the C boundary")]

mod error;
mod hal;

use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use error::{
    CONTEXT_NULL, CONTEXT_RELEASE_ERROR, FEATURE_NOT_SUPPORT, INTERNAL_ERROR, INVALID_DEVICE, INVALID_MEMORY_TYPE,
    INVALID_PARAM, PARAM_INVALID, REPEAT_FINALIZE, REPEAT_INITIALIZE, SUCCESS, from_driver, remember,
};
use hal::{Attribute, Hal, hal};

/// Flag words of `halMemAlloc`, as the runtime builds them. Source: `npu_driver_standard_soc.cc`.
const HBM_HUGE: u64 = 0x0092_4400;
const HBM_ORDINARY: u64 = 0x0090_4400;
const HOST: u64 = 0x0090_0800;
/// The ACL layer's module id, APP, in bits 56 and up.
const MODULE_APP: u64 = 33 << 56;
/// Source: `npu_driver_base.hpp`: over this, a policy that prefers huge pages asks for them.
const HUGE_ABOVE: u64 = 1 << 20;

#[derive(Default)]
struct Process {
    inits: u32,
    finalized: bool,
    /// How often each device was set and not reset.
    devices: HashMap<i32, u32>,
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);

thread_local! {
    static DEVICE: Cell<Option<i32>> = const { Cell::new(None) };
}

fn process<T>(work: impl FnOnce(&mut Process) -> T) -> T {
    let mut process = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    work(process.get_or_insert_with(Process::default))
}

/// A call: its number, kept for `aclGetRecentErrMsg`; a panic, which would be a fault of this library, is 500000.
fn call(name: &str, work: impl FnOnce() -> Result<(), c_int>) -> c_int {
    let code = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => INTERNAL_ERROR,
    };
    remember(name, code)
}

fn loaded() -> Result<&'static Hal, c_int> {
    hal().ok_or(INTERNAL_ERROR)
}

fn driver(code: c_int) -> Result<(), c_int> {
    match from_driver(code) {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

fn check(good: bool, code: c_int) -> Result<(), c_int> {
    if good { Ok(()) } else { Err(code) }
}

fn context() -> Result<i32, c_int> {
    DEVICE.get().ok_or(CONTEXT_NULL)
}

fn device_count() -> Result<u32, c_int> {
    let mut count = 0;
    // SAFETY: `count` takes a number.
    driver(unsafe { (loaded()?.device_count)(&raw mut count) })?;
    Ok(count)
}

/// Initialises; counted.
#[unsafe(no_mangle)]
pub extern "C" fn aclInit(_config: *const c_char) -> c_int {
    call("aclInit", || {
        let again = process(|process| {
            process.inits += 1;
            process.finalized = false;
            process.inits > 1
        });
        check(!again, REPEAT_INITIALIZE)
    })
}

/// Finalizes.
#[unsafe(no_mangle)]
pub extern "C" fn aclFinalize() -> c_int {
    call("aclFinalize", || {
        let again = process(|process| {
            process.inits = 0;
            std::mem::replace(&mut process.finalized, true)
        });
        check(!again, REPEAT_FINALIZE)
    })
}

/// The message of the last failure of this thread, or null.
#[unsafe(no_mangle)]
pub extern "C" fn aclGetRecentErrMsg() -> *const c_char {
    error::recent()
}

/// The name of the chip, or null where the driver does not say.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtGetSocName() -> *const c_char {
    catch_unwind(|| hal().and_then(Hal::soc_name)).ok().flatten().map_or(std::ptr::null(), CStr::as_ptr)
}

/// The version of the ACL headers that this library follows.
///
/// # Safety
///
/// The pointers are null or point to numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetVersion(major: *mut i32, minor: *mut i32, patch: *mut i32) -> c_int {
    call("aclrtGetVersion", || {
        for (place, value) in [(major, 1), (minor, 17), (patch, 0)] {
            check(!place.is_null(), INVALID_PARAM)?;
            // SAFETY: not null (checked), writable by the caller's promise.
            unsafe { place.write_unaligned(value) };
        }
        Ok(())
    })
}

/// How many devices there are.
///
/// # Safety
///
/// `count` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDeviceCount(count: *mut u32) -> c_int {
    call("aclrtGetDeviceCount", || {
        check(!count.is_null(), INVALID_PARAM)?;
        let found = device_count()?;
        // SAFETY: not null (checked), writable by the caller's promise.
        unsafe { count.write_unaligned(found) };
        Ok(())
    })
}

/// Makes a device this thread's.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtSetDevice(device: i32) -> c_int {
    call("aclrtSetDevice", || {
        let there = u32::try_from(device).is_ok_and(|device| device_count().is_ok_and(|count| device < count));
        check(there, INVALID_DEVICE)?;
        process(|process| *process.devices.entry(device).or_default() += 1);
        DEVICE.set(Some(device));
        Ok(())
    })
}

/// This thread's device.
///
/// # Safety
///
/// `device` is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetDevice(device: *mut i32) -> c_int {
    call("aclrtGetDevice", || {
        check(!device.is_null(), INVALID_PARAM)?;
        let current = context()?;
        // SAFETY: not null (checked), writable by the caller's promise.
        unsafe { device.write_unaligned(current) };
        Ok(())
    })
}

/// Gives a device back; the last time its memory and registrations vanish.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtResetDevice(device: i32) -> c_int {
    call("aclrtResetDevice", || {
        let left = process(|process| {
            let count = process.devices.get_mut(&device).filter(|count| **count > 0)?;
            *count -= 1;
            Some(*count)
        });
        let left = left.ok_or(CONTEXT_RELEASE_ERROR)?;
        if left == 0 {
            if DEVICE.get() == Some(device) {
                DEVICE.set(None);
            }
            let device = u32::try_from(device).map_err(|_| INVALID_DEVICE)?;
            driver((loaded()?.close)(device))?;
        }
        Ok(())
    })
}

/// What the runtime makes of a page policy.
#[derive(Clone, Copy)]
enum Pages {
    HugeFirst,
    Huge,
    Ordinary,
}

impl Pages {
    /// `aclrtMemMallocPolicy`. Source: `memory.cpp`: what it does not know is the rule of `HUGE_FIRST`; P2P with huge pages gets
    /// ordinary ones through this call; giant pages are not simulated.
    fn of_policy(policy: c_int) -> Result<Self, c_int> {
        match policy {
            1 => Ok(Self::Huge),
            2..=5 => Ok(Self::Ordinary),
            6 | 7 => Err(FEATURE_NOT_SUPPORT),
            _ => Ok(Self::HugeFirst),
        }
    }

    /// The policy bits of an `rtMemType_t`. Source: `rt_external_mem.h`.
    fn of_type(kind: u32) -> Result<Self, c_int> {
        const HUGE_ONLY: u32 = 0x800;
        const ORDINARY: [u32; 4] = [0x1000, 0x2000, 0x4000, 0x8000];
        const GIANT: u32 = 0x10000 | 0x20000;
        match kind & 0x3_fc00 {
            HUGE_ONLY => Ok(Self::Huge),
            bits if ORDINARY.contains(&bits) => Ok(Self::Ordinary),
            bits if bits & GIANT != 0 => Err(FEATURE_NOT_SUPPORT),
            _ => Ok(Self::HugeFirst),
        }
    }
}

fn allocate(place: *mut *mut c_void, size: u64, pages: Pages, module: u64, device: i32) -> Result<(), c_int> {
    let hal = loaded()?;
    let device = u64::try_from(device).map_err(|_| INVALID_DEVICE)?;
    // SAFETY: the caller checked that `place` is not null, and promises that it points to a pointer.
    let ask = |word: u64| driver(unsafe { (hal.alloc)(place, size, word | device | module) });
    let once = || match pages {
        Pages::Huge => ask(HBM_HUGE),
        Pages::HugeFirst if size > HUGE_ABOVE => ask(HBM_HUGE).or_else(|_| ask(HBM_ORDINARY)),
        Pages::HugeFirst | Pages::Ordinary => ask(HBM_ORDINARY),
    };
    // Source: `api_impl.cc`: on failure all of it is tried once more.
    once().or_else(|_| once())
}

fn padded(size: usize, pad: bool) -> Option<u64> {
    // Source: the platform's ini files: `padding_size` is 0 on Ascend950 and 32 elsewhere, as where it is not known.
    let unpadded = || hal().and_then(Hal::soc_name).is_some_and(|name| name.to_bytes().starts_with(b"Ascend950"));
    let append = if pad && !unpadded() { 64 } else { 32 };
    let size = u64::try_from(size).ok()?;
    Some((size.checked_add(append)? - 1) / 32 * 32)
}

fn acl_malloc(name: &str, place: *mut *mut c_void, size: usize, policy: c_int, pad: bool) -> c_int {
    call(name, || {
        check(!place.is_null() && size > 0, INVALID_PARAM)?;
        let size = padded(size, pad).ok_or(INVALID_PARAM)?;
        allocate(place, size, Pages::of_policy(policy)?, MODULE_APP, context()?)
    })
}

/// Allocates device memory, padded.
///
/// # Safety
///
/// `dev_ptr` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMalloc(dev_ptr: *mut *mut c_void, size: usize, policy: c_int) -> c_int {
    acl_malloc("aclrtMalloc", dev_ptr, size, policy, true)
}

/// Allocates device memory, rounded up to 32 bytes.
///
/// # Safety
///
/// `dev_ptr` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocAlign32(dev_ptr: *mut *mut c_void, size: usize, policy: c_int) -> c_int {
    acl_malloc("aclrtMallocAlign32", dev_ptr, size, policy, false)
}

/// Allocates cached memory: of a kind that is not simulated.
///
/// # Safety
///
/// `dev_ptr` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocCached(dev_ptr: *mut *mut c_void, size: usize, _policy: c_int) -> c_int {
    call("aclrtMallocCached", || {
        check(!dev_ptr.is_null() && size > 0, INVALID_PARAM)?;
        context()?;
        Err(FEATURE_NOT_SUPPORT)
    })
}

/// Frees device memory.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtFree(dev_ptr: *mut c_void) -> c_int {
    call("aclrtFree", || {
        check(!dev_ptr.is_null(), INVALID_PARAM)?;
        driver((loaded()?.free)(dev_ptr))
    })
}

/// Allocates host memory.
///
/// # Safety
///
/// `host_ptr` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMallocHost(host_ptr: *mut *mut c_void, size: usize) -> c_int {
    call("aclrtMallocHost", || {
        check(!host_ptr.is_null() && size > 0, INVALID_PARAM)?;
        context()?;
        let size = padded(size, false).ok_or(INVALID_PARAM)?;
        // SAFETY: not null (checked), and points to a pointer by the caller's promise.
        driver(unsafe { (loaded()?.alloc)(host_ptr, size, HOST | MODULE_APP) })
    })
}

/// Frees host memory.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtFreeHost(host_ptr: *mut c_void) -> c_int {
    const LOCK_DEV: u32 = 0x10;
    call("aclrtFreeHost", || {
        check(!host_ptr.is_null(), INVALID_PARAM)?;
        let hal = loaded()?;
        let mut found = Attribute::default();
        // SAFETY: `found` takes the attributes.
        let code = unsafe { (hal.attribute)(host_ptr as u64, &raw mut found) };
        check(code == 0 && found.mem_type & LOCK_DEV == 0, PARAM_INVALID)?;
        driver((hal.free)(host_ptr))
    })
}

fn copy(dst: *mut c_void, dest_max: usize, src: *const c_void, count: usize) -> Result<(), c_int> {
    check(dest_max > 0 && count <= dest_max, PARAM_INVALID)?;
    if std::ptr::eq(dst, src) {
        return Ok(());
    }
    context()?;
    // SAFETY: the caller promises that addresses of the host can be read and written.
    driver(unsafe { (loaded()?.copy)(dst as u64, dest_max, src as u64, count) })
}

/// Copies; the addresses say which way.
///
/// # Safety
///
/// Addresses outside the shared range point to memory of this process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtMemcpy(
    dst: *mut c_void,
    dest_max: usize,
    src: *const c_void,
    count: usize,
    kind: c_int,
) -> c_int {
    call("aclrtMemcpy", || {
        if count == 0 {
            return Ok(());
        }
        check(!dst.is_null() && !src.is_null() && (0..=5).contains(&kind), INVALID_PARAM)?;
        copy(dst, dest_max, src, count)
    })
}

/// Sets device memory.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtMemset(dev_ptr: *mut c_void, max_count: usize, value: i32, count: usize) -> c_int {
    call("aclrtMemset", || {
        if count == 0 {
            return Ok(());
        }
        check(!dev_ptr.is_null(), INVALID_PARAM)?;
        context()?;
        #[allow(clippy::cast_sign_loss, reason = "the low byte is what is meant")]
        driver((loaded()?.set)(dev_ptr as u64, max_count, value as u8, count))
    })
}

/// Free and total device memory.
///
/// # Safety
///
/// `free` and `total` are null or point to sizes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtGetMemInfo(attr: c_int, free: *mut usize, total: *mut usize) -> c_int {
    /// DDR and its parts: there is none.
    const DDR: [c_int; 5] = [0, 2, 3, 6, 7];
    call("aclrtGetMemInfo", || {
        check(!free.is_null() && !total.is_null(), INVALID_PARAM)?;
        check((0..=17).contains(&attr), INVALID_MEMORY_TYPE)?;
        let device = u32::try_from(context()?).map_err(|_| INVALID_DEVICE)?;
        let ask = loaded()?.memory.ok_or(FEATURE_NOT_SUPPORT)?;
        let (mut left, mut all) = (0, 0);
        if !DDR.contains(&attr) {
            // SAFETY: both take a number.
            driver(unsafe { ask(device, &raw mut left, &raw mut all) })?;
        }
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        // SAFETY: not null (checked), writable by the caller's promise.
        unsafe {
            free.write_unaligned(size(left));
            total.write_unaligned(size(all));
        }
        Ok(())
    })
}

/// Registers host memory into the device: not simulated.
///
/// # Safety
///
/// `dev_ptr` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aclrtHostRegister(
    ptr: *mut c_void,
    size: u64,
    _kind: c_int,
    dev_ptr: *mut *mut c_void,
) -> c_int {
    call("aclrtHostRegister", || {
        check(!ptr.is_null() && size > 0 && !dev_ptr.is_null(), INVALID_PARAM)?;
        context()?;
        Err(FEATURE_NOT_SUPPORT)
    })
}

/// Ends a registration of host memory: not simulated.
#[unsafe(no_mangle)]
pub extern "C" fn aclrtHostUnregister(ptr: *mut c_void) -> c_int {
    call("aclrtHostUnregister", || {
        check(!ptr.is_null(), INVALID_PARAM)?;
        context()?;
        Err(FEATURE_NOT_SUPPORT)
    })
}

/// The runtime's allocation: nothing is padded.
///
/// # Safety
///
/// `dev_ptr` is null or points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rtMalloc(dev_ptr: *mut *mut c_void, size: u64, kind: u32, module: u16) -> c_int {
    call("rtMalloc", || {
        check(!dev_ptr.is_null(), PARAM_INVALID)?;
        let module = if module > 255 { MODULE_APP } else { u64::from(module) << 56 };
        allocate(dev_ptr, size.next_multiple_of(32), Pages::of_type(kind)?, module, context()?)
    })
}

/// The runtime's free.
#[unsafe(no_mangle)]
pub extern "C" fn rtFree(dev_ptr: *mut c_void) -> c_int {
    call("rtFree", || {
        check(!dev_ptr.is_null(), PARAM_INVALID)?;
        driver((loaded()?.free)(dev_ptr))
    })
}

/// The runtime's copy.
///
/// # Safety
///
/// As [`aclrtMemcpy`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rtMemcpy(
    dst: *mut c_void,
    dest_max: u64,
    src: *const c_void,
    count: u64,
    _kind: c_int,
) -> c_int {
    call("rtMemcpy", || {
        check(!dst.is_null() && !src.is_null(), PARAM_INVALID)?;
        let size = |bytes: u64| usize::try_from(bytes).map_err(|_| PARAM_INVALID);
        copy(dst, size(dest_max)?, src, size(count)?)
    })
}
