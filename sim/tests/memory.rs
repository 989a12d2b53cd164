//! Memory that really faults, and what it costs to have it.

#![allow(missing_docs)]

use std::process::Command;

use hostview_sim::{
    Access, CallKind, DeviceAddr, DrvError, HostAddr, MemoryMode, PageKind, PagePolicy, PlannedFault, Profile,
    RegisterCall, RegisterFlags, SimHost, SimOptions, resident_bytes,
};
use proptest::prelude::*;

const PAGE: u64 = 4096;

fn a2a3() -> SimHost {
    SimHost::new(&Profile::shipped("a2a3").unwrap())
}

fn books() -> SimHost {
    let options = SimOptions { bookkeeping: Some("a test".to_owned()), ..SimOptions::default() };
    SimHost::with_options(&Profile::shipped("a2a3").unwrap(), &options)
}

fn view(host: &mut SimHost, base: DeviceAddr, bytes: u64) -> HostAddr {
    host.register(RegisterCall::view(base, bytes)).unwrap()
}

#[test]
fn memory_is_protected_on_this_system() {
    assert_eq!(a2a3().memory_mode(), &MemoryMode::Protected);
}

#[test]
fn each_side_reads_what_the_other_wrote() {
    for mut host in [a2a3(), books()] {
        let base = host.alloc(0, PageKind::Ordinary, 10_000).unwrap();
        let at = view(&mut host, base, 10_000);
        let bytes: Vec<u8> = (0..10_000_u32).map(|n| n as u8).collect();
        host.host_write(at, &bytes).unwrap();
        let mut found = vec![0; 10_000];
        host.copy_out(base, &mut found).unwrap();
        assert_eq!(found, bytes);
        host.copy_in(base.wrapping_add(5000), &[7; 100]).unwrap();
        let mut seen = [0; 100];
        host.host_read(at.wrapping_add(5000), &mut seen).unwrap();
        assert_eq!(seen, [7; 100]);
    }
}

#[test]
fn a_fault_names_its_first_byte() {
    for mut host in [a2a3(), books()] {
        let base = host.alloc(0, PageKind::Ordinary, 4 * PAGE).unwrap();
        let at = view(&mut host, base, 2 * PAGE);
        let fault = host.host_read(at.wrapping_add(PAGE), &mut vec![0; 2 * PAGE as usize]).unwrap_err();
        assert_eq!(fault.address, at.wrapping_add(2 * PAGE));
        let outside = HostAddr::new(0x1234);
        assert_eq!(host.host_read(outside, &mut [0]).unwrap_err().address, outside);
    }
}

#[test]
fn a_read_only_view_takes_loads_and_no_stores() {
    for mut host in [a2a3(), books()] {
        for kind in [PageKind::Ordinary, PageKind::Huge] {
            let base = host.alloc(0, kind, PAGE).unwrap();
            let call = RegisterCall { flags: RegisterFlags::READ_ONLY_VIEW, ..RegisterCall::view(base, PAGE) };
            let at = host.register(call).unwrap();
            assert!(host.host_read(at, &mut [0]).is_ok());
            assert!(host.host_write(at, &[1]).is_err());
            host.unregister(base, 0).unwrap();
            let at = view(&mut host, base, PAGE);
            assert!(host.host_write(at, &[1]).is_ok());
        }
    }
}

#[test]
fn one_host_sits_at_the_drivers_range_and_all_speak_its_addresses() {
    let mut hosts: Vec<SimHost> = (0..3).map(|_| a2a3()).collect();
    assert!(hosts.iter().filter(|host| host.at_drivers_range()).count() <= 1);
    for (index, host) in hosts.iter_mut().enumerate() {
        let base = host.alloc(0, PageKind::Ordinary, PAGE).unwrap();
        let at = view(host, base, PAGE);
        assert_eq!((base.get(), at.get()), (0x12c0_0000_0000, 0x12c0_0000_0000));
        host.host_write(at, &[index as u8]).unwrap();
        let here = host.pointer(at).unwrap();
        assert_eq!(here == at.get(), host.at_drivers_range());
    }
    for (index, host) in hosts.iter_mut().enumerate() {
        let mut byte = [0];
        host.host_read(HostAddr::new(0x12c0_0000_0000), &mut byte).unwrap();
        assert_eq!(usize::from(byte[0]), index);
    }
}

