//! The command as its users meet it: what it prints, its exit codes, its errors.

#![allow(missing_docs)]

use std::path::Path;

use hostview_tests::{Run, hostview, hostview_in, root};
use rstest::rstest;

fn in_empty_folder(arguments: &[&str]) -> (Run, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    (hostview_in(folder.path(), arguments), folder)
}

#[rstest]
#[case("help", &["--help"])]
#[case("help_check", &["check", "--help"])]
#[case("help_replay", &["replay", "--help"])]
#[case("help_laws", &["laws", "--help"])]
#[case("laws", &["laws"])]
#[case("profiles", &["profiles"])]
#[case("laws_case", &["laws", "--case", "D05"])]
#[case("check_a2a3", &["check", "--profile", "a2a3", "--cases", "64"])]
#[case("check_64k", &["check", "--profile", "a2a3-64k", "--profile", "a5", "--cases", "64"])]
fn what_it_prints(#[case] name: &str, #[case] arguments: &[&str]) {
    let (run, _folder) = in_empty_folder(arguments);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    assert!(run.out.lines().all(|line| line.chars().count() <= 100), "a line is too long");
    insta::assert_snapshot!(name, run.out);
}

#[rstest]
#[case("laws")]
#[case("profiles")]
fn lists_come_as_json_too(#[case] list: &str) {
    let run = hostview(&[list, "--json"]);
    let value: serde_json::Value = serde_json::from_str(&run.out).unwrap();
    assert!(value.as_array().unwrap().len() >= 7);
}

#[test]
fn leaky_is_caught_told_and_written_as_a_case_that_fails_again() {
    let arguments = ["check", "--subject", "leaky", "--profile", "a2a3", "--law", "V01", "--seed", "9"];
    let (run, folder) = in_empty_folder(&arguments);
    assert_eq!(run.code, Some(1));
    insta::assert_snapshot!("check_leaky", run.out);

    let again = hostview_in(folder.path(), &arguments);
    assert_eq!((again.code, again.out), (run.code, run.out), "the same seed gives the same text");

    let case = folder.path().join("hostview-failures/leaky-a2a3-V01.toml");
    let steps = std::fs::read_to_string(&case).unwrap().matches("[[step]]").count();
    assert!(steps <= 4, "{steps} steps");
    let replay = hostview_in(folder.path(), &["replay", "hostview-failures/leaky-a2a3-V01.toml"]);
    assert_eq!(replay.code, Some(1));
    insta::assert_snapshot!("replay_leaky", replay.out);
}

