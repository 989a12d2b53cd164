//! `hostview gate`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use hostview::case::{Case, Through, to_toml};
use hostview::check::{CheckOptions, Generator, ProfileChoice};
use hostview::cost::fit::fit;
use hostview::cost::table::load;
use hostview::gate::{Differing, Machine, Outcome, Verdict, gate, learn};
use hostview::laws::{self, LawId};
use hostview::library::LibrarySite;
use hostview::report::{case_file_name, check_as_json, matrix, reasons, story, summary, wrapped};
use hostview::site::{Hindrance, Site as _};
use hostview::subject::{self, Library, REFERENCE, SubjectChoice, SubjectHome, SubjectLimits};
use hostview_sim::{Profile, RuleId};
use serde_json::{Value, json};

use super::library::{LibraryArguments, cannot_open, heed_signals, seconds};
use super::out::{is_for_a_file, say, say_line, write};
use super::{Exit, Wrong};

/// Accepts or rejects a machine: the suite on its driver library
///
/// The D-laws, then the V-laws with the reference cache and any --subject, by the library that --hal names or the
/// environment has. Each sequence runs in a process of its own, so that a call that crashes or hangs is a verdict on the
/// call. Everything that was allocated or registered is given back, also at SIGTERM, and that is checked. At the end stands
/// one word: accepted, rejected (exit 1), or not proven (exit 4) where a law that applies could not be checked.
///
/// On a machine with a job queue: task-submit --device auto --device-num 1 --run "hostview gate"
#[derive(Debug, Args)]
pub(super) struct GateArguments {
    #[command(flatten)]
    library: LibraryArguments,

    /// A subject beside the reference cache: its name, or the path of a library that implements hostview_subject.h
    #[arg(long, value_name = "NAME|FILE")]
    subject: Vec<String>,

    /// Sequences for each subject
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cases: u32,

    /// Trials for each D-law: with either kind of page, then drawn
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    trials: u32,

    /// Drawn sequences of driver calls that are set beside the simulator's answers
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    compare: u32,

    /// The seed of everything that is drawn
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// Seconds for everything; what is not checked by then is not proven
    #[arg(long, value_name = "S", default_value_t = 300.0, value_parser = seconds)]
    time_limit: f64,

    /// A law that may stay unchecked, on purpose
    #[arg(long, value_name = "LAW")]
    allow_skip: Vec<String>,

    /// The profile that the machine is like; by its chip when left out
    #[arg(long, value_name = "NAME|FILE")]
    like: Option<String>,

    /// Writes the report as JSON as well
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Where case files of failures and differences go
    #[arg(long, value_name = "DIR", default_value = "hostview-failures")]
    out: PathBuf,

    /// Writes the profile of this machine: its capabilities, and its allocator's regimes by bisection
    #[arg(long, value_name = "FILE")]
    write_profile: Option<PathBuf>,

    /// A sweep taken on this machine, for the costs of that profile
    #[arg(long, value_name = "SWEEP", requires = "write_profile")]
    sweep: Vec<PathBuf>,
}

