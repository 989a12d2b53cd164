//! The D-laws: how registration behaves.
//!
//! Each law is a sequence of driver calls with what must come of each, built from the profile's page sizes and capabilities
//! and from drawn sizes. What must come is written from the facts, not asked of the simulator.

use hostview_sim::{DrvError, FreeWhileRegistered, Generation, PageKind, PagePolicy, Profile};

use super::{Law, LawId, Need, Trial};
use crate::case::{By, ExpectTable, Op, Step, Via};
use crate::code::ErrorCode;
use crate::cost::model::Model;
use crate::laws::DriverLaw;

/// The sizes of one trial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Draw {
    /// Which pages the trial is about.
    pub kind: PageKind,
    /// A number of whole pages, from 3 on.
    pub pages: u64,
    /// Where inside a page.
    pub inside: u64,
    /// A byte to tell memory by.
    pub fill: u8,
}

impl Draw {
    /// The draw of the law's sequence as it is shown: five pages, and an odd place in one.
    #[must_use]
    pub fn shown(kind: PageKind) -> Self {
        Self { kind, pages: 5, inside: 1279, fill: 0x5a }
    }

    /// The same sizes with other pages.
    fn of(self, kind: PageKind) -> Self {
        Self { kind, ..self }
    }
}

/// The same sizes as a law's trial uses them on a profile.
struct Setting<'a> {
    profile: &'a Profile,
    draw: &'a Draw,
    page: u64,
    policy: PagePolicy,
}

impl<'a> Setting<'a> {
    fn new(profile: &'a Profile, draw: &'a Draw) -> Self {
        let policy = match draw.kind {
            PageKind::Ordinary => PagePolicy::NormalOnly,
            PageKind::Huge => PagePolicy::HugeOnly,
        };
        Self { profile, draw, page: profile.page(draw.kind).bytes(), policy }
    }

    fn v3(&self) -> bool {
        self.profile.driver.generation == Generation::V3
    }

    fn threshold(&self) -> u64 {
        self.profile.cache_threshold(self.draw.kind)
    }

    /// The drawn pages in bytes.
    fn whole(&self) -> u64 {
        self.draw.pages * self.page
    }

    /// A size that ends inside a page.
    fn ragged(&self) -> u64 {
        (self.draw.pages - 1) * self.page + 1 + self.draw.inside % (self.page - 1)
    }

    fn alloc(&self, name: &str, bytes: u64) -> Step {
        Step::alloc(name, bytes, self.policy)
    }

    /// What answers a request that this host cannot grant at all; `None` where it can.
    fn refusal(&self) -> Option<DrvError> {
        (!self.profile.can_register(self.draw.kind)).then_some(DrvError::NotSupport)
    }

    /// v3 grants ordinary pages on a host with larger ones only where they happen to lie right.
    fn by_chance(&self) -> Option<Trial> {
        let finer = self.page < self.profile.host.page_size.bytes();
        (self.v3() && finer && self.profile.driver.maps_device_memory).then(|| {
            Trial::NotApplicable("on this host v3 registers such pages only where they lie right by chance".to_owned())
        })
    }

    fn fits(&self, bytes: u64) -> Option<Trial> {
        (bytes + (8 << 20) > self.profile.device.memory)
            .then(|| Trial::NotApplicable(format!("the device has too little memory for {bytes} bytes")))
    }

    /// The error of a second registration of the same page.
    fn repeated(&self) -> DrvError {
        if self.v3() { DrvError::RepeatedUserd } else { DrvError::ParaError }
    }

    /// A size whose blocks stay in the user-space cache: the kernel block around it must be one that is cached.
    fn cached_size(&self) -> Result<u64, Trial> {
        let bytes = self.ragged();
        if bytes.next_multiple_of(2 << 20) > self.threshold() {
            return Err(Trial::NotApplicable("this allocator caches no block of this size".to_owned()));
        }
        Ok(bytes)
    }
}

fn register(target: &str) -> Step {
    Step::on(Op::Register, target)
}

fn unregister(target: &str) -> Step {
    Step::on(Op::Unregister, target)
}

fn free(target: &str) -> Step {
    Step::on(Op::Free, target)
}

fn at(step: Step, offset: u64) -> Step {
    Step { offset, ..step }
}

fn covers(step: Step, pages: u64) -> Step {
    step.expecting(ExpectTable { pages: Some(pages), ..ExpectTable::default() })
}

fn read_ok(target: &str, offset: u64) -> Step {
    Step::on(Op::Read, target).range(offset, 1)
}

fn read_gives(op: Op, target: &str, offset: u64, byte: u8) -> Step {
    let bytes = Some(format!("{byte:02x}"));
    Step::on(op, target).range(offset, 1).expecting(ExpectTable { bytes, ..ExpectTable::default() })
}

fn put(op: Op, target: &str, offset: u64, byte: u8) -> Step {
    Step { fill: Some(byte), ..Step::on(op, target).range(offset, 1) }
}

