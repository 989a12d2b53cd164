//! How far a registration reaches, and that nothing of it is left in the host's reach when it ends, however it ends.

#![allow(missing_docs)]

use hostview_sim::{
    DeviceAddr, DrvError, HostAddr, PageKind, Profile, RegisterCall, RegisterFlags, SimHost, SimOptions,
};
use rstest::rstest;

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;

fn host(profile: &str, bookkeeping: bool) -> SimHost {
    let bookkeeping = bookkeeping.then(|| "asked for".to_owned());
    SimHost::with_options(&Profile::shipped(profile).unwrap(), &SimOptions { bookkeeping, ..SimOptions::default() })
}

fn is_seen(host: &mut SimHost, address: DeviceAddr) -> bool {
    let view = HostAddr::new(address.get() + host.profile().driver.view_offset);
    host.host_read(view, &mut [0]).is_ok()
}

/// An allocation of its own heaps: the marks of each GiB are kept apart.
#[rstest]
fn a_registration_over_a_gib_is_one(
    #[values(PageKind::Ordinary, PageKind::Huge)] kind: PageKind,
    #[values(false, true)] bookkeeping: bool,
) {
    let bytes = (2 << 30) + HUGE;
    let mut host = host("a2a3", bookkeeping);
    let base = host.alloc(0, kind, bytes).unwrap();
    host.register(RegisterCall::view(base, bytes)).unwrap();
    let lengths: Vec<u64> = host.registrations().map(|registration| registration.bytes).collect();
    assert_eq!(lengths, [bytes]);
    let last = base.wrapping_add(bytes - 1);
    assert!(is_seen(&mut host, last));
    host.unregister(base, 0).unwrap();
    for offset in [0, 1 << 30, 2 << 30, bytes - 1] {
        assert!(!is_seen(&mut host, base.wrapping_add(offset)), "{offset:#x}");
    }
    // Nothing of it is in the way of another.
    host.register(RegisterCall::view(base, bytes)).unwrap();
}

/// `driver.md` §6: device close unmaps everything, whatever of a block was registered.
#[rstest]
fn nothing_of_a_closed_device_is_seen(
    #[values("a2a3", "a5-v3", "shifted")] profile: &str,
    #[values((PageKind::Ordinary, PAGE), (PageKind::Huge, HUGE))] (kind, page): (PageKind, u64),
    #[values(false, true)] bookkeeping: bool,
) {
    let mut host = host(profile, bookkeeping);
    let base = host.alloc(0, kind, 8 * page).unwrap();
    for at in [1, 4, 5] {
        host.register(RegisterCall::view(base.wrapping_add(at * page), page)).unwrap();
    }
    let seen = |host: &mut SimHost| (0..8).map(|at| is_seen(host, base.wrapping_add(at * page))).collect::<Vec<_>>();
    assert_eq!(seen(&mut host), [false, true, false, false, true, true, false, false]);
    let mode = host.memory_mode().clone();
    host.close_device(0);
    assert_eq!(seen(&mut host), [false; 8]);
    // No change of protection was refused on the way: the host would go on by its table alone.
    assert_eq!(*host.memory_mode(), mode);
}

/// The same through every kind of change to a block with several registrations.
#[test]
fn protection_is_never_given_up_on_the_way() {
    let mut host = host("a2a3", false);
    let mode = host.memory_mode().clone();
    // In the second kernel block, so that a length is not by chance also an end.
    host.alloc(0, PageKind::Ordinary, HUGE).unwrap();
    let base = host.alloc(0, PageKind::Ordinary, 4 * PAGE).unwrap();
    let read_only = RegisterCall { flags: RegisterFlags::READ_ONLY_VIEW, ..RegisterCall::view(base, PAGE) };
    for _ in 0..2 {
        let view = host.register(read_only).unwrap();
        assert!(is_seen(&mut host, base) && host.host_write(view, &[1]).is_err());
        host.unregister(base, 0).unwrap();
        assert!(!is_seen(&mut host, base));
        let view = host.register(RegisterCall::view(base, PAGE)).unwrap();
        host.host_write(view, &[1]).unwrap();
        host.unregister(base, 0).unwrap();
    }
    host.register(RegisterCall::view(base, 2 * PAGE)).unwrap();
    host.close_device(0);
    assert!(!is_seen(&mut host, base));
    let again = host.alloc(0, PageKind::Huge, HUGE).unwrap();
    host.register(RegisterCall::view(again, HUGE)).unwrap();
    assert!(is_seen(&mut host, again));
    assert_eq!(*host.memory_mode(), mode);
}

#[test]
fn registrations_that_touch_are_two_on_v3() {
    let mut host = host("a5-v3", false);
    let base = host.alloc(0, PageKind::Ordinary, 3 * PAGE).unwrap();
    let second = base.wrapping_add(PAGE);
    host.register(RegisterCall::view(base, PAGE)).unwrap();
    host.register(RegisterCall::view(second, PAGE)).unwrap();
    let overlap = RegisterCall::view(base, 2 * PAGE);
    assert_eq!(host.register(overlap), Err(DrvError::RepeatedUserd));
    host.unregister(base, 0).unwrap();
    assert!(is_seen(&mut host, second));
}

