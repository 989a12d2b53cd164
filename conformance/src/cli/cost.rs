//! `hostview sweep`, `fit`, `calibrate` and `decide`.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use hostview::case::Via;
use hostview::cost::decide::{Decision, Served, decide};
use hostview::cost::fit::{Call, Estimate, Fit, Line, fit, teardown};
use hostview::cost::model::{Model, kind_of, said};
use hostview::cost::plot::{decision_svg, sweep_svg};
use hostview::cost::sweep::{COPY_SIZES, SIZES, SweepOptions, sweep};
use hostview::cost::table::{Pages, Sweep, load};
use hostview::cost::{Standing, workload};
use hostview::library::{Layer, LibraryPlatform, Paths};
use hostview::platform::SimPlatform;
use hostview::report::wrapped;
use hostview_sim::{ByteCount, CostPoint, Generation, PageKind, PagePolicy, PageSize, Profile, SimOptions};

use super::library::{WhichLibrary, cannot_open};
use super::out::{is_for_a_file, say, say_line, write};
use super::{Exit, Wrong};

/// Whether drawn costs vary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Noise {
    /// Between the profile's minimum and median, with a tail
    Profile,
    /// Every call at the median
    None,
}

/// Which clock is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum ClockChoice {
    /// The simulator's own
    Virtual,
    /// This machine's
    Wall,
}

/// Measures register, unregister and device copies over sizes
///
/// On the simulator by its virtual clock: a sweep then shows what the profile's cost constants come to. `--clock wall` times
/// the calls on this machine instead. With --hal they are those of a driver library, on its device and by the wall clock, in
/// this process: a call that does not return is waited for.
#[derive(Debug, Args)]
pub(super) struct SweepArguments {
    /// A shipped profile, or a file
    #[arg(long, value_name = "NAME|FILE", default_value = "a2a3", conflicts_with_all = ["hal", "acl", "via", "device"])]
    profile: String,

    #[command(flatten)]
    library: WhichLibrary,

    /// Sizes to register, in bytes; the seed's seven when left out
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    sizes: Vec<u64>,

    /// Page policies
    #[arg(long, value_name = "POLICY,…", value_delimiter = ',', default_value = "huge_first")]
    policies: Vec<PagePolicy>,

    /// Distinct allocations of each size, taken in turn
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1024))]
    buffers: u32,

    /// Calls of each size
    #[arg(long, value_name = "K", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,

    /// Copies of each size
    #[arg(long, value_name = "K", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    copies: u32,

    /// How drawn costs vary
    #[arg(long, value_enum, default_value = "profile")]
    noise: Noise,

    /// The seed of drawn costs
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// Which clock is read
    #[arg(long, value_enum, default_value = "virtual")]
    clock: ClockChoice,

    /// Writes the registrations as CSV, and the copies beside it as FILE-copies.csv
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Writes both as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Draws the registrations and their fit
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(super) fn run_sweep(arguments: &SweepArguments) -> Result<Exit, Wrong> {
    let files = [&arguments.csv, &arguments.json, &arguments.svg];
    is_for_a_file(files.into_iter().flatten().map(PathBuf::as_path))?;
    let mut sizes = if arguments.sizes.is_empty() { SIZES.to_vec() } else { arguments.sizes.clone() };
    sizes.sort_unstable();
    sizes.dedup();
    let options = SweepOptions {
        sizes,
        copy_sizes: COPY_SIZES.to_vec(),
        policies: PagePolicy::ALL.into_iter().filter(|policy| arguments.policies.contains(policy)).collect(),
        buffers: arguments.buffers as usize,
        iterations: arguments.iterations as usize,
        copies: arguments.copies as usize,
        wall_clock: arguments.clock == ClockChoice::Wall,
        via: Via::Acl,
    };
    let taken = if arguments.library.is_given() {
        let opened = arguments.library.paths().map(|paths| Ok::<_, Wrong>((paths, arguments.library.limits()?)));
        let opened = match opened {
            Ok(opened) => opened?,
            Err(error) => return Ok(cannot_open(&error)),
        };
        let most = options.sizes.iter().chain(&options.copy_sizes).max().copied().unwrap_or(0);
        let needs = most.saturating_mul(u64::from(arguments.buffers));
        if needs > opened.1.memory {
            return Err(Wrong(format!(
                "{} buffers of {} are {} of device memory, and the limit is {}; raise it with --memory-limit, or leave \
                 the size out with --sizes",
                arguments.buffers,
                ByteCount(most),
                ByteCount(needs),
                ByteCount(opened.1.memory)
            )));
        }
        let mut platform = match LibraryPlatform::open(&opened.0, opened.1) {
            Ok(platform) => platform,
            Err(error) => return Ok(cannot_open(&error)),
        };
        let taken = sweep_library(&mut platform, &opened.0, options);
        // Also after a call that failed half-way.
        let left = platform.clean_up().left;
        platform.close();
        if !left.is_empty() {
            return Err(Wrong(format!("not given back: {}", left.join("; "))));
        }
        taken?
    } else {
        sweep_simulator(arguments, &options)?
    };
    tell_sweep(arguments, &taken)
}

