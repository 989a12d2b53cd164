//! Running a sequence through a subject, every law watching.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hostview_cache::Held;
use hostview_sim::{DeviceAddr, DrvError, HostAddr, PagePolicy, PlannedFault};
use serde::{Deserialize, Serialize};

use crate::case::{Op, Step, Via};
use crate::driver_run::{NOWHERE, payload};
use crate::expect::{Came, Context, Mismatch, judge};
use crate::explain::Told;
use crate::generate::name_of;
use crate::laws::{
    EVERY_CALL_OF_A_SUBJECT_RETURNS, EVERY_CALL_RETURNS, LawId, Verdict, ViewLaw, view_laws, whose_bytes,
};
use crate::meeting::{Met, Work, meet};
use crate::platform::Platform;
use crate::recorder::{CallRecord, Endless, Ledger, PlatformTable, Recorder, SubjectCall};
use crate::subject::{Acquired, Subject, SubjectError, SubjectInfo};

/// What must hold of an allocation, kept apart from what the subject thinks.
#[derive(Clone, Debug)]
pub struct Allocation {
    /// Its name in the sequence.
    pub name: String,
    /// Its base, or null when the allocation failed.
    pub base: DeviceAddr,
    /// The size that was asked for.
    pub bytes: u64,
    /// Its device.
    pub device: u32,
    /// Whether it is allocated now.
    pub live: bool,
    /// Whether any access asked for it.
    pub accessed: bool,
    /// Whether the platform ever refused to register it, by itself.
    pub refused: bool,
    /// Whether an earlier allocation, freed since, had its base.
    pub reused: bool,
    /// The number of calls that the subject had made when it was allocated.
    pub made: u64,
    /// Views of it that were handed out.
    pub views: Vec<View>,
    /// The step that freed it, from 0.
    pub freed_at: Option<usize>,
    /// The bytes that were written, by offset.
    pub known: BTreeMap<u64, u8>,
}

/// A view that was handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Where it is.
    pub at: HostAddr,
    /// What it shows.
    pub of: DeviceAddr,
    /// How much of it.
    pub bytes: u64,
    /// Whether it is still in use.
    pub in_use: bool,
}

impl Allocation {
    /// Its views that are still in use.
    pub fn in_use(&self) -> impl Iterator<Item = &View> {
        self.views.iter().filter(|view| view.in_use)
    }

    /// Whether a range of device memory lies in it.
    #[must_use]
    pub fn holds(&self, address: DeviceAddr, bytes: u64) -> bool {
        let Some(offset) = address.offset_from(self.base) else { return false };
        self.base != DeviceAddr::NULL && bytes > 0 && offset.checked_add(bytes).is_some_and(|end| end <= self.bytes)
    }
}

/// The model: what has been allocated and written so far.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Every allocation that was tried, in order.
    pub allocations: Vec<Allocation>,
    /// Whether finalize was called.
    pub finalized: bool,
}

impl Model {
    /// The live allocation that holds a whole range.
    #[must_use]
    pub fn holder(&self, address: DeviceAddr, bytes: u64) -> Option<usize> {
        self.allocations.iter().position(|allocation| allocation.live && allocation.holds(address, bytes))
    }

    /// The live allocation that begins at an address.
    #[must_use]
    pub fn based_at(&self, address: DeviceAddr) -> Option<usize> {
        self.allocations
            .iter()
            .position(|allocation| allocation.live && allocation.base == address && address != DeviceAddr::NULL)
    }

    /// Takes note of bytes that the device wrote, whoever has the memory.
    fn overwrite(&mut self, address: DeviceAddr, written: &[u8]) {
        for allocation in self.allocations.iter_mut().filter(|allocation| allocation.live) {
            for (at, byte) in written.iter().enumerate() {
                let at = address.wrapping_add(at as u64);
                if allocation.holds(at, 1) {
                    allocation.known.insert(at.get() - allocation.base.get(), *byte);
                }
            }
        }
    }

    /// The newest allocation that covers an address, live or not: for naming it.
    #[must_use]
    pub fn newest_at(&self, address: DeviceAddr) -> Option<&Allocation> {
        self.allocations.iter().rev().find(|allocation| allocation.holds(address, 1))
    }
}

