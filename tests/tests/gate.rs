//! `hostview gate` and `replay --hal`: on the drop-in libraries, and on C libraries that know nothing of the simulator.

#![allow(missing_docs)]

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hostview_tests::c::{self, compile, has_compiler, library_folder};
use hostview_tests::{binary, root};
use rstest::rstest;

fn drop_in() -> String {
    library_folder().join("libascend_hal.so").display().to_string()
}

fn command(profile: &str, folder: &Path) -> Command {
    let mut command = Command::new(binary());
    command.current_dir(folder);
    for variable in ["TASK_DEVICE", "CTEST_RESOURCE_GROUP_0_NPUS", "ASCEND_HOME_PATH", "LD_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    command.env("HOSTVIEW_PROFILE", profile);
    command
}

/// A run in a folder of its own: its exit code and what it printed.
fn run(profile: &str, folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    told(&command(profile, folder).args(arguments).output().unwrap())
}

fn told(output: &Output) -> (Option<i32>, String) {
    let text = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    (output.status.code(), text)
}

fn last_line(text: &str) -> &str {
    text.trim_end().lines().next_back().unwrap_or_default()
}

/// As one line, without what breaks and indents it.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The matrix' row of D-laws.
fn driver_row(text: &str) -> &str {
    let row = text.lines().find(|line| line.starts_with(" machine"));
    row.and_then(|line| line.split_whitespace().nth(1)).unwrap_or_default()
}

/// Whether a law's mark is this.
fn mark(text: &str, law: usize) -> char {
    driver_row(text).chars().nth(law - 1).unwrap_or(' ')
}

/// Processes that have the library and whose parent went without them, or that are still there.
fn serving(folder: &Path) -> usize {
    let served = |entry: &fs::DirEntry| {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let here = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == folder);
        here && String::from_utf8_lossy(&command).contains("serve-")
    };
    fs::read_dir("/proc").unwrap().flatten().filter(served).count()
}

#[rstest]
#[case("a2a3")]
#[case("a2a3-64k")]
#[case("a2a3-16k")]
#[case("a2a3-vm")]
#[case("a5")]
#[case("a5-v3")]
#[case("shifted")]
fn the_drop_in_libraries_are_accepted_as_what_they_are(#[case] profile: &str) {
    let folder = tempfile::tempdir().unwrap();
    let acl = library_folder().join("libascendcl.so").display().to_string();
    let arguments = ["gate", "--hal", &drop_in(), "--acl", &acl, "--device", "0,1", "--cases", "16", "--compare", "48"];
    let (code, text) = run(profile, folder.path(), &arguments);
    // Never a plain word: the library says of itself that it is the simulator.
    assert_eq!((code, last_line(&text)), (Some(0), "accepted on the simulator"), "{text}");
    assert!(text.contains("nothing is left"), "{text}");
    assert!(text.contains("29 of the 29 D-laws that were checked"), "{text}");
    assert!(flat(&text).contains("48 of 48 drawn sequences"), "{text}");
    assert_eq!(serving(folder.path()), 0);
    let ordinary = match profile {
        "a2a3" | "shifted" | "a5-v3" => '.',
        _ => 'r',
    };
    assert!([ordinary, '.'].contains(&mark(&text, 1)) && mark(&text, 8) == ordinary, "{text}");
}

/// Two threads are judged on a simulated device alone; that is said, and no pass.
#[test]
fn a_subject_for_several_threads_is_not_proven_on_a_machine() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["gate", "--hal", &drop_in(), "--device", "0,1", "--subject", "shared"];
    let (code, text) = run("a2a3", folder.path(), &arguments);
    assert_eq!(code, Some(4), "{text}");
    assert!(flat(&text).contains("V15 not checked: two threads are judged by doing everything again"), "{text}");
    assert!(last_line(&text).starts_with("not proven: V15 could not be checked"), "{text}");
}

