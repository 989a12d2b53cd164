//! Reading TOML so that a mistake is named with its file, its line and the mend.

use std::path::Path;

use serde::de::DeserializeOwned;

/// A file that could not be read as what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{place}: {problem}")]
    Unreadable {
        /// The file.
        place: String,
        /// What the system says.
        problem: String,
    },
    /// The text is wrong at a line.
    #[error("{place}:{line}: {problem}")]
    Line {
        /// The file.
        place: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong, and the mend.
        problem: String,
    },
}

impl ConfigError {
    /// The same message without its line, for text that the user never wrote as such.
    #[must_use]
    pub fn without_line(self) -> Self {
        match self {
            Self::Line { place, problem, .. } | Self::Unreadable { place, problem } => {
                Self::Unreadable { place, problem }
            }
        }
    }
}

/// Reads a text file.
///
/// # Errors
///
/// [`ConfigError::Unreadable`] with what the system says.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |problem: String| ConfigError::Unreadable { place: path.display().to_string(), problem };
    let bytes = std::fs::read(path).map_err(|error| {
        unreadable(match error.kind() {
            std::io::ErrorKind::NotFound => "no such file".to_owned(),
            std::io::ErrorKind::IsADirectory => "is a directory; name a file in it".to_owned(),
            _ => format!("cannot be read: {error}"),
        })
    })?;
    String::from_utf8(bytes).map_err(|_| unreadable("is not UTF-8 text".to_owned()))
}

/// Reads a value from TOML; `place` is what messages call the text.
///
/// # Errors
///
/// [`ConfigError::Line`] with the line; an unknown key names the nearest known one.
pub fn from_toml<T: DeserializeOwned>(text: &str, place: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.get(..start).map_or(1, |before| before.matches('\n').count() + 1);
        ConfigError::Line { place: place.to_owned(), line, problem: explain(error.message()) }
    })
}

/// Turns serde's list of everything that would have been right into the one that was probably meant.
#[must_use]
pub fn explain(message: &str) -> String {
    let message = message.trim();
    for what in ["field", "variant"] {
        let Some(rest) = message.strip_prefix(&format!("unknown {what} `")) else { continue };
        let Some((found, list)) = rest.split_once('`') else { continue };
        let known: Vec<&str> = list.split('`').skip(1).step_by(2).collect();
        let noun = if what == "field" { "key" } else { "value" };
        let mend = match nearest(found, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None if known.is_empty() => "there is none here".to_owned(),
            None => format!("known here: {}", known.join(", ")),
        };
        return format!("unknown {noun} `{found}`; {mend}");
    }
    if let Some(field) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return format!("the key `{field}` is missing; add it");
    }
    message.lines().collect::<Vec<_>>().join("; ")
}

/// The known word that is nearest to what was written, when one is near at all.
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(found, word), word))
        .filter(|(distance, word)| *distance <= word.len().max(found.len()) / 3 + 1)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_key_is_named() {
        #[derive(serde::Deserialize, Debug)]
        #[serde(deny_unknown_fields)]
        struct Two {
            #[allow(dead_code, reason = "only the error is of interest")]
            one: u32,
        }
        let error = from_toml::<Two>("", "a.toml").unwrap_err();
        assert_eq!(error.to_string(), "a.toml:1: the key `one` is missing; add it");
        let error = from_toml::<Two>("one = 1\nxyzzy = 2", "a.toml").unwrap_err();
        assert_eq!(error.to_string(), "a.toml:2: unknown key `xyzzy`; known here: one");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("nowhere/at.toml")).unwrap_err();
        assert_eq!(error.to_string(), "nowhere/at.toml: no such file");
    }
}
