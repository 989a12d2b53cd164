//! The laws hold on every profile, and each of them can be seen to break.

#![allow(missing_docs)]

use std::cell::Cell;
use std::rc::Rc;

use hostview::cache_run::CacheRun;
use hostview::check::{CheckOptions, DRAWN, Generator, ProfileChoice, Report, Standing, check};
use hostview::laws::{self, LawId};
use hostview::platform::SimPlatform;
use hostview::site::Simulator;
use hostview::subject;
use hostview_sim::Profile;
use rstest::rstest;

fn choice(name: &str) -> ProfileChoice {
    if name == DRAWN {
        return ProfileChoice::Drawn;
    }
    ProfileChoice::Given(Box::new(Profile::shipped(name).unwrap()), name.to_owned())
}

fn run(profiles: &[&str], subjects: &[&str], cases: u32, seed: u64) -> (CheckOptions, Report) {
    let options = CheckOptions {
        profiles: profiles.iter().map(|name| choice(name)).collect(),
        subjects: subjects.iter().map(|name| subject::find(name).unwrap()).collect(),
        laws: None,
        cases,
        trials: cases.div_ceil(4),
        seed,
        generator: Generator::default(),
        jobs: None,
    };
    let report = check(&options, &Simulator, &|_| ());
    (options, report)
}

fn standing(report: &Report, law: &str) -> Standing {
    let laws = report.rows.iter().flat_map(|row| &row.laws);
    laws.filter(|result| result.id.0 == law).map(|result| result.standing.clone()).next_back().unwrap()
}

#[rstest]
fn every_law_holds_for_every_cache(
    #[values("a2a3", "a2a3-64k", "a2a3-16k", "a2a3-vm", "a5", "a5-v3", "shifted", "drawn")] profile: &str,
    #[values(1, 77)] seed: u64,
) {
    let (_, report) = run(&[profile], &["cache", "rebuild", "shared"], 256, seed);
    assert_eq!(report.failures, []);
    assert_eq!(report.rows.len(), 4);
    assert!(report.rows.iter().all(|row| row.bookkeeping.is_none()));
}

#[rstest]
#[case("cache", &["D10", "V15", "V16"])]
#[case("shared", &["D10"])]
fn on_a_capable_host_nothing_is_left_unchecked_but_what_nobody_claims(#[case] subject: &str, #[case] left: &[&str]) {
    let (_, report) = run(&["a2a3"], &[subject], 256, 1);
    let unchecked: Vec<&str> = report
        .rows
        .iter()
        .flat_map(|row| &row.laws)
        .filter(|law| law.standing != Standing::Passed)
        .map(|law| law.id.0)
        .collect();
    assert_eq!(unchecked, left);
}

#[test]
fn where_nothing_can_be_registered_the_refusals_are_checked_instead() {
    let (_, report) = run(&["a2a3-vm"], &["cache"], 256, 1);
    for law in ["D01", "D08", "D09", "D12", "V03", "V05", "V08", "V11"] {
        assert_eq!(standing(&report, law), Standing::Refused, "{law}");
    }
}

/// Each D-law's sequence fails on a device that does otherwise: a profile that differs in what the law is about.
#[rstest]
#[case::ordinary_pages_refused("D08", "a2a3", "[capabilities]\nbar_mem = false")]
#[case::huge_pages_refused("D09", "a2a3", "[capabilities]\nbar_huge_mem = false")]
#[case::capability_comes_late("D10", "a2a3-64k", "[driver]\ngeneration = \"v3\"")]
#[case::no_cache("D14", "a2a3", "[driver]\nordinary_cache_threshold = 0")]
#[case::a_larger_cache(
    "D15",
    "a2a3",
    "[driver]\nhuge_cache_threshold = 0x4000_0000\nordinary_cache_threshold = 0x4000_0000"
)]
#[case::busy_instead_of_iocrl_fail("D16", "a2a3", "[driver]\nfree_while_registered = \"busy\"")]
#[case::v3_rules("D20", "a2a3", "[driver]\ngeneration = \"v3\"")]
#[case::v3_read_only("D13", "a2a3", "[driver]\ngeneration = \"v3\"")]
#[case::more_memory("D24", "a2a3", "[device]\nmemory = 0x100_0000_0000")]
#[case::other_pages("D01", "a2a3", "[device]\npage_size = 8192")]
fn a_d_law_fails_on_a_device_that_does_otherwise(#[case] law: &str, #[case] profile: &str, #[case] otherwise: &str) {
    let law = laws::driver_laws().iter().find(|candidate| candidate.law.id.0 == law).unwrap();
    let mut case = hostview::check::law_as_case(law, &Profile::shipped(profile).unwrap(), profile).unwrap();
    case.profile_override = otherwise.parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("case.toml");
    std::fs::write(&file, hostview::case::to_toml(&case)).unwrap();
    let prepared = hostview::replay::prepare(&file).unwrap();
    assert!(prepared[0].run().discord.is_some());
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_does_not() {
    let json = |seed| {
        let (options, report) = run(&["a2a3", "drawn"], &["cache", "leaky"], 64, seed);
        hostview::report::check_as_json(&options, &report).to_string()
    };
    assert_eq!(json(5), json(5));
    assert_ne!(json(5), json(6));
}

/// Two threads are judged by what the steps come to one after the other; where that cannot be had, nobody is accused.
#[test]
fn what_cannot_be_done_again_breaks_no_law() {
    let file = hostview_tests::root().join("fixtures/cases/laws/V15-free-takes-no-lock.toml");
    let case = hostview::case::load(&file).unwrap().remove(0);
    let platform = SimPlatform::new(&Profile::shipped(&case.profile).unwrap());
    let subject = subject::find(case.subject.as_deref().unwrap()).unwrap().make().unwrap();
    let asked = Rc::new(Cell::new(0));
    let count = asked.clone();
    let mut run = CacheRun::new(Box::new(platform), subject).with_threads(Box::new(move |_| {
        count.set(count.get() + 1);
        None
    }));
    let (mut at, mut breaches) = (0, Vec::new());
    while at < case.steps.len() {
        let stepped = run.step(at, &case.steps);
        breaches.extend(stepped.breaches);
        at += stepped.taken;
        if stepped.over {
            break;
        }
    }
    assert_eq!((breaches, asked.get()), (Vec::new(), 2));
}

#[test]
fn a_single_law_is_judged_alone() {
    let (mut options, _) = run(&["a2a3"], &["leaky"], 1, 1);
    options.laws = Some(vec![LawId("V11")]);
    options.cases = 64;
    let report = check(&options, &Simulator, &|_| ());
    let broken: Vec<&str> = report.failures.iter().map(|failure| failure.law.0).collect();
    assert_eq!(broken, ["V11"]);
    assert_eq!(report.rows.len(), 1, "no D-law was asked for");
}

#[test]
fn ids_are_unique_in_order_and_every_law_says_where_it_is_from() {
    let ids: Vec<&str> = laws::all().map(|law| law.id.0).collect();
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(ids, sorted);
    assert!(laws::all().all(|law| !law.source.is_empty() && law.statement.ends_with('.')));
}
