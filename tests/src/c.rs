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

/// Where the header of a subject is, in the repository.
pub const SUBJECT_HEADERS: &str = "conformance/sdk/include";

/// Compiles a subject of `fixtures/subjects` into `libNAME.so` of a folder, in C or C++ by its name.
///
/// # Panics
///
/// As [`compile`].
pub fn subject(folder: &Path, name: &str, source: &str, arguments: &[&str]) {
    let library = folder.join(format!("lib{name}.so"));
    let headers = format!("-I{}", root().join(SUBJECT_HEADERS).display());
    let is_cpp = Path::new(source).extension().is_some_and(|end| end == "cpp");
    let (compiler, standard) = if is_cpp { ("g++", "-std=c++17") } else { ("cc", "-std=c11") };
    let before = [standard, "-pedantic", "-D_GNU_SOURCE", "-shared", "-fPIC", &headers];
    compile(compiler, &format!("fixtures/subjects/{source}"), &library, &[&before, arguments].concat());
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
