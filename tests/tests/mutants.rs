//! The judge is judged: every planted fault is caught, and each law is the first to catch one.

#![allow(missing_docs)]

use std::collections::BTreeSet;

use hostview::check::ProfileChoice;
use hostview::devices::{DeviceMutant, device_mutants};
use hostview::laws::{self, LawId};
use hostview::mutants::{MutantOptions, Verdict, judge_caches, judge_devices};
use hostview::subject::mutants;
use hostview_sim::Profile;
use hostview_tests::hostview_in;
use rstest::rstest;

fn profile(name: &str) -> ProfileChoice {
    ProfileChoice::Given(Box::new(Profile::shipped(name).unwrap()), name.to_owned())
}

fn options(seed: u64) -> MutantOptions {
    MutantOptions { profile: profile("a2a3"), cases: 256, seed, without: Vec::new(), jobs: 2 }
}

fn judged(seed: u64) -> Vec<Verdict> {
    judge_caches(&options(seed), mutants(), &|| ())
}

/// What became of faulty devices on hosts that can register everything, huge pages alone, and nothing.
fn judged_devices(options: &MutantOptions, chosen: &[&'static DeviceMutant]) -> Vec<Verdict> {
    judge_devices(options, &["a2a3", "a2a3-64k", "a2a3-vm"].map(profile), chosen, &|| ())
}

fn assert_all_caught_and_each_law_first(verdicts: &[Verdict], laws: impl Iterator<Item = LawId>) {
    let survivors: Vec<&str> =
        verdicts.iter().filter(|verdict| verdict.caught.is_none()).map(|verdict| verdict.name).collect();
    assert_eq!(survivors, [""; 0]);
    let first: BTreeSet<LawId> = verdicts.iter().filter_map(|verdict| Some(verdict.caught.as_ref()?.law)).collect();
    assert_eq!(first, laws.collect());
}

#[rstest]
fn every_faulty_device_is_caught_and_each_law_is_the_first_to_catch_one(#[values(1, 2, 3)] seed: u64) {
    let verdicts = judged_devices(&options(seed), device_mutants());
    assert_all_caught_and_each_law_first(&verdicts, laws::driver_laws().iter().map(|law| law.law.id));
}

#[test]
fn what_caught_a_faulty_device_holds_on_the_simulator() {
    let folder = tempfile::tempdir().unwrap();
    for verdict in judged_devices(&options(1), device_mutants()) {
        let file = folder.path().join(format!("{}.toml", verdict.name));
        std::fs::write(&file, hostview::case::to_toml(&verdict.caught.unwrap().case)).unwrap();
        let ending = hostview::replay::prepare(&file).unwrap()[0].run();
        assert_eq!(ending.discord, None, "{}", verdict.name);
    }
}

/// A law that is not the first to break asks things that the first keeps away.
#[rstest]
fn every_fault_answers_every_law(
    #[values("a2a3", "a2a3-64k", "a2a3-16k", "a2a3-vm", "a5", "a5-v3", "shifted")] name: &str,
) {
    let ids: Vec<LawId> = laws::driver_laws().iter().map(|law| law.law.id).collect();
    for id in &ids {
        let without = ids.iter().filter(|other| *other != id).copied().collect();
        let options = MutantOptions { cases: 8, without, ..options(1) };
        let verdicts = judge_devices(&options, &[profile(name)], device_mutants(), &|| ());
        let caught = verdicts.iter().filter_map(|verdict| verdict.caught.as_ref());
        assert!(caught.into_iter().all(|caught| caught.law == *id));
    }
}

#[rstest]
fn every_faulty_cache_is_caught_and_each_law_is_the_first_to_catch_one(#[values(1, 2, 3)] seed: u64) {
    assert_all_caught_and_each_law_first(&judged(seed), laws::view_laws().iter().map(|law| law.law.id));
}

#[test]
fn what_caught_a_faulty_cache_fails_again_from_its_case_file_and_not_on_the_sound_cache() {
    let folder = tempfile::tempdir().unwrap();
    for verdict in judged(1) {
        let caught = verdict.caught.unwrap();
        assert!(caught.case.steps.len() <= 10, "{}: {:?}", verdict.name, caught.case.steps);
        for (subject, fails) in [(verdict.name, true), ("shared", false)] {
            let mut case = caught.case.clone();
            case.subject = Some(subject.to_owned());
            // Whatever the steps come to: the laws are asked.
            for step in &mut case.steps {
                step.expect.0.any = true;
            }
            let file = folder.path().join(format!("{}-{subject}.toml", verdict.name));
            std::fs::write(&file, hostview::case::to_toml(&case)).unwrap();
            let ending = hostview::replay::prepare(&file).unwrap()[0].run();
            assert_eq!(ending.discord.is_some(), fails, "{} on {subject}: {:?}", verdict.name, ending.discord);
        }
    }
}

#[test]
fn there_are_enough_faults_and_each_says_what_it_is() {
    let caches = mutants().iter().map(|mutant| (mutant.name, mutant.story, mutant.like));
    let devices = device_mutants().iter().map(|mutant| (mutant.name, mutant.story, mutant.like));
    assert!(caches.len() >= 48);
    assert!(devices.len() >= 24);
    assert!(caches.clone().filter(|(_, _, like)| like.is_some()).count() >= 8);
    let mut names = BTreeSet::new();
    for (name, story, _) in caches.chain(devices) {
        assert!(names.insert(name), "{name} twice");
        assert!(story.ends_with('.') && !story.contains('\n'), "{name}: {story}");
    }
}

#[test]
fn a_law_that_is_left_out_lets_what_it_alone_catches_survive() {
    let folder = tempfile::tempdir().unwrap();
    let all = hostview_in(folder.path(), &["mutants", "--json", "all.json"]);
    assert_eq!(all.code, Some(0), "{}", all.err);
    let without = hostview_in(folder.path(), &["mutants", "--without-law", "V08", "remembers-a-refusal", "leaky"]);
    assert_eq!(without.code, Some(1));
    assert!(without.out.contains("Survived: remembers-a-refusal."), "{}", without.out);
    assert!(without.out.contains("1 of 2 caught"), "{}", without.out);
}

/// Without its law such a fault survives every other. V01 and V03 have none: what breaks them breaks V02, V05, V10 or V11, and
/// V04, as well.
#[rstest]
#[case("V02", "swallows-the-error-number")]
#[case("V04", "loses-writes")]
#[case("V05", "registers-per-access")]
#[case("V06", "registers-unasked")]
#[case("V07", "fails-on-a-refusal")]
#[case("V08", "remembers-a-refusal")]
#[case("V09", "finalize-drops-half")]
#[case("V10", "an-empty-read-succeeds")]
#[case("V11", "counts-whole-pages")]
#[case("V12", "a-double-free-succeeds")]
#[case("V13", "drops-idle-views-out-of-memory")]
#[case("V14", "allocates-on-device-0")]
#[case("V15", "free-takes-no-lock")]
#[case("V16", "passes-the-budget-by-one")]
#[case("V17", "waits-for-itself")]
#[case("V18", "one-view-at-a-time")]
#[case("V19", "refuses-the-last-byte")]
fn a_law_catches_a_fault_that_no_other_does(#[case] law: &str, #[case] name: &str, #[values(1, 2, 3)] seed: u64) {
    let mutant = *mutants().iter().find(|mutant| mutant.name == name).unwrap();
    let without = vec![laws::find(law).unwrap().id];
    let verdicts = judge_caches(&MutantOptions { without, ..options(seed) }, &[mutant], &|| ());
    assert!(verdicts[0].caught.is_none(), "{:?}", verdicts[0].caught);
    let verdicts = judge_caches(&options(seed), &[mutant], &|| ());
    assert!(verdicts[0].caught.as_ref().is_some_and(|caught| caught.law.0 == law), "{:?}", verdicts[0].caught);
}

/// As above, for devices: every D-law has one.
#[rstest]
#[case("D01", "shows-a-byte-behind")]
#[case("D02", "begins-inside-a-page")]
#[case("D03", "looks-at-the-first-page-alone")]
#[case("D04", "ends-by-an-interior-address")]
#[case("D05", "ignores-the-first-mark")]
#[case("D06", "registers-nothing")]
#[case("D07", "ends-what-is-not-allocated")]
#[case("D08", "refuses-ordinary-pages-silently")]
#[case("D09", "refuses-huge-pages-silently")]
#[case("D10", "says-what-it-cannot-last")]
#[case("D11", "the-last-byte-is-lost")]
#[case("D12", "stores-after-the-end")]
#[case("D13", "read-only-is-ignored")]
#[case("D14", "reuses-no-registered-block")]
#[case("D15", "frees-a-registered-large-block")]
#[case("D16", "busy-over-512-mib")]
#[case("D17", "null-is-freed")]
#[case("D18", "acl-pads-nothing")]
#[case("D19", "reuses-a-few-pages-alone")]
#[case("D20", "registers-the-covered-neighbour")]
#[case("D21", "a-lost-tail-is-registered-again")]
#[case("D22", "registers-as-far-as-it-goes")]
#[case("D23", "one-device-for-all")]
#[case("D24", "allocates-nothing")]
#[case("D25", "takes-every-process-type")]
#[case("D26", "ends-by-any-map-type")]
#[case("D27", "crashes-on-null")]
#[case("D28", "first-fit")]
#[case("D29", "registers-per-4096-bytes")]
#[case("D30", "the-cache-gives-back-what-is-registered")]
fn a_d_law_catches_a_fault_that_no_other_does(#[case] law: &str, #[case] name: &str) {
    let mutant = *device_mutants().iter().find(|mutant| mutant.name == name).unwrap();
    let without = vec![laws::find(law).unwrap().id];
    let verdicts = judged_devices(&MutantOptions { without, ..options(1) }, &[mutant]);
    assert!(verdicts[0].caught.is_none(), "{:?}", verdicts[0].caught);
    let verdicts = judged_devices(&options(1), &[mutant]);
    assert!(verdicts[0].caught.as_ref().is_some_and(|caught| caught.law.0 == law), "{:?}", verdicts[0].caught);
}

/// The time is the wall clock's, and no part of the report.
#[test]
fn how_long_each_took_is_told_beside_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let run = hostview_in(folder.path(), &["mutants", "-v", "leaky", "rounds-down"]);
    for name in ["leaky", "rounds-down"] {
        let line = |line: &str| line.split_whitespace().skip(1).eq(["s", name]);
        assert!(run.err.lines().any(line), "{}", run.err);
    }
    assert!(!run.out.contains("wall clock"), "{}", run.out);
}

