//! A subject that is opened by its path: a shared library that implements `hostview_subject.h`.
//!
//! It lives in a process of its own, with the simulated device beside it, and is sent one sequence after the other. What
//! crashes, ends the process, hangs or takes memory without end is a verdict on the sequence, and takes nobody along.

mod abi;
mod notes;
mod remote;
mod worker;

pub use abi::layout;
pub use remote::{Library, SubjectHome, SubjectLimits, beside};
pub use worker::serve;
