//! What a run says: to a person and to a program.

mod json;
mod matrix;
mod story;
mod words;

pub use json::check_as_json;
pub use matrix::{matrix, reasons, summary};
pub use story::{case_file_name, repeat_command, story};
pub use words::{describe_step, wrapped};