/// On a driver library: its device, by this machine's clock.
fn sweep_library(platform: &mut LibraryPlatform, paths: &Paths, options: SweepOptions) -> Result<Sweep, Wrong> {
    let facts = platform.facts();
    // Source: v2's device pages; the host's own are asked of the system.
    let (ordinary, huge) = (PageSize::new(4096), PageSize::new(2 << 20));
    let (Some(ordinary), Some(huge), Some(host)) = (ordinary, huge, PageSize::new(facts.host_page)) else {
        return Err(Wrong(format!("this machine says that its pages have {} bytes", facts.host_page)));
    };
    let chip = facts.soc.clone().unwrap_or_else(|| "an unknown chip".to_owned());
    let simulator = if facts.simulator { "the simulator's library " } else { "" };
    let via = if paths.via == Layer::Acl { Via::Acl } else { Via::Hal };
    let source = format!("hostview sweep on {simulator}{}, {chip}, by this machine's clock", paths.hal.display());
    let mut taken = sweep(platform, Pages { ordinary, huge, host }, &SweepOptions { via, ..options })?;
    taken.source.push(source);
    Ok(taken)
}

fn sweep_simulator(arguments: &SweepArguments, options: &SweepOptions) -> Result<Sweep, Wrong> {
    let profile = Profile::find(&arguments.profile)?;
    let cost_point = match arguments.noise {
        Noise::Profile => CostPoint::Drawn(arguments.seed),
        Noise::None => CostPoint::Median,
    };
    let pages = Pages {
        ordinary: profile.page(PageKind::Ordinary),
        huge: profile.page(PageKind::Huge),
        host: profile.host.page_size,
    };
    let mut platform = SimPlatform::with_options(&profile, &SimOptions { cost_point, ..SimOptions::default() });
    let mut taken = sweep(&mut platform, pages, options)?;
    let clock = if options.wall_clock { "this machine's clock" } else { "its virtual clock" };
    taken.source.push(format!("hostview sweep on the simulator, profile {}, by {clock}", profile.name));
    if !options.wall_clock {
        let noise = match arguments.noise {
            Noise::Profile => format!("noise as the profile has it, seed {}", arguments.seed),
            Noise::None => "no noise".to_owned(),
        };
        taken.source.push(noise);
    }
    Ok(taken)
}

fn tell_sweep(arguments: &SweepArguments, taken: &Sweep) -> Result<Exit, Wrong> {
    for line in taken.source.iter().chain(&taken.notes) {
        say_line(line);
    }
    say(&format!("\n{}", taken.as_text()));
    if let Some(file) = &arguments.csv {
        write(file, &taken.mappings_as_csv())?;
        write(&copies_file(file), &taken.copies_as_csv())?;
    }
    if let Some(file) = &arguments.json {
        let value = serde_json::to_value(taken)?;
        write(file, &format!("{value:#}\n"))?;
    }
    if let Some(file) = &arguments.svg {
        let fitted = fit(taken).map_err(|error| Wrong(format!("{}: cannot be drawn: {error}", file.display())))?;
        write(file, &sweep_svg(taken, &fitted).map_err(|error| Wrong(format!("{}: {error}", file.display())))?)?;
    }
    Ok(Exit::Holds)
}

fn copies_file(file: &Path) -> PathBuf {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    file.with_file_name(format!("{stem}-copies.csv"))
}

/// Fits one constant per mechanism to a sweep, and says how far each cell is off
///
/// A sweep is CSV: registrations with the columns bytes, reg_min, reg_med, unreg_min, unreg_med (and policy, reg_p99,
/// unreg_p99), copies with bytes, d2h_min_us, d2h_med_us (and the same of h2d), all in microseconds. Lines that begin with #
/// say where it is from; `# host_page_size: 65536` says on which pages. Or it is what `hostview sweep --json` writes.
#[derive(Debug, Args)]
pub(super) struct FitArguments {
    /// Files of a sweep: CSV with registrations, another with copies if there are any, or JSON
    #[arg(required = true, value_name = "SWEEP")]
    files: Vec<PathBuf>,