fn faults(op: Op, target: &str, offset: u64) -> Step {
    let step = Step { fill: (op == Op::Write).then_some(0), ..Step::on(op, target).range(offset, 1) };
    step.expecting(ExpectTable { fault: true, ..ExpectTable::default() })
}

fn read_faults(target: &str, offset: u64) -> Step {
    faults(Op::Read, target, offset)
}

const fn law(id: &'static str, statement: &'static str, source: &'static str, needs: &'static [Need]) -> Law {
    Law { id: LawId(id), statement, source, needs }
}

const REGISTRATION: &[Need] = &[Need::Registration];

/// The law that a call which crashes or hangs breaks, wherever it is made.
pub const EVERY_CALL_RETURNS: LawId = LawId("D27");

static DRIVER_LAWS: [DriverLaw; 30] = [
    DriverLaw {
        law: law(
            "D01",
            "Registration works by whole pages: the size is rounded up to the allocation's page, and no page beyond it \
             becomes accessible.",
            "driver source (svm_master_remote_map.c); seed (register is per mapped page)",
            REGISTRATION,
        ),
        trial: whole_pages,
    },
    DriverLaw {
        law: law(
            "D02",
            "A registration begins on a page: any other address is refused.",
            "driver source (row R13)",
            REGISTRATION,
        ),
        trial: begins_on_a_page,
    },
    DriverLaw {
        law: law(
            "D03",
            "A page is registered once: an overlap is refused, and harms neither the old registration nor the pages around.",
            "driver source (rows R14, R15)",
            REGISTRATION,
        ),
        trial: registered_once,
    },
    DriverLaw {
        law: law(
            "D04",
            "Unregister is by the first page and finds the extent itself; an interior address and a second time are refused.",
            "driver source (§4.1, §4.3)",
            REGISTRATION,
        ),
        trial: unregister_by_first_page,
    },
    DriverLaw {
        law: law(
            "D05",
            "Registrations that touch are told apart: the end of one leaves the other.",
            "driver source (the FIRST mark)",
            REGISTRATION,
        ),
        trial: neighbours_apart,
    },
    DriverLaw {
        law: law("D06", "A registration of 0 bytes is refused.", "driver source (row R9)", &[]),
        trial: zero_bytes,
    },
    DriverLaw {
        law: law(
            "D07",
            "What is not allocated cannot be registered or unregistered, nor what the kernel has back.",
            "driver source (row R5)",
            &[],
        ),
        trial: not_allocated,
    },
    DriverLaw {
        law: law(
            "D08",
            "Ordinary pages can be registered exactly where host and device have the same page size and the host can map \
             write-combined.",
            "driver source (svm_master_dev_capability.c); hw-native-sys/simpler#1531",
            REGISTRATION,
        ),
        trial: |profile, draw| capability(profile, &draw.of(PageKind::Ordinary)),
    },
    DriverLaw {
        law: law(
            "D09",
            "Huge pages can be registered whatever the host's page size, where the host can map write-combined.",
            "driver source (svm_master_dev_capability.c); hw-native-sys/simpler#1531",
            REGISTRATION,
        ),
        trial: |profile, draw| capability(profile, &draw.of(PageKind::Huge)),
    },
    DriverLaw {
        law: law(
            "D10",
            "A host that cannot register says so first: an unaligned or over-long request is refused as not supported.",
            "driver source (row R11 before R12 to R16)",
            &[],
        ),
        trial: capability_first,
    },
    DriverLaw {
        law: law(
            "D11",
            "A view shows the device's memory: what either side writes, the other reads.",
            "driver source (identity mapping)",
            REGISTRATION,
        ),
        trial: view_shows_memory,
    },
    DriverLaw {
        law: law(
            "D12",
            "The host's access faults before a registration and after its end.",
            "driver source (fault handler refuses device memory)",
            REGISTRATION,
        ),
        trial: faults_outside,
    },
    DriverLaw {
        law: law(
            "D13",
            "Through a read-only registration loads work and stores fault.",
            "driver source (MEM_REGISTER_READ_ONLY)",
            REGISTRATION,
        ),
        trial: read_only,
    },
    DriverLaw {
        law: law(
            "D14",
            "A small block's free keeps pages and registration: the next allocation gets the address, the old view shows its \
             bytes, and it cannot be registered until the old registration ends.",
            "driver source (the cache of freed blocks); simpler, swimlane collector (rc=8)",
            REGISTRATION,
        ),
        trial: small_free_keeps_registration,
    },
    DriverLaw {
        law: law(
            "D15",
            "A block over the cache's threshold is not freed while a registration holds it: BUSY, 507899 through ACL, and it \
             stays allocated.",
            "driver source (a registration holds a reference)",
            REGISTRATION,
        ),
        trial: large_free_is_refused,
    },
    DriverLaw {
        law: law(
            "D16",
            "An allocation over 512 MiB has a heap of its own, and its free while registered is refused as IOCRL_FAIL.",
            "driver source (devmm_virt_base_heap.c)",
            REGISTRATION,
        ),
        trial: own_heap_free_is_refused,
    },
    DriverLaw {
        law: law(
            "D17",
            "A free of null, of an interior or unknown address, or a second free is INVALID_VALUE.",
            "driver source (halMemFree)",
            &[],
        ),
        trial: bad_frees,
    },
    DriverLaw {
        law: law(
            "D18",
            "huge_first asks for huge pages over 1 MiB, which through aclrtMalloc is a request of 1,048,545 bytes on v2; \
             huge_only and normal_only ask for one kind at every size.",
            "CANN runtime (memory.cpp, npu_driver_mem.cc)",
            REGISTRATION,
        ),
        trial: policy_switch,
    },
    DriverLaw {
        law: law(
            "D19",
            "A freed small block is the next one handed out for its size.",
            "driver source (exact size first, newest first)",
            &[],
        ),
        trial: reuse,
    },
    DriverLaw {
        law: law(
            "D20",
            "A range is checked against memory, not against the allocation (v2): over-long, it covers the neighbour, who can \
             then not be registered. v3 refuses it.",
            "driver source (§3.4); driver source v3 (Size if out of bounds)",
            REGISTRATION,
        ),
        trial: over_long_range,
    },
    DriverLaw {
        law: law(
            "D21",
            "A registration across two kernel blocks is half undone by its unregister (v2): the tail can be neither \
             unregistered nor registered.",
            "driver source (§4.3), seen with the driver's user-space code",
            REGISTRATION,
        ),
        trial: lost_tail,
    },
    DriverLaw {
        law: law(
            "D22",
            "A range that runs into memory that is not there is refused, and nothing of it is mapped.",
            "driver source (row R16)",
            REGISTRATION,
        ),
        trial: past_memory,
    },
    DriverLaw {
        law: law(
            "D23",
            "Devices share one range and no address, and an allocation is on the device that was asked; the device id of a registration is taken from the address.",
            "driver source (row R2, §3.3 row 8)",
            &[Need::Registration, Need::TwoDevices],
        ),
        trial: devices,
    },
    DriverLaw {
        law: law(
            "D24",
            "An allocation that the device's memory cannot hold is OUT_OF_MEMORY, 207001 through ACL, and disturbs nothing.",
            "driver source (virt_interface.h); CANN runtime",
            &[],
        ),
        trial: out_of_memory,
    },
    DriverLaw {
        law: law(
            "D25",
            "An unknown map type or process type is not supported, and device memory goes with no map type but its own.",
            "driver source (rows R1, R3, R10)",
            &[],
        ),
        trial: flag_word,
    },
    DriverLaw {
        law: law(
            "D26",
            "halHostUnregisterEx ends a registration of device memory as halHostUnregister does; an unknown map or process type \
             is not supported, and ends nothing.",
            "driver source (§4.1)",
            REGISTRATION,
        ),
        trial: unregister_by_map_type,
    },
    DriverLaw {
        law: law(
            EVERY_CALL_RETURNS.0,
            "Every call returns to its caller, whatever it is given: a refusal is an answer, a crash or a hang is none.",
            "driver source (every row answers)",
            &[],
        ),
        trial: every_call_returns,
    },
    DriverLaw {
        law: law(
            "D28",
            "An allocation takes the idle block that fits it best: one of exactly its size, the newest first, else the smallest \
             larger one, from its low end.",
            "driver source (multi_rbtree.c, devmm_rbtree.c)",
            &[],
        ),
        trial: best_fit,
    },
    DriverLaw {
        law: law(
            "D29",
            "A register call costs its floor and each page of the allocation's kind, an unregister call its floor and each host \
             page, a copy its floor and its bytes.",
            "seed (the sweep's table); driver source (§4.4)",
            &[Need::VirtualTime],
        ),
        trial: costs,
    },
    DriverLaw {
        law: law(
            "D30",
            "Over twice its threshold the cache of freed blocks gives idle ones back to the kernel, the oldest first; a \
             registered one stays and ends it, and the free succeeds all the same.",
            "driver source (devmm_virt_com_heap.c)",
            REGISTRATION,
        ),
        trial: cache_shrinks,
    },
];