#[test]
fn without_a_command_the_suite_runs_over_every_profile() {
    let (run, folder) = in_empty_folder(&[]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    for profile in ["a2a3", "a2a3-64k", "a2a3-16k", "a2a3-vm", "a5", "a5-v3", "shifted", "drawn"] {
        assert!(run.out.contains(&format!("\n {profile} ")), "{profile} is missing");
    }
    assert!(run.out.contains("All laws hold. 8 profiles"));
    assert!(run.out.contains("Seed 1, 256 sequences"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn the_json_report_is_the_same_for_the_same_seed() {
    let folder = tempfile::tempdir().unwrap();
    let report = |file: &str| {
        let arguments = ["check", "--profile", "a2a3", "--subject", "leaky", "--cases", "32", "--json", file];
        assert_eq!(hostview_in(folder.path(), &arguments).code, Some(1));
        std::fs::read(folder.path().join(file)).unwrap()
    };
    let (first, second) = (report("1.json"), report("2.json"));
    assert_eq!(first, second);
    let value: serde_json::Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(value["holds"], false);
    assert_eq!(value["failures"][0]["law"], "V01");
    assert_eq!(value["rows"][1]["laws"][0]["result"], "broken");
}

#[test]
fn the_recorded_sequences_replay() {
    let run = hostview(&["replay", "fixtures/traces/driver-sequences.jsonl"]);
    assert_eq!(run.code, Some(0));
    assert!(run.out.contains("240 of 240 sequences, each call equal (9141 calls)"), "{}", run.out);
}

#[test]
fn a_folder_of_cases_replays_with_a_line_each() {
    let run = hostview(&["replay", "fixtures/cases"]);
    assert_eq!(run.code, Some(0), "{}", run.out);
    assert!(run.out.lines().filter(|line| line.starts_with("ok ")).count() > 70);
}

#[test]
fn verbose_tells_time_and_memory() {
    let run = hostview(&["replay", "-v", "fixtures/cases/simpler-1848-twenty-mappings.toml"]);
    assert!(run.out.contains("of that in unregister 249.48 ms"), "{}", run.out);
    assert!(run.out.contains("resident memory of this process"));
}

#[test]
fn a_sequence_that_differs_shows_the_heaps_on_both_sides() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(root().join("fixtures/traces/driver-sequences.jsonl")).unwrap();
    let line = text.lines().next().unwrap().replacen("0x12c040100000", "0x12c040101000", 1);
    std::fs::write(folder.path().join("t.jsonl"), format!("{line}\n{}\n", text.lines().nth(1).unwrap())).unwrap();
    let run = hostview_in(folder.path(), &["replay", "t.jsonl"]);
    assert_eq!(run.code, Some(1));
    insta::assert_snapshot!("replay_differs", run.out);
}

#[test]
fn a_case_that_does_not_pass_shows_the_step_and_the_drivers_line() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(root().join("fixtures/cases/simpler-1531-depgen-a2a3.toml")).unwrap();
    std::fs::write(folder.path().join("c.toml"), text.replace("\"a2a3\"", "\"a2a3-64k\"")).unwrap();
    let run = hostview_in(folder.path(), &["replay", "c.toml"]);
    assert_eq!(run.code, Some(1));
    insta::assert_snapshot!("replay_refused", run.out);
}

#[test]
fn a_missing_file_is_named() {
    let (run, _folder) = in_empty_folder(&["replay", "missing.toml"]);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    assert_eq!(run.err, "hostview: missing.toml: no such file\n");
}

#[test]
fn a_folder_without_cases_is_named() {
    let (run, _folder) = in_empty_folder(&["replay", "."]);
    assert_eq!(run.code, Some(2));
    assert_eq!(run.err, "hostview: .: holds no case; give a folder with .toml or .jsonl files\n");
}

const ALLOC: &str = "[[step]]\nop = \"alloc\"\nname = \"a\"\nbytes = 64\n";

#[rstest]
#[case::empty("", "hostview: c.toml: is empty; a case needs a `profile` and at least one `[[step]]`")]
#[case::no_toml("profile = ", "hostview: c.toml:1: ")]
#[case::no_steps("profile = \"a2a3\"", "hostview: c.toml: has no steps; add a [[step]]")]
#[case::no_profile("title = \"t\"", "hostview: c.toml:1: the key `profile` is missing; add it")]
#[case::unknown_op(
    "profile = \"a2a3\"\n[[step]]\nop = \"regsiter\"\ntarget = \"a\"",
    "hostview: c.toml:3: unknown value `regsiter`; did you mean `register`?"
)]
#[case::unknown_key(
    "profile = \"a2a3\"\n[[step]]\nop = \"alloc\"\nname = \"a\"\nbites = 5",
    "hostview: c.toml:5: unknown key `bites`; did you mean `bytes`?"
)]
#[case::unknown_profile(
    "profile = \"a2a4\"\n@",
    "hostview: c.toml: no profile `a2a4`; did you mean `a2a3`?; `hostview profiles` lists them, and a path ending in .toml \
     names a file"
)]
#[case::unknown_subject(
    "profile = \"a2a3\"\nthrough = \"cache\"\nsubject = \"cahce\"\n@",
    "hostview: c.toml: no subject `cahce`; did you mean `cache`?"
)]
#[case::a_subject_of_the_driver(
    "profile = \"a2a3\"\nsubject = \"cache\"\n@",
    "hostview: c.toml: `subject` needs `through = \"cache\"`; add it or drop the subject"
)]
#[case::unknown_target(
    "profile = \"a2a3\"\n@[[step]]\nop = \"register\"\ntarget = \"b\"",
    "hostview: c.toml: step 2 (register): no step before it makes `b`; did you mean `a`?"
)]
#[case::unknown_error(
    "profile = \"a2a3\"\n@[[step]]\nop = \"free\"\ntarget = \"a\"\nexpect = { error = \"DRV_ERROR_BUZY\" }",
    "hostview: c.toml: step 2 (free): unknown error `DRV_ERROR_BUZY`; did you mean `DRV_ERROR_BUSY`?"
)]
#[case::unknown_expectation(
    "profile = \"a2a3\"\n@[[step]]\nop = \"free\"\ntarget = \"a\"\nexpect = \"fine\"",
    "hostview: c.toml:9: `fine` is no expectation; write \"ok\" or a table such as { error = \"DRV_ERROR_NOT_SUPPORT\" }"
)]
#[case::a_caches_operation(
    "profile = \"a2a3\"\n@[[step]]\nop = \"acquire\"\ntarget = \"a\"",
    "hostview: c.toml: step 2 (acquire): is a cache's operation; write `through = \"cache\"`"
)]
#[case::bad_hex(
    "profile = \"a2a3\"\n@[[step]]\nop = \"write\"\ntarget = \"a\"\ndata = \"5g\"",
    "hostview: c.toml: step 2 (write): `data` is `5g`; give pairs of hexadecimal digits"
)]
#[case::unknown_law(
    "profile = \"a2a3\"\nexpect_law_broken = [\"V99\"]\n@",
    "hostview: c.toml: `expect_law_broken` names `V99`, which is no law; `hostview laws` lists them"
)]
#[case::too_large_a_move(
    "profile = \"a2a3\"\n@[[step]]\nop = \"read\"\ntarget = \"a\"\nbytes = 99999999999",
    "hostview: c.toml: step 2 (read): moves 99999999999 bytes at once; give `bytes`, at most 67108864"
)]
#[case::a_bad_override(
    "profile = \"a2a3\"\n@[profile_override.host]\npage_size = 5",
    "hostview: c.toml: [profile_override]: 5 is no page size; give a power of two of at least 4096"
)]
fn a_bad_case_is_one_message_that_names_place_and_mend(#[case] text: &str, #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("c.toml"), text.replace('@', ALLOC)).unwrap();
    let run = hostview_in(folder.path(), &["replay", "c.toml"]);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{}", run.err);
    assert_eq!(run.err.lines().count(), 1, "{}", run.err);
    assert!(run.err.starts_with(message), "{}", run.err);
}