/// What a subject did with a step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// It allocated.
    Allocated(DeviceAddr),
    /// It did what was asked.
    Done,
    /// It handed out a view.
    View(HostAddr),
    /// It left the access to device copies.
    DeviceCopies,
    /// It read these bytes.
    Bytes(Vec<u8>),
    /// It did not do it.
    Failed(SubjectError),
    /// It did not come back; what it did instead.
    NeverReturned(String),
}

/// Everything about one step that a law can judge by.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// The step.
    pub step: &'a Step,
    /// The device address that it named.
    pub address: DeviceAddr,
    /// The length that it named.
    pub bytes: u64,
    /// The live allocation that the step is about: that it made, freed, or accessed in whole.
    pub about: Option<&'a Allocation>,
    /// Whether that allocation had been accessed before.
    pub accessed_before: bool,
    /// What came of it.
    pub outcome: &'a Outcome,
    /// The calls that the subject made.
    pub calls: &'a [CallRecord],
    /// What the subject reported before and after.
    pub held: (Held, Held),
    /// What it had registered before and after.
    pub ledger: (&'a Ledger, &'a Ledger),
    /// The model after the step.
    pub model: &'a Model,
    /// Whether finalize had been called before.
    pub finalized: bool,
    /// What a write wrote.
    pub written: &'a [u8],
    /// What the subject says of itself.
    pub info: SubjectInfo,
    /// What it wrote to standard output meanwhile, where that can be seen.
    pub noise: Option<String>,
}

/// What a law may ask beyond the evidence: the platform, and the subject again.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The platform and the record.
    pub recorder: &'a mut Recorder,
    /// The subject.
    pub subject: &'a mut dyn Subject,
}

impl fmt::Debug for dyn Subject + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("subject")
    }
}

/// How often a law was checked, and with what result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// It held.
    pub held: u64,
    /// The refusal that stands in its place was as it must be.
    pub refused: u64,
}

/// A law that broke.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Breach {
    /// Which.
    pub law: LawId,
    /// At which step, from 0.
    pub step: usize,
    /// How it showed.
    pub what: String,
    /// What the platform held for the subject then, in words.
    pub holding: Vec<String>,
}

/// What came of a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stepped {
    /// The laws that broke.
    pub breaches: Vec<Breach>,
    /// What about it is not as its case says.
    pub mismatch: Option<Mismatch>,
    /// How many steps were run: two where the second ran while the first stood still.
    pub taken: usize,
    /// Whether nothing more can be run.
    pub over: bool,
}

/// How the last two of some steps ended, and how things stand then.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Stood {
    outcomes: [Outcome; 2],
    standing: Standing,
}

/// Does steps again, one after the other, on a platform and with a subject as those of the run were at its beginning.
pub type Again = Box<dyn Fn(&[Step]) -> Option<Stood>>;

/// Runs steps through a subject.
pub struct CacheRun {
    recorder: Recorder,
    subject: Box<dyn Subject>,
    info: SubjectInfo,
    model: Model,
    names: HashMap<String, usize>,
    tallies: HashMap<LawId, Tally>,
    without: Vec<LawId>,
    logged: usize,
    again: Option<Again>,
    /// The steps so far, in an order that explains what came of them.
    history: Vec<Step>,
}

impl fmt::Debug for CacheRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheRun").field("recorder", &self.recorder).field("model", &self.model).finish_non_exhaustive()
    }
}

impl Context for CacheRun {
    fn log(&self) -> &[String] {
        self.recorder.platform_log()
    }

    fn keeps_log(&self) -> bool {
        self.recorder.keeps_log()
    }

    fn address_of(&self, name: &str) -> Option<u64> {
        self.names.get(name).map(|index| self.model.allocations[*index].base.get())
    }
}

/// What a step is about.
struct Aim {
    address: DeviceAddr,
    bytes: u64,
    written: Vec<u8>,
    about: Option<usize>,
}

