//! What a profile may say: each bound from both of its sides.

#![allow(missing_docs)]

use hostview_sim::{PageKind, Profile};
use rstest::rstest;

fn changed(change: &str) -> Result<Profile, String> {
    let change = change.parse().unwrap();
    Profile::shipped("a2a3").unwrap().overridden(&change, "my.toml").map_err(|error| error.to_string())
}

#[rstest]
#[case("[device]\npage_size = 0x20_0000\nhuge_page_size = 0x20_0000")]
#[case("[host]\npage_size = 0x20_0000")]
#[case("[device]\nmemory = 0x20_0000")]
#[case("[device]\ncount = 1")]
#[case("[device]\ncount = 64")]
#[case("[driver]\nheap_size = 0x2000_0000")]
#[case("[driver]\nheap_start = 0x1000_0000_0000")]
#[case("[driver]\nheap_start = 0x17ff_c000_0000")]
#[case("[driver]\nview_offset = 0x0800_0000_0000")]
#[case("[driver]\nview_offset = 0x3fff_ffe0_0000")]
#[case("[costs]\ncopy = { min = 0.0, median = 0.0 }")]
#[case("[costs]\ncopy = { min = 1e9, median = 1e9 }")]
#[case("[costs]\ncopy_bandwidth = 1e-9")]
fn a_value_at_its_bound_is_taken(#[case] change: &str) {
    changed(change).unwrap();
}

#[rstest]
#[case("[device]\npage_size = 0x20_0000\nhuge_page_size = 0x10_0000", "device.page_size")]
#[case("[device]\nhuge_page_size = 0x40_0000", "device.huge_page_size")]
#[case("[host]\npage_size = 0x40_0000", "host.page_size")]
#[case("[device]\nmemory = 0x1f_ffff", "device.memory")]
#[case("[device]\ncount = 0", "device.count")]
#[case("[device]\ncount = 65", "device.count")]
#[case("[driver]\nheap_size = 0x1000_0000", "driver.heap_size")]
#[case("[driver]\nsvm_size = 0x7000_0000_0000", "driver.svm_size")]
#[case("[driver]\nsvm_start = 0\nsvm_size = 0x0800_0000_0000", "driver.svm_start")]
#[case("[driver]\nsvm_start = 0x1000_2000_0000", "driver.svm_start")]
#[case("[driver]\nheap_start = 0x0fff_c000_0000", "driver.heap_start")]
#[case("[driver]\nheap_start = 0x1800_0000_0000", "driver.heap_start")]
#[case("[driver]\nheap_start = 0x1000_2000_0000", "driver.heap_start")]
#[case("[driver]\nview_offset = 0x07ff_ffe0_0000", "driver.view_offset")]
#[case("[driver]\nview_offset = 0x4000_0000_0000", "driver.view_offset")]
#[case("[driver]\nview_offset = 0x0800_0000_1000", "driver.view_offset")]
#[case("[costs]\ncopy = { min = -0.1, median = 1.0 }", "costs.copy")]
#[case("[costs]\ncopy = { min = 2.0, median = 1.0 }", "costs.copy")]
#[case("[costs]\ncopy = { min = 1.0, median = 1000000001.0 }", "costs.copy")]
#[case("[costs]\ncopy = { min = nan, median = 1.0 }", "costs.copy")]
#[case("[costs]\ncopy = { min = 1.0, median = inf }", "costs.copy")]
#[case("[costs]\ncopy_bandwidth = 0.0", "costs.copy_bandwidth")]
#[case("[costs]\ncopy_bandwidth = inf", "costs.copy_bandwidth")]
fn a_value_past_its_bound_is_refused_by_its_key(#[case] change: &str, #[case] key: &str) {
    let message = changed(change).unwrap_err();
    assert!(message.starts_with("my.toml: "), "{message}");
    assert!(message.contains(key), "{message}");
}

#[rstest]
#[case("a2a3", true, true)]
#[case("a2a3-64k", false, true)]
#[case("a2a3-vm", false, false)]
// It could, were there a path for it.
#[case("a5", false, false)]
fn what_can_be_registered_is_told(#[case] name: &str, #[case] ordinary: bool, #[case] huge: bool) {
    let profile = Profile::shipped(name).unwrap();
    assert_eq!(profile.can_register(PageKind::Ordinary), ordinary);
    assert_eq!(profile.can_register(PageKind::Huge), huge);
}

#[test]
fn a_profile_is_found_by_its_name_and_by_a_path() {
    assert_eq!(Profile::find("a2a3-64k").unwrap().name, "a2a3-64k");
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/profiles/a2a3-16k.toml");
    assert_eq!(Profile::find(file).unwrap().name, "a2a3-16k");
    // Either sign of a path makes it one.
    for path in ["nowhere.toml", "nowhere/a2a3"] {
        let message = Profile::find(path).unwrap_err().to_string();
        assert_eq!(message, format!("{path}: no such file"));
    }
    let message = Profile::find("./").unwrap_err().to_string();
    assert_eq!(message, "./: is a directory; name a file in it");
}

#[test]
fn the_shared_range_ends_before_its_end() {
    let profile = Profile::shipped("a2a3").unwrap();
    let at = hostview_sim::DeviceAddr::new;
    assert!(!profile.in_svm_range(at(0x0fff_ffff_ffff)));
    assert!(profile.in_svm_range(at(0x1000_0000_0000)));
    assert!(profile.in_svm_range(at(0x17ff_ffff_ffff)));
    assert!(!profile.in_svm_range(at(0x1800_0000_0000)));
}