#[rstest]
#[case::unknown_op("{\"profile\":\"a2a3\",\"steps\":[{\"op\":\"aloc\"}]}", "hostview: t.jsonl:1: column ")]
#[case::a_step_first(
    "{\"op\":\"alloc\"}",
    "hostview: t.jsonl:1: a step or call before the header; the first line names the `profile`"
)]
#[case::no_json("{", "hostview: t.jsonl:1: column 1: EOF while parsing an object")]
#[case::a_call_first("{\"call\":\"free\"}", "hostview: t.jsonl:1: a step or call before the header;")]
#[case::an_unknown_call(
    "@{\"call\":\"allok\",\"answer\":\"done\",\"injected\":false,\"cost_us\":0}",
    "hostview: t.jsonl:2: column 61: unknown value `allok`; did you"
)]
#[case::an_unknown_error(
    "@{\"call\":\"free\",\"address\":\"0x0\",\"answer\":\"failed\",\"gave\":\"DRV_ERROR_BSY\",\"injected\":false,\"cost_us\":0}",
    "hostview: t.jsonl:2: column 101: no error is called `DRV_ERROR_BSY`; did you mean `DRV_ERROR_BUSY`?"
)]
#[case::an_unknown_rule(
    "@{\"call\":\"free\",\"address\":\"0x0\",\"answer\":\"done\",\"injected\":false,\"rule\":\"F99\",\"cost_us\":0}",
    "hostview: t.jsonl:2: column 76: no rule is called `F99`; `hostview explain` lists them"
)]
#[case::only_a_header("@", "hostview: t.jsonl: has no steps;")]
fn a_bad_trace_names_its_line(#[case] text: &str, #[case] message: &str) {
    let folder = tempfile::tempdir().unwrap();
    let text = text.replace('@', "{\"profile\":\"a2a3\"}\n");
    std::fs::write(folder.path().join("t.jsonl"), text).unwrap();
    for command in ["replay", "explain", "shrink"] {
        let run = hostview_in(folder.path(), &[command, "t.jsonl"]);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
        assert!(run.err.starts_with(message), "{}", run.err);
    }
}

