//! Writing case files.

use std::io::{self, Write as _};
use std::path::Path;

use super::Case;

/// A case as TOML.
#[must_use]
pub fn to_toml(case: &Case) -> String {
    toml::to_string(case).unwrap_or_else(|error| format!("# this case cannot be written as TOML: {error}\n"))
}

/// Writes a file whole or not at all: through a temporary file beside it, and a rename.
///
/// # Errors
///
/// The folder cannot be made or written.
pub fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
