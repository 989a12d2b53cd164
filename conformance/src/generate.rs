//! What the suite draws: sequences for caches, sizes for D-laws, and profiles that nobody shipped.
//!
//! Every operation is legal in every state: a target that names nothing is left out, one that was freed stands for its
//! stale address. So deleting operations, which is what shrinking does, never makes a sequence meaningless.

use hostview_sim::{
    CallKind, CapabilityOverrides, DrvError, FreeWhileRegistered, Generation, PageKind, PagePolicy, PageSize, Profile,
};
use proptest::prelude::*;
use proptest::sample::select;

use crate::case::{Fail, Op, Pause, Step};
use crate::laws::Draw;

/// The most operations of one sequence.
pub const LONGEST_SEQUENCE: usize = 50;

/// One drawn operation.
#[derive(Clone, Debug)]
pub enum Drawn {
    /// Allocates.
    Alloc {
        /// So many bytes.
        bytes: u64,
        /// By this policy.
        policy: PagePolicy,
        /// On this device, of those that there are.
        device: u8,
    },
    /// Frees an allocation and makes one like it: what brings an address back.
    Again {
        /// Which, of those made so far.
        which: u8,
    },
    /// Something with an allocation that was made before.
    On {
        /// Which, of those made so far.
        which: u8,
        /// What.
        op: Op,
        /// Where in it.
        place: Place,
        /// How many bytes at most.
        bytes: u64,
        /// What a write writes.
        fill: u8,
        /// Whether an acquire keeps its view in use.
        hold: bool,
    },
    /// A view stays in use, and another allocation asks for its room.
    Crowd {
        /// How big both are.
        bytes: (u64, u64),
        /// Whether nothing can be made to go.
        stuck: bool,
    },
    /// An allocation that fails.
    NoMemory {
        /// So many bytes.
        bytes: u64,
        /// By this policy.
        policy: PagePolicy,
    },
    /// Allocates, and at the first access the registration is refused.
    Refusal {
        /// So many bytes.
        bytes: u64,
        /// By this policy.
        policy: PagePolicy,
        /// What asks for the view.
        op: Op,
        /// Where.
        place: Place,
        /// With this.
        error: DrvError,
        /// And every one behind it, until the step is done.
        lasting: bool,
    },
    /// Acquires a view, and lets its end go wrong.
    StuckEnd {
        /// Which, of those made so far.
        which: u8,
        /// `free` or `finalize`.
        op: Op,
        /// What fails.
        call: CallKind,
        /// And every one behind it, until the step is done.
        lasting: bool,
    },
    /// The host reads, the device writes to the same place, and the host reads again.
    Renewal {
        /// Which, of those made so far.
        which: u8,
        /// Where in it.
        place: Place,
        /// How many bytes at most.
        bytes: u64,
        /// What the device writes.
        fill: u8,
    },
    /// Two operations on one allocation, in two threads at once where the subject is made for that.
    Meeting {
        /// Which, of those made so far.
        which: u8,
        /// What stands still in the middle.
        first: Op,
        /// Where.
        pause: Pause,
        /// What runs meanwhile; an alloc makes one like it.
        second: Op,
    },
    /// Something with an address that is nobody's.
    Wild {
        /// What.
        op: Op,
        /// `null` or `nowhere`.
        target: &'static str,
    },
    /// Makes a coming call fail.
    Fault {
        /// Of this kind.
        call: CallKind,
        /// Which one from there on.
        nth: u32,
        /// With this.
        error: DrvError,
        /// And every one behind it, until the step is done.
        lasting: bool,
    },
    /// Finalizes.
    Finalize,
}

/// Where in an allocation an operation works.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// At its base.
    Base,
    /// So many 256ths into it.
    Inside(u8),
    /// At its last byte.
    Last,
    /// Over its end, by one byte.
    OverEnd,
    /// Behind its end.
    Behind,
    /// With a length that wraps.
    Wraps,
    /// With no length.
    Empty,
}

