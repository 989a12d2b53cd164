//! The V-laws: what a view cache keeps.
//!
//! Each check looks at one step's evidence: what the subject did to the platform, what it answered, and what it reports.

use std::collections::BTreeMap;

use hostview_sim::{ByteCount, DeviceAddr, HostAddr};

use super::{Law, LawId, Need, Verdict, ViewLaw};
use crate::cache_run::{Allocation, Bench, Evidence, Model, Outcome, View};
use crate::case::Op;
use crate::recorder::{CallRecord, LedgerEntry, SubjectCall};
use crate::subject::{Acquired, SubjectError};

const fn law(id: &'static str, statement: &'static str, source: &'static str, needs: &'static [Need]) -> Law {
    Law { id: LawId(id), statement, source, needs }
}

static VIEW_LAWS: [ViewLaw; 19] = [
    ViewLaw {
        law: law(
            "V01",
            "No view outlives its allocation: once a free has succeeded, no registration covers its pages and no acquire \
             returns a view into them.",
            "seed (argument 1); hw-native-sys/simpler#2205",
            &[Need::Registration],
        ),
        check: Some(no_view_outlives),
    },
    ViewLaw {
        law: law(
            "V02",
            "Unregister comes before free, and free is not attempted while the mapping is still held: a failed unregister \
             keeps the record, keeps the allocation and reports the error.",
            "hw-native-sys/simpler#2212; driver source (BUSY)",
            &[Need::Registration, Need::Faults],
        ),
        check: Some(unregister_before_free),
    },
    ViewLaw {
        law: law(
            "V03",
            "A view of an interior address is the view of the base plus the offset.",
            "hw-native-sys/simpler#2205",
            &[Need::Registration],
        ),
        check: Some(interior_is_base_plus_offset),
    },
    ViewLaw {
        law: law(
            "V04",
            "Bytes written through a view are what a device copy reads, and the reverse.",
            "hw-native-sys/simpler#2205; driver source (identity mapping)",
            &[Need::Registration],
        ),
        check: Some(bytes_agree),
    },
    ViewLaw {
        law: law(
            "V05",
            "One allocation is registered at most once, over the whole allocation, from its base.",
            "hw-native-sys/simpler#2205; driver source (a page is registered once)",
            &[Need::Registration],
        ),
        check: Some(registered_once_and_whole),
    },
    ViewLaw {
        law: law(
            "V06",
            "Nothing is registered that was never accessed.",
            "hw-native-sys/simpler#1848",
            &[Need::Registration],
        ),
        check: Some(nothing_unasked),
    },
    ViewLaw {
        law: law(
            "V07",
            "A refused registration leaves nothing behind; access goes on by device copies with the same bytes.",
            "hw-native-sys/simpler#1531, #2205",
            &[],
        ),
        check: Some(refusal_leaves_nothing),
    },
    ViewLaw {
        law: law(
            "V08",
            "An address reused by a new allocation never serves the old view, nor the old refusal.",
            "driver source (the cache of freed blocks); LMCache-Ascend (stale records)",
            &[Need::Registration],
        ),
        check: Some(reuse_starts_afresh),
    },
    ViewLaw {
        law: law(
            "V09",
            "finalize releases every view before any allocation is freed, is idempotent, and nothing is handed out after it.",
            "hw-native-sys/simpler#2212",
            &[],
        ),
        check: Some(finalize_is_final),
    },
    ViewLaw {
        law: law(
            "V10",
            "Null, zero bytes, an untracked address, a range past the end or one that wraps is refused and changes nothing.",
            "hw-native-sys/simpler#2205 (the contract of acquire)",
            &[],
        ),
        check: Some(bad_ranges_refused),
    },
    ViewLaw {
        law: law(
            "V11",
            "The count the cache reports equals the registrations that the platform holds for it, and its bytes the sum of \
             those allocations' sizes as they were asked for.",
            "seed (constraint on the cache); hw-native-sys/simpler#2212",
            &[Need::Report],
        ),
        check: Some(report_is_true),
    },
    ViewLaw {
        law: law(
            "V12",
            "A double free, a free of an interior or unknown address is an error and changes nothing.",
            "driver source (halMemFree)",
            &[],
        ),
        check: Some(bad_frees_refused),
    },
    ViewLaw {
        law: law("V13", "Allocation failure changes nothing.", "driver source (OUT_OF_MEMORY)", &[Need::Faults]),
        check: Some(failed_allocation_changes_nothing),
    },
    ViewLaw {
        law: law(
            "V14",
            "Two devices never serve each other's views.",
            "driver source (several devices share one range)",
            &[Need::TwoDevices],
        ),
        check: Some(devices_apart),
    },
    ViewLaw {
        law: law(
            "V15",
            "(subjects that say they are thread-safe) Any concurrent history equals some sequential one; no double \
             registration, no stale view.",
            "driver source (registration races)",
            &[Need::ThreadSafe],
        ),
        // Judged where two steps meet: see `CacheRun`.
        check: None,
    },
    ViewLaw {
        law: law(
            "V16",
            "(with a budget) Held bytes never pass the budget, and eviction never takes a view in use.",
            "seed (argument 2)",
            &[Need::Budget, Need::Registration],
        ),
        check: Some(within_budget),
    },
    ViewLaw {
        law: law(
            "V17",
            "Every call returns: it does not crash, end the process, go on without end or wait for ever, and writes nothing \
             to standard output.",
            "hostview (what a subject's own process has to stand)",
            &[],
        ),
        check: Some(every_call_returns),
    },
    ViewLaw {
        law: law(
            "V18",
            "A view in use stays good: until it is released, freed or finalized, it shows its allocation.",
            "hw-native-sys/simpler#2205 (one mapping for the life of the allocation)",
            &[Need::Registration],
        ),
        check: Some(views_in_use_stay),
    },
    ViewLaw {
        law: law(
            "V19",
            "What is allocated is served: an access to it succeeds, by a view or by device copies, and so does its free, unless \
             the platform refuses.",
            "hw-native-sys/simpler#2205 (the contract of acquire)",
            &[],
        ),
        check: Some(live_memory_is_served),
    },
];