#[test]
fn the_page_size_of_the_machine_is_what_its_libraries_say_not_this_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = run("a2a3-64k", folder.path(), &["gate", "--hal", &drop_in()]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("ordinary pages no, huge pages yes"), "{text}");
    // A law that needs two devices is not applicable with one.
    assert_eq!(mark(&text, 23), '-', "{text}");
}

#[test]
fn without_a_library_it_lists_where_it_looked() {
    let folder = tempfile::tempdir().unwrap();
    let output = command("a2a3", folder.path())
        .arg("gate")
        .env("ASCEND_HOME_PATH", "/opt/none-toolkit")
        .env("LD_LIBRARY_PATH", "/opt/none-first:/opt/none-second")
        .output()
        .unwrap();
    let (code, text) = told(&output);
    assert_eq!(code, Some(3), "{text}");
    let at = |place: &str| text.find(place).unwrap_or_else(|| panic!("{place} is not in {text}"));
    assert!(at("/opt/none-first/libascend_hal.so") < at("/opt/none-second/libascend_hal.so"));
    assert!(at("/opt/none-second/") < at("/opt/none-toolkit/lib64/"));
    assert!(at("/opt/none-toolkit/") < at("/usr/local/Ascend/driver/lib64/driver/libascend_hal.so"));
    assert!(text.contains("give --hal FILE, or set ASCEND_HOME_PATH or LD_LIBRARY_PATH"), "{text}");
}

#[rstest]
#[case(&["gate", "--hal", "README.md"], 3, "README.md: cannot be loaded: invalid ELF header")]
#[case(&["gate", "--hal", "nowhere.so"], 3, "nowhere.so: is not there; give the path of a libascend_hal.so")]
#[case(&["gate", "--hal", "sim"], 3, "sim: cannot be loaded: ")]
#[case(&["gate", "--via", "acl"], 3, "no libascend_hal.so was found")]
#[case(&["replay", "--hal", "README.md", "fixtures/cases"], 3, "README.md: cannot be loaded: ")]
#[case(&["sweep", "--hal", "README.md"], 3, "README.md: cannot be loaded: invalid ELF header")]
#[case(&["sweep", "--hal", "README.md", "--profile", "a5"], 2, "cannot be used with")]
#[case(&["gate", "--driver-log", "nowhere.log"], 2, "nowhere.log: is no file; give the file that the driver logs to")]
#[case(&["gate", "--driver-log", "sim"], 2, "sim: is no file; give the file that the driver logs to")]
#[case(&["gate", "--json", "sim"], 2, "sim: is a folder; give a file to write")]
#[case(&["gate", "--write-profile", "sim"], 2, "sim: is a folder; give a file to write")]
#[case(&["gate", "--device", "1,1"], 2, "device 1 is named twice; laws about two devices need two")]
#[case(&["sweep", "--svg", "sim"], 2, "sim: is a folder; give a file to write")]
#[case(&["gate", "--allow-skip", "D99"], 2, "no law `D99`; `hostview laws` lists them")]
#[case(&["gate", "--subject", "nobody"], 2, "nobody")]
#[case(&["gate", "--like", "nobody"], 2, "nobody")]
#[case(&["gate", "--time-limit", "0"], 2, "give seconds over 0")]
fn what_cannot_be_opened_or_is_wrong_is_named(#[case] arguments: &[&str], #[case] code: i32, #[case] message: &str) {
    let (came, text) = run("a2a3", &root(), arguments);
    assert!(came == Some(code) && text.contains(message), "{came:?}: {text}");
}

#[test]
fn a_library_that_is_no_driver_is_refused_by_what_it_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let acl = library_folder().join("libascendcl.so").display().to_string();
    let (code, text) = run("a2a3", folder.path(), &["gate", "--hal", &acl]);
    assert_eq!(code, Some(3), "{text}");
    assert!(
        text.contains("is a library without halMemAlloc, halMemFree, halHostRegister, halHostUnregister"),
        "{text}"
    );
}

