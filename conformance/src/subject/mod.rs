//! The subject: what the suite judges.

mod cache;
#[path = "../../subjects/mutants/mod.rs"]
mod mutants;
mod opened;
#[path = "../../subjects/rebuild.rs"]
mod rebuild;

use std::sync::Arc;

use hostview_cache::{CacheError, Held, RangeError};
use hostview_sim::config::nearest;
use hostview_sim::{DeviceAddr, Fault, HostAddr, PagePolicy};
use serde::{Deserialize, Serialize};

use crate::case::Op;
use crate::code::ErrorCode;
use crate::recorder::PlatformTable;

pub use mutants::{Mutant, mutants};
pub use opened::{Library, SubjectHome, SubjectLimits, beside, layout, serve};

/// Why a subject did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum SubjectError {
    /// It refused the call itself.
    #[error("refused: {0}")]
    Refused(String),
    /// The platform refused.
    #[error("{0}")]
    Platform(ErrorCode),
    /// An access through a view would have faulted.
    #[error("{0}")]
    Fault(Fault),
}

impl From<CacheError<SubjectError>> for SubjectError {
    fn from(error: CacheError<SubjectError>) -> Self {
        match error {
            CacheError::Platform(error) => error,
            CacheError::Range(_) | CacheError::Finalized => Self::Refused(error.to_string()),
        }
    }
}

impl From<RangeError> for SubjectError {
    fn from(error: RangeError) -> Self {
        Self::Refused(error.to_string())
    }
}

/// What acquire gave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// A view.
    View(HostAddr),
    /// None can be had: device copies serve instead.
    DeviceCopies,
}

/// What a subject says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SubjectInfo {
    /// Whether its calls may come from several threads at once.
    pub thread_safe: bool,
    /// The bytes that it may hold mapped, when it has a budget.
    pub budget: Option<u64>,
    /// Whether finalize may be called again.
    pub finalize_reentrant: bool,
    /// Whether it reports what it holds.
    pub reports_held: bool,
}

impl Default for SubjectInfo {
    fn default() -> Self {
        Self { thread_safe: false, budget: None, finalize_reentrant: true, reports_held: true }
    }
}

/// A view cache as the suite drives it. It owns allocation too, as the caches in the field do: what must come before what
/// is half of what is judged.
pub trait Subject: Send {
    /// What it says of itself.
    fn info(&self) -> SubjectInfo {
        SubjectInfo::default()
    }

    /// The suite comes to a step. For those whose process may not live to tell.
    fn at_step(&mut self, _index: usize, _op: Op) {}

    /// Allocates device memory.
    ///
    /// # Errors
    ///
    /// The platform's error, or a refusal.
    fn alloc(
        &mut self,
        platform: &mut dyn PlatformTable,
        device: u32,
        bytes: u64,
        policy: PagePolicy,
    ) -> Result<DeviceAddr, SubjectError>;