    /// Draws the sweep and its fit
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// What is left of a sweep's fit: the file's name goes before an error.
fn fitted(files: &[PathBuf]) -> Result<(Sweep, Fit), Wrong> {
    let sweep = load(files)?;
    let place = files.first().map_or_else(String::new, |file| file.display().to_string());
    let fitted = fit(&sweep).map_err(|error| Wrong(format!("{place}: {error}")))?;
    Ok((sweep, fitted))
}

pub(super) fn run_fit(arguments: &FitArguments) -> Result<Exit, Wrong> {
    let (sweep, fitted) = fitted(&arguments.files)?;
    for line in &sweep.source {
        say_line(line);
    }
    say(&format!("\n{}\n{}", constants(&fitted), residual_table(&fitted)));
    say(&format!("\n{}", predictions(&sweep, &fitted)?));
    if let Some(file) = &arguments.svg {
        write(file, &sweep_svg(&sweep, &fitted).map_err(|error| Wrong(format!("{}: {error}", file.display())))?)?;
    }
    Ok(Exit::Holds)
}

fn estimate(estimate: Estimate) -> String {
    match estimate.half_width {
        Some(half) => format!("{:.4} ± {half:.4}", estimate.value),
        None => format!("{:.4}", estimate.value),
    }
}

fn constants(fit: &Fit) -> String {
    let mut text = "fitted constants, µs (± 95 % confidence)\n".to_owned();
    text += &format!("  {:<39} {:>18} {:>18}\n", "", "min", "median");
    let mut row = |what: &str, min: Estimate, median: Estimate| {
        text += &format!("  {what:<39} {:>18} {:>18}\n", estimate(min), estimate(median));
    };
    for mechanism in &fit.mechanisms {
        let (call, each) = match mechanism.call {
            Call::Register => ("register", "page"),
            Call::Unregister => ("unregister", "host page"),
        };
        let kind = mechanism.kind;
        let (Line { floor: least, slope: least_each }, Line { floor, slope }) = (mechanism.min, mechanism.median);
        row(&format!("{call} floor, {kind} heap"), least, floor);
        row(&format!("{call} per {each}, {kind} heap"), least_each, slope);
    }
    if let Some((min, median)) = fit.copy {
        row("copy floor (to 64 bytes, D2H)", min, median);
    }
    text
}

fn residual_table(fit: &Fit) -> String {
    let mut text = "each cell against the fit, and against one cost per byte\n".to_owned();
    text += &format!(
        "  {:<10} {:>6} {:>11} {:>10} {:>10} {:>8} {:>12}\n",
        "call", "point", "bytes", "measured", "fitted", "off", "per byte off"
    );
    for residual in &fit.residuals {
        let call = if residual.call == Call::Register { "register" } else { "unregister" };
        let point = if residual.point == CostPoint::Min { "min" } else { "median" };
        text += &format!(
            "  {call:<10} {point:>6} {:>11} {:>10.3} {:>10.3} {:>7.1}% {:>11.0}%\n",
            residual.bytes,
            residual.measured,
            residual.fitted,
            residual.off() * 100.0,
            residual.per_byte_off() * 100.0
        );
    }
    let cells = fit.residuals.len();
    text += &format!("  {cells} cells; the worst is {:.1}% off\n", fit.worst() * 100.0);
    let per_byte_worst = fit.residuals.iter().map(|residual| residual.per_byte_off().abs()).fold(0.0, f64::max);
    text += &format!("  With one cost per byte the worst is {:.0}% off", per_byte_worst * 100.0);
    let at = |bytes: u64| {
        let wanted = |residual: &&hostview::cost::fit::Residual| {
            residual.bytes == bytes && residual.call == Call::Register && residual.point == CostPoint::Median
        };
        fit.residuals.iter().find(wanted).map(hostview::cost::fit::Residual::per_byte_off)
    };
    if let (Some(small), Some(large)) = (at(65_536), at(4_194_304)) {
        text += &format!(", {:+.0}% at 64 KiB, {:+.0}% at 4 MiB", small * 100.0, large * 100.0);
    }
    text += if per_byte_worst > 2.0 * fit.worst().max(0.05) {
        ":\n  pages are the mechanism.\n"
    } else {
        ":\n  on these sizes it does about as well as pages.\n"
    };
    text
}

const QWEN3: &str = include_str!("../../../fixtures/workloads/qwen3_14b_decode.toml");

/// What the mechanism says of what the sweep did not measure.
fn predictions(sweep: &Sweep, fit: &Fit) -> Result<String, Wrong> {
    const MEASURED_MS: f64 = 255.982_626;
    const LARGE: u64 = 256 << 20;
    let base = on_pages(&Profile::shipped("a2a3")?, sweep.pages.host);
    let (profile, _) = fit.calibrated(&base, "fit");
    let mut text = String::new();
    let mut line = |what: &str, value: String, standing: Standing| {
        text += &format!("  {what:<47} {value:>18} {standing}\n");
    };
    if fit.mechanism(Call::Unregister, PageKind::Huge).is_some() {
        let tensors = workload::parse(QWEN3, "qwen3_14b_decode.toml")?.tensors;
        let kinds: Vec<(u64, PageKind)> =
            tensors.iter().map(|tensor| (tensor.bytes, kind_of(tensor.bytes, tensor.policy, Generation::V2))).collect();
        let (least, median) = teardown(&profile, &kinds);
        line("#1848: 20 mappings of 40,860,162,880 bytes undone", format!("{MEASURED_MS:.2} ms"), Standing::Measured);
        line("  the same by this fit, least", format!("{:.2} ms", least / 1e3), Standing::Predicted);
        line(
            "  the same by this fit, median",
            format!("{:.2} ms ({:+.1}%)", median / 1e3, (median / 1e3 - MEASURED_MS) / MEASURED_MS * 100.0),
            Standing::Predicted,
        );
        for kib in [4_u64, 16, 64] {
            let Some(page) = PageSize::new(kib << 10).filter(|page| *page != sweep.pages.host) else { continue };
            let other = on_pages(&profile, page);
            let micros = Model::median(&other).unregister(LARGE, PageKind::Huge);
            let what = format!("unregister of 256 MiB (huge), {kib} KiB-page host");
            line(&what, said(micros), Standing::Predicted);
        }
        let giant = Model::median(&profile).register(1 << 30, PageKind::Huge);
        line("register of a 1 GiB giant page, as 512 huge ones", said(giant), Standing::Predicted);
    }
    if let Some((_, median)) = fit.copy {
        line("a small copy on an a5, as here", said(median.value), Standing::Assumed);
    }
    if text.is_empty() {
        return Ok(String::new());
    }
    Ok(format!("predictions of the mechanism, beside the one that was measured\n{text}"))
}

fn on_pages(profile: &Profile, host: PageSize) -> Profile {
    let mut profile = profile.clone();
    profile.host.page_size = host;
    profile
}

/// Writes a profile whose costs are a sweep's: the simulator then is that machine
#[derive(Debug, Args)]
pub(super) struct CalibrateArguments {
    /// Files of a sweep: CSV with registrations, another with copies if there are any, or JSON
    #[arg(required = true, value_name = "SWEEP")]
    files: Vec<PathBuf>,