#[rstest]
#[case("TASK_DEVICE", "1", 0, "  device    1 of 2")]
#[case("CTEST_RESOURCE_GROUP_0_NPUS", "id:1,slots:1", 0, "  device    1 of 2")]
#[case("TASK_DEVICE", "auto", 2, "TASK_DEVICE is `auto`")]
#[case("CTEST_RESOURCE_GROUP_0_NPUS", "1", 2, "CTEST_RESOURCE_GROUP_0_NPUS is `1`")]
#[case("TASK_DEVICE", "7", 3, "aclrtSetDevice(7) answers 107001")]
fn the_device_comes_from_the_job(#[case] name: &str, #[case] value: &str, #[case] code: i32, #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let output = command("a2a3", folder.path()).args(["gate", "--hal", &drop_in()]).env(name, value).output().unwrap();
    let (came, text) = told(&output);
    assert!(came == Some(code) && text.contains(says), "{came:?}: {text}");
}

#[test]
fn what_could_not_be_checked_is_not_proven_until_it_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let hal = drop_in();
    let through_the_driver = ["gate", "--hal", &hal, "--via", "hal"];
    let (code, text) = run("a2a3", folder.path(), &through_the_driver);
    assert_eq!(code, Some(4), "{text}");
    assert!(flat(&text).contains("it goes through ACL, and there is no libascendcl.so"), "{text}");
    let laws = ["D15", "D16", "D17", "D18", "D24"];
    assert!(flat(&text).contains(&format!("not proven: {} could not be checked", laws.join(", "))), "{text}");

    let allowed = laws.map(|law| ["--allow-skip", law]).concat();
    let (code, text) = run("a2a3", folder.path(), &[&through_the_driver[..], &allowed].concat());
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(last_line(&text), "accepted on the simulator, allowed to skip D15, D16, D17, D18, D24");
}

#[test]
fn a_law_that_takes_more_memory_than_it_may_is_not_proven() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = run("a2a3", folder.path(), &["gate", "--hal", &drop_in(), "--memory-limit", "64"]);
    assert_eq!(code, Some(4), "{text}");
    assert_eq!(mark(&text, 16), '?', "{text}");
    assert!(flat(&text).contains("and the limit is 64 MiB; raise it with"), "{text}");
    // The suite's own limit is no difference of the device's.
    assert!(flat(&text).contains("16 of 16 drawn sequences"), "{text}");
}

#[test]
fn the_time_limit_ends_it_as_not_proven() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = run("a2a3", folder.path(), &["gate", "--hal", &drop_in(), "--time-limit", "0.05"]);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("the time limit of 0.05 s had passed"), "{text}");
}

#[test]
fn a_signal_ends_it_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().canonicalize().unwrap();
    let mut command = command("a2a3", &place);
    // Long enough to be met in the middle, in a process group of its own as a job queue has it.
    command.args(["gate", "--hal", &drop_in(), "--cases", "100000", "--trials", "100000"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = command.spawn().unwrap();
    // The first process asks what the machine is; whatever comes later is in the middle.
    while serving(&place) == 0 {
        std::thread::yield_now();
    }
    let group = format!("-{}", child.id());
    assert!(Command::new("kill").args(["-TERM", "--", &group]).status().unwrap().success());
    let (code, text) = told(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("stopped by a signal") && text.contains("nothing is left"), "{text}");
    assert_eq!(serving(&place), 0, "{text}");
}

#[test]
fn a_process_that_lost_its_suite_gives_everything_back() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().canonicalize().unwrap();
    let journal = place.join("journal");
    let count = |what: &str, done: &str| {
        let text = fs::read_to_string(&journal).unwrap_or_default();
        text.lines().filter(|line| line.contains(what) && line.contains(done)).count()
    };
    let mut command = command("a2a3", &place);
    command.args(["gate", "--hal", &drop_in(), "--cases", "100000"]).env("HOSTVIEW_JOURNAL", &journal);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    while count(r#""call":"alloc""#, r#""answer":"allocated""#) < 100 {
        std::thread::yield_now();
    }
    // Nothing that the suite itself could still do.
    child.kill().unwrap();
    child.wait().unwrap();
    while serving(&place) > 0 {
        std::thread::yield_now();
    }
    assert_eq!(count(r#""call":"free""#, r#""answer":"done""#), count(r#""call":"alloc""#, r#""answer":"allocated""#));
}

#[test]
fn the_report_has_what_a_reviewer_needs() {
    let folder = tempfile::tempdir().unwrap();
    let (code, text) = run("a2a3", folder.path(), &["gate", "--hal", &drop_in(), "--json", "report.json"]);
    assert_eq!(code, Some(0), "{text}");
    for line in
        ["  HAL ", "  ACL ", "  chip      Ascend910_93", "  driver ", "  CANN ", "  kernel ", "  host page 4 KiB"]
    {
        assert!(text.contains(line), "{line}: {text}");
    }
    let report: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("report.json")).unwrap()).unwrap();
    let gate = &report["gate"];
    assert_eq!(gate["verdict"], "accepted");
    assert_eq!(gate["simulator"], true);
    assert_eq!(gate["machine"]["facts"]["features"], 0xe);
    assert_eq!(gate["given_back"]["left"], serde_json::json!([]));
    assert!(report.to_string().contains("\"seed\":1"), "{report}");
}