#[test]
fn the_same_seed_gives_the_same_table_and_the_same_json_however_many_work_at_it() {
    let folder = tempfile::tempdir().unwrap();
    let run = |jobs: &str, file: &str| {
        let run = hostview_in(folder.path(), &["mutants", "--jobs", jobs, "--seed", "2", "--json", file]);
        (run.out, std::fs::read_to_string(folder.path().join(file)).unwrap())
    };
    assert_eq!(run("1", "one.json"), run("3", "three.json"));
}

#[rstest]
#[case(&["mutants", "leeky"], "no mutant `leeky`; did you mean `leaky`?")]
#[case(&["mutants", "--without-law", "V99"], "no law `V99`; `hostview laws` lists them")]
#[case(&["mutants", "--profile", "a2a4"], "a2a3")]
#[case(&["mutants", "--json", "."], "is a folder")]
#[case(&["mutants", "--kind", "host"], "[possible values: cache, device]")]
#[case(&["mutants", "--kind", "cache", "leaky"], "cannot be used with")]
#[case(&["check", "--out", "/dev/null"], "/dev/null: is a file; give a folder to write into")]
fn wrong_arguments_are_said_before_anything_is_run(#[case] arguments: &[&str], #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    let run = hostview_in(folder.path(), arguments);
    assert_eq!(run.code, Some(2));
    assert!(run.err.contains(message), "{}", run.err);
    assert_eq!(run.out, "");
}