#[test]
fn hundreds_of_thousands_of_small_registrations_live_at_once() {
    const COUNT: usize = 200_000;
    let mut host = a2a3();
    let bases: Vec<DeviceAddr> = (0..2 * COUNT).map(|_| host.alloc(0, PageKind::Ordinary, PAGE).unwrap()).collect();
    // Every other page, so that no two registrations touch.
    for base in bases.iter().step_by(2) {
        view(&mut host, *base, PAGE);
    }
    assert_eq!(host.memory_mode(), &MemoryMode::Protected);
    for index in [0, COUNT / 2, COUNT] {
        let at = |index: usize| HostAddr::new(bases[index].get());
        assert!(host.host_read(at(index & !1), &mut [0]).is_ok());
        assert!(host.host_read(at(index | 1), &mut [0]).is_err());
    }
    assert_eq!(host.registrations().count(), COUNT);
}

#[test]
fn thirty_eight_gib_of_allocations_cost_some_mib() {
    let before = resident_bytes().unwrap();
    let mut host = a2a3();
    for _ in 0..38 {
        let base = host.rt_malloc(0, 1 << 30, PagePolicy::HugeFirst).unwrap();
        let at = view(&mut host, base, 1 << 30);
        host.host_write(at.wrapping_add((1 << 30) - 1), &[1]).unwrap();
    }
    let grown = resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < 64 << 20, "grew by {grown} bytes");
}

/// What ends a view ends no other, and memory stays protected: books would tell the same.
#[test]
fn the_end_of_a_view_leaves_its_neighbours_to_the_host() {
    for kind in [PageKind::Ordinary, PageKind::Huge] {
        let mut host = a2a3();
        let bases: Vec<DeviceAddr> = (0..3).map(|_| host.alloc(0, kind, 4 << 20).unwrap()).collect();
        let views: Vec<HostAddr> = bases.iter().map(|base| view(&mut host, *base, 4 << 20)).collect();
        host.unregister(bases[1], 0).unwrap();
        let readable: Vec<bool> = views.iter().map(|view| host.host_read(*view, &mut [0]).is_ok()).collect();
        assert_eq!(readable, [true, false, true]);
        assert_eq!(host.memory_mode(), &MemoryMode::Protected);
    }
}

#[test]
fn memory_that_the_kernel_has_back_reads_as_zeroes_to_its_next_owner() {
    for mut host in [a2a3(), books()] {
        let base = host.alloc(0, PageKind::Huge, 100 << 20).unwrap();
        host.copy_in(base, &[9; 16]).unwrap();
        host.free(base).unwrap();
        assert_eq!(host.alloc(0, PageKind::Huge, 100 << 20), Ok(base));
        let mut bytes = [1; 16];
        host.copy_out(base, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 16]);
    }
}

#[test]
fn closing_a_device_ends_its_registrations_and_no_others() {
    let mut host = a2a3();
    let mine = host.alloc(0, PageKind::Ordinary, PAGE).unwrap();
    let other = host.alloc(1, PageKind::Ordinary, PAGE).unwrap();
    let (mine_at, other_at) = (view(&mut host, mine, PAGE), view(&mut host, other, PAGE));
    host.close_device(0);
    assert!(host.host_read(mine_at, &mut [0]).is_err());
    assert!(host.host_read(other_at, &mut [0]).is_ok());
    assert_eq!(host.registrations().count(), 1);
    assert_eq!(host.device_memory_used(0), 0);
    // What comes after starts from nothing.
    let again = host.alloc(0, PageKind::Ordinary, PAGE).unwrap();
    view(&mut host, again, PAGE);
}

#[test]
fn a_planned_fault_leaves_no_trace_in_the_device() {
    let mut host = a2a3();
    let base = host.alloc(0, PageKind::Ordinary, PAGE).unwrap();
    let kinds = [(CallKind::Register, 0), (CallKind::Unregister, 1), (CallKind::Free, 1)];
    for (call, _) in kinds {
        host.plan_fault(PlannedFault { call, nth: 1, error: DrvError::TryAgain, lasting: false });
    }
    assert_eq!(host.register(RegisterCall::view(base, PAGE)), Err(DrvError::TryAgain));
    assert_eq!(host.registrations().count(), 0);
    view(&mut host, base, PAGE);
    assert_eq!(host.unregister(base, 0), Err(DrvError::TryAgain));
    assert_eq!(host.registrations().count(), 1);
    assert_eq!(host.free(base), Err(DrvError::TryAgain));
    assert_eq!(host.allocations().count(), 1);
    host.unregister(base, 0).unwrap();
    host.free(base).unwrap();
}

/// A child process that loads through a pointer as a program would.
mod real_signal {
    #![allow(unsafe_code, reason = "a load through a loose pointer is what is tested")]

    use super::*;

    const CHILD: &str = "HOSTVIEW_TEST_LOADS_STALE";

