//! C programs and libraries, built for a test and run against the drop-in libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::root;

/// Where cargo put the drop-in libraries: beside the test, since the test crate depends on theirs.
///
/// # Panics
///
/// They are not there.
#[must_use]
pub fn library_folder() -> PathBuf {
    let exe = std::env::current_exe().expect("a test has a path");
    let folder = exe.ancestors().skip(1).take(2).find(|folder| folder.join("libascend_hal.so").exists());
    folder.expect("libascend_hal.so is built beside the tests").to_owned()
}

/// Compiles a source of `fixtures/harness` or of `tests/standins`; the compiler's first words where it refuses.
///
/// # Panics
///
/// There is no such compiler, or it does not like the source.
pub fn compile(compiler: &str, source: &str, output: &Path, arguments: &[&str]) {
    let built = Command::new(compiler)
        .args(["-O2", "-Wall", "-Werror", "-o"])
        .arg(output)
        .arg(root().join(source))
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}

/// Whether a C compiler is here; a test that needs one says that it is skipped where there is none.
#[must_use]
pub fn has_compiler(compiler: &str) -> bool {
    let found = Command::new(compiler).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: there is no `{compiler}` here");
    }
    found
}
