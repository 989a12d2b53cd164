//! The sweep, the fit and the decision, against the seed's own figures. All times are virtual.

#![allow(missing_docs)]

use std::path::PathBuf;

use hostview::cost::decide::{Served, Way, decide};
use hostview::cost::fit::{Call, Fit, fit};
use hostview::cost::table::{Sweep, load};
use hostview::cost::workload::{self, Workload};
use hostview_sim::{CostPoint, PageKind, Profile};
use hostview_tests::{hostview, hostview_in, root};
use rstest::rstest;

fn fixture(name: &str) -> PathBuf {
    root().join("fixtures").join(name)
}

fn seed() -> Sweep {
    load(&[fixture("sweeps/seed-register.csv"), fixture("sweeps/seed-copies.csv")]).unwrap()
}

fn seed_fit() -> Fit {
    fit(&seed()).unwrap()
}

fn near(found: f64, wanted: f64, part: f64) -> bool {
    (found - wanted).abs() <= wanted * part
}

#[test]
fn the_seeds_28_cells_are_reproduced_within_5_percent() {
    let fit = seed_fit();
    assert_eq!(fit.residuals.len(), 28);
    assert!(fit.worst() < 0.05, "{}", fit.worst());
}

/// The constants of `driver.md` §8, fitted there by other means.
#[rstest]
#[case(Call::Register, PageKind::Ordinary, (1.13, 0.146), (1.44, 0.159))]
#[case(Call::Register, PageKind::Huge, (1.01, 0.680), (1.64, 0.892))]
#[case(Call::Unregister, PageKind::Ordinary, (2.66, 0.0529), (3.66, 0.0608))]
#[case(Call::Unregister, PageKind::Huge, (2.75, 0.0244), (3.74, 0.0250))]
fn the_constants_are_those_of_the_facts(
    #[case] call: Call,
    #[case] kind: PageKind,
    #[case] min: (f64, f64),
    #[case] median: (f64, f64),
) {
    let fit = seed_fit();
    let found = fit.mechanism(call, kind).unwrap();
    for (line, (floor, slope)) in [(found.min, min), (found.median, median)] {
        assert!(near(line.floor.value, floor, 0.01), "{line:?}");
        assert!(near(line.slope.value, slope, 0.01), "{line:?}");
        assert!(line.slope.half_width.unwrap() > 0.0);
    }
}

#[test]
fn one_cost_per_byte_is_far_off_where_pages_are_ordinary() {
    let fit = seed_fit();
    let of = |bytes| {
        let wanted = |residual: &&hostview::cost::fit::Residual| {
            residual.call == Call::Register && residual.point == CostPoint::Median && residual.bytes == bytes
        };
        fit.residuals.iter().find(wanted).unwrap().per_byte_off().abs()
    };
    assert!(of(65_536) > 0.4 && of(262_144) > 0.7);
}

#[test]
fn where_bytes_are_the_mechanism_the_fit_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // Huge pages alone, where a page and a byte are the same thing.
    let text =
        "bytes,reg_min,reg_med,unreg_min,unreg_med\n4194304,2,3,27,29\n16777216,8,12,108,116\n67108864,32,48,432,464\n";
    std::fs::write(folder.path().join("s.csv"), text).unwrap();
    let run = hostview_in(folder.path(), &["fit", "s.csv"]);
    assert!(run.out.contains("it does about as well as pages"), "{}", run.out);
}

#[test]
fn the_teardown_of_1848_is_predicted_within_5_percent() {
    let workload = workload::load(&fixture("workloads/qwen3_14b_decode.toml")).unwrap();
    let bytes: u64 = workload.tensors.iter().map(|tensor| tensor.bytes).sum();
    assert_eq!((workload.tensors.len(), bytes), (20, 40_860_162_880));
    let (profile, kept) = seed_fit().calibrated(&Profile::shipped("a2a3").unwrap(), "seed");
    assert!(kept.is_empty());
    let kind = |bytes: u64| if bytes > 1_048_544 { PageKind::Huge } else { PageKind::Ordinary };
    let tensors: Vec<_> = workload.tensors.iter().map(|tensor| (tensor.bytes, kind(tensor.bytes))).collect();
    let (_, median) = hostview::cost::fit::teardown(&profile, &tensors);
    assert!(near(median / 1e3, 255.982_626, 0.05), "{median}");
}

