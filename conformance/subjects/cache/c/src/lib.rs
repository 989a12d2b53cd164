//! The reference view cache for C and C++: a thin face over `hostview-cache`, by `hostview_subject.h`.
//!
//! A runtime links `libhostview_cache_c.so`, gives it a table of its driver's calls, and has the cache that the suite holds up as
//! right; `hostview check --subject ./libhostview_cache_c.so` judges it like any other. One lock keeps two calls apart, and is held
//! while the platform is called.

#![allow(unsafe_code, reason = "the C boundary")]

use std::ffi::c_void;
use std::ptr::{null_mut, with_exposed_provenance, with_exposed_provenance_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hostview_cache::abi::{
    Alloc, CopyIn, CopyOut, Free, Info, OK, PlatformTable, REFUSED, RegisterView, UnregisterView, VERSION, features,
};
use hostview_cache::{CacheError, Platform, ViewCache};

/// A cache and the platform that it was given: `hv_subject`.
#[derive(Debug)]
pub struct Subject(Mutex<State>);

#[derive(Debug)]
struct State {
    cache: ViewCache,
    platform: Driver,
}

/// The calls of a table that lacks none.
#[derive(Clone, Copy, Debug)]
struct Driver {
    context: *mut c_void,
    alloc: Alloc,
    free: Free,
    register_view: RegisterView,
    unregister_view: UnregisterView,
    copy_in: CopyIn,
    copy_out: CopyOut,
}

impl Driver {
    /// None where the table was made for another version of the header, or lacks a call.
    fn of(table: &PlatformTable) -> Option<Self> {
        if table.version != VERSION || table.size as usize != size_of::<PlatformTable>() {
            return None;
        }
        Some(Self {
            context: table.context,
            alloc: table.alloc?,
            free: table.free?,
            register_view: table.register_view?,
            unregister_view: table.unregister_view?,
            copy_in: table.copy_in?,
            copy_out: table.copy_out?,
        })
    }

    fn alloc(&self, device: u32, bytes: u64, policy: u32) -> Result<u64, i32> {
        let mut base = 0;
        // SAFETY: the table's call, and room for its answer.
        done(unsafe { (self.alloc)(self.context, device, bytes, policy, &raw mut base) })?;
        Ok(base)
    }

    fn free(&self, base: u64) -> Result<(), i32> {
        // SAFETY: the table's call.
        done(unsafe { (self.free)(self.context, base) })
    }
}

fn done(answer: i32) -> Result<(), i32> {
    if answer == OK { Ok(()) } else { Err(answer) }
}

impl Platform for Driver {
    type Error = i32;

    fn register(&mut self, device: u32, base: u64, bytes: u64) -> Result<u64, i32> {
        let mut view = null_mut();
        // SAFETY: the table's call, and room for its answer.
        done(unsafe { (self.register_view)(self.context, device, base, bytes, &raw mut view) })?;
        Ok(view.expose_provenance() as u64)
    }

    fn unregister(&mut self, device: u32, base: u64) -> Result<(), i32> {
        // SAFETY: the table's call.
        done(unsafe { (self.unregister_view)(self.context, device, base) })
    }

    fn copy_in(&mut self, device: u32, to: u64, from: &[u8]) -> Result<(), i32> {
        // SAFETY: the table's call, and so many bytes.
        done(unsafe { (self.copy_in)(self.context, device, to, from.as_ptr().cast(), from.len() as u64) })
    }

    fn copy_out(&mut self, device: u32, from: u64, into: &mut [u8]) -> Result<(), i32> {
        // SAFETY: the table's call, and room for so many bytes.
        done(unsafe { (self.copy_out)(self.context, device, into.as_mut_ptr().cast(), from, into.len() as u64) })
    }

    fn store(&mut self, view: u64, from: &[u8]) -> Result<(), i32> {
        // SAFETY: the cache asks for what lies within a registration that it holds, so that the memory is mapped.
        unsafe { with_exposed_provenance_mut::<u8>(view as usize).copy_from(from.as_ptr(), from.len()) };
        Ok(())
    }

    fn load(&mut self, view: u64, into: &mut [u8]) -> Result<(), i32> {
        // SAFETY: as for `store`.
        unsafe { with_exposed_provenance::<u8>(view as usize).copy_to(into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

impl Subject {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One call of the cache, with its platform, and the answer as C sees it.
    fn call(&self, call: impl FnOnce(&mut ViewCache, &mut Driver) -> Result<(), CacheError<i32>>) -> i32 {
        let State { cache, platform } = &mut *self.lock();
        match call(cache, platform) {
            Ok(()) => OK,
            Err(CacheError::Platform(answer)) => answer,
            Err(CacheError::Range(_) | CacheError::Finalized) => REFUSED,
        }
    }
}

/// The length of what a caller passes in; none where nothing can be so long.
fn length(bytes: u64) -> Option<usize> {
    isize::try_from(bytes).ok().and_then(|bytes| usize::try_from(bytes).ok())
}

/// Says what this cache is.
///
/// # Safety
///
/// `info` can take an [`Info`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_info(info: *mut Info) {
    let said = Info {
        version: VERSION,
        size: size_of::<Info>() as u32,
        features: features::THREAD_SAFE | features::FINALIZE_REENTRANT | features::REPORTS_HELD,
        budget: 0,
        name: c"hostview-cache".as_ptr(),
        build: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
    };
    // SAFETY: the caller's promise.
    unsafe { info.write(said) };
}

/// A fresh cache over a platform; null where the table lacks a call or is of another version of the header.
///
/// # Safety
///
/// `platform` is null or points to a table whose calls are what the header says, for as long as the cache lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_create(platform: *const PlatformTable) -> *mut Subject {
    // SAFETY: the caller's promise.
    let platform = unsafe { platform.as_ref() }.and_then(Driver::of);
    platform.map_or(null_mut(), |platform| {
        Box::into_raw(Box::new(Subject(Mutex::new(State { cache: ViewCache::new(), platform }))))
    })
}

/// Allocates and takes note.
///
/// # Safety
///
/// A live subject, and room for the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_alloc(
    subject: *const Subject,
    device: u32,
    bytes: u64,
    policy: u32,
    address: *mut u64,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { &*subject }.call(|cache, platform| {
        let base = platform.alloc(device, bytes, policy).map_err(CacheError::Platform)?;
        if let Err(refused) = cache.track(device, base, bytes) {
            platform.free(base).map_err(CacheError::Platform)?;
            return Err(refused);
        }
        // SAFETY: the caller's promise.
        unsafe { address.write(base) };
        Ok(())
    })
}

/// Drops the view, then frees.
///
/// # Safety
///
/// A live subject.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_free(subject: *const Subject, address: u64) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { &*subject }.call(|cache, platform| cache.release(platform, address, |platform| platform.free(address)))
}

/// The view of a range; null where device copies serve.
///
/// # Safety
///
/// A live subject, and room for the view.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_acquire(
    subject: *const Subject,
    address: u64,
    bytes: u64,
    view: *mut *mut c_void,
) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { &*subject }.call(|cache, platform| {
        let at = cache.acquire(platform, address, bytes)?;
        let at = at.map_or(null_mut(), |at| with_exposed_provenance_mut(at as usize));
        // SAFETY: the caller's promise.
        unsafe { view.write(at) };
        Ok(())
    })
}

