//! The C interface of the driver and of the runtime: the symbols that the suite calls, looked up one by one.

#![allow(unsafe_code, reason = "the C boundary")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libloading::os::unix::Library;
use serde::{Deserialize, Serialize};

/// `struct supportFeaturePara`. Source: `ascend_hal_define.h`.
#[repr(C)]
pub(super) struct SupportFeature {
    pub(super) features: u64,
    pub(super) device: u32,
}

/// `struct DVattribute`. Source: `ascend_hal_base.h`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Attribute {
    pub(super) mem_type: u32,
    pub(super) reserved: [u32; 2],
    pub(super) device: u32,
    pub(super) page_size: u32,
    pub(super) more: [u32; 8],
}

/// A symbol that the suite calls, and what cannot be done without it.
#[derive(Debug)]
pub struct Symbol {
    /// Its name.
    pub name: &'static str,
    /// The library that has it.
    pub library: &'static str,
    /// What is lost without it, in words.
    pub without: &'static str,
    /// The V-laws that cannot be checked without it. What D-laws need, their steps tell.
    pub views: &'static [&'static str],
}

/// A symbol that was looked for and not found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Missing {
    /// Its name.
    pub symbol: String,
}

impl Missing {
    /// The symbol.
    #[must_use]
    pub fn symbol(&self) -> Option<&'static Symbol> {
        SYMBOLS.iter().find(|symbol| symbol.name == self.symbol)
    }
}

macro_rules! interface {
    ($($table:ident in $file:literal { $($member:ident $name:literal ($($argument:ty),*) -> $answer:ty, $without:literal $(, $view:literal)*;)* })*) => {
        /// Every symbol that the suite calls.
        pub static SYMBOLS: &[Symbol] = &[
            $($(Symbol { name: $name, library: $file, without: $without, views: &[$($view),*] },)*)*
        ];

        $(
            /// The calls of one library, each where it has it.
            #[derive(Clone, Debug, Default)]
            pub(super) struct $table {
                $(pub(super) $member: Option<unsafe extern "C" fn($($argument),*) -> $answer>,)*
            }

            impl $table {
                /// Looks every symbol up; the names of those that are not there.
                pub(super) fn look_up(library: &Library) -> (Self, Vec<Missing>) {
                    let mut missing = Vec::new();
                    let table = Self {
                        $($member: {
                            // SAFETY: the symbol is the function of this name and type of the driver's or runtime's header;
                            // the library is never unloaded, so that the pointer stays good.
                            let found = unsafe {
                                library.get::<unsafe extern "C" fn($($argument),*) -> $answer>($name)
                            };
                            match found {
                                Ok(symbol) => Some(*symbol),
                                Err(_) => {
                                    missing.push(Missing { symbol: $name.to_owned() });
                                    None
                                }
                            }
                        },)*
                    };
                    (table, missing)
                }
            }
        )*
    };
}

interface! {
    Hal in "libascend_hal.so" {
        alloc "halMemAlloc" (*mut *mut c_void, u64, u64) -> c_int, "nothing can be allocated";
        free "halMemFree" (*mut c_void) -> c_int, "nothing can be freed";
        register "halHostRegister" (*mut c_void, u64, c_uint, c_uint, *mut *mut c_void) -> c_int,
            "nothing can be registered";
        unregister "halHostUnregister" (*mut c_void, c_uint) -> c_int, "no registration can be ended";
        unregister_ex "halHostUnregisterEx" (*mut c_void, c_uint, c_uint) -> c_int,
            "no registration can be ended by its map type";
        copy "drvMemcpy" (u64, usize, u64, usize) -> c_int, "nothing can be copied to or from the device", "V04", "V07";
        control "halMemCtl" (c_int, *mut c_void, usize, *mut c_void, *mut usize) -> c_int,
            "the capabilities are found by trying";
        count "drvGetDevNum" (*mut u32) -> c_int, "the number of devices is not known";
        attribute "drvMemGetAttribute" (u64, *mut Attribute) -> c_int,
            "the page of an address is taken from the policy that it was allocated by";
        soc_version "halGetSocVersion" (u32, *mut c_char, u32) -> c_int, "the chip is known by ACL alone";
    }
    Acl in "libascendcl.so" {
        init "aclInit" (*const c_char) -> c_int, "ACL is used without being initialised";
        finalize "aclFinalize" () -> c_int, "ACL is left as it is at the end";
        set_device "aclrtSetDevice" (i32) -> c_int, "the device is opened by the HAL alone";
        reset_device "aclrtResetDevice" (i32) -> c_int, "the device is left to the end of the process";
        malloc "aclrtMalloc" (*mut *mut c_void, usize, c_int) -> c_int,
            "nothing can be allocated through ACL";
        free "aclrtFree" (*mut c_void) -> c_int, "nothing can be freed through ACL";
        rt_malloc "rtMalloc" (*mut *mut c_void, u64, u32, u16) -> c_int,
            "the runtime's own rule of page kinds is followed instead";
        memory "aclrtGetMemInfo" (c_int, *mut usize, *mut usize) -> c_int,
            "how much memory the device has is not known";
        soc_name "aclrtGetSocName" () -> *const c_char, "the chip is known by the HAL alone";
        version "aclrtGetVersion" (*mut i32, *mut i32, *mut i32) -> c_int, "ACL's version is not known";
    }
}

/// The runtime's library.
pub(super) const ACL: &str = "libascendcl.so";

/// The simulator's own mark. No driver has it.
pub(super) const SIMULATOR_MARK: &str = "hostviewIsSimulator";