/// `driver-source.md` §14.3.
#[test]
fn v3_tells_an_interior_address_from_one_that_is_not_registered() {
    let mut host = host("a5-v3", false);
    let base = host.alloc(0, PageKind::Ordinary, 4 * PAGE).unwrap();
    host.register(RegisterCall::view(base.wrapping_add(PAGE), 2 * PAGE)).unwrap();
    let said = |host: &mut SimHost, page: u64| {
        assert_eq!(host.unregister(base.wrapping_add(page * PAGE), 0), Err(DrvError::ParaError));
        host.log().last().unwrap().clone()
    };
    assert!(said(&mut host, 0).starts_with("Addr is not register."));
    assert!(said(&mut host, 2).starts_with("Should be the registered start va."));
    assert!(said(&mut host, 3).starts_with("Addr is not register."));
    for flags in [7, 2 | 1 << 16] {
        let refused = host.unregister_ex(base.wrapping_add(PAGE), 0, RegisterFlags(flags));
        assert_eq!(refused, Err(DrvError::NotSupport), "{flags:#x}");
    }
}

/// [`hostview_sim::Fault`]: the first byte that could not be accessed.
#[rstest]
fn a_fault_names_the_first_byte_that_is_out_of_reach(
    #[values(0, 1, 4095)] from: u64,
    #[values(PAGE, 3 * PAGE)] registered: u64,
    #[values(false, true)] bookkeeping: bool,
) {
    let mut host = host("a2a3", bookkeeping);
    let base = host.alloc(0, PageKind::Ordinary, 8 * PAGE).unwrap();
    let view = host.register(RegisterCall::view(base, registered)).unwrap();
    let bytes = vec![0x5a; (registered - from + 2 * PAGE) as usize];
    let first = view.wrapping_add(registered);
    let read = host.host_read(view.wrapping_add(from), &mut bytes.clone()).unwrap_err();
    assert_eq!(read.address, first);
    let written = host.host_write(view.wrapping_add(from), &bytes).unwrap_err();
    assert_eq!(written.address, first);
    // The access before, which failed half-way, is in no later one's way.
    let mut byte = [0];
    host.host_write(view, &[7]).unwrap();
    host.host_read(view, &mut byte).unwrap();
    assert_eq!(byte, [7]);
}

#[rstest]
fn bytes_lie_where_they_were_put_across_pages(#[values(false, true)] bookkeeping: bool) {
    let mut host = host("a2a3", bookkeeping);
    let base = host.alloc(0, PageKind::Ordinary, 4 * PAGE).unwrap();
    let view = host.register(RegisterCall::view(base, 4 * PAGE)).unwrap();
    let pattern: Vec<u8> = (0..2 * PAGE + 100).map(|at| (at % 251) as u8).collect();
    host.copy_in(base.wrapping_add(100), &pattern).unwrap();
    for (at, expected) in pattern.iter().enumerate().step_by(97) {
        let (mut copied, mut seen) = ([0], [0]);
        host.copy_out(base.wrapping_add(100 + at as u64), &mut copied).unwrap();
        host.host_read(view.wrapping_add(100 + at as u64), &mut seen).unwrap();
        assert_eq!((copied, seen), ([*expected], [*expected]), "{at}");
    }
    let mut all = vec![0; pattern.len()];
    host.host_read(view.wrapping_add(100), &mut all).unwrap();
    assert_eq!(all, pattern);
}

/// What ends far into one device's memory neither takes nor shows anything of what lies behind it.
#[rstest]
fn the_end_of_a_block_changes_nothing_behind_it(
    #[values((PageKind::Ordinary, PAGE), (PageKind::Huge, HUGE))] (kind, page): (PageKind, u64),
) {
    let mut host = host("a2a3", false);
    for _ in 0..2 {
        host.alloc(0, PageKind::Ordinary, 400 << 20).unwrap();
    }
    let far = host.alloc(0, PageKind::Ordinary, 4 * PAGE).unwrap();
    let other = host.alloc(1, kind, 2 * page).unwrap();
    assert!(far < other && other.get() < far.get() + (1 << 30));
    let read_only = RegisterCall { flags: RegisterFlags::READ_ONLY_VIEW, ..RegisterCall::view(far, PAGE) };
    let view = host.register(RegisterCall::view(other, page)).unwrap();
    host.register(read_only).unwrap();
    host.unregister(far, 0).unwrap();
    host.register(RegisterCall::view(far, PAGE)).unwrap();
    host.host_write(view, &[1]).unwrap();
    host.close_device(0);
    host.host_write(view, &[2]).unwrap();
    let beside = other.wrapping_add(page);
    assert!(is_seen(&mut host, other) && !is_seen(&mut host, beside) && !is_seen(&mut host, far));
}

/// Small blocks of ordinary pages are fenced in another way than large ones; where they touch, each is fenced in its own.
#[test]
fn a_large_block_behind_a_small_one_is_seen_from_its_first_page() {
    let mut host = host("a2a3", false);
    let small = host.alloc(0, PageKind::Ordinary, HUGE).unwrap();
    let large = host.alloc(0, PageKind::Ordinary, 2 * HUGE).unwrap();
    assert_eq!(large, small.wrapping_add(HUGE));
    host.register(RegisterCall::view(small, PAGE)).unwrap();
    let view = host.register(RegisterCall::view(large, PAGE)).unwrap();
    host.host_write(view, &[1]).unwrap();
    host.unregister(large, 0).unwrap();
    assert!(is_seen(&mut host, small) && !is_seen(&mut host, large));
}