#[test]
fn the_profile_of_the_machine_is_learned_and_can_be_checked_on() {
    let folder = tempfile::tempdir().unwrap();
    let sweep = root().join("fixtures/sweeps/seed-register.csv").display().to_string();
    let arguments = ["gate", "--hal", &drop_in(), "--write-profile", "machine.toml", "--sweep", &sweep];
    let (code, text) = run("a2a3", folder.path(), &arguments);
    assert_eq!(code, Some(0), "{text}");
    // What the facts say of v2, found by bisection.
    assert!(text.contains("blocks of 18 MiB are cached, blocks of 20 MiB not"), "{text}");
    assert!(text.contains("blocks of 36 MiB are cached, blocks of 38 MiB not"), "{text}");
    let (code, text) = run("a2a3", folder.path(), &["check", "--profile", "machine.toml"]);
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn cases_replay_through_the_libraries() {
    let folder = tempfile::tempdir().unwrap();
    let laws = root().join("fixtures/cases/laws").display().to_string();
    let (code, text) = run("a2a3", folder.path(), &["replay", "--hal", &drop_in(), "--device", "0,1", &laws]);
    // Of a subject's calls the suite makes some fail itself, before they come to the library.
    assert!(!text.contains("not run:"), "{text}");
    // The laws' cases are of several profiles; those of this one pass.
    let wrong: Vec<&str> =
        text.lines().filter(|line| line.starts_with("FAIL") && line.contains("-a2a3.toml")).collect();
    assert!(wrong.is_empty() && code == Some(1), "{text}");
    assert!(last_line(&text).ends_with(" on the simulator's library"), "{text}");
    let (code, text) = run("a2a3", folder.path(), &["replay", "--hal", &drop_in(), &format!("{laws}/D14-a2a3.toml")]);
    assert_eq!((code, last_line(&text)), (Some(0), "1 passed, 0 failed on the simulator's library"), "{text}");
}

#[test]
fn a_sweep_that_takes_more_memory_than_it_may_says_so_first() {
    let (code, text) = run("a2a3", &root(), &["sweep", "--hal", &drop_in(), "--memory-limit", "64"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("4 buffers of 256 MiB are 1 GiB of device memory, and the limit is 64 MiB"), "{text}");
}

#[test]
fn the_drivers_log_is_looked_at_where_it_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log").display().to_string();
    let case = root().join("fixtures/cases/simpler-1531-log.toml").display().to_string();
    let wrong = fs::read_to_string(&case).unwrap().replace("support_bar_mem=0", "support_bar_mem=9");
    fs::write(folder.path().join("wrong.toml"), wrong).unwrap();
    let hal = drop_in();
    let replay = |file: &str, more: &[&str]| {
        let arguments = [&["replay", "--hal", &hal, file][..], more].concat();
        told(&command("a2a3-64k", folder.path()).args(arguments).env("HOSTVIEW_LOG", &log).output().unwrap())
    };
    let (code, text) = replay("wrong.toml", &[]);
    assert!(code == Some(0) && text.contains("but for the driver's log, which was not looked at"), "{text}");
    let (code, text) = replay("wrong.toml", &["--driver-log", &log]);
    assert!(code == Some(1) && text.contains("support_bar_mem=9"), "{text}");
    let (code, text) = replay(&case, &["--driver-log", &log]);
    assert!(code == Some(0) && !text.contains("not looked at"), "{text}");
}

#[rstest]
#[case("a2a3", "by this machine's clock", 1)]
#[case("a2a3-64k", "refused", 0)]
fn a_sweep_times_the_librarys_calls(#[case] profile: &str, #[case] says: &str, #[case] rows: usize) {
    let folder = tempfile::tempdir().unwrap();
    let hal = drop_in();
    let arguments = ["sweep", "--hal", &hal, "--sizes", "4096", "--policies", "normal_only", "--csv", "sweep.csv"];
    let quick = ["--iterations", "8", "--copies", "8"];
    let (code, text) = run(profile, folder.path(), &[&arguments[..], &quick].concat());
    assert!(code == Some(0) && text.contains(says), "{text}");
    assert!(text.contains("hostview sweep on the simulator's library "), "{text}");
    let table = fs::read_to_string(folder.path().join("sweep.csv")).unwrap();
    let found = table.lines().filter(|line| line.contains("4096") && line.contains("normal_only")).count();
    assert_eq!(found, rows, "{table}");
}

/// A stand-in with the drop-in runtime beside it, which reaches memory through the stand-in.
fn stand_in(folder: &Path, variant: &str) -> Option<PathBuf> {
    has_compiler("cc").then(|| {
        let hal = folder.join("libascend_hal.so");
        let name = "-Wl,-soname,libascend_hal.so";
        compile("cc", "tests/standins/hal.c", &hal, &["-shared", "-fPIC", name, &format!("-D{variant}")]);
        fs::copy(library_folder().join("libascendcl.so"), folder.join("libascendcl.so")).unwrap();
        hal
    })
}

#[rstest]
#[case("PLAIN", "ordinary pages yes, huge pages yes")]
#[case("SHIFTED", "views lie 0x100000000000 behind the device's addresses")]
#[case("REFUSES", "ordinary pages no, huge pages no")]
#[case("PRINTS", "ordinary pages yes")]
fn a_stand_in_that_keeps_the_laws_is_accepted(#[case] variant: &str, #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), variant) else { return };
    let hal = hal.display().to_string();
    let arguments = ["gate", "--hal", &hal, "--device", "0,1", "--compare", "64"];
    let (code, text) = run("a2a3", folder.path(), &arguments);
    // It does not say how much memory it has: the law about too much cannot be checked.
    assert_eq!((code, mark(&text, 24)), (Some(4), '?'), "{text}");
    let (code, text) = run("a2a3", folder.path(), &[&arguments[..], &["--allow-skip", "D24"]].concat());
    // No simulator: the word is plain.
    assert_eq!((code, last_line(&text)), (Some(0), "accepted, allowed to skip D24"), "{text}");
    assert!(text.contains(says), "{text}");
    // Two independent writings of the same tables answer alike.
    let beside = flat(&text);
    assert!(beside.contains("28 of the 28 D-laws that were checked come to the same"), "{text}");
    assert!(beside.contains("64 of 64 drawn sequences"), "{text}");
}

#[rstest]
#[case("LIES", &[1, 8, 9], "this device refuses what the simulator accepts")]
#[case("LOSES", &[5, 14], "rejected: ")]
#[case("KEEPS_LAST", &[4, 5], "rejected: ")]
#[case("CRASHES", &[1, 27], "halHostUnregister does not return: the process is killed by SIGSEGV")]
fn a_stand_in_that_breaks_a_law_is_rejected_and_shown(
    #[case] variant: &str,
    #[case] laws: &[usize],
    #[case] says: &str,
) {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), variant) else { return };
    let hal = hal.display().to_string();
    let (code, text) = run("a2a3", folder.path(), &["gate", "--hal", &hal, "--device", "0,1", "--cases", "32"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(last_line(&text).starts_with("rejected: D0"), "{text}");
    assert!(flat(&text).contains(says), "{text}");
    if variant == "LIES" {
        // Which rule the device speaks against, how that is known, and the way to read more.
        assert!(text.contains("    the simulator's rule: v2-R17, source (svm_master_remote_map.c)\n"), "{text}");
        assert!(text.contains("    hostview explain hostview-failures/machine-differs-"), "{text}");
    }
    for law in laws {
        assert_eq!(mark(&text, *law), 'X', "D{law:02}: {text}");
    }
    // The case that it wrote fails there in the same way, and holds on the simulator of the machine.
    let file = folder.path().join(format!("hostview-failures/machine-D{:02}.toml", laws[0])).display().to_string();
    let (code, text) = run("a2a3", folder.path(), &["replay", "--hal", &hal, "--device", "0,1", &file]);
    assert_eq!(code, Some(1), "{text}");
    let (code, text) = run("a2a3", folder.path(), &["replay", &file]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(serving(&folder.path().canonicalize().unwrap()), 0);
}

#[test]
fn a_stand_in_that_hangs_is_called_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), "HANGS") else { return };
    let (code, text) =
        run("a2a3", folder.path(), &["gate", "--hal", &hal.display().to_string(), "--call-limit", "0.5"]);
    assert_eq!(code, Some(1), "{text}");
    assert_eq!(last_line(&text), "rejected: D27 (halHostUnregister does not return within 0.5 s)");
    assert_eq!(serving(&folder.path().canonicalize().unwrap()), 0);
}

