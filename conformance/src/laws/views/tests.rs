//! Each V-law on evidence that is written by hand: what its statement says of it.

use std::collections::BTreeMap;

use hostview_cache::Held;
use hostview_sim::{DrvError, PagePolicy, Profile, RegisterCall};

use super::*;
use crate::case::{Step, Via};
use crate::code::ErrorCode;
use crate::platform::SimPlatform;
use crate::recorder::{Ledger, PlatformTable, Recorder};
use crate::subject::{Subject, SubjectInfo};

/// Where the first allocation of a fresh device lies.
const A: DeviceAddr = DeviceAddr::new(0x12c0_0000_0000);
const B: DeviceAddr = DeviceAddr::new(0x12c0_0010_0000);
const SIZE: u64 = 8192;
const BUSY: ErrorCode = ErrorCode(DrvError::Busy.code());
const REFUSED: ErrorCode = ErrorCode(DrvError::NotSupport.code());

fn held(count: u64, bytes: u64) -> Held {
    Held { count, bytes }
}

fn allocation(name: &str, base: DeviceAddr) -> Allocation {
    Allocation {
        name: name.to_owned(),
        base,
        bytes: SIZE,
        device: 0,
        live: true,
        accessed: true,
        refused: false,
        reused: false,
        made: 5,
        views: Vec::new(),
        freed_at: None,
        known: BTreeMap::new(),
    }
}

fn freed(name: &str, base: DeviceAddr) -> Allocation {
    Allocation { live: false, freed_at: Some(2), ..allocation(name, base) }
}

fn view(of: DeviceAddr, bytes: u64, in_use: bool) -> View {
    View { at: HostAddr::new(of.get()), of, bytes, in_use }
}

fn entry(base: DeviceAddr, bytes: u64, made: u64) -> LedgerEntry {
    LedgerEntry { base, bytes, view: HostAddr::new(base.get()), made }
}

fn ledger(entries: &[LedgerEntry]) -> Ledger {
    let mut ledger = Ledger::default();
    for entry in entries {
        ledger.note(*entry);
    }
    ledger
}

fn ok(call: SubjectCall) -> CallRecord {
    CallRecord { call, error: None, injected: false }
}

fn fails(call: SubjectCall, error: ErrorCode) -> CallRecord {
    CallRecord { error: Some(error), ..ok(call) }
}

fn injected(call: SubjectCall, error: ErrorCode) -> CallRecord {
    CallRecord { injected: true, ..fails(call, error) }
}

const REGISTER: SubjectCall = SubjectCall::Register { device: 0, base: A, bytes: SIZE };
const UNREGISTER: SubjectCall = SubjectCall::Unregister { base: A };
const FREE: SubjectCall = SubjectCall::Free { base: A, registered: false };
const COPY: SubjectCall = SubjectCall::Copy { address: A, bytes: 1 };

fn platform_error(error: ErrorCode) -> Outcome {
    Outcome::Failed(SubjectError::Platform(error))
}

fn refusal() -> Outcome {
    Outcome::Failed(SubjectError::Refused("by the subject".to_owned()))
}

fn shows(address: DeviceAddr) -> Outcome {
    Outcome::View(HostAddr::new(address.get()))
}

/// A subject that does nothing but finalize: with an answer, and with a call of the platform or none.
struct Quiet {
    again: Result<(), SubjectError>,
    calls: bool,
    /// What acquire gives for any base.
    base: Result<Acquired, SubjectError>,
}

impl Default for Quiet {
    fn default() -> Self {
        Self { again: Ok(()), calls: false, base: Ok(Acquired::DeviceCopies) }
    }
}

impl Subject for Quiet {
    fn alloc(&mut self, _: &mut dyn PlatformTable, _: u32, _: u64, _: PagePolicy) -> Result<DeviceAddr, SubjectError> {
        Ok(A)
    }

    fn free(&mut self, _: &mut dyn PlatformTable, _: DeviceAddr) -> Result<(), SubjectError> {
        Ok(())
    }

    fn acquire(&mut self, _: &mut dyn PlatformTable, _: DeviceAddr, _: u64) -> Result<Acquired, SubjectError> {
        self.base.clone()
    }

    fn read(&mut self, _: &mut dyn PlatformTable, _: DeviceAddr, _: &mut [u8]) -> Result<(), SubjectError> {
        Ok(())
    }

    fn write(&mut self, _: &mut dyn PlatformTable, _: DeviceAddr, _: &[u8]) -> Result<(), SubjectError> {
        Ok(())
    }

    fn held(&self) -> Held {
        Held::default()
    }

    fn finalize(&mut self, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
        if self.calls {
            let _ = platform.unregister(0, A);
        }
        self.again.clone()
    }
}

