//! The simulator's own calls, for a suite that has this library in its process beside a program that calls the driver: a fresh
//! device, calls that fail, and what happened so far. No driver has them.

use std::ffi::{CStr, c_char, c_int};

use hostview_sim::{CallKind, DrvError, MemoryMode, PlannedFault, Profile};

use crate::answer;
use crate::state::{renew, with_host};

/// Marks this library: a hardware run refuses to take it for a driver.
#[unsafe(no_mangle)]
pub extern "C" fn hostviewIsSimulator() -> c_int {
    1
}

/// Text of a caller's.
///
/// # Safety
///
/// `text` is null or ends with a zero.
unsafe fn text(text: *const c_char) -> Result<String, DrvError> {
    if text.is_null() {
        return Err(DrvError::InvalidValue);
    }
    // SAFETY: not null (checked), and it ends with a zero by the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(str::to_owned).map_err(|_| DrvError::InvalidValue)
}

/// Replaces the simulated host by a fresh one of a profile, given as the text of its file. The environment is not asked.
///
/// # Safety
///
/// `profile` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostviewRenew(profile: *const c_char) -> c_int {
    answer(|| {
        // SAFETY: as this function's own contract says of `profile`.
        let text = unsafe { text(profile) }?;
        let profile = Profile::parse(&text, "hostviewRenew").map_err(|error| {
            eprintln!("hostview (libascend_hal.so): {error}");
            DrvError::InvalidValue
        })?;
        renew(profile);
        Ok(())
    })
}

/// Makes the nth call of a kind from now on fail, and where `lasting` is not 0 every such call after it.
///
/// # Safety
///
/// `call` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostviewPlanFault(call: *const c_char, nth: u32, error: u32, lasting: c_int) -> c_int {
    answer(|| {
        // SAFETY: as this function's own contract says of `call`.
        let name = unsafe { text(call) }?;
        let call = CallKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or(DrvError::InvalidValue)?;
        let error = DrvError::from_code(error).ok_or(DrvError::InvalidValue)?;
        with_host(|host| {
            host.plan_fault(PlannedFault { call, nth, error, lasting: lasting != 0 });
            Ok(())
        })
    })
}

/// Forgets the faults that are still to come.
#[unsafe(no_mangle)]
pub extern "C" fn hostviewClearFaults() -> c_int {
    answer(|| {
        with_host(|host| {
            host.clear_faults();
            Ok(())
        })
    })
}

/// Copies lines where there is room for all of them; how many bytes they are.
///
/// # Safety
///
/// `into` has `room` bytes, or is null with a `room` of 0.
unsafe fn copy_lines(lines: impl Iterator<Item = String>, into: *mut c_char, room: usize) -> usize {
    let text: String = lines.map(|line| line + "\n").collect();
    if text.len() <= room && !into.is_null() {
        // SAFETY: there is room (checked), by the caller's promise; the two cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), into, text.len()) };
    }
    text.len()
}

/// The journal from its `from`th event on, as `HOSTVIEW_JOURNAL` has it: how many bytes it is, and where there is room for them
/// all, those bytes.
///
/// # Safety
///
/// `into` has `room` bytes, or is null with a `room` of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostviewJournal(from: usize, into: *mut c_char, room: usize) -> usize {
    let lines = with_host(|host| {
        let events = host.journal().get(from..).unwrap_or_default();
        Ok(events.iter().filter_map(|event| serde_json::to_string(event).ok()).collect::<Vec<_>>())
    });
    // SAFETY: as this function's own contract says.
    unsafe { copy_lines(lines.unwrap_or_default().into_iter(), into, room) }
}

/// The driver's log from its `from`th line on, likewise.
///
/// # Safety
///
/// `into` has `room` bytes, or is null with a `room` of 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hostviewLog(from: usize, into: *mut c_char, room: usize) -> usize {
    let lines = with_host(|host| Ok(host.log().get(from..).unwrap_or_default().to_vec()));
    // SAFETY: as this function's own contract says.
    unsafe { copy_lines(lines.unwrap_or_default().into_iter(), into, room) }
}

/// Whether a view that is ended faults: memory is protected, at the driver's own addresses.
#[unsafe(no_mangle)]
pub extern "C" fn hostviewProtects() -> c_int {
    let protects = with_host(|host| Ok(*host.memory_mode() == MemoryMode::Protected && host.at_drivers_range()));
    c_int::from(protects.unwrap_or(false))
}
