//! Standard output, for a reader who may have gone.

use std::io::{ErrorKind, Write as _, stdout};

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
