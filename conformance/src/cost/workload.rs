//! Workloads: which tensors a run touches and how often, and the rule that decides, fixed beforehand.

use std::path::Path;

use hostview_sim::PagePolicy;
use hostview_sim::config::{self, ConfigError};
use serde::Deserialize;

/// A tensor of a workload.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// How it is allocated.
    #[serde(default)]
    pub policy: PagePolicy,
    /// How often a run that touches it reads it.
    #[serde(default)]
    pub reads: u64,
    /// How often a run that touches it writes it.
    #[serde(default)]
    pub writes: u64,
    /// Bytes of one access.
    #[serde(default = "four")]
    pub access_bytes: u64,
    /// The first run that touches it, from 1.
    #[serde(default = "one")]
    pub from_run: u64,
    /// It is touched in every so manieth run from then on.
    #[serde(default = "one")]
    pub every: u64,
}

fn one() -> u64 {
    1
}

fn four() -> u64 {
    4
}

impl Tensor {
    /// Accesses in a run that touches it.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.reads + self.writes
    }

    /// Whether a run, from 1, touches it.
    #[must_use]
    pub fn touched_in(&self, run: u64) -> bool {
        self.accesses() > 0 && run >= self.from_run && (run - self.from_run).is_multiple_of(self.every)
    }

    /// How many of the first `runs` runs touch it.
    #[must_use]
    pub fn runs_touching(&self, runs: u64) -> u64 {
        if self.accesses() == 0 || runs < self.from_run { 0 } else { (runs - self.from_run) / self.every + 1 }
    }
}

/// The rule: a policy ships if a run costs less than so much under it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The policy that the rule is about.
    pub ship: Shipped,
    /// What a run may cost under it, in microseconds.
    pub under_us: f64,
}

/// A policy that a rule can be about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shipped {
    /// A view for each run that touches a tensor.
    Rebuild,
    /// A view for the life of the allocation.
    Cache,
    /// No views.
    Copies,
}

/// What is run.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name.
    pub name: String,
    /// Where it comes from.
    pub source: String,
    /// What a run takes by itself, in microseconds.
    pub run_us: f64,
    /// How many runs the allocations live for.
    pub runs: u64,
    /// The rule.
    pub rule: Rule,
    /// The tensors.
    #[serde(rename = "tensor")]
    pub tensors: Vec<Tensor>,
}

/// Why a workload was refused.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// It cannot be read, or is wrong at a line.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A value that cannot be.
    #[error("{place}: `{key}` {problem}")]
    Value {
        /// The file.
        place: String,
        /// The key.
        key: String,
        /// What is wrong, and the mend.
        problem: &'static str,
    },
}

/// Reads a workload.
///
/// # Errors
///
/// Names the file and the line or key.
pub fn load(path: &Path) -> Result<Workload, WorkloadError> {
    parse(&config::read(path)?, &path.display().to_string())
}

/// Reads a workload from text; `place` is what messages call it.
///
/// # Errors
///
/// As [`load`].
pub fn parse(text: &str, place: &str) -> Result<Workload, WorkloadError> {
    let workload: Workload = config::from_toml(text, place)?;
    let wrong = |key: String, problem| Err(WorkloadError::Value { place: place.to_owned(), key, problem });
    if !(workload.run_us.is_finite() && workload.run_us > 0.0) {
        return wrong("run_us".to_owned(), "must be over 0 microseconds");
    }
    if !(workload.rule.under_us.is_finite() && workload.rule.under_us > 0.0) {
        return wrong("rule.under_us".to_owned(), "must be over 0 microseconds");
    }
    if !(1..=1_000_000_000).contains(&workload.runs) {
        return wrong("runs".to_owned(), "must be from 1 to 1,000,000,000");
    }
    for tensor in &workload.tensors {
        let key = |key: &str| format!("tensor {}: {key}", tensor.name);
        if tensor.bytes == 0 || tensor.bytes > 1 << 42 {
            return wrong(key("bytes"), "must be from 1 to 4 TiB");
        }
        if tensor.every == 0 || tensor.from_run == 0 {
            return wrong(key("every"), "and `from_run` count from 1");
        }
        if tensor.accesses() > 1 << 40 || tensor.access_bytes == 0 || tensor.access_bytes > tensor.bytes {
            return wrong(key("access_bytes"), "must be from 1 to the tensor's size, for at most 2^40 accesses");
        }
    }
    Ok(workload)
}
