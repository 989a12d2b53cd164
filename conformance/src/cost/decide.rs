//! The decision: what each way to serve a workload costs, and the verdict by the workload's own rule.

use std::fmt;

use hostview_sim::Profile;

use super::model::Model;
use super::workload::{Shipped, Tensor, Workload};

/// A way to serve accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Every allocation is mapped for every run, touched or not: what #1848 measured.
    MapEverything,
    /// A view for each run that touches a tensor.
    Rebuild,
    /// A view from the first access to the end of the allocation.
    Cache,
    /// A device copy for each access.
    Copies,
    /// For each tensor the cheapest of the last three.
    BestMix,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::MapEverything => "map everything",
            Self::Rebuild => "rebuild every run",
            Self::Cache => "cache per allocation",
            Self::Copies => "device copies only",
            Self::BestMix => "best mix per tensor",
        })
    }
}

impl Way {
    /// In a word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::MapEverything => "everything",
            Self::Rebuild => "rebuild",
            Self::Cache => "cache",
            Self::Copies => "copies",
            Self::BestMix => "mix",
        }
    }
}

impl From<Shipped> for Way {
    fn from(shipped: Shipped) -> Self {
        match shipped {
            Shipped::Rebuild => Self::Rebuild,
            Shipped::Cache => Self::Cache,
            Shipped::Copies => Self::Copies,
        }
    }
}

/// What a way costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// The way.
    pub way: Way,
    /// A run that touches every tensor it ever touches, once all is warm, in microseconds: what a rule is about.
    pub per_bind: f64,
    /// A run on average over all runs, the first and the teardown included, in microseconds.
    pub per_run: f64,
    /// The most bytes mapped at once.
    pub peak: u64,
    /// The bytes mapped after the last run.
    pub left: u64,
}

/// A size, and from which access on a mapping beats copying.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Crossover {
    /// The size.
    pub bytes: u64,
    /// Register and unregister together, in microseconds.
    pub pair: f64,
    /// One copy of four bytes, in microseconds.
    pub copy: f64,
    /// The number of accesses from which mapping is cheaper.
    pub from_access: u64,
}

/// A part of the costs, and where the verdict would turn if it alone changed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Turning {
    /// Which part.
    pub what: &'static str,
    /// What it is now, in microseconds; 1 for a factor of everything.
    pub now: f64,
    /// Where the verdict turns; none when even 0 does not turn it.
    pub turns_at: Option<f64>,
    /// What a bind would cost with that part at 0.
    pub at_zero: f64,
}

/// A tensor that is touched, and what serves it.
#[derive(Clone, PartialEq, Debug)]
pub struct Served {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// What mapping and unmapping it once costs, in microseconds.
    pub pair: f64,
    /// What device copies cost in a run, in microseconds.
    pub copies: f64,
    /// The way that is cheapest for it.
    pub best: Way,
}

/// What a workload comes to on a profile.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision {
    /// Each way, in the order of [`Way`].
    pub outcomes: Vec<Outcome>,
    /// Each touched tensor.
    pub tensors: Vec<Served>,
    /// Whether the rule's policy ships.
    pub ships: bool,
    /// What a bind costs under the rule's policy, in microseconds.
    pub bind: f64,
    /// Where the verdict would turn.
    pub turnings: Vec<Turning>,
    /// From which access on mapping beats copying, by size.
    pub crossovers: Vec<Crossover>,
    /// The mapped bytes of a cache after so many runs.
    pub growth: Vec<(u64, u64)>,
}

/// The sizes of the crossover table.
const CROSSOVER_SIZES: [u64; 8] = [64, 1 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 256 << 20];

/// The seed's access: four bytes.
const ACCESS: u64 = 4;