/// The evidence of a step, by default of one that changed nothing and was about nothing.
struct Scene {
    step: Step,
    address: DeviceAddr,
    bytes: u64,
    about: Option<usize>,
    accessed_before: bool,
    outcome: Outcome,
    calls: Vec<CallRecord>,
    held: (Held, Held),
    ledger: (Ledger, Ledger),
    model: Model,
    finalized: bool,
    written: Vec<u8>,
    info: SubjectInfo,
    recorder: Recorder,
    subject: Quiet,
}

impl Scene {
    fn new(op: Op, outcome: Outcome) -> Self {
        Self {
            step: Step::on(op, "a"),
            address: A,
            bytes: 1,
            about: None,
            accessed_before: true,
            outcome,
            calls: Vec::new(),
            held: (Held::default(), Held::default()),
            ledger: (Ledger::default(), Ledger::default()),
            model: Model::default(),
            finalized: false,
            written: Vec::new(),
            info: SubjectInfo::default(),
            recorder: Recorder::new(Box::new(SimPlatform::new(&Profile::shipped("a2a3").unwrap()))),
            subject: Quiet::default(),
        }
    }

    /// About `a`, which is live.
    fn about(op: Op, outcome: Outcome) -> Self {
        let mut scene = Self::new(op, outcome);
        scene.model.allocations.push(allocation("a", A));
        scene.about = Some(0);
        scene
    }

    fn calls(mut self, calls: &[CallRecord]) -> Self {
        self.calls = calls.to_vec();
        self
    }

    fn ledger(mut self, before: &[LedgerEntry], after: &[LedgerEntry]) -> Self {
        self.ledger = (ledger(before), ledger(after));
        self
    }

    fn held(mut self, before: Held, after: Held) -> Self {
        self.held = (before, after);
        self
    }

    fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn judge(mut self, id: &str) -> Option<Verdict> {
        let evidence = Evidence {
            step: &self.step,
            address: self.address,
            bytes: self.bytes,
            about: self.about.map(|index| &self.model.allocations[index]),
            accessed_before: self.accessed_before,
            outcome: &self.outcome,
            calls: &self.calls,
            held: self.held,
            ledger: (&self.ledger.0, &self.ledger.1),
            model: &self.model,
            finalized: self.finalized,
            written: &self.written,
            info: self.info,
            noise: None,
        };
        let law = view_laws().iter().find(|law| law.law.id.0 == id).unwrap();
        law.check.unwrap()(&evidence, &mut Bench { recorder: &mut self.recorder, subject: &mut self.subject })
    }

    #[track_caller]
    fn holds(self, id: &str) {
        assert_eq!(self.judge(id), HELD, "{id}");
    }

    #[track_caller]
    fn refuses(self, id: &str) {
        assert_eq!(self.judge(id), Some(Verdict::Refused), "{id}");
    }

    #[track_caller]
    fn says_nothing(self, id: &str) {
        assert_eq!(self.judge(id), None, "{id}");
    }

    #[track_caller]
    fn breaks(self, id: &str, how: &str) {
        match self.judge(id) {
            Some(Verdict::Broken(what)) if what.contains(how) => {}
            other => panic!("{id}: {other:?} for `{how}`"),
        }
    }
}

/// A device on which `a` was registered and freed, and kept in the driver's cache with its registration; what is written into it
/// then is read through the view.
fn kept_by_the_driver(scene: &mut Scene, write: impl FnOnce(&mut Recorder)) {
    let platform = scene.recorder.platform();
    let base = platform.alloc(0, SIZE, PagePolicy::NormalOnly, Via::Rt).unwrap();
    assert_eq!(base, A);
    platform.register(RegisterCall::view(base, SIZE)).unwrap();
    platform.free(base, Via::Rt).unwrap();
    write(&mut scene.recorder);
}

/// `b` where `a` was.
fn given_to_b(recorder: &mut Recorder) {
    let platform = recorder.platform();
    assert_eq!(platform.alloc(0, SIZE, PagePolicy::NormalOnly, Via::Rt), Ok(A));
    platform.copy_in(A.wrapping_add(SIZE - 4), &[1, 2, 3, 4]).unwrap();
    platform.copy_in(A, &[9; 8]).unwrap();
}