/// A subject from a library, in a folder.
fn subject(folder: &Path, source: &str, compiler: &str, defines: &str) -> Option<String> {
    has_compiler(compiler).then(|| {
        c::subject(folder, "subject", source, &[defines]);
        "./libsubject.so".to_owned()
    })
}

const CACHE: (&str, &str) = ("hash_map_cache.cpp", "g++");

/// The views are the library's own memory there, wherever it puts them, and the subject loads from it.
#[rstest]
#[case("PLAIN", 17)]
#[case("SHIFTED", 17)]
#[case("REFUSES", 11)]
#[case("PRINTS", 17)]
fn a_subject_from_a_library_is_judged_on_a_machine(#[case] variant: &str, #[case] held: usize) {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), variant) else { return };
    let Some(subject) = subject(folder.path(), CACHE.0, CACHE.1, "-DONE_THREAD") else { return };
    let hal = hal.display().to_string();
    let arguments = ["gate", "--hal", &hal, "--device", "0,1", "--subject", &subject, "--allow-skip", "D24"];
    let (code, text) = run("a2a3", folder.path(), &arguments);
    assert_eq!((code, last_line(&text)), (Some(0), "accepted, allowed to skip D24"), "{text}");
    let row = text.lines().find(|line| line.starts_with(" machine  hash_map_cache")).unwrap();
    assert_eq!(row.split_whitespace().nth(3), Some(held.to_string().as_str()), "{row}");
    assert!(text.contains("nothing is left"), "{text}");
    assert_eq!(serving(&folder.path().canonicalize().unwrap()), 0);
}

