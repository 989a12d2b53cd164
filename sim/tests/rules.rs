//! Which rule decides: each by a call that comes to it, and in the order of the decision tables.

#![allow(missing_docs)]

use std::collections::BTreeSet;

use hostview_sim::{
    Access, DeviceAddr, Event, FEATURE_REGISTER_RECORDS, HostAddr, Outcome, PageKind, Profile, RegisterCall,
    RegisterFlags, Rule, SimHost, Then, Topic,
};
use rstest::rstest;

const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;
const MIB: u64 = 1 << 20;
const MALLOC: DeviceAddr = DeviceAddr::new(0x7f12_3456_7000);
const NEVER: DeviceAddr = DeviceAddr::new(0x17ff_0000_0000);

type Scene = fn(&mut SimHost);

fn a(host: &mut SimHost, kind: PageKind, bytes: u64) -> DeviceAddr {
    host.alloc(0, kind, bytes).unwrap()
}

fn small(host: &mut SimHost) -> DeviceAddr {
    a(host, PageKind::Ordinary, PAGE)
}

fn view(host: &mut SimHost, address: DeviceAddr, bytes: u64) {
    let _ = host.register(RegisterCall::view(address, bytes));
}

fn flags(host: &mut SimHost, address: DeviceAddr, flags: u32, device: u32) {
    let flags = RegisterFlags(flags);
    let _ = host.register(RegisterCall { flags, device, ..RegisterCall::view(address, PAGE) });
}

fn nowhere_to_put_it(host: &mut SimHost) {
    let base = small(host);
    let _ = host.register(RegisterCall { has_dst: false, ..RegisterCall::view(base, PAGE) });
}

/// A registered allocation is freed.
fn free_registered(host: &mut SimHost, kind: PageKind, bytes: u64) {
    let base = a(host, kind, bytes);
    view(host, base, HUGE);
    let _ = host.free(base);
}

fn registered(host: &mut SimHost) -> DeviceAddr {
    let base = a(host, PageKind::Ordinary, 4 * PAGE);
    view(host, base, 4 * PAGE);
    base
}

fn freed(host: &mut SimHost) -> DeviceAddr {
    let base = small(host);
    host.free(base).unwrap();
    base
}