/// Seed → fit → profile → sweep: the derived figures of the seed document come out again.
#[test]
fn the_round_trip_gives_the_seeds_derived_figures() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (register, copies) = (fixture("sweeps/seed-register.csv"), fixture("sweeps/seed-copies.csv"));
    let (register, copies) = (register.display().to_string(), copies.display().to_string());
    let (profile, csv) = (path("mine.toml"), path("again.csv"));
    let calibrated = hostview(&["calibrate", &register, &copies, "-o", &profile]);
    assert_eq!((calibrated.code, calibrated.err.as_str()), (Some(0), ""));
    let swept = hostview(&["sweep", "--profile", &profile, "--noise", "none", "--csv", &csv]);
    assert_eq!(swept.code, Some(0), "{}", swept.err);

    let again = load(&[&csv, &path("again-copies.csv")]).unwrap();
    let worst = seed_fit().worst();
    for (row, seeds) in again.mappings.iter().zip(&seed().mappings) {
        assert_eq!(row.bytes, seeds.bytes);
        assert!(near(row.register.median, seeds.register.median, worst + 1e-3));
        assert!(near(row.unregister.median, seeds.unregister.median, worst + 1e-3));
    }
    let row = |bytes: u64| again.mappings.iter().find(|row| row.bytes == bytes).unwrap();
    assert!(near(row(4096).pair_median(), 5.2, 0.05), "the floor of a pair");
    let per_gib = (row(268_435_456).pair_median() - row(16_777_216).pair_median()) / 240.0 * 1024.0 / 1e3;
    assert!(near(per_gib, 7.0, 0.02), "{per_gib} ms/GiB between the two largest");
    let per_page = (row(262_144).register.median - row(4096).register.median) / 63.0;
    assert!(near(per_page, 0.16, 0.02), "{per_page} µs for a page");
    assert!(row(4_194_304).register.median < row(65_536).register.median, "4 MiB costs less than 64 KiB");
    assert!(near(again.copies[0].to_host.median, 9.7, 0.01));
}

#[rstest]
fn a_sweep_shows_the_seeds_rows_within_5_percent_of_its_medians(#[values(1, 2, 3, 4)] noise_seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["sweep", "--profile", "a2a3", "--seed", &noise_seed.to_string(), "--json", "s.json"];
    let run = hostview_in(folder.path(), &arguments);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let swept = load(&[folder.path().join("s.json")]).unwrap();
    assert_eq!(swept.mappings.len(), 7);
    for (row, seeds) in swept.mappings.iter().zip(&seed().mappings) {
        assert!(near(row.register.median, seeds.register.median, 0.05), "{row:?}");
        assert!(near(row.unregister.median, seeds.unregister.median, 0.05), "{row:?}");
        assert!(row.register.min < row.register.median && row.register.p99.unwrap() > row.register.median);
    }
    assert_eq!(run.out, hostview_in(folder.path(), &arguments).out, "the same seed gives the same sweep");
}

fn paged_attention() -> Workload {
    workload::load(&fixture("workloads/paged_attention.toml")).unwrap()
}

#[test]
fn the_seeds_verdict_follows_from_its_rule_and_another_rule_gives_the_other() {
    let profile = Profile::shipped("a2a3").unwrap();
    let mut work = paged_attention();
    let decision = decide(&work, &profile);
    let pairs: Vec<f64> = decision.tensors.iter().map(|tensor| tensor.pair).collect();
    assert!(near(pairs[0], 5.2, 0.05) && near(pairs[1], 18.8, 0.05), "{pairs:?}");
    assert!(near(decision.bind, 24.0, 0.05) && !decision.ships);
    assert!(near(decision.bind / work.run_us, 0.04, 0.05));
    work.rule.under_us = 30.0;
    assert!(decide(&work, &profile).ships);
}