/// The V-law that a call returns. A subject that takes its process along breaks it, whatever else is asked.
pub const EVERY_CALL_OF_A_SUBJECT_RETURNS: LawId = LawId("V17");

/// The V-laws, in the order of their ids.
#[must_use]
pub fn view_laws() -> &'static [ViewLaw] {
    &VIEW_LAWS
}

const HELD: Option<Verdict> = Some(Verdict::Held);

#[allow(clippy::unnecessary_wraps, reason = "the shape of a check's answer")]
fn broken(what: String) -> Option<Verdict> {
    Some(Verdict::Broken(what))
}

impl Evidence<'_> {
    fn is_access(&self) -> bool {
        matches!(self.step.op, Op::Acquire | Op::Read | Op::Write)
    }

    fn succeeded(&self) -> bool {
        !matches!(self.outcome, Outcome::Failed(_) | Outcome::NeverReturned(_))
    }

    fn changed_nothing(&self) -> bool {
        self.ledger.0 == self.ledger.1 && self.held.0 == self.held.1
    }

    /// Whether the access was left to device copies.
    fn served_by_copies(&self) -> bool {
        *self.outcome == Outcome::DeviceCopies || self.calls.iter().any(is_copy)
    }

    /// Whether there is room for a view of an allocation, where there is a budget.
    fn fits(&self, allocation: &Allocation) -> bool {
        self.info.budget.is_none_or(|budget| self.held.0.bytes + allocation.bytes <= budget)
    }

    /// Whether anything is held or reported that was not before.
    fn grew(&self) -> bool {
        let (before, after) = self.held;
        after.count > before.count
            || after.bytes > before.bytes
            || self.ledger.1.iter().any(|entry| self.ledger.0.at(entry.base) != Some(entry))
    }

    /// A registration in this step that the platform refused by itself.
    fn refused_by_platform(&self) -> bool {
        self.calls.iter().any(|record| is_register(record) && record.error.is_some() && !record.injected)
    }

    fn failed(&self, wanted: fn(&CallRecord) -> bool) -> Option<&CallRecord> {
        self.calls.iter().find(|record| record.error.is_some() && wanted(record))
    }
}

