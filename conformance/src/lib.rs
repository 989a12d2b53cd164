//! Named laws for host views of device memory, and the suite that judges a view cache by them.
//!
//! A [`case::Case`] is a sequence with what must come of it. [`driver_run::DriverRun`] runs one against a
//! [`platform::Platform`], [`cache_run::CacheRun`] runs one through a [`subject::Subject`] while the V-laws watch.
//! [`check::check`] draws sequences and shrinks what fails; [`replay`] runs files.

pub mod cache_run;
pub mod case;
pub mod check;
mod code;
pub mod cost;
#[path = "../subjects/devices/mod.rs"]
pub mod devices;
pub mod driver_run;
pub mod expect;
pub mod explain;
pub mod gate;
pub mod generate;
mod json;
pub mod laws;
pub mod library;
mod meeting;
pub mod mutants;
#[path = "../subjects/plant.rs"]
mod plant;
pub mod platform;
pub mod recorder;
pub mod replay;
pub mod report;
mod sequence;
pub mod shorten;
pub mod shrink;
pub mod site;
pub mod subject;

pub use code::ErrorCode;