/// The D-laws, in the order of their ids.
#[must_use]
pub fn driver_laws() -> &'static [DriverLaw] {
    &DRIVER_LAWS
}

/// The trial of a capable host, or where `setting` is none, its mirror: the registration is refused and nothing shows.
fn or_mirror(setting: &Setting<'_>, steps: impl FnOnce() -> Vec<Step>) -> Trial {
    if let Some(by_chance) = setting.by_chance() {
        return by_chance;
    }
    match setting.refusal() {
        None => Trial::Steps(steps()),
        Some(error) => Trial::Mirror(vec![
            setting.alloc("a", setting.ragged()),
            register("a").failing(error),
            read_faults("a", 0),
            unregister("a").failing(DrvError::ParaError),
            free("a"),
        ]),
    }
}

fn whole_pages(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", setting.ragged()),
            covers(register("a"), draw.pages),
            read_ok("a", 0),
            read_ok("a", setting.whole() - 1),
            read_faults("a", setting.whole()),
            unregister("a"),
            free("a"),
        ]
    })
}

fn begins_on_a_page(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let inside = 1 + draw.inside % (setting.page - 1);
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", setting.whole()),
            register("a").range(inside, 1).failing(DrvError::ParaError),
            read_faults("a", inside),
            register("a").range(setting.page, 1),
            read_ok("a", setting.page),
            read_faults("a", 0),
            at(unregister("a"), setting.page),
            free("a"),
        ]
    })
}