/// Weighs the ways.
#[must_use]
pub fn decide(workload: &Workload, profile: &Profile) -> Decision {
    let model = Model::median(profile);
    let weigh = |way| outcome(workload, &model, way);
    let outcomes: Vec<Outcome> =
        [Way::MapEverything, Way::Rebuild, Way::Cache, Way::Copies, Way::BestMix].map(weigh).into();
    let bind = weigh(workload.rule.ship.into()).per_bind;
    let tensors = touched(workload)
        .map(|tensor| Served {
            name: tensor.name.clone(),
            bytes: tensor.bytes,
            pair: pair(&model, tensor),
            copies: copies(&model, tensor),
            best: cheapest(workload, &model, tensor),
        })
        .collect();
    Decision {
        outcomes,
        tensors,
        ships: bind < workload.rule.under_us,
        bind,
        turnings: turnings(workload, profile),
        crossovers: CROSSOVER_SIZES.iter().map(|bytes| crossover(&model, *bytes)).collect(),
        growth: growth(workload),
    }
}

fn touched(workload: &Workload) -> impl Iterator<Item = &Tensor> + Clone {
    workload.tensors.iter().filter(|tensor| tensor.runs_touching(workload.runs) > 0)
}

fn pair(model: &Model<'_>, tensor: &Tensor) -> f64 {
    model.pair(tensor.bytes, model.kind(tensor.bytes, tensor.policy))
}

fn copies(model: &Model<'_>, tensor: &Tensor) -> f64 {
    tensor.accesses() as f64 * model.copy(tensor.access_bytes)
}

/// What a tensor costs over all runs.
fn over_all_runs(workload: &Workload, model: &Model<'_>, tensor: &Tensor, way: Way) -> f64 {
    let touching = tensor.runs_touching(workload.runs) as f64;
    match way {
        Way::MapEverything => workload.runs as f64 * pair(model, tensor),
        Way::Rebuild => touching * pair(model, tensor),
        Way::Cache if touching > 0.0 => pair(model, tensor),
        Way::Cache => 0.0,
        Way::Copies => touching * copies(model, tensor),
        Way::BestMix => over_all_runs(workload, model, tensor, cheapest(workload, model, tensor)),
    }
}

fn cheapest(workload: &Workload, model: &Model<'_>, tensor: &Tensor) -> Way {
    let cost = |way: &Way| over_all_runs(workload, model, tensor, *way);
    [Way::Cache, Way::Rebuild, Way::Copies]
        .into_iter()
        .min_by(|one, other| cost(one).total_cmp(&cost(other)))
        .unwrap_or(Way::Cache)
}

/// What a warm run pays for a tensor that it touches.
fn warm(workload: &Workload, model: &Model<'_>, tensor: &Tensor, way: Way) -> f64 {
    match way {
        Way::MapEverything | Way::Rebuild => pair(model, tensor),
        Way::Cache => 0.0,
        Way::Copies => copies(model, tensor),
        Way::BestMix => warm(workload, model, tensor, cheapest(workload, model, tensor)),
    }
}

fn outcome(workload: &Workload, model: &Model<'_>, way: Way) -> Outcome {
    let all = || workload.tensors.iter();
    let per_bind = match way {
        Way::MapEverything => all().map(|tensor| pair(model, tensor)).sum(),
        _ => touched(workload).map(|tensor| warm(workload, model, tensor, way)).sum(),
    };
    let total: f64 = all().map(|tensor| over_all_runs(workload, model, tensor, way)).sum();
    let maps = |tensor: &Tensor| match way {
        Way::Copies => false,
        Way::BestMix => cheapest(workload, model, tensor) != Way::Copies,
        Way::MapEverything | Way::Rebuild | Way::Cache => true,
    };
    let keeps =
        |tensor: &Tensor| way == Way::Cache || (way == Way::BestMix && cheapest(workload, model, tensor) == Way::Cache);
    let kept: u64 = touched(workload).filter(|tensor| keeps(tensor)).map(|tensor| tensor.bytes).sum();
    let passing = |run: u64| -> u64 {
        let passing = touched(workload).filter(|tensor| !keeps(tensor) && maps(tensor) && tensor.touched_in(run));
        passing.map(|tensor| tensor.bytes).sum()
    };
    let peak = if way == Way::MapEverything {
        all().map(|tensor| tensor.bytes).sum()
    } else {
        kept + interesting_runs(workload).into_iter().map(passing).max().unwrap_or(0)
    };
    Outcome { way, per_bind, per_run: total / workload.runs as f64, peak, left: kept }
}