/// The rule, the profile, and calls whose last one comes to it.
const SCENES: &[(&str, &str, Scene)] = &[
    ("A1", "a2a3", |host| _ = host.alloc(66, PageKind::Huge, 0)),
    ("A2", "a2a3", |host| _ = host.alloc(65, PageKind::Huge, 0)),
    ("A3", "a2a3", |host| _ = host.alloc(1, PageKind::Huge, 0)),
    ("A4", "a2a3", |host| _ = host.alloc(0, PageKind::Huge, (64 << 30) + 1)),
    ("A4", "a2a3", |host| _ = host.alloc(0, PageKind::Huge, u64::MAX)),
    ("A5", "a2a3", |host| _ = a(host, PageKind::Huge, 512 * MIB + 1)),
    ("A6", "a2a3", |host| {
        freed(host);
        small(host);
    }),
    // What is left of the kernel's block is in the cache as well.
    ("A6", "a2a3", |host| {
        small(host);
        small(host);
    }),
    ("A7", "few-addresses", |host| {
        a(host, PageKind::Huge, HUGE);
        a(host, PageKind::Ordinary, HUGE);
        let _ = host.alloc(1, PageKind::Huge, HUGE);
    }),
    ("A7", "few-addresses", |host| _ = host.alloc(0, PageKind::Huge, 3 << 30)),
    ("A8", "little-memory", |host| {
        for _ in 0..4 {
            a(host, PageKind::Huge, 256 * MIB);
        }
        let _ = host.alloc(0, PageKind::Huge, 1);
    }),
    ("A8", "little-memory", |host| {
        a(host, PageKind::Huge, 512 * MIB);
        let _ = host.alloc(0, PageKind::Huge, 600 * MIB);
    }),
    ("A9", "a2a3", |host| {
        a(host, PageKind::Huge, HUGE);
        a(host, PageKind::Huge, HUGE);
    }),
    ("A10", "a2a3", |host| _ = small(host)),
    ("F1", "a2a3", |host| _ = host.free(NEVER)),
    ("F2", "a5-v3", |host| free_registered(host, PageKind::Huge, HUGE)),
    ("F3", "a2a3", |host| {
        freed(host);
        let _ = host.free(DeviceAddr::NULL);
    }),
    ("F3", "a2a3", |host| {
        let base = freed(host);
        let _ = host.free(base);
    }),
    ("F3", "a2a3", |host| {
        let base = a(host, PageKind::Ordinary, 2 * PAGE);
        let _ = host.free(base.wrapping_add(PAGE));
    }),
    ("F4", "a2a3", |host| free_registered(host, PageKind::Huge, 512 * MIB + 1)),
    ("F5", "a2a3", |host| {
        let base = a(host, PageKind::Huge, 512 * MIB + 1);
        host.free(base).unwrap();
    }),
    ("F6", "a2a3", |host| free_registered(host, PageKind::Huge, 512 * MIB)),
    ("F7", "a2a3", |host| {
        let base = a(host, PageKind::Huge, 36 * MIB + 1);
        host.free(base).unwrap();
    }),
    ("F8", "a2a3", |host| free_registered(host, PageKind::Huge, 36 * MIB)),
    ("v2-R1", "a2a3", |host| flags(host, MALLOC, 7, 66)),
    ("v2-R2", "a2a3", |host| flags(host, MALLOC, 2 | 6 << 16, 66)),
    ("v2-R3", "a2a3", |host| flags(host, MALLOC, 2 | 6 << 16, 0)),
    ("v2-R4", "a2a3", nowhere_to_put_it),
    ("v2-R5", "a2a3", |host| view(host, NEVER, 0)),
    ("v2-R5", "a2a3", |host| {
        let base = a(host, PageKind::Huge, 100 * MIB);
        host.free(base).unwrap();
        view(host, base, HUGE);
    }),
    ("v2-R7", "a2a3", |host| view(host, MALLOC, PAGE)),
    ("v2-R18", "no-path", |host| view(host, MALLOC, PAGE)),
    ("v2-R19", "a2a3", |host| flags(host, MALLOC, 0, 0)),
    ("v2-R20", "a2a3-64k", |host| {
        let base = small(host);
        flags(host, base, 1, 0);
    }),
    ("v2-R9", "a2a3-64k", |host| {
        let base = small(host);
        view(host, base, 0);
    }),
    ("v2-R10", "a2a3-64k", |host| {
        let base = small(host);
        flags(host, base, 2 | 1 << 16, 0);
    }),
    ("v2-R11", "a2a3-64k", |host| {
        let base = small(host);
        view(host, base.wrapping_add(1), 2 << 30);
    }),
    ("v2-R12", "a2a3", |host| {
        let base = small(host);
        view(host, base.wrapping_add(1), 1 << 30);
    }),
    ("v2-R13", "a2a3", |host| {
        let base = registered(host);
        view(host, base.wrapping_add(1), PAGE);
    }),
    ("v2-R14", "a2a3", |host| {
        let base = registered(host);
        view(host, base, 4 * HUGE);
    }),
    ("v2-R15", "a2a3", |host| {
        let base = registered(host);
        view(host, base.wrapping_add(PAGE), 4 * HUGE);
    }),
    ("v2-R16", "a2a3", |host| {
        let base = small(host);
        view(host, base, 4 * HUGE);
    }),
    ("v2-R17", "a2a3", |host| _ = registered(host)),
    ("v2-U1", "a2a3", |host| {
        let base = registered(host);
        host.support_feature(FEATURE_REGISTER_RECORDS);
        let _ = host.unregister(base, 0);
    }),
    ("v2-U2", "a2a3", |host| _ = host.unregister_ex(MALLOC, 66, RegisterFlags(7))),
    ("v2-U2", "a2a3", |host| _ = host.unregister_ex(MALLOC, 66, RegisterFlags(2 | 6 << 16))),
    ("v2-U3", "a2a3", |host| _ = host.unregister(MALLOC, 66)),
    ("v2-U4", "a2a3", |host| _ = host.unregister(MALLOC, 0)),
    ("v2-U5", "a2a3", |host| _ = host.unregister(NEVER.wrapping_add(1), 66)),
    ("v2-U6", "a2a3", |host| {
        let base = registered(host);
        let _ = host.unregister(base.wrapping_add(1), 0);
    }),
    ("v2-U7", "a2a3", |host| {
        let base = registered(host);
        let _ = host.unregister(base.wrapping_add(PAGE), 0);
    }),
    ("v2-U8", "a2a3", |host| {
        let base = registered(host);
        host.free(base).unwrap();
        host.unregister(base, 0).unwrap();
    }),
    ("v3-R1", "a5-v3", nowhere_to_put_it),
    ("v3-R2", "a5", |host| view(host, DeviceAddr::NULL, 0)),
    ("v3-R3", "a5-v3", |host| flags(host, DeviceAddr::NULL, 7, 0)),
    ("v3-R3", "a5-v3", |host| {
        let base = small(host);
        view(host, base, u64::MAX / 2);
    }),
    ("v3-R4", "a5-v3", |host| flags(host, MALLOC, 2 | 1 << 28, 0)),
    ("v3-R4", "a5-v3", |host| flags(host, MALLOC, 4, 0)),
    ("v3-R5", "a5-v3", |host| view(host, MALLOC, PAGE)),
    ("v3-R6", "a5-v3", |host| {
        let base = freed(host);
        view(host, base.wrapping_add(1), PAGE);
    }),
    ("v3-R7", "a5-v3", |host| {
        let base = small(host);
        view(host, base.wrapping_add(1), 2 * PAGE);
    }),
    ("v3-R8", "a5-v3", |host| {
        let base = registered(host);
        view(host, base, 4 * PAGE + 1);
    }),
    ("v3-R9", "a5-v3", |host| {
        let base = registered(host);
        view(host, base, PAGE);
    }),
    ("v3-R10", "a5-v3", |host| _ = registered(host)),
    ("v3-U1", "a5-v3", |host| _ = host.unregister(DeviceAddr::NULL, 0)),
    ("v3-U2", "a5-v3", |host| _ = host.unregister_ex(DeviceAddr::NULL, 0, RegisterFlags(7))),
    ("v3-U3", "a5-v3", |host| _ = host.unregister_ex(NEVER, 0, RegisterFlags(2 | 1 << 16))),
    ("v3-U4", "a5-v3", |host| _ = host.unregister(NEVER, 0)),
    ("v3-U5", "a5-v3", |host| {
        let base = registered(host);
        let _ = host.unregister(base.wrapping_add(PAGE), 0);
    }),
    ("v3-U6", "a5-v3", |host| {
        let base = registered(host);
        host.unregister(base, 0).unwrap();
    }),
    ("C1", "a2a3", |host| _ = host.copy_in(NEVER, &[0])),
    ("C1", "a2a3", |host| {
        let base = small(host);
        let _ = host.copy_out(base, &mut []);
    }),
    ("C2", "a2a3", |host| {
        let base = small(host);
        host.copy_out(base, &mut [0]).unwrap();
    }),
    ("C2", "a2a3", |host| {
        let base = small(host);
        host.copy_in(base, &[0]).unwrap();
    }),
];