fn is_register(record: &CallRecord) -> bool {
    matches!(record.call, SubjectCall::Register { .. })
}

fn is_unregister(record: &CallRecord) -> bool {
    matches!(record.call, SubjectCall::Unregister { .. })
}

fn is_copy(record: &CallRecord) -> bool {
    matches!(record.call, SubjectCall::Copy { .. })
}

/// How many of an allocation's views are probed after its free: the newest, which are those that a program still has.
const PROBED_VIEWS: usize = 4;

fn no_view_outlives(evidence: &Evidence<'_>, bench: &mut Bench<'_>) -> Option<Verdict> {
    if evidence.is_access() {
        return stale_access(evidence);
    }
    if !matches!(evidence.step.op, Op::Free | Op::Alloc) || !evidence.succeeded() {
        return None;
    }
    let mut verdict = None;
    let freed = evidence.model.allocations.iter().filter(|allocation| !allocation.live && allocation.accessed);
    for allocation in freed {
        let covering = evidence.ledger.1.overlapping(allocation.base, allocation.bytes);
        let newer = |entry: &&LedgerEntry| {
            let mut live = evidence.model.allocations.iter().filter(|other| other.live);
            live.any(|other| other.base == entry.base && entry.made > other.made)
        };
        if let Some(entry) = covering.filter(|entry| !newer(entry)) {
            return broken(format!(
                "the registration of {} from {} is still held after its free succeeded",
                allocation.name, entry.base
            ));
        }
        for view in allocation.views.iter().rev().take(PROBED_VIEWS) {
            if let Some(found) = readable_and_unowned(view.at, view.bytes, evidence, bench) {
                return broken(match whose_bytes(allocation, view, evidence.model, bench) {
                    Some(whose) => whose,
                    None => format!(
                        "the view of {} at {} can still be read after its free succeeded; its first byte is {found:#04x}",
                        allocation.name, view.at
                    ),
                });
            }
        }
        // What was never granted a view has nothing that could outlive it.
        let never_granted = allocation.refused && allocation.views.is_empty();
        verdict = if never_granted { verdict.or(Some(Verdict::Refused)) } else { HELD };
    }
    verdict
}

fn stale_access(evidence: &Evidence<'_>) -> Option<Verdict> {
    let freed = evidence.model.allocations.iter().any(|old| !old.live && old.holds(evidence.address, 1));
    let nobodys = evidence.model.holder(evidence.address, 1).is_none();
    if !freed || !nobodys {
        return None;
    }
    match evidence.outcome {
        Outcome::Failed(_) => HELD,
        Outcome::View(view) => broken(format!("{} was freed, and acquire returns {view} into it", evidence.address)),
        _ => broken(format!("{} was freed, and the access succeeds", evidence.address)),
    }
}

/// The first byte of a stale view that can be read although no registration of the subject's shows it.
fn readable_and_unowned(view: HostAddr, bytes: u64, evidence: &Evidence<'_>, bench: &mut Bench<'_>) -> Option<u8> {
    let last = view.wrapping_add(bytes.saturating_sub(1));
    let owned = |address| evidence.ledger.1.iter().any(|entry| entry.shows(address));
    [view, last].into_iter().find_map(|address| {
        let mut byte = [0];
        let readable = bench.recorder.platform().host_read(address, &mut byte).is_ok();
        (readable && !owned(address) && !shares_a_page(address, evidence, bench)).then_some(byte[0])
    })
}

