//! The C interface of a subject, and the subject behind it.

#![allow(unsafe_code, reason = "the C boundary")]

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use hostview_cache::Held;
use hostview_cache::abi::{Info, OK, PlatformTable as Table, REFUSED, VERSION, features};
use hostview_sim::{DeviceAddr, HostAddr, PagePolicy};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};

use super::notes::Notes;
use crate::case::Op;
use crate::code::ErrorCode;
use crate::recorder::PlatformTable;
use crate::subject::{Acquired, Subject, SubjectError, SubjectInfo};

/// The table is the same for every subject: which platform is meant, the thread knows.
static TABLE: Shared = Shared(Table {
    version: VERSION,
    size: size_of::<Table>() as u32,
    context: null_mut(),
    alloc: Some(alloc),
    free: Some(free),
    register_view: Some(register),
    unregister_view: Some(unregister),
    copy_in: Some(copy_in),
    copy_out: Some(copy_out),
});

struct Shared(Table);
// SAFETY: nothing in it is ever written, and its null pointer is never followed.
unsafe impl Sync for Shared {}

macro_rules! symbols {
    ($($member:ident $name:literal ($($argument:ty),*) $(-> $answer:ty)?;)*) => {
        /// The functions of a subject.
        #[derive(Clone, Copy)]
        pub(super) struct Symbols {
            $($member: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)*
        }

        impl Symbols {
            fn look_up(library: &Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the function of this name has this type in `hostview_subject.h`; the library is never unloaded.
                    let $member = unsafe { library.get::<unsafe extern "C" fn($($argument),*) $(-> $answer)?>($name) };
                    let $member = $member.map(|symbol| *symbol).map_err(|_| missing.push($name)).ok();
                )*
                match ($($member,)*) {
                    ($(Some($member),)*) => Ok(Self { $($member,)* }),
                    _ => Err(missing),
                }
            }
        }
    };
}

symbols! {
    info "hv_subject_info" (*mut Info);
    create "hv_subject_create" (*const Table) -> *mut c_void;
    alloc "hv_subject_alloc" (*mut c_void, u32, u64, u32, *mut u64) -> i32;
    free "hv_subject_free" (*mut c_void, u64) -> i32;
    acquire "hv_subject_acquire" (*mut c_void, u64, u64, *mut *mut c_void) -> i32;
    release "hv_subject_release" (*mut c_void, u64);
    read "hv_subject_read" (*mut c_void, u64, *mut c_void, u64) -> i32;
    write "hv_subject_write" (*mut c_void, u64, *const c_void, u64) -> i32;
    held "hv_subject_held" (*const c_void, *mut u64, *mut u64);
    finalize "hv_subject_finalize" (*mut c_void) -> i32;
    destroy "hv_subject_destroy" (*mut c_void);
}