pub(super) fn run(arguments: &GateArguments) -> Result<Exit, Wrong> {
    let allowed = law_ids(&arguments.allow_skip)?;
    let mut subjects = vec![subject::find(REFERENCE)?];
    for name in &arguments.subject {
        if subjects.iter().any(|known| known.argument() == name) {
            continue;
        }
        if subject::is_path(name) {
            let limits = SubjectLimits { call: arguments.library.call_limit(), ..SubjectLimits::default() };
            let library = match Library::open(name, SubjectHome::here()?, limits) {
                Ok(library) => library,
                Err(why) => {
                    eprintln!("hostview: {why}");
                    return Ok(Exit::CannotOpen);
                }
            };
            if library.opens_the_driver() {
                return Err(Wrong(format!(
                    "{name}: opens the driver itself, and is judged by the journal of the simulator's alone: hostview check \
                     --subject {name}"
                )));
            }
            subjects.push(SubjectChoice::Library(Arc::new(library)));
            continue;
        }
        subjects.push(subject::find(name)?);
    }
    // A file, a profile or a sweep that is wrong costs no time on the device.
    is_for_a_file([&arguments.json, &arguments.write_profile].into_iter().flatten().map(PathBuf::as_path))?;
    if let Some(like) = &arguments.like {
        Profile::find(like)?;
    }
    let costs = if arguments.sweep.is_empty() { None } else { Some(fit(&load(&arguments.sweep)?)?) };
    let summons = match arguments.library.summons()? {
        Ok(summons) => summons,
        Err(error) => return Ok(cannot_open(&error)),
    };
    heed_signals(&summons.watch)?;
    let devices = summons.limits.devices.clone();
    let watch = summons.watch.clone();
    let site = match LibrarySite::open(summons, Duration::from_secs_f64(arguments.time_limit)) {
        Ok(site) => site,
        // The signal of a job queue meets the process that opens the device as well.
        Err(_) if watch.stop.load(Ordering::Relaxed) => {
            say_line("not proven: stopped by a signal before the device was open; nothing is left");
            return Ok(Exit::NotProven);
        }
        Err(error) => return Ok(cannot_open(&error)),
    };
    let machine = find_machine(&site, &devices, arguments.like.as_deref())?;
    let options = CheckOptions {
        profiles: vec![ProfileChoice::Machine(Box::new(machine.profile.clone()), machine.like.clone())],
        subjects,
        laws: None,
        cases: arguments.cases,
        trials: arguments.trials,
        seed: arguments.seed,
        generator: Generator::default(),
        jobs: None,
    };
    say(&header(&site, &machine, &devices, arguments.seed));
    let outcome = gate(&site, &machine.profile, &options, arguments.compare, &allowed, &|_| ());
    say(&format!("\n{}", matrix(&outcome.report)));
    let reasons = reasons(&outcome.report);
    if !reasons.is_empty() {
        say(&format!("\n{reasons}"));
    }
    tell_failures(&site, &outcome, arguments)?;
    let differences = tell_differences(&site, &machine, &outcome, arguments)?;
    if let Some(file) = &arguments.write_profile {
        write_profile(&site, &machine, costs.as_ref(), file)?;
    }
    tell_what_was_given_back(&site);
    say_line(&format!("\n{}", summary(&options, &outcome.report)));
    let (last_word, exit) = last_word(&outcome, machine.facts.simulator, &allowed);
    if let Some(file) = &arguments.json {
        let mut report = check_as_json(&options, &outcome.report);
        report["gate"] = as_json(&machine, &devices, &outcome, &differences, &last_word);
        write(file, &format!("{report:#}\n"))?;
    }
    say_line(&last_word);
    Ok(exit)
}

fn law_ids(names: &[String]) -> Result<Vec<LawId>, Wrong> {
    let find = |id: &String| laws::find(id).map(|law| law.id);
    names.iter().map(|id| find(id).ok_or_else(|| Wrong(format!("no law `{id}`; `hostview laws` lists them")))).collect()
}

fn find_machine(site: &LibrarySite, devices: &[u32], like: Option<&str>) -> Result<Machine, Wrong> {
    let base = Profile::shipped("a2a3")?;
    let mut platform = site.clean(&base)?;
    let mut machine = Machine::find(&mut *platform, site.facts(), devices.len(), like)?;
    if let Some(loss) = platform.lost() {
        machine.tried.push(format!("what it can map could not be tried: {loss}"));
    }
    Ok(machine)
}

fn header(site: &LibrarySite, machine: &Machine, devices: &[u32], seed: u64) -> String {
    let paths = &site.summons().paths;
    let mut text = format!("hostview {}, seed {seed}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |what: &str, value: &str| {
        text += &format!("{}\n", wrapped(value, &format!("  {what:<10}"), "            "));
    };
    line("HAL", &paths.hal.display().to_string());
    if let Some(acl) = &paths.acl {
        line("ACL", &acl.display().to_string());
    }
    for (what, value) in machine.describe(devices) {
        line(what, &value);
    }
    for tried in &machine.tried {
        line("note", tried);
    }
    for missing in machine.facts.missing.iter().filter_map(hostview::library::Missing::symbol) {
        line("lacks", &format!("{} of {}: {}", missing.name, missing.library, missing.without));
    }
    text
}