fn registered_once(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let page = setting.page;
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", setting.whole()),
            register("a").range(page, 2 * page),
            register("a").range(page, page).failing(setting.repeated()),
            register("a").range(2 * page, page).failing(setting.repeated()),
            register("a").range(0, 2 * page).failing(setting.repeated()),
            read_faults("a", 0),
            read_ok("a", page),
            read_ok("a", 3 * page - 1),
            at(unregister("a"), page),
            covers(register("a"), draw.pages),
            unregister("a"),
            free("a"),
        ]
    })
}

fn unregister_by_first_page(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", setting.whole()),
            unregister("a").failing(DrvError::ParaError),
            register("a"),
            at(unregister("a"), setting.page).failing(DrvError::ParaError),
            at(unregister("a"), 1 + draw.inside % (setting.page - 1)).failing(DrvError::ParaError),
            read_ok("a", setting.whole() - 1),
            unregister("a"),
            read_faults("a", 0),
            read_faults("a", setting.whole() - 1),
            unregister("a").failing(DrvError::ParaError),
            free("a"),
        ]
    })
}

fn neighbours_apart(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let page = setting.page;
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", setting.whole()),
            register("a").range(0, page),
            register("a").range(page, 2 * page),
            unregister("a"),
            read_faults("a", 0),
            read_ok("a", page),
            read_ok("a", 3 * page - 1),
            at(unregister("a"), page),
            read_faults("a", page),
            free("a"),
        ]
    })
}

fn zero_bytes(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    // Where there is no host-map path at all, that is what is said first.
    let answer = if profile.driver.maps_device_memory { DrvError::ParaError } else { DrvError::NotSupport };
    Trial::Steps(vec![
        setting.alloc("a", setting.ragged()),
        register("a").range(0, 0).failing(answer),
        read_faults("a", 0),
        free("a"),
    ])
}

fn not_allocated(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let answer = if profile.driver.maps_device_memory { DrvError::ParaError } else { DrvError::NotSupport };
    let large = (setting.threshold() + 1).next_multiple_of(2 << 20);
    let mut steps = vec![
        setting.alloc("keep", 1),
        register("nowhere").range(0, setting.page).failing(answer),
        unregister("nowhere").failing(DrvError::ParaError),
    ];
    if setting.fits(large).is_none() && large <= 512 << 20 {
        steps.extend([
            setting.alloc("a", large),
            free("a"),
            register("a").range(0, setting.page).failing(answer),
            unregister("a").failing(DrvError::ParaError),
            read_faults("a", 0),
        ]);
    }
    steps.push(free("keep"));
    Trial::Steps(steps)
}

fn capability(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    if let Some(by_chance) = setting.by_chance() {
        return by_chance;
    }
    let bytes = setting.ragged();
    match setting.refusal() {
        None => {
            Trial::Steps(vec![setting.alloc("a", bytes), covers(register("a"), draw.pages), unregister("a"), free("a")])
        }
        Some(error) => {
            let words = match draw.kind {
                PageKind::Ordinary => "Not support pcie bar remote map.",
                PageKind::Huge => "Not support pcie bar huge remote map.",
            };
            let log = (!setting.v3()).then(|| words.to_owned());
            let refused = ExpectTable { error: Some(error.name().to_owned()), log, ..ExpectTable::default() };
            Trial::Mirror(vec![
                setting.alloc("a", bytes),
                register("a").expecting(refused),
                read_faults("a", 0),
                // The refusal is of the mapping alone: copies go on.
                put(Op::CopyIn, "a", bytes - 1, draw.fill),
                read_gives(Op::CopyOut, "a", bytes - 1, draw.fill),
                free("a"),
            ])
        }
    }
}

fn capability_first(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let Some(error) = setting.refusal() else {
        return Trial::NotApplicable(format!("{} pages can be registered here", draw.kind));
    };
    Trial::Mirror(vec![
        setting.alloc("a", setting.whole()),
        register("a").range(1 + draw.inside % (setting.page - 1), 1).failing(error),
        register("a").range(0, 1 << 40).failing(error),
        register("a").failing(error),
        read_faults("a", 0),
        free("a"),
    ])
}

fn view_shows_memory(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let last = setting.ragged() - 1;
    let other = draw.fill.wrapping_add(1);
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", setting.ragged()),
            put(Op::CopyIn, "a", last, draw.fill),
            register("a"),
            read_gives(Op::Read, "a", last, draw.fill),
            put(Op::Write, "a", last, other),
            read_gives(Op::CopyOut, "a", last, other),
            put(Op::CopyIn, "a", 0, draw.fill),
            read_gives(Op::Read, "a", 0, draw.fill),
            unregister("a"),
            // The bytes are the device's, and outlive the view.
            read_gives(Op::CopyOut, "a", last, other),
            free("a"),
        ]
    })
}

