//! Planted faults: a correct cache, and for each of its parts the ways in which caches have been seen to go wrong.
//!
//! [`Cache`] is the cache without a fault. What it does at each point is a method of [`Parts`], and a mutant is one such
//! method written otherwise, beside its story. `hostview mutants` runs them all: each must be caught by a law.

mod access;
mod base;
mod budget;
mod finalize;
mod free;
mod register;
mod report;
mod threads;

use std::fmt;
use std::sync::LazyLock;

pub(super) use base::sound;
use base::{Cache, Parts};
// As planting has them.
use Mutant as Planted;
use base::Parts as Part;

use super::Subject;

/// A cache with one fault.
pub struct Mutant {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is wrong with it, in one line.
    pub story: &'static str,
    /// The public report that it resembles, where there is one.
    pub like: Option<&'static str>,
    part: &'static dyn Parts,
}

impl Mutant {
    /// A fresh one.
    #[must_use]
    pub fn make(&self) -> Box<dyn Subject> {
        Box::new(Cache::new(self.part))
    }
}

impl fmt::Debug for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutant").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Every mutant, by the part of the cache that it is in.
#[must_use]
pub fn mutants() -> &'static [&'static Mutant] {
    static ALL: LazyLock<Vec<&'static Mutant>> = LazyLock::new(|| {
        let all = [
            free::PLANTED,
            access::PLANTED,
            register::PLANTED,
            finalize::PLANTED,
            report::PLANTED,
            budget::PLANTED,
            threads::PLANTED,
        ];
        all.into_iter().flatten().collect()
    });
    &ALL
}