/// The arguments that name the same library again.
fn named(site: &LibrarySite) -> String {
    let paths = &site.summons().paths;
    let mut text = format!("--hal {}", paths.hal.display());
    if let Some(acl) = &paths.acl {
        text += &format!(" --acl {}", acl.display());
    }
    let devices: Vec<String> = site.summons().limits.devices.iter().map(u32::to_string).collect();
    text + &format!(" --device {}", devices.join(","))
}

fn tell_failures(site: &LibrarySite, outcome: &Outcome, arguments: &GateArguments) -> Result<(), Wrong> {
    for failure in &outcome.report.failures {
        let file = arguments.out.join(case_file_name(failure));
        write(&file, &to_toml(&failure.case))?;
        let mut again = format!("hostview gate {}", named(site));
        if let Some(subject) = failure.case.subject.as_ref().filter(|subject| *subject != REFERENCE) {
            again += &format!(" --subject {subject}");
        }
        again += &format!(" --cases {} --trials {} --seed {}", arguments.cases, arguments.trials, arguments.seed);
        say(&format!("\n{}", story(failure, &format!("{} {}", named(site), file.display()), &again)));
    }
    Ok(())
}

/// What the machine answers otherwise than a rule of the simulator says, as it was told.
struct Contradiction {
    what: String,
    file: PathBuf,
    rule: Option<RuleId>,
}

/// What this machine does otherwise than the simulator of it; the case files.
fn tell_differences(
    site: &LibrarySite,
    machine: &Machine,
    outcome: &Outcome,
    arguments: &GateArguments,
) -> Result<Vec<Contradiction>, Wrong> {
    let mut told = Vec::new();
    let mut text = String::new();
    for (law, here, there) in &outcome.unlike {
        text += &format!("{}\n", wrapped(&format!("{law}: here {here}; on the simulator {there}"), "  ", "    "));
    }
    for (index, Differing { law, difference, steps }) in outcome.differing.iter().enumerate() {
        let name = law.map_or_else(|| format!("drawn-{index}"), |law| law.to_string());
        let file = arguments.out.join(format!("machine-differs-{name}.toml"));
        let what = difference.describe(&steps[difference.step]);
        let case = Case {
            title: what.clone(),
            source: format!("hostview gate, seed {}", arguments.seed),
            profile: machine.like.clone(),
            through: Through::Driver,
            subject: None,
            expect_law_broken: Vec::new(),
            seed: Some(arguments.seed),
            bookkeeping: false,
            profile_override: hostview::check::overrides(&machine.like, &machine.profile),
            steps: steps.clone(),
            is_journal: false,
        };
        write(&file, &to_toml(&case))?;
        let shown = wrapped(&format!("step {}: {what}", difference.step + 1), "  ", "    ");
        text += &format!("{shown}\n");
        if let Some(rule) = difference.rule.and_then(RuleId::rule) {
            let known = format!("the simulator's rule: {}, {} ({})", rule.id, rule.evidence.name(), rule.place);
            text += &format!("{}\n", wrapped(&known, "    ", "      "));
        }
        text += &format!("    hostview replay {} {}\n", named(site), file.display());
        text += &format!("    hostview explain {}\n", file.display());
        told.push(Contradiction { what, file, rule: difference.rule });
    }
    let beside = format!(
        "Beside the simulator of this machine: {} of the {} D-laws that were checked come to the same, and {} of {} drawn \
         sequences.",
        outcome.like,
        outcome.like + outcome.unlike.len(),
        outcome.compared as usize - outcome.differing.iter().filter(|differing| differing.law.is_none()).count(),
        outcome.compared
    );
    say(&format!("\n{}\n{text}", wrapped(&beside, "", "")));
    Ok(told)
}