/// Nothing of the simulator is in the process of a subject on a machine: a runtime that opens the driver by its name meets that
/// driver.
#[test]
fn a_subject_on_a_machine_meets_the_machines_driver_through_a_runtime_that_opens_it_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), "PLAIN") else { return };
    let Some(subject) = subject(folder.path(), CACHE.0, CACHE.1, "-DONE_THREAD") else { return };
    // Where that name is found, its run path says.
    let acl = folder.path().join("libascendcl.so");
    fs::remove_file(&acl).unwrap();
    compile("cc", "tests/standins/acl.c", &acl, &["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", "-ldl"]);
    let hal = hal.display().to_string();
    let skip = ["D15", "D16", "D17", "D18", "D24"].map(|law| ["--allow-skip", law]).concat();
    let arguments = [&["gate", "--hal", &hal, "--subject", &subject], &skip[..]].concat();
    let (code, text) = run("a2a3", folder.path(), &arguments);
    assert_eq!((code, last_line(&text)), (Some(0), "accepted, allowed to skip D15, D16, D17, D18, D24"), "{text}");
    let row = text.lines().find(|line| line.starts_with(" machine  hash_map_cache")).unwrap();
    assert_eq!(row.split_whitespace().nth(3), Some("16"), "{row}");
}

#[rstest]
#[case(CACHE, "-DFORGETS_TO_UNREGISTER", &["V01", "V02", "V05", "V11"])]
#[case(CACHE, "-DIGNORES_THE_REFUSAL", &["V02", "V11"])]
#[case(("misbehaves.c", "cc"), "-DABORTS", &["V17"])]
#[case(("misbehaves.c", "cc"), "-DPRINTS", &["V17"])]
fn a_faulty_subject_from_a_library_is_rejected_on_a_machine_and_leaves_nothing(
    #[case] (source, compiler): (&str, &str),
    #[case] fault: &str,
    #[case] laws: &[&str],
) {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), "PLAIN") else { return };
    let Some(subject) = subject(folder.path(), source, compiler, fault) else { return };
    let hal = hal.display().to_string();
    let (code, text) = run("a2a3", folder.path(), &["gate", "--hal", &hal, "--subject", &subject, "--cases", "32"]);
    assert_eq!(code, Some(1), "{text}");
    let last = flat(last_line(&text));
    for law in laws {
        assert!(last.starts_with("rejected: ") && last.contains(law), "{law}: {text}");
    }
    assert!(text.contains("nothing is left"), "{text}");
    assert!(text.contains(" --subject ./libsubject.so --cases 32"), "{text}");
    let case = fs::read_dir(folder.path().join("hostview-failures")).unwrap().flatten();
    let case = case.map(|file| file.path()).find(|file| file.display().to_string().contains(laws[0])).unwrap();
    // Also where the suite makes a call fail.
    let (code, text) = run("a2a3", folder.path(), &["replay", "--hal", &hal, &case.display().to_string()]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains(&format!("{} to hold", laws[0])), "{text}");
    assert_eq!(serving(&folder.path().canonicalize().unwrap()), 0);
}