/// What a stale view shows where somebody else has the memory now: both sides' bytes.
pub(crate) fn whose_bytes(freed: &Allocation, view: &View, model: &Model, bench: &mut Bench<'_>) -> Option<String> {
    let owner = &model.allocations[model.holder(view.of, 1)?];
    let len = usize::try_from((owner.bytes - (view.of.get() - owner.base.get())).min(8)).ok()?;
    let (mut shows, mut theirs) = (vec![0; len], vec![0; len]);
    let platform = bench.recorder.platform();
    platform.copy_out(view.of, &mut theirs).ok()?;
    platform.host_read(view.at, &mut shows).ok()?;
    let freed_at = freed.freed_at.map_or_else(String::new, |step| format!(" (freed at step {})", step + 1));
    Some(format!(
        "this view of `{}`{freed_at} now reads `{}`'s bytes: {} through the view at {}, {} by a device copy from {}",
        freed.name,
        owner.name,
        shown(&shows),
        view.at,
        shown(&theirs),
        view.of
    ))
}

/// Registration works by whole pages: a byte behind somebody's registration, on its last page, can be read.
fn shares_a_page(address: HostAddr, evidence: &Evidence<'_>, bench: &mut Bench<'_>) -> bool {
    evidence.ledger.1.iter().any(|entry| {
        let page = bench.recorder.platform().memory_at(entry.base).map_or(1, |memory| memory.page);
        let end = entry.view.get() + entry.bytes;
        address.get() >= end && address.get() < end.next_multiple_of(page)
    })
}

fn unregister_before_free(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    for record in evidence.calls {
        if let SubjectCall::Free { base, registered: true } = record.call {
            return broken(format!("free of {base} is called while its registration is still held"));
        }
    }
    let freed = evidence.about.filter(|_| evidence.step.op == Op::Free)?;
    let was_held = evidence.ledger.0.overlapping(freed.base, freed.bytes).is_some();
    let Some(failed) = evidence.failed(is_unregister) else {
        return match was_held {
            true => HELD,
            false if freed.refused => Some(Verdict::Refused),
            false => None,
        };
    };
    let after_failure = evidence.calls.iter().skip_while(|record| *record != failed).skip(1);
    let recovered = after_failure.clone().any(|record| is_unregister(record) && record.error.is_none());
    if recovered {
        return HELD;
    }
    if after_failure.clone().any(|record| matches!(record.call, SubjectCall::Free { .. })) {
        return broken(format!("unregister of {} failed, and its memory is freed all the same", freed.name));
    }
    match evidence.outcome {
        Outcome::Failed(SubjectError::Platform(error)) if Some(*error) == failed.error => {}
        Outcome::Failed(error) => {
            let answered = failed.error.map_or_else(String::new, |error| error.to_string());
            return broken(format!("unregister of {} failed with {answered}, and free reports {error}", freed.name));
        }
        _ => return broken(format!("unregister of {} failed, and its free reports success", freed.name)),
    }
    if !evidence.changed_nothing() {
        return broken(format!("unregister of {} failed, and its record is gone", freed.name));
    }
    HELD
}

fn interior_is_base_plus_offset(evidence: &Evidence<'_>, bench: &mut Bench<'_>) -> Option<Verdict> {
    let allocation = evidence.about.filter(|_| evidence.step.op == Op::Acquire)?;
    let offset = evidence.address.offset_from(allocation.base)?;
    match evidence.outcome {
        Outcome::View(view) => {
            let Ok(Acquired::View(base)) = bench.subject.acquire(bench.recorder, allocation.base, 1) else {
                return broken(format!("{} has a view at offset {offset}, and none of its base", allocation.name));
            };
            bench.subject.release(bench.recorder, allocation.base);
            if base.get().checked_add(offset) != Some(view.get()) {
                return broken(format!(
                    "the view of {} at offset {offset} is {view}; that of its base is {base}",
                    allocation.name
                ));
            }
            HELD
        }
        Outcome::DeviceCopies if evidence.refused_by_platform() => Some(Verdict::Refused),
        _ => None,
    }
}

