//! What is wrong with JSON that somebody gave.

/// What `serde_json` says of a text, without the line and column that it adds: messages name the place in their own way.
pub(crate) fn without_place(error: &serde_json::Error) -> String {
    let message = error.to_string();
    message.rsplit_once(" at line ").map_or(message.clone(), |(before, _)| before.to_owned())
}