/// Nothing is evicted here, so that what is in use need not be known.
#[unsafe(no_mangle)]
pub extern "C" fn hv_subject_release(_subject: *const Subject, _address: u64) {}

/// Reads, by view or by device copy.
///
/// # Safety
///
/// A live subject; room for so many bytes, or null where there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_read(subject: *const Subject, address: u64, into: *mut c_void, bytes: u64) -> i32 {
    let Some(length) = length(bytes).filter(|_| !into.is_null()) else { return REFUSED };
    // SAFETY: not null (checked), and the caller's promise.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), length) };
    // SAFETY: the caller's promise.
    unsafe { &*subject }.call(|cache, platform| cache.read(platform, address, into))
}

/// Writes, by view or by device copy.
///
/// # Safety
///
/// A live subject; so many bytes, or null where there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_write(
    subject: *const Subject,
    address: u64,
    from: *const c_void,
    bytes: u64,
) -> i32 {
    let Some(length) = length(bytes).filter(|_| !from.is_null()) else { return REFUSED };
    // SAFETY: not null (checked), and the caller's promise.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) };
    // SAFETY: the caller's promise.
    unsafe { &*subject }.call(|cache, platform| cache.write(platform, address, from))
}

/// What is mapped.
///
/// # Safety
///
/// A live subject, and room for both numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_held(subject: *const Subject, count: *mut u64, bytes: *mut u64) {
    // SAFETY: the caller's promise.
    let held = unsafe { &*subject }.lock().cache.held();
    // SAFETY: the caller's promise.
    unsafe {
        count.write(held.count);
        bytes.write(held.bytes);
    }
}

/// Drops every view; nothing is handed out afterwards.
///
/// # Safety
///
/// A live subject.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_finalize(subject: *const Subject) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { &*subject }.call(ViewCache::finalize)
}

/// Gives the cache back. The platform is not called.
///
/// # Safety
///
/// `hv_subject_create` made it, and it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hv_subject_destroy(subject: *mut Subject) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(subject) });
}