#[test]
fn v01_looks_at_what_was_freed_once_a_free_or_an_allocation_has_succeeded() {
    let scene = |op, outcome| {
        Scene::new(op, outcome)
            .with(|scene| scene.model.allocations.push(freed("a", A)))
            .ledger(&[], &[entry(A, SIZE, 3)])
    };
    scene(Op::Free, Outcome::Done).breaks("V01", "the registration of a from 0x12c000000000 is still held");
    scene(Op::Alloc, Outcome::Allocated(B)).breaks("V01", "still held");
    scene(Op::Free, platform_error(BUSY)).says_nothing("V01");
    scene(Op::Finalize, Outcome::Done).says_nothing("V01");
    // What nothing accessed has had no view.
    scene(Op::Free, Outcome::Done).with(|scene| scene.model.allocations[0].accessed = false).says_nothing("V01");
    // A registration that is younger than the allocation that has the address now is that one's.
    let younger = |made| {
        scene(Op::Alloc, Outcome::Allocated(B))
            .with(|scene| scene.model.allocations.push(allocation("b", A)))
            .ledger(&[], &[entry(A, SIZE, made)])
    };
    younger(6).holds("V01");
    younger(5).breaks("V01", "still held");
    // Whoever was never granted a view is checked by that refusal.
    let granted = |refused, views: &[View]| {
        Scene::new(Op::Free, Outcome::Done).with(|scene| {
            scene.model.allocations.push(Allocation { refused, views: views.to_vec(), ..freed("a", A) });
        })
    };
    granted(true, &[]).refuses("V01");
    granted(true, &[view(A, 1, false)]).holds("V01");
    granted(false, &[]).holds("V01");
}

#[test]
fn v01_probes_what_was_handed_out() {
    let scene = |of: DeviceAddr, bytes| {
        Scene::new(Op::Free, Outcome::Done).with(|scene| {
            scene.model.allocations.push(Allocation { views: vec![view(of, bytes, false)], ..freed("a", A) });
        })
    };
    let after = |of, bytes| scene(of, bytes).with(|scene| kept_by_the_driver(scene, |_| ()));
    after(A, 1)
        .breaks("V01", "the view of a at 0x12c000000000 can still be read after its free succeeded; its first byte is");
    // Both sides' bytes, as far as the owner's memory goes.
    let reused = |of: DeviceAddr| {
        scene(of, 1).with(|scene| kept_by_the_driver(scene, given_to_b)).with(|scene| {
            scene.model.allocations.push(allocation("b", A));
        })
    };
    reused(A)
        .breaks("V01", "this view of `a` (freed at step 3) now reads `b`'s bytes: 0909090909090909 through the view");
    reused(A.wrapping_add(SIZE - 4))
        .breaks("V01", "`b`'s bytes: 01020304 through the view at 0x12c000001ffc, 01020304 by");
    // A byte on the last page of somebody's registration can be read by right; the next page's cannot.
    let beside = |of: DeviceAddr| {
        scene(of, 1)
            .with(|scene| kept_by_the_driver(scene, given_to_b))
            .with(|scene| scene.model.allocations[0].base = A.wrapping_add(100))
            .ledger(&[], &[entry(A, 100, 6)])
    };
    beside(A.wrapping_add(100)).holds("V01");
    beside(A.wrapping_add(4095)).holds("V01");
    beside(A.wrapping_add(4096)).breaks("V01", "can still be read");
}

#[test]
fn v01_an_access_to_what_was_freed_refuses() {
    let scene = |outcome| Scene::new(Op::Acquire, outcome).with(|scene| scene.model.allocations.push(freed("a", A)));
    scene(refusal()).holds("V01");
    scene(shows(A)).breaks("V01", "acquire returns 0x12c000000000 into it");
    scene(Outcome::DeviceCopies).breaks("V01", "and the access succeeds");
    scene(refusal()).with(|scene| scene.address = B).says_nothing("V01");
    scene(shows(A)).with(|scene| scene.model.allocations.push(allocation("b", A))).says_nothing("V01");
}

#[test]
fn v02_what_could_not_be_unregistered_is_not_freed() {
    let scene = |outcome, calls: &[CallRecord]| Scene::about(Op::Free, outcome).calls(calls);
    let mapped = [entry(A, SIZE, 6)];
    let kept = |outcome, calls: &[CallRecord]| scene(outcome, calls).ledger(&mapped, &mapped);
    scene(Outcome::Done, &[ok(UNREGISTER), ok(FREE)]).ledger(&mapped, &[]).holds("V02");
    scene(Outcome::Done, &[ok(FREE)]).says_nothing("V02");
    scene(Outcome::Done, &[ok(FREE)]).with(|scene| scene.model.allocations[0].refused = true).refuses("V02");
    let early = SubjectCall::Free { base: A, registered: true };
    scene(Outcome::Done, &[ok(early)]).breaks("V02", "while its registration is still held");
    // A second try that succeeds is a success.
    let failed = fails(UNREGISTER, BUSY);
    scene(Outcome::Done, &[failed, ok(UNREGISTER), ok(FREE)]).ledger(&mapped, &[]).holds("V02");
    scene(Outcome::Done, &[failed, ok(FREE)]).breaks("V02", "its memory is freed all the same");
    kept(platform_error(BUSY), &[failed]).holds("V02");
    kept(platform_error(REFUSED), &[failed]).breaks("V02", "and free reports DRV_ERROR_NOT_SUPPORT");
    kept(refusal(), &[failed]).breaks("V02", "and free reports refused");
    kept(Outcome::Done, &[failed]).breaks("V02", "its free reports success");
    scene(platform_error(BUSY), &[failed]).ledger(&mapped, &[]).breaks("V02", "its record is gone");
}