/// Makes the call of a subject that a step comes to.
fn perform(
    step: &Step,
    (address, bytes): (DeviceAddr, u64),
    written: &[u8],
    subject: &mut dyn Subject,
    platform: &mut dyn PlatformTable,
) -> Outcome {
    let done = |result: Result<(), SubjectError>| result.map_or_else(Outcome::Failed, |()| Outcome::Done);
    match step.op {
        Op::Alloc => match subject.alloc(platform, step.device, bytes, step.policy) {
            Ok(base) => Outcome::Allocated(base),
            Err(error) => Outcome::Failed(error),
        },
        Op::Free => done(subject.free(platform, address)),
        Op::Acquire => match subject.acquire(platform, address, bytes) {
            Ok(Acquired::View(view)) => Outcome::View(view),
            Ok(Acquired::DeviceCopies) => Outcome::DeviceCopies,
            Err(error) => Outcome::Failed(error),
        },
        Op::Release => {
            subject.release(platform, address);
            Outcome::Done
        }
        Op::Read => {
            let mut into = vec![0; usize::try_from(bytes).unwrap_or(0)];
            match subject.read(platform, address, &mut into) {
                Ok(()) => Outcome::Bytes(into),
                Err(error) => Outcome::Failed(error),
            }
        }
        Op::Write => done(subject.write(platform, address, written)),
        Op::Finalize => done(subject.finalize(platform)),
        Op::CopyIn | Op::CopyOut | Op::Register | Op::Unregister => {
            Outcome::Failed(SubjectError::Refused("no operation of a cache".to_owned()))
        }
    }
}

/// How a run stands, as far as the order of two steps can be seen in it: how many views are reported and their bytes, and what
/// is registered.
type Standing = ((u64, u64), Vec<(DeviceAddr, u64)>);

impl CacheRun {
    /// A run of a fresh subject on a fresh platform.
    #[must_use]
    pub fn new(platform: Box<dyn Platform>, subject: Box<dyn Subject>) -> Self {
        let logged = platform.log().len();
        Self {
            recorder: Recorder::new(platform),
            info: subject.info(),
            subject,
            model: Model::default(),
            names: HashMap::new(),
            tallies: HashMap::new(),
            without: Vec::new(),
            logged,
            again: None,
            history: Vec::new(),
        }
    }

    /// Leaves these laws out.
    #[must_use]
    pub fn without(mut self, laws: &[LawId]) -> Self {
        self.without = laws.to_vec();
        self
    }

    /// Runs steps in two threads where they say so: what came of them is judged by what comes of them one after the other,
    /// on a platform and with a subject made afresh.
    #[must_use]
    pub fn with_threads(mut self, again: Again) -> Self {
        self.again = Some(again);
        self
    }

    /// The last line that the driver wrote in the step that ran last.
    #[must_use]
    pub fn last_words(&self) -> Option<String> {
        self.recorder.platform_log()[self.logged..].last().cloned()
    }

    /// How often each law was checked so far.
    #[must_use]
    pub fn tallies(&self) -> &HashMap<LawId, Tally> {
        &self.tallies
    }

    /// What the subject reports to hold.
    #[must_use]
    pub fn held(&self) -> Held {
        self.subject.held()
    }

    /// From now on the rules are kept by which a simulated platform answers.
    pub(crate) fn ask_why(&mut self) {
        self.recorder.ask_why();
    }