/// Whose call it was that did not come back: the subject's, or the driver's for it.
#[rstest]
#[case("HANGS", "does not return within 2 s, in a call of the driver")]
#[case("CRASHES", "ends the process with SIGSEGV, in a call of the driver at 0x0")]
fn a_driver_that_fails_a_subject_is_told_from_it(#[case] variant: &str, #[case] says: &str) {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), variant) else { return };
    let Some(subject) = subject(folder.path(), CACHE.0, CACHE.1, "-DONE_THREAD") else { return };
    let hal = hal.display().to_string();
    let case = format!(
        "profile = \"a2a3\"\nthrough = \"cache\"\nsubject = \"{subject}\"\n[[step]]\nop = \"alloc\"\nname = \"a\"\nbytes = 4096\n\
         [[step]]\nop = \"acquire\"\ntarget = \"a\"\n[[step]]\nop = \"free\"\ntarget = \"a\"\n"
    );
    fs::write(folder.path().join("one.toml"), &case).unwrap();
    fs::write(folder.path().join("two.toml"), &case).unwrap();
    let (code, text) = run("a2a3", folder.path(), &["replay", "--hal", &hal, "--via", "hal", "one.toml", "two.toml"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(flat(&text).contains(says), "{text}");
    // A driver that hangs is not called again.
    assert_eq!(text.contains("such a driver is not called again"), variant == "HANGS", "{text}");
    assert_eq!(serving(&folder.path().canonicalize().unwrap()), 0);
}

#[test]
fn a_subject_that_opens_the_driver_itself_is_sent_to_the_simulator() {
    let folder = tempfile::tempdir().unwrap();
    let Some(subject) = subject(folder.path(), CACHE.0, CACHE.1, "-DOWN_DRIVER") else { return };
    let (code, text) = run("a2a3", folder.path(), &["gate", "--hal", &drop_in(), "--subject", &subject]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("judged by the journal of the simulator's alone: hostview check --subject ./lib"), "{text}");
}

#[test]
fn a_symbol_that_is_missing_costs_the_laws_that_call_it_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), "NO_UNREGISTER_EX") else { return };
    let hal = hal.display().to_string();
    let arguments = ["gate", "--hal", &hal, "--allow-skip", "D24"];
    let (code, text) = run("a2a3", folder.path(), &arguments);
    assert_eq!(code, Some(4), "{text}");
    let lacks = "halHostUnregisterEx of libascend_hal.so: no registration can be ended by its map type";
    assert!(flat(&text).contains(lacks), "{text}");
    // D27's sequence makes the call too.
    assert!(flat(&text).contains("not proven: D26, D27 could not be checked"), "{text}");
    let allowed = ["--allow-skip", "D26", "--allow-skip", "D27"];
    let (code, text) = run("a2a3", folder.path(), &[&arguments[..], &allowed].concat());
    assert_eq!((code, last_line(&text)), (Some(0), "accepted, allowed to skip D24, D26, D27"), "{text}");
}