    /// The profile to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,

    /// What everything but the costs is taken from
    #[arg(long, value_name = "NAME|FILE", default_value = "a2a3")]
    profile: String,

    /// The name of the new profile; the file's when left out
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
}

pub(super) fn run_calibrate(arguments: &CalibrateArguments) -> Result<Exit, Wrong> {
    let (sweep, fitted) = fitted(&arguments.files)?;
    let base = on_pages(&Profile::find(&arguments.profile)?, sweep.pages.host);
    let stem = arguments.output.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let (mut profile, kept) = fitted.calibrated(&base, arguments.name.as_deref().unwrap_or(&stem));
    let files: Vec<String> = arguments.files.iter().map(|file| file.display().to_string()).collect();
    profile.source = format!("costs fitted to {}; the rest as {}", files.join(", "), arguments.profile);
    profile.check(&arguments.output.display().to_string())?;
    write(&arguments.output, &toml::to_string(&profile)?)?;
    say_line(&format!("{}: written; the worst cell is {:.1}% off", arguments.output.display(), fitted.worst() * 100.0));
    if !kept.is_empty() {
        say_line(&format!("assumed, as {} has them: {}", arguments.profile, kept.join("; ")));
    }
    Ok(Exit::Holds)
}

/// Weighs the ways to serve a workload's accesses, and gives the verdict by the workload's own rule
///
/// A workload is TOML: `name`, `source`, `run_us` (the run's own time), `runs` (how many the allocations live for), a `[rule]`
/// (`ship = "rebuild"`, "cache" or "copies", if a bind costs less than `under_us`), and a [[tensor]] for each allocation:
/// `name`, `bytes`, `policy`, `reads` and `writes` in a run that touches it, `access_bytes` (4), and for tensors that only some
/// runs touch `from_run` (1) and `every` (1). Start from one in fixtures/workloads.
#[derive(Debug, Args)]
pub(super) struct DecideArguments {
    /// A workload file
    #[arg(value_name = "WORKLOAD")]
    file: PathBuf,

