//! Error numbers of the ACL and runtime layers, and the table from the driver's. Source: `rt_error_codes.h`, `errcode_manage.cc`.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};

pub(crate) const SUCCESS: c_int = 0;
pub(crate) const INVALID_PARAM: c_int = 100_000;
pub(crate) const REPEAT_INITIALIZE: c_int = 100_002;
pub(crate) const REPEAT_FINALIZE: c_int = 100_037;
pub(crate) const PARAM_INVALID: c_int = 107_000;
pub(crate) const INVALID_DEVICE: c_int = 107_001;
pub(crate) const CONTEXT_NULL: c_int = 107_002;
pub(crate) const INVALID_MEMORY_TYPE: c_int = 107_016;
pub(crate) const FEATURE_NOT_SUPPORT: c_int = 207_000;
pub(crate) const CONTEXT_RELEASE_ERROR: c_int = 507_007;
pub(crate) const DRV_INTERNAL_ERROR: c_int = 507_899;
pub(crate) const INTERNAL_ERROR: c_int = 500_000;

/// What a driver's number becomes; what has no row is 507899.
pub(crate) fn from_driver(code: c_int) -> c_int {
    match code {
        0 => SUCCESS,
        1 => 207_004,
        2 => INVALID_DEVICE,
        3 | 58 => PARAM_INVALID,
        4 => 107_017,
        5 => 107_018,
        6 => 207_001,
        10 => 207_015,
        14 | 40 => 207_005,
        16 => 507_012,
        25 => 507_901,
        27 => 507_051,
        33 => 507_010,
        37 => 207_012,
        43 => 507_000,
        46 => 207_006,
        47 => 207_007,
        48 => 207_008,
        49 => 207_009,
        50 => 207_010,
        74 => 507_052,
        75 => 207_013,
        76 => 207_014,
        89 => 207_020,
        0xfffe => FEATURE_NOT_SUPPORT,
        _ => DRV_INTERNAL_ERROR,
    }
}

thread_local! {
    static RECENT: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Keeps the message of a failure for this thread.
pub(crate) fn remember(call: &str, code: c_int) -> c_int {
    if code != SUCCESS {
        let message = CString::new(format!("{call} failed: {code}")).unwrap_or_default();
        RECENT.with_borrow_mut(|recent| *recent = Some(message));
    }
    code
}

/// The message of this thread's last failure, or null.
pub(crate) fn recent() -> *const c_char {
    RECENT.with_borrow(|recent| recent.as_ref().map_or(std::ptr::null(), |message| message.as_ptr()))
}