fn faults_outside(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", setting.ragged()),
            read_faults("a", 0),
            register("a"),
            read_ok("a", 0),
            put(Op::Write, "a", 0, draw.fill),
            unregister("a"),
            read_faults("a", 0),
            faults(Op::Write, "a", 0),
            free("a"),
        ]
    })
}

fn read_only(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let ask = Step { read_only: true, ..register("a") };
    if setting.v3() || setting.refusal().is_some() {
        return Trial::Mirror(vec![
            setting.alloc("a", setting.ragged()),
            ask.failing(DrvError::NotSupport),
            read_faults("a", 0),
            free("a"),
        ]);
    }
    Trial::Steps(vec![
        setting.alloc("a", setting.ragged()),
        put(Op::CopyIn, "a", 0, draw.fill),
        ask,
        read_gives(Op::Read, "a", 0, draw.fill),
        faults(Op::Write, "a", 0),
        read_gives(Op::CopyOut, "a", 0, draw.fill),
        unregister("a"),
        register("a"),
        put(Op::Write, "a", 0, draw.fill),
        unregister("a"),
        free("a"),
    ])
}

fn small_free_keeps_registration(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let bytes = match setting.cached_size() {
        Ok(bytes) => bytes,
        Err(trial) => return trial,
    };
    if profile.driver.free_while_registered == FreeWhileRegistered::Busy {
        return busy_until_unregistered(&setting, bytes, DrvError::Busy);
    }
    let (old, new) = (draw.fill, draw.fill.wrapping_add(1));
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", bytes),
            register("a"),
            put(Op::Write, "a", 0, old),
            free("a"),
            read_gives(Op::Read, "a", 0, old),
            setting
                .alloc("b", bytes)
                .expecting(ExpectTable { same_address_as: Some("a".to_owned()), ..ExpectTable::default() }),
            put(Op::CopyIn, "b", 0, new),
            read_gives(Op::Read, "a", 0, new),
            register("b").expecting(ExpectTable {
                error: Some(setting.repeated().name().to_owned()),
                log: (!setting.v3()).then(|| "Va is already mapped by remote.".to_owned()),
                ..ExpectTable::default()
            }),
            unregister("a"),
            register("b"),
            unregister("b"),
            free("b"),
        ]
    })
}

/// A free that is refused as long as a registration lives, and what stays true meanwhile.
fn busy_until_unregistered(setting: &Setting<'_>, bytes: u64, error: DrvError) -> Trial {
    or_mirror(setting, || {
        let through_acl = ExpectTable { code: Some(507_899), ..ExpectTable::default() };
        vec![
            setting.alloc("a", bytes),
            register("a"),
            put(Op::Write, "a", bytes - 1, setting.draw.fill),
            free("a").failing(error),
            Step { via: Via::Acl, ..free("a") }.expecting(through_acl),
            read_gives(Op::Read, "a", bytes - 1, setting.draw.fill),
            read_gives(Op::CopyOut, "a", bytes - 1, setting.draw.fill),
            unregister("a"),
            free("a"),
            free("a").failing(DrvError::InvalidValue),
        ]
    })
}

fn large_free_is_refused(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let bytes = (setting.threshold() + 1).next_multiple_of(2 << 20) + setting.ragged().min(4 << 20);
    if bytes > 512 << 20 {
        return Trial::NotApplicable("the cache's threshold leaves no size between it and 512 MiB".to_owned());
    }
    setting.fits(bytes).unwrap_or_else(|| busy_until_unregistered(&setting, bytes, DrvError::Busy))
}

fn own_heap_free_is_refused(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let bytes = (512 << 20) + setting.ragged();
    let answer = match profile.driver.free_while_registered {
        FreeWhileRegistered::Cached => DrvError::IocrlFail,
        FreeWhileRegistered::Busy => DrvError::Busy,
    };
    setting.fits(bytes).unwrap_or_else(|| busy_until_unregistered(&setting, bytes, answer))
}

fn bad_frees(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let invalid = |step: Step| step.failing(DrvError::InvalidValue);
    let acl = |step: Step, code: u32| {
        Step { via: Via::Acl, ..step }.expecting(ExpectTable { code: Some(code), ..ExpectTable::default() })
    };
    Trial::Steps(vec![
        setting.alloc("a", setting.whole()),
        invalid(free("null")),
        invalid(free("nowhere")),
        invalid(at(free("a"), setting.page)),
        invalid(at(free("a"), 1)),
        acl(free("null"), 100_000),
        acl(free("nowhere"), 107_000),
        put(Op::CopyIn, "a", 0, draw.fill),
        free("a"),
        invalid(free("a")),
    ])
}

