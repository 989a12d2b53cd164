//! What a host tells of itself: costs, the journal, the log, the heaps, and the names of things.

#![allow(missing_docs)]

use hostview_sim::{
    AclError, ByteCount, CallKind, DeviceAddr, DrvError, Event, FEATURE_REGISTER_RECORDS, HostAddr, PageKind,
    PagePolicy, PlannedFault, Profile, RegisterCall, RegisterFlags, SimHost, cost_of,
};
use rstest::rstest;

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;

fn host(profile: &str) -> SimHost {
    SimHost::new(&Profile::shipped(profile).unwrap())
}

/// From the constants of the profile (`driver.md` §8), in nanoseconds.
#[rstest]
#[case("a2a3", PageKind::Ordinary, 3 * PAGE, 1_440 + 3 * 159, 3_660 + 3 * 60)]
#[case("a2a3", PageKind::Huge, 2 * HUGE, 1_640 + 2 * 892, 3_740 + 1024 * 25)]
#[case("a5-v3", PageKind::Ordinary, 3 * PAGE, 1_440 + 3 * 159, 3_660 + 3 * 60)]
#[case("a5-v3", PageKind::Huge, 2 * HUGE, 1_640 + 2 * 892, 3_740 + 1024 * 25)]
fn a_call_costs_its_floor_and_its_pages(
    #[case] profile: &str,
    #[case] kind: PageKind,
    #[case] bytes: u64,
    #[case] register: u64,
    #[case] unregister: u64,
) {
    let mut host = host(profile);
    let base = host.alloc(0, kind, bytes).unwrap();
    host.register(RegisterCall::view(base, bytes)).unwrap();
    host.unregister(base, 0).unwrap();
    let nanos = |call| cost_of(host.journal(), call).nanos();
    // The last constant has a tenth of a nanosecond and less per page.
    assert!(nanos(CallKind::Register).abs_diff(register) <= 3, "{}", nanos(CallKind::Register));
    assert!(nanos(CallKind::Unregister).abs_diff(unregister) <= 3, "{}", nanos(CallKind::Unregister));
    assert_eq!(host.now(), cost_of(host.journal(), CallKind::Register) + cost_of(host.journal(), CallKind::Unregister));
}

/// A journal is read by others: each event is a line of JSON, and the same event again.
#[test]
fn an_event_is_a_line_of_json() {
    let mut host = host("a2a3");
    let base = host.alloc(0, PageKind::Ordinary, PAGE).unwrap();
    host.register(RegisterCall::view(base, 5)).unwrap();
    host.plan_fault(PlannedFault { call: CallKind::Unregister, nth: 1, error: DrvError::Busy, lasting: true });
    assert_eq!(host.unregister(base, 0), Err(DrvError::Busy));
    host.copy_in(base, &[1; 3]).unwrap();
    assert_eq!(host.free(DeviceAddr::NULL), Err(DrvError::InvalidValue));
    let lines: Vec<String> = host.journal().iter().map(|event| serde_json::to_string(event).unwrap()).collect();
    assert_eq!(
        lines,
        [
            r#"{"call":"alloc","device":0,"bytes":4096,"kind":"ordinary","answer":"allocated","gave":"0x12c000000000","injected":false,"rule":"A10","cost_us":0.0}"#,
            r#"{"call":"register","address":"0x12c000000000","bytes":5,"flags":2,"device":0,"answer":"registered","gave":"0x12c000000000","injected":false,"rule":"v2-R17","cost_us":1.599}"#,
            r#"{"call":"unregister","address":"0x12c000000000","device":0,"answer":"failed","gave":"DRV_ERROR_BUSY","injected":true,"cost_us":0.0}"#,
            r#"{"call":"copy_in","address":"0x12c000000000","bytes":3,"answer":"done","injected":false,"rule":"C2","cost_us":9.70015}"#,
            r#"{"call":"free","address":"0x0","answer":"failed","gave":"DRV_ERROR_INVALID_VALUE","injected":false,"rule":"F3","cost_us":0.0}"#,
        ]
    );
    let back: Vec<Event> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(back, host.journal());
    let wrong = lines[0].replace("0x12c", "12c");
    let error = serde_json::from_str::<Event>(&wrong).unwrap_err().to_string();
    assert!(error.contains("`12c000000000` is no address; give it as 0x12c0"), "{error}");
    let error = serde_json::from_str::<Event>(&lines[2].replace("BUSY", "LAZY")).unwrap_err().to_string();
    assert!(error.contains("no error is called `DRV_ERROR_LAZY`"), "{error}");
}