/// Sizes where the edges are: a byte, around each page size, around 1 MiB with and without padding, around the thresholds
/// of the cache, and over 512 MiB.
fn sizes() -> impl Strategy<Value = u64> {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    let around = |edge: u64| (0_u64..=2).prop_map(move |off| edge - 1 + off);
    prop_oneof![
        4 => select(vec![1, 64, 1280, 4 * KIB]),
        4 => around(4 * KIB),
        3 => around(64 * KIB),
        1 => 1..=2 * MIB,
        2 => (0_u64..=34).prop_map(|under| MIB + 1 - under),
        2 => around(2 * MIB),
        2 => around(18 * MIB),
        2 => around(36 * MIB),
        1 => around(512 * MIB),
        1 => Just(512 * MIB + 1),
    ]
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        6 => Just(Place::Base),
        4 => any::<u8>().prop_map(Place::Inside),
        2 => Just(Place::Last),
        1 => Just(Place::OverEnd),
        1 => Just(Place::Behind),
        1 => Just(Place::Wraps),
        1 => Just(Place::Empty),
    ]
}

fn policies() -> impl Strategy<Value = PagePolicy> {
    prop_oneof![3 => Just(PagePolicy::HugeFirst), 1 => Just(PagePolicy::HugeOnly), 1 => Just(PagePolicy::NormalOnly)]
}

fn drawn(threads: bool) -> impl Strategy<Value = Drawn> {
    let on = |op: Op| {
        let hold = prop::bool::weighted(if op == Op::Acquire { 0.25 } else { 0.0 });
        (any::<u8>(), places(), lengths(), any::<u8>(), hold)
            .prop_map(move |(which, place, bytes, fill, hold)| Drawn::On { which, op, place, bytes, fill, hold })
    };
    let free =
        (any::<u8>(), prop_oneof![9 => Just(Place::Base), 1 => Just(Place::Inside(128)), 1 => Just(Place::Last)])
            .prop_map(|(which, place)| Drawn::On { which, op: Op::Free, place, bytes: 1, fill: 0, hold: false });
    let faults = prop_oneof![
        3 => Just((CallKind::Unregister, DrvError::ParaError)),
        1 => Just((CallKind::Unregister, DrvError::Busy)),
        3 => Just((CallKind::Register, DrvError::NotSupport)),
        1 => Just((CallKind::Register, DrvError::Busy)),
        2 => Just((CallKind::Alloc, DrvError::OutOfMemory)),
        1 => Just((CallKind::Free, DrvError::Busy)),
        1 => Just((CallKind::CopyIn, DrvError::InnerErr)),
        1 => Just((CallKind::CopyOut, DrvError::InnerErr)),
    ];
    prop_oneof![
        12 => (sizes(), policies(), any::<u8>())
            .prop_map(|(bytes, policy, device)| Drawn::Alloc { bytes, policy, device }),
        8 => free,
        4 => any::<u8>().prop_map(|which| Drawn::Again { which }),
        10 => on(Op::Acquire),
        2 => on(Op::Release),
        if threads { 12 } else { 2 } => meetings(),
        2 => renewals(),
        3 => refusals(),
        2 => crowds(),
        2 => (sizes(), policies()).prop_map(|(bytes, policy)| Drawn::NoMemory { bytes, policy }),
        3 => stuck_ends(),
        6 => on(Op::Read),
        6 => on(Op::Write),
        2 => on(Op::CopyIn),
        2 => (select(vec![Op::Acquire, Op::Read, Op::Write, Op::Free]), select(vec!["null", "nowhere"]))
            .prop_map(|(op, target)| Drawn::Wild { op, target }),
        2 => (faults, 1_u32..=2, prop::bool::weighted(0.2))
            .prop_map(|((call, error), nth, lasting)| Drawn::Fault { call, nth, error, lasting }),
        1 => Just(Drawn::Finalize),
    ]
}

/// What one access moves: a few bytes, and around a page.
fn lengths() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 1_u64..=64, 1 => 4095_u64..=4097, 1 => Just(4096)]
}

fn pauses() -> impl Strategy<Value = Pause> {
    let nth = || prop_oneof![4 => Just(1_u32), 2 => Just(2), 1 => Just(3)];
    prop_oneof![nth().prop_map(Pause::Before), nth().prop_map(Pause::After)]
}

