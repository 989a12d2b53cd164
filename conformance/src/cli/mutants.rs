//! `hostview mutants`.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, stderr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use hostview::check::ProfileChoice;
use hostview::devices::{DeviceMutant, device_mutants};
use hostview::laws::{self, LawId};
use hostview::mutants::{Caught, MutantOptions, Verdict, judge_caches, judge_devices};
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
/// Every mutant is a correct cache or a faithful device with one small fault. Each is driven by drawn sequences until a law
/// breaks; what broke it is shrunk. One that no law catches is a law that is missing (exit 1). A device is judged by one D-law
/// after the other, and the sequences are those of the law that caught it.
#[derive(Debug, Args)]
pub(super) struct MutantsArguments {
    /// These alone; all when left out
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Faults in caches or in devices alone
    #[arg(long, value_name = "KIND", conflicts_with = "names")]
    kind: Option<Kind>,

    /// Where they run: a shipped profile or a file. When left out, caches run on a2a3, and devices on the shipped profiles in
    /// turn, until a law breaks
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,

    /// The most sequences for each cache; each device gets a quarter of that of each D-law
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

    /// Tells of each mutant what is wrong, and the sequence that shows it; on standard error, how long each took
    #[arg(long, short)]
    verbose: bool,

    /// Writes the report as JSON as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What a fault is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Kind {
    Cache,
    Device,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Device => "device",
        }
    }

    /// What can catch it.
    fn law(self) -> &'static str {
        match self {
            Self::Cache => "V-law",
            Self::Device => "D-law",
        }
    }
}

/// Where caches run when nobody says.
const CACHES_RUN_ON: &str = "a2a3";

/// The faults of one kind, and what became of them.
struct Judged {
    kind: Kind,
    /// Where they ran, in words.
    place: String,
    /// How many sequences each could take, in words.
    within: String,
    verdicts: Vec<Verdict>,
}

pub(super) fn run(arguments: &MutantsArguments) -> Result<Exit, Wrong> {
    is_for_a_file(arguments.json.as_deref())?;
    let given = arguments.profile.as_deref().map(choice).transpose()?;
    let options = MutantOptions {
        profile: given.clone().map_or_else(|| choice(CACHES_RUN_ON), Ok)?,
        cases: arguments.cases,
        seed: arguments.seed,
        without: arguments.without_law.iter().map(|id| law(id)).collect::<Result<_, _>>()?,
        jobs: arguments.jobs.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            |jobs| usize::try_from(jobs).unwrap_or(1),
        ),
    };
    let (caches, devices) = chosen(arguments)?;
    let bar = ProgressBar::with_draw_target(
        Some((caches.len() + devices.len()) as u64),
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
    );
    let begun = Instant::now();
    let mut judged = Vec::new();
    if !caches.is_empty() {
        let verdicts = judge_caches(&options, &caches, &|| bar.inc(1));
        judged.push(Judged {
            kind: Kind::Cache,
            place: options.profile.argument().to_owned(),
            within: format!("{} sequences each", options.cases),
            verdicts,
        });
    }
    if !devices.is_empty() {
        let place =
            given.as_ref().map_or_else(|| "the shipped profiles".to_owned(), |given| given.argument().to_owned());
        let profiles = given.map_or_else(shipped, |given| Ok(vec![given]))?;
        let verdicts = judge_devices(&options, &profiles, &devices, &|| bar.inc(1));
        let within = format!("{} sequences of each D-law", options.trials());
        judged.push(Judged { kind: Kind::Device, place, within, verdicts });
    }
    bar.finish_and_clear();

    for (index, judged) in judged.iter().enumerate() {
        if index > 0 {
            say_line("");
        }
        say(&table(judged));
        if arguments.verbose {
            for verdict in &judged.verdicts {
                say(&told(verdict));
            }
        }
        say_line(&summary(judged, arguments));
    }
    // The wall clock is no part of the report.
    eprint!("{}", clock(&judged, begun.elapsed(), arguments.verbose));
    if let Some(file) = &arguments.json {
        write(file, &format!("{:#}\n", as_json(&judged, arguments)))?;
    }
    let survived = judged.iter().flat_map(|judged| &judged.verdicts).any(|verdict| verdict.caught.is_none());
    Ok(if survived { Exit::Broken } else { Exit::Holds })
}

fn choice(name: &str) -> Result<ProfileChoice, Wrong> {
    Ok(ProfileChoice::Given(Box::new(Profile::find(name)?), name.to_owned()))
}

/// Every shipped profile, the one that caches run on first.
fn shipped() -> Result<Vec<ProfileChoice>, Wrong> {
    let others = Profile::shipped_names().filter(|name| *name != CACHES_RUN_ON);
    std::iter::once(CACHES_RUN_ON).chain(others).map(choice).collect()
}

fn law(id: &str) -> Result<LawId, Wrong> {
    let law = laws::find(id).ok_or_else(|| Wrong(format!("no law `{id}`; `hostview laws` lists them")))?;
    Ok(law.id)
}

type Chosen = (Vec<&'static Mutant>, Vec<&'static DeviceMutant>);

