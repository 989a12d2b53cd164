//! `hostview mutants`.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, stderr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use hostview::check::ProfileChoice;
use hostview::laws::{self, LawId};
use hostview::mutants::{MutantOptions, Verdict, judge_caches};
use hostview::report::{describe_step, wrapped};
use hostview::subject::{Mutant, mutants};
use hostview_sim::Profile;
use hostview_sim::config::nearest;
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::{Value, json};

use super::out::{is_for_a_file, say, say_line, write};
use super::{Exit, Wrong};

/// Judges the judge: plants faults, and says which law catches each
///
/// Every mutant is a correct cache with one small fault. Each is driven by drawn sequences until a law breaks; what broke it is
/// shrunk. One that no law catches is a law that is missing (exit 1).
#[derive(Debug, Args)]
pub(super) struct MutantsArguments {
    /// These alone; all when left out
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Where they run: a shipped profile or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "a2a3")]
    profile: String,

    /// The most sequences for each
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cases: u32,

    /// The seed of everything that is drawn
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// Leaves a law out: the mutants that it alone catches survive
    #[arg(long, value_name = "ID")]
    without_law: Vec<String>,

    /// How many at once; as many as there are processors when left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    jobs: Option<u32>,

    /// Tells of each mutant what is wrong, and the sequence that shows it
    #[arg(long, short)]
    verbose: bool,

    /// Writes the report as JSON as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(super) fn run(arguments: &MutantsArguments) -> Result<Exit, Wrong> {
    is_for_a_file(arguments.json.as_deref())?;
    let options = MutantOptions {
        profile: ProfileChoice::Given(Box::new(Profile::find(&arguments.profile)?), arguments.profile.clone()),
        cases: arguments.cases,
        seed: arguments.seed,
        without: arguments.without_law.iter().map(|id| law(id)).collect::<Result<_, _>>()?,
        jobs: arguments.jobs.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |jobs| usize::try_from(jobs).unwrap_or(1),
        ),
    };
    let caches = chosen(arguments)?;
    let bar = ProgressBar::with_draw_target(
        Some(caches.len() as u64),
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
    );
    let begun = Instant::now();
    let verdicts = judge_caches(&options, &caches, &|| bar.inc(1));
    bar.finish_and_clear();

    say(&table(&verdicts));
    if arguments.verbose {
        for verdict in &verdicts {
            say(&told(verdict));
        }
    }
    say_line(&summary(&verdicts, arguments));
    // The wall clock is no part of the report.
    eprintln!("{}", clock(&verdicts, begun.elapsed()));
    if let Some(file) = &arguments.json {
        write(file, &format!("{:#}\n", as_json(&verdicts, arguments)))?;
    }
    let survived = verdicts.iter().any(|verdict| verdict.caught.is_none());
    Ok(if survived { Exit::Broken } else { Exit::Holds })
}

fn law(id: &str) -> Result<LawId, Wrong> {
    let law = laws::find(id).ok_or_else(|| Wrong(format!("no law `{id}`; `hostview laws` lists them")))?;
    let of_caches = laws::view_laws().iter().any(|view| view.law.id == law.id);
    if of_caches {
        Ok(law.id)
    } else {
        Err(Wrong(format!("{id} is a law about the driver; give one about caches, as V08")))
    }
}

fn chosen(arguments: &MutantsArguments) -> Result<Vec<&'static Mutant>, Wrong> {
    let known = || mutants().iter().map(|mutant| mutant.name);
    if let Some(wrong) = arguments.names.iter().find(|name| !known().any(|known| known == name.as_str())) {
        let mend = nearest(wrong, known())
            .map_or_else(|| "`hostview mutants` lists them".to_owned(), |near| format!("did you mean `{near}`?"));
        return Err(Wrong(format!("no mutant `{wrong}`; {mend}")));
    }
    let named = |name: &str| arguments.names.is_empty() || arguments.names.iter().any(|wanted| wanted == name);
    Ok(mutants().iter().copied().filter(|mutant| named(mutant.name)).collect())
}

fn table(verdicts: &[Verdict]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["mutant", "caught by", "after", "steps"]);
    for verdict in verdicts {
        let cells = match &verdict.caught {
            Some(caught) => [caught.law.to_string(), caught.after.to_string(), caught.case.steps.len().to_string()],
            None => ["SURVIVED".to_owned(), String::new(), String::new()],
        };
        table.add_row([verdict.name.to_owned()].into_iter().chain(cells));
    }
    for column in [2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn told(verdict: &Verdict) -> String {
    let mut text = format!("\n{}\n{}\n", verdict.name, wrapped(verdict.story, "  ", "  "));
    if let Some(like) = verdict.like {
        text += &format!("{}\n", wrapped(&format!("Like {like}."), "  ", "  "));
    }
    let Some(caught) = &verdict.caught else { return text + "  No law caught it.\n" };
    for (index, step) in caught.case.steps.iter().enumerate() {
        text += &format!("    {}  {}\n", index + 1, describe_step(step));
    }
    text + &format!("{}\n", wrapped(&format!("{}: {}", caught.law, caught.what), "  ", "  "))
}

fn summary(verdicts: &[Verdict], arguments: &MutantsArguments) -> String {
    let caught = verdicts.iter().filter(|verdict| verdict.caught.is_some()).count();
    let mut first: BTreeMap<LawId, usize> = BTreeMap::new();
    for law in verdicts.iter().filter_map(|verdict| Some(verdict.caught.as_ref()?.law)) {
        *first.entry(law).or_default() += 1;
    }
    let first: Vec<String> = first.iter().map(|(law, count)| format!("{law} {count}")).collect();
    let survivors: Vec<&str> =
        verdicts.iter().filter(|verdict| verdict.caught.is_none()).map(|verdict| verdict.name).collect();
    let mut text = format!(
        "\n{caught} of {} caught on {}, seed {}, within {} sequences each.",
        verdicts.len(),
        arguments.profile,
        arguments.seed,
        arguments.cases
    );
    if !first.is_empty() {
        text += &format!("\n{}", wrapped(&format!("Caught first by: {}.", first.join(", ")), "", "  "));
    }
    if !survivors.is_empty() {
        text += &format!("\n{}", wrapped(&format!("Survived: {}.", survivors.join(", ")), "", "  "));
    }
    text
}

fn clock(verdicts: &[Verdict], all: Duration) -> String {
    let longest = verdicts.iter().max_by_key(|verdict| verdict.wall);
    let longest = longest.map_or_else(String::new, |verdict| {
        format!("; the longest, {}, {:.2} s", verdict.name, verdict.wall.as_secs_f64())
    });
    format!("{:.1} s on the wall clock{longest}", all.as_secs_f64())
}

fn as_json(verdicts: &[Verdict], arguments: &MutantsArguments) -> Value {
    let mutants: Vec<Value> = verdicts
        .iter()
        .map(|verdict| {
            json!({
                "name": verdict.name, "story": verdict.story, "like": verdict.like,
                "caught": verdict.caught.as_ref().map(|caught| json!({
                    "law": caught.law, "after": caught.after, "steps": caught.case.steps.len(),
                    "what": caught.what, "case": caught.case,
                })),
                "repeat": format!(
                    "hostview check --profile {} --subject {} --cases {} --seed {}",
                    arguments.profile, verdict.name, arguments.cases, arguments.seed
                ),
            })
        })
        .collect();
    json!({
        "suite": env!("CARGO_PKG_VERSION"), "profile": arguments.profile, "seed": arguments.seed,
        "cases": arguments.cases, "without": arguments.without_law, "mutants": mutants,
    })
}