fn bytes_agree(evidence: &Evidence<'_>, bench: &mut Bench<'_>) -> Option<Verdict> {
    let allocation = evidence.about?;
    let offset = evidence.address.offset_from(allocation.base)?;
    let verdict = if evidence.refused_by_platform() { Some(Verdict::Refused) } else { HELD };
    match (evidence.step.op, evidence.outcome) {
        (Op::Write, Outcome::Done) => {
            let mut found = vec![0; evidence.written.len()];
            bench.recorder.platform().copy_out(evidence.address, &mut found).ok()?;
            if found != evidence.written {
                return broken(format!(
                    "{} was written at offset {offset}; a device copy reads {} where {} was written",
                    allocation.name,
                    shown(&found),
                    shown(evidence.written)
                ));
            }
            verdict
        }
        (Op::Read, Outcome::Bytes(found)) => {
            let wrong = found.iter().enumerate().find_map(|(at, byte)| {
                let known = allocation.known.get(&(offset + at as u64))?;
                (known != byte).then_some((at, *known, *byte))
            });
            match wrong {
                Some((at, known, byte)) => broken(format!(
                    "{} reads {byte:#04x} at offset {}; {known:#04x} was written there",
                    allocation.name,
                    offset + at as u64
                )),
                None if found.is_empty() => None,
                None => verdict,
            }
        }
        (Op::Read | Op::Write, Outcome::Failed(SubjectError::Fault(fault))) => {
            broken(format!("an access to {} at offset {offset} meets {fault}", allocation.name))
        }
        (Op::Acquire, Outcome::View(view)) => view_shows_memory(allocation, *view, evidence, bench),
        _ => None,
    }
}

/// A view that was handed out shows what a device copy reads, at its first and its last byte.
fn view_shows_memory(
    allocation: &Allocation,
    view: HostAddr,
    evidence: &Evidence<'_>,
    bench: &mut Bench<'_>,
) -> Option<Verdict> {
    for at in [0, evidence.bytes - 1] {
        let (mut seen, mut copied) = ([0], [0]);
        let platform = bench.recorder.platform();
        platform.copy_out(evidence.address.wrapping_add(at), &mut copied).ok()?;
        if let Err(fault) = platform.host_read(view.wrapping_add(at), &mut seen) {
            return broken(format!("the view of {} that was just handed out meets {fault}", allocation.name));
        }
        if seen != copied {
            return broken(format!(
                "the view of {} shows {:#04x} at byte {at}; a device copy reads {:#04x}",
                allocation.name, seen[0], copied[0]
            ));
        }
    }
    HELD
}

fn shown(bytes: &[u8]) -> String {
    let hex = crate::expect::hex_of(&bytes[..bytes.len().min(16)]);
    if bytes.len() > 16 { format!("{hex}…") } else { hex }
}

fn registered_once_and_whole(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    let mut verdict = None;
    let mut held = evidence.ledger.0.clone();
    for record in evidence.calls {
        if let SubjectCall::Unregister { base } = record.call
            && record.error.is_none()
        {
            held.forget(base);
        }
        let SubjectCall::Register { base, bytes, .. } = record.call else { continue };
        let live = evidence.model.allocations.iter().rev().filter(|allocation| allocation.live);
        let Some(owner) = live.clone().find(|allocation| allocation.holds(base, 1)) else {
            return broken(format!("{} from {base} is registered, where nothing is allocated", ByteCount(bytes)));
        };
        if base != owner.base || bytes != owner.bytes {
            return broken(format!(
                "{} from {base} is registered; the allocation is {} from {}",
                ByteCount(bytes),
                ByteCount(owner.bytes),
                owner.base
            ));
        }
        if held.at(base).is_some_and(|entry| entry.made > owner.made) {
            return broken(format!("{} is registered a second time", owner.name));
        }
        match evidence.ledger.1.at(base) {
            Some(entry) if record.error.is_none() => {
                held.note(*entry);
                verdict = HELD;
            }
            _ => verdict = verdict.or(Some(Verdict::Refused)),
        }
    }
    verdict
}

fn nothing_unasked(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    for record in evidence.calls.iter().filter(|record| is_register(record)) {
        let SubjectCall::Register { base, .. } = record.call else { continue };
        let accessed = evidence
            .model
            .allocations
            .iter()
            .any(|allocation| allocation.live && allocation.accessed && allocation.holds(base, 1));
        if !accessed {
            return broken(format!("{base} is registered, and nothing has accessed it"));
        }
    }
    match evidence.step.op {
        Op::Alloc if evidence.succeeded() => HELD,
        Op::Acquire | Op::Read | Op::Write if evidence.refused_by_platform() => Some(Verdict::Refused),
        _ => None,
    }
}

