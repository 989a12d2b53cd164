//! A case that fails, made as short as it can be.

#![allow(missing_docs)]

use std::fmt::Write as _;
use std::path::Path;

use hostview_tests::c::{has_compiler, subject};
use hostview_tests::{hostview_in, root};
use rstest::rstest;

/// The steps of a case file, each as its operation and what it works on.
fn steps(file: &Path) -> Vec<String> {
    let case: toml::Table = std::fs::read_to_string(file).unwrap().parse().unwrap();
    let word = |step: &toml::Value, key: &str| step.get(key).and_then(toml::Value::as_str).unwrap_or("").to_owned();
    let steps = case["step"].as_array().unwrap().iter();
    steps.map(|step| format!("{} {}{}", word(step, "op"), word(step, "name"), word(step, "target"))).collect()
}

/// A trace of allocations that come and go, a stale registration among them, and what meets it far behind.
fn trace(folder: &Path) {
    let mut text = "{\"profile\": \"a2a3\", \"title\": \"a long run\"}\n".to_owned();
    let mut step = |step: String| writeln!(text, "{step}").unwrap();
    for index in 0..300 {
        step(format!("{{\"op\": \"alloc\", \"name\": \"n{index}\", \"bytes\": {}}}", 5000 + index * 7));
        step(format!("{{\"op\": \"register\", \"target\": \"n{index}\"}}"));
        if index != 90 {
            step(format!("{{\"op\": \"unregister\", \"target\": \"n{index}\"}}"));
        }
        if index % 3 != 0 || index == 90 {
            step(format!("{{\"op\": \"free\", \"target\": \"n{index}\"}}"));
        }
        if index == 200 {
            // What lies where the one with the view left behind lay.
            step("{\"op\": \"alloc\", \"name\": \"again\", \"bytes\": 5630}".to_owned());
        }
    }
    step("{\"op\": \"register\", \"target\": \"again\"}".to_owned());
    std::fs::write(folder.join("long.jsonl"), text).unwrap();
}

#[test]
fn of_a_long_trace_the_few_steps_that_matter_are_left_and_fail_in_the_same_way() {
    let folder = tempfile::tempdir().unwrap();
    trace(folder.path());
    let replay = hostview_in(folder.path(), &["replay", "long.jsonl"]);
    assert_eq!(replay.code, Some(1), "{}", replay.out);
    let run = hostview_in(folder.path(), &["shrink", "long.jsonl", "-o", "short.toml"]);
    assert_eq!((run.code, run.out.as_str()), (Some(0), ""), "{}", run.err);
    assert!(run.err.contains("DRV_ERROR_PARA_ERROR (8), and not ok"), "{}", run.err);
    let short = folder.path().join("short.toml");
    assert_eq!(steps(&short), ["alloc a", "register a", "free a", "alloc b", "register b"]);
    let replay = hostview_in(folder.path(), &["replay", "short.toml"]);
    assert_eq!(replay.code, Some(1), "{}", replay.out);
    assert!(replay.out.contains("step 5: register b"), "{}", replay.out);
    let explain = hostview_in(folder.path(), &["explain", "short.toml"]);
    assert!(explain.out.contains("DRV_ERROR_PARA_ERROR (8) [v2-R14]"), "{}", explain.out);
}