fn host(profile: &str) -> SimHost {
    let changed = |from: &str, keys: &str| {
        Profile::shipped(from).unwrap().overridden(&toml::from_str(keys).unwrap(), "here").unwrap()
    };
    SimHost::new(&match profile {
        "few-addresses" => changed("a2a3", "driver.svm_size = 0x2c080000000"),
        "little-memory" => changed("a2a3", "device.memory = 0x40000000"),
        "no-path" => changed("a2a3", "driver.maps_device_memory = false"),
        shipped => Profile::shipped(shipped).unwrap(),
    })
}

fn decided(event: &Event) -> &'static Rule {
    event.rule.and_then(hostview_sim::RuleId::rule).unwrap()
}

/// Of two rules that could decide, the one that the tables have first does: most scenes break a later rule as well.
#[test]
fn each_call_comes_to_its_rule_and_answers_what_that_says() {
    for (index, (id, profile, scene)) in SCENES.iter().enumerate() {
        let mut host = host(profile);
        scene(&mut host);
        let last = host.journal().last().unwrap();
        assert_eq!(decided(last).id.to_string(), *id, "scene {index}: {last:?}");
        for event in host.journal() {
            let rule = decided(event);
            let fails = match event.outcome {
                Outcome::Failed(error) => Some(error),
                _ => None,
            };
            let says = match rule.then {
                Then::Fails(error) => Some(error),
                Then::Does(_) => None,
            };
            assert_eq!(fails, says, "{event:?}");
            assert_eq!(rule.topic.name(), event.call.kind().name().split('_').next().unwrap(), "{event:?}");
        }
    }
}

