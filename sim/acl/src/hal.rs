//! The HAL library beside this one: the only way to memory, as in the real library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;

use libloading::Library;

/// The calls that this library makes.
pub(crate) struct Hal {
    pub(crate) alloc: unsafe extern "C" fn(*mut *mut c_void, u64, u64) -> c_int,
    pub(crate) free: extern "C" fn(*mut c_void) -> c_int,
    pub(crate) copy: unsafe extern "C" fn(u64, usize, u64, usize) -> c_int,
    pub(crate) set: extern "C" fn(u64, usize, u8, usize) -> c_int,
    pub(crate) device_count: unsafe extern "C" fn(*mut u32) -> c_int,
    pub(crate) attribute: unsafe extern "C" fn(u64, *mut Attribute) -> c_int,
    pub(crate) close: extern "C" fn(u32) -> c_int,
    /// The simulator's own: memory of a device, free and total. No real driver has it.
    pub(crate) memory: Option<unsafe extern "C" fn(u32, *mut u64, *mut u64) -> c_int>,
    pub(crate) soc_version: Option<unsafe extern "C" fn(u32, *mut c_char, u32) -> c_int>,
}

impl Hal {
    /// The chip's name, asked once.
    pub(crate) fn soc_name(&self) -> Option<&'static CStr> {
        static NAME: OnceLock<Option<CString>> = OnceLock::new();
        let ask = || {
            let mut name = [0_u8; 64];
            // SAFETY: the buffer has the length that is passed, one byte less so that it stays terminated.
            let code = unsafe { (self.soc_version?)(0, name.as_mut_ptr().cast(), 63) };
            let name = CStr::from_bytes_until_nul(&name).ok()?;
            (code == 0 && !name.is_empty()).then(|| name.to_owned())
        };
        NAME.get_or_init(ask).as_deref()
    }
}

/// `struct DVattribute`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Attribute {
    pub(crate) mem_type: u32,
    pub(crate) reserved: [u32; 2],
    pub(crate) device: u32,
    pub(crate) page_size: u32,
    pub(crate) more: [u32; 8],
}

/// The HAL, loaded at the first use; none where it cannot be, which is said once.
pub(crate) fn hal() -> Option<&'static Hal> {
    static HAL: OnceLock<Option<Hal>> = OnceLock::new();
    let loaded =
        HAL.get_or_init(|| load().inspect_err(|problem| eprintln!("hostview (libascendcl.so): {problem}")).ok());
    loaded.as_ref()
}

fn load() -> Result<Hal, String> {
    let path = beside_this_library().unwrap_or_else(|| PathBuf::from("libascend_hal.so"));
    // SAFETY: loading runs the library's constructors; a HAL library has none that harm a process.
    let library = unsafe { Library::new(&path) }.map_err(|error| format!("{}: {error}", path.display()))?;
    // Never unloaded: threads may have state in it until the process ends.
    let library: &'static Library = Box::leak(Box::new(library));
    /// Looks a symbol up as the type of the member that it goes to.
    macro_rules! symbol {
        ($name:literal) => {
            // SAFETY: the name is a function of the HAL with the signature of `Hal`'s member (`ascend_hal_base.h`).
            *unsafe { library.get($name) }.map_err(|_| format!("{}: has no {}", path.display(), $name))?
        };
    }
    Ok(Hal {
        alloc: symbol!("halMemAlloc"),
        free: symbol!("halMemFree"),
        copy: symbol!("drvMemcpy"),
        set: symbol!("drvMemsetD8"),
        device_count: symbol!("drvGetDevNum"),
        attribute: symbol!("drvMemGetAttribute"),
        close: symbol!("drvMemDeviceClose"),
        // SAFETY: as above; these two may be absent.
        memory: unsafe { library.get("hostviewMemInfo") }.ok().map(|symbol| *symbol),
        // SAFETY: as above.
        soc_version: unsafe { library.get("halGetSocVersion") }.ok().map(|symbol| *symbol),
    })
}

/// `libascend_hal.so` in the folder of this library, when it is there.
fn beside_this_library() -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: the address is of a function in this library, and `info` takes the answer.
    let found = unsafe { libc::dladdr(hal as *const c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: `dladdr` succeeded, and its name is a C string that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let beside = PathBuf::from(name.to_str().ok()?).with_file_name("libascend_hal.so");
    beside.exists().then_some(beside)
}