fn policy_switch(profile: &Profile, draw: &Draw) -> Trial {
    let (ordinary, huge) = (profile.can_register(PageKind::Ordinary), profile.can_register(PageKind::Huge));
    let draw = draw.of(PageKind::Ordinary);
    let setting = Setting::new(profile, &draw);
    if let Some(by_chance) = setting.by_chance() {
        return by_chance;
    }
    if !ordinary && !huge {
        return Trial::NotApplicable("nothing can be registered here, which is how page kinds show".to_owned());
    }
    if profile.device.page_size == profile.device.huge_page_size {
        return Trial::NotApplicable("both kinds of page are one size here".to_owned());
    }
    let shows = |name: &str, bytes: u64, (policy, via): (PagePolicy, Via), kind: PageKind| {
        let asked = Step { via, ..Step::alloc(name, bytes, policy) };
        let page = profile.page(kind);
        let seen = if profile.can_register(kind) {
            covers(register(name).range(0, bytes), page.pages(bytes))
        } else {
            register(name).range(0, bytes).failing(DrvError::NotSupport)
        };
        [asked, seen]
    };
    let edge: u64 = 1 << 20;
    let acl_edge = match profile.driver.generation {
        Generation::V2 => edge - 32,
        Generation::V3 => edge,
    };
    let steps = [
        shows("a", edge, (PagePolicy::HugeFirst, Via::Rt), PageKind::Ordinary),
        shows("b", edge + 1, (PagePolicy::HugeFirst, Via::Rt), PageKind::Huge),
        shows("c", acl_edge, (PagePolicy::HugeFirst, Via::Acl), PageKind::Ordinary),
        shows("d", acl_edge + 1, (PagePolicy::HugeFirst, Via::Acl), PageKind::Huge),
        shows("e", 1, (PagePolicy::HugeOnly, Via::Rt), PageKind::Huge),
        shows("f", edge + 1, (PagePolicy::NormalOnly, Via::Rt), PageKind::Ordinary),
    ];
    Trial::Steps(steps.into_iter().flatten().collect())
}

fn reuse(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let bytes = match setting.cached_size() {
        Ok(bytes) => bytes,
        Err(trial) => return trial,
    };
    let same_as_a = ExpectTable { same_address_as: Some("a".to_owned()), ..ExpectTable::default() };
    // With neighbours on both sides that live, a freed block joins nothing.
    Trial::Steps(vec![
        setting.alloc("before", 1),
        setting.alloc("a", bytes),
        setting.alloc("after", 1),
        free("a"),
        setting.alloc("b", bytes).expecting(same_as_a),
        free("b"),
        free("after"),
        free("before"),
    ])
}

fn over_long_range(profile: &Profile, draw: &Draw) -> Trial {
    let draw = draw.of(PageKind::Ordinary);
    let setting = Setting::new(profile, &draw);
    let page = setting.page;
    // Both come from one kernel block, which keeps what is left over for the next allocation.
    if page * 4 > 2 << 20 || setting.threshold() < 2 << 20 {
        return Trial::NotApplicable("two allocations never share a kernel block here".to_owned());
    }
    or_mirror(&setting, || {
        let mut steps = vec![setting.alloc("a", page), setting.alloc("b", page)];
        if setting.v3() {
            steps.extend([
                register("a").range(0, 2 * page).failing(DrvError::ParaError),
                read_faults("a", 0),
                register("b"),
                unregister("b"),
            ]);
        } else {
            steps.extend([
                covers(register("a").range(0, 2 * page), 2),
                read_ok("a", page),
                register("b").failing(DrvError::ParaError),
                unregister("a"),
                read_faults("a", page),
                register("b"),
                unregister("b"),
            ]);
        }
        steps.extend([free("b"), free("a")]);
        steps
    })
}

fn lost_tail(profile: &Profile, draw: &Draw) -> Trial {
    let draw = draw.of(PageKind::Huge);
    let setting = Setting::new(profile, &draw);
    if setting.v3() {
        return Trial::NotApplicable("v3 registers inside one allocation only".to_owned());
    }
    let block: u64 = 2 << 20;
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", block),
            setting.alloc("b", block),
            register("a").range(0, 2 * block),
            read_ok("a", block),
            unregister("a"),
            read_faults("a", 0),
            register("b").failing(DrvError::ParaError),
            unregister("b").failing(DrvError::ParaError),
            register("a"),
            unregister("a"),
        ]
    })
}

fn past_memory(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    or_mirror(&setting, || {
        vec![
            setting.alloc("a", setting.whole()),
            // Inside the heap, and far more than is mapped there.
            register("a").range(0, 256 << 20).failing(DrvError::ParaError),
            read_faults("a", 0),
            // Past the end of any heap.
            register("a").range(0, 1 << 40).failing(DrvError::ParaError),
            register("a"),
            unregister("a"),
            free("a"),
        ]
    })
}

