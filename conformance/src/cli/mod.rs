//! The command line.

mod check;
mod cost;
mod explain;
mod gate;
mod library;
mod list;
mod mutants;
mod out;
mod replay;
mod sdk;
mod shrink;

use std::fmt::Display;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// How a run ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Exit {
    /// All laws hold.
    Holds = 0,
    /// A law is broken, or a case does not do what it says.
    Broken = 1,
    /// The call or an input file is wrong.
    Usage = 2,
    /// The platform or the subject cannot be opened.
    CannotOpen = 3,
    /// A law that applies could not be checked.
    NotProven = 4,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

const AFTER_HELP: &str = "\
Without a command, `check` is run.

Exit codes:
  0  all laws hold
  1  a law is broken
  2  the call or an input file is wrong
  3  the platform or the subject cannot be opened
  4  a law that applies could not be checked, or a case not be run (gate, replay)";

/// Judges caches of host views of device memory: on a simulated device, by named laws.
#[derive(Debug, Parser)]
#[command(name = "hostview", version, after_help = AFTER_HELP, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(check::CheckArguments),
    Gate(gate::GateArguments),
    Replay(replay::ReplayArguments),
    Explain(explain::ExplainArguments),
    Shrink(shrink::ShrinkArguments),
    Mutants(mutants::MutantsArguments),
    Sweep(cost::SweepArguments),
    Fit(cost::FitArguments),
    Calibrate(cost::CalibrateArguments),
    Decide(cost::DecideArguments),
    Sdk(sdk::SdkArguments),
    Laws(list::LawsArguments),
    Profiles(list::ProfilesArguments),
    /// Has a driver library for another process of this program
    #[command(name = library::SERVE, hide = true)]
    ServeLibrary,
    /// Has a subject for another process of this program
    #[command(hide = true)]
    ServeSubject(check::ServeSubjectArguments),
}

/// Runs what the command line asks for.
pub(crate) fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are no mistakes; everything else ends with 2, as clap has it.
            let wrong = error.use_stderr();
            let _ = error.print();
            return if wrong { Exit::Usage.into() } else { Exit::Holds.into() };
        }
    };
    let result = match arguments.command {
        None => check::run(&check::CheckArguments::default()),
        Some(Command::Check(arguments)) => check::run(&arguments),
        Some(Command::Gate(arguments)) => gate::run(&arguments),
        Some(Command::ServeLibrary) => library::run_serve(),
        Some(Command::ServeSubject(arguments)) => check::run_serve(&arguments),
        Some(Command::Replay(arguments)) => replay::run(&arguments),
        Some(Command::Explain(arguments)) => explain::run(&arguments),
        Some(Command::Shrink(arguments)) => shrink::run(&arguments),
        Some(Command::Mutants(arguments)) => mutants::run(&arguments),
        Some(Command::Sweep(arguments)) => cost::run_sweep(&arguments),
        Some(Command::Fit(arguments)) => cost::run_fit(&arguments),
        Some(Command::Calibrate(arguments)) => cost::run_calibrate(&arguments),
        Some(Command::Decide(arguments)) => cost::run_decide(&arguments),
        Some(Command::Sdk(arguments)) => sdk::run(&arguments),
        Some(Command::Laws(arguments)) => list::laws(&arguments),
        Some(Command::Profiles(arguments)) => list::profiles(&arguments),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(wrong) => {
            eprintln!("hostview: {}", wrong.0);
            Exit::Usage.into()
        }
    }
}

/// A message about a wrong call or input file.
#[derive(Debug)]
struct Wrong(String);

impl<E: Display> From<E> for Wrong {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}
