//! `hostview replay`.

use std::path::{Path, PathBuf};

use clap::Args;
use hostview::case::{Case, Through};
use hostview::replay::{Discord, Ending, Prepared, files, prepare};
use hostview::report::describe_step;

use super::out::say_line;
use super::{Exit, Wrong};

/// Runs case and trace files: each step must do what the file says
///
/// A case is TOML with [[step]] tables; a trace is the same steps as JSON Lines behind a header line; a sequence set is JSON
/// Lines with one whole sequence a line. Folders stand for all such files in them.
#[derive(Debug, Args)]
pub(super) struct ReplayArguments {
    /// Files and folders
    #[arg(required = true, value_name = "FILE|DIR")]
    paths: Vec<PathBuf>,

    /// Says what each case used: virtual time, memory
    #[arg(long, short)]
    verbose: bool,
}

pub(super) fn run(arguments: &ReplayArguments) -> Result<Exit, Wrong> {
    // Everything is read before anything is run: a mistake in the last file costs no time.
    let files = files(&arguments.paths)?;
    let prepared: Vec<(PathBuf, Vec<Prepared>)> =
        files.into_iter().map(|file| Ok((file.clone(), prepare(&file)?))).collect::<Result<_, Wrong>>()?;
    let (mut passed, mut failed) = (0_usize, 0_usize);
    for (file, cases) in &prepared {
        let (good, bad) = if let [case] = &cases[..] { one(file, case, arguments.verbose) } else { many(file, cases) };
        passed += good;
        failed += bad;
    }
    say_line(&format!("{passed} passed, {failed} failed"));
    Ok(if failed == 0 { Exit::Holds } else { Exit::Broken })
}

fn one(file: &Path, prepared: &Prepared, verbose: bool) -> (usize, usize) {
    let Ending { discord, usage } = prepared.run();
    let title = title(&prepared.case);
    match &discord {
        None => say_line(&format!("ok    {}: {title}", file.display())),
        Some(discord) => {
            say_line(&format!("FAIL  {}: {title}", file.display()));
            tell(prepared, discord);
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
        say_line(&format!("      line {}{seed}, {}:", index + 1, prepared.case.profile));
        tell(prepared, discord);
    }
    (passed, discords.len())
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