    fn child(when: &str) -> std::process::ExitStatus {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "real_signal::loads_in_the_child", "--nocapture"])
            .env(CHILD, when)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
    }

    #[test]
    fn loads_in_the_child() {
        let Ok(when) = std::env::var(CHILD) else { return };
        let mut host = a2a3();
        let kind = if when.ends_with("huge") { PageKind::Huge } else { PageKind::Ordinary };
        let base = host.alloc(0, kind, PAGE).unwrap();
        let pointer = host.pointer(HostAddr::new(base.get())).unwrap() as *const u8;
        if when.starts_with("registered") || when.starts_with("stale") {
            view(&mut host, base, PAGE);
        }
        if when.starts_with("stale") {
            host.unregister(base, 0).unwrap();
        }
        // SAFETY: the address is mapped by the host for as long as it lives; where it is inaccessible the process ends,
        // which is what the parent looks for.
        let byte = unsafe { pointer.read_volatile() };
        assert_eq!(byte, 0);
    }

    #[test]
    fn a_stale_pointer_is_a_segmentation_fault_and_a_live_one_is_not() {
        use std::os::unix::process::ExitStatusExt as _;
        for kind in ["ordinary", "huge"] {
            assert!(child(&format!("registered-{kind}")).success());
            assert_eq!(child(&format!("never-{kind}")).signal(), Some(11));
            assert_eq!(child(&format!("stale-{kind}")).signal(), Some(11));
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc(u64, bool),
    Free(usize),
    Register(usize, u64, u64, bool),
    Unregister(usize, u64),
    Write(usize, u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let pages = || 0_u64..6;
    let op = prop_oneof![
        (1_u64..40_000, any::<bool>()).prop_map(|(bytes, huge)| Op::Alloc(bytes, huge)),
        (38_u64 << 20..50 << 20, Just(true)).prop_map(|(bytes, huge)| Op::Alloc(bytes, huge)),
        any::<usize>().prop_map(Op::Free),
        (any::<usize>(), pages(), pages(), any::<bool>()).prop_map(|(a, b, c, d)| Op::Register(a, b, c, d)),
        (any::<usize>(), pages()).prop_map(|(a, b)| Op::Unregister(a, b)),
        (any::<usize>(), 0_u64..40_000).prop_map(|(a, b)| Op::Write(a, b)),
    ];
    prop::collection::vec(op, 1..60)
}

fn apply(host: &mut SimHost, bases: &mut Vec<DeviceAddr>, op: &Op) -> String {
    let pick = |bases: &[DeviceAddr], which: usize| bases.get(which % bases.len().max(1)).copied();
    match op {
        Op::Alloc(bytes, huge) => {
            let kind = if *huge { PageKind::Huge } else { PageKind::Ordinary };
            let base = host.alloc(0, kind, *bytes);
            bases.extend(base);
            format!("{base:?}")
        }
        Op::Free(which) => format!("{:?}", pick(bases, *which).map(|base| host.free(base))),
        Op::Register(which, page, pages, read_only) => {
            let flags = if *read_only { RegisterFlags::READ_ONLY_VIEW } else { RegisterFlags::VIEW };
            let call = pick(bases, *which).map(|base| {
                let call = RegisterCall::view(base.wrapping_add(page * PAGE), pages * PAGE);
                host.register(RegisterCall { flags, ..call })
            });
            format!("{call:?}")
        }
        Op::Unregister(which, page) => {
            format!("{:?}", pick(bases, *which).map(|base| host.unregister(base.wrapping_add(page * PAGE), 0)))
        }
        Op::Write(which, offset) => {
            let at = pick(bases, *which).map(|base| HostAddr::new(base.get() + offset));
            format!("{:?}", at.map(|at| host.host_write(at, &[1])))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// The operating system's protection, the table and the bookkeeping mode all say the same.
    #[test]
    fn protected_memory_and_the_books_agree(ops in ops()) {
        let (mut real, mut kept) = (a2a3(), books());
        let (mut real_bases, mut kept_bases) = (Vec::new(), Vec::new());
        for op in &ops {
            prop_assert_eq!(apply(&mut real, &mut real_bases, op), apply(&mut kept, &mut kept_bases, op));
            for base in &real_bases {
                for page in 0..4 {
                    let at = HostAddr::new(base.get() + page * PAGE);
                    prop_assert_eq!(real.host_read(at, &mut [0]).is_ok(), real.table_allows(at, 1, Access::Read));
                    prop_assert_eq!(real.host_read(at, &mut [0]).is_ok(), kept.host_read(at, &mut [0]).is_ok());
                }
            }
        }
        prop_assert_eq!(real.memory_mode(), &MemoryMode::Protected);
        prop_assert_eq!(real.now(), kept.now());
        prop_assert_eq!(real.registrations().collect::<Vec<_>>(), kept.registrations().collect::<Vec<_>>());
    }
}