fn refusals() -> impl Strategy<Value = Drawn> {
    let op = select(vec![Op::Acquire, Op::Read, Op::Write]);
    let error = select(vec![DrvError::NotSupport, DrvError::Busy]);
    (sizes(), policies(), op, places(), error, prop::bool::weighted(0.3)).prop_map(
        |(bytes, policy, op, place, error, lasting)| Drawn::Refusal { bytes, policy, op, place, error, lasting },
    )
}

fn stuck_ends() -> impl Strategy<Value = Drawn> {
    let op = prop_oneof![6 => Just(Op::Free), 1 => Just(Op::Finalize)];
    let call = prop_oneof![2 => Just(CallKind::Unregister), 1 => Just(CallKind::Free)];
    (any::<u8>(), op, call, prop::bool::weighted(0.3)).prop_map(|(which, op, call, lasting)| Drawn::StuckEnd {
        which,
        op,
        call,
        lasting,
    })
}

fn crowds() -> impl Strategy<Value = Drawn> {
    let sizes = || select(vec![4096_u64, 1 << 20, (1 << 20) + 1, 2 << 20]);
    ((sizes(), sizes()), prop::bool::weighted(0.3)).prop_map(|(bytes, stuck)| Drawn::Crowd { bytes, stuck })
}

fn renewals() -> impl Strategy<Value = Drawn> {
    (any::<u8>(), places(), lengths(), any::<u8>()).prop_map(|(which, place, bytes, fill)| Drawn::Renewal {
        which,
        place,
        bytes,
        fill,
    })
}

fn meetings() -> impl Strategy<Value = Drawn> {
    let first = prop_oneof![
        4 => Just(Op::Acquire),
        3 => Just(Op::Read),
        3 => Just(Op::Write),
        4 => Just(Op::Free),
        2 => Just(Op::Finalize),
    ];
    let second = prop_oneof![
        4 => Just(Op::Acquire),
        1 => Just(Op::Read),
        1 => Just(Op::Write),
        4 => Just(Op::Free),
        3 => Just(Op::Alloc),
        1 => Just(Op::Finalize),
    ];
    let any_two = (any::<u8>(), first, pauses(), second).prop_map(|(which, first, pause, second)| Drawn::Meeting {
        which,
        first,
        pause,
        second,
    });
    // Memory that is free already, while its record is not gone yet.
    let taken_over = (any::<u8>(), 1_u32..=2).prop_map(|(which, nth)| Drawn::Meeting {
        which,
        first: Op::Free,
        pause: Pause::After(nth),
        second: Op::Alloc,
    });
    prop_oneof![6 => any_two, 1 => taken_over]
}

/// Sequences as a plain generator would draw them: every operation as likely as any other, sizes and places uniform, no
/// edges. What the suite's own are measured against.
pub fn uniform_sequences() -> impl Strategy<Value = Vec<Drawn>> {
    let on = |op: Op| {
        (any::<u8>(), any::<u8>(), 1_u64..=64, any::<u8>(), any::<bool>()).prop_map(
            move |(which, part, bytes, fill, hold)| Drawn::On {
                which,
                op,
                place: if op == Op::Free { Place::Base } else { Place::Inside(part) },
                bytes,
                fill,
                hold: hold && op == Op::Acquire,
            },
        )
    };
    let calls =
        select(vec![CallKind::Alloc, CallKind::Free, CallKind::Register, CallKind::Unregister, CallKind::CopyIn]);
    let first = select(vec![Op::Acquire, Op::Read, Op::Write, Op::Free, Op::Finalize]);
    let second = select(vec![Op::Acquire, Op::Read, Op::Write, Op::Free, Op::Alloc, Op::Finalize]);
    let drawn = prop_oneof![
        (1_u64..=64 << 20, policies(), any::<u8>()).prop_map(|(bytes, policy, device)| Drawn::Alloc {
            bytes,
            policy,
            device
        }),
        on(Op::Free),
        on(Op::Acquire),
        on(Op::Release),
        on(Op::Read),
        on(Op::Write),
        on(Op::CopyIn),
        (any::<u8>(), first, pauses(), second).prop_map(|(which, first, pause, second)| Drawn::Meeting {
            which,
            first,
            pause,
            second
        }),
        (select(vec![Op::Acquire, Op::Read, Op::Write, Op::Free]), select(vec!["null", "nowhere"]))
            .prop_map(|(op, target)| Drawn::Wild { op, target }),
        (calls, 1_u32..=2, any::<bool>()).prop_map(|(call, nth, lasting)| Drawn::Fault {
            call,
            nth,
            error: DrvError::InnerErr,
            lasting
        }),
        Just(Drawn::Finalize),
    ];
    prop::collection::vec(drawn, 1..=LONGEST_SEQUENCE)
}

