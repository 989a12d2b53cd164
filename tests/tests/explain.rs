//! Why the simulated device answers what it answers.

#![allow(missing_docs)]

use std::path::{Path, PathBuf};

use hostview_tests::c::{has_compiler, subject};
use hostview_tests::{hostview_in, root};
use rstest::rstest;

fn explain(arguments: &[&str]) -> hostview_tests::Run {
    hostview_in(&root(), &[&["explain"], arguments].concat())
}

/// The list in the docs is the code's.
#[test]
fn every_rule_is_listed_with_its_evidence() {
    let run = explain(&[]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    insta::assert_snapshot!(run.out);
    assert!(run.out.lines().all(|line| line.chars().count() <= 80));
    let json: serde_json::Value = serde_json::from_str(&explain(&["--json"]).out).unwrap();
    for rule in json.as_array().unwrap() {
        assert!(run.out.contains(&format!("\n  {:<8}", rule["id"].as_str().unwrap())), "{rule}");
    }
}

fn cases(folder: &Path) -> Vec<PathBuf> {
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            cases.extend(self::cases(&path));
        } else {
            cases.push(path);
        }
    }
    cases
}

/// Each shipped case comes to what it says, and by the rules breaks the laws that it is said to break.
#[test]
fn every_case_is_explained_as_it_is_replayed() {
    let cases = cases(&root().join("fixtures/cases"));
    assert!(cases.len() >= 80);
    for case in cases {
        let run = explain(&[case.to_str().unwrap()]);
        assert_eq!(run.code, Some(0), "{}", run.err);
        assert!(!run.out.contains("The case says"), "{}: {}", case.display(), run.out);
        let text: toml::Table = std::fs::read_to_string(&case).unwrap().parse().unwrap();
        let broken = text.get("expect_law_broken").and_then(toml::Value::as_array);
        assert_eq!(run.out.contains(" breaks: "), broken.is_some_and(|laws| !laws.is_empty()), "{}", run.out);
        for law in broken.into_iter().flatten() {
            assert!(run.out.contains(&format!("{} breaks: ", law.as_str().unwrap())), "{}", run.out);
        }
        // Each of its steps is there, and no call without a rule or a fault that was planned.
        let steps = text["step"].as_array().unwrap().len();
        assert!(run.out.contains(&format!("\n{steps:>3}  ")), "{}", run.out);
    }
}

#[rstest]
#[case::a_rule(&["v2-r11", "--profile", "a2a3-64k"], "host.page_size 64 KiB, device.page_size 4 KiB")]
#[case::a_capability(&["P1", "--profile", "a2a3-64k"], "so: no")]
#[case::a_capability_that_is_granted(&["P1"], "so: yes")]
#[case::a_topic(&["cost"], "costs.copy 9.0 / 9.7 µs")]
#[case::an_error(&["DRV_ERROR_REPEATED_USERD"], "  v3-R9 ")]
#[case::its_number(&["12"], "  v3-R9 ")]
#[case::the_runtimes_number(&["507899"], "  F6 ")]
#[case::a_sequence_of_many(&["fixtures/traces/driver-sequences.jsonl", "--sequence", "145"], "[v2-R15]")]
#[case::another_profile(
    &["fixtures/cases/unregister-twice.toml", "--profile", "a5"],
    "The case says ok; what came is DRV_ERROR_NOT_SUPPORT (65534)."
)]
#[case::a_fault_of_the_case(&["fixtures/cases/laws/V07-cache.toml"], "register is made to fail with DRV_ERROR_NOT_SUPPORT")]
#[case::two_threads(&["fixtures/cases/laws/V15-shared.toml"], "in two threads")]
#[case::a_store_that_faults(&["fixtures/cases/laws/D13-a2a3.toml"], ": faults [M2]")]
fn what_is_asked_for_is_told(#[case] arguments: &[&str], #[case] said: &str) {
    let run = explain(arguments);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    assert!(run.out.contains(said), "{}", run.out);
    assert!(run.out.lines().all(|line| line.chars().count() <= 80), "{}", run.out);
}

#[rstest]
#[case(&["regster"], "no rule, topic, error or file `regster`; did you mean `register`?")]
#[case(&["DRV_ERROR_BSY"], "did you mean `DRV_ERROR_BUSY`?")]
#[case(&["14"], "no rule of the simulated driver answers DRV_ERROR_NO_RESOURCES (14)")]
#[case(&["fixtures"], "fixtures: is a directory; name a file in it")]
#[case(&["absent.toml"], "absent.toml: no such file")]
#[case(&["P1", "--sequence", "3"], "--sequence goes with a file of sequences")]
#[case(&["P1", "--differing"], "--differing goes with a case")]
#[case(&["P1", "--profile", "a2a4"], "did you mean `a2a3`?")]
#[case(&["--json", "fixtures/cases/unregister-twice.toml"], "--json lists rules")]
#[case(&["fixtures/traces/driver-sequences.jsonl"], "holds 240 sequences; say which: --sequence N")]
#[case(&["fixtures/traces/driver-sequences.jsonl", "--sequence", "241"], "has no sequence 241; it holds 240")]
fn a_wrong_question_is_answered_with_the_mend(#[case] arguments: &[&str], #[case] message: &str) {
    let run = explain(arguments);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    assert!(run.err.contains(message), "{}", run.err);
    assert_eq!(run.err.trim_end().lines().count(), 1);
}

/// A case that fails says how to ask why, and the answer has the step.
#[test]
fn a_case_that_fails_leads_to_its_rules() {
    let folder = tempfile::tempdir().unwrap();
    let case = "profile = \"a2a3-64k\"\n[[step]]\nop = \"alloc\"\nname = \"a\"\nbytes = 64\n\
                [[step]]\nop = \"register\"\ntarget = \"a\"\n";
    std::fs::write(folder.path().join("case.toml"), case).unwrap();
    let run = hostview_in(folder.path(), &["replay", "case.toml"]);
    assert_eq!(run.code, Some(1));
    assert!(run.out.contains("by which rules: hostview explain case.toml\n"), "{}", run.out);
    let run = hostview_in(folder.path(), &["explain", "case.toml"]);
    assert!(run.out.contains("[v2-R11]"), "{}", run.out);
}

#[test]
fn a_subject_in_a_process_of_its_own_cannot_be_looked_into() {
    if !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    subject(folder.path(), "cache", "budget_cache.c", &[]);
    let case = "profile = \"a2a3\"\nthrough = \"cache\"\nsubject = \"./libcache.so\"\n[[step]]\nop = \"finalize\"\n";
    std::fs::write(folder.path().join("case.toml"), case).unwrap();
    let run = hostview_in(folder.path(), &["explain", "case.toml"]);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    assert!(run.err.contains("case.toml: its subject has a process of its own"), "{}", run.err);
}