#[test]
fn no_rule_of_a_call_is_without_a_call_that_comes_to_it() {
    let reached: BTreeSet<&str> = SCENES.iter().map(|(id, ..)| *id).chain(["F9", "F10"]).collect();
    let of_calls = [Topic::Alloc, Topic::Free, Topic::Register, Topic::Unregister, Topic::Copy];
    let all: Vec<String> =
        Rule::all().iter().filter(|rule| of_calls.contains(&rule.topic)).map(|rule| rule.id.to_string()).collect();
    assert_eq!(all.iter().map(String::as_str).collect::<BTreeSet<_>>(), reached);
}

/// What comes of a free besides: the cache is over twice its threshold, or a heap that is not the only one has nothing left.
#[rstest]
#[case::the_cache_is_over(&[(PageKind::Huge, 36 * MIB); 3], &[None, None, Some("F9")])]
#[case::it_is_not(&[(PageKind::Huge, 34 * MIB); 2], &[None, None])]
#[case::another_heap_is_there(&[(PageKind::Huge, 512 * MIB); 3], &[None, Some("F10"), None])]
fn what_a_free_brings_with_it(#[case] blocks: &[(PageKind, u64)], #[case] besides: &[Option<&str>]) {
    let mut host = host("a2a3");
    let bases: Vec<_> = blocks.iter().map(|(kind, bytes)| a(&mut host, *kind, *bytes)).collect();
    let mut came = Vec::new();
    for base in bases {
        host.free(base).unwrap();
        came.push(host.journal().last().unwrap().besides.map(|rule| rule.to_string()));
    }
    assert_eq!(came.iter().map(Option::as_deref).collect::<Vec<_>>(), besides);
}

#[test]
fn an_access_comes_to_what_the_registration_lets_it() {
    let mut host = host("a2a3");
    let base = a(&mut host, PageKind::Ordinary, 2 * PAGE);
    let rule = |host: &SimHost, offset: u64, bytes: u64, access| {
        host.access_rule(HostAddr::new(base.get() + offset), bytes, access).to_string()
    };
    let both =
        |host: &SimHost, offset, bytes| [Access::Read, Access::Write].map(|access| rule(host, offset, bytes, access));
    assert_eq!(both(&host, 0, 1), ["M3", "M3"]);
    flags(&mut host, base, RegisterFlags::READ_ONLY_VIEW.0, 0);
    assert_eq!(both(&host, 0, 1), ["M1", "M2"]);
    view(&mut host, base.wrapping_add(PAGE), PAGE);
    assert_eq!(both(&host, PAGE, 1), ["M1", "M1"]);
    // Over both pages what one of them refuses is refused; past them nothing is registered.
    assert_eq!(both(&host, PAGE - 1, 2), ["M1", "M2"]);
    assert_eq!(both(&host, PAGE, PAGE + 1), ["M3", "M3"]);
}

/// What lists and messages are made of.
#[test]
fn a_rule_says_its_name_and_how_it_is_known() {
    let rule = Rule::find("v2-r11").unwrap();
    assert_eq!((rule.id.name(), rule.evidence.name(), rule.topic.name()), ("v2-R11", "source", "register"));
    let known: BTreeSet<&str> = Rule::all().iter().map(|rule| rule.evidence.name()).collect();
    assert_eq!(known.into_iter().collect::<Vec<_>>(), ["assumed", "measured", "reported", "source", "trace"]);
}

#[test]
fn a_planned_fault_is_no_rule() {
    let mut host = host("a2a3");
    let fault = hostview_sim::PlannedFault {
        call: hostview_sim::CallKind::Alloc,
        nth: 1,
        error: hostview_sim::DrvError::Busy,
        lasting: false,
    };
    host.plan_fault(fault);
    assert!(host.alloc(0, PageKind::Huge, 1).is_err());
    assert_eq!(host.journal()[0].rule, None);
    a(&mut host, PageKind::Huge, 1);
    assert_eq!(decided(&host.journal()[1]).id.to_string(), "A10");
}
