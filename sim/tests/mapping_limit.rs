//! What happens at the system's limit on mappings: alone in its process, since the limit is the process'.

#![allow(missing_docs)]

use hostview_sim::{DeviceAddr, HostAddr, MemoryMode, PageKind, Profile, RegisterCall, SimHost};

const PAGE: u64 = 4096;

fn view(host: &mut SimHost, base: DeviceAddr, bytes: u64) -> HostAddr {
    host.register(RegisterCall::view(base, bytes)).unwrap()
}

fn the_books_go_on_at_the_limit() {
    let mut host = SimHost::new(&Profile::shipped("a2a3").unwrap());
    // Blocks over 2 MiB are protected by mprotect: each of these is a mapping of its own.
    let base = host.alloc(0, PageKind::Ordinary, 512 << 20).unwrap();
    for page in 0..40_000 {
        view(&mut host, base.wrapping_add(2 * page * PAGE), PAGE);
    }
    assert!(
        matches!(host.memory_mode(), MemoryMode::Bookkeeping(reason) if reason.contains("the system allows a process"))
    );
    let at = |page: u64| HostAddr::new(base.get() + page * PAGE);
    assert!(host.host_write(at(79_998), &[1]).is_ok());
    assert!(host.host_write(at(79_999), &[1]).is_err());
    assert!(host.host_read(at(0), &mut [0]).is_ok());
}

#[test]
fn where_the_system_has_no_room_for_more_mappings_the_books_go_on_until_the_host_is_gone() {
    the_books_go_on_at_the_limit();
    let mut host = SimHost::new(&Profile::shipped("a2a3").unwrap());
    let base = host.alloc(0, PageKind::Huge, 4 << 20).unwrap();
    view(&mut host, base, 4 << 20);
    assert_eq!(host.memory_mode(), &MemoryMode::Protected);
}
