//! A driver library as the platform: `libascend_hal.so`, and `libascendcl.so` above it where there is one.
//!
//! The library is loaded by a process of its own ([`serve`]), and the suite talks to that process ([`RemotePlatform`]): a
//! call that crashes or hangs is then an answer like any other, and whatever happens the suite lives on. Nothing here knows
//! which library it met.

mod abi;
mod drop_in;
mod find;
mod open;
mod platform;
mod probe;
mod remote;
mod site;
mod wire;
mod worker;

pub use abi::{Missing, SYMBOLS, Symbol};
pub use drop_in::{DropIn, ObservedPlatform, Published};
pub use find::{CannotOpen, Choice, Grant, Layer, Paths, find};
pub use platform::{LibraryPlatform, Limits};
pub use remote::{RemotePlatform, Summons, Watch};
pub use site::LibrarySite;
pub use wire::{Leftover, MachineFacts};
pub use worker::serve;
