//! `hostview_subject.h` in Rust: what a view cache and its user say to each other across the C boundary. A test compares the
//! two layouts.

use std::ffi::{c_char, c_void};

/// `HV_SUBJECT_VERSION`.
pub const VERSION: u32 = 1;

/// `HV_OK`.
pub const OK: i32 = 0;

/// `HV_REFUSED`: the cache itself refuses. Every other answer is the platform's.
pub const REFUSED: i32 = -1;

/// What a cache says of itself.
pub mod features {
    /// `HV_THREAD_SAFE`: calls may come from two threads at once.
    pub const THREAD_SAFE: u64 = 1;
    /// `HV_BUDGET`: it never holds more than its budget mapped.
    pub const BUDGET: u64 = 1 << 1;
    /// `HV_FINALIZE_REENTRANT`: finalize may be called again.
    pub const FINALIZE_REENTRANT: u64 = 1 << 2;
    /// `HV_REPORTS_HELD`: what it reports as held is true.
    pub const REPORTS_HELD: u64 = 1 << 3;
    /// `HV_OWN_DRIVER`: it opens the driver itself and takes no table.
    pub const OWN_DRIVER: u64 = 1 << 4;
}

/// `hv_info`.
#[repr(C)]
#[derive(Debug)]
pub struct Info {
    /// [`VERSION`], as the cache was compiled.
    pub version: u32,
    /// The size of this, likewise.
    pub size: u32,
    /// The bits of [`features`].
    pub features: u64,
    /// In bytes, with [`features::BUDGET`].
    pub budget: u64,
    /// What reports call it; null where its file's name is to serve.
    pub name: *const c_char,
    /// Its own version, in whatever form; may be null.
    pub build: *const c_char,
}

/// `rtMalloc`: context, device, bytes, policy (0 huge pages first, 1 huge pages only, 2 ordinary pages only), and where the
/// address goes.
pub type Alloc = unsafe extern "C" fn(*mut c_void, u32, u64, u32, *mut u64) -> i32;

/// `rtFree`: context, address.
pub type Free = unsafe extern "C" fn(*mut c_void, u64) -> i32;

/// `halHostRegister(DEV_SVM_MAP_HOST)`: context, device, address, bytes, and where the view goes.
pub type RegisterView = unsafe extern "C" fn(*mut c_void, u32, u64, u64, *mut *mut c_void) -> i32;

/// `halHostUnregister`: context, device, device address.
pub type UnregisterView = unsafe extern "C" fn(*mut c_void, u32, u64) -> i32;

/// A synchronous copy to the device: context, device, to, from, bytes.
pub type CopyIn = unsafe extern "C" fn(*mut c_void, u32, u64, *const c_void, u64) -> i32;

/// A synchronous copy from the device: context, device, into, from, bytes.
pub type CopyOut = unsafe extern "C" fn(*mut c_void, u32, *mut c_void, u64, u64) -> i32;

/// `hv_platform`: the driver, as a cache may call it. Each call answers 0 or an error number over 0, and changes nothing then. In a
/// table that keeps to the header no call is null.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PlatformTable {
    /// [`VERSION`].
    pub version: u32,
    /// The size of this.
    pub size: u32,
    /// What each call is given first; may be null.
    pub context: *mut c_void,
    /// [`Alloc`].
    pub alloc: Option<Alloc>,
    /// [`Free`].
    pub free: Option<Free>,
    /// [`RegisterView`].
    pub register_view: Option<RegisterView>,
    /// [`UnregisterView`].
    pub unregister_view: Option<UnregisterView>,
    /// [`CopyIn`].
    pub copy_in: Option<CopyIn>,
    /// [`CopyOut`].
    pub copy_out: Option<CopyOut>,
}