fn devices(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    if profile.device.count < 2 {
        return Trial::NotApplicable("there is one device".to_owned());
    }
    let second = |step: Step| Step { device: 1, ..step };
    let on =
        |step: Step, device: u32| step.expecting(ExpectTable { on_device: Some(device), ..ExpectTable::default() });
    or_mirror(&setting, || {
        vec![
            on(setting.alloc("a", setting.ragged()), 0),
            on(second(setting.alloc("b", setting.ragged())), 1),
            put(Op::CopyIn, "a", 0, draw.fill),
            put(Op::CopyIn, "b", 0, draw.fill.wrapping_add(1)),
            second(register("a")),
            register("b"),
            read_gives(Op::Read, "a", 0, draw.fill),
            read_gives(Op::Read, "b", 0, draw.fill.wrapping_add(1)),
            unregister("b"),
            second(unregister("a")),
            free("b"),
            free("a"),
        ]
    })
}

fn out_of_memory(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let too_much = profile.device.memory + (2 << 20);
    let acl = Step { via: Via::Acl, ..setting.alloc("c", too_much) };
    let mut steps = vec![
        setting.alloc("a", setting.ragged()),
        put(Op::CopyIn, "a", 0, draw.fill),
        setting.alloc("b", too_much).failing(DrvError::OutOfMemory),
        acl.expecting(ExpectTable { code: Some(207_001), ..ExpectTable::default() }),
        setting.alloc("d", 0).failing(DrvError::InvalidValue),
        Step { via: Via::Acl, ..setting.alloc("e", 0) }
            .expecting(ExpectTable { code: Some(100_000), ..ExpectTable::default() }),
        read_gives(Op::CopyOut, "a", 0, draw.fill),
    ];
    if setting.refusal().is_none() && setting.by_chance().is_none() {
        steps.extend([register("a"), unregister("a")]);
    }
    steps.push(free("a"));
    Trial::Steps(steps)
}

fn flag_word(profile: &Profile, draw: &Draw) -> Trial {
    const DEV_SVM_MAP_HOST: u32 = 2;
    let setting = Setting::new(profile, draw);
    let with = |flags: u32, error: DrvError| Step { flags: Some(flags), ..register("a") }.failing(error);
    let other_map_type = if setting.v3() { DrvError::NotSupport } else { DrvError::ParaError };
    // A view of a view: outside the shared range, where the view is elsewhere.
    let mut steps = vec![
        setting.alloc("a", setting.ragged()),
        with(7, DrvError::NotSupport),
        with(0xffff, DrvError::NotSupport),
        with(DEV_SVM_MAP_HOST | 6 << 16, DrvError::NotSupport),
        with(DEV_SVM_MAP_HOST | 1 << 16, DrvError::NotSupport),
        with(0, other_map_type),
        with(1, other_map_type),
        with(4, other_map_type),
        read_faults("a", 0),
    ];
    if setting.refusal().is_none() && setting.by_chance().is_none() && profile.driver.view_offset != 0 {
        let by_view = |step: Step| Step { by: Some(By::View), ..step };
        let not_found = ErrorCode::from(if setting.v3() { DrvError::NotSupport } else { DrvError::FileOps });
        steps.extend([register("a"), by_view(unregister("a")).failing(not_found), unregister("a")]);
    }
    steps.push(free("a"));
    Trial::Steps(steps)
}

fn unregister_by_map_type(profile: &Profile, draw: &Draw) -> Trial {
    const DEV_SVM_MAP_HOST: u32 = 2;
    let setting = Setting::new(profile, draw);
    let ex = |flags: u32| Step { flags: Some(flags), ..unregister("a") };
    if let Some(by_chance) = setting.by_chance() {
        return by_chance;
    }
    if let Some(error) = setting.refusal() {
        return Trial::Mirror(vec![
            setting.alloc("a", setting.ragged()),
            register("a").failing(error),
            ex(7).failing(DrvError::NotSupport),
            ex(DEV_SVM_MAP_HOST).failing(DrvError::ParaError),
            free("a"),
        ]);
    }
    Trial::Steps(vec![
        setting.alloc("a", setting.whole()),
        register("a"),
        ex(7).failing(DrvError::NotSupport),
        ex(DEV_SVM_MAP_HOST | 6 << 16).failing(DrvError::NotSupport),
        at(ex(DEV_SVM_MAP_HOST), setting.page).failing(DrvError::ParaError),
        read_ok("a", setting.whole() - 1),
        ex(DEV_SVM_MAP_HOST),
        read_faults("a", 0),
        read_faults("a", setting.whole() - 1),
        ex(DEV_SVM_MAP_HOST).failing(DrvError::ParaError),
        free("a"),
    ])
}

fn every_call_returns(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    let any = |step: Step| step.expecting(ExpectTable { any: true, ..ExpectTable::default() });
    let flags = |step: Step, flags: u32| Step { flags: Some(flags), ..step };
    Trial::Steps(vec![
        setting.alloc("a", setting.ragged()),
        any(register("null").range(0, 1)),
        any(register("nowhere").range(draw.inside, 1 << 62)),
        any(register("a").range(draw.inside, 1 << 62)),
        any(flags(register("a"), u32::MAX)),
        any(flags(register("null").range(0, 1), u32::MAX)),
        any(unregister("null")),
        any(unregister("nowhere")),
        any(at(unregister("a"), 1 + draw.inside)),
        any(flags(unregister("null"), u32::MAX)),
        any(flags(unregister("a"), u32::MAX)),
        any(free("null")),
        any(at(free("nowhere"), draw.inside)),
        // None of it is in the way of what comes then.
        put(Op::CopyIn, "a", 0, draw.fill),
        read_gives(Op::CopyOut, "a", 0, draw.fill),
        free("a"),
    ])
}

