//! `hostview replay`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use hostview::case::{Case, Through};
use hostview::library::LibrarySite;
use hostview::replay::{Discord, Ending, Prepared, ReplayError, files, prepare};
use hostview::report::describe_step;
use hostview::site::Hindrance;

use super::library::{LibraryArguments, cannot_open, heed_signals, seconds};
use super::out::say_line;
use super::{Exit, Wrong};

/// Runs case and trace files: each step must do what the file says
///
/// A case is TOML with [[step]] tables; a trace is the same steps as JSON Lines behind a header line; a sequence set is JSON
/// Lines with one whole sequence a line. A journal of the drop-in library (HOSTVIEW_JOURNAL=run.jsonl) is what a program called.
/// Folders stand for all such files in them.
///
/// On the simulator, each on its own profile; with --hal on a driver library, whatever the profile, so that a case of another
/// kind of machine fails there. What such a library cannot be made to do is said and not run (exit 4).
#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
    /// Files and folders
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,

    /// Says what each case used: virtual time, memory
    #[arg(long, short)]
    verbose: bool,

    #[command(flatten)]
    library: LibraryArguments,

    /// Seconds for everything on a driver library
    #[arg(long, value_name = "S", default_value_t = 300.0, value_parser = seconds, help_heading = "The driver library")]
    time_limit: f64,
}

pub(super) fn run(arguments: &ReplayArguments) -> Result<Exit, Wrong> {
    // Everything is read before anything is run: a mistake in the last file costs no time.
    let files = files(&arguments.paths)?;
    let mut prepared: Vec<(PathBuf, Vec<Prepared>)> = Vec::new();
    for file in files {
        let cases = match prepare(&file) {
            Err(error @ ReplayError::CannotOpen { .. }) => {
                eprintln!("hostview: {error}");
                return Ok(Exit::CannotOpen);
            }
            other => other?,
        };
        prepared.push((file, cases));
    }
    if arguments.library.is_given() {
        return on_library(&prepared, arguments);
    }
    let (mut passed, mut failed) = (0_usize, 0_usize);
    for (file, cases) in &prepared {
        let (good, bad) = if let [case] = &cases[..] { one(file, case, arguments.verbose) } else { many(file, cases) };
        passed += good;
        failed += bad;
    }
    say_line(&format!("{passed} passed, {failed} failed"));
    Ok(if failed == 0 { Exit::Holds } else { Exit::Broken })
}

/// Replays on a driver library: one line for each case.
fn on_library(prepared: &[(PathBuf, Vec<Prepared>)], arguments: &ReplayArguments) -> Result<Exit, Wrong> {
    let summons = match arguments.library.summons()? {
        Ok(summons) => summons,
        Err(error) => return Ok(cannot_open(&error)),
    };
    heed_signals(&summons.watch)?;
    let site = match LibrarySite::open(summons, Duration::from_secs_f64(arguments.time_limit)) {
        Ok(site) => site,
        Err(error) => return Ok(cannot_open(&error)),
    };
    let follows_log = site.summons().driver_log.is_some();
    let (mut passed, mut failed, mut open) = (0_usize, 0_usize, 0_usize);
    for (file, cases) in prepared {
        for (index, case) in cases.iter().enumerate() {
            let which = if cases.len() > 1 { format!(", sequence {}", index + 1) } else { String::new() };
            let name = format!("{}{which}: {}", file.display(), title(&case.case));
            match case.run_on(&site) {
                Ok(None) => {
                    passed += 1;
                    say_line(&format!("ok    {name}"));
                    if !follows_log && case.case.steps.iter().any(|step| step.expect.0.log.is_some()) {
                        say_line(
                            "        but for the driver's log, which was not looked at; --driver-log FILE names it",
                        );
                    }
                }
                Ok(Some(discord)) => {
                    failed += 1;
                    say_line(&format!("FAIL  {name}\n        a case of {}", case.case.profile));
                    tell(case, &discord);
                }
                Err(Hindrance(why)) => {
                    open += 1;
                    say_line(&format!("-     {name}\n        not run: {why}"));
                }
            }
        }
    }
    site.close();
    let left = site.summons().watch.given_back().left;
    for left in &left {
        say_line(&format!("not given back: {left}"));
    }
    let not_run = if open == 0 { String::new() } else { format!(", {open} not run") };
    let simulator = if site.facts().simulator { " on the simulator's library" } else { "" };
    say_line(&format!("{passed} passed, {failed} failed{not_run}{simulator}"));
    Ok(match (failed + left.len(), open) {
        (0, 0) => Exit::Holds,
        (0, _) => Exit::NotProven,
        _ => Exit::Broken,
    })
}

fn one(file: &Path, prepared: &Prepared, verbose: bool) -> (usize, usize) {
    let Ending { discord, usage } = prepared.run();
    let title = title(&prepared.case);
    match &discord {
        None => say_line(&format!("ok    {}: {title}", file.display())),
        Some(discord) => {
            say_line(&format!("FAIL  {}: {title}", file.display()));
            tell(prepared, discord);
            say_why(prepared, file, None);
        }
    }
    if verbose {
        for line in usage.describe() {
            say_line(&format!("        {line}"));
        }
    }
    if discord.is_none() { (1, 0) } else { (0, 1) }
}

/// A sequence set: one line for all that pass, and the first step that differs for each that does not.
fn many(file: &Path, cases: &[Prepared]) -> (usize, usize) {
    let mut passed = 0;
    let mut discords = Vec::new();
    for (index, prepared) in cases.iter().enumerate() {
        match prepared.run().discord {
            None => passed += 1,
            Some(discord) => discords.push((index, prepared, discord)),
        }
    }
    let word = if discords.is_empty() { "ok  " } else { "FAIL" };
    let calls: usize = cases.iter().map(|prepared| prepared.case.steps.len()).sum();
    say_line(&format!(
        "{word}  {}: {passed} of {} sequences, each call equal ({calls} calls)",
        file.display(),
        cases.len()
    ));
    for (index, prepared, discord) in &discords {
        let seed = prepared.case.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
        say_line(&format!("      sequence {}{seed}, {}:", index + 1, prepared.case.profile));
        tell(prepared, discord);
        say_why(prepared, file, Some(index + 1));
    }
    (passed, discords.len())
}

/// Where to read by which rules the device answered, where that can be seen.
fn say_why(prepared: &Prepared, file: &Path, sequence: Option<usize>) {
    if prepared.is_explained() {
        let which = sequence.map_or_else(String::new, |sequence| format!(" --sequence {sequence}"));
        say_line(&format!("        by which rules: hostview explain {}{which}", file.display()));
    }
}

fn title(case: &Case) -> String {
    if !case.title.is_empty() {
        return case.title.clone();
    }
    let through = match case.through {
        Through::Driver => "driver calls",
        Through::Cache => "operations of a cache",
    };
    format!("{} {through} on {}", case.steps.len(), case.profile)
}

fn tell(prepared: &Prepared, discord: &Discord) {
    if let Some(step) = discord.step {
        say_line(&format!("        step {}: {}", step + 1, describe_step(prepared.step(step))));
    }
    say_line(&format!("        expected: {}", discord.expected));
    say_line(&format!("        came:     {}", discord.came));
    if let Some(log) = &discord.log {
        say_line(&format!("        the driver's last line: {log}"));
    }
    if let Some((before, after)) = &discord.heaps {
        for (when, lines) in [("before", before), ("after", after)] {
            say_line(&format!("        heaps {when} the step:"));
            for line in lines {
                say_line(&format!("          {line}"));
            }
        }
    }
}
