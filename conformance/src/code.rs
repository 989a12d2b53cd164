//! Error numbers as a caller sees them, whichever layer they come from.

use std::fmt;

use hostview_sim::{AclError, DrvError};
use serde::{Deserialize, Serialize};

/// A driver's or a runtime's error number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// The number of a name in the headers.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        DrvError::from_name(name).map(Self::from).or_else(|| AclError::from_name(name).map(Self::from))
    }

    /// Its name in the headers, when it has one.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        DrvError::from_code(self.0).map(DrvError::name).or_else(|| AclError::from_code(self.0).map(AclError::name))
    }

    /// Every name that a case may use.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let driver = DrvError::ALL.iter().map(|error| error.name());
        driver.chain(AclError::ALL.iter().map(|error| error.name()))
    }
}

impl From<DrvError> for ErrorCode {
    fn from(error: DrvError) -> Self {
        Self(error.code())
    }
}

impl From<AclError> for ErrorCode {
    fn from(error: AclError) -> Self {
        Self(error.code())
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "error {}", self.0),
        }
    }
}
