//! Libraries as subjects: the worked examples, and what no subject may do.

#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;

use hostview_tests::c::{SUBJECT_HEADERS, compile, has_compiler, subject};
use hostview_tests::{hostview_in, root};
use rstest::rstest;

fn cpp(folder: &Path, name: &str, macros: &[&str]) {
    subject(folder, name, "hash_map_cache.cpp", macros);
}

/// The example in C, with its budget.
fn c(folder: &Path, name: &str, macros: &[&str]) {
    subject(folder, name, "budget_cache.c", macros);
}

/// What does what no subject may.
fn bad(folder: &Path, name: &str, macros: &[&str]) {
    subject(folder, name, "misbehaves.c", macros);
}

/// Processes that have a subject from this folder.
fn serving(folder: &Path) -> usize {
    let ours = |id: &str| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        line.contains("serve-subject") && line.contains(&folder.display().to_string())
    };
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.filter(|entry| ours(&entry.file_name().to_string_lossy())).count()
}

#[test]
fn the_cpp_example_keeps_every_law_on_every_profile() {
    if !has_compiler("g++") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    cpp(folder.path(), "sound", &[]);
    let run = hostview_in(folder.path(), &["check", "--subject", "./libsound.so", "--cases", "64"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    assert!(run.out.starts_with("Subject hash_map_cache 1.0, ./libsound.so\n"), "{}", run.out);
    assert_eq!(serving(folder.path()), 0);
}

/// The other example says all that a subject may say of itself, so that no V-law is left out.
#[test]
fn the_c_example_keeps_every_law_with_two_threads_and_a_budget() {
    if !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    c(folder.path(), "sound", &[]);
    let run = hostview_in(folder.path(), &["check", "--subject", "./libsound.so", "--cases", "64"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
    assert!(run.out.starts_with("Subject budget_cache 1.0, ./libsound.so\n"), "{}", run.out);
    let row = run.out.lines().find(|line| line.starts_with(" a2a3 ") && line.contains("budget_cache"));
    assert!(row.is_some_and(|row| row.contains(" ...................  ")), "{}", run.out);
    assert_eq!(serving(folder.path()), 0);
}

#[rstest]
#[case("EVICTS_WHAT_IS_IN_USE", &["V16", "V18"])]
#[case("BUDGET_OFF_BY_ONE", &["V16"])]
#[case("KEEPS_THE_VIEW", &["V04", "V17"])]
fn a_fault_of_the_c_example_is_caught_and_fails_again(#[case] fault: &str, #[case] laws: &[&str]) {
    if !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    c(folder.path(), "faulty", &[&format!("-D{fault}")]);
    let arguments = ["check", "--subject", "./libfaulty.so", "--profile", "a2a3", "--json", "report.json"];
    let run = hostview_in(folder.path(), &arguments);
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    let failures = failures(&folder.path().join("report.json"));
    let broken: Vec<&str> = failures.iter().map(|(_, law, _)| &**law).collect();
    for law in laws {
        assert!(broken.contains(law), "{law}: {broken:?}");
        let case = format!("hostview-failures/budget_cache-a2a3-{law}.toml");
        let replay = hostview_in(folder.path(), &["replay", &case]);
        assert_eq!(replay.code, Some(1), "{}{}", replay.out, replay.err);
        assert!(replay.out.contains(" to hold\n"), "{}", replay.out);
    }
    assert_eq!(serving(folder.path()), 0);
}

#[test]
fn without_its_unregister_line_it_is_caught_by_a_short_case_that_fails_again() {
    if !has_compiler("g++") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    cpp(folder.path(), "forgetful", &["-DFORGETS_TO_UNREGISTER"]);
    let arguments =
        ["check", "--subject", "./libforgetful.so", "--profile", "a2a3", "--law", "V01", "--json", "report.json"];
    let run = hostview_in(folder.path(), &arguments);
    assert_eq!(run.code, Some(1), "{}", run.err);
    let report = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let failure = &report["failures"][0];
    assert_eq!(failure["law"], "V01");
    assert!(failure["case"]["step"].as_array().unwrap().len() <= 4);
    assert!(failure["aftermath"].as_str().unwrap().contains("now reads `b`'s bytes"), "{failure}");
    let replay = hostview_in(folder.path(), &["replay", "hostview-failures/hash_map_cache-a2a3-V01.toml"]);
    assert_eq!(replay.code, Some(1), "{}{}", replay.out, replay.err);
    assert!(replay.out.contains("V01 to hold"), "{}", replay.out);
}

/// What a failure in a JSON report is, as far as it can be the same for two builds of one cache.
fn failures(report: &Path) -> Vec<(String, String, serde_json::Value)> {
    let report: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let failures = report["failures"].as_array().unwrap().iter();
    let mut failures: Vec<_> = failures
        .map(|failure| (text(&failure["profile"]), text(&failure["law"]), failure["case"]["step"].clone()))
        .collect();
    failures.sort_by(|one, other| (&one.0, &one.1).cmp(&(&other.0, &other.1)));
    failures
}

/// A cache that opens the driver itself is judged by the journal as it is judged by the table: the same laws break, by the same
/// steps.
#[rstest]
#[case(&[], &[])]
#[case(&["-DFORGETS_TO_UNREGISTER"], &["V01", "V02", "V05", "V09", "V11"])]
#[case(&["-DIGNORES_THE_REFUSAL"], &["V02", "V09", "V11"])]
#[case(&["-DASKS_FOR_THE_RANGE"], &["V05", "V11"])]
fn a_cache_that_opens_the_driver_itself_is_judged_as_by_the_table(#[case] faults: &[&str], #[case] laws: &[&str]) {
    if !has_compiler("g++") {
        return;
    }
    let judged = |how: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        cpp(folder.path(), "cache", &[faults, how].concat());
        let profiles = ["--profile", "a2a3", "--profile", "a2a3-vm", "--profile", "a5-v3"];
        let arguments = [&["check", "--subject", "./libcache.so", "--json", "report.json"], &profiles[..]].concat();
        let run = hostview_in(folder.path(), &arguments);
        assert_eq!(run.code, Some(i32::from(!faults.is_empty())), "{}{}", run.out, run.err);
        assert_eq!(
            run.out.contains("which opens the driver itself and meets /"),
            how[0] == "-DOWN_DRIVER",
            "{}",
            run.out
        );
        let failures = failures(&folder.path().join("report.json"));
        if let Some((profile, law, _)) = failures.first() {
            let case = format!("hostview-failures/hash_map_cache-{profile}-{law}.toml");
            let replay = hostview_in(folder.path(), &["replay", &case]);
            assert_eq!(replay.code, Some(1), "{}{}", replay.out, replay.err);
            assert!(replay.out.contains(" to hold\n"), "{}", replay.out);
        }
        assert_eq!(serving(folder.path()), 0);
        failures
    };
    let (by_the_table, by_the_journal) = (judged(&["-DONE_THREAD"]), judged(&["-DOWN_DRIVER", "-ldl"]));
    assert_eq!(by_the_journal, by_the_table);
    let broken: std::collections::BTreeSet<&str> = by_the_table.iter().map(|(_, law, _)| &**law).collect();
    for law in laws {
        assert!(broken.contains(law), "{law}: {broken:?}");
    }
}

/// The page for strangers does what it says: each command of it, in its order.
#[test]
fn the_page_leads_from_the_header_to_a_green_run() {
    if !has_compiler("g++") {
        return;
    }
    let page = std::fs::read_to_string(root().join("conformance/sdk/README.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(root().join("fixtures"), folder.path().join("fixtures")).unwrap();
    let libraries = hostview_tests::c::library_folder();
    let path = format!("{}:{}", hostview_tests::binary().parent().unwrap().display(), std::env::var("PATH").unwrap());
    let (mut printed, mut ran) = (String::new(), 0);
    for line in page.split("```sh\n").skip(1).flat_map(|block| block.split("```").next().unwrap().lines()) {
        // What the tests have built already.
        if line.starts_with("cargo ") || line.starts_with("export ") {
            continue;
        }
        let line = line.replace("hostview sdk sdk", &format!("hostview sdk sdk --libraries {}", libraries.display()));
        let output =
            Command::new("sh").args(["-c", &line]).current_dir(folder.path()).env("PATH", &path).output().unwrap();
        let broken = line.contains("check --subject ./libforgetful.so");
        assert_eq!(output.status.code(), Some(i32::from(broken)), "{line}: {output:?}");
        printed += &String::from_utf8_lossy(&output.stdout);
        ran += 1;
    }
    assert_eq!(ran, 7);
    let shown = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    assert!(printed.contains(shown), "{printed}");
}

/// The reference cache through its C face stands as it does within: the same on every profile, and two threads besides, since it
/// has a lock there.
#[test]
fn the_reference_cache_stands_through_its_c_face_as_it_does_within() {
    let folder = tempfile::tempdir().unwrap();
    let library = hostview_tests::c::library_folder().join("libhostview_cache_c.so");
    let judged = |subject: &str| {
        let arguments = ["check", "--subject", subject, "--cases", "64", "--json", "report.json"];
        let run = hostview_in(folder.path(), &arguments);
        assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
        let report = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let mut standing = std::collections::BTreeMap::new();
        for row in report["rows"].as_array().unwrap().iter().filter(|row| !row["subject"].is_null()) {
            for law in row["laws"].as_array().unwrap() {
                standing.insert((row["profile"].to_string(), law["id"].to_string()), law["result"].to_string());
            }
        }
        standing
    };
    let (mut within, through) = (judged("cache"), judged(library.to_str().unwrap()));
    assert!(within.len() >= 7 * 19, "{within:?}");
    for ((_, law), result) in &mut within {
        if law == "\"V15\"" {
            assert_eq!(result, "\"not_applicable\"");
            "\"passed\"".clone_into(result);
        }
    }
    assert_eq!(through, within);
}

/// A C++ program has it do its mapping, on a device that maps ordinary pages and on one that does not.
#[rstest]
#[case("a2a3", "1 mapped, 1280 bytes", "a view\nthrough the view tail")]
#[case("a2a3-64k", "0 mapped, 0 bytes", "device copies")]
fn a_cpp_program_maps_by_the_reference_cache(#[case] profile: &str, #[case] held: &str, #[case] acquired: &str) {
    if !has_compiler("g++") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let libraries = hostview_tests::c::library_folder();
    let program = folder.path().join("cache_client");
    let [headers, driver] =
        [SUBJECT_HEADERS, "fixtures/subjects"].map(|include| format!("-I{}", root().join(include).display()));
    let search = format!("-L{}", libraries.display());
    let arguments = ["-std=c++17", &headers, &driver, &search, "-lhostview_cache_c", "-ldl"];
    compile("g++", "fixtures/harness/cache_client.cpp", &program, &arguments);
    let run = Command::new(program)
        .env("LD_LIBRARY_PATH", libraries)
        .env("HOSTVIEW_PROFILE", profile)
        .env_remove("HOSTVIEW_FAULTS")
        .output()
        .unwrap();
    assert!(run.status.success(), "{run:?}");
    let said = format!(
        "hostview-cache, features 0xd\nmade of no table, another version, half a table: 0 0 0\nalloc 0\n\
         allocated: 0 mapped, 0 bytes\nwrite 0\nwritten: {held}\ndevice copy 0, reads tail\nacquire 0, {acquired}\n\
         read past the end -1, of nothing -1, without end -1\nfree 0, again -1\nfreed: 0 mapped, 0 bytes\n\
         finalize 0, alloc -1\n"
    );
    assert_eq!(String::from_utf8_lossy(&run.stdout), said);
}

/// Threads are stopped at the calls of the table, and a library's own lock is seen by who waits for it.
#[test]
fn a_cache_that_locks_too_little_is_caught_by_two_threads_and_one_that_locks_is_not() {
    if !has_compiler("g++") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    cpp(folder.path(), "sound", &[]);
    let arguments = ["--law", "V15", "--json", "report.json"];
    let check =
        |subject: &str| hostview_in(folder.path(), &[&["check", "--subject", subject], &arguments[..]].concat());
    let sound = check("./libsound.so");
    assert_eq!(sound.code, Some(0), "{}", sound.out);
    assert!(!sound.out.contains("V15 not applicable"), "{}", sound.out);
    cpp(folder.path(), "racy", &["-DLOCKS_TOO_LITTLE"]);
    let racy = check("./libracy.so");
    assert_eq!(racy.code, Some(1), "{}", racy.err);
    let failures = failures(&folder.path().join("report.json"));
    let (_, law, steps) = failures.iter().find(|(profile, ..)| profile == "a2a3").unwrap();
    assert_eq!(law, "V15");
    assert!(steps.as_array().unwrap().len() <= 3, "{steps}");
    assert_eq!(serving(folder.path()), 0);
    for (subject, code) in [("racy", 1), ("sound", 0)] {
        let file = folder.path().join("hostview-failures/hash_map_cache-a2a3-V15.toml");
        let case = std::fs::read_to_string(&file).unwrap();
        std::fs::write(folder.path().join("case.toml"), case.replace("libracy", &format!("lib{subject}"))).unwrap();
        let replay = hostview_in(folder.path(), &["replay", "case.toml"]);
        assert_eq!(replay.code, Some(code), "{subject}: {}{}", replay.out, replay.err);
    }
}

/// What is linked with the driver meets the drop-in as well, wherever a driver of the machine's own may be.
#[test]
fn a_cache_that_is_linked_with_the_driver_meets_the_drop_in() {
    if !has_compiler("g++") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("driver");
    std::fs::create_dir(&place).unwrap();
    // Another library of that name: what is found on the library path is not what is met.
    compile(
        "cc",
        "fixtures/subjects/misbehaves.c",
        &place.join("libascend_hal.so"),
        &["-shared", "-fPIC", "-Wl,-soname,libascend_hal.so", &format!("-I{}", root().join(SUBJECT_HEADERS).display())],
    );
    let search = format!("-L{}", place.display());
    let runpath = format!("-Wl,-rpath,{}", place.display());
    cpp(folder.path(), "linked", &["-DOWN_DRIVER", "-Wl,--no-as-needed", &search, &runpath, "-lascend_hal", "-ldl"]);
    let run = hostview_in(folder.path(), &["check", "--subject", "./liblinked.so", "--profile", "a2a3"]);
    assert_eq!(run.code, Some(0), "{}{}", run.out, run.err);
}

#[test]
fn without_its_drop_in_such_a_cache_is_not_run() {
    if !has_compiler("g++") || !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    cpp(folder.path(), "own", &["-DOWN_DRIVER", "-ldl"]);
    bad(folder.path(), "elsewhere", &["-DANOTHER_DRIVER"]);
    let alone = folder.path().join("hostview");
    std::fs::copy(hostview_tests::binary(), &alone).unwrap();
    let arguments = ["check", "--subject", "./libown.so"];
    let output = Command::new(alone).args(arguments).current_dir(folder.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{said}");
    assert!(
        said.contains("opens libascend_hal.so itself; the drop-in for it is not beside this program: build"),
        "{said}"
    );
    for (subject, drop_in, said) in [
        ("./libown.so", "./absent.so", "--drop-in ./absent.so: No such file"),
        ("./libown.so", "./libelsewhere.so", "libelsewhere.so: has no hostviewRenew; give the drop-in"),
        ("./libown.so", "./libown.so", "libown.so: has no hostviewRenew"),
    ] {
        let run = hostview_in(folder.path(), &["check", "--subject", subject, "--drop-in", drop_in]);
        assert_eq!((run.code, run.out.as_str()), (Some(3), ""), "{}", run.err);
        assert!(run.err.contains(said) && run.err.trim_end().lines().count() == 1, "{}", run.err);
    }
    let run = hostview_in(folder.path(), &["check", "--subject", "./libelsewhere.so"]);
    assert_eq!((run.code, run.out.as_str()), (Some(3), ""), "{}", run.err);
    assert!(run.err.contains("its hv_subject_alloc calls another one than /"), "{}", run.err);
}

/// What a case expects of its steps is looked at in a library's process as it is here.
#[test]
fn a_case_of_a_library_is_replayed_step_by_step() {
    if !has_compiler("g++") || !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    cpp(folder.path(), "sound", &[]);
    bad(folder.path(), "aborts", &["-DABORTS"]);
    let steps = |subject: &str, head: &str, read: &str| {
        format!(
            "profile = \"a2a3\"\nthrough = \"cache\"\nsubject = \"./lib{subject}.so\"\n{head}\n\
             [[step]]\nop = \"alloc\"\nname = \"a\"\nbytes = 4096\n\
             [[step]]\nop = \"write\"\ntarget = \"a\"\nbytes = 2\nfill = 0x5a\n\
             [[step]]\nop = \"read\"\ntarget = \"a\"\nbytes = 2\nexpect = {{ bytes = \"{read}\", held = {{ count = {count}, \
             bytes = {bytes} }} }}\n[[step]]\nop = \"acquire\"\ntarget = \"a\"\nexpect = {{ any = true }}\n",
            count = u8::from(subject == "sound"),
            bytes = if subject == "sound" { 4096 } else { 0 },
        )
    };
    for (case, code, said) in [
        (steps("sound", "", "5a5a"), 0, "1 passed"),
        (steps("sound", "", "5b5b"), 1, "expected: bytes 5b5b"),
        (steps("aborts", "", "5a5a"), 1, "ends the process with SIGABRT"),
        (steps("aborts", "expect_law_broken = [\"V17\"]", "5a5a"), 0, "1 passed"),
    ] {
        std::fs::write(folder.path().join("case.toml"), case).unwrap();
        let run = hostview_in(folder.path(), &["replay", "case.toml"]);
        assert_eq!(run.code, Some(code), "{}{}", run.out, run.err);
        assert!(run.out.contains(said), "{}", run.out);
    }
}

/// A law that is asked for alone is not said to hold by sequences that the subject did not live through.
#[test]
fn whichever_law_is_asked_for_a_crash_is_told() {
    if !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    bad(folder.path(), "aborts", &["-DABORTS"]);
    let run =
        hostview_in(folder.path(), &["check", "--subject", "./libaborts.so", "--profile", "a2a3", "--law", "V01"]);
    assert_eq!(run.code, Some(1), "{}", run.out);
    assert!(run.out.contains("V17 is broken by `aborts`"), "{}", run.out);
    assert!(run.out.contains("V01 not checked: the subject does not come back"), "{}", run.out);
}

/// Descriptors that a subject leaves open fill no process: another one takes over before they are missed.
#[test]
fn what_a_subject_leaves_open_is_no_verdict_on_a_later_sequence() {
    if !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    bad(folder.path(), "leaks", &["-DLEAKS"]);
    let arguments = ["check", "--subject", "./libleaks.so", "--profile", "a2a3", "--law", "V04", "--cases", "512"];
    let run = hostview_in(folder.path(), &arguments);
    assert_eq!(run.code, Some(0), "{}", run.out);
    assert_eq!(serving(folder.path()), 0);
}

#[rstest]
#[case("ABORTS", "ends the process with SIGABRT, in hv_subject_acquire+0x")]
#[case("NULL_POINTER", "ends the process with SIGSEGV at 0x0, in hv_subject_acquire+0x")]
#[case("SPINS", "does not return within 0.4 s")]
#[case("EXITS", "ends the process with exit 3")]
#[case("ALLOCATES", "out of memory: it may take 64 MiB")]
#[case("CLOSES", "acquire")]
#[case("PRINTS", "writes to standard output: \"a view of my own\\n\"")]
#[case("CALLS_ON", "calls the platform on and on")]
fn what_no_subject_may_do_is_a_verdict_and_leaves_nothing_behind(#[case] what: &str, #[case] said: &str) {
    if !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let macros = format!("-D{what}");
    bad(folder.path(), "bad", &[&macros]);
    let limits = ["--call-limit", "0.4", "--memory-limit", "64", "--cases", "32", "--json", "report.json"];
    let arguments = ["check", "--subject", "./libbad.so", "--profile", "a2a3", "--law", "V17"];
    let arguments: Vec<&str> = arguments.into_iter().chain(limits).collect();
    let run = hostview_in(folder.path(), &arguments);
    assert_eq!(run.code, Some(1), "{}{}", run.out, run.err);
    let report = std::fs::read_to_string(folder.path().join("report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let failure = &report["failures"][0];
    assert_eq!(failure["law"], "V17");
    assert!(failure["what"].as_str().unwrap().contains(said), "{failure}");
    assert_eq!(failure["case"]["step"].as_array().unwrap().len(), 2, "{failure}");
    assert!(run.out.contains("V17 is broken by `bad` on a2a3"), "{}", run.out);
    assert!(!run.out.contains("a view of my own\n\n"), "{}", run.out);
    assert_eq!(serving(folder.path()), 0);
}

#[test]
fn a_suite_that_is_killed_leaves_no_process_and_no_file_behind() {
    if !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    bad(folder.path(), "spins", &["-DSPINS"]);
    let temporary = folder.path().join("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let mut suite = Command::new(hostview_tests::binary())
        .args(["check", "--subject", "./libspins.so", "--profile", "a2a3", "--law", "V17", "--call-limit", "600"])
        .current_dir(folder.path())
        .env("TMPDIR", &temporary)
        .spawn()
        .unwrap();
    let files = || std::fs::read_dir(&temporary).unwrap().count();
    let begun = std::time::Instant::now();
    while serving(folder.path()) == 0 || files() > 0 {
        assert_eq!(suite.try_wait().unwrap(), None, "it hangs, so that the suite waits");
        assert!(begun.elapsed().as_secs() < 60, "{} files stay while the subject is open", files());
    }
    suite.kill().unwrap();
    suite.wait().unwrap();
    while serving(folder.path()) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn what_is_no_subject_is_said_in_one_message() {
    if !has_compiler("g++") || !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    bad(folder.path(), "old", &["-DOLD_VERSION"]);
    bad(folder.path(), "half", &["-DNO_FINALIZE"]);
    cpp(folder.path(), "sound", &[]);
    let sound = std::fs::read(folder.path().join("libsound.so")).unwrap();
    std::fs::write(folder.path().join("cut.so"), &sound[..3000]).unwrap();
    std::fs::write(folder.path().join("text.so"), "no library").unwrap();
    std::fs::create_dir(folder.path().join("folder.so")).unwrap();
    for (subject, said) in [
        ("./libold.so", "version 0 of hostview_subject.h"),
        ("./libhalf.so", "it has no hv_subject_finalize"),
        ("./cut.so", "cut.so"),
        ("./text.so", "cannot be loaded"),
        ("./folder.so", "is a folder"),
        ("./absent.so", "No such file"),
    ] {
        let run = hostview_in(folder.path(), &["check", "--subject", subject]);
        assert_eq!((run.code, run.out.as_str()), (Some(3), ""), "{subject}");
        assert!(run.err.contains(said) && run.err.trim_end().lines().count() == 1, "{subject}: {}", run.err);
    }
    std::fs::write(
        folder.path().join("case.toml"),
        "profile = \"a2a3\"\nthrough = \"cache\"\nsubject = \"./absent.so\"\n[[step]]\nop = \"finalize\"\n",
    )
    .unwrap();
    let run = hostview_in(folder.path(), &["replay", "case.toml"]);
    assert_eq!((run.code, run.out.as_str()), (Some(3), ""));
    assert!(run.err.starts_with("hostview: case.toml: ./absent.so: No such file"), "{}", run.err);
    assert_eq!(serving(folder.path()), 0);
}

/// The header and the Rust side have one layout: a C program says where each member is.
#[test]
fn the_header_and_this_side_have_one_layout() {
    if !has_compiler("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let places: String = hostview::subject::layout()
        .iter()
        .map(|(place, _)| match place.split_once('.') {
            None => format!("    printf(\"{place} %zu\\n\", sizeof({place}));\n"),
            Some((whole, member)) => {
                format!("    printf(\"{place} %zu\\n\", offsetof({whole}, {member}));\n")
            }
        })
        .collect();
    let source = folder.path().join("layout.c");
    let program = "#include <stddef.h>\n#include <stdio.h>\n#include \"hostview_subject.h\"\nint main(void) {\n";
    std::fs::write(&source, format!("{program}{places}}}\n")).unwrap();
    let built = folder.path().join("layout");
    let headers = format!("-I{}", root().join(SUBJECT_HEADERS).display());
    compile("cc", &source.display().to_string(), &built, &[&headers]);
    let said = String::from_utf8(Command::new(built).output().unwrap().stdout).unwrap();
    let ours: String = hostview::subject::layout().iter().map(|(place, at)| format!("{place} {at}\n")).collect();
    assert_eq!(said, ours);
}

#[test]
fn the_header_compiles_alone_in_c_and_in_cpp() {
    for (compiler, standard) in [("cc", "-std=c11"), ("g++", "-std=c++17")] {
        if !has_compiler(compiler) {
            continue;
        }
        let header = root().join("conformance/sdk/include/hostview_subject.h");
        let language = if compiler == "cc" { "c" } else { "c++" };
        let done = Command::new(compiler)
            .args([standard, "-pedantic", "-Wall", "-Werror", "-fsyntax-only", "-x", language])
            .arg(header)
            .status()
            .unwrap();
        assert!(done.success());
    }
}