fn refusal_leaves_nothing(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    let allocation = evidence.about.filter(|_| evidence.is_access() && !evidence.finalized)?;
    let failed = evidence.failed(is_register)?;
    if evidence.ledger.1.overlapping(allocation.base, allocation.bytes).is_some() {
        return None; // It asked again and was given it.
    }
    let answered = failed.error.map_or_else(String::new, |error| error.to_string());
    if evidence.grew() {
        return broken(format!(
            "registering {} was refused with {answered}, and what the cache holds or reports has grown",
            allocation.name
        ));
    }
    if let Outcome::View(view) = evidence.outcome {
        return broken(format!(
            "registering {} was refused with {answered}, and acquire returns {view}",
            allocation.name
        ));
    }
    if let Outcome::Failed(error) = evidence.outcome
        && evidence.failed(is_copy).is_none()
    {
        return broken(format!(
            "registering {} was refused with {answered}, and the access fails ({error}) where a device copy would serve",
            allocation.name
        ));
    }
    if failed.injected { HELD } else { Some(Verdict::Refused) }
}

fn reuse_starts_afresh(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    let allocation = evidence.about.filter(|about| about.reused && evidence.is_access())?;
    let asked = evidence.calls.iter().any(is_register);
    match evidence.outcome {
        Outcome::View(view) => {
            let backed = evidence
                .ledger
                .1
                .iter()
                .any(|entry| entry.shows(*view) && entry.base == allocation.base && entry.made > allocation.made);
            if !backed {
                return broken(format!(
                    "{} lies where a freed allocation lay, and acquire returns {view} by a registration that is older",
                    allocation.name
                ));
            }
            HELD
        }
        _ if !asked && !evidence.accessed_before && evidence.served_by_copies() && evidence.fits(allocation) => {
            broken(format!(
                "{} lies where a freed allocation lay, and is refused a view without asking the platform",
                allocation.name
            ))
        }
        _ if evidence.refused_by_platform() => Some(Verdict::Refused),
        _ => None,
    }
}

fn finalize_is_final(evidence: &Evidence<'_>, bench: &mut Bench<'_>) -> Option<Verdict> {
    if evidence.finalized && evidence.is_access() {
        return match evidence.outcome {
            Outcome::Failed(_) if evidence.changed_nothing() => HELD,
            Outcome::Failed(_) => broken("an access after finalize is refused, and changes what is held".to_owned()),
            _ => broken("something is handed out after finalize".to_owned()),
        };
    }
    if evidence.step.op != Op::Finalize {
        return None;
    }
    let freed_early = evidence.calls.iter().position(|record| matches!(record.call, SubjectCall::Free { .. }));
    let last_unregister = evidence.calls.iter().rposition(is_unregister);
    if let (Some(free), Some(unregister)) = (freed_early, last_unregister)
        && free < unregister
    {
        return broken("finalize frees an allocation before every view is released".to_owned());
    }
    // What failed and was tried again with success has not failed.
    let failed: Vec<_> = evidence
        .calls
        .iter()
        .filter(|record| match record.call {
            SubjectCall::Unregister { base } => record.error.is_some() && evidence.ledger.1.at(base).is_some(),
            _ => false,
        })
        .collect();
    if failed.is_empty() {
        if let Outcome::Failed(error) = evidence.outcome {
            return broken(format!("finalize fails ({error}), and no unregister failed"));
        }
        if let Some(entry) = evidence.ledger.1.iter().next() {
            return broken(format!("finalize succeeds, and the registration from {} is still held", entry.base));
        }
    } else {
        if evidence.succeeded() {
            return broken("an unregister failed in finalize, and it reports success".to_owned());
        }
        if evidence.ledger.1.len() > failed.len() {
            return broken(format!(
                "{} unregister calls failed in finalize, and {} views are left",
                failed.len(),
                evidence.ledger.1.len()
            ));
        }
        return HELD;
    }
    if !evidence.info.finalize_reentrant {
        return HELD;
    }
    let again = bench.subject.finalize(bench.recorder);
    let calls = bench.recorder.take_calls();
    if again.is_err() || !calls.is_empty() {
        return broken("a second finalize is not quiet".to_owned());
    }
    HELD
}

