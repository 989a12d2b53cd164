//! The gate: the whole suite on a machine, and one word at the end.

mod compare;
mod learn;
mod machine;

use std::fmt;

use hostview_sim::Profile;
use proptest::strategy::{Strategy as _, ValueTree as _};

use crate::case::{Op, Step};
use crate::check::{CheckOptions, Failure, Report, Standing, check, runner_for};
use crate::generate::driver_sequences;
use crate::laws::LawId;
use crate::library::{Leftover, LibrarySite, Limits};
use crate::site::{Simulator, Site as _};

pub use compare::{Addresses, Difference, compare};
pub use learn::{Learned, learn};
pub use machine::Machine;

/// What the gate says at the end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Every law that applies was checked and holds.
    Accepted,
    /// A law is broken, or something could not be given back.
    Rejected(Vec<String>),
    /// A law that applies could not be checked.
    NotProven(Vec<(LawId, String)>),
}

/// A sequence that this machine and the simulator of this machine answer differently.
#[derive(Clone, PartialEq, Debug)]
pub struct Differing {
    /// The law whose sequence it is; none for one that was drawn.
    pub law: Option<LawId>,
    /// Where they differ.
    pub difference: Difference,
    /// The sequence.
    pub steps: Vec<Step>,
}

/// How the laws stand on the machine, and beside it on the simulator.
#[derive(Debug)]
pub struct Outcome {
    /// The suite on the machine.
    pub report: Report,
    /// How many D-laws come to the same on the simulator of this machine.
    pub like: usize,
    /// Those that come to something else.
    pub unlike: Vec<Unlike>,
    /// Sequences that show a difference.
    pub differing: Vec<Differing>,
    /// How many drawn sequences of driver calls were compared.
    pub compared: u32,
    /// What was given back, and what could not be.
    pub given_back: Leftover,
    /// The word.
    pub verdict: Verdict,
}

/// A law, with its standing on the machine and on the simulator.
pub type Unlike = (LawId, Standing, Standing);

/// Runs the gate. The options' only profile is the machine's.
pub fn gate(
    site: &LibrarySite,
    profile: &Profile,
    options: &CheckOptions,
    compared: u32,
    allowed: &[LawId],
    progress: &(dyn Fn(&str) + Sync),
) -> Outcome {
    let report = check(options, site, progress);
    // A law that holds there holds in a few trials already.
    let beside = CheckOptions { subjects: Vec::new(), trials: options.trials.min(16), ..options.clone() };
    let simulated = check(&beside, &Simulator, &|_| ());
    let (like, unlike) = beside_each_other(site, &report, &simulated);
    let mut differing: Vec<Differing> =
        report.failures.iter().filter_map(|failure| of_failure(site, profile, failure)).collect();
    let compared = compare_drawn(site, profile, options, compared, &mut differing);
    site.close();
    let given_back = site.summons().watch.given_back();
    let hung = site.summons().watch.hung.get();
    let verdict = verdict(&report, &given_back, hung.map(String::as_str), allowed);
    Outcome { report, like, unlike, differing, compared, given_back, verdict }
}

/// How many D-laws come to the same on the device and on the simulator, and those that do not. Of what was not checked, or
/// only the simulator has, neither is said.
fn beside_each_other(site: &LibrarySite, report: &Report, simulated: &Report) -> (usize, Vec<Unlike>) {
    let laws = |report: &Report| -> Vec<(LawId, Standing)> {
        let rows = report.rows.iter().filter(|row| row.subject.is_none());
        rows.flat_map(|row| &row.laws).map(|law| (law.id, law.standing.clone())).collect()
    };
    let only_simulated =
        |id: LawId| crate::laws::find(id.0).is_some_and(|law| law.needs.iter().any(|need| site.lacks(*need).is_some()));
    let pairs = laws(report).into_iter().zip(laws(simulated));
    let (like, unlike): (Vec<Unlike>, Vec<Unlike>) = pairs
        .filter(|((law, here), _)| !matches!(here, Standing::NotChecked(_)) && !only_simulated(*law))
        .map(|((law, here), (_, there))| (law, here, there))
        .partition(|(_, here, there)| here == there);
    (like.len(), unlike)
}

/// Where the sequence of a broken D-law comes out otherwise on the simulator.
fn of_failure(site: &LibrarySite, profile: &Profile, failure: &Failure) -> Option<Differing> {
    if failure.subject.is_some() || site.over().is_some() {
        return None;
    }
    let steps = failure.case.steps.clone();
    let difference = differ(site, profile, &steps)?;
    Some(Differing { law: Some(failure.law), difference, steps })
}

