//! Host memory that `halMemAlloc` hands out (`MEM_HOST`): plain memory of this process.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use hostview_sim::DrvError;

/// The driver aligns to its own page.
const ALIGNMENT: usize = 4096;

static ALLOCATED: Mutex<Option<HashMap<usize, Layout>>> = Mutex::new(None);

pub(crate) fn allocate(bytes: u64) -> Result<*mut c_void, DrvError> {
    let bytes = usize::try_from(bytes).map_err(|_| DrvError::OutOfMemory)?;
    if bytes == 0 {
        return Err(DrvError::InvalidValue);
    }
    let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| DrvError::OutOfMemory)?;
    // SAFETY: the layout has a size over 0 (checked).
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        return Err(DrvError::OutOfMemory);
    }
    let mut allocated = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
    allocated.get_or_insert_with(HashMap::new).insert(memory as usize, layout);
    Ok(memory.cast())
}

/// Frees what [`allocate`] gave; false for anything else.
pub(crate) fn free(memory: *mut c_void) -> bool {
    let mut allocated = ALLOCATED.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(layout) = allocated.get_or_insert_with(HashMap::new).remove(&(memory as usize)) else { return false };
    // SAFETY: allocated with this layout, and just taken out of the table, so that nobody frees it again.
    unsafe { dealloc(memory.cast(), layout) };
    true
}
