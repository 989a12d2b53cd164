//! The drop-in `libascend_hal.so` in this process, for a subject that opens the driver itself: the suite has it beside the
//! subject, makes its device fresh, and reads in its journal what the subject called.

#![allow(unsafe_code, reason = "the C boundary")]

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

use hostview_sim::{
    CallKind, DeviceAddr, Event, Fault, FaultPlan, HostAddr, Outcome, PagePolicy, PlannedFault, Profile, RegisterCall,
};

use super::abi::ACL;
use super::find::{Layer, Paths};
use super::open::{Loaded, load, load_aside, open};
use super::platform::{LibraryPlatform, Limits};
use crate::case::Via;
use crate::code::ErrorCode;
use crate::platform::{Loss, MemoryAt, Observed, Platform, Unsupported};

/// The drop-in libraries, loaded so that whoever opens `libascend_hal.so` or `libascendcl.so` by that name meets them.
#[derive(Clone, Debug)]
pub struct DropIn {
    path: PathBuf,
    control: Control,
}

/// The simulator's own calls. Source: `sim/hal/src/control.rs`.
#[derive(Clone, Copy, Debug)]
struct Control {
    renew: unsafe extern "C" fn(*const c_char) -> c_int,
    plan_fault: unsafe extern "C" fn(*const c_char, u32, u32, c_int) -> c_int,
    clear_faults: unsafe extern "C" fn() -> c_int,
    journal: unsafe extern "C" fn(usize, *mut c_char, usize) -> usize,
    log: unsafe extern "C" fn(usize, *mut c_char, usize) -> usize,
    protects: unsafe extern "C" fn() -> c_int,
}