/// Loads a subject's library for the life of the process: its functions, and what it says of itself.
pub(super) fn open(path: &Path) -> Result<(Symbols, Said), String> {
    let shown = path.display().to_string();
    // SAFETY: loading runs the library's constructors, in a process that was made for that and is watched by another.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| {
        use std::error::Error as _;
        let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
        let text = text.replace(&format!("{shown}: "), "");
        format!("{shown}: cannot be loaded: {text}; give a library that implements hostview_subject.h")
    })?;
    let library: &'static Library = Box::leak(Box::new(library));
    let symbols = Symbols::look_up(library).map_err(|missing| {
        format!(
            "{shown}: is no subject: it has no {}; implement hostview_subject.h (`hostview sdk`)",
            missing.join(", ")
        )
    })?;
    let mut info = Info { version: 0, size: 0, features: 0, budget: 0, name: null(), build: null() };
    // SAFETY: `info` is what the function fills.
    unsafe { (symbols.info)(&raw mut info) };
    if info.version != VERSION || info.size as usize != size_of::<Info>() {
        return Err(format!(
            "{shown}: was made for version {} of hostview_subject.h (hv_info of {} bytes); this is version {VERSION} ({} bytes): \
             compile it with the header of `hostview sdk`",
            info.version,
            info.size,
            size_of::<Info>()
        ));
    }
    // SAFETY: null, or text of the library's own that ends with a zero; the library is never unloaded.
    let text = |text: *const c_char| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
    let name = text(info.name).map(|name| {
        let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if plain { Ok(name.into_owned()) } else { Err(name.into_owned()) }
    });
    let name = name.transpose().map_err(|name| {
        format!(
            "{shown}: calls itself {name:?}; a name has letters, digits, - and _, so that files can be called by it"
        )
    })?;
    let said = Said {
        name,
        build: text(info.build).map(std::borrow::Cow::into_owned),
        own_driver: info.features & features::OWN_DRIVER != 0,
        info: SubjectInfo {
            // What it calls is seen only after it has come back, so that it cannot be made to stand still before a call.
            thread_safe: info.features & features::THREAD_SAFE != 0 && info.features & features::OWN_DRIVER == 0,
            budget: (info.features & features::BUDGET != 0).then_some(info.budget),
            finalize_reentrant: info.features & features::FINALIZE_REENTRANT != 0,
            reports_held: info.features & features::REPORTS_HELD != 0,
        },
    };
    Ok((symbols, said))
}

/// What a library says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Said {
    pub(super) name: Option<String>,
    pub(super) build: Option<String>,
    /// Whether it opens the driver itself.
    pub(super) own_driver: bool,
    pub(super) info: SubjectInfo,
}

/// Where each member of the header's structures is, in bytes, as this side has it; and how large they are.
#[must_use]
pub fn layout() -> Vec<(&'static str, usize)> {
    use std::mem::offset_of;
    vec![
        ("hv_info", size_of::<Info>()),
        ("hv_info.size", offset_of!(Info, size)),
        ("hv_info.features", offset_of!(Info, features)),
        ("hv_info.budget", offset_of!(Info, budget)),
        ("hv_info.name", offset_of!(Info, name)),
        ("hv_info.build", offset_of!(Info, build)),
        ("hv_platform", size_of::<Table>()),
        ("hv_platform.size", offset_of!(Table, size)),
        ("hv_platform.context", offset_of!(Table, context)),
        ("hv_platform.alloc", offset_of!(Table, alloc)),
        ("hv_platform.free", offset_of!(Table, free)),
        ("hv_platform.register_view", offset_of!(Table, register_view)),
        ("hv_platform.unregister_view", offset_of!(Table, unregister_view)),
        ("hv_platform.copy_in", offset_of!(Table, copy_in)),
        ("hv_platform.copy_out", offset_of!(Table, copy_out)),
    ]
}

/// A cache that an opened library made.
struct Cache {
    symbols: Symbols,
    this: NonNull<c_void>,
    notes: &'static Notes,
}

// SAFETY: nothing of a cache is bound to a thread, as the header says.
unsafe impl Send for Cache {}
// SAFETY: it is called from several threads at once only where it says that it may be ([`Opened::twin`]).
unsafe impl Sync for Cache {}

impl Drop for Cache {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and not used afterwards.
        self.notes.inside(true, || unsafe { (self.symbols.destroy)(self.this.as_ptr()) });
    }
}

/// One cache of an opened library.
#[derive(Clone)]
pub(super) struct Opened {
    symbols: Symbols,
    info: SubjectInfo,
    cache: Arc<Cache>,
    notes: &'static Notes,
}

impl Opened {
    pub(super) fn new(symbols: Symbols, said: &Said, notes: &'static Notes) -> Option<Self> {
        let table = if said.own_driver { null() } else { &raw const TABLE.0 };
        // SAFETY: the table lives for ever; a subject that opens the driver itself is told to expect none.
        let this = NonNull::new(notes.inside(true, || unsafe { (symbols.create)(table) }))?;
        Some(Self { symbols, info: said.info, cache: Arc::new(Cache { symbols, this, notes }), notes })
    }

