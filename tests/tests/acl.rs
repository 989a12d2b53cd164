//! The drop-in `libascendcl.so`, met by a C program that knows nothing of the simulator.
//!
//! What it must answer is written from the facts on the CANN runtime's memory layer: the argument checks of each call, and
//! the table from the driver's numbers to the runtime's.

#![allow(missing_docs)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use hostview_tests::c::{compile, library_folder};
use rstest::rstest;

fn client() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, program) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("acl_client");
        let libraries = format!("-L{}", library_folder().display());
        compile("cc", "fixtures/harness/acl_client.c", &program, &[&libraries, "-lascendcl", "-ldl"]);
        (folder, program)
    });
    program
}

fn run(environment: &[(&str, &str)]) -> String {
    let output = Command::new(client())
        .env("LD_LIBRARY_PATH", library_folder())
        .env_remove("HOSTVIEW_PROFILE")
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The last answer for each call.
fn answers(text: &str) -> HashMap<&str, &str> {
    text.lines().filter_map(|line| line.split_once(": ")).collect()
}

const A2A3: &str = "\
message at first: none
get device before any is set: 107002
malloc before any device is set: 107002
init: 0
init again: 100002
count to null: 100000
count: 0
devices: 2, soc Ascend910_9392
set a device that is not there: 107001
set device -1: 107001
reset a device that was not set: 507007
set device: 0
set device again: 0
get device: 0
device: 0
malloc to null: 100000
malloc of 0: 100000
malloc of SIZE_MAX: 100000
malloc of SIZE_MAX - 63: 100000
malloc of more than there is: 207001
malloc cached: 207000
malloc of a giant page: 207000
malloc by an unknown policy: 0
malloc: 0
malloc, its neighbour: 0
apart by 8192 bytes
copy in: 0
copy out: 0
text: across and back
copy of nothing, from null: 0
copy from null: 100000
copy of an unknown kind: 100000
copy without room: 107000
copy over the room: 107000
copy to itself: 0
set bytes: 0
set no bytes, at null: 0
set bytes at null: 100000
rt copy: 0
text: AAAAAAAAnd back
rt copy from null: 107000
HAL register: 0
free while registered: 0
HAL unregister: 0
free once more: 107000
free of null: 100000
free of an interior address: 107000
free of the neighbour: 0
malloc of 64 MiB: 0
HAL register: 0
free while registered: 507899
message: some
HAL unregister: 0
free: 0
rt malloc: 0
rt malloc to null: 107000
rt malloc of 0: 107000
rt free: 0
rt free of null: 107000
host malloc: 0
device malloc: 0
free of device memory as host memory: 107000
copy from host memory: 0
free of host memory: 0
free of device memory: 0
host malloc of 0: 100000
free of null as host memory: 100000
memory, attribute 18: 107016
memory to null: 100000
memory: 0
malloc of 64 MiB: 0
memory: 0
left: less by 66 MiB of 65536
free: 0
host register of nothing: 100000
host register: 207000
host unregister: 207000
reset device: 0
get device: 0
reset device for the last time: 0
get device: 107002
finalize: 0
finalize again: 100037
";

#[test]
fn each_call_answers_as_the_runtime_does() {
    assert_eq!(run(&[]), A2A3);
}

#[rstest]
// Ordinary pages are refused, and what was never registered is freed at once; huge ones are held.
#[case("a2a3-64k", "65534", "0", "507899")]
#[case("a2a3-16k", "65534", "0", "507899")]
fn a_host_with_larger_pages_refuses_ordinary_pages(
    #[case] profile: &str,
    #[case] ordinary: &str,
    #[case] small_free: &str,
    #[case] large_free: &str,
) {
    let text = run(&[("HOSTVIEW_PROFILE", profile)]);
    let of_the_small = text.lines().skip_while(|line| !line.starts_with("HAL register")).take(2).collect::<Vec<_>>();
    assert_eq!(of_the_small, [format!("HAL register: {ordinary}"), format!("free while registered: {small_free}")]);
    assert_eq!(answers(&text)["free while registered"], large_free);
}

#[test]
fn a5_pads_nothing_and_refuses_every_mapping() {
    let text = run(&[("HOSTVIEW_PROFILE", "a5")]);
    let answers = answers(&text);
    assert!(answers["devices"].ends_with("soc Ascend950"), "{text}");
    assert!(text.contains("apart by 4096 bytes"), "{text}");
    assert_eq!(answers["HAL register"], "65534");
    // 64 MiB are 64 MiB: without the padding no further huge page is taken.
    assert!(answers["left"].starts_with("less by 64 MiB"), "{text}");
}

#[test]
fn an_error_of_the_driver_comes_by_the_runtimes_table() {
    for (error, answer) in [("DRV_ERROR_INNER_ERR", "507899"), ("DRV_ERROR_OUT_OF_MEMORY", "207001")] {
        let faults = format!("copy_in:1:{error}");
        assert!(run(&[("HOSTVIEW_FAULTS", &faults)]).contains(&format!("copy in: {answer}\n")), "{error}");
    }
}

/// Padding counts before the policy: with 64 bytes on top, 1,048,544 bytes are the last that fit ordinary pages.
#[rstest]
#[case("a2a3", 1_048_544, false)]
#[case("a2a3", 1_048_545, true)]
#[case("a5-v3", 1_048_576, false)]
#[case("a5-v3", 1_048_577, true)]
fn the_switch_to_huge_pages_lies_where_the_runtime_has_it(
    #[case] profile: &str,
    #[case] size: u64,
    #[case] huge: bool,
) {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("page.c"), folder.path().join("page"));
    let text = format!(
        "#include <stdio.h>\n#include <stdint.h>\n\
         int aclrtSetDevice(int); int aclrtMalloc(void **, unsigned long, int);\n\
         struct at {{ uint32_t kind, r1, r2, device, page, more[8]; }};\n\
         int drvMemGetAttribute(uint64_t, struct at *);\n\
         int main(void) {{ void *p; struct at at; if (aclrtSetDevice(0) || aclrtMalloc(&p, {size}ul, 0)) return 1;\n\
         if (drvMemGetAttribute((uint64_t)p, &at)) return 2;\n\
         printf(\"%u\", at.page); return 0; }}\n"
    );
    std::fs::write(&source, text).unwrap();
    let libraries = format!("-L{}", library_folder().display());
    compile("cc", source.to_str().unwrap(), &program, &[&libraries, "-lascendcl", "-lascend_hal"]);
    let output = Command::new(&program)
        .env("LD_LIBRARY_PATH", library_folder())
        .env("HOSTVIEW_PROFILE", profile)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), if huge { "2097152" } else { "4096" });
}

/// As a runtime reaches it: in global scope, after closing and opening again, by full path.
#[rstest]
#[case("libascend_hal.so")]
#[case("path")]
fn symbols_are_found_as_runtimes_look_for_them(#[case] how: &str) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("symbols");
    compile("cc", "fixtures/harness/symbols.c", &program, &["-ldl"]);
    let library = match how {
        "path" => library_folder().join("libascend_hal.so").display().to_string(),
        name => name.to_owned(),
    };
    let output = Command::new(&program).arg(&library).env("LD_LIBRARY_PATH", library_folder()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert_eq!(
        text,
        "by its handle: found\nin global scope: found\ncalled: 0\nclosed, and opened again: found\n\
         called again: 0\na symbol of another library: missing\n"
    );
}
