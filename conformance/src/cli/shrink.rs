//! `hostview shrink`.

use std::path::PathBuf;

use clap::Args;
use hostview::case::to_toml;
use hostview::shorten::Shortened;

use super::explain::choose;
use super::out::{is_for_a_file, say, write};
use super::{Exit, Wrong};

/// Makes a case that fails as short as it can be
///
/// What is left fails in the same way: it breaks the same law, or its last step is answered the same by the same rule of the
/// simulated driver. A journal of a program (HOSTVIEW_JOURNAL=run.jsonl) that another machine would refuse comes down to the few
/// calls that matter: hostview shrink run.jsonl --profile a2a3-64k
#[derive(Debug, Args)]
pub(super) struct ShrinkArguments {
    /// A case, trace or journal
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where it runs, instead of on its own profile
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,

    /// Which sequence of a file that holds many; 1 is the first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sequence: Option<u32>,

    /// Where the case goes; to standard output when left out
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(super) fn run(arguments: &ShrinkArguments) -> Result<Exit, Wrong> {
    is_for_a_file(arguments.output.as_deref())?;
    let chosen = choose(&arguments.file, arguments.profile.as_deref(), arguments.sequence)?;
    let place = arguments.file.display();
    let Shortened { mut case, what, before } = chosen.shortened().map_err(|why| Wrong(format!("{place}: {why}")))?;
    let after = case.steps.len();
    what.clone_into(&mut case.title);
    case.source = format!(
        "{}{before} steps of {place}",
        if case.source.is_empty() { String::new() } else { format!("{}; ", case.source) }
    );
    eprintln!("{before} steps to {after}: {what}");
    match &arguments.output {
        Some(file) => write(file, &to_toml(&case))?,
        None => say(&to_toml(&case)),
    }
    Ok(Exit::Holds)
}
