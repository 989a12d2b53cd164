//! The simulator in this process against the simulator behind the drop-in libraries: the same sequence, the same outcome,
//! for every return code, every address, every byte read and every fault.

#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hostview::gate::{Addresses, compare};
use hostview::generate::driver_sequences;
use hostview::library::{Layer, Limits, Paths, Summons, Watch};
use hostview::platform::SimPlatform;
use hostview_sim::Profile;
use hostview_tests::c::library_folder;
use hostview_tests::{binary, root};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};
use rstest::rstest;

/// How a process with the libraries is started, with a profile in its environment.
fn summons(profile: &str, devices: Vec<u32>) -> Summons {
    Summons {
        program: Path::new("/usr/bin/env").to_owned(),
        arguments: vec![
            format!("HOSTVIEW_PROFILE={profile}"),
            binary().display().to_string(),
            "serve-library".to_owned(),
        ],
        paths: Paths {
            hal: library_folder().join("libascend_hal.so"),
            acl: Some(library_folder().join("libascendcl.so")),
            via: Layer::Acl,
        },
        limits: Limits { devices, memory: 1 << 40 },
        call_limit: Duration::from_secs(20),
        driver_log: None,
        watch: Arc::new(Watch::default()),
    }
}

#[rstest]
#[case("a2a3")]
#[case("a2a3-64k")]
#[case("a2a3-vm")]
#[case("a5")]
#[case("a5-v3")]
#[case("shifted")]
fn drawn_sequences_come_to_the_same_through_the_libraries(#[case] name: &str) {
    let profile = Profile::shipped(name).unwrap();
    let summons = summons(name, vec![0, 1]);
    let config = Config { cases: 64, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..Config::default() };
    let outcome = TestRunner::new(config).run(&driver_sequences(), |steps| {
        let mut device = summons.open().unwrap();
        let mut simulator = SimPlatform::new(&profile);
        match compare(&steps, &mut device, &mut simulator, Addresses::Equal) {
            None => Ok(()),
            Some(difference) => Err(TestCaseError::fail(difference.describe(&steps[difference.step]))),
        }
    });
    outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
}

#[test]
fn a_difference_is_seen() {
    // The same sequences against another machine: were they blind, the test above would prove nothing.
    let (summons, other) = (summons("a2a3", vec![0, 1]), Profile::shipped("a2a3-64k").unwrap());
    let config = Config { cases: 64, failure_persistence: None, rng_seed: RngSeed::Fixed(7), ..Config::default() };
    let outcome = TestRunner::new(config).run(&driver_sequences(), |steps| {
        let mut device = summons.open().unwrap();
        let difference = compare(&steps, &mut device, &mut SimPlatform::new(&other), Addresses::Equal);
        difference.map_or(Ok(()), |difference| Err(TestCaseError::fail(difference.describe(&steps[difference.step]))))
    });
    let error = outcome.unwrap_err().to_string();
    assert!(error.contains("this device accepts what the simulator refuses: register"), "{error}");
}

/// The driver's own recorded answers, each call, through the C interface.
#[rstest]
#[case("a2a3", 160)]
#[case("a2a3-64k", 80)]
fn the_recorded_sequences_replay_through_the_libraries(#[case] profile: &str, #[case] of_it: usize) {
    let output = Command::new(binary())
        .args(["replay", "--device", "0,1", "--memory-limit", "1048576", "--hal"])
        .arg(library_folder().join("libascend_hal.so"))
        .arg(root().join("fixtures/traces/driver-sequences.jsonl"))
        .env("HOSTVIEW_PROFILE", profile)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // A sequence names the machine that it was taken on at its end, or beside its failure.
    let end = format!(" on {profile}");
    let wrong = format!("        a case of {profile}");
    let passed = text.lines().filter(|line| line.starts_with("ok ") && line.ends_with(&end)).count();
    assert_eq!((passed, text.lines().filter(|line| **line == wrong).count()), (of_it, 0), "{text}");
}