fn best_fit(profile: &Profile, draw: &Draw) -> Trial {
    let draw = &Draw { pages: 3, ..*draw };
    let setting = Setting::new(profile, draw);
    if setting.v3() {
        return Trial::NotApplicable("how the allocator of v3 chooses among idle blocks is not known".to_owned());
    }
    let large = 5 * setting.page;
    if large.next_multiple_of(2 << 20) > setting.threshold() {
        return Trial::NotApplicable("this allocator caches no block of this size".to_owned());
    }
    let bytes = setting.ragged();
    let takes = |name: &str, of: &str| {
        let at = ExpectTable { same_address_as: Some(of.to_owned()), ..ExpectTable::default() };
        setting.alloc(name, bytes).expecting(at)
    };
    // Between neighbours that live, a freed block joins nothing.
    let mut steps = Vec::new();
    for (name, bytes) in [("large", large), ("older", bytes), ("newer", bytes)] {
        steps.extend([setting.alloc(name, bytes), setting.alloc(&format!("behind_{name}"), 1)]);
    }
    steps.extend(["large", "older", "newer"].map(free));
    steps.extend([takes("a", "newer"), takes("b", "older"), takes("c", "large")]);
    steps.extend(["a", "b", "c", "behind_large", "behind_older", "behind_newer"].map(free));
    Trial::Steps(steps)
}

fn costs(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    if let Some(by_chance) = setting.by_chance() {
        return by_chance;
    }
    let model = Model::median(profile);
    #[allow(clippy::cast_sign_loss, reason = "costs are checked to be positive")]
    let costs = |step: Step, micros: f64| {
        step.expecting(ExpectTable { cost_ns: Some((micros * 1e3).round() as u64), ..ExpectTable::default() })
    };
    let (bytes, part) = (setting.ragged(), 2 * setting.page);
    let copies = [1, 4096].map(|bytes| {
        let copy = Step { fill: Some(setting.draw.fill), ..Step::on(Op::CopyIn, "a").range(0, bytes) };
        costs(copy, model.copy(bytes))
    });
    let mut steps = vec![setting.alloc("a", setting.whole())];
    steps.extend(copies);
    steps.push(costs(Step::on(Op::CopyOut, "a").range(0, 64), model.copy(64)));
    if let Some(error) = setting.refusal() {
        steps.extend([register("a").failing(error), free("a")]);
        return Trial::Mirror(steps);
    }
    steps.extend([
        costs(register("a").range(0, bytes), model.register(bytes, draw.kind)),
        costs(unregister("a"), model.unregister(bytes, draw.kind)),
        costs(register("a").range(setting.page, part), model.register(part, draw.kind)),
        costs(at(unregister("a"), setting.page), model.unregister(part, draw.kind)),
        free("a"),
    ]);
    Trial::Steps(steps)
}

fn cache_shrinks(profile: &Profile, draw: &Draw) -> Trial {
    let setting = Setting::new(profile, draw);
    if setting.v3() || profile.driver.free_while_registered == FreeWhileRegistered::Busy {
        return Trial::NotApplicable("which freed blocks this driver keeps is not known".to_owned());
    }
    // The largest block that is cached, three times: more than twice the threshold, and less than a heap.
    let block = setting.threshold() / (2 << 20) * (2 << 20);
    if block < 4 << 20 || 3 * block > profile.driver.heap_size.bytes() {
        return Trial::NotApplicable("no three blocks of one heap are over twice the cache's threshold".to_owned());
    }
    let probe = |name: &str| register(name).range(0, setting.page);
    setting.fits(3 * block).unwrap_or_else(|| {
        or_mirror(&setting, || {
            let mut steps: Vec<Step> = ["a", "b", "c"].map(|name| setting.alloc(name, block)).into();
            steps.extend(["a", "b", "c"].map(free));
            // The oldest is with the kernel, and what is there no more cannot be registered.
            steps.extend([
                probe("a").failing(DrvError::ParaError),
                probe("b"),
                unregister("b"),
                probe("c"),
                unregister("c"),
            ]);
            // The same again, with the oldest registered.
            steps.extend(["d", "e", "f"].map(|name| setting.alloc(name, block)));
            steps.extend([probe("d"), put(Op::Write, "d", 0, draw.fill)]);
            steps.extend(["d", "e", "f"].map(free));
            steps.extend([
                read_gives(Op::Read, "d", 0, draw.fill),
                unregister("d"),
                probe("e"),
                unregister("e"),
                probe("f"),
                unregister("f"),
            ]);
            steps
        })
    })
}