#[rstest]
#[case(&["check", "--profile", "a2a33"], "hostview: no profile `a2a33`; did you mean `a2a3`?")]
#[case(&["check", "--profile", "nowhere.toml"], "hostview: nowhere.toml: no such file")]
#[case(&["check", "--profile", "./"], "hostview: ./: is a directory; name a file in it")]
#[case(&["check", "--subject", "leeky"], "hostview: no subject `leeky`; did you mean `leaky`?")]
#[case(&["check", "--law", "V77"], "hostview: no law `V77`; `hostview laws` lists them")]
#[case(&["check", "--cases", "0"], "error: invalid value '0' for '--cases <N>'")]
#[case(&["check", "--seed", "x"], "error: invalid value 'x' for '--seed <S>'")]
#[case(&["chekc"], "error: unrecognized subcommand 'chekc'")]
#[case(&["replay"], "error: the following required arguments were not provided")]
#[case(&["laws", "--case", "V01"], "hostview: V01 watches every sequence and has none of its own")]
#[case(&["laws", "--case", "D10"], "hostview: D10 has no sequence on a2a3: huge pages can be registered here")]
fn a_wrong_call_is_named(#[case] arguments: &[&str], #[case] message: &str) {
    let (run, folder) = in_empty_folder(arguments);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    assert!(run.err.starts_with(message), "{}", run.err);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_report_that_cannot_be_written_is_named_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let arguments = ["check", "--profile", "a2a3", "--law", "D01", "--cases", "4", "--json", "file/report.json"];
    let run = hostview_in(folder.path(), &arguments);
    assert_eq!(run.code, Some(2));
    assert!(run.err.starts_with("hostview: file/report.json: cannot be written"), "{}", run.err);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_profile_of_ones_own_is_checked_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(root().join("fixtures/profiles/a2a3.toml")).unwrap();
    let text = text
        .replace("name = \"a2a3\"", "name = \"mine\"")
        .replace("page_size = 4096\nwrite", "page_size = 16384\nwrite");
    std::fs::write(folder.path().join("mine.toml"), text).unwrap();
    let run = hostview_in(folder.path(), &["check", "--profile", "mine.toml", "--cases", "32", "--law", "D08"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    assert!(run.out.contains("\n mine     r "), "{}", run.out);
}

#[test]
fn a_closed_pipe_ends_it_quietly() {
    use std::process::{Command, Stdio};
    let mut child = Command::new(hostview_tests::binary())
        .args(["laws", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .current_dir(Path::new("/"))
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

/// The transcripts of the README are what the command prints today. Those marked `console` are compared; `text` has figures
/// of one machine in it.
#[test]
fn the_readme_shows_what_is_printed() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("fixtures"), folder.path().join("fixtures")).unwrap();
    let mut shown = 0;
    for block in readme.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let (command, output) = block.split_once('\n').unwrap();
        let arguments: Vec<&str> = command.strip_prefix("$ hostview ").unwrap().split(' ').collect();
        assert_eq!(hostview_in(folder.path(), &arguments).out, output, "{command}");
        shown += 1;
    }
    assert_eq!(shown, 5);
}
