//! `hostview sdk`: an SDK root that C and C++ programs build against, and programs after real clients that run on it.

#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use hostview_tests::c::{compile, has_compiler, library_folder};
use hostview_tests::{Run, hostview, hostview_in, root};
use rstest::rstest;

/// One root for all tests that only read it.
fn sdk() -> &'static Path {
    static ROOT: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = ROOT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let laid = lay_out(folder.path());
        assert_eq!(laid.code, Some(0), "{}", laid.err);
        folder
    });
    folder.path()
}

fn lay_out(folder: &Path) -> Run {
    let libraries = library_folder().display().to_string();
    hostview(&["sdk", &folder.display().to_string(), "--libraries", &libraries])
}

/// A line of any shell, not of bash alone, in a folder, with the root's environment: what it prints.
fn shell(folder: &Path, line: &str, environment: &[(&str, &str)]) -> String {
    let setenv = sdk().join("setenv.sh").display().to_string();
    let output = Command::new("sh")
        .args(["-euc", &format!(". {setenv}\n{line}")])
        .current_dir(folder)
        .env_remove("LD_LIBRARY_PATH")
        .env_remove("HOSTVIEW_PROFILE")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_measurements_own_two_lines_work_verbatim() {
    if !has_compiler("g++") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let harness = "bench_host_register.cpp";
    fs::copy(root().join("fixtures/harness").join(harness), folder.path().join(harness)).unwrap();
    let build = "g++ -std=c++17 -O2 bench_host_register.cpp -o bench_host_register \\\n    -I$ASCEND/include \
                 -L$ASCEND/lib64 -lascendcl -ldl";
    shell(folder.path(), build, &[]);
    let text = shell(folder.path(), "./bench_host_register", &[("HOSTVIEW_PACE", "1")]);
    assert!(text.starts_with("device=0 iters=300 buffers=4\n"), "{text}");
    let rows: Vec<Vec<f64>> = text
        .lines()
        .map(|line| line.split_whitespace().map_while(|word| word.parse().ok()).collect::<Vec<f64>>())
        .filter(|row| row.len() == 6)
        .collect();
    let sizes: Vec<f64> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(sizes, [64.0, 4096.0, 65_536.0, 262_144.0, 4_194_304.0, 16_777_216.0, 268_435_456.0], "{text}");
    // The shape, by what each row takes least: huge pages make 4 MiB cheaper to register than 256 KiB, and unregistering
    // walks host pages all the same.
    let (register, unregister) = (|row: usize| rows[row][1], |row: usize| rows[row][3]);
    assert!(register(4) < register(3) && register(2) < register(3), "{text}");
    assert!((2..7).all(|row| unregister(row - 1) < unregister(row)), "{text}");
    assert!(unregister(6) > 10.0 * register(6) && register(1) < 2.0 * register(0), "{text}");
    assert_eq!(text.lines().filter(|line| line.split_whitespace().count() == 3).count(), 5, "{text}");
}

const MAPPED: &str = "\
slot 0: the host sets 1, the device has 1
slot 5: the host sets 6, the device has 6
slot 10: the host sets 11, the device has 11
unmapped: 0
freed: 0
";

#[rstest]
#[case("a2a3", MAPPED)]
#[case("a2a3-64k", "not mapped (65534): continues without\nfreed: 0\n")]
#[case("a5", "not mapped (65534): continues without\nfreed: 0\n")]
#[case("shifted", MAPPED)]
fn the_smallest_client_maps_or_goes_on_without(#[case] profile: &str, #[case] prints: &str) {
    if let Some(program) = client("flag_pool", &["-lascendcl", "-ldl"]) {
        let text = shell(program.0.path(), "./flag_pool", &[("HOSTVIEW_PROFILE", profile)]);
        assert_eq!(text, prints);
    }
}

#[rstest]
#[case("a2a3", ["registered 0, unregistered 0, freed 0"; 2])]
#[case("a2a3-64k", ["registered 65534, freed 0"; 2])]
// By the view's address nothing is ended where it is another: the next owner of the memory is refused.
#[case("shifted", ["registered 0, unregistered 38, freed 0", "registered 8, freed 0"])]
fn a_client_that_unregisters_by_the_view_is_right_only_where_the_two_are_equal(
    #[case] profile: &str,
    #[case] rounds: [&str; 2],
) {
    if let Some(program) = client("by_view", &["-lascendcl", "-lascend_hal"]) {
        let text = shell(program.0.path(), "./by_view", &[("HOSTVIEW_PROFILE", profile)]);
        assert_eq!(text, format!("round 1: {}\nround 2: {}\n", rounds[0], rounds[1]));
    }
}

/// A program of `fixtures/harness`, built against the root.
fn client(name: &str, libraries: &[&str]) -> Option<(tempfile::TempDir, PathBuf)> {
    if !has_compiler("cc") {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    let (include, search) = (format!("-I{}", sdk().join("include").display()), format!("-L{}/lib64", sdk().display()));
    compile("cc", &format!("fixtures/harness/{name}.c"), &program, &[&[&*include, &search], libraries].concat());
    Some((folder, program))
}

#[rstest]
#[case("cc", "c", "acl/acl.h")]
#[case("cc", "c", "ascend_hal.h")]
#[case("g++", "c++", "acl/acl.h")]
#[case("g++", "c++", "ascend_hal.h")]
fn each_header_stands_alone(#[case] compiler: &str, #[case] language: &str, #[case] header: &str) {
    if has_compiler(compiler) {
        let line = format!(
            "printf '#include <{header}>\\nint main(void) {{ return 0; }}\\n' | {compiler} -x {language} -Wall -Wextra \
             -pedantic -Werror -I$ASCEND/include -o alone -"
        );
        shell(tempfile::tempdir().unwrap().path(), &line, &[]);
    }
}

#[rstest]
#[case("acl/acl.h", "libascendcl.so")]
#[case("ascend_hal.h", "libascend_hal.so")]
fn a_header_declares_what_its_library_has_and_no_more(#[case] header: &str, #[case] library: &str) {
    let text = fs::read_to_string(sdk().join("include").join(header)).unwrap();
    let declared: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.ends_with(");"))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect();
    let symbols = shell(sdk(), &format!("nm -D --defined-only lib64/{library}"), &[]);
    let has: BTreeSet<&str> = symbols
        .lines()
        .filter_map(|line| line.split_once(" T ").map(|(_, name)| name))
        // The simulator's own, which no program for a device calls.
        .filter(|name| !name.starts_with("hostview"))
        .collect();
    assert_eq!(declared, has);
    assert!(declared.len() > 15);
}

#[test]
fn a_root_is_laid_out_again_and_nothing_else_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let ours = folder.path().join("sdk");
    assert_eq!(lay_out(&ours).code, Some(0));
    fs::write(ours.join("include/acl/acl.h"), "half").unwrap();
    assert_eq!(lay_out(&ours).code, Some(0));
    assert!(fs::read_to_string(ours.join("include/acl/acl.h")).unwrap().contains("aclrtMalloc"));

    let vendors = folder.path().join("toolkit");
    fs::create_dir(&vendors).unwrap();
    fs::write(vendors.join("version.cfg"), "9.0.0").unwrap();
    let refused = lay_out(&vendors);
    assert_eq!(refused.code, Some(2));
    assert!(
        refused
            .err
            .contains("toolkit: is a file, or holds something else; give a folder that is empty or is not there")
    );
    assert_eq!(fs::read_dir(&vendors).unwrap().count(), 1);

    let none = hostview_in(folder.path(), &["sdk", "new", "--libraries", "toolkit"]);
    assert_eq!(none.code, Some(3));
    assert!(none.err.contains("no libascend_hal.so and libascendcl.so in\n  toolkit\nbuild them with"), "{}", none.err);
    assert!(!folder.path().join("new").exists());
}