/// Sequences of operations, for a subject that is made for several threads or for one.
pub fn sequences(threads: bool) -> impl Strategy<Value = Vec<Drawn>> {
    prop::collection::vec(drawn(threads), 1..=LONGEST_SEQUENCE)
}

/// The sizes of D-law trials.
pub fn draws() -> impl Strategy<Value = Draw> {
    let kind = prop_oneof![Just(PageKind::Ordinary), Just(PageKind::Huge)];
    (kind, 3_u64..=17, any::<u16>(), any::<u8>()).prop_map(|(kind, pages, inside, fill)| Draw {
        kind,
        pages,
        inside: u64::from(inside),
        fill,
    })
}

/// Sequences of driver calls, with what must come of them left open.
pub fn driver_sequences() -> impl Strategy<Value = Vec<Step>> {
    // Small sizes and few: what allocations do to each other is met soonest among neighbours of a kind.
    let sizes = select(vec![1_u64, 4096, 12_288, 65_536, 1_048_577, 2 << 20, 4 << 20, 19 << 20, 37 << 20]);
    let allocate = (sizes, policies()).prop_map(|(bytes, policy)| (Op::Alloc, bytes, policy));
    let on = |op: Op| Just((op, 0_u64, PagePolicy::HugeFirst));
    let operation = prop_oneof![
        5 => allocate,
        3 => on(Op::Free),
        5 => on(Op::Register),
        4 => on(Op::Unregister),
        3 => on(Op::Read),
        3 => on(Op::Write),
        2 => on(Op::CopyIn),
        2 => on(Op::CopyOut),
    ];
    let place = prop_oneof![
        6 => Just(0_u64),
        1 => Just(4096),
        1 => Just(2 << 20),
        1 => 1_u64..=5000,
    ];
    let length = prop_oneof![
        6 => Just(None),
        2 => Just(Some(1_u64)),
        1 => Just(Some(4096)),
        1 => Just(Some(3 << 20)),
        1 => Just(Some(0)),
    ];
    let drawn = (operation, any::<u8>(), place, length, any::<u8>());
    prop::collection::vec(drawn, 1..=30).prop_map(|drawn| {
        let mut made = 0_usize;
        let mut steps = Vec::with_capacity(drawn.len());
        for ((op, bytes, policy), which, offset, length, fill) in drawn {
            if op == Op::Alloc {
                steps.push(Step::alloc(&name_of(made), bytes, policy));
                made += 1;
                continue;
            }
            if made == 0 {
                continue;
            }
            let step = Step::on(op, &name_of(usize::from(which) % made));
            steps.push(match op {
                Op::Register => Step { offset, bytes: length, ..step },
                Op::Free | Op::Unregister => Step { offset, ..step },
                Op::Write | Op::CopyIn => Step { fill: Some(fill), ..step.range(offset, 8) },
                _ => step.range(offset, 8),
            });
        }
        steps
    })
}