    /// Takes what was told since the last time.
    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        self.recorder.take_told()
    }

    /// The platform.
    pub fn platform(&mut self) -> &mut dyn Platform {
        self.recorder.platform()
    }

    /// Runs the step at `index`, and the one behind it where that runs meanwhile.
    pub fn step(&mut self, index: usize, steps: &[Step]) -> Stepped {
        let step = &steps[index];
        self.subject.at_step(index, step.op);
        self.logged = self.recorder.platform_log().len();
        let together = steps.get(index + 1).filter(|next| self.can_meet(step, next));
        if let Some(fail) = &step.fail
            && let Some(error) = DrvError::from_name(&fail.error)
        {
            self.recorder.plan_fault(PlannedFault { call: fail.call, nth: fail.nth, error, lasting: fail.lasting });
        }
        let before = Before {
            held: self.subject.held(),
            ledger: self.recorder.ledger().clone(),
            finalized: self.model.finalized,
            made: self.recorder.calls_made(),
        };
        let aim = self.aim(step);
        let outcome = match together {
            None => self.call(step, &aim),
            Some(next) => match self.meet([step, next], &aim) {
                Met::Alone(outcome) => outcome,
                Met::Never(why) => Outcome::NeverReturned(why),
                Met::Both(outcomes) => return self.both(index, [step, next], &outcomes, &before),
            },
        };
        self.recorder.end_lasting_faults();
        if let Some(loss) = self.recorder.platform().lost() {
            let holding = describe_holding(self.recorder.ledger(), &self.model);
            let breach = Breach { law: EVERY_CALL_RETURNS, step: index, what: loss.to_string(), holding };
            return Stepped { breaches: vec![breach], mismatch: None, taken: 1, over: true };
        }
        self.history.push(Step { pause: None, ..step.clone() });
        let calls = self.recorder.take_calls();
        let over = matches!(outcome, Outcome::NeverReturned(_));
        let held_after = if over { before.held } else { self.subject.held() };
        let ledger_after = self.recorder.ledger().clone();
        let accessed_before = aim.about.is_some_and(|index| self.model.allocations[index].accessed);
        let about = self.learn((index, step), &outcome, &aim, (&calls, before.made));

        let model = std::mem::take(&mut self.model);
        let evidence = Evidence {
            step,
            address: aim.address,
            bytes: aim.bytes,
            about: about.map(|index| &model.allocations[index]),
            accessed_before,
            outcome: &outcome,
            calls: &calls,
            held: (before.held, held_after),
            ledger: (&before.ledger, &ledger_after),
            model: &model,
            finalized: before.finalized,
            written: &aim.written,
            info: self.info,
            noise: self.subject.noise(),
        };
        let breaches = self.judge_laws(index, &evidence);
        self.model = model;
        if step.op == Op::Acquire && !step.hold && matches!(outcome, Outcome::View(_)) {
            self.subject.release(&mut self.recorder, aim.address);
            self.recorder.take_calls();
        }
        let mismatch = judge(step, &came(&outcome, held_after), self);
        Stepped { breaches, mismatch, taken: 1, over }
    }

    /// Where a step points, and at whose memory.
    fn aim(&self, step: &Step) -> Aim {
        let named = step.target.as_ref().and_then(|name| self.names.get(name)).copied();
        let target = named.map(|index| &self.model.allocations[index]);
        let base = match step.target.as_deref() {
            Some("nowhere") => NOWHERE,
            _ => target.map_or(DeviceAddr::NULL, |allocation| allocation.base),
        };
        let address = base.wrapping_add(step.offset);
        let bytes =
            step.bytes.unwrap_or_else(|| target.map_or(0, |allocation| allocation.bytes).saturating_sub(step.offset));
        let written = if matches!(step.op, Op::Write | Op::CopyIn) { payload(step, bytes) } else { Vec::new() };
        let bytes = if step.data.is_some() { written.len() as u64 } else { bytes };
        let about = match step.op {
            Op::Free | Op::Release => self.model.based_at(address),
            Op::Alloc | Op::Finalize => None,
            _ => self.model.holder(address, bytes),
        };
        Aim { address, bytes, written, about }
    }

    fn call(&mut self, step: &Step, aim: &Aim) -> Outcome {
        let Self { recorder, subject, .. } = self;
        let Aim { address, bytes, ref written, .. } = *aim;
        match step.op {
            // What a device's own program does to its memory: past the subject.
            Op::CopyIn => match recorder.heard(|platform| platform.copy_in(address, written)) {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::Failed(SubjectError::Platform(error)),
            },
            Op::CopyOut => {
                let mut into = vec![0; usize::try_from(bytes).unwrap_or(0)];
                match recorder.heard(|platform| platform.copy_out(address, &mut into)) {
                    Ok(()) => Outcome::Bytes(into),
                    Err(error) => Outcome::Failed(SubjectError::Platform(error)),
                }
            }
            _ => {
                let call = || perform(step, (address, bytes), written, &mut **subject, recorder);
                catch_unwind(AssertUnwindSafe(call))
                    .unwrap_or_else(|payload| Outcome::NeverReturned(Endless::describe(&*payload)))
            }
        }
    }

    /// What comes of a view that outlived its allocation: somebody else is given the memory, and writes to it.
    pub fn aftermath(&mut self) -> Option<String> {
        let model = std::mem::take(&mut self.model);
        let mut bench = Bench { recorder: &mut self.recorder, subject: &mut *self.subject };
        let stale = model.allocations.iter().rev().filter(|freed| !freed.live);
        let said = stale.filter_map(|freed| Some((freed, freed.views.last()?))).find_map(|(freed, view)| {
            if model.holder(view.of, 1).is_some() {
                return whose_bytes(freed, view, &model, &mut bench);
            }
            // Of the same size, so that the driver's cache has it ready; of either kind of page, since that is not noted.
            for policy in [PagePolicy::HugeFirst, PagePolicy::NormalOnly] {
                let platform = bench.recorder.platform();
                let base = platform.alloc(freed.device, freed.bytes, policy, Via::Rt).ok()?;
                let mut next = freed.clone();
                next.name = name_of(model.allocations.len());
                (next.base, next.live) = (base, true);
                if next.holds(view.of, 1) {
                    let left = next.bytes - (view.of.get() - next.base.get());
                    let bytes = usize::try_from(left.min(8)).ok()?;
                    platform.copy_in(view.of, &[0x5a; 8][..bytes]).ok()?;
                    let mut after = model.clone();
                    after.allocations.push(next);
                    let said = whose_bytes(freed, view, &after, &mut bench)?;
                    let name = name_of(model.allocations.len());
                    return Some(format!("an allocation `{name}` of the same size gets the same address, and {said}"));
                }
            }
            None
        });
        self.model = model;
        said
    }

    // Two steps at once.

    /// Whether two steps are to run in two threads here. A planned fault would hit another call in another order.
    fn can_meet(&self, first: &Step, second: &Step) -> bool {
        let calls = |step: &Step| {
            step.fail.is_none()
                && !matches!(step.op, Op::Release | Op::CopyIn | Op::CopyOut)
                && step.expect.0.log.is_none()
        };
        first.pause.is_some()
            && self.info.thread_safe
            && self.again.is_some()
            && !self.without.contains(&LawId("V15"))
            && !self.recorder.awaits_a_fault()
            && calls(first)
            && calls(second)
    }

    fn meet(&mut self, [first, second]: [&Step; 2], aim: &Aim) -> Met {
        let other = self.aim(second);
        let Some(pause) = first.pause else { return Met::Alone(self.call(first, aim)) };
        let work = [(first, aim), (second, &other)].map(|(step, aim)| -> Work<'_> {
            Box::new(move |subject, platform| perform(step, (aim.address, aim.bytes), &aim.written, subject, platform))
        });
        meet(&mut self.recorder, &mut *self.subject, work, pause)
    }

    /// Judges what came of two steps at once by what comes of them one after the other, in either order.
    fn both(&mut self, index: usize, pair: [&Step; 2], outcomes: &[Outcome; 2], before: &Before) -> Stepped {
        let calls = self.recorder.take_calls();
        let stands = self.standing();
        let in_order = |order: [usize; 2]| self.one_after_the_other(order.map(|at| pair[at]));
        let orders = [[0, 1], [1, 0]].map(|order| {
            in_order(order).map(|(came, standing)| {
                let mut sorted = came.clone();
                sorted[order[0]] = came[0].clone();
                sorted[order[1]] = came[1].clone();
                (sorted, standing)
            })
        });
        let explains = |order: &Option<([Outcome; 2], Standing)>| {
            order.as_ref().is_some_and(|(came, standing)| {
                came.iter().zip(outcomes).all(|(came, outcome)| alike(came, outcome)) && *standing == stands
            })
        };
        let order = if explains(&orders[0]) { [0, 1] } else { [1, 0] };
        let explained = explains(&orders[0]) || explains(&orders[1]);
        // What could not be done again is no evidence.
        let refuted = !explained && orders.iter().all(Option::is_some);
        for at in order {
            let aim = self.aim(pair[at]);
            self.learn((index + at, pair[at]), &outcomes[at], &aim, (&calls, before.made));
            self.history.push(Step { pause: None, ..pair[at].clone() });
        }
        for (step, outcome) in pair.iter().zip(outcomes) {
            if step.op == Op::Acquire && !step.hold && matches!(outcome, Outcome::View(_)) {
                let address = self.aim(step).address;
                self.subject.release(&mut self.recorder, address);
                self.recorder.take_calls();
            }
        }
        let mut breaches = Vec::new();
        if explained {
            self.tallies.entry(LawId("V15")).or_default().held += 1;
        }
        if refuted {
            let what = format!(
                "in two threads they came to {}; one after the other they come to {}{}",
                told(outcomes, &stands),
                orders[0].as_ref().map_or_else(|| "nothing".to_owned(), |(came, standing)| told(came, standing)),
                match &orders[1] {
                    Some((came, standing)) if orders[1] != orders[0] =>
                        format!(", or, the second first, to {}", told(came, standing)),
                    _ => String::new(),
                }
            );
            let holding = describe_holding(self.recorder.ledger(), &self.model);
            breaches.push(Breach { law: LawId("V15"), step: index + 1, what, holding });
        }
        let held = self.subject.held();
        let mismatch = pair.iter().zip(outcomes).find_map(|(step, outcome)| judge(step, &came(outcome, held), self));
        Stepped { breaches, mismatch, taken: 2, over: !explained }
    }

    /// What comes of two steps one after the other, everything before them done again; and how things stand then.
    fn one_after_the_other(&self, pair: [&Step; 2]) -> Option<([Outcome; 2], Standing)> {
        let steps: Vec<Step> = self.history.iter().chain(pair).cloned().collect();
        let Stood { outcomes, standing } = self.again.as_ref()?(&steps)?;
        Some((outcomes, standing))
    }

    /// Does steps without a look at them: how the last two ended.
    pub(crate) fn stand_after(&mut self, steps: &[Step]) -> Option<Stood> {
        let mut outcomes: Vec<Outcome> = steps.iter().map(|step| self.rerun(step)).collect();
        let second = outcomes.pop()?;
        let first = outcomes.pop()?;
        Some(Stood { outcomes: [first, second], standing: self.standing() })
    }

    /// Runs a step without a look at it.
    fn rerun(&mut self, step: &Step) -> Outcome {
        if let Some(fail) = &step.fail
            && let Some(error) = DrvError::from_name(&fail.error)
        {
            self.recorder.plan_fault(PlannedFault { call: fail.call, nth: fail.nth, error, lasting: fail.lasting });
        }
        let aim = self.aim(step);
        let outcome = self.call(step, &aim);
        self.recorder.end_lasting_faults();
        let calls = self.recorder.take_calls();
        self.learn((0, step), &outcome, &aim, (&calls, 0));
        if step.op == Op::Acquire && !step.hold && matches!(outcome, Outcome::View(_)) {
            self.subject.release(&mut self.recorder, aim.address);
            self.recorder.take_calls();
        }
        outcome
    }

    fn standing(&self) -> Standing {
        let ledger = self.recorder.ledger().iter().map(|entry| (entry.base, entry.bytes)).collect();
        let Held { count, bytes } = self.subject.held();
        ((count, bytes), ledger)
    }

    /// Brings the model up to date; the allocation that the step was about.
    fn learn(
        &mut self,
        (index, step): (usize, &Step),
        outcome: &Outcome,
        aim: &Aim,
        (calls, made): (&[CallRecord], u64),
    ) -> Option<usize> {
        let Aim { address, bytes, ref written, about } = *aim;
        let model = &mut self.model;
        if let (Op::Alloc, Some(name)) = (step.op, &step.name) {
            let base = if let Outcome::Allocated(base) = outcome { *base } else { DeviceAddr::NULL };
            let live = base != DeviceAddr::NULL;
            let reused = model.allocations.iter().any(|old| !old.live && old.base == base && live);
            self.names.insert(name.clone(), model.allocations.len());
            model.allocations.push(Allocation {
                name: name.clone(),
                base,
                bytes,
                device: step.device,
                live,
                accessed: false,
                refused: false,
                reused,
                made,
                views: Vec::new(),
                freed_at: None,
                known: BTreeMap::new(),
            });
            return live.then(|| model.allocations.len() - 1);
        }
        if step.op == Op::Finalize {
            model.finalized = true;
            for view in model.allocations.iter_mut().flat_map(|allocation| &mut allocation.views) {
                view.in_use = false;
            }
        }
        if step.op == Op::CopyIn && *outcome == Outcome::Done {
            model.overwrite(address, written);
        }
        let allocation = &mut model.allocations[about?];
        let offset = address.get() - allocation.base.get();
        match (step.op, outcome) {
            (Op::Free, _) => {
                // Even a free that fails may have dropped the view before it did.
                allocation.views.iter_mut().for_each(|view| view.in_use = false);
                if *outcome == Outcome::Done {
                    allocation.live = false;
                    allocation.freed_at = Some(index);
                }
            }
            (Op::Release, _) => {
                if let Some(view) = allocation.views.iter_mut().rfind(|view| view.in_use) {
                    view.in_use = false;
                }
            }
            (Op::Write, Outcome::Done) => {
                allocation.known.extend(written.iter().enumerate().map(|(at, byte)| (offset + at as u64, *byte)));
            }
            // The model has it.
            (Op::CopyIn, Outcome::Done) => {}
            (Op::Write | Op::CopyIn, _) => {
                for at in offset..offset + bytes {
                    allocation.known.remove(&at);
                }
            }
            (_, Outcome::View(at)) => {
                allocation.views.push(View { at: *at, of: address, bytes, in_use: step.hold });
            }
            _ => {}
        }
        if matches!(step.op, Op::Acquire | Op::Read | Op::Write) {
            allocation.accessed = true;
            allocation.refused |= calls.iter().any(|record| {
                matches!(record.call, SubjectCall::Register { .. }) && record.error.is_some() && !record.injected
            });
        }
        about
    }

    fn judge_laws(&mut self, index: usize, evidence: &Evidence<'_>) -> Vec<Breach> {
        let mut breaches = Vec::new();
        let over = matches!(evidence.outcome, Outcome::NeverReturned(_));
        for ViewLaw { law, check } in view_laws() {
            let Some(check) = check.filter(|_| !self.without.contains(&law.id)) else { continue };
            // Of a subject that did not come back nothing more is asked.
            if over && law.id != EVERY_CALL_OF_A_SUBJECT_RETURNS {
                continue;
            }
            let mut bench = Bench { recorder: &mut self.recorder, subject: &mut *self.subject };
            let verdict = check(evidence, &mut bench);
            self.recorder.take_calls();
            let tally = self.tallies.entry(law.id).or_default();
            match verdict {
                None => {}
                Some(Verdict::Held) => tally.held += 1,
                Some(Verdict::Refused) => tally.refused += 1,
                Some(Verdict::Broken(what)) => {
                    let holding = describe_holding(self.recorder.ledger(), evidence.model);
                    breaches.push(Breach { law: law.id, step: index, what, holding });
                }
            }
        }
        breaches
    }
}