#[rstest]
// On its own machine it passes; on the other the first registration is what another machine refuses.
#[case("a2a3-64k", &["alloc a", "register a"], "DRV_ERROR_NOT_SUPPORT (65534), and not ok")]
#[case("a5-v3", &["alloc a", "register a", "free a"], "DRV_ERROR_BUSY (13), and not ok")]
fn a_sequence_that_another_machine_refuses_comes_down_to_why(
    #[case] profile: &str,
    #[case] left: &[&str],
    #[case] what: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let stale = root().join("fixtures/cases/unregister-after-a-cached-free.toml");
    let file = stale.to_str().unwrap();
    let run = hostview_in(folder.path(), &["shrink", file, "--profile", profile, "-o", "short.toml"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains(what), "{}", run.err);
    assert_eq!(steps(&folder.path().join("short.toml")), left);
    let replay = hostview_in(folder.path(), &["replay", "short.toml"]);
    assert_eq!(replay.code, Some(1), "{}", replay.out);
}

#[test]
fn a_law_that_breaks_breaks_in_the_shorter_case_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut case = "profile = \"a2a3\"\nthrough = \"cache\"\nsubject = \"leaky\"\n".to_owned();
    for name in ["x", "y", "z"] {
        for step in ["op = \"alloc\"\nbytes = 70000\nname", "op = \"write\"\nfill = 7\ntarget", "op = \"read\"\ntarget"]
        {
            writeln!(case, "[[step]]\n{step} = \"{name}\"").unwrap();
        }
    }
    // Refused, and not what it says: that is not what the case is about.
    writeln!(case, "[[step]]\nop = \"free\"\ntarget = \"null\"\n[[step]]\nop = \"free\"\ntarget = \"y\"").unwrap();
    std::fs::write(folder.path().join("long.toml"), case).unwrap();
    let run = hostview_in(folder.path(), &["shrink", "long.toml", "-o", "short.toml"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.starts_with("11 steps to 3: V01 breaks: "), "{}", run.err);
    let short = folder.path().join("short.toml");
    assert_eq!(steps(&short), ["alloc a", "acquire a", "free a"]);
    assert!(!std::fs::read_to_string(&short).unwrap().contains("any"));
    assert_eq!(hostview_in(folder.path(), &["replay", "short.toml"]).code, Some(1));
}

/// Of a case that says which law breaks that one is looked at, and the shorter case says so as well.
#[test]
fn a_case_about_a_law_stays_about_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(root().join("fixtures/cases/laws")).unwrap() {
        let file = entry.unwrap().path();
        let case: toml::Table = std::fs::read_to_string(&file).unwrap().parse().unwrap();
        let Some(law) = case.get("expect_law_broken").and_then(|laws| laws[0].as_str()) else { continue };
        let run = hostview_in(folder.path(), &["shrink", file.to_str().unwrap(), "-o", "short.toml"]);
        assert_eq!(run.code, Some(0), "{}", run.err);
        assert!(run.err.contains(&format!(": {law} breaks: ")), "{}", run.err);
        assert!(steps(&folder.path().join("short.toml")).len() <= case["step"].as_array().unwrap().len());
        let replay = hostview_in(folder.path(), &["replay", "short.toml"]);
        assert_eq!(replay.code, Some(0), "{}", replay.out);
        seen += 1;
    }
    assert_eq!(seen, 19);
}

#[test]
fn a_case_of_a_library_is_made_shorter_in_its_process() {
    if !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    subject(folder.path(), "cache", "budget_cache.c", &["-DBUDGET_OFF_BY_ONE"]);
    let mut case = "profile = \"a2a3\"\nthrough = \"cache\"\nsubject = \"./libcache.so\"\n".to_owned();
    for name in ["p", "q", "r", "s"] {
        let bytes = if name == "q" { 4096 } else { 1_500_000 };
        writeln!(case, "[[step]]\nop = \"alloc\"\nbytes = {bytes}\nname = \"{name}\"").unwrap();
        writeln!(case, "[[step]]\nop = \"acquire\"\ntarget = \"{name}\"").unwrap();
    }
    std::fs::write(folder.path().join("long.toml"), case).unwrap();
    let run = hostview_in(folder.path(), &["shrink", "long.toml", "-o", "short.toml"]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    assert!(run.err.contains(": V16 breaks: "), "{}", run.err);
    assert_eq!(steps(&folder.path().join("short.toml")).len(), 4);
    let replay = hostview_in(folder.path(), &["replay", "short.toml"]);
    assert_eq!(replay.code, Some(1), "{}", replay.out);
    assert!(replay.out.contains("V16 to hold"), "{}", replay.out);
}

#[rstest]
#[case(&["fixtures/cases/unregister-twice.toml"], "every step comes to what the case says; --profile NAME runs it as another")]
#[case(&["fixtures/traces/driver-sequences.jsonl"], "holds 240 sequences; say which: --sequence N")]
#[case(&["absent.toml"], "absent.toml: no such file")]
#[case(&["fixtures/cases/unregister-twice.toml", "--profile", "a2a4"], "did you mean `a2a3`?")]
#[case(&["fixtures/cases/unregister-twice.toml", "-o", "fixtures"], "is a folder")]
#[case(&["moved.jsonl"], "it differs only in where step 1 finds memory")]
#[case(&["expects.toml"], "no law breaks; what its steps expect cannot be kept")]
fn what_cannot_be_made_shorter_is_said(#[case] arguments: &[&str], #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("fixtures"), folder.path().join("fixtures")).unwrap();
    let moved =
        "{\"profile\": \"a2a3\"}\n{\"op\": \"alloc\", \"name\": \"a\", \"bytes\": 1, \"address\": \"0x1000\"}\n";
    std::fs::write(folder.path().join("moved.jsonl"), moved).unwrap();
    let expects = "profile = \"a2a3\"\nthrough = \"cache\"\n[[step]]\nop = \"alloc\"\nname = \"a\"\nbytes = 1\n\
                   expect = { error = \"DRV_ERROR_BUSY\" }\n";
    std::fs::write(folder.path().join("expects.toml"), expects).unwrap();
    let run = hostview_in(folder.path(), &[&["shrink"], arguments].concat());
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{}", run.err);
    assert!(run.err.contains(message), "{}", run.err);
    assert_eq!(run.err.trim_end().lines().count(), 1);
}
