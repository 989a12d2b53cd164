//! What the tests share: the repository's fixtures, and the built command.

pub mod c;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The repository.
///
/// # Panics
///
/// Never: the crate lies in a folder of the repository.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in the repository").to_owned()
}

/// The binary `hostview`, built now if it is not: cargo builds the binaries of other packages for no test.
///
/// # Panics
///
/// It does not build.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let release = if cfg!(debug_assertions) { &[][..] } else { &["--release"][..] };
        let output = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "hostview", "--message-format=json-render-diagnostics"])
            .args(release)
            .current_dir(root())
            .output()
            .expect("cargo runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let messages = String::from_utf8(output.stdout).expect("cargo writes UTF-8");
        let mut executable = messages.lines().filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(line).ok()?;
            let named = message["target"]["name"] == "hostview";
            message["executable"].as_str().filter(|_| named).map(PathBuf::from)
        });
        executable.next_back().expect("cargo names the binary")
    })
}

/// What a run of the command gave.
#[derive(Debug)]
pub struct Run {
    /// Its exit code.
    pub code: Option<i32>,
    /// What it wrote to standard output.
    pub out: String,
    /// What it wrote to standard error.
    pub err: String,
}

/// Runs the command in a folder.
///
/// # Panics
///
/// It cannot be started.
#[must_use]
pub fn hostview_in(folder: &Path, arguments: &[&str]) -> Run {
    let Output { status, stdout, stderr } =
        Command::new(binary()).args(arguments).current_dir(folder).output().expect("the command starts");
    Run {
        code: status.code(),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

/// Runs the command in the repository.
///
/// # Panics
///
/// It cannot be started.
#[must_use]
pub fn hostview(arguments: &[&str]) -> Run {
    hostview_in(&root(), arguments)
}
