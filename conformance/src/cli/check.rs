//! `hostview check`.

use std::io::{IsTerminal as _, stderr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use hostview::case::{to_toml, write_atomically};
use hostview::check::{CheckOptions, DRAWN, Generator, ProfileChoice, Report, check};
use hostview::laws::{self, LawId};
use hostview::report::{case_file_name, check_as_json, matrix, reasons, repeat_command, story, summary};
use hostview::site::Simulator;
use hostview::subject::{self, BUILT_IN, Library, SubjectChoice, SubjectHome, SubjectLimits, serve};
use hostview_sim::Profile;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::library::seconds;
use super::out::{is_for_a_file, is_for_a_folder, say, say_line};
use super::{Exit, Wrong};

/// Runs the suite: every law, on every profile, over drawn sequences
///
/// D-laws are checked on the driver of each profile, V-laws on each subject. What breaks is shrunk to the shortest
/// sequence, told step by step, and written as a case file that `hostview replay` runs.
#[derive(Debug, Args)]
pub(super) struct CheckArguments {
    /// A shipped profile, a file, or `drawn` for profiles drawn at random; all of these when left out
    #[arg(long, value_name = "NAME|FILE")]
    profile: Vec<String>,

    /// A subject: cache, rebuild or shared, all three when left out; a library that implements hostview_subject.h, by its
    /// path; or one that is broken on purpose, as `hostview mutants` lists them
    #[arg(long, value_name = "NAME|FILE")]
    subject: Vec<String>,

    /// Seconds that a call of a subject's library may take
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    call_limit: f64,

    /// Memory that a subject's library may allocate, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    memory_limit: u64,

    /// The drop-in libascend_hal.so that a subject's library meets where it opens the driver itself; the one beside this
    /// program when left out
    #[arg(long, value_name = "FILE")]
    drop_in: Option<PathBuf>,

    /// How many rows at once; as many as there are processors when left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,

    /// A law, by its id; all when left out
    #[arg(long, value_name = "ID")]
    law: Vec<String>,

    /// Sequences for each profile and subject
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cases: u32,

    /// The seed of everything that is drawn; the same seed gives the same run
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// Writes the report as JSON as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Where case files of failures go
    #[arg(long, value_name = "DIR", default_value = "hostview-failures")]
    out: PathBuf,
}

impl Default for CheckArguments {
    fn default() -> Self {
        Self {
            profile: Vec::new(),
            subject: Vec::new(),
            call_limit: 2.0,
            memory_limit: 512,
            drop_in: None,
            jobs: None,
            law: Vec::new(),
            cases: 256,
            seed: 1,
            json: None,
            out: PathBuf::from("hostview-failures"),
        }
    }
}

pub(super) fn run(arguments: &CheckArguments) -> Result<Exit, Wrong> {
    is_for_a_file(arguments.json.as_deref())?;
    is_for_a_folder(&arguments.out)?;
    let options = match options(arguments)? {
        Ok(options) => options,
        Err(why) => {
            eprintln!("hostview: {why}");
            return Ok(Exit::CannotOpen);
        }
    };
    let bar = progress_bar(&options);
    let report = check(&options, &Simulator, &|profile| {
        bar.set_message(profile.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();

    for subject in &options.subjects {
        if let SubjectChoice::Library(library) = subject {
            say_line(&format!("Subject {}\n", library.describe()));
        }
    }
    say(&matrix(&report));
    let reasons = reasons(&report);
    if !reasons.is_empty() {
        say(&format!("\n{reasons}"));
    }
    tell_failures(&options, &report, arguments)?;
    say_line(&format!("\n{}", summary(&options, &report)));
    if let Some(file) = &arguments.json {
        let text = format!("{:#}\n", check_as_json(&options, &report));
        write_atomically(file, &text)
            .map_err(|error| Wrong(format!("{}: cannot be written: {error}", file.display())))?;
    }
    Ok(if report.holds() { Exit::Holds } else { Exit::Broken })
}

/// Writes the case of each failure; tells it in full where its law and subject come up first, and in a line elsewhere.
fn tell_failures(options: &CheckOptions, report: &Report, arguments: &CheckArguments) -> Result<(), Wrong> {
    let mut told: Vec<(LawId, Option<&String>)> = Vec::new();
    let mut elsewhere = String::new();
    for failure in &report.failures {
        let file = arguments.out.join(case_file_name(failure));
        write_atomically(&file, &to_toml(&failure.case))
            .map_err(|error| Wrong(format!("{}: cannot be written: {error}", file.display())))?;
        let (file, repeat) = (file.display().to_string(), repeat_command(options, failure));
        let what = (failure.law, failure.subject.as_ref());
        if told.contains(&what) {
            elsewhere += &format!("  {} on {}: {file}\n", failure.law, failure.profile);
        } else {
            say(&format!("\n{}", story(failure, &file, &repeat)));
            told.push(what);
        }
    }
    if !elsewhere.is_empty() {
        say(&format!("\nBroken in the same way elsewhere, with a case each:\n{elsewhere}"));
    }
    Ok(())
}

/// What is asked for; inside, why a subject cannot be opened.
fn options(arguments: &CheckArguments) -> Result<Result<CheckOptions, String>, Wrong> {
    let named = |name: &String| -> Result<ProfileChoice, Wrong> {
        if name == DRAWN {
            return Ok(ProfileChoice::Drawn);
        }
        Ok(ProfileChoice::Given(Box::new(Profile::find(name)?), name.clone()))
    };
    let all: Vec<String> = Profile::shipped_names().map(str::to_owned).chain([DRAWN.to_owned()]).collect();
    let profiles = if arguments.profile.is_empty() { &all } else { &arguments.profile };
    let drop_in = match &arguments.drop_in {
        None => None,
        // The loader takes a bare name for something else.
        Some(file) => match file.canonicalize() {
            Ok(file) => Some(file),
            Err(error) => {
                return Ok(Err(format!("--drop-in {}: {error}; give a drop-in libascend_hal.so", file.display())));
            }
        },
    };
    let subjects = if arguments.subject.is_empty() {
        BUILT_IN.iter().filter(|subject| subject.by_default).map(SubjectChoice::BuiltIn).collect()
    } else {
        let mut subjects = Vec::new();
        for word in &arguments.subject {
            if !subject::is_path(word) {
                subjects.push(subject::find(word)?);
                continue;
            }
            let mut home = SubjectHome::here()?;
            home.drop_in = drop_in.clone().or(home.drop_in);
            let limits = SubjectLimits {
                call: Duration::from_secs_f64(arguments.call_limit),
                memory: arguments.memory_limit << 20,
            };
            match Library::open(word, home, limits) {
                Ok(library) => subjects.push(SubjectChoice::Library(Arc::new(library))),
                Err(why) => return Ok(Err(why)),
            }
        }
        subjects
    };
    let laws: Vec<LawId> = arguments
        .law
        .iter()
        .map(|id| match laws::find(id) {
            Some(law) => Ok(law.id),
            None => Err(Wrong(format!("no law `{id}`; `hostview laws` lists them"))),
        })
        .collect::<Result<_, _>>()?;
    Ok(Ok(CheckOptions {
        profiles: profiles.iter().map(named).collect::<Result<_, _>>()?,
        subjects,
        laws: (!laws.is_empty()).then_some(laws),
        cases: arguments.cases,
        trials: arguments.cases.div_ceil(4),
        seed: arguments.seed,
        generator: Generator::default(),
        jobs: arguments.jobs.map(|jobs| jobs as usize),
    }))
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar(options: &CheckOptions) -> ProgressBar {
    let rows = options.profiles.len() * (options.subjects.len() + 1);
    let bar = ProgressBar::with_draw_target(
        Some(rows as u64),
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
    );
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        bar.set_style(style);
    }
    bar.tick();
    bar
}

/// What a subject's process is told.
#[derive(Debug, Args)]
pub(super) struct ServeSubjectArguments {
    subject: PathBuf,
    notes: PathBuf,
    memory: u64,
    drop_in: Option<PathBuf>,
}

/// `hostview serve-subject`.
pub(super) fn run_serve(arguments: &ServeSubjectArguments) -> Result<Exit, Wrong> {
    serve(&arguments.subject, &arguments.notes, arguments.memory, arguments.drop_in.as_deref())?;
    Ok(Exit::Holds)
}
