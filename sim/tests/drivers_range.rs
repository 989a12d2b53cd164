//! Which simulated host sits at the driver's own addresses: one at a time in a process. Alone in its file for that.

#![allow(missing_docs)]

use hostview_sim::{HostAddr, PageKind, Profile, RegisterCall, SimHost, resident_bytes};

#[test]
fn one_host_at_a_time_sits_at_the_drivers_addresses() {
    let profile = Profile::shipped("a2a3").unwrap();
    let view = |host: &mut SimHost| {
        let base = host.alloc(0, PageKind::Ordinary, 4096).unwrap();
        host.register(RegisterCall::view(base, 4096)).unwrap()
    };
    let mut first = SimHost::new(&profile);
    let mut second = SimHost::new(&profile);
    let views = [view(&mut first), view(&mut second)];
    assert_eq!(views[0], views[1]);
    assert!(first.at_drivers_range() && !second.at_drivers_range());
    assert_eq!(first.pointer(views[0]), Some(views[0].get()));
    assert_ne!(second.pointer(views[1]), Some(views[1].get()));
    // The place follows the view, byte by byte, and ends with the simulated range.
    let place = second.pointer(views[1]).unwrap();
    assert_eq!(second.pointer(views[1].wrapping_add(100)), Some(place + 100));
    assert_eq!(second.pointer(HostAddr::new(0x1000)), None);
    drop(first);
    assert!(SimHost::new(&profile).at_drivers_range());
    // A process is never under some hundred pages, nor is a simulated device resident.
    assert!((1 << 19..1 << 30).contains(&resident_bytes().unwrap()));
}
