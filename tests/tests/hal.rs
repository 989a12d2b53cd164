//! The drop-in `libascend_hal.so`, met by a C program that knows nothing of the simulator.

#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use hostview_tests::c::{compile, library_folder};
use hostview_tests::{hostview_in, root};
use rstest::rstest;

fn client() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("hal_client");
        compile("cc", "fixtures/harness/hal_client.c", &program, &["-ldl"]);
        (folder, program)
    });
    program
}

fn run(what: &str, environment: &[(&str, &str)]) -> Output {
    Command::new(client())
        .arg(what)
        .env("LD_LIBRARY_PATH", library_folder())
        .env_remove("HOSTVIEW_PROFILE")
        .envs(environment.iter().copied())
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[rstest]
#[case("small", "a2a3")]
#[case("small", "a2a3-64k")]
#[case("large", "a2a3")]
#[case("large", "a2a3-64k")]
#[case("small", "a5")]
#[case("small", "a5-v3")]
#[case("small", "shifted")]
fn a_program_gets_the_profiles_answers(#[case] what: &str, #[case] profile: &str) {
    let output = run(what, &[("HOSTVIEW_PROFILE", profile)]);
    assert!(output.status.success());
    insta::assert_snapshot!(format!("hal_{what}_{profile}"), printed(&output));
}

#[test]
fn a_stale_view_is_a_segmentation_fault() {
    use std::os::unix::process::ExitStatusExt as _;
    // On v3, where the free waits for the unregister: the view is gone in the right order, and the program keeps the pointer.
    let output = run("stale", &[("HOSTVIEW_PROFILE", "a5-v3")]);
    assert_eq!(output.status.signal(), Some(11), "{}", printed(&output));
}

#[test]
fn faults_come_by_plan() {
    let output = run("small", &[("HOSTVIEW_FAULTS", "register:2:DRV_ERROR_BUSY,free:1:DRV_ERROR_TRY_AGAIN")]);
    let text = printed(&output);
    // The first register call has no place for the view, and counts.
    assert!(text.contains("register null: 3\nregister: 13, no view\n"), "{text}");
    assert!(text.contains("free: 51\nfree again: 0\n"), "{text}");
}

#[test]
fn the_log_has_the_drivers_words_and_the_journal_each_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (log, journal) = (path("log"), path("journal"));
    let environment = [("HOSTVIEW_PROFILE", "a2a3-64k"), ("HOSTVIEW_LOG", &log), ("HOSTVIEW_JOURNAL", &journal)];
    assert!(run("small", &environment).status.success());
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.starts_with("Device info. (devid=0;") && log.contains("support_bar_mem=0"), "{log}");
    assert!(log.contains("Not support pcie bar remote map."), "{log}");
    let journal = std::fs::read_to_string(journal).unwrap();
    assert!(journal.starts_with("{\"profile\":\"a2a3-64k\""), "{journal}");
    let lines: Vec<serde_json::Value> = journal.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let refused = lines.iter().find(|line| line["gave"] == "DRV_ERROR_NOT_SUPPORT").unwrap();
    assert_eq!((&refused["call"], &refused["answer"]), (&"register".into(), &"failed".into()));
    assert!(refused["address"].as_str().unwrap().starts_with("0x12c") && refused["cost_us"].as_f64().unwrap() >= 0.0);
}

/// What a program called is a case: called again it comes to the same, and on another host it is told what would be refused.
#[test]
fn a_journal_is_replayed_and_explained() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("run.jsonl");
    let environment = [("HOSTVIEW_PROFILE", "a2a3"), ("HOSTVIEW_JOURNAL", journal.to_str().unwrap())];
    // Three programs, one behind the other.
    for what in ["small", "large", "stale"] {
        run(what, &environment);
    }
    let replay = hostview_in(folder.path(), &["replay", "run.jsonl"]);
    assert_eq!(replay.code, Some(0), "{}{}", replay.out, replay.err);
    assert!(replay.out.starts_with("ok    run.jsonl: 3 of 3 sequences, each call equal ("), "{}", replay.out);
    let here = hostview_in(folder.path(), &["explain", "run.jsonl", "--sequence", "1"]);
    assert_eq!(here.code, Some(0), "{}", here.err);
    assert!(here.out.ends_with("\nEvery step comes to what the case says.\n"), "{}", here.out);
    assert!(here.out.contains("what a program called\non a2a3") && !here.out.contains("The case says"), "{}", here.out);
    let there = hostview_in(
        folder.path(),
        &["explain", "run.jsonl", "--sequence", "1", "--profile", "a2a3-64k", "--differing"],
    );
    assert!(!there.out.contains("[C2]") && there.out.contains(" steps: a law breaks there, or"), "{}", there.out);
    assert!(there.out.contains("[v2-R11]"), "{}", there.out);
    assert!(there.out.contains("The case says ok; what came is DRV_ERROR_NOT_SUPPORT"), "{}", there.out);
    // Programs that run at once have a file each.
    for _ in 0..2 {
        run("small", &[("HOSTVIEW_JOURNAL", &folder.path().join("each-%p.jsonl").display().to_string())]);
    }
    let names =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let each: Vec<String> = names.filter(|name| name.starts_with("each-")).collect();
    assert!(each.len() == 2 && !each.iter().any(|name| name.contains('%')), "{each:?}");
    // A line that was cut short is named.
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, &text[..text.len() - 20]).unwrap();
    let cut = hostview_in(folder.path(), &["replay", "run.jsonl"]);
    assert_eq!(cut.code, Some(2));
    assert!(cut.err.starts_with(&format!("hostview: run.jsonl:{}: ", text.lines().count())), "{}", cut.err);
}

