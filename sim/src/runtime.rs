//! The layers between a program and the driver: `rtMalloc` and `aclrtMalloc`, their page policies and error numbers.
//!
//! Source: the open CANN runtime, `memory.cpp` and `npu_driver_mem.cc` (`runtime.md` §2 and §3).

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::addr::{DeviceAddr, PageKind};
use crate::error::{AclError, DrvError};
use crate::host::SimHost;
use crate::profile::{Generation, HUGE_ABOVE};

/// Which pages an allocation asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PagePolicy {
    /// Over 1 MiB huge pages, and ordinary ones where that fails; else ordinary ones.
    #[default]
    HugeFirst,
    /// Huge pages at every size, or none.
    HugeOnly,
    /// Ordinary pages.
    NormalOnly,
}

/// A word that names no page policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("give huge_first, huge_only or normal_only")]
pub struct NoPagePolicy;

impl FromStr for PagePolicy {
    type Err = NoPagePolicy;

    fn from_str(word: &str) -> Result<Self, NoPagePolicy> {
        Self::ALL.into_iter().find(|policy| policy.name() == word).ok_or(NoPagePolicy)
    }
}

impl PagePolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::HugeFirst, Self::HugeOnly, Self::NormalOnly];

    /// Its name in cases, sweeps and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::HugeFirst => "huge_first",
            Self::HugeOnly => "huge_only",
            Self::NormalOnly => "normal_only",
        }
    }

    /// The page kinds to try for a size, in order.
    #[must_use]
    pub fn kinds(self, bytes: u64) -> &'static [PageKind] {
        match self {
            Self::HugeFirst if bytes > HUGE_ABOVE => &[PageKind::Huge, PageKind::Ordinary],
            Self::HugeOnly => &[PageKind::Huge],
            Self::HugeFirst | Self::NormalOnly => &[PageKind::Ordinary],
        }
    }
}

impl SimHost {
    /// `rtMalloc`: the policy's page kinds in order. Nothing is added to the size.
    ///
    /// # Errors
    ///
    /// The driver's answer to the last try.
    pub fn rt_malloc(&mut self, device: u32, bytes: u64, policy: PagePolicy) -> Result<DeviceAddr, DrvError> {
        let mut result = Err(DrvError::InvalidValue);
        for kind in policy.kinds(bytes) {
            result = self.alloc(device, *kind, bytes);
            if result.is_ok() {
                return result;
            }
        }
        result
    }

    /// `aclrtMalloc`: the size padded, then `rtMalloc`, all of it twice when it fails.
    ///
    /// # Errors
    ///
    /// `100000` for 0 bytes or a size whose padding overflows, else the driver's answer in ACL numbers.
    pub fn acl_malloc(&mut self, device: u32, bytes: u64, policy: PagePolicy) -> Result<DeviceAddr, AclError> {
        let padded = acl_padded_size(bytes, self.profile().driver.generation).ok_or(AclError::InvalidParam)?;
        self.rt_malloc(device, padded, policy)
            .or_else(|_| self.rt_malloc(device, padded, policy))
            .map_err(AclError::from)
    }

    /// `aclrtFree`: null is caught above the driver, everything else is what `halMemFree` says.
    ///
    /// # Errors
    ///
    /// `100000` for null, else the driver's answer in ACL numbers; a refusal because of a registration is `507899`.
    pub fn acl_free(&mut self, address: DeviceAddr) -> Result<(), AclError> {
        if address == DeviceAddr::NULL {
            return Err(AclError::InvalidParam);
        }
        self.free(address).map_err(AclError::from)
    }
}

/// What `aclrtMalloc` asks the runtime for: rounded up to 32, and on a2 and a3 32 more.
#[must_use]
pub fn acl_padded_size(bytes: u64, generation: Generation) -> Option<u64> {
    let append: u64 = match generation {
        Generation::V2 => 64,
        Generation::V3 => 32,
    };
    if bytes == 0 {
        return None;
    }
    Some((bytes.checked_add(append)? - 1) / 32 * 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_padding_is_that_of_the_runtimes_worked_sizes() {
        let padded = |bytes| acl_padded_size(bytes, Generation::V2).unwrap();
        assert_eq!(padded(1), 64);
        assert_eq!(padded(32), 64);
        assert_eq!(padded(33), 96);
        assert_eq!(padded(4096), 4128);
        assert_eq!(padded(1_048_544), 1_048_576);
        assert_eq!(padded(1_048_545), 1_048_608);
        assert_eq!(padded(2_097_152), 2_097_184);
        assert_eq!(acl_padded_size(0, Generation::V2), None);
        assert_eq!(acl_padded_size(u64::MAX - 62, Generation::V2), None);
        assert_eq!(acl_padded_size(33, Generation::V3), Some(64));
    }
}