fn bad_ranges_refused(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    if !evidence.is_access() || evidence.about.is_some() {
        return None;
    }
    let what = format!("{} and {} bytes name no allocation", evidence.address, evidence.bytes);
    match evidence.outcome {
        Outcome::Failed(SubjectError::Fault(fault)) => broken(format!("{what}, and the access meets {fault}")),
        Outcome::Failed(_) if !evidence.changed_nothing() => {
            broken(format!("{what}, and the refusal changes what is held"))
        }
        Outcome::Failed(_) if evidence.calls.iter().any(|record| is_register(record) || is_copy(record)) => {
            broken(format!("{what}, and the platform is asked all the same"))
        }
        Outcome::Failed(_) => HELD,
        _ => broken(format!("{what}, and the access succeeds")),
    }
}

fn report_is_true(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    if !evidence.info.reports_held {
        return None;
    }
    let held = evidence.held.1;
    let count = evidence.ledger.1.len() as u64;
    let bytes: u64 = evidence.ledger.1.iter().map(|entry| entry.bytes).sum();
    if held.count != count || held.bytes != bytes {
        return broken(format!(
            "the cache reports {} views of {}; the platform holds {count} of {}",
            held.count,
            ByteCount(held.bytes),
            ByteCount(bytes)
        ));
    }
    if count > 0 || evidence.ledger.0.len() > evidence.ledger.1.len() {
        return HELD;
    }
    evidence.refused_by_platform().then_some(Verdict::Refused)
}

fn bad_frees_refused(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    if evidence.step.op != Op::Free || evidence.about.is_some() {
        return None;
    }
    if evidence.succeeded() {
        return broken(format!("a free of {} succeeds, and no allocation begins there", evidence.address));
    }
    if !evidence.changed_nothing() {
        return broken(format!("a free of {} fails, and changes what is held", evidence.address));
    }
    HELD
}

fn failed_allocation_changes_nothing(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    if evidence.step.op != Op::Alloc {
        return None;
    }
    let refused_by_platform = evidence.failed(|record| matches!(record.call, SubjectCall::Alloc { .. })).is_some();
    match (evidence.succeeded(), refused_by_platform) {
        (true, true) => broken("the platform refused an allocation, and the cache reports success".to_owned()),
        (false, _) if !evidence.changed_nothing() => {
            broken("an allocation failed, and what is held has changed".to_owned())
        }
        (false, true) => HELD,
        (_, false) => None,
    }
}

fn devices_apart(evidence: &Evidence<'_>, bench: &mut Bench<'_>) -> Option<Verdict> {
    if evidence.step.op == Op::Alloc {
        let elsewhere = evidence.calls.iter().find_map(|record| match record.call {
            SubjectCall::Alloc { device, .. } if device != evidence.step.device => Some(device),
            _ => None,
        });
        let asked = evidence.step.device;
        return elsewhere
            .and_then(|device| broken(format!("device {asked} is asked for, and device {device} allocates")));
    }
    let two = evidence.model.allocations.iter().any(|other| other.live && other.device != 0)
        && evidence.model.allocations.iter().any(|other| other.live && other.device == 0);
    let allocation = evidence.about.filter(|_| two && evidence.is_access())?;
    for record in evidence.calls {
        if let SubjectCall::Register { device, base, .. } = record.call
            && device != allocation.device
        {
            return broken(format!("{base} of device {} is registered for device {device}", allocation.device));
        }
    }
    match evidence.outcome {
        Outcome::View(view) => {
            let entry = evidence.ledger.1.iter().find(|entry| entry.shows(*view))?;
            let shown = evidence.model.holder(entry.base, 1).map(|index| evidence.model.allocations[index].device);
            if shown.is_some_and(|device| device != allocation.device) {
                return broken(format!("the view of {} shows memory of another device", allocation.name));
            }
            view_shows_memory(allocation, *view, evidence, bench)
        }
        Outcome::Bytes(_) | Outcome::Done if !evidence.refused_by_platform() => HELD,
        Outcome::DeviceCopies | Outcome::Bytes(_) | Outcome::Done if evidence.refused_by_platform() => {
            Some(Verdict::Refused)
        }
        _ => None,
    }
}