fn write_profile(
    site: &LibrarySite,
    machine: &Machine,
    costs: Option<&hostview::cost::fit::Fit>,
    file: &std::path::Path,
) -> Result<(), Wrong> {
    let mut learned = match learn(site, &machine.profile, site.summons().limits.memory) {
        Ok(learned) => learned,
        Err(Hindrance(why)) => return Err(Wrong(format!("{}: not written: {why}", file.display()))),
    };
    match costs {
        Some(fit) => {
            let (calibrated, kept) = fit.calibrated(&learned.profile, &learned.profile.name);
            learned.profile.costs = calibrated.costs;
            for key in kept {
                learned.notes.push(format!("costs.{key} is kept from {}: the sweep does not tell it", machine.like));
            }
        }
        None => learned.notes.push(format!("costs are those of {}; --sweep FILE gives this machine's", machine.like)),
    }
    learned.profile.check(&file.display().to_string())?;
    let mut text = String::new();
    for note in machine.tried.iter().chain(&learned.notes) {
        text += &format!("{}\n", wrapped(note, "# ", "#   "));
    }
    text += &toml::to_string(&learned.profile)?;
    write(file, &text)?;
    say_line(&format!("The profile of this machine: {}", file.display()));
    for note in &learned.notes {
        say_line(&wrapped(note, "  ", "    "));
    }
    Ok(())
}

fn tell_what_was_given_back(site: &LibrarySite) {
    let back = site.summons().watch.given_back();
    say(&format!(
        "\nGiven back at the ends of sequences: {} allocations, {} registrations; {}.\n",
        back.freed,
        back.unregistered,
        if back.left.is_empty() { "nothing is left".to_owned() } else { format!("{} are left", back.left.len()) }
    ));
    for left in back.left.iter().take(10) {
        say_line(&wrapped(left, "  ", "    "));
    }
}

fn last_word(outcome: &Outcome, simulator: bool, allowed: &[LawId]) -> (String, Exit) {
    match &outcome.verdict {
        Verdict::Accepted => {
            let on = if simulator { " on the simulator" } else { "" };
            let skipped: Vec<String> = allowed.iter().map(LawId::to_string).collect();
            let skipped =
                if skipped.is_empty() { String::new() } else { format!(", allowed to skip {}", skipped.join(", ")) };
            (format!("accepted{on}{skipped}"), Exit::Holds)
        }
        Verdict::Rejected(against) => (format!("rejected: {}", against.join(", ")), Exit::Broken),
        Verdict::NotProven(open) => {
            let laws: Vec<String> = open.iter().map(|(law, _)| law.to_string()).collect();
            let allow: Vec<String> = laws.iter().map(|law| format!("--allow-skip {law}")).collect();
            let mend = if laws.len() <= 6 { format!(" ({} accepts that)", allow.join(" ")) } else { String::new() };
            (wrapped(&format!("not proven: {} could not be checked{mend}", laws.join(", ")), "", "  "), Exit::NotProven)
        }
    }
}

fn as_json(
    machine: &Machine,
    devices: &[u32],
    outcome: &Outcome,
    differences: &[Contradiction],
    last_word: &str,
) -> Value {
    let unlike: Vec<Value> = outcome
        .unlike
        .iter()
        .map(|(law, here, there)| json!({ "law": law, "here": here.to_string(), "simulator": there.to_string() }))
        .collect();
    let differences: Vec<Value> = differences
        .iter()
        .map(|Contradiction { what, file, rule }| json!({ "what": what, "case_file": file, "rule": rule }))
        .collect();
    let (verdict, open) = match &outcome.verdict {
        Verdict::Accepted => ("accepted", Vec::new()),
        Verdict::Rejected(_) => ("rejected", Vec::new()),
        Verdict::NotProven(open) => {
            ("not_proven", open.iter().map(|(law, reason)| json!({ "law": law, "reason": reason })).collect())
        }
    };
    json!({
        "verdict": verdict, "simulator": machine.facts.simulator, "last_word": last_word, "not_proven": open,
        "machine": {
            "devices": devices, "facts": machine.facts, "kernel": machine.kernel, "driver": machine.driver,
            "cann": machine.cann, "like": machine.like, "profile": machine.profile, "tried": machine.tried,
        },
        "unlike_the_simulator": unlike, "differences": differences, "compared": outcome.compared,
        "given_back": outcome.given_back,
    })
}
