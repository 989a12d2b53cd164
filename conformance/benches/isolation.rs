//! What a process of its own costs: the C++ example through its process against the reference cache in this one, as a ratio
//! of sequences: `cargo bench -p hostview --bench isolation`. Needs g++.

#![allow(missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use hostview::check::{CheckOptions, Generator, ProfileChoice, check};
use hostview::laws::view_laws;
use hostview::site::Simulator;
use hostview::subject::{Library, SubjectChoice, SubjectHome, SubjectLimits, find};
use hostview_sim::Profile;

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("libexample.so");
    let built = Command::new("g++")
        .args(["-std=c++17", "-O2", "-shared", "-fPIC", "-DONE_THREAD", "-I"])
        .arg(root.join("sdk/include"))
        .arg("-o")
        .arg(&library)
        .arg(root.join("../fixtures/subjects/hash_map_cache.cpp"))
        .status();
    if !built.is_ok_and(|status| status.success()) {
        println!("skipped: there is no g++ that builds the example");
        return;
    }
    let home = SubjectHome { program: PathBuf::from(env!("CARGO_BIN_EXE_hostview")), drop_in: None };
    let opened = Library::open(&library.display().to_string(), home, SubjectLimits::default());
    let apart = SubjectChoice::Library(Arc::new(opened.expect("the example opens")));
    let here = find("cache").expect("the reference cache");
    let time = |subject: &SubjectChoice| {
        let profile = Profile::shipped("a2a3").expect("a shipped profile");
        let options = CheckOptions {
            profiles: vec![ProfileChoice::Given(Box::new(profile), "a2a3".to_owned())],
            subjects: vec![subject.clone()],
            laws: Some(view_laws().iter().map(|law| law.law.id).collect()),
            cases: 2000,
            trials: 1,
            seed: 1,
            generator: Generator::Suite,
            jobs: Some(1),
        };
        let begun = Instant::now();
        let report = check(&options, &Simulator, &|_| ());
        assert!(report.holds());
        begun.elapsed().as_secs_f64()
    };
    let mut ratios: Vec<f64> = (0..5)
        .map(|_| {
            let (one, other) = (time(&here), time(&apart));
            println!("2000 sequences: {one:.3} s in this process, {other:.3} s in its own, ratio {:.2}", other / one);
            other / one
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("the median ratio: {:.2}", ratios[ratios.len() / 2]);
}
