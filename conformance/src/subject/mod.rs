//! The subject: what the suite judges.

mod cache;
mod faulty;
mod rebuild;

use hostview_cache::{CacheError, Held, RangeError};
use hostview_sim::config::nearest;
use hostview_sim::{DeviceAddr, Fault, HostAddr, PagePolicy};

use crate::code::ErrorCode;
use crate::recorder::Recorder;

/// Why a subject did not do what it was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
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
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SubjectInfo {
    /// Whether its calls may come from several threads at once.
    pub thread_safe: bool,
    /// The bytes that it may hold mapped, when it has a budget.
    pub budget: Option<u64>,
}

/// A view cache as the suite drives it. It owns allocation too, as the caches in the field do: what must come before what
/// is half of what is judged.
pub trait Subject {
    /// What it says of itself.
    fn info(&self) -> SubjectInfo {
        SubjectInfo::default()
    }

    /// Allocates device memory.
    ///
    /// # Errors
    ///
    /// The platform's error, or a refusal.
    fn alloc(
        &mut self,
        platform: &mut Recorder,
        device: u32,
        bytes: u64,
        policy: PagePolicy,
    ) -> Result<DeviceAddr, SubjectError>;

    /// Drops the view and frees the memory.
    ///
    /// # Errors
    ///
    /// A refusal for what is no live base, or the platform's error; then the allocation lives on.
    fn free(&mut self, platform: &mut Recorder, address: DeviceAddr) -> Result<(), SubjectError>;

    /// A view of a range.
    ///
    /// # Errors
    ///
    /// A refusal for what is no part of a live allocation, and after finalize.
    fn acquire(&mut self, platform: &mut Recorder, address: DeviceAddr, bytes: u64) -> Result<Acquired, SubjectError>;

    /// The suite is done with the view of the last acquire.
    fn end_access(&mut self, _platform: &mut Recorder) {}

    /// Reads a range, by view or by device copy.
    ///
    /// # Errors
    ///
    /// As acquire, and the copy's own.
    fn read(&mut self, platform: &mut Recorder, address: DeviceAddr, into: &mut [u8]) -> Result<(), SubjectError>;

    /// Writes a range, by view or by device copy.
    ///
    /// # Errors
    ///
    /// As acquire, and the copy's own.
    fn write(&mut self, platform: &mut Recorder, address: DeviceAddr, from: &[u8]) -> Result<(), SubjectError>;

    /// What it holds mapped, by its own count.
    fn held(&self) -> Held;

    /// Drops every view; nothing is handed out afterwards.
    ///
    /// # Errors
    ///
    /// The platform refused to unregister; what could not be dropped is still held.
    fn finalize(&mut self, platform: &mut Recorder) -> Result<(), SubjectError>;
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

macro_rules! faulty {
    ($($name:literal: $fault:ident, $summary:literal;)*) => {
        /// The subjects that are built in.
        pub static BUILT_IN: &[BuiltIn] = &[
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
            $(BuiltIn {
                name: $name,
                summary: concat!("broken: ", $summary),
                by_default: false,
                make: || Box::new(faulty::Faulty::new(faulty::Fault::$fault)),
            },)*
        ];
    };
}

faulty! {
    "leaky": ForgetsToUnregister, "a free drops the record and forgets to unregister";
    "breaks-v02": IgnoresFailedUnregister, "a failed unregister is ignored, and the memory freed";
    "breaks-v03": OffsetsByThePage, "an interior address gets the view of its page";
    "breaks-v04": LosesWrites, "a write through a view is lost";
    "breaks-v05": RegistersTheRange, "the range that was asked for is registered, not the allocation";
    "breaks-v06": RegistersUnasked, "every allocation is registered at once";
    "breaks-v07": FailsOnRefusal, "a refused registration fails the access";
    "breaks-v08": RemembersRefusals, "a refusal is remembered for the address, whoever has it";
    "breaks-v09": HandsOutAfterFinalize, "finalize leaves the door open";
    "breaks-v10": ServesPastTheEnd, "only the first byte of a range is checked";
    "breaks-v11": CountsTwice, "every acquire counts";
    "breaks-v12": FreesInterior, "a free of an interior address frees the allocation around it";
    "breaks-v13": HidesAllocationFailure, "a failed allocation is reported as the one before";
    "breaks-v14": IgnoresTheDevice, "everything is registered for device 0";
}

/// The reference subject's name.
pub const REFERENCE: &str = "cache";

/// A name that is no subject's.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no subject `{name}`; {mend}")]
pub struct UnknownSubject {
    name: String,
    mend: String,
}

/// The subject of this name.
///
/// # Errors
///
/// There is none; the nearest is named.
pub fn find(name: &str) -> Result<&'static BuiltIn, UnknownSubject> {
    BUILT_IN.iter().find(|subject| subject.name == name).ok_or_else(|| {
        let names: Vec<&str> = BUILT_IN.iter().map(|subject| subject.name).collect();
        let mend = nearest(name, names.iter().copied())
            .map_or_else(|| format!("built in are {}", names.join(", ")), |near| format!("did you mean `{near}`?"));
        UnknownSubject { name: name.to_owned(), mend }
    })
}