#[test]
fn v03_compares_with_the_view_of_the_base() {
    let at = A.wrapping_add(100);
    let scene = |outcome, base: Result<Acquired, SubjectError>| {
        Scene::about(Op::Acquire, outcome).with(|scene| (scene.address, scene.subject.base) = (at, base))
    };
    let base = |address: DeviceAddr| Ok(Acquired::View(HostAddr::new(address.get())));
    scene(shows(at), base(A)).holds("V03");
    scene(shows(at), base(at)).breaks("V03", "the view of a at offset 100 is");
    scene(shows(at), Ok(Acquired::DeviceCopies)).breaks("V03", "and none of its base");
    scene(Outcome::DeviceCopies, base(A)).says_nothing("V03");
    scene(Outcome::DeviceCopies, base(A)).calls(&[fails(REGISTER, REFUSED)]).refuses("V03");
}

#[test]
fn v04_a_refusal_is_the_platforms_own_of_a_registration() {
    let scene = |calls: &[CallRecord]| Scene::about(Op::Read, Outcome::Bytes(vec![0])).calls(calls);
    scene(&[ok(REGISTER)]).holds("V04");
    scene(&[fails(REGISTER, REFUSED)]).refuses("V04");
    scene(&[injected(REGISTER, REFUSED)]).holds("V04");
    scene(&[fails(COPY, REFUSED)]).holds("V04");
    scene(&[]).with(|scene| scene.outcome = Outcome::Bytes(Vec::new())).says_nothing("V04");
}

#[test]
fn v04_bytes_agree_and_are_shown_where_they_do_not() {
    let live = |scene: &mut Scene| {
        let platform = scene.recorder.platform();
        assert_eq!(platform.alloc(0, SIZE, PagePolicy::NormalOnly, Via::Rt), Ok(A));
        platform.copy_in(A, &[7; 40]).unwrap();
    };
    let written =
        |bytes: Vec<u8>| Scene::about(Op::Write, Outcome::Done).with(live).with(|scene| scene.written = bytes);
    written(vec![7; 40]).holds("V04");
    written(vec![8; 16])
        .breaks("V04", "reads 07070707070707070707070707070707 where 08080808080808080808080808080808 was written");
    written(vec![8; 17]).breaks("V04", "where 08080808080808080808080808080808… was written");
    // What was written at offset 12, where the read begins at 10.
    let read = |third| {
        Scene::about(Op::Read, Outcome::Bytes(vec![0, 0, third])).with(|scene| {
            scene.address = A.wrapping_add(10);
            scene.model.allocations[0].known.insert(12, 5);
        })
    };
    read(5).holds("V04");
    read(6).breaks("V04", "a reads 0x06 at offset 12; 0x05 was written there");
    let fault = hostview_sim::Fault { address: HostAddr::new(A.get()) };
    let faulted = |op| Scene::about(op, Outcome::Failed(SubjectError::Fault(fault)));
    faulted(Op::Read).breaks("V04", "an access to a at offset 0 meets SIGSEGV");
    faulted(Op::Write).breaks("V04", "meets SIGSEGV");
    // A view that was handed out: it can be read, and shows what is there, at both of its ends.
    let acquired = |view, bytes| Scene::about(Op::Acquire, view).with(live).with(|scene| scene.bytes = bytes);
    acquired(shows(A), 40).breaks("V04", "the view of a that was just handed out meets SIGSEGV");
    let mapped = |view, bytes| {
        acquired(view, bytes).with(|scene| {
            scene.recorder.platform().register(RegisterCall::view(A, SIZE)).unwrap();
        })
    };
    mapped(shows(A), 40).holds("V04");
    mapped(shows(A.wrapping_add(1)), 40).breaks("V04", "shows 0x00 at byte 39; a device copy reads 0x07");
}