impl DropIn {
    /// Loads the drop-in of a path, and the runtime's beside it where there is one. No symbol of theirs reaches a library that
    /// does not ask for it.
    ///
    /// # Errors
    ///
    /// It cannot be loaded, or is no drop-in of this version.
    pub fn load(path: &Path) -> Result<Self, String> {
        const MEND: &str = "give the drop-in libascend_hal.so that was built with this hostview";
        let library = load_aside(path).map_err(|error| format!("{error}; {MEND}"))?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the function of this name has the type of `Control`'s member in every library that has it.
                *unsafe { library.get($name) }.map_err(|_| format!("{}: has no {}; {MEND}", path.display(), $name))?
            };
        }
        let control = Control {
            renew: symbol!("hostviewRenew"),
            plan_fault: symbol!("hostviewPlanFault"),
            clear_faults: symbol!("hostviewClearFaults"),
            journal: symbol!("hostviewJournal"),
            log: symbol!("hostviewLog"),
            protects: symbol!("hostviewProtects"),
        };
        let acl = path.with_file_name(ACL);
        if acl.exists() {
            load_aside(&acl).map_err(|error| error.to_string())?;
        }
        Ok(Self { path: path.to_owned(), control })
    }

    /// Opens them to whoever looks for the driver's symbols in the whole process, as programs do.
    ///
    /// # Errors
    ///
    /// The loader refuses.
    pub fn publish(&self) -> Result<Published, String> {
        let acl = self.path.with_file_name(ACL);
        if acl.exists() {
            load(&acl).map_err(|error| error.to_string())?;
        }
        let paths = Paths { hal: self.path.clone(), acl: None, via: Layer::Hal };
        let calls = open(&paths).map_err(|error| error.to_string())?;
        Ok(Published { calls, control: self.control })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The drop-in as the suite calls it.
#[derive(Clone, Debug)]
pub struct Published {
    calls: Loaded,
    control: Control,
}

impl Published {
    /// A fresh device of a profile.
    ///
    /// # Errors
    ///
    /// There is none to be had, or its memory cannot be protected in this process.
    pub fn fresh(&self, profile: &Profile) -> Result<ObservedPlatform, String> {
        let text = toml::to_string(profile).map_err(|error| error.to_string())?;
        let text = CString::new(text).map_err(|error| error.to_string())?;
        // SAFETY: the text ends with a zero.
        if unsafe { (self.control.renew)(text.as_ptr()) } != 0 {
            return Err("the drop-in refuses the profile".to_owned());
        }
        // SAFETY: takes nothing.
        if unsafe { (self.control.protects)() } == 0 {
            let why =
                "the drop-in's memory is not protected in this process, so that no access through an old view faults";
            return Err(why.to_owned());
        }
        let limits = Limits { devices: (0..profile.device.count).collect(), memory: u64::MAX };
        let library = LibraryPlatform::over(self.calls.clone(), Layer::Hal, limits);
        let mut platform = ObservedPlatform { library, control: self.control, seen: 0, log: Vec::new(), lost: None };
        platform.skip();
        Ok(platform)
    }
}

/// The drop-in as a platform: the suite's calls go to it as to any driver library, the subject's are read in the journal.
#[derive(Debug)]
pub struct ObservedPlatform {
    library: LibraryPlatform,
    control: Control,
    /// How many events of the journal were looked at.
    seen: usize,
    log: Vec<String>,
    /// Why its journal cannot be followed any more.
    lost: Option<Loss>,
}

impl ObservedPlatform {
    /// The events since the last time; the log likewise.
    fn events(&mut self) -> Vec<Event> {
        let log = lines(self.control.log, self.log.len());
        self.log.extend(log.lines().map(str::to_owned));
        let journal = lines(self.control.journal, self.seen);
        self.seen += journal.lines().count();
        let events: Result<_, _> = journal.lines().map(serde_json::from_str).collect();
        events.unwrap_or_else(|error| {
            let why = format!("the journal of the drop-in is another than this hostview reads: {error}");
            self.lost = Some(Loss::Crashed(why));
            Vec::new()
        })
    }

    /// What happened was the suite's own doing.
    fn skip(&mut self) {
        self.events();
    }

    fn own<T>(&mut self, call: impl FnOnce(&mut LibraryPlatform) -> T) -> T {
        let result = call(&mut self.library);
        self.skip();
        result
    }
}

/// The lines that a call of the control interface has from a number on.
fn lines(ask: unsafe extern "C" fn(usize, *mut c_char, usize) -> usize, from: usize) -> String {
    let mut room = vec![0_u8; 4096];
    loop {
        // SAFETY: so many bytes are there.
        let bytes = unsafe { ask(from, room.as_mut_ptr().cast(), room.len()) };
        if bytes <= room.len() {
            room.truncate(bytes);
            return String::from_utf8_lossy(&room).into_owned();
        }
        room.resize(bytes, 0);
    }
}

/// The runtime tries one kind of page after the other for one allocation: its last answer is the allocation's.
fn without_fallbacks(events: Vec<Event>) -> Vec<Event> {
    let mut kept: Vec<Event> = Vec::new();
    for event in events {
        use hostview_sim::Call::Alloc;
        let fallback = kept.last().is_some_and(|last| match (last.call, last.outcome, event.call) {
            (
                Alloc { device, bytes, kind },
                Outcome::Failed(_),
                Alloc { device: same_device, bytes: same_bytes, kind: other_kind },
            ) => (device, bytes) == (same_device, same_bytes) && kind != other_kind,
            _ => false,
        });
        if fallback {
            kept.pop();
        }
        kept.push(event);
    }
    kept
}

impl Observed for ObservedPlatform {
    fn begin(&mut self, faults: &FaultPlan) {
        self.skip();
        for PlannedFault { call, nth, error, lasting } in faults.iter() {
            // A device without memory has none of the other kind of page either.
            let lasting = *lasting || *call == CallKind::Alloc;
            let Ok(call) = CString::new(call.name()) else { continue };
            // SAFETY: the name ends with a zero.
            unsafe { (self.control.plan_fault)(call.as_ptr(), *nth, error.code(), c_int::from(lasting)) };
        }
    }

    fn end(&mut self) -> Vec<Event> {
        // SAFETY: takes nothing.
        unsafe { (self.control.clear_faults)() };
        without_fallbacks(self.events())
    }
}

impl Platform for ObservedPlatform {
    fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy, via: Via) -> Result<DeviceAddr, ErrorCode> {
        self.own(|library| library.alloc(device, bytes, policy, via))
    }

    fn free(&mut self, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
        self.own(|library| library.free(address, via))
    }

    fn register(&mut self, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
        self.own(|library| library.register(call))
    }

    fn unregister(&mut self, address: DeviceAddr, device: u32) -> Result<(), ErrorCode> {
        self.own(|library| library.unregister(address, device))
    }

    fn unregister_ex(&mut self, address: DeviceAddr, device: u32, flags: u32) -> Result<(), ErrorCode> {
        self.own(|library| library.unregister_ex(address, device, flags))
    }

    fn copy_in(&mut self, address: DeviceAddr, from: &[u8]) -> Result<(), ErrorCode> {
        self.own(|library| library.copy_in(address, from))
    }

    fn copy_out(&mut self, address: DeviceAddr, into: &mut [u8]) -> Result<(), ErrorCode> {
        self.own(|library| library.copy_out(address, into))
    }

    fn host_read(&mut self, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
        self.library.host_read(address, into)
    }

    fn host_write(&mut self, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
        self.library.host_write(address, from)
    }

    fn plan_fault(&mut self, _fault: PlannedFault) -> Result<(), Unsupported> {
        Err(Unsupported("faults are planned for the subject's calls alone".to_owned()))
    }

    fn log(&self) -> &[String] {
        &self.log
    }

    fn lost(&self) -> Option<Loss> {
        self.lost.clone()
    }

    fn memory_at(&self, address: DeviceAddr) -> Option<MemoryAt> {
        self.library.memory_at(address)
    }

    fn observed(&mut self) -> Option<&mut dyn Observed> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use hostview_sim::{Call, DrvError, PageKind, VirtualTime};

    use super::*;

    fn alloc(bytes: u64, kind: PageKind, fails: bool) -> Event {
        let outcome =
            if fails { Outcome::Failed(DrvError::OutOfMemory) } else { Outcome::Allocated(DeviceAddr::new(1)) };
        Event {
            call: Call::Alloc { device: 0, bytes, kind },
            outcome,
            injected: false,
            rule: None,
            besides: None,
            cost: VirtualTime::ZERO,
        }
    }

    #[test]
    fn what_fell_back_to_the_other_kind_of_page_is_one_allocation() {
        let huge = |bytes, fails| alloc(bytes, PageKind::Huge, fails);
        let ordinary = |bytes, fails| alloc(bytes, PageKind::Ordinary, fails);
        let kept = without_fallbacks(vec![huge(5, true), ordinary(5, false), ordinary(5, true), ordinary(5, true)]);
        assert_eq!(kept, [ordinary(5, false), ordinary(5, true), ordinary(5, true)]);
        let apart = vec![huge(5, true), ordinary(6, false), huge(7, false), ordinary(7, false)];
        assert_eq!(without_fallbacks(apart.clone()), apart);
    }
}
