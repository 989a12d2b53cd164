//! Where the libraries are looked for.

use std::env;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::abi::ACL;
use super::platform::Limits;

/// The driver's library.
const HAL: &str = "libascend_hal.so";

/// Which layer allocates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// The runtime: `rtMalloc`, and `aclrtMallocAlign32` where that is not exported.
    Acl,
    /// The driver, by the runtime's own rule of page kinds.
    Hal,
}

/// What the command line says.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The driver's library.
    pub hal: Option<PathBuf>,
    /// The runtime's.
    pub acl: Option<PathBuf>,
    /// Which layer allocates; the runtime where there is one.
    pub via: Option<Layer>,
}

/// The libraries to load.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Paths {
    /// The driver's: a path, or a bare name that the loader finds.
    pub hal: PathBuf,
    /// The runtime's.
    pub acl: Option<PathBuf>,
    /// Which layer allocates.
    pub via: Layer,
}

/// What a subject's process is to open, where the suite runs on a machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The libraries.
    pub paths: Paths,
    /// How much of the machine.
    pub limits: Limits,
}

/// Why no library can be loaded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CannotOpen {
    /// A path that was given is not there.
    #[error("{path}: is not there; give the path of a {name}")]
    Absent {
        /// The path.
        path: String,
        /// What it should be.
        name: &'static str,
    },
    /// Nothing was found.
    #[error(
        "no libascend_hal.so was found; looked in\n{places}give --hal FILE, or set ASCEND_HOME_PATH or LD_LIBRARY_PATH"
    )]
    NotFound {
        /// Where it was looked for, a line each.
        places: String,
    },
    /// ACL is asked for, and there is none.
    #[error("--via acl asks for a libascendcl.so, and none was found; give --acl FILE, or --via hal")]
    NoAcl,
    /// The loader refuses it, or it is no driver.
    #[error("{0}")]
    Refused(String),
}

/// The libraries that the command line or the environment name.
///
/// # Errors
///
/// What is named is not there, or nothing is; the message lists where it was looked for.
pub fn find(choice: &Choice) -> Result<Paths, CannotOpen> {
    let hal = match &choice.hal {
        Some(path) => given(path, HAL)?,
        None => {
            let places = places();
            let found = places.iter().map(|place| place.join(HAL)).find(|path| path.exists());
            found.ok_or_else(|| CannotOpen::NotFound {
                places: places.iter().map(|place| format!("  {}\n", place.join(HAL).display())).collect(),
            })?
        }
    };
    let acl = match (&choice.acl, choice.via) {
        (Some(path), _) => Some(given(path, ACL)?),
        (None, Some(Layer::Hal)) => None,
        // A HAL library that was named goes with what lies beside it, and with no other.
        (None, _) if choice.hal.is_some() => Some(hal.with_file_name(ACL)).filter(|path| path.exists()),
        (None, _) => places().iter().map(|place| place.join(ACL)).find(|path| path.exists()),
    };
    let via = choice.via.unwrap_or(if acl.is_some() { Layer::Acl } else { Layer::Hal });
    if via == Layer::Acl && acl.is_none() {
        return Err(CannotOpen::NoAcl);
    }
    Ok(Paths { hal, acl, via })
}

/// A path that was given, made absolute: the loader takes a bare name for something else.
fn given(path: &Path, name: &'static str) -> Result<PathBuf, CannotOpen> {
    path.canonicalize().map_err(|_| CannotOpen::Absent { path: path.display().to_string(), name })
}

/// The folders of an Ascend installation, and the loader's own. Source: real clients of the driver; CANN's `set_env.sh`.
fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(library_path) = env::var_os("LD_LIBRARY_PATH") {
        places.extend(env::split_paths(&library_path).filter(|path| !path.as_os_str().is_empty()));
    }
    if let Some(home) = env::var_os("ASCEND_HOME_PATH").map(PathBuf::from).filter(|home| !home.as_os_str().is_empty()) {
        places.push(home.join("lib64"));
        // The toolkit's own copy only links; the driver is installed beside it.
        places.push(home.join("../driver/lib64/driver"));
        places.push(home.join("../driver/lib64"));
    }
    let driver = Path::new("/usr/local/Ascend/driver/lib64");
    places.extend([driver.join("driver"), driver.to_owned()]);
    places.extend(["/usr/lib64", "/usr/lib"].map(PathBuf::from));
    places
}