#[test]
fn v05_one_registration_over_the_whole() {
    let register = |base, bytes| SubjectCall::Register { device: 0, base, bytes };
    let scene = |calls: &[CallRecord]| Scene::about(Op::Read, Outcome::Bytes(vec![0])).calls(calls);
    scene(&[ok(REGISTER)]).ledger(&[], &[entry(A, SIZE, 6)]).holds("V05");
    scene(&[fails(REGISTER, REFUSED)]).refuses("V05");
    // A failed one beside one that is held is a refusal all the same.
    scene(&[fails(REGISTER, REFUSED)]).ledger(&[], &[entry(A, SIZE, 6)]).refuses("V05");
    scene(&[ok(register(A, SIZE - 1))]).breaks("V05", "the allocation is");
    scene(&[ok(register(A.wrapping_add(4096), SIZE))]).breaks("V05", "the allocation is");
    scene(&[ok(register(B, SIZE))]).breaks("V05", "where nothing is allocated");
    let again = |made| scene(&[ok(REGISTER)]).ledger(&[entry(A, SIZE, made)], &[entry(A, SIZE, 9)]);
    again(6).breaks("V05", "a is registered a second time");
    // What an earlier owner of the address left is not this one's.
    again(5).holds("V05");
    scene(&[ok(UNREGISTER), ok(REGISTER)]).ledger(&[entry(A, SIZE, 6)], &[entry(A, SIZE, 9)]).holds("V05");
    scene(&[fails(UNREGISTER, BUSY), ok(REGISTER)])
        .ledger(&[entry(A, SIZE, 6)], &[entry(A, SIZE, 9)])
        .breaks("V05", "a second time");
}

#[test]
fn v06_an_allocation_registers_nothing() {
    Scene::about(Op::Alloc, Outcome::Allocated(A)).holds("V06");
    Scene::new(Op::Alloc, platform_error(BUSY)).says_nothing("V06");
    let access = |calls: &[CallRecord]| Scene::about(Op::Read, Outcome::Bytes(vec![0])).calls(calls);
    access(&[fails(REGISTER, REFUSED)]).refuses("V06");
    access(&[]).says_nothing("V06");
    access(&[ok(REGISTER)])
        .with(|scene| scene.model.allocations[0].accessed = false)
        .breaks("V06", "0x12c000000000 is registered, and nothing has accessed it");
}

#[test]
fn v07_a_refusal_changes_nothing_and_copies_serve() {
    let scene = |outcome| Scene::about(Op::Acquire, outcome).calls(&[fails(REGISTER, REFUSED)]);
    scene(Outcome::DeviceCopies).refuses("V07");
    scene(Outcome::DeviceCopies).calls(&[injected(REGISTER, REFUSED)]).holds("V07");
    scene(Outcome::DeviceCopies).with(|scene| scene.finalized = true).says_nothing("V07");
    scene(Outcome::DeviceCopies).with(|scene| scene.step.op = Op::Free).says_nothing("V07");
    scene(Outcome::DeviceCopies).held(held(0, 0), held(1, 0)).breaks("V07", "has grown");
    scene(Outcome::DeviceCopies).held(held(1, 0), held(1, 9)).breaks("V07", "has grown");
    scene(Outcome::DeviceCopies).ledger(&[], &[entry(B, SIZE, 6)]).breaks("V07", "has grown");
    scene(Outcome::DeviceCopies).ledger(&[entry(B, SIZE, 6)], &[entry(B, SIZE, 6)]).refuses("V07");
    scene(shows(A)).breaks("V07", "and acquire returns 0x12c000000000");
    scene(refusal()).breaks("V07", "where a device copy would serve");
    scene(platform_error(BUSY)).calls(&[fails(REGISTER, REFUSED), fails(COPY, BUSY)]).refuses("V07");
}

#[test]
fn v08_an_address_that_is_used_again_starts_afresh() {
    let scene = |outcome| {
        Scene::about(Op::Acquire, outcome).with(|scene| {
            scene.model.allocations[0].reused = true;
            scene.accessed_before = false;
        })
    };
    let by = |entries: &[LedgerEntry]| scene(shows(A)).ledger(entries, entries);
    by(&[entry(A, SIZE, 6)]).holds("V08");
    by(&[entry(A, SIZE, 5)]).breaks("V08", "by a registration that is older");
    by(&[]).breaks("V08", "by a registration that is older");
    // Of another allocation, and of this one elsewhere.
    by(&[LedgerEntry { view: HostAddr::new(A.get()), ..entry(B, SIZE, 6) }]).breaks("V08", "that is older");
    by(&[LedgerEntry { view: HostAddr::new(B.get()), ..entry(A, SIZE, 6) }]).breaks("V08", "that is older");
    scene(Outcome::Done).with(|scene| scene.step.op = Op::Free).says_nothing("V08");
    by(&[]).with(|scene| scene.model.allocations[0].reused = false).says_nothing("V08");
    // A refusal is asked for anew.
    let copies = || scene(Outcome::DeviceCopies);
    copies().breaks("V08", "is refused a view without asking the platform");
    copies().calls(&[fails(REGISTER, REFUSED)]).refuses("V08");
    copies().with(|scene| scene.accessed_before = true).says_nothing("V08");
    let budget = |bytes| copies().with(|scene| scene.info.budget = Some(bytes)).held(held(1, 100), held(1, 100));
    budget(SIZE + 100).breaks("V08", "without asking");
    budget(SIZE + 99).says_nothing("V08");
    scene(Outcome::Bytes(vec![0])).calls(&[ok(COPY)]).breaks("V08", "without asking");
    scene(Outcome::Bytes(vec![0])).says_nothing("V08");
}