#[test]
fn paced_calls_take_the_modelled_time() {
    // 100 MiB of huge pages are 25,600 host pages: 644 µs by the model. A busy machine only makes it longer.
    let text = printed(&run("pace", &[("HOSTVIEW_PACE", "1")]));
    assert!(text.contains("unregister took over 600 us: yes"), "{text}");
}

#[rstest]
#[case("HOSTVIEW_PROFILE", "a2a4", "HOSTVIEW_PROFILE: no profile `a2a4`; did you mean `a2a3`?")]
#[case("HOSTVIEW_DEVICES", "none", "HOSTVIEW_DEVICES is `none`; give 1 to 64")]
#[case("HOSTVIEW_DEVICES", "65", "HOSTVIEW_DEVICES is `65`; give 1 to 64")]
#[case("HOSTVIEW_PACE", "yes", "HOSTVIEW_PACE is `yes`; give 1 or 0")]
#[case("HOSTVIEW_LOG", "/nowhere/log", "HOSTVIEW_LOG: /nowhere/log: cannot be written")]
#[case("HOSTVIEW_FAULTS", "register", "HOSTVIEW_FAULTS: `register`: is no fault; give call:nth:ERROR")]
#[case(
    "HOSTVIEW_FAULTS",
    "register:0:DRV_ERROR_BUSY",
    "HOSTVIEW_FAULTS: `register:0:DRV_ERROR_BUSY`: nth counts from 1"
)]
#[case("HOSTVIEW_FAULTS", "regsiter:1:DRV_ERROR_BUSY", "HOSTVIEW_FAULTS: `regsiter:1:DRV_ERROR_BUSY`: unknown call")]
fn a_bad_setting_is_an_error_at_the_first_call(#[case] name: &str, #[case] value: &str, #[case] message: &str) {
    let output = run("small", &[(name, value)]);
    let written = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(written.starts_with(&format!("hostview (libascend_hal.so): {message}")), "{written}");
    assert_eq!(written.lines().count(), 1, "said once");
    assert!(printed(&output).starts_with("devices: 4, "), "INVALID_HANDLE: {}", printed(&output));
}

/// What `hostview` does to the library where a subject opens it: a fresh device, calls that fail, the journal.
#[test]
fn its_own_calls_renew_the_device_and_tell_what_happened() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("control");
    compile("cc", "fixtures/harness/control.c", &program, &["-ldl"]);
    let profile = std::fs::File::open(root().join("fixtures/profiles/a2a3.toml")).unwrap();
    let output = Command::new(&program)
        .arg(library_folder().join("libascend_hal.so"))
        // Of the environment nothing holds for a device that was renewed.
        .env("HOSTVIEW_PROFILE", "a5")
        .env("HOSTVIEW_FAULTS", "alloc:1:DRV_ERROR_BUSY")
        .stdin(profile)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("hostview (libascend_hal.so): hostviewRenew:1: "), "{said}");
    insta::assert_snapshot!("hal_control", printed(&output));
}

/// The library exports the driver's names and its own mark, and nothing else.
#[test]
fn the_exported_names_are_these() {
    let library = library_folder().join("libascend_hal.so");
    let output =
        Command::new("nm").args(["-D", "--defined-only", "--format=just-symbols"]).arg(library).output().unwrap();
    let mut names: Vec<&str> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
    names.sort_unstable();
    insta::assert_snapshot!("hal_names", names.join("\n"));
}