    fn this(&self) -> *mut c_void {
        self.cache.this.as_ptr()
    }
}

thread_local! {
    /// The platform of the call that this thread is in, and where it is noted.
    static CURRENT: Cell<Option<(NonNull<dyn PlatformTable>, &'static Notes)>> = const { Cell::new(None) };
}

/// Makes a call of the subject with a platform behind the table.
fn with<R>(notes: &'static Notes, platform: &mut dyn PlatformTable, call: impl FnOnce() -> R) -> R {
    platform.begin();
    // SAFETY: only the lifetime is left out; the pointer is taken back before the borrow ends.
    let current = unsafe {
        std::mem::transmute::<NonNull<dyn PlatformTable + '_>, NonNull<dyn PlatformTable>>(NonNull::from(
            &mut *platform,
        ))
    };
    CURRENT.set(Some((current, notes)));
    let result = notes.inside(true, call);
    CURRENT.set(None);
    platform.end();
    result
}

/// Makes a call of the platform for the subject. A number of ours stands where it was not made in a call of the suite's.
fn platform(call: impl FnOnce(&mut dyn PlatformTable) -> Result<(), SubjectError>) -> i32 {
    let Some((mut current, notes)) = CURRENT.get() else { return c_int::MAX };
    // SAFETY: set by `with` for as long as the call lasts, and borrowed by nobody meanwhile.
    let current = unsafe { current.as_mut() };
    match catch_unwind(AssertUnwindSafe(|| notes.inside(false, || call(current)))) {
        Ok(Ok(())) => OK,
        Ok(Err(SubjectError::Platform(ErrorCode(code)))) => c_int::try_from(code).unwrap_or(c_int::MAX),
        Ok(Err(_)) => c_int::MAX,
        // It calls on and on, and cannot be unwound out of: the process ends, and the suite knows why.
        Err(_) => {
            // SAFETY: ends the process.
            unsafe { libc::_exit(super::remote::CALLED_ON_AND_ON) }
        }
    }
}

unsafe extern "C" fn alloc(_: *mut c_void, device: u32, bytes: u64, policy: u32, address: *mut u64) -> i32 {
    let policy = match policy {
        0 => PagePolicy::HugeFirst,
        1 => PagePolicy::HugeOnly,
        _ => PagePolicy::NormalOnly,
    };
    platform(|platform| {
        let base = platform.alloc(device, bytes, policy)?;
        // SAFETY: the header says that it is not null.
        unsafe { address.write(base.get()) };
        Ok(())
    })
}

unsafe extern "C" fn free(_: *mut c_void, address: u64) -> i32 {
    platform(|platform| platform.free(DeviceAddr::new(address)))
}

unsafe extern "C" fn register(_: *mut c_void, device: u32, base: u64, bytes: u64, view: *mut *mut c_void) -> i32 {
    platform(|platform| {
        let at = platform.register(device, DeviceAddr::new(base), bytes)?;
        // SAFETY: the header says that it is not null.
        unsafe { view.write(at.get() as *mut c_void) };
        Ok(())
    })
}

unsafe extern "C" fn unregister(_: *mut c_void, device: u32, base: u64) -> i32 {
    platform(|platform| platform.unregister(device, DeviceAddr::new(base)))
}

unsafe extern "C" fn copy_in(_: *mut c_void, _: u32, to: u64, from: *const c_void, bytes: u64) -> i32 {
    // SAFETY: the header says that so many bytes are there.
    let from = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), usize::try_from(bytes).unwrap_or(0)) };
    platform(|platform| platform.copy_in(DeviceAddr::new(to), from))
}

unsafe extern "C" fn copy_out(_: *mut c_void, _: u32, into: *mut c_void, from: u64, bytes: u64) -> i32 {
    // SAFETY: the header says that so many bytes are there.
    let into = unsafe { std::slice::from_raw_parts_mut(into.cast::<u8>(), usize::try_from(bytes).unwrap_or(0)) };
    platform(|platform| platform.copy_out(DeviceAddr::new(from), into))
}