#[test]
fn a_copy_needs_memory_under_every_byte() {
    let mut host = host("a2a3");
    let base = host.alloc(0, PageKind::Huge, HUGE).unwrap();
    host.copy_in(base, &[1; 16]).unwrap();
    let last = base.wrapping_add(HUGE - 8);
    assert_eq!(host.copy_in(last, &[1; 16]), Err(DrvError::InvalidValue));
    assert_eq!(host.copy_out(last, &mut [0; 16]), Err(DrvError::InvalidValue));
    assert_eq!(host.copy_in(base, &[]), Err(DrvError::InvalidValue));
    host.copy_in(last, &[1; 8]).unwrap();
}

#[test]
fn closing_a_device_leaves_the_other() {
    for profile in ["a2a3", "a5-v3"] {
        let mut host = host(profile);
        let two = [0, 1].map(|device| host.alloc(device, PageKind::Ordinary, PAGE).unwrap());
        for base in two {
            host.register(RegisterCall::view(base, PAGE)).unwrap();
        }
        host.close_device(0);
        let left: Vec<_> = host.registrations().map(|registration| registration.base).collect();
        assert_eq!(left, [two[1]], "{profile}");
        assert_eq!(host.allocation_at(two[0]), None);
        host.unregister(two[1], 1).unwrap();
    }
}

#[test]
fn closing_a_device_takes_its_records_and_leaves_the_others() {
    let mut host = host("a2a3");
    assert!(host.support_feature(FEATURE_REGISTER_RECORDS));
    assert!(!host.support_feature(FEATURE_REGISTER_RECORDS + 1));
    let two = [0, 1].map(|device| host.alloc(device, PageKind::Ordinary, PAGE).unwrap());
    for base in two {
        host.register(RegisterCall::view(base, PAGE)).unwrap();
    }
    host.close_device(0);
    assert_eq!(host.unregister(two[0], 0), Err(DrvError::NotExist));
    host.unregister(two[1], 1).unwrap();
}

/// v2's records are by exact address, and one that overlaps another is swallowed.
#[test]
fn a_record_behind_another_is_kept() {
    let mut host = host("a2a3");
    host.support_feature(FEATURE_REGISTER_RECORDS);
    let base = host.alloc(0, PageKind::Ordinary, 4 * PAGE).unwrap();
    let pages = [0, 1, 3].map(|page| base.wrapping_add(page * PAGE));
    for page in pages {
        host.register(RegisterCall::view(page, PAGE)).unwrap();
    }
    for page in pages {
        host.unregister(page, 0).unwrap();
    }
}

#[test]
fn a_host_pointer_has_a_device_pointer_never() {
    let mut host = host("a2a3");
    let view = HostAddr::new(0x12c0_0000_0000);
    assert_eq!(host.host_device_pointer(HostAddr::NULL, 0), Err(DrvError::ParaError));
    assert_eq!(host.host_device_pointer(view, 66), Err(DrvError::InvalidDevice));
    assert_eq!(host.host_device_pointer(view, 65), Err(DrvError::NotSupport));
    host.support_feature(FEATURE_REGISTER_RECORDS);
    assert_eq!(host.host_device_pointer(view, 0), Err(DrvError::NotExist));
}

#[test]
fn the_log_says_why_a_free_was_refused() {
    let mut host = host("a2a3");
    let base = host.alloc(0, PageKind::Ordinary, PAGE).unwrap();
    let said = |host: &mut SimHost, address| {
        host.free(address).unwrap_err();
        host.log().last().unwrap().clone()
    };
    assert!(said(&mut host, hostview_sim::DeviceAddr::new(0x17ff_0000_0000)).starts_with("Address is not allocated."));
    assert!(said(&mut host, base.wrapping_add(PAGE)).starts_with("Virtual address is not alloced"));
    let large = host.alloc(0, PageKind::Huge, 64 << 20).unwrap();
    host.register(RegisterCall::view(large, HUGE)).unwrap();
    assert!(said(&mut host, large).starts_with("Set free error."));
}

/// v3 asks for a registration anywhere in the allocation, and for nothing beside it.
#[test]
fn a_neighbours_registration_keeps_no_free_from_v3() {
    let mut host = host("a5-v3");
    let [first, second, third] = [(); 3].map(|()| host.alloc(0, PageKind::Ordinary, PAGE).unwrap());
    host.register(RegisterCall::view(second, PAGE)).unwrap();
    assert_eq!(host.free(second), Err(DrvError::Busy));
    host.free(first).unwrap();
    host.free(third).unwrap();
}