/// Profiles that nobody shipped: page sizes × capabilities × regimes.
pub fn profiles(base: &Profile) -> impl Strategy<Value = Profile> + use<> {
    let base = base.clone();
    let page = || select(vec![4096_u64, 16384, 65536]);
    let host = (page(), any::<bool>(), any::<bool>());
    let device = (
        page(),
        select(vec![1_u64 << 20, 2 << 20]),
        any::<bool>(),
        select(vec![64_u64 << 20, 1 << 30, 64 << 30]),
        1_u32..=3,
    );
    let stated = (prop::option::weighted(0.2, any::<bool>()), prop::option::weighted(0.2, any::<bool>()));
    let thresholds = (select(vec![0_u64, 65536, 2 << 20, 18 << 20]), select(vec![0_u64, 4 << 20, 36 << 20]));
    let driver = (any::<bool>(), prop::bool::weighted(0.3), thresholds, any::<bool>());
    (host, device, stated, driver).prop_map(move |(host, device, stated, driver)| {
        let mut profile = base.clone();
        "drawn".clone_into(&mut profile.name);
        let (host_page, write_combining, virtual_function) = host;
        profile.host.page_size = PageSize::new(host_page).unwrap_or(profile.host.page_size);
        // Most drawn hosts can map something: a host that refuses everything has little to show.
        profile.host.write_combining = write_combining || !virtual_function;
        profile.host.virtual_function = virtual_function;
        let (device_page, huge_page, unreported, memory, count) = device;
        profile.device.page_size = PageSize::new(device_page).unwrap_or(profile.device.page_size);
        profile.device.huge_page_size = PageSize::new(huge_page).unwrap_or(profile.device.huge_page_size);
        profile.device.reports_bar = !(unreported && virtual_function);
        profile.device.memory = memory;
        profile.device.count = count;
        let (bar_mem, bar_huge_mem) = stated;
        profile.capabilities = CapabilityOverrides { bar_mem, bar_huge_mem, dev_mem_map_host: None };
        let (v3, shifted, (ordinary, huge), adaptive) = driver;
        profile.driver.generation = if v3 { Generation::V3 } else { Generation::V2 };
        profile.driver.free_while_registered = if v3 { FreeWhileRegistered::Busy } else { FreeWhileRegistered::Cached };
        profile.driver.view_offset = if shifted { 0x2000_0000_0000 } else { 0 };
        profile.driver.ordinary_cache_threshold = ordinary;
        profile.driver.huge_cache_threshold = huge;
        profile.driver.adaptive_threshold = adaptive && !v3;
        profile
    })
}

/// The steps of a drawn sequence; in one thread, but for subjects that are made for several. Names are given in the order of
/// the allocations: a, b, c …
#[must_use]
pub fn lower(drawn: &[Drawn], devices: u32, threads: bool) -> Vec<Step> {
    let mut made: Vec<Step> = Vec::new();
    let mut steps: Vec<Step> = Vec::with_capacity(drawn.len());
    let mut fail = None;
    for operation in drawn {
        let step = match operation {
            Drawn::Alloc { bytes, policy, device } => {
                let name = name_of(made.len());
                let step = Step { device: u32::from(*device) % devices, ..Step::alloc(&name, *bytes, *policy) };
                made.push(step.clone());
                step
            }
            Drawn::Again { which } => {
                let Some(old) = pick(&made, *which) else { continue };
                let name = name_of(made.len());
                let free = Step::on(Op::Free, old.name.as_deref().unwrap_or_default());
                let step = Step { name: Some(name), ..old.clone() };
                steps.push(Step { fail: fail.take(), ..free });
                made.push(step.clone());
                step
            }
            Drawn::On { which, op, place, bytes, fill, hold } => {
                let Some(old) = pick(&made, *which) else { continue };
                let (name, size) = (old.name.as_deref().unwrap_or_default(), old.bytes.unwrap_or_default());
                Step { hold: *hold, ..on(*op, name, size, *place, *bytes, *fill) }
            }
            Drawn::Crowd { bytes: (first, second), stuck } => {
                for (bytes, hold) in [(*first, true), (*second, false)] {
                    let name = name_of(made.len());
                    let step = Step::alloc(&name, bytes, PagePolicy::HugeFirst);
                    made.push(step.clone());
                    steps.push(Step { fail: fail.take(), ..step });
                    if *stuck && !hold {
                        fail = Some(failing(CallKind::Unregister, DrvError::Busy, true));
                    }
                    steps.push(Step { fail: fail.take(), hold, ..Step::on(Op::Acquire, &name).range(0, 1) });
                }
                continue;
            }
            Drawn::NoMemory { bytes, policy } => {
                fail = Some(failing(CallKind::Alloc, DrvError::OutOfMemory, false));
                let step = Step::alloc(&name_of(made.len()), *bytes, *policy);
                made.push(step.clone());
                step
            }
            Drawn::Refusal { bytes, policy, op, place, error, lasting } => {
                let name = name_of(made.len());
                let step = Step::alloc(&name, *bytes, *policy);
                made.push(step.clone());
                steps.push(Step { fail: fail.take(), ..step });
                fail = Some(failing(CallKind::Register, *error, *lasting));
                on(*op, &name, *bytes, *place, 8, 0x3c)
            }
            Drawn::StuckEnd { which, op, call, lasting } => {
                let Some(old) = pick(&made, *which) else { continue };
                let name = old.name.as_deref().unwrap_or_default();
                steps.push(Step { fail: fail.take(), ..Step::on(Op::Acquire, name).range(0, 1) });
                fail = Some(failing(*call, DrvError::Busy, *lasting));
                on(*op, name, 1, Place::Base, 1, 0)
            }
            Drawn::Renewal { which, place, bytes, fill } => {
                let Some(old) = pick(&made, *which) else { continue };
                let (name, size) = (old.name.as_deref().unwrap_or_default(), old.bytes.unwrap_or_default());
                let place = of_a_device(*place);
                let read = on(Op::Read, name, size, place, *bytes, 0);
                steps.push(Step { fail: fail.take(), ..read.clone() });
                steps.push(on(Op::CopyIn, name, size, place, *bytes, *fill));
                read
            }
            Drawn::Meeting { which, first, pause, second } => {
                let Some(old) = pick(&made, *which).cloned() else { continue };
                let (name, size) = (old.name.as_deref().unwrap_or_default(), old.bytes.unwrap_or_default());
                let plain = |op: Op| on(op, name, size, Place::Base, 8, 0xa5);
                let pause = threads.then_some(*pause);
                steps.push(Step { fail: fail.take(), pause, ..plain(*first) });
                if *second == Op::Alloc {
                    let step = Step { name: Some(name_of(made.len())), ..old.clone() };
                    made.push(step.clone());
                    step
                } else {
                    plain(*second)
                }
            }
            Drawn::Wild { op: Op::Free, target } => Step::on(Op::Free, target),
            Drawn::Wild { op, target } => {
                let fill = (*op == Op::Write).then_some(0);
                Step { fill, ..Step::on(*op, target).range(0, 8) }
            }
            Drawn::Fault { call, nth, error, lasting } => {
                fail = Some(Fail { call: *call, nth: *nth, error: error.name().to_owned(), lasting: *lasting });
                continue;
            }
            Drawn::Finalize => Step::new(Op::Finalize),
        };
        steps.push(Step { fail: fail.take(), ..step });
    }
    steps
}