#[test]
fn a_symbol_that_views_need_costs_their_laws_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), "NO_COPY") else { return };
    let (code, text) = run("a2a3", folder.path(), &["gate", "--hal", &hal.display().to_string(), "--via", "hal"]);
    assert_eq!(code, Some(4), "{text}");
    let why = "libascend_hal.so has no drvMemcpy: nothing can be copied to or from the device (machine/cache)";
    assert!(flat(&text).contains(&format!("V04, V07 not checked: {why}")), "{text}");
    // What needs no copy is checked all the same.
    assert_eq!((mark(&text, 11), mark(&text, 1), mark(&text, 12)), ('?', '.', '.'), "{text}");
}

/// Where a program's memory lay is of the machine that it ran on: on another one its calls are made again, wherever memory lies.
#[test]
fn a_journal_is_replayed_on_a_machine_wherever_memory_lies_there() {
    let folder = tempfile::tempdir().unwrap();
    let Some(hal) = stand_in(folder.path(), "PLAIN") else { return };
    let journal = [
        r#"{"profile":"a2a3"}"#,
        r#"{"call":"alloc","device":0,"bytes":5000,"kind":"ordinary","answer":"allocated","gave":"0x12c012345000","injected":false,"cost_us":0.0}"#,
        r#"{"call":"register","address":"0x12c012345000","bytes":5000,"flags":2,"device":0,"answer":"registered","gave":"0x12c012345000","injected":false,"cost_us":1.0}"#,
        r#"{"call":"unregister","address":"0x12c012346000","device":0,"answer":"failed","gave":"DRV_ERROR_PARA_ERROR","injected":false,"cost_us":0.0}"#,
        r#"{"call":"unregister","address":"0x12c012345000","device":0,"answer":"done","injected":false,"cost_us":1.0}"#,
        r#"{"call":"free","address":"0x12c012345000","answer":"done","injected":false,"cost_us":0.0}"#,
    ];
    fs::write(folder.path().join("run.jsonl"), journal.join("\n")).unwrap();
    let (code, text) = run("a2a3", folder.path(), &["replay", "run.jsonl"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("expected: 0x12c012345000"), "{text}");
    let hal = hal.display().to_string();
    let (code, text) = run("a2a3", folder.path(), &["replay", "--hal", &hal, "--device", "0", "run.jsonl"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("1 passed, 0 failed"), "{text}");
}
