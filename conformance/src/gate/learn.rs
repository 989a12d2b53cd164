//! The profile of a machine: what it says of itself, and where its regimes lie by bisection.

use hostview_sim::{ByteCount, DrvError, FreeWhileRegistered, PageKind, PagePolicy, Profile, RegisterCall};

use crate::case::Via;
use crate::code::ErrorCode;
use crate::library::LibrarySite;
use crate::platform::Platform;
use crate::site::{Hindrance, Site as _};

/// The kernel's unit, in which thresholds lie.
const UNIT: u64 = 2 << 20;
/// The most that has no heap of its own.
const MOST: u64 = 512 << 20;

/// A profile, and how each key of it was come by.
#[derive(Debug)]
pub struct Learned {
    /// The profile.
    pub profile: Profile,
    /// A line for each thing that was found, or could not be.
    pub notes: Vec<String>,
}

/// What a free does with a block that is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Free {
    /// It succeeds: the block stays in the driver's cache.
    Cached,
    /// It is refused.
    Refused,
}

/// Finds the regimes of a machine's allocator by trying, with at most `memory` bytes at a time.
///
/// # Errors
///
/// The device cannot be opened any more.
pub fn learn(site: &LibrarySite, profile: &Profile, memory: u64) -> Result<Learned, Hindrance> {
    let mut learned = Learned { profile: profile.clone(), notes: Vec::new() };
    let most = memory.min(MOST) / UNIT * UNIT;
    for kind in [PageKind::Ordinary, PageKind::Huge] {
        if !profile.can_register(kind) {
            learned.notes.push(format!(
                "the cache's threshold for {kind} pages cannot be found where they cannot be registered: {} kept",
                ByteCount(profile.cache_threshold(kind))
            ));
            continue;
        }
        learned.find_threshold(site, kind, most)?;
    }
    Ok(learned)
}

impl Learned {
    fn find_threshold(&mut self, site: &LibrarySite, kind: PageKind, most: u64) -> Result<(), Hindrance> {
        let ask = |bytes: u64| -> Result<Result<Free, ErrorCode>, Hindrance> {
            // On a fresh process each: a cache that has held much moves its own threshold.
            Ok(free_while_registered(&mut *site.fresh(&self.profile)?, kind, bytes))
        };
        let threshold = match (ask(UNIT)?, ask(most)?) {
            (Ok(Free::Refused), _) => {
                self.profile.driver.free_while_registered = FreeWhileRegistered::Busy;
                self.notes.push(format!("a free of {kind} pages is refused while registered, whatever the size"));
                return Ok(());
            }
            (Ok(Free::Cached), Ok(Free::Cached)) => {
                self.notes
                    .push(format!("{kind} pages: blocks of {} are still cached; no threshold below", ByteCount(most)));
                most
            }
            (Ok(Free::Cached), Ok(Free::Refused)) => {
                let (mut cached, mut refused) = (UNIT, most);
                while refused - cached > UNIT {
                    let middle = u64::midpoint(cached, refused) / UNIT * UNIT;
                    match ask(middle)? {
                        Ok(Free::Cached) => cached = middle,
                        Ok(Free::Refused) => refused = middle,
                        Err(error) => {
                            self.give_up(kind, middle, error);
                            return Ok(());
                        }
                    }
                }
                self.notes.push(format!(
                    "{kind} pages: blocks of {} are cached, blocks of {} not: found by bisection",
                    ByteCount(cached),
                    ByteCount(refused)
                ));
                cached
            }
            (Err(error), _) => {
                self.give_up(kind, UNIT, error);
                return Ok(());
            }
            (_, Err(error)) => {
                self.give_up(kind, most, error);
                return Ok(());
            }
        };
        match kind {
            PageKind::Ordinary => self.profile.driver.ordinary_cache_threshold = threshold,
            PageKind::Huge => self.profile.driver.huge_cache_threshold = threshold,
        }
        self.profile.driver.free_while_registered = FreeWhileRegistered::Cached;
        Ok(())
    }

    fn give_up(&mut self, kind: PageKind, bytes: u64, error: ErrorCode) {
        self.notes.push(format!(
            "the cache's threshold for {kind} pages was not found: {} answer {error}; {} kept",
            ByteCount(bytes),
            ByteCount(self.profile.cache_threshold(kind))
        ));
    }
}

/// Registers a block, frees it, and puts everything right again.
fn free_while_registered(platform: &mut dyn Platform, kind: PageKind, bytes: u64) -> Result<Free, ErrorCode> {
    let policy = match kind {
        PageKind::Ordinary => PagePolicy::NormalOnly,
        PageKind::Huge => PagePolicy::HugeOnly,
    };
    let base = platform.alloc(0, bytes, policy, Via::Hal)?;
    let registered = platform.register(RegisterCall::view(base, bytes));
    let freed = platform.free(base, Via::Hal);
    if registered.is_ok() {
        // It works on a block in the cache as well.
        let _ = platform.unregister(base, 0);
    }
    registered?;
    match freed {
        Ok(()) => Ok(Free::Cached),
        Err(error) if error == ErrorCode::from(DrvError::Busy) => {
            platform.free(base, Via::Hal)?;
            Ok(Free::Refused)
        }
        Err(error) => Err(error),
    }
}
