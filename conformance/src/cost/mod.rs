//! What it costs, and the decision that follows: the sweep, the fit, the verdict.
//!
//! A [`sweep`] measures registrations and copies over sizes, on any platform. A [`fit`] finds one constant per mechanism in
//! it: floors, a cost for each page registered and each host page unregistered. [`decide`] weighs the ways to serve a
//! workload's accesses with those constants, by a rule that the workload fixed beforehand.

pub mod decide;
pub mod fit;
pub mod model;
pub mod plot;
pub mod sweep;
pub mod table;
pub mod workload;

use std::fmt;

/// How a figure is known. Figures of different standing never share a column without this mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// Measured.
    Measured,
    /// From constants that were fitted to measurements.
    Fitted,
    /// What the mechanism predicts, and nobody has measured.
    Predicted,
    /// Taken over from elsewhere for want of anything better.
    Assumed,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Measured => "measured",
            Self::Fitted => "fitted",
            Self::Predicted => "prediction",
            Self::Assumed => "assumed",
        })
    }
}