/// How things stood before a step.
struct Before {
    held: Held,
    ledger: Ledger,
    finalized: bool,
    made: u64,
}

/// Whether two outcomes are one to whoever asked: a refusal is a refusal, in whatever words.
fn alike(one: &Outcome, other: &Outcome) -> bool {
    match (one, other) {
        (Outcome::Failed(SubjectError::Refused(_)), Outcome::Failed(SubjectError::Refused(_))) => true,
        _ => one == other,
    }
}

fn told([first, second]: &[Outcome; 2], ((reported, _), ledger): &Standing) -> String {
    let said = |outcome: &Outcome| match outcome {
        Outcome::Allocated(base) => format!("an allocation at {base}"),
        Outcome::Done => "done".to_owned(),
        Outcome::View(view) => format!("a view at {view}"),
        Outcome::DeviceCopies => "device copies".to_owned(),
        Outcome::Bytes(bytes) => format!("bytes {}", crate::expect::hex_of(&bytes[..bytes.len().min(8)])),
        Outcome::Failed(error) => error.to_string(),
        Outcome::NeverReturned(why) => why.clone(),
    };
    format!("({}) and ({}), {} registered and {reported} reported", said(first), said(second), ledger.len())
}

fn describe_holding(ledger: &Ledger, model: &Model) -> Vec<String> {
    ledger
        .iter()
        .map(|entry| {
            let whose = model.newest_at(entry.base).map_or_else(
                || "nobody's memory".to_owned(),
                |allocation| format!("{}{}", allocation.name, if allocation.live { "" } else { " (freed)" }),
            );
            format!("{} from {}: {whose}", hostview_sim::ByteCount(entry.bytes), entry.base)
        })
        .collect()
}

fn came(outcome: &Outcome, held: Held) -> Came {
    let came = Came { held: Some(held), ..Came::default() };
    match outcome {
        Outcome::Allocated(base) => Came { address: Some(base.get()), ..came },
        Outcome::Done => came,
        Outcome::View(_) => Came { view: Some(true), ..came },
        Outcome::DeviceCopies => Came { view: Some(false), ..came },
        Outcome::Bytes(bytes) => Came { bytes: Some(bytes.clone()), ..came },
        Outcome::Failed(SubjectError::Platform(error)) => Came { error: Some(*error), ..came },
        Outcome::Failed(SubjectError::Fault(fault)) => Came { fault: Some(*fault), ..came },
        Outcome::Failed(SubjectError::Refused(reason)) | Outcome::NeverReturned(reason) => {
            Came { refused: Some(reason.clone()), ..came }
        }
    }
}
