//! The measure of "faithful": the recorded sequences, and the cases with their sources.

#![allow(missing_docs)]

use std::path::PathBuf;

use hostview::case::{self, to_toml};
use hostview::check::law_as_case;
use hostview::laws::driver_laws;
use hostview::replay::{Ending, Prepared, files, prepare};
use hostview_sim::Profile;
use hostview_tests::root;
use rstest::rstest;

fn fixtures(name: &str) -> PathBuf {
    root().join("fixtures").join(name)
}

#[test]
fn every_call_of_the_240_recorded_sequences_is_equal() {
    let prepared = prepare(&fixtures("traces/driver-sequences.jsonl")).unwrap();
    assert_eq!(prepared.len(), 240);
    let calls: usize = prepared.iter().map(|prepared| prepared.case.steps.len()).sum();
    assert_eq!(calls, 9141);
    for prepared in &prepared {
        // Each step states its number, and each allocation its address.
        assert!(prepared.case.steps.iter().all(|step| step.code.is_some()));
        assert_eq!(prepared.run().discord, None, "seed {:?}", prepared.case.seed);
    }
}

#[rstest]
#[case::an_address(|step: &mut case::Step| step.address = Some("0x12c000001000".to_owned()))]
#[case::a_number(|step: &mut case::Step| step.code = Some(8))]
fn a_recorded_sequence_that_differs_is_found(#[case] change: fn(&mut case::Step)) {
    let mut prepared = prepare(&fixtures("traces/driver-sequences.jsonl")).unwrap();
    let Prepared { case, .. } = &mut prepared[0];
    change(&mut case.steps[0]);
    let discord = prepared[0].run().discord.unwrap();
    assert_eq!(discord.step, Some(0));
}

#[test]
fn every_case_passes() {
    let files = files(&[fixtures("cases")]).unwrap();
    assert!(files.len() > 70);
    for file in files {
        for prepared in prepare(&file).unwrap() {
            let Ending { discord, .. } = prepared.run();
            assert_eq!(discord, None, "{}", file.display());
            assert!(!prepared.case.title.is_empty() && !prepared.case.source.is_empty(), "{}", file.display());
        }
    }
}

#[test]
fn the_cases_of_d_laws_are_the_laws_own_sequences() {
    for law in driver_laws() {
        let id = law.law.id;
        let profile = if id.0 == "D10" { "a2a3-64k" } else { "a2a3" };
        let case = law_as_case(law, &Profile::shipped(profile).unwrap(), profile).unwrap();
        let file = fixtures(&format!("cases/laws/{id}-{profile}.toml"));
        let kept = std::fs::read_to_string(&file).unwrap();
        let print = format!("hostview laws --case {id} --profile {profile} > {}", file.display());
        assert_eq!(kept, to_toml(&case), "the law changed; write its case anew: {print}");
    }
}

#[test]
fn the_teardown_of_1848_is_within_5_percent_of_what_was_measured() {
    const MEASURED_MS: f64 = 255.982_626;
    let prepared = prepare(&fixtures("cases/simpler-1848-twenty-mappings.toml")).unwrap();
    let [prepared] = &prepared[..] else { panic!("one case") };
    let bytes: u64 =
        prepared.case.steps.iter().filter(|step| step.op == case::Op::Alloc).filter_map(|step| step.bytes).sum();
    assert_eq!(bytes, 40_860_162_880);
    let usage = prepared.run().usage;
    let modelled = usage.unregister.millis();
    assert!((modelled - MEASURED_MS).abs() / MEASURED_MS < 0.05, "{modelled} ms");
    assert!(usage.resident.unwrap() < 256 << 20, "{:?} bytes resident", usage.resident);
}

#[test]
fn a_trace_is_a_header_line_and_a_step_a_line() {
    let text = "{\"title\":\"t\",\"profile\":\"a2a3\"}\n\
                {\"op\":\"alloc\",\"name\":\"a\",\"bytes\":4096}\n\
                {\"op\":\"register\",\"target\":\"a\",\"expect\":{\"pages\":1}}\n";
    let cases = case::load_text(text, "t.jsonl").unwrap();
    assert_eq!(cases.len(), 1);
    assert_eq!(cases[0].steps.len(), 2);
}

#[test]
fn a_case_is_the_same_after_it_was_written_and_read() {
    for file in files(&[fixtures("cases")]).unwrap() {
        let cases = case::load(&file).unwrap();
        let text = to_toml(&cases[0]);
        assert_eq!(case::load_text(&text, "again.toml").unwrap(), cases, "{}", file.display());
    }
}