#[test]
fn v09_finalize_is_the_end() {
    let access = |outcome| Scene::about(Op::Read, outcome).with(|scene| scene.finalized = true);
    access(refusal()).holds("V09");
    access(refusal()).held(held(0, 0), held(1, 1)).breaks("V09", "is refused, and changes what is held");
    access(Outcome::Bytes(vec![0])).breaks("V09", "handed out after finalize");
    access(Outcome::Bytes(vec![0])).with(|scene| scene.finalized = false).says_nothing("V09");
    access(Outcome::Done).with(|scene| scene.step.op = Op::Free).says_nothing("V09");
    let mapped = [entry(A, SIZE, 6)];
    let scene = |outcome, calls: &[CallRecord]| Scene::new(Op::Finalize, outcome).calls(calls);
    scene(Outcome::Done, &[ok(UNREGISTER)]).holds("V09");
    scene(Outcome::Done, &[ok(UNREGISTER), ok(FREE)]).holds("V09");
    scene(Outcome::Done, &[ok(FREE), ok(UNREGISTER)]).breaks("V09", "before every view is released");
    scene(Outcome::Done, &[fails(UNREGISTER, BUSY), ok(UNREGISTER)]).holds("V09");
    scene(Outcome::Done, &[]).ledger(&mapped, &mapped).breaks("V09", "is still held");
    scene(platform_error(BUSY), &[]).breaks("V09", "and no unregister failed");
    let stuck = |outcome, left: &[LedgerEntry]| scene(outcome, &[fails(UNREGISTER, BUSY)]).ledger(&mapped, left);
    stuck(platform_error(BUSY), &mapped).holds("V09");
    stuck(Outcome::Done, &mapped).breaks("V09", "it reports success");
    stuck(platform_error(BUSY), &[mapped[0], entry(B, SIZE, 7)]).breaks("V09", "and 2 views are left");
    // The second time: asked for where it is claimed, quiet, and a success.
    let again = |again, calls, claimed| {
        scene(Outcome::Done, &[ok(UNREGISTER)]).with(|scene| {
            scene.info.finalize_reentrant = claimed;
            (scene.subject.again, scene.subject.calls) = (again, calls);
        })
    };
    again(Ok(()), true, true).breaks("V09", "a second finalize is not quiet");
    again(Err(SubjectError::Platform(BUSY)), false, true).breaks("V09", "not quiet");
    again(Err(SubjectError::Platform(BUSY)), true, false).holds("V09");
}

#[test]
fn v10_what_names_no_allocation_is_refused_by_the_cache_alone() {
    let scene = |outcome| Scene::new(Op::Read, outcome);
    scene(refusal()).holds("V10");
    let fault = hostview_sim::Fault { address: HostAddr::new(A.get()) };
    scene(Outcome::Failed(SubjectError::Fault(fault))).breaks("V10", "and the access meets SIGSEGV");
    scene(refusal()).held(held(0, 0), held(1, 1)).breaks("V10", "the refusal changes what is held");
    scene(refusal()).calls(&[ok(REGISTER)]).breaks("V10", "the platform is asked all the same");
    scene(refusal()).calls(&[ok(COPY)]).breaks("V10", "the platform is asked all the same");
    scene(Outcome::Bytes(vec![0])).breaks("V10", "and the access succeeds");
    scene(refusal()).with(|scene| scene.step.op = Op::Free).says_nothing("V10");
    Scene::about(Op::Read, refusal()).says_nothing("V10");
}

#[test]
fn v11_the_report_is_what_is_registered() {
    let scene = |after: &[LedgerEntry], said: Held| {
        Scene::about(Op::Read, Outcome::Bytes(vec![0])).ledger(&[], after).held(held(0, 0), said)
    };
    scene(&[entry(A, SIZE, 6)], held(1, SIZE)).holds("V11");
    scene(&[entry(A, SIZE, 6)], held(1, 1))
        .breaks("V11", "the cache reports 1 views of 1 B; the platform holds 1 of 8 KiB");
    scene(&[entry(A, SIZE, 6)], held(2, SIZE)).breaks("V11", "the cache reports 2 views");
    scene(&[], held(0, 0)).says_nothing("V11");
    scene(&[], held(0, 0)).calls(&[fails(REGISTER, REFUSED)]).refuses("V11");
    scene(&[], held(0, 0)).ledger(&[entry(A, SIZE, 6)], &[]).holds("V11");
    scene(&[], held(9, 9)).with(|scene| scene.info.reports_held = false).says_nothing("V11");
}

