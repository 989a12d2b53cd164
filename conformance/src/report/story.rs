//! A failure as a person would tell it.

use std::fmt::Write as _;

use super::words::{describe_step, wrapped};
use crate::check::{CheckOptions, Failure};
use crate::laws;

/// The law, the sequence, the step that broke it, what the platform held then, and how to see it again.
#[must_use]
pub fn story(failure: &Failure, case_file: &str, repeat: &str) -> String {
    let statement = laws::find(failure.law.0).map_or("", |law| law.statement);
    let subject = failure.subject.as_ref().map_or_else(String::new, |subject| format!(" by `{subject}`"));
    let mut text = format!("{} is broken{subject} on {}\n", failure.law, failure.shown);
    let _ = writeln!(text, "{}\n", wrapped(statement, "  ", "  "));
    let width = failure.case.steps.len().to_string().len();
    for (index, step) in failure.case.steps.iter().enumerate() {
        let here = if index == failure.step { "  <- here" } else { "" };
        let _ = writeln!(text, "  {:>width$}  {}{here}", index + 1, describe_step(step));
    }
    let _ = writeln!(text, "\n{}", wrapped(&failure.what, "  ", "  "));
    if let Some(aftermath) = &failure.aftermath {
        let _ = writeln!(text, "{}", wrapped(&format!("What comes of it: {aftermath}"), "  ", "  "));
    }
    if failure.subject.is_some() {
        if failure.holding.is_empty() {
            let _ = writeln!(text, "  The platform held no registration then.");
        } else {
            let _ = writeln!(text, "  The platform held then:");
        }
        for line in &failure.holding {
            let _ = writeln!(text, "    {line}");
        }
    }
    if let Some(log) = failure.log.as_deref() {
        let _ = writeln!(text, "{}", wrapped(&format!("The driver's last line: {log}"), "  ", "    "));
    }
    let _ = writeln!(text, "\n  The sequence as a case:\n    hostview replay {case_file}");
    let _ = writeln!(text, "  The run again:\n    {repeat}");
    text
}

/// The file that a failure's case is written to.
#[must_use]
pub fn case_file_name(failure: &Failure) -> String {
    let profile = &failure.stem;
    match &failure.subject {
        Some(subject) => format!("{subject}-{profile}-{}.toml", failure.law),
        None => format!("{profile}-{}.toml", failure.law),
    }
}

/// The command that finds a failure again.
#[must_use]
pub fn repeat_command(options: &CheckOptions, failure: &Failure) -> String {
    let mut command = format!("hostview check --profile {}", failure.profile);
    if let Some(subject) = &failure.case.subject {
        let _ = write!(command, " --subject {subject}");
    }
    let _ = write!(command, " --law {} --cases {} --seed {}", failure.law, options.cases, options.seed);
    command
}