fn differ(site: &LibrarySite, profile: &Profile, steps: &[Step]) -> Option<Difference> {
    let mut device = site.fresh(profile).ok()?;
    let mut simulator = Simulator.fresh(profile).ok()?;
    compare(steps, &mut *device, &mut *simulator, Addresses::Free)
}

/// Compares drawn sequences of driver calls; how many.
fn compare_drawn(
    site: &LibrarySite,
    profile: &Profile,
    options: &CheckOptions,
    wanted: u32,
    differing: &mut Vec<Differing>,
) -> u32 {
    let mut runner = runner_for(options.seed, &["gate", "driver"]);
    let sequences = driver_sequences();
    for done in 0..wanted {
        if site.over().is_some() {
            return done;
        }
        let Ok(tree) = sequences.new_tree(&mut runner) else { return done };
        let mut steps = tree.current();
        steps.retain(|step| site.lacks_for(step).is_none());
        let steps = within(steps, &site.summons().limits, site.facts().memory);
        if let Some(difference) = differ(site, profile, &steps) {
            let steps = shorter(site, profile, steps, &difference);
            let difference = differ(site, profile, &steps).unwrap_or(difference);
            differing.push(Differing { law: None, difference, steps });
        }
    }
    wanted
}

/// The steps before the one from which on the suite's own limit might answer an allocation in the device's place.
fn within(mut steps: Vec<Step>, limits: &Limits, device: Option<u64>) -> Vec<Step> {
    let mut taken = 0_u64;
    let over = steps.iter().position(|step| {
        let bytes = if step.op == Op::Alloc { step.bytes.unwrap_or(0) } else { 0 };
        // What the device cannot hold either, it is asked for.
        if device.is_none_or(|device| bytes <= device) {
            taken = taken.saturating_add(bytes);
        }
        taken > limits.memory
    });
    steps.truncate(over.unwrap_or(steps.len()));
    steps
}

/// As few steps as still differ in the same way at their end.
fn shorter(site: &LibrarySite, profile: &Profile, steps: Vec<Step>, difference: &Difference) -> Vec<Step> {
    let mut best = steps;
    best.truncate(difference.step + 1);
    let mut at = 0;
    while at + 1 < best.len() && site.over().is_none() {
        let mut candidate = best.clone();
        candidate.remove(at);
        let named = |step: &Step| {
            step.target.as_ref().is_none_or(|name| candidate.iter().any(|other| other.name.as_ref() == Some(name)))
        };
        let same = candidate.iter().all(named)
            && differ(site, profile, &candidate).is_some_and(|found| {
                found.step + 1 == candidate.len()
                    && (&found.device, &found.simulator) == (&difference.device, &difference.simulator)
            });
        if same { best = candidate } else { at += 1 }
    }
    best
}

fn verdict(report: &Report, given_back: &Leftover, hung: Option<&str>, allowed: &[LawId]) -> Verdict {
    let mut against: Vec<String> = report.failures.iter().map(|failure| failure.law.to_string()).collect();
    against.sort();
    against.dedup();
    // It may have been no law's call: what the machine is was being found out.
    if let (Some(hung), true) = (hung, against.is_empty()) {
        against.push(format!("D27 ({hung})"));
    }
    if !given_back.left.is_empty() {
        against.push(format!("{} things could not be given back", given_back.left.len()));
    }
    if !against.is_empty() {
        return Verdict::Rejected(against);
    }
    let mut open: Vec<(LawId, String)> = Vec::new();
    for law in report.rows.iter().flat_map(|row| &row.laws) {
        let Standing::NotChecked(reason) = &law.standing else { continue };
        if !allowed.contains(&law.id) && !open.iter().any(|(id, _)| *id == law.id) {
            open.push((law.id, reason.clone()));
        }
    }
    if open.is_empty() { Verdict::Accepted } else { Verdict::NotProven(open) }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Passed => f.write_str("it holds"),
            Self::Refused => f.write_str("the refusal is as it must be"),
            Self::NotApplicable(reason) => write!(f, "not applicable ({reason})"),
            Self::NotChecked(reason) => write!(f, "not checked ({reason})"),
            Self::Broken => f.write_str("it is broken"),
        }
    }
}