fn chosen(arguments: &MutantsArguments) -> Result<Chosen, Wrong> {
    let (caches, devices) = (mutants(), device_mutants());
    let known = || caches.iter().map(|mutant| mutant.name).chain(devices.iter().map(|mutant| mutant.name));
    if let Some(wrong) = arguments.names.iter().find(|name| !known().any(|known| known == name.as_str())) {
        let mend = nearest(wrong, known())
            .map_or_else(|| "`hostview mutants` lists them".to_owned(), |near| format!("did you mean `{near}`?"));
        return Err(Wrong(format!("no mutant `{wrong}`; {mend}")));
    }
    let wanted = |kind: Kind, name: &str| {
        arguments.kind.is_none_or(|only| only == kind)
            && (arguments.names.is_empty() || arguments.names.iter().any(|wanted| wanted == name))
    };
    Ok((
        caches.iter().copied().filter(|mutant| wanted(Kind::Cache, mutant.name)).collect(),
        devices.iter().copied().filter(|mutant| wanted(Kind::Device, mutant.name)).collect(),
    ))
}

fn table(judged: &Judged) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    let on = (judged.kind == Kind::Device).then_some("on");
    table.set_header([judged.kind.name(), "caught by", "after", "steps"].into_iter().chain(on));
    for verdict in &judged.verdicts {
        let cells = match &verdict.caught {
            Some(Caught { law, after, case, .. }) => {
                [law.to_string(), after.to_string(), case.steps.len().to_string(), case.profile.clone()]
            }
            None => ["SURVIVED".to_owned(), String::new(), String::new(), String::new()],
        };
        let columns = if on.is_some() { 4 } else { 3 };
        table.add_row([verdict.name.to_owned()].into_iter().chain(cells.into_iter().take(columns)));
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

fn summary(judged: &Judged, arguments: &MutantsArguments) -> String {
    let Judged { kind, place, within, verdicts } = judged;
    let caught = verdicts.iter().filter(|verdict| verdict.caught.is_some()).count();
    let mut first: BTreeMap<LawId, usize> = BTreeMap::new();
    for law in verdicts.iter().filter_map(|verdict| Some(verdict.caught.as_ref()?.law)) {
        *first.entry(law).or_default() += 1;
    }
    let first: Vec<String> = first.iter().map(|(law, count)| format!("{law} {count}")).collect();
    let survivors: Vec<&str> =
        verdicts.iter().filter(|verdict| verdict.caught.is_none()).map(|verdict| verdict.name).collect();
    let seed = arguments.seed;
    let text = format!("{caught} of {} caught on {place}, seed {seed}, within {within}.", verdicts.len());
    let mut text = format!("\n{}", wrapped(&text, "", "  "));
    if !first.is_empty() {
        text += &format!("\n{}", wrapped(&format!("Caught first by: {}.", first.join(", ")), "", "  "));
    }
    if !survivors.is_empty() {
        let missing = format!("Survived: {}. A {} is missing, or left out.", survivors.join(", "), kind.law());
        text += &format!("\n{}", wrapped(&missing, "", "  "));
    }
    text
}

fn clock(judged: &[Judged], all: Duration, each: bool) -> String {
    let verdicts = || judged.iter().flat_map(|judged| &judged.verdicts);
    let line = |verdict: &Verdict| format!("{:8.2} s  {}\n", verdict.wall.as_secs_f64(), verdict.name);
    let each: String = verdicts().filter(|_| each).map(line).collect();
    let longest = verdicts().max_by_key(|verdict| verdict.wall);
    let longest = longest.map_or_else(String::new, |verdict| {
        format!("; the longest, {}, {:.2} s", verdict.name, verdict.wall.as_secs_f64())
    });
    format!("{each}{:.1} s on the wall clock{longest}\n", all.as_secs_f64())
}

fn as_json(judged: &[Judged], arguments: &MutantsArguments) -> Value {
    let of_kind = |judged: &Judged| -> Vec<Value> {
        judged.verdicts.iter().map(|verdict| verdict_as_json(judged, verdict, arguments)).collect()
    };
    let mutants: Vec<Value> = judged.iter().flat_map(of_kind).collect();
    json!({
        "suite": env!("CARGO_PKG_VERSION"), "profile": arguments.profile, "seed": arguments.seed,
        "cases": arguments.cases, "without": arguments.without_law, "mutants": mutants,
    })
}

fn verdict_as_json(judged: &Judged, verdict: &Verdict, arguments: &MutantsArguments) -> Value {
    let profile = arguments.profile.as_deref();
    let repeat = match judged.kind {
        Kind::Cache => format!(
            "hostview check --profile {} --subject {} --cases {} --seed {}",
            profile.unwrap_or(CACHES_RUN_ON),
            verdict.name,
            arguments.cases,
            arguments.seed
        ),
        Kind::Device => {
            let profile = profile.map_or_else(String::new, |profile| format!(" --profile {profile}"));
            format!(
                "hostview mutants -v{profile} --cases {} --seed {} {}",
                arguments.cases, arguments.seed, verdict.name
            )
        }
    };
    json!({
        "name": verdict.name, "kind": judged.kind.name(), "story": verdict.story, "like": verdict.like,
        "caught": verdict.caught.as_ref().map(|caught| json!({
            "law": caught.law, "after": caught.after, "steps": caught.case.steps.len(),
            "what": caught.what, "case": caught.case,
        })),
        "repeat": repeat,
    })
}