#[test]
fn the_heaps_are_told_line_by_line() {
    let mut host = host("a2a3");
    let base = host.alloc(0, PageKind::Ordinary, 2 * PAGE).unwrap();
    host.register(RegisterCall::view(base, PAGE)).unwrap();
    let lines = host.describe_heaps();
    assert_eq!(lines[0], "heap 0x12c000000000: ordinary pages, device 0, 2088960 cached of 18874368 bytes' threshold");
    assert_eq!(lines[1], "  0x12c000000000 live 8192 bytes in block 0x12c000000000 of 2097152, registered from here");
    assert_eq!(lines[2], "  0x12c000002000 idle 2088960 bytes in block 0x12c000000000 of 2097152");
    assert_eq!(lines[3], "  0x12c000200000 unmapped 1071644672 bytes");
    assert_eq!(lines.len(), 4);
}

/// An allocation's size is the one that was asked for, also where it is cut from what was freed.
#[test]
fn an_allocation_tells_the_size_that_was_asked_for() {
    let mut host = host("a2a3");
    let asked = |host: &SimHost, base| host.allocation_at(base).unwrap().requested;
    let first = host.alloc(0, PageKind::Ordinary, 100).unwrap();
    assert_eq!(asked(&host, first), 100);
    host.free(first).unwrap();
    let again = host.alloc(0, PageKind::Ordinary, 200).unwrap();
    assert_eq!((again, asked(&host, again)), (first, 200));
    assert_eq!(host.allocation_at(first.wrapping_add(PAGE)), None);
}

#[test]
fn a_note_is_written_once() {
    let mut host = host("a2a3");
    let before = host.log().len();
    for _ in 0..2 {
        host.note_once("one");
        host.note_once("two");
    }
    assert_eq!(host.log()[before..], ["one", "two"]);
}

#[test]
fn a_planned_fault_can_be_forgotten() {
    let mut host = host("a2a3");
    host.plan_fault(PlannedFault { call: CallKind::Alloc, nth: 1, error: DrvError::Busy, lasting: false });
    host.clear_faults();
    host.alloc(0, PageKind::Ordinary, PAGE).unwrap();
}

/// `runtime.md` §5.
#[rstest]
#[case(DrvError::NoDevice, 207_004)]
#[case(DrvError::InvalidDevice, 107_001)]
#[case(DrvError::InvalidValue, 107_000)]
#[case(DrvError::InvalidHandle, 107_017)]
#[case(DrvError::InvalidMallocType, 107_018)]
#[case(DrvError::OutOfMemory, 207_001)]
#[case(DrvError::RepeatedInit, 207_015)]
#[case(DrvError::NoResources, 207_005)]
#[case(DrvError::OperNotPermitted, 207_006)]
#[case(DrvError::NotSupport, 207_000)]
#[case(DrvError::Busy, 507_899)]
#[case(DrvError::ParaError, 507_899)]
fn the_runtime_gives_a_driver_error_its_own_number(#[case] error: DrvError, #[case] number: u32) {
    assert_eq!(AclError::from(error).code(), number);
}

#[test]
fn names_are_the_fields() {
    assert_eq!([PageKind::Ordinary, PageKind::Huge].map(|kind| kind.to_string()), ["ordinary", "huge"]);
    for (policy, name) in PagePolicy::ALL.into_iter().zip(["huge_first", "huge_only", "normal_only"]) {
        assert_eq!((policy.name(), name.parse()), (name, Ok(policy)));
    }
    assert!("huge".parse::<PagePolicy>().is_err());
    assert_eq!(ByteCount(1023).to_string(), "1023 B");
    assert_eq!(ByteCount(960).to_string(), "960 B");
    assert_eq!(RegisterFlags::READ_ONLY_VIEW.0, 0x1000_0002);
}

#[test]
fn calls_are_named_as_cases_name_them() {
    use CallKind::{Alloc, CopyIn, CopyOut, Free, Register, Unregister};
    let names = [Alloc, Free, Register, Unregister, CopyIn, CopyOut].map(|call| call.to_string());
    assert_eq!(names, ["alloc", "free", "register", "unregister", "copy_in", "copy_out"]);
}