fn answer(code: i32) -> Result<(), SubjectError> {
    match code {
        OK => Ok(()),
        REFUSED => Err(SubjectError::Refused("by the subject".to_owned())),
        code => match u32::try_from(code) {
            Ok(code) => Err(SubjectError::Platform(ErrorCode(code))),
            Err(_) => Err(SubjectError::Refused(format!("by the subject, with {code}"))),
        },
    }
}

impl Subject for Opened {
    fn info(&self) -> SubjectInfo {
        self.info
    }

    fn at_step(&mut self, index: usize, op: Op) {
        self.notes.at_step(index, op);
    }

    fn twin(&self) -> Option<Box<dyn Subject>> {
        self.info.thread_safe.then(|| Box::new(self.clone()) as Box<dyn Subject>)
    }

    fn locks_by_the_platform(&self) -> bool {
        false
    }

    fn alloc(
        &mut self,
        platform: &mut dyn PlatformTable,
        device: u32,
        bytes: u64,
        policy: PagePolicy,
    ) -> Result<DeviceAddr, SubjectError> {
        let policy = match policy {
            PagePolicy::HugeFirst => 0,
            PagePolicy::HugeOnly => 1,
            PagePolicy::NormalOnly => 2,
        };
        let mut address = 0;
        // SAFETY: a live subject, and room for the answer.
        answer(with(self.notes, platform, || unsafe {
            (self.symbols.alloc)(self.this(), device, bytes, policy, &raw mut address)
        }))?;
        Ok(DeviceAddr::new(address))
    }

    fn free(&mut self, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError> {
        // SAFETY: a live subject.
        answer(with(self.notes, platform, || unsafe { (self.symbols.free)(self.this(), address.get()) }))
    }

    fn acquire(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<Acquired, SubjectError> {
        let mut view = null_mut();
        // SAFETY: a live subject, and room for the answer.
        answer(with(self.notes, platform, || unsafe {
            (self.symbols.acquire)(self.this(), address.get(), bytes, &raw mut view)
        }))?;
        Ok(if view.is_null() { Acquired::DeviceCopies } else { Acquired::View(HostAddr::new(view as u64)) })
    }

    fn release(&mut self, platform: &mut dyn PlatformTable, address: DeviceAddr) {
        // SAFETY: a live subject.
        with(self.notes, platform, || unsafe { (self.symbols.release)(self.this(), address.get()) });
    }

    fn noise(&mut self) -> Option<String> {
        self.notes.noise()
    }

    fn read(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        into: &mut [u8],
    ) -> Result<(), SubjectError> {
        let (at, bytes) = (into.as_mut_ptr().cast(), into.len() as u64);
        // SAFETY: a live subject, and a buffer of that length.
        answer(with(self.notes, platform, || unsafe { (self.symbols.read)(self.this(), address.get(), at, bytes) }))
    }

    fn write(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        from: &[u8],
    ) -> Result<(), SubjectError> {
        let (at, bytes) = (from.as_ptr().cast(), from.len() as u64);
        // SAFETY: a live subject, and a buffer of that length.
        answer(with(self.notes, platform, || unsafe { (self.symbols.write)(self.this(), address.get(), at, bytes) }))
    }

    fn held(&self) -> Held {
        let mut held = Held::default();
        // SAFETY: a live subject, and room for the answers.
        self.notes.inside(true, || unsafe {
            (self.symbols.held)(self.this(), &raw mut held.count, &raw mut held.bytes);
        });
        if self.info.reports_held { held } else { Held::default() }
    }

    fn finalize(&mut self, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
        // SAFETY: a live subject.
        answer(with(self.notes, platform, || unsafe { (self.symbols.finalize)(self.this()) }))
    }
}