    /// Whose costs
    #[arg(long, value_name = "NAME|FILE", default_value = "a2a3")]
    profile: String,

    /// Draws the cost of a run by its accesses, for the workload's largest tensor that is accessed
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub(super) fn run_decide(arguments: &DecideArguments) -> Result<Exit, Wrong> {
    let profile = Profile::find(&arguments.profile)?;
    let work = workload::load(&arguments.file)?;
    let decision = decide(&work, &profile);
    say(&describe(&work, &profile, &decision));
    if let Some(file) = &arguments.svg {
        let largest = work.tensors.iter().filter(|tensor| tensor.accesses() > 0).max_by_key(|tensor| tensor.bytes);
        let Some(tensor) = largest else {
            return Err(Wrong(format!(
                "{}: no tensor is accessed, so there is nothing to draw",
                arguments.file.display()
            )));
        };
        let svg = decision_svg(&profile, &tensor.name, tensor.bytes, tensor.policy, tensor.accesses())
            .map_err(|error| Wrong(format!("{}: {error}", file.display())))?;
        write(file, &svg)?;
    }
    Ok(Exit::Holds)
}

fn describe(work: &workload::Workload, profile: &Profile, decision: &Decision) -> String {
    let standing = Model::median(profile).standing();
    let mut text = format!(
        "{}\n{}\n{}\n",
        work.name,
        wrapped(&format!("from {}", work.source), "  ", "  "),
        wrapped(
            &format!(
                "on {}, costs {standing}; a run takes {}, the allocations live for {} runs",
                profile.name,
                said(work.run_us),
                work.runs
            ),
            "  ",
            "  "
        )
    );
    text += &format!("\n  {:<25} {:>12} {:>10} {:>13}  best\n", "tensor", "bytes", "pair", "copies a run");
    for Served { name, bytes, pair, copies, best } in &decision.tensors {
        text += &format!("  {name:<25} {bytes:>12} {:>10} {:>13}  {}\n", said(*pair), said(*copies), best.word());
    }
    text += &format!(
        "\n  {:<20} {:>11} {:>9} {:>11} {:>10} {:>11}\n",
        "way", "a warm bind", "of a run", "average run", "peak", "left mapped"
    );
    for outcome in &decision.outcomes {
        text += &format!(
            "  {:<20} {:>11} {:>8.1}% {:>11} {:>10} {:>11}\n",
            outcome.way,
            said(outcome.per_bind),
            outcome.per_bind / work.run_us * 100.0,
            said(outcome.per_run),
            ByteCount(outcome.peak).to_string(),
            ByteCount(outcome.left).to_string()
        );
    }
    if work.tensors.iter().any(|tensor| tensor.accesses() > 0 && tensor.access_bytes > 64) {
        text += "  assumed: copies over 64 bytes were never measured; the profile's bandwidth stands in\n";
    }
    if decision.growth.len() > 1 {
        text += "\n  a cache's mapped bytes only grow:\n";
        for (run, bytes) in &decision.growth {
            text += &format!("    from run {run:>6}: {}\n", ByteCount(*bytes));
        }
    }
    let policy = format!("{:?}", work.rule.ship).to_lowercase();
    let verdict = if decision.ships { "ships" } else { "loses" };
    text += &format!(
        "\n  rule, fixed beforehand: ship {policy} if a bind is under {}\n  verdict: {policy} {verdict}: a bind costs {}, \
         {:.1}% of a run\n",
        said(work.rule.under_us),
        said(decision.bind),
        decision.bind / work.run_us * 100.0
    );
    text += "\n  when to reconsider: the verdict turns where\n";
    for turning in &decision.turnings {
        let now = if turning.what.contains("factor") { "1".to_owned() } else { said(turning.now) };
        let where_to = match turning.turns_at {
            Some(value) if turning.what.contains("factor") => format!("reaches {value:.3}"),
            Some(value) => format!("reaches {}", said(value)),
            None => format!("never: at 0 a bind still costs {}", said(turning.at_zero)),
        };
        text += &format!("    {} (now {now}) {where_to}\n", turning.what);
    }
    text += "\n  from which access on mapping beats copying, by size\n";
    text += &format!("    {:>10} {:>12} {:>12} {:>8}\n", "size", "pair", "a copy", "access");
    for crossover in &decision.crossovers {
        text += &format!(
            "    {:>10} {:>12} {:>12} {:>8}\n",
            ByteCount(crossover.bytes).to_string(),
            said(crossover.pair),
            said(crossover.copy),
            crossover.from_access
        );
    }
    text
}
