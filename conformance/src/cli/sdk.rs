//! `hostview sdk`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use hostview::case::write_atomically;
use hostview::subject::beside;

use super::out::say_line;
use super::{Exit, Wrong};

const SETENV: &str = "setenv.sh";
/// How the script of a root of ours begins, and no other file.
const MARK: &str = "# An SDK root with hostview's drop-in libraries.";
const HEADERS: [(&str, &str); 3] = [
    ("include/acl/acl.h", include_str!("../../sdk/include/acl/acl.h")),
    ("include/ascend_hal.h", include_str!("../../sdk/include/ascend_hal.h")),
    ("include/hostview_subject.h", include_str!("../../sdk/include/hostview_subject.h")),
];
const LIBRARIES: [&str; 2] = ["libascend_hal.so", "libascendcl.so"];

/// Lays out an SDK root with the drop-in libraries, so that programs for the device build and run on the simulator
///
/// DIR gets include/acl/acl.h, include/ascend_hal.h, include/hostview_subject.h, lib64 with both libraries, and a setenv.sh to be sourced. The headers are
/// hostview's own, with the calls that the libraries have and no others.
#[derive(Debug, Args)]
pub(super) struct SdkArguments {
    /// The root: a folder that is empty, is not there, or was laid out before
    #[arg(value_name = "DIR")]
    root: PathBuf,

    /// Where the built libraries are; beside this program when left out
    #[arg(long, value_name = "DIR")]
    libraries: Option<PathBuf>,
}

pub(super) fn run(arguments: &SdkArguments) -> Result<Exit, Wrong> {
    let root = &arguments.root;
    let found = match &arguments.libraries {
        Some(folder) => vec![folder.clone()],
        None => beside_this_program()?,
    };
    let has_both = |folder: &&PathBuf| LIBRARIES.iter().all(|library| folder.join(library).is_file());
    let Some(libraries) = found.iter().find(has_both) else {
        let places: Vec<String> = found.iter().map(|folder| format!("  {}\n", folder.display())).collect();
        eprintln!(
            "hostview: no {} in\n{}build them with `cargo build --release -p hostview-hal -p hostview-acl`, or give \
             --libraries DIR",
            LIBRARIES.join(" and "),
            places.concat()
        );
        return Ok(Exit::CannotOpen);
    };
    if !is_ours_or_empty(root) {
        return Err(Wrong(format!(
            "{}: is a file, or holds something else; give a folder that is empty or is not there",
            root.display()
        )));
    }
    lay_out(root, libraries).map_err(|error| Wrong(format!("{}: cannot be laid out: {error}", root.display())))?;
    say_line(&format!("{} is an SDK root. In a shell:", root.display()));
    say_line(&format!("  . {}/{SETENV}", root.display()));
    say_line("  g++ -std=c++17 -O2 program.cpp -o program -I$ASCEND/include -L$ASCEND/lib64 -lascendcl -ldl");
    Ok(Exit::Holds)
}

/// The folders that cargo, or an installation, puts libraries in.
fn beside_this_program() -> Result<Vec<PathBuf>, Wrong> {
    let program = std::env::current_exe().map_err(|error| Wrong(format!("this program is not found: {error}")))?;
    Ok(beside(&program).into())
}

fn is_ours_or_empty(root: &Path) -> bool {
    match fs::read_dir(root) {
        Ok(mut entries) => {
            let ours = |text: String| text.starts_with(MARK);
            entries.next().is_none() || fs::read_to_string(root.join(SETENV)).is_ok_and(ours)
        }
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// The script, for any shell: it names the root itself, since a script that is sourced is not told where it lies.
fn setenv(root: &Path) -> String {
    let root = root.display().to_string().replace('\'', r"'\''");
    format!(
        "{MARK} To be sourced: . {SETENV}\n\
         export ASCEND='{root}'\n\
         export ASCEND_HOME_PATH=\"$ASCEND\"\n\
         export LD_LIBRARY_PATH=\"$ASCEND/lib64${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\"\n"
    )
}

fn lay_out(root: &Path, libraries: &Path) -> io::Result<()> {
    fs::create_dir_all(root)?;
    let root = &root.canonicalize()?;
    // The mark comes first: a root that was left half-way can be laid out again.
    write_atomically(&root.join(SETENV), &setenv(root))?;
    for (name, text) in HEADERS {
        write_atomically(&root.join(name), text)?;
    }
    let folder = root.join("lib64");
    fs::create_dir_all(&folder)?;
    for library in LIBRARIES {
        // A program that has the old one open keeps it.
        let new = folder.join(format!(".{library}.new"));
        fs::copy(libraries.join(library), &new)?;
        fs::rename(&new, folder.join(library))?;
    }
    Ok(())
}