#[test]
fn v12_and_v13_what_fails_changes_nothing() {
    let free = |outcome| Scene::new(Op::Free, outcome);
    free(refusal()).holds("V12");
    free(Outcome::Done).breaks("V12", "and no allocation begins there");
    Scene::about(Op::Free, Outcome::Done).says_nothing("V12");
    Scene::new(Op::Read, Outcome::Bytes(vec![0])).says_nothing("V12");
    free(refusal()).held(held(1, 9), held(0, 0)).breaks("V12", "changes what is held");
    free(refusal()).held(held(1, 9), held(1, 8)).breaks("V12", "changes what is held");
    free(refusal()).ledger(&[entry(A, SIZE, 6)], &[]).breaks("V12", "changes what is held");
    let alloc = SubjectCall::Alloc { device: 0, bytes: SIZE };
    let scene = |outcome| Scene::new(Op::Alloc, outcome).calls(&[fails(alloc, BUSY)]);
    scene(platform_error(BUSY)).holds("V13");
    scene(Outcome::Allocated(A)).breaks("V13", "and the cache reports success");
    scene(platform_error(BUSY)).ledger(&[entry(A, SIZE, 6)], &[]).breaks("V13", "what is held has changed");
    scene(refusal()).calls(&[]).says_nothing("V13");
}

#[test]
fn v14_two_devices_are_apart() {
    let alloc = |device| SubjectCall::Alloc { device, bytes: SIZE };
    Scene::new(Op::Alloc, Outcome::Allocated(A)).calls(&[ok(alloc(0))]).says_nothing("V14");
    Scene::new(Op::Alloc, Outcome::Allocated(A)).calls(&[ok(alloc(1))]).breaks("V14", "and device 1 allocates");
    // `a` on device 0, `b` on device 1.
    let scene = |outcome: Outcome| {
        Scene::about(Op::Acquire, outcome).with(|scene| {
            scene.model.allocations.push(Allocation { device: 1, ..allocation("b", B) });
        })
    };
    scene(Outcome::Done).holds("V14");
    scene(Outcome::Done).calls(&[fails(REGISTER, REFUSED)]).refuses("V14");
    scene(Outcome::Bytes(vec![0])).calls(&[fails(REGISTER, REFUSED)]).refuses("V14");
    scene(Outcome::DeviceCopies).says_nothing("V14");
    scene(Outcome::DeviceCopies).calls(&[fails(REGISTER, REFUSED)]).refuses("V14");
    scene(refusal()).says_nothing("V14");
    scene(Outcome::Done).with(|scene| scene.step.op = Op::Free).says_nothing("V14");
    // Not two devices: one of them has nothing that lives.
    scene(Outcome::Done).with(|scene| scene.model.allocations[1].live = false).says_nothing("V14");
    scene(Outcome::Done).with(|scene| scene.model.allocations[1].device = 0).says_nothing("V14");
    scene(Outcome::Done).with(|scene| scene.model.allocations[0].device = 1).says_nothing("V14");
    let dead = |scene: &mut Scene| {
        scene.model.allocations.push(Allocation { device: 0, ..freed("c", B) });
        scene.model.allocations[0].device = 1;
    };
    scene(Outcome::Done).with(dead).says_nothing("V14");
    let other = SubjectCall::Register { device: 1, base: A, bytes: SIZE };
    scene(Outcome::Done).calls(&[ok(other)]).breaks("V14", "of device 0 is registered for device 1");
    scene(Outcome::Done).calls(&[ok(REGISTER)]).holds("V14");
    // The view of `b` for an access to `a`.
    scene(shows(B)).ledger(&[], &[entry(B, SIZE, 6)]).breaks("V14", "the view of a shows memory of another device");
    scene(shows(A))
        .ledger(&[], &[entry(A, SIZE, 6)])
        .with(|scene| {
            let platform = scene.recorder.platform();
            assert_eq!(platform.alloc(0, SIZE, PagePolicy::NormalOnly, Via::Rt), Ok(A));
            platform.register(RegisterCall::view(A, SIZE)).unwrap();
        })
        .holds("V14");
    scene(shows(A)).says_nothing("V14");
}