fn failing(call: CallKind, error: DrvError, lasting: bool) -> Fail {
    Fail { call, nth: 1, error: error.name().to_owned(), lasting }
}

fn pick(made: &[Step], which: u8) -> Option<&Step> {
    made.get(usize::from(which) % made.len().max(1))
}

fn on(op: Op, name: &str, size: u64, place: Place, bytes: u64, fill: u8) -> Step {
    match op {
        Op::Release => return Step::on(op, name),
        Op::Finalize => return Step::new(op),
        _ => {}
    }
    let step = Step { fill: matches!(op, Op::Write | Op::CopyIn).then_some(fill), ..Step::on(op, name) };
    let place = if op == Op::CopyIn { of_a_device(place) } else { place };
    let inside = |offset: u64| (offset, bytes.min(size - offset));
    let (offset, bytes) = match place {
        Place::Base => inside(0),
        Place::Inside(part) => inside(size / 256 * u64::from(part) + size % 256 * u64::from(part) / 256),
        Place::Last => (size - 1, 1),
        Place::OverEnd => (size - bytes.min(size), bytes.min(size) + 1),
        Place::Behind => (size, bytes),
        // A buffer of that length cannot be had: only acquire is asked for it.
        Place::Wraps if op == Op::Acquire => (size / 2, u64::MAX),
        Place::Wraps => (size.wrapping_neg(), bytes),
        Place::Empty => (0, 0),
    };
    if op == Op::Free { Step { offset, ..step } } else { step.range(offset, bytes) }
}

/// What a device's own program does to its memory stays inside its allocation.
fn of_a_device(place: Place) -> Place {
    match place {
        Place::OverEnd | Place::Behind | Place::Wraps | Place::Empty => Place::Base,
        place => place,
    }
}

/// a … z, then a1 … z1, and so on.
#[must_use]
pub fn name_of(index: usize) -> String {
    let letter = char::from(b'a' + u8::try_from(index % 26).unwrap_or(0));
    if index < 26 { letter.to_string() } else { format!("{letter}{}", index / 26) }
}
