//! Running a sequence through a subject, every law watching.

use std::collections::{BTreeMap, HashMap};

use hostview_cache::Held;
use hostview_sim::{DeviceAddr, DrvError, HostAddr, PlannedFault};

use crate::case::{Op, Step};
use crate::driver_run::{NOWHERE, payload};
use crate::expect::{Came, Context, Mismatch, judge};
use crate::laws::{EVERY_CALL_RETURNS, LawId, Verdict, ViewLaw, view_laws};
use crate::platform::Platform;
use crate::recorder::{CallRecord, Ledger, Recorder, SubjectCall};
use crate::subject::{Acquired, Subject, SubjectError};

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
    /// Views of it that were handed out: address and length.
    pub views: Vec<(HostAddr, u64)>,
    /// The bytes that were written, by offset.
    pub known: BTreeMap<u64, u8>,
}

impl Allocation {
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
#[derive(Clone, PartialEq, Debug)]
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
}

/// What a law may ask beyond the evidence: the platform, and the subject again.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The platform and the record.
    pub recorder: &'a mut Recorder,
    /// The subject.
    pub subject: &'a mut dyn Subject,
}

impl std::fmt::Debug for dyn Subject + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// Runs steps through a subject.
#[derive(Debug)]
pub struct CacheRun {
    recorder: Recorder,
    subject: Box<dyn Subject>,
    model: Model,
    names: HashMap<String, usize>,
    tallies: HashMap<LawId, Tally>,
    without: Vec<LawId>,
    logged: usize,
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

impl CacheRun {
    /// A run of a fresh subject on a fresh platform.
    #[must_use]
    pub fn new(platform: Box<dyn Platform>, subject: Box<dyn Subject>) -> Self {
        let logged = platform.log().len();
        Self {
            recorder: Recorder::new(platform),
            subject,
            model: Model::default(),
            names: HashMap::new(),
            tallies: HashMap::new(),
            without: Vec::new(),
            logged,
        }
    }

    /// Leaves these laws out.
    #[must_use]
    pub fn without(mut self, laws: &[LawId]) -> Self {
        self.without = laws.to_vec();
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

    /// The platform.
    pub fn platform(&mut self) -> &mut dyn Platform {
        self.recorder.platform()
    }

    /// Runs one step: the laws that broke, and what about it is not as its case says.
    pub fn step(&mut self, index: usize, step: &Step) -> (Vec<Breach>, Option<Mismatch>) {
        self.logged = self.recorder.platform_log().len();
        if let Some(fail) = &step.fail
            && let Some(error) = DrvError::from_name(&fail.error)
        {
            self.recorder.plan_fault(PlannedFault { call: fail.call, nth: fail.nth, error });
        }
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
            Op::Free => self.model.based_at(address),
            Op::Alloc | Op::Finalize => None,
            _ => self.model.holder(address, bytes),
        };
        let accessed_before = about.is_some_and(|index| self.model.allocations[index].accessed);
        let (held_before, ledger_before) = (self.subject.held(), self.recorder.ledger().clone());
        let (finalized, made) = (self.model.finalized, self.recorder.calls_made());
        let outcome = self.call(step, address, bytes, &written);
        if let Some(loss) = self.recorder.platform().lost() {
            let holding = describe_holding(self.recorder.ledger(), &self.model);
            return (vec![Breach { law: EVERY_CALL_RETURNS, step: index, what: loss.to_string(), holding }], None);
        }
        let calls = self.recorder.take_calls();
        let held_after = self.subject.held();
        let ledger_after = self.recorder.ledger().clone();
        let about = self.learn(step, &outcome, about, (address, bytes), &written, (&calls, made));

        let model = std::mem::take(&mut self.model);
        let evidence = Evidence {
            step,
            address,
            bytes,
            about: about.map(|index| &model.allocations[index]),
            accessed_before,
            outcome: &outcome,
            calls: &calls,
            held: (held_before, held_after),
            ledger: (&ledger_before, &ledger_after),
            model: &model,
            finalized,
            written: &written,
        };
        let breaches = self.judge_laws(index, &evidence);
        self.model = model;
        self.subject.end_access(&mut self.recorder);
        self.recorder.take_calls();
        let mismatch = judge(step, &came(&outcome, held_after), self);
        (breaches, mismatch)
    }

    fn call(&mut self, step: &Step, address: DeviceAddr, bytes: u64, written: &[u8]) -> Outcome {
        let Self { recorder, subject, .. } = self;
        let done = |result: Result<(), SubjectError>| result.map_or_else(Outcome::Failed, |()| Outcome::Done);
        match step.op {
            Op::Alloc => match subject.alloc(recorder, step.device, bytes, step.policy) {
                Ok(base) => Outcome::Allocated(base),
                Err(error) => Outcome::Failed(error),
            },
            Op::Free => done(subject.free(recorder, address)),
            Op::Acquire => match subject.acquire(recorder, address, bytes) {
                Ok(Acquired::View(view)) => Outcome::View(view),
                Ok(Acquired::DeviceCopies) => Outcome::DeviceCopies,
                Err(error) => Outcome::Failed(error),
            },
            Op::Read => {
                let mut into = vec![0; usize::try_from(bytes).unwrap_or(0)];
                match subject.read(recorder, address, &mut into) {
                    Ok(()) => Outcome::Bytes(into),
                    Err(error) => Outcome::Failed(error),
                }
            }
            Op::Write => done(subject.write(recorder, address, written)),
            // What a device's own program does to its memory: past the subject.
            Op::CopyIn => done(recorder.platform().copy_in(address, written).map_err(SubjectError::Platform)),
            Op::CopyOut => {
                let mut into = vec![0; usize::try_from(bytes).unwrap_or(0)];
                match recorder.platform().copy_out(address, &mut into) {
                    Ok(()) => Outcome::Bytes(into),
                    Err(error) => Outcome::Failed(SubjectError::Platform(error)),
                }
            }
            Op::Finalize => done(subject.finalize(recorder)),
            Op::Register | Op::Unregister => {
                Outcome::Failed(SubjectError::Refused("the driver's operation".to_owned()))
            }
        }
    }

    /// Brings the model up to date; the allocation that the step was about.
    fn learn(
        &mut self,
        step: &Step,
        outcome: &Outcome,
        about: Option<usize>,
        (address, bytes): (DeviceAddr, u64),
        written: &[u8],
        (calls, made): (&[CallRecord], u64),
    ) -> Option<usize> {
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
                known: BTreeMap::new(),
            });
            return live.then(|| model.allocations.len() - 1);
        }
        if step.op == Op::Finalize {
            model.finalized = true;
        }
        if step.op == Op::CopyIn && *outcome == Outcome::Done {
            model.overwrite(address, written);
        }
        let allocation = &mut model.allocations[about?];
        let offset = address.get() - allocation.base.get();
        match (step.op, outcome) {
            (Op::Free, Outcome::Done) => allocation.live = false,
            (Op::Write, Outcome::Done) => {
                allocation.known.extend(written.iter().enumerate().map(|(at, byte)| (offset + at as u64, *byte)));
            }
            (Op::Write | Op::CopyIn, _) => {
                for at in offset..offset + bytes {
                    allocation.known.remove(&at);
                }
            }
            (_, Outcome::View(view)) => allocation.views.push((*view, bytes)),
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
        for ViewLaw { law, check } in view_laws() {
            let Some(check) = check.filter(|_| !self.without.contains(&law.id)) else { continue };
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
        Outcome::Failed(SubjectError::Refused(reason)) => Came { refused: Some(reason.clone()), ..came },
    }
}