#[test]
fn the_seeds_other_figures_come_out() {
    let decision = decide(&paged_attention(), &Profile::shipped("a2a3").unwrap());
    let from = |bytes| decision.crossovers.iter().find(|row| row.bytes == bytes).unwrap();
    assert_eq!((from(1 << 10).from_access, from(256 << 10).from_access), (1, 2));
    assert!(near(from(256 << 20).pair, 1765.0, 0.01));
    let Served { copies, best, .. } = &decision.tensors[1];
    assert!((156_000.0..160_000.0).contains(copies), "16,384 reads: {copies}");
    assert_eq!(*best, Way::Cache);
}

/// What the solver answers is put back into the model: there the bind costs exactly what the rule allows.
#[test]
fn the_verdict_turns_where_the_solver_says() {
    let profile = Profile::shipped("a2a3").unwrap();
    let mut work = paged_attention();
    work.rule.under_us = 23.0;
    let decision = decide(&work, &profile);
    let turning = decision.turnings.iter().find(|turning| turning.what == "register floor").unwrap();
    let floor = turning.turns_at.unwrap();
    let at = |floor: f64| {
        let mut changed = profile.clone();
        changed.costs.register_ordinary.median = floor;
        decide(&work, &changed)
    };
    assert!(near(at(floor).bind, 23.0, 1e-9));
    assert!(at(floor - 0.01).ships && !at(floor + 0.01).ships);
    // Under the seed's own rule the pages alone cost more than a bind may.
    work.rule.under_us = 10.0;
    let decision = decide(&work, &profile);
    assert_eq!(decision.turnings[0].turns_at, None);
    assert!(decision.turnings[0].at_zero > 10.0);
}

#[test]
fn only_what_is_accessed_is_mapped_and_a_cache_only_grows() {
    let profile = Profile::shipped("a2a3").unwrap();
    let work = workload::load(&fixture("workloads/qwen3_14b_decode.toml")).unwrap();
    let decision = decide(&work, &profile);
    let of = |way| decision.outcomes.iter().find(|outcome| outcome.way == way).unwrap();
    assert!(of(Way::MapEverything).per_bind > 240_000.0, "what #1848 paid each run");
    assert!(of(Way::Rebuild).per_bind < 40.0);
    assert_eq!((of(Way::MapEverything).peak, of(Way::Cache).left), (40_860_162_880, 4096 + 262_144 + 1024));

    let work = workload::load(&fixture("workloads/large_touched_once.toml")).unwrap();
    let decision = decide(&work, &profile);
    assert_eq!(decision.growth, [(1, 1 << 20), (10, 17 << 20), (100, 273 << 20)]);
    assert!(decision.tensors.iter().any(|tensor| tensor.best == Way::Copies), "touched once: a copy is cheapest");
}

#[rstest]
#[case("fit_seed", &["fit", "fixtures/sweeps/seed-register.csv", "fixtures/sweeps/seed-copies.csv"])]
#[case("sweep_no_noise", &["sweep", "--noise", "none"])]
#[case("sweep_64k", &["sweep", "--profile", "a2a3-64k", "--noise", "none", "--sizes", "4096,4194304", "--policies", "huge_first,normal_only"])]
#[case("decide_paged_attention", &["decide", "fixtures/workloads/paged_attention.toml"])]
#[case("decide_control", &["decide", "fixtures/workloads/control_tensor_32.toml"])]
#[case("decide_qwen3", &["decide", "fixtures/workloads/qwen3_14b_decode.toml"])]
#[case("decide_large", &["decide", "fixtures/workloads/large_touched_once.toml"])]
#[case("decide_64k", &["decide", "fixtures/workloads/large_touched_once.toml", "--profile", "a2a3-64k"])]
fn what_it_prints(#[case] name: &str, #[case] arguments: &[&str]) {
    let run = hostview(arguments);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    insta::assert_snapshot!(name, run.out);
}

