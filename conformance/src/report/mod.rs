//! What a run says: to a person and to a program.

mod json;
mod matrix;
mod story;
mod why;
mod words;

pub use json::check_as_json;
pub use matrix::{matrix, reasons, summary};
pub use story::{case_file_name, repeat_command, story};
pub use why::{case_text, keys_text, rule_as_json, rule_text};
pub use words::{describe_step, wrapped};