/// Runs in which what is touched can differ from the run before: the beginning, and wherever a tensor comes up first.
fn interesting_runs(workload: &Workload) -> Vec<u64> {
    let longest = workload.tensors.iter().map(|tensor| tensor.every).max().unwrap_or(1).min(1024);
    let mut runs: Vec<u64> = (1..=longest).collect();
    runs.extend(workload.tensors.iter().flat_map(|tensor| tensor.from_run..tensor.from_run + longest));
    runs.retain(|run| *run <= workload.runs);
    runs.sort_unstable();
    runs.dedup();
    runs
}

fn growth(workload: &Workload) -> Vec<(u64, u64)> {
    let mut steps: Vec<u64> = touched(workload).map(|tensor| tensor.from_run).collect();
    steps.push(1);
    steps.sort_unstable();
    steps.dedup();
    let mapped = |run: u64| touched(workload).filter(|tensor| tensor.from_run <= run).map(|tensor| tensor.bytes).sum();
    steps.into_iter().map(|run| (run, mapped(run))).collect()
}

fn crossover(model: &Model<'_>, bytes: u64) -> Crossover {
    let kind = model.kind(bytes, hostview_sim::PagePolicy::HugeFirst);
    let (pair, copy) = (model.pair(bytes, kind), model.copy(ACCESS));
    #[allow(clippy::cast_sign_loss, reason = "both costs are positive")]
    let from_access = (pair / copy).floor() as u64 + 1;
    Crossover { bytes, pair, copy, from_access }
}

/// Scales a part of the costs.
type Change = fn(&mut Profile, f64);

/// A bind is linear in each constant: two evaluations give the line, and the line where it meets the rule.
fn turnings(workload: &Workload, profile: &Profile) -> Vec<Turning> {
    let bind = |profile: &Profile| outcome(workload, &Model::median(profile), workload.rule.ship.into()).per_bind;
    let now = bind(profile);
    let kind = touched(workload)
        .next()
        .map_or(hostview_sim::PageKind::Ordinary, |tensor| Model::median(profile).kind(tensor.bytes, tensor.policy));
    let (register, unregister) = Model::median(profile).floors(kind);
    let parts: [(&'static str, f64, Change); 3] = [
        ("register floor", register, |profile, factor| {
            scale(&mut profile.costs.register_ordinary, factor);
            scale(&mut profile.costs.register_huge, factor);
        }),
        ("floor of a pair", register + unregister, |profile, factor| {
            scale(&mut profile.costs.register_ordinary, factor);
            scale(&mut profile.costs.register_huge, factor);
            scale(&mut profile.costs.unregister_ordinary, factor);
            scale(&mut profile.costs.unregister_huge, factor);
        }),
        ("everything, by a factor", 1.0, |profile, factor| {
            let costs = &mut profile.costs;
            for cost in [
                &mut costs.register_ordinary,
                &mut costs.register_huge,
                &mut costs.register_per_ordinary_page,
                &mut costs.register_per_huge_page,
                &mut costs.unregister_ordinary,
                &mut costs.unregister_huge,
                &mut costs.unregister_per_host_page_ordinary,
                &mut costs.unregister_per_host_page_huge,
                &mut costs.copy,
            ] {
                scale(cost, factor);
            }
            costs.copy_bandwidth /= factor.max(1e-12);
        }),
    ];
    parts
        .into_iter()
        .map(|(what, value, change)| {
            let mut without = profile.clone();
            change(&mut without, 0.0);
            let at_zero = bind(&without);
            let share = now - at_zero;
            let factor = (workload.rule.under_us - at_zero) / share;
            let turns_at = (share > 0.0 && factor >= 0.0).then_some(value * factor);
            Turning { what, now: value, turns_at, at_zero }
        })
        .collect()
}

fn scale(cost: &mut hostview_sim::Cost, factor: f64) {
    cost.min *= factor;
    cost.median *= factor;
}
