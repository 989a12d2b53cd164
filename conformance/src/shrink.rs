//! The shortest sequence that still breaks the same law.
//!
//! proptest deletes operations one by one and makes values smaller; what it leaves is a list of steps, which is made
//! shorter here: pairs that only make sense together go together, and sizes and offsets become the plainest that still do.

use crate::case::{Fail, Op, Step};
use crate::generate::name_of;

/// Makes a failing sequence shorter and plainer; `fails` runs a candidate and says whether it fails in the same way.
pub fn shrink(steps: Vec<Step>, mut fails: impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut best = drop_stretches(steps, &mut fails);
    loop {
        let before = best.clone();
        best = drop_steps(best, &mut fails);
        best = hand_faults_on(best, &mut fails);
        best = plain_values(best, &mut fails);
        if best == before {
            return renamed(best);
        }
    }
}

/// Gives the names that are left in order: a, b, c …
fn renamed(mut steps: Vec<Step>) -> Vec<Step> {
    let mut names: Vec<String> = Vec::new();
    for step in &mut steps {
        if let Some(name) = &mut step.name {
            names.push(std::mem::replace(name, name_of(names.len())));
        }
        if let Some(target) = &mut step.target
            && let Some(index) = names.iter().rposition(|name| name == target)
        {
            *target = name_of(index);
        }
    }
    steps
}

/// More steps than these are first thinned out: to try each run of them would take too long.
const MANY: usize = 64;

/// Deletes whole stretches of a long sequence, with what works on the names that they make: each step is tried a few times.
fn drop_stretches(mut best: Vec<Step>, fails: &mut impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut run = best.len() / 2;
    while run > 0 && best.len() > MANY {
        let mut end = best.len() - 1;
        // From the end, where what is deleted takes least with it; the last step is what fails.
        while end > 0 {
            let from = end.saturating_sub(run);
            let left = best.iter().enumerate().filter(|(index, _)| !(from..end).contains(index)).map(|(_, step)| step);
            let shorter = without_orphans(left.cloned());
            if shorter.last() == best.last() && fails(&shorter) {
                best = shorter;
            }
            end = from.min(best.len() - 1);
        }
        run /= 2;
    }
    best
}

/// Without the steps on names that nothing makes any more.
fn without_orphans(steps: impl Iterator<Item = Step>) -> Vec<Step> {
    let mut made = vec!["null".to_owned(), "nowhere".to_owned()];
    steps
        .filter(|step| {
            made.extend(step.name.clone());
            step.target.as_ref().is_none_or(|target| made.contains(target))
        })
        .collect()
}

/// Deletes runs of steps, long ones first, then any two steps.
fn drop_steps(mut best: Vec<Step>, fails: &mut impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut run = best.len() / 2;
    while run > 0 {
        let mut at = 0;
        while at + run <= best.len() {
            let mut shorter = best.clone();
            shorter.drain(at..at + run);
            if sound(&shorter) && fails(&shorter) {
                best = shorter;
            } else {
                at += 1;
            }
        }
        run /= 2;
    }
    let pairs = |len: usize| (0..len).flat_map(move |first| (first + 1..len).map(move |second| (first, second)));
    'again: loop {
        for (first, second) in pairs(best.len()) {
            let mut shorter = best.clone();
            shorter.remove(second);
            shorter.remove(first);
            if sound(&shorter) && fails(&shorter) {
                best = shorter;
                continue 'again;
            }
        }
        return best;
    }
}

/// A step that matters only for the fault before it hands the fault to the next one, and goes.
fn hand_faults_on(mut best: Vec<Step>, fails: &mut impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    let mut at = 0;
    while at + 1 < best.len() {
        let mut shorter = best.clone();
        let step = shorter.remove(at);
        if step.fail.is_some() && shorter[at].fail.is_none() {
            shorter[at].fail = step.fail;
            if sound(&shorter) && fails(&shorter) {
                best = shorter;
                continue;
            }
        }
        at += 1;
    }
    best
}

/// Whether every name is made before it is used.
fn sound(steps: &[Step]) -> bool {
    let mut made = vec!["null", "nowhere"];
    !steps.is_empty()
        && steps.iter().all(|step| {
            made.extend(step.name.as_deref());
            step.target.as_deref().is_none_or(|target| made.contains(&target))
        })
}

fn plain_values(mut best: Vec<Step>, fails: &mut impl FnMut(&[Step]) -> bool) -> Vec<Step> {
    for at in 0..best.len() {
        for plainer in PLAINER {
            let mut candidate = best.clone();
            candidate[at] = plainer(&best[at]);
            if candidate[at] != best[at] && fails(&candidate) {
                best = candidate;
            }
        }
    }
    best
}

/// Plainer forms of a step, the plainest last.
const PLAINER: [fn(&Step) -> Step; 12] = [
    |step| Step { fail: None, ..step.clone() },
    |step| Step { fail: step.fail.clone().map(|fail| Fail { nth: 1, ..fail }), ..step.clone() },
    |step| Step { fail: step.fail.clone().map(|fail| Fail { lasting: false, ..fail }), ..step.clone() },
    |step| Step { pause: None, ..step.clone() },
    |step| Step { hold: false, ..step.clone() },
    |step| Step { device: 0, ..step.clone() },
    |step| Step { policy: hostview_sim::PagePolicy::HugeFirst, ..step.clone() },
    |step| sized(step, 2 << 20),
    |step| sized(step, 4096),
    |step| Step { offset: 0, ..step.clone() },
    |step| match step.op {
        Op::Alloc | Op::Finalize => step.clone(),
        _ => Step { bytes: step.bytes.map(|bytes| bytes.min(1)), ..step.clone() },
    },
    |step| match step.op {
        Op::Read | Op::Write => Step { op: Op::Acquire, fill: None, ..step.clone() },
        _ => step.clone(),
    },
];

fn sized(step: &Step, bytes: u64) -> Step {
    if step.op == Op::Alloc { Step { bytes: Some(bytes), ..step.clone() } } else { step.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_matter_goes_and_what_does_stays() {
        let policy = hostview_sim::PagePolicy::NormalOnly;
        let noise =
            |name: &str| [Step::alloc(name, 70_000, policy), Step::on(Op::Read, name), Step::on(Op::Free, name)];
        let mut steps: Vec<Step> = noise("a").into();
        steps.extend([Step::alloc("b", 70_000, policy), Step::on(Op::Acquire, "b").range(5, 7)]);
        steps.extend(noise("c"));
        let both = |steps: &[Step]| {
            let at = |op| steps.iter().position(|step| step.op == op);
            at(Op::Acquire).is_some()
        };
        let shrunk = shrink(steps, both);
        assert_eq!(shrunk.len(), 2);
        assert_eq!(shrunk[0].bytes, Some(4096));
        assert_eq!((shrunk[1].offset, shrunk[1].bytes), (0, Some(1)));
    }
}
