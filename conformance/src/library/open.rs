//! Loading the libraries, in the process that will call them.

#![allow(unsafe_code, reason = "libraries are loaded")]

use std::ffi::c_int;
use std::path::Path;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LOCAL, RTLD_NOW};

use super::abi::{Acl, Hal, Missing, SIMULATOR_MARK};
use super::find::{CannotOpen, Paths};

/// The calls of both libraries.
#[derive(Clone, Debug)]
pub(super) struct Loaded {
    pub(super) hal: Hal,
    pub(super) acl: Acl,
    pub(super) missing: Vec<Missing>,
    /// Whether the library says of itself that it is the simulator.
    pub(super) simulator: bool,
}

/// Loads them for the life of the process.
///
/// # Errors
///
/// The loader refuses a file, or the driver's has none of what a driver has.
pub(super) fn open(paths: &Paths) -> Result<Loaded, CannotOpen> {
    let library = load(&paths.hal)?;
    let (hal, mut missing) = Hal::look_up(library);
    if hal.alloc.is_none() || hal.free.is_none() || hal.register.is_none() || hal.unregister.is_none() {
        let lacks: Vec<&str> = ["halMemAlloc", "halMemFree", "halHostRegister", "halHostUnregister"]
            .into_iter()
            .filter(|name| missing.iter().any(|missing| missing.symbol == *name))
            .collect();
        return Err(CannotOpen::Refused(format!(
            "{}: is a library without {}: no law can be checked on it; give a libascend_hal.so",
            paths.hal.display(),
            lacks.join(", ")
        )));
    }
    // SAFETY: only whether the symbol is there is asked.
    let simulator = unsafe { library.get::<unsafe extern "C" fn()>(SIMULATOR_MARK) }.is_ok();
    let acl = match &paths.acl {
        None => Acl::default(),
        Some(path) => {
            let (acl, lacks) = Acl::look_up(load(path)?);
            missing.extend(lacks);
            acl
        }
    };
    Ok(Loaded { hal, acl, missing, simulator })
}

/// Loads a library for good, into the global scope: the runtime looks the driver's symbols up there.
pub(super) fn load(path: &Path) -> Result<&'static Library, CannotOpen> {
    load_into(path, RTLD_GLOBAL)
}

/// Loads a library for good, for those alone who open it too.
pub(super) fn load_aside(path: &Path) -> Result<&'static Library, CannotOpen> {
    load_into(path, RTLD_LOCAL)
}

/// A driver keeps threads and thread-local state that do not survive its unloading.
fn load_into(path: &Path, scope: c_int) -> Result<&'static Library, CannotOpen> {
    // SAFETY: loading runs the library's constructors, in a process that was made for that and is watched by another.
    let library = unsafe { Library::open(Some(path), RTLD_NOW | scope) };
    match library {
        Ok(library) => Ok(Box::leak(Box::new(library))),
        Err(error) => {
            use std::error::Error as _;
            // What the loader says lies behind what libloading says.
            let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            // It names the path as well: once is enough.
            let path = path.display().to_string();
            let text = text.replace(&format!("{path}: "), "");
            Err(CannotOpen::Refused(format!("{path}: cannot be loaded: {text}")))
        }
    }
}