fn within_budget(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    let budget = evidence.info.budget?;
    let mut held: BTreeMap<DeviceAddr, u64> = evidence.ledger.0.iter().map(|entry| (entry.base, entry.bytes)).collect();
    for record in evidence.calls.iter().filter(|record| record.error.is_none()) {
        match record.call {
            SubjectCall::Register { base, bytes, .. } => {
                held.insert(base, bytes);
            }
            SubjectCall::Unregister { base } => {
                held.remove(&base);
                // What a free or finalize lets go is in use no more.
                let in_use = evidence.model.allocations.iter().find(|other| {
                    let own = evidence.about.is_some_and(|about| about.base == other.base);
                    other.live && other.holds(base, 1) && !own && other.in_use().next().is_some()
                });
                if let Some(other) = in_use {
                    return broken(format!("the view of {} is evicted while it is in use", other.name));
                }
            }
            _ => {}
        }
        let bytes: u64 = held.values().sum();
        if bytes > budget {
            return broken(format!("{} are mapped, of a budget of {}", ByteCount(bytes), ByteCount(budget)));
        }
    }
    // Where nothing can be mapped, nothing passes a budget.
    if held.is_empty() { evidence.refused_by_platform().then_some(Verdict::Refused) } else { HELD }
}

fn every_call_returns(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    if let Outcome::NeverReturned(what) = evidence.outcome {
        return broken(format!("{} {what}", evidence.step.op.name()));
    }
    match &evidence.noise {
        Some(noise) => broken(format!("{} writes to standard output: {noise:?}", evidence.step.op.name())),
        None => HELD,
    }
}

fn views_in_use_stay(evidence: &Evidence<'_>, bench: &mut Bench<'_>) -> Option<Verdict> {
    let mut verdict = None;
    for allocation in evidence.model.allocations.iter().filter(|allocation| allocation.live) {
        for view in allocation.in_use() {
            for at in [0, view.bytes - 1] {
                let (mut seen, mut copied) = ([0], [0]);
                let platform = bench.recorder.platform();
                platform.copy_out(view.of.wrapping_add(at), &mut copied).ok()?;
                match platform.host_read(view.at.wrapping_add(at), &mut seen) {
                    Err(_) => return broken(format!("a view of {} that is in use cannot be read", allocation.name)),
                    Ok(()) if seen != copied => {
                        return broken(format!(
                            "a view of {} that is in use shows {:#04x}; a device copy reads {:#04x}",
                            allocation.name, seen[0], copied[0]
                        ));
                    }
                    Ok(()) => verdict = HELD,
                }
            }
        }
    }
    let refused = evidence.step.op == Op::Acquire && evidence.step.hold && evidence.refused_by_platform();
    verdict.or(refused.then_some(Verdict::Refused))
}

fn live_memory_is_served(evidence: &Evidence<'_>, _: &mut Bench<'_>) -> Option<Verdict> {
    let allocation = evidence.about.filter(|_| evidence.is_access() || evidence.step.op == Op::Free)?;
    if evidence.is_access() && evidence.finalized {
        return None;
    }
    match evidence.outcome {
        Outcome::Failed(error) if evidence.calls.iter().all(|record| record.error.is_none()) => broken(format!(
            "{} is allocated, the platform refuses nothing, and {} fails ({error})",
            allocation.name,
            evidence.step.op.name()
        )),
        Outcome::Failed(_) => None,
        _ => HELD,
    }
}

#[cfg(test)]
mod tests;
