//! The D-laws as sequences: where each applies, and that it holds at the edges of what is drawn. Expected by the facts.

#![allow(missing_docs)]

use hostview::case::{Op, Step};
use hostview::check::law_as_case;
use hostview::laws::{Draw, DriverLaw, Trial, driver_laws};
use hostview_sim::{PageKind, Profile};
use rstest::rstest;

const KINDS: [PageKind; 2] = [PageKind::Ordinary, PageKind::Huge];

fn law(id: &str) -> &'static DriverLaw {
    driver_laws().iter().find(|law| law.law.id.0 == id).unwrap()
}

/// A shipped profile with something of it otherwise.
fn profile(name: &str, otherwise: &str) -> Profile {
    Profile::shipped(name).unwrap().overridden(&otherwise.parse().unwrap(), "a test").unwrap()
}

fn steps(trial: Trial) -> Option<Vec<Step>> {
    match trial {
        Trial::Steps(steps) | Trial::Mirror(steps) => Some(steps),
        Trial::NotApplicable(_) => None,
    }
}

/// Runs steps on the simulator of a profile.
fn discord(name: &str, otherwise: &str, steps: Vec<Step>) -> Option<String> {
    let mut case = law_as_case(law("D06"), &Profile::shipped(name).unwrap(), name).unwrap();
    case.profile_override = otherwise.parse().unwrap();
    case.steps = steps;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("case.toml");
    std::fs::write(&file, hostview::case::to_toml(&case)).unwrap();
    let discord = hostview::replay::prepare(&file).unwrap()[0].run().discord;
    discord.map(|discord| format!("step {:?}: expected {}, came {}", discord.step, discord.expected, discord.came))
}

/// `s` for the law's own steps, `r` for the refusal in their place, `-` where it does not apply; for ordinary and huge pages.
#[test]
fn where_each_law_applies() {
    let standing = |profile: &Profile, law: &DriverLaw, kind| match (law.trial)(profile, &Draw::shown(kind)) {
        Trial::Steps(_) => 's',
        Trial::Mirror(_) => 'r',
        Trial::NotApplicable(_) => '-',
    };
    let mut table = String::new();
    for law in driver_laws() {
        let profiles = Profile::shipped_names().map(|name| {
            let profile = Profile::shipped(name).unwrap();
            format!(" {name} {}", KINDS.map(|kind| standing(&profile, law, kind)).iter().collect::<String>())
        });
        table += &format!("{}{}\n", law.law.id, profiles.collect::<String>());
    }
    insta::assert_snapshot!("where_each_law_applies", table);
}

/// Each law holds on the simulator whatever is drawn: at the first and the last place inside a page, and for the fewest pages and
/// the most.
#[rstest]
fn each_law_holds_at_the_edges_of_what_is_drawn(
    #[values("a2a3", "a2a3-64k", "a2a3-vm", "a5", "a5-v3", "shifted")] name: &str,
    #[values(3, 17)] pages: u64,
) {
    let profile = Profile::shipped(name).unwrap();
    for (law, kind) in driver_laws().iter().flat_map(|law| KINDS.map(|kind| (law, kind))) {
        let page = profile.page(kind).bytes();
        // Places are drawn from 16 bits.
        for inside in [0, page - 2, page - 1, page, u64::from(u16::MAX)].into_iter().filter(|inside| *inside < 1 << 16)
        {
            let draw = Draw { kind, pages, inside, fill: 0xa5 };
            if let Some(steps) = steps((law.trial)(&profile, &draw)) {
                let came = discord(name, "", steps);
                assert_eq!(came, None, "{} on {name}, {draw:?}", law.law.id);
            }
        }
    }
}

/// Most laws ask for a size that ends inside a page, wherever.
#[test]
fn a_ragged_size_never_is_whole_pages() {
    let profile = Profile::shipped("a2a3").unwrap();
    for (kind, inside) in KINDS.iter().flat_map(|kind| (4090..4100).map(move |inside| (*kind, inside))) {
        let steps = steps((law("D01").trial)(&profile, &Draw { kind, pages: 3, inside, fill: 0 })).unwrap();
        let bytes = steps.iter().find(|step| step.op == Op::Alloc).unwrap().bytes.unwrap();
        let page = profile.page(kind).bytes();
        assert!(bytes > 2 * page && bytes < 3 * page, "{bytes}");
    }
}