#[rstest]
#[case("sweep_svg", &["sweep", "--noise", "none"])]
#[case("decide_svg", &["decide", "REPO/fixtures/workloads/paged_attention.toml"])]
fn what_it_draws(#[case] name: &str, #[case] arguments: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let root = root().display().to_string();
    let arguments: Vec<String> = arguments.iter().map(|argument| argument.replace("REPO", &root)).collect();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--svg", "p.svg"]);
    assert_eq!(hostview_in(folder.path(), &arguments).code, Some(0));
    let svg = std::fs::read_to_string(folder.path().join("p.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
    insta::assert_snapshot!(name, svg);
}

#[test]
fn a_sweep_by_the_wall_clock_has_rows_and_no_figure_is_looked_at() {
    let arguments =
        ["sweep", "--clock", "wall", "--iterations", "8", "--copies", "8", "--sizes", "4096,65536,4194304,8388608"];
    let run = hostview(&arguments);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.out.contains("wall clock; its own cost of"), "{}", run.out);
    assert_eq!(run.out.lines().filter(|line| line.trim_start().starts_with("4194304 ")).count(), 1);
}

const HEADER: &str = "bytes,reg_min,reg_med,unreg_min,unreg_med\n";

#[rstest]
#[case::empty("", "hostview: s.csv:1: is empty; the first line names the columns, as in fixtures/sweeps")]
#[case::missing_column(
    "# x\nbytes,reg_min,unreg_min,unreg_med\n64,1,1,1\n",
    "hostview: s.csv:2: the column `reg_med` is missing; there are bytes, reg_min, unreg_min, unreg_med"
)]
#[case::negative("@64,1,2,3,4\n4096,1,2,-3,4\n", "hostview: s.csv:3: `unreg_min` is -3; a call takes more than 0 µs")]
#[case::no_number("@64,1,2,3,four\n", "hostview: s.csv:2: `unreg_med` is `four`; give microseconds")]
#[case::empty_cell("@64,1,2,,4\n", "hostview: s.csv:2: `unreg_min` is empty; give microseconds")]
#[case::over_the_median("@64,3,2,3,4\n", "hostview: s.csv:2: `reg_min` is 3, over `reg_med`, which is 2")]
#[case::out_of_order("@4096,1,2,3,4\n64,1,2,3,4\n", "hostview: s.csv:3: sizes must grow: 64 follows 4096")]
#[case::one_row(
    "@64,1,2,3,4\n",
    "hostview: s.csv:2: is the only row, and one size cannot tell a floor from a cost per page; give two sizes at least"
)]
#[case::one_huge_size(
    "@64,1,2,3,4\n65536,2,3,4,5\n4194304,1,2,3,4\n",
    "hostview: s.csv: huge pages have one size only, which cannot tell a floor from a cost per page"
)]
#[case::no_rows("@", "hostview: s.csv:1: has no rows; give one line for each size")]
#[case::no_page_size("# host_page_size: 5000\n@64,1,2,3,4\n", "hostview: s.csv:1: 5000 is no page size")]
fn a_bad_sweep_names_its_line(#[case] text: &str, #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("s.csv"), text.replace('@', HEADER)).unwrap();
    for arguments in [&["fit", "s.csv"][..], &["calibrate", "s.csv", "-o", "p.toml"]] {
        let run = hostview_in(folder.path(), arguments);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
        assert!(run.err.starts_with(message), "{}", run.err);
    }
    assert!(!folder.path().join("p.toml").exists());
}

