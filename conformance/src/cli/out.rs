//! What commands write: to standard output, for a reader who may have gone, and to files.

use std::io::{ErrorKind, Write as _, stdout};
use std::path::Path;

use hostview::case::write_atomically;

use super::Wrong;

/// Writes text. A closed pipe ends the command as quietly as it would any other.
pub(super) fn say(text: &str) {
    let mut out = stdout().lock();
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    if let Err(error) = result {
        if error.kind() != ErrorKind::BrokenPipe {
            eprintln!("hostview: standard output cannot be written: {error}");
        }
        std::process::exit(i32::from(super::Exit::Usage as u8));
    }
}

/// Writes a line.
pub(super) fn say_line(line: &str) {
    say(&format!("{line}\n"));
}

/// Writes a file, whole or not at all.
pub(super) fn write(file: &Path, text: &str) -> Result<(), Wrong> {
    write_atomically(file, text).map_err(|error| Wrong(format!("{}: cannot be written: {error}", file.display())))
}

/// Refuses a folder where a file will be written, before anything is run for it.
pub(super) fn is_for_a_file<'a>(files: impl IntoIterator<Item = &'a Path>) -> Result<(), Wrong> {
    match files.into_iter().find(|file| file.is_dir()) {
        Some(folder) => Err(Wrong(format!("{}: is a folder; give a file to write", folder.display()))),
        None => Ok(()),
    }
}

/// Refuses a file where files will be written into, before anything is run for them.
pub(super) fn is_for_a_folder(folder: &Path) -> Result<(), Wrong> {
    if folder.exists() && !folder.is_dir() {
        return Err(Wrong(format!("{}: is a file; give a folder to write into", folder.display())));
    }
    Ok(())
}