#[test]
fn v16_the_budget_is_kept_at_each_call() {
    let register = |base| SubjectCall::Register { device: 0, base, bytes: SIZE };
    let scene = |budget, calls: &[CallRecord]| {
        Scene::about(Op::Read, Outcome::Bytes(vec![0])).calls(calls).with(|scene| {
            scene.info.budget = Some(budget);
            scene.model.allocations.push(allocation("b", B));
        })
    };
    scene(SIZE, &[ok(REGISTER)]).holds("V16");
    scene(SIZE - 1, &[ok(REGISTER)]).breaks("V16", "are mapped, of a budget of");
    // For a moment it is passed.
    let swap = [ok(register(B)), ok(UNREGISTER)];
    scene(SIZE, &swap).ledger(&[entry(A, SIZE, 6)], &[]).breaks("V16", "16 KiB are mapped, of a budget of 8 KiB");
    scene(SIZE, &[swap[1], swap[0]]).ledger(&[entry(A, SIZE, 6)], &[]).holds("V16");
    scene(SIZE, &[fails(register(B), REFUSED)]).refuses("V16");
    scene(SIZE, &[]).says_nothing("V16");
    scene(SIZE, &[ok(REGISTER)]).with(|scene| scene.info.budget = None).says_nothing("V16");
    // What is evicted: another's view that is in use, one that is not, and one's own.
    let evicts = |index: usize, in_use| {
        let base = [A, B][index];
        scene(SIZE, &[ok(SubjectCall::Unregister { base })])
            .ledger(&[entry(base, SIZE, 6)], &[entry(base, SIZE, 6)])
            .with(|scene| scene.model.allocations[index].views.push(view(base, 1, in_use)))
    };
    evicts(1, true).breaks("V16", "the view of b is evicted while it is in use");
    evicts(1, false).says_nothing("V16");
    evicts(0, true).says_nothing("V16");
}

#[test]
fn v17_and_v19_calls_return_and_serve() {
    Scene::new(Op::Read, refusal()).holds("V17");
    Scene::new(Op::Read, Outcome::NeverReturned("panics".to_owned())).breaks("V17", "read panics");
    let scene = |op, outcome| Scene::about(op, outcome);
    scene(Op::Read, Outcome::Bytes(vec![0])).holds("V19");
    scene(Op::Read, refusal()).breaks("V19", "the platform refuses nothing, and read fails");
    scene(Op::Read, platform_error(BUSY)).calls(&[fails(COPY, BUSY)]).says_nothing("V19");
    scene(Op::Free, Outcome::Done).holds("V19");
    scene(Op::Free, refusal()).breaks("V19", "and free fails");
    scene(Op::Read, refusal()).with(|scene| scene.finalized = true).says_nothing("V19");
    scene(Op::Free, refusal()).with(|scene| scene.finalized = true).breaks("V19", "and free fails");
    scene(Op::Alloc, Outcome::Allocated(A)).says_nothing("V19");
}

#[test]
fn v18_a_view_in_use_shows_its_allocation() {
    // At an address of its own, so that what it shows can differ from what is there.
    let scene = |mapped, at: DeviceAddr| {
        Scene::about(Op::Read, Outcome::Bytes(vec![0])).with(|scene| {
            let platform = scene.recorder.platform();
            assert_eq!(platform.alloc(0, SIZE, PagePolicy::NormalOnly, Via::Rt), Ok(A));
            platform.copy_in(A, &[7]).unwrap();
            if mapped {
                platform.register(RegisterCall::view(A, SIZE)).unwrap();
            }
            scene.model.allocations[0].views.push(View { at: HostAddr::new(at.get()), ..view(A, 8, true) });
        })
    };
    scene(true, A).holds("V18");
    scene(false, A).breaks("V18", "a view of a that is in use cannot be read");
    scene(true, A.wrapping_add(8)).breaks("V18", "shows 0x00; a device copy reads 0x07");
    // The last byte alone is another one.
    let last = |scene: &mut Scene| {
        let platform = scene.recorder.platform();
        platform.copy_in(A.wrapping_add(7), &[9, 7]).unwrap();
    };
    scene(true, A.wrapping_add(8)).with(last).breaks("V18", "shows 0x00; a device copy reads 0x09");
    scene(false, A).with(|scene| scene.model.allocations[0].views[0].in_use = false).says_nothing("V18");
    // A held view that the platform refused is checked by that.
    let refused = |op, hold| {
        Scene::about(op, Outcome::DeviceCopies).calls(&[fails(REGISTER, REFUSED)]).with(|scene| scene.step.hold = hold)
    };
    refused(Op::Acquire, true).refuses("V18");
    refused(Op::Acquire, false).says_nothing("V18");
    refused(Op::Read, true).says_nothing("V18");
    refused(Op::Acquire, true).calls(&[]).says_nothing("V18");
}