    /// Drops the view and frees the memory.
    ///
    /// # Errors
    ///
    /// A refusal for what is no live base, or the platform's error; then the allocation lives on.
    fn free(&mut self, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError>;

    /// A view of a range.
    ///
    /// # Errors
    ///
    /// A refusal for what is no part of a live allocation, and after finalize.
    fn acquire(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<Acquired, SubjectError>;

    /// The views of the allocation that holds this address are no longer in use.
    fn release(&mut self, _platform: &mut dyn PlatformTable, _address: DeviceAddr) {}

    /// What it wrote to standard output since the last time, where that can be seen.
    fn noise(&mut self) -> Option<String> {
        None
    }

    /// The same subject, for use from another thread; none where it is not made for that.
    fn twin(&self) -> Option<Box<dyn Subject>> {
        None
    }

    /// Whether it locks by [`PlatformTable::enter`] and by nothing else, so that the suite knows which thread waits. One that has
    /// locks of its own is watched instead.
    fn locks_by_the_platform(&self) -> bool {
        true
    }

    /// Reads a range, by view or by device copy.
    ///
    /// # Errors
    ///
    /// As acquire, and the copy's own.
    fn read(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        into: &mut [u8],
    ) -> Result<(), SubjectError>;

    /// Writes a range, by view or by device copy.
    ///
    /// # Errors
    ///
    /// As acquire, and the copy's own.
    fn write(&mut self, platform: &mut dyn PlatformTable, address: DeviceAddr, from: &[u8])
    -> Result<(), SubjectError>;

    /// What it holds mapped, by its own count.
    fn held(&self) -> Held;

    /// Drops every view; nothing is handed out afterwards.
    ///
    /// # Errors
    ///
    /// The platform refused to unregister; what could not be dropped is still held.
    fn finalize(&mut self, platform: &mut dyn PlatformTable) -> Result<(), SubjectError>;
}

/// A subject that is built in.
#[derive(Debug)]
pub struct BuiltIn {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is.
    pub summary: &'static str,
    /// Whether `check` runs it when none is named.
    pub by_default: bool,
    make: fn() -> Box<dyn Subject>,
}

impl BuiltIn {
    /// A fresh one.
    #[must_use]
    pub fn make(&self) -> Box<dyn Subject> {
        (self.make)()
    }
}

/// The subjects that are built in, without the mutants.
pub static BUILT_IN: [BuiltIn; 3] = [
    BuiltIn {
        name: "cache",
        summary: "the reference cache: one view per allocation, from its first access to its free",
        by_default: true,
        make: || Box::<cache::CacheSubject>::default(),
    },
    BuiltIn {
        name: "rebuild",
        summary: "a view per access, nothing kept: correct by construction, and dear",
        by_default: true,
        make: || Box::<rebuild::Rebuild>::default(),
    },
    BuiltIn {
        name: "shared",
        summary: "for several threads at once, with a budget of 2 MiB: what the mutants are mutants of",
        by_default: true,
        make: || Box::new(mutants::sound()),
    },
];

/// The reference subject's name.
pub const REFERENCE: &str = "cache";

/// A name that is no subject's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no subject `{name}`; {mend}")]
pub struct UnknownSubject {
    name: String,
    mend: String,
}

/// Whether a word on the command line is a library's path, and no name.
#[must_use]
pub fn is_path(word: &str) -> bool {
    word.contains('/') || std::path::Path::new(word).extension().is_some_and(|extension| extension == "so")
}

/// The subject of this name: a built-in one, or a mutant.
///
/// # Errors
///
/// There is none; the nearest is named.
pub fn find(name: &str) -> Result<SubjectChoice, UnknownSubject> {
    let built_in = BUILT_IN.iter().find(|subject| subject.name == name).map(SubjectChoice::BuiltIn);
    let mutant = || mutants().iter().copied().find(|mutant| mutant.name == name).map(SubjectChoice::Mutant);
    built_in.or_else(mutant).ok_or_else(|| {
        let names = || BUILT_IN.iter().map(|subject| subject.name);
        let all = names().chain(mutants().iter().map(|mutant| mutant.name));
        let mend = nearest(name, all).map_or_else(
            || format!("built in are {}, and the mutants", names().collect::<Vec<_>>().join(", ")),
            |near| format!("did you mean `{near}`?"),
        );
        UnknownSubject { name: name.to_owned(), mend }
    })
}

/// A subject that was chosen.
#[derive(Clone, Debug)]
pub enum SubjectChoice {
    /// A built-in one.
    BuiltIn(&'static BuiltIn),
    /// A built-in one with a fault planted.
    Mutant(&'static Mutant),
    /// One that was opened by its path.
    Library(Arc<Library>),
}

impl SubjectChoice {
    /// Its name in reports.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::BuiltIn(subject) => subject.name,
            Self::Mutant(mutant) => mutant.name,
            Self::Library(library) => library.name(),
        }
    }

    /// What the command line calls it.
    #[must_use]
    pub fn argument(&self) -> &str {
        match self {
            Self::BuiltIn(_) | Self::Mutant(_) => self.name(),
            Self::Library(library) => library.argument(),
        }
    }

    /// What it says of itself.
    #[must_use]
    pub fn info(&self) -> SubjectInfo {
        match self {
            Self::BuiltIn(subject) => subject.make().info(),
            Self::Mutant(mutant) => mutant.make().info(),
            Self::Library(library) => library.info(),
        }
    }

    /// A fresh one, for this process; none where it has a process of its own.
    #[must_use]
    pub fn make(&self) -> Option<Box<dyn Subject>> {
        match self {
            Self::BuiltIn(subject) => Some(subject.make()),
            Self::Mutant(mutant) => Some(mutant.make()),
            Self::Library(_) => None,
        }
    }
}