/// At the edge of a profile's figures a law applies, and just past it does not.
#[rstest]
// The device has to have 8 MiB more than the largest allocation of the law.
#[case::memory_enough("D16", PageKind::Ordinary, "[device]\nmemory = 0x2080_4500", true)]
#[case::memory_one_byte_short("D16", PageKind::Ordinary, "[device]\nmemory = 0x2080_44ff", false)]
// A block of just the threshold is cached (`driver.md`: at most the threshold).
#[case::a_block_of_the_threshold("D14", PageKind::Ordinary, "[driver]\nordinary_cache_threshold = 0x20_0000", true)]
#[case::a_threshold_under_a_block("D14", PageKind::Ordinary, "[driver]\nordinary_cache_threshold = 0x1f_f000", false)]
#[case::best_fit_of_the_threshold("D28", PageKind::Ordinary, "[driver]\nordinary_cache_threshold = 0x20_0000", true)]
#[case::best_fit_without_a_cache("D28", PageKind::Ordinary, "[driver]\nordinary_cache_threshold = 0", false)]
// Two allocations share a block of 2 MiB where four pages fit.
#[case::four_pages_to_a_block("D20", PageKind::Ordinary, "[device]\npage_size = 0x8_0000", true)]
#[case::two_pages_to_a_block("D20", PageKind::Ordinary, "[device]\npage_size = 0x10_0000", false)]
#[case::one_cached_block("D20", PageKind::Ordinary, "[driver]\nordinary_cache_threshold = 0x20_0000", true)]
#[case::no_cached_block("D20", PageKind::Ordinary, "[driver]\nordinary_cache_threshold = 0x1f_f000", false)]
// Over the threshold and up to 512 MiB a free is BUSY.
#[case::a_size_of_512_mib("D15", PageKind::Huge, "[driver]\nhuge_cache_threshold = 0x1fbf_ffff", true)]
#[case::a_size_over_512_mib("D15", PageKind::Huge, "[driver]\nhuge_cache_threshold = 0x1fc0_0000", false)]
#[case::a_threshold_over_512_mib("D15", PageKind::Huge, "[driver]\nhuge_cache_threshold = 0x2800_0000", false)]
// Where one kind of page can be registered, kinds show.
#[case::ordinary_pages_alone("D18", PageKind::Ordinary, "[capabilities]\nbar_huge_mem = false", true)]
#[case::huge_pages_alone("D18", PageKind::Ordinary, "[capabilities]\nbar_mem = false", true)]
#[case::no_pages("D18", PageKind::Ordinary, "[capabilities]\nbar_mem = false\nbar_huge_mem = false", false)]
// Three of the largest cached blocks are over twice the threshold, and have to lie in one heap of 1 GiB.
#[case::blocks_of_4_mib("D30", PageKind::Ordinary, "[driver]\nordinary_cache_threshold = 0x40_0000", true)]
#[case::blocks_of_2_mib("D30", PageKind::Ordinary, "[driver]\nordinary_cache_threshold = 0x3f_f000", false)]
#[case::three_blocks_of_340_mib("D30", PageKind::Huge, "[driver]\nhuge_cache_threshold = 0x1540_0000", true)]
#[case::three_blocks_of_342_mib("D30", PageKind::Huge, "[driver]\nhuge_cache_threshold = 0x1560_0000", false)]
#[case::memory_for_three_blocks("D30", PageKind::Ordinary, "[device]\nmemory = 0x3e0_0000", true)]
#[case::memory_for_two_blocks("D30", PageKind::Ordinary, "[device]\nmemory = 0x3df_ffff", false)]
#[case::a_driver_that_keeps_no_registered_block(
    "D30",
    PageKind::Ordinary,
    "[driver]\nfree_while_registered = \"busy\"",
    false
)]
// v3 on a host with larger pages grants ordinary ones where they happen to lie right.
#[case::v3_by_chance(
    "D01",
    PageKind::Ordinary,
    "[host]\npage_size = 0x1_0000\n[driver]\ngeneration = \"v3\"\n[capabilities]\nbar_mem = true",
    false
)]
#[case::two_devices("D23", PageKind::Ordinary, "[device]\ncount = 2", true)]
#[case::one_device("D23", PageKind::Ordinary, "[device]\ncount = 1", false)]
#[case::three_devices("D23", PageKind::Ordinary, "[device]\ncount = 3", true)]
fn a_law_applies_up_to_the_edge(
    #[case] id: &str,
    #[case] kind: PageKind,
    #[case] otherwise: &str,
    #[case] applies: bool,
) {
    let profile = profile("a2a3", otherwise);
    let steps = steps((law(id).trial)(&profile, &Draw::shown(kind)));
    assert_eq!(steps.is_some(), applies);
    if let Some(steps) = steps {
        assert_eq!(discord("a2a3", otherwise, steps), None);
    }
}

/// A device that is too small for the part of a law with a large block is spared it.
#[rstest]
#[case("[device]\nmemory = 0x200_0000", 4)]
#[case("", 9)]
#[case("[driver]\nhuge_cache_threshold = 0x4000_0000", 4)]
fn the_part_of_d07_with_a_large_block_is_left_out_where_there_is_no_room(
    #[case] otherwise: &str,
    #[case] count: usize,
) {
    let trial = (law("D07").trial)(&profile("a2a3", otherwise), &Draw::shown(PageKind::Huge));
    let steps = steps(trial).unwrap();
    assert_eq!(steps.len(), count);
    assert_eq!(discord("a2a3", otherwise, steps), None);
}

/// What v2 writes about a refusal is asked for, by the kind of page; v3 has no such words.
#[rstest]
#[case("D08", "a2a3-64k", PageKind::Ordinary, Some("Not support pcie bar remote map."))]
#[case("D09", "a2a3-vm", PageKind::Huge, Some("Not support pcie bar huge remote map."))]
#[case("D08", "a5", PageKind::Ordinary, None)]
fn a_refusal_is_asked_for_with_its_words(
    #[case] id: &str,
    #[case] name: &str,
    #[case] kind: PageKind,
    #[case] words: Option<&str>,
) {
    let steps = steps((law(id).trial)(&Profile::shipped(name).unwrap(), &Draw::shown(kind))).unwrap();
    let asked = steps.iter().find(|step| step.op == Op::Register).unwrap();
    assert_eq!(asked.expect.0.log.as_deref(), words);
}

/// v3 refuses a range past the end of an allocation: one that is longer than it by a page.
#[test]
fn v3_is_asked_for_two_pages_where_one_is_allocated() {
    let steps =
        steps((law("D20").trial)(&Profile::shipped("a5-v3").unwrap(), &Draw::shown(PageKind::Ordinary))).unwrap();
    let asked = steps.iter().find(|step| step.op == Op::Register).unwrap();
    assert_eq!(asked.bytes, Some(2 * 4096));
    assert!(steps.iter().filter(|step| step.op == Op::Alloc).all(|step| step.bytes == Some(4096)));
}