/// What `sweep --json` writes is looked at as the tables are.
#[rstest]
#[case::no_size("/mappings/1/bytes", "0", "hostview: s.json: mappings[1]: `bytes` is 0; give a size")]
#[case::out_of_order("/mappings/1/bytes", "64", "hostview: s.json: mappings[1]: sizes must grow: 64 follows 65536")]
#[case::of_no_time("/mappings/0/register/min", "0", "hostview: s.json: mappings[0]: `register` takes 0 to ")]
#[case::over_the_median("/mappings/0/unregister/median", "0.5", "hostview: s.json: mappings[0]: `unregister` takes ")]
#[case::of_less_than_no_time(
    "/copies/0/to_host/p99",
    "-1",
    "hostview: s.json: copies[0]: `to_host.p99` is -1; a call takes"
)]
#[case::to_the_device(
    "/copies/1/to_device",
    "{\"min\": 1, \"median\": -1}",
    "hostview: s.json: copies[1]: `to_device` takes "
)]
#[case::a_copy_of_nothing("/copies/0/bytes", "0", "hostview: s.json: copies[0]: `bytes` is 0; give a size")]
#[case::one_size("/mappings", "one", "hostview: s.json: mappings[0]: 65536 is the only size")]
#[case::no_rows("", "none", "hostview: s.json: has no rows; give one for each size")]
#[case::a_word("/mappings/0/bytes", "\"many\"", "hostview: s.json:")]
fn a_bad_sweep_in_json_names_its_row(#[case] place: &str, #[case] value: &str, #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    let arguments =
        ["sweep", "--profile", "a2a3", "--sizes", "65536,4194304,8388608", "--copies", "8", "--json", "s.json"];
    assert_eq!(hostview_in(folder.path(), &arguments).code, Some(0));
    let file = folder.path().join("s.json");
    let mut sweep: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    match value {
        "one" => sweep["mappings"].as_array_mut().unwrap().truncate(1),
        "none" => (sweep["mappings"], sweep["copies"]) = (serde_json::json!([]), serde_json::json!([])),
        value => *sweep.pointer_mut(place).unwrap() = serde_json::from_str(value).unwrap(),
    }
    std::fs::write(&file, sweep.to_string()).unwrap();
    let run = hostview_in(folder.path(), &["fit", "s.json"]);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{}", run.err);
    assert!(run.err.starts_with(message), "{}", run.err);
}

#[rstest]
#[case("run_us = 600.0", "run_us = -1.0", "hostview: w.toml: `run_us` must be over 0 microseconds")]
#[case("reads = 32", "raeds = 32", "hostview: w.toml:13: unknown key `raeds`; did you mean `reads`?")]
#[case(
    "ship     = \"rebuild\"",
    "ship = \"rebiuld\"",
    "hostview: w.toml:7: unknown value `rebiuld`; did you mean `rebuild`?"
)]
#[case("bytes = 1024", "bytes = 0", "hostview: w.toml: `tensor context_lens: bytes` must be from 1 to 4 TiB")]
#[case("runs   = 1000", "runs = 0", "hostview: w.toml: `runs` must be from 1 to 1,000,000,000")]
fn a_bad_workload_names_its_key(#[case] good: &str, #[case] bad: &str, #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(fixture("workloads/paged_attention.toml")).unwrap();
    assert!(text.contains(good));
    std::fs::write(folder.path().join("w.toml"), text.replace(good, bad)).unwrap();
    let run = hostview_in(folder.path(), &["decide", "w.toml"]);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    assert!(run.err.starts_with(message), "{}", run.err);
}

#[rstest]
#[case(&["fit", "nowhere.csv"], "hostview: nowhere.csv: no such file")]
#[case(&["decide", "."], "hostview: .: is a directory; name a file in it")]
#[case(&["sweep", "--sizes", "0"], "error: invalid value '0' for '--sizes")]
#[case(&["sweep", "--policies", "huge"], "error: invalid value 'huge' for '--policies")]
#[case(&["sweep", "--sizes", "1099511627776"], "hostview: 1099511627776 bytes could not be allocated: ")]
#[case(&["sweep", "--profile", "a2a3-vm", "--svg", "p.svg"], "hostview: p.svg: cannot be drawn: nothing was registered")]
fn a_wrong_call_is_named(#[case] arguments: &[&str], #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    let run = hostview_in(folder.path(), arguments);
    assert_eq!(run.code, Some(2));
    assert!(run.err.starts_with(message), "{}", run.err);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
