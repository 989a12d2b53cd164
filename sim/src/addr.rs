//! Addresses and page sizes: a type for each address space, checked arithmetic in one place.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(u64);

        impl $name {
            /// The null address.
            pub const NULL: Self = Self(0);

            /// The address with this value.
            #[must_use]
            pub const fn new(value: u64) -> Self {
                Self(value)
            }

            /// The address as a number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// The address `bytes` further on, or `None` past the end of the address space.
            #[must_use]
            pub fn checked_add(self, bytes: u64) -> Option<Self> {
                self.0.checked_add(bytes).map(Self)
            }

            /// The address `bytes` further on, wrapping as a C pointer would.
            #[must_use]
            pub fn wrapping_add(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            /// How many bytes this address lies behind `base`, or `None` when it lies before it.
            #[must_use]
            pub fn offset_from(self, base: Self) -> Option<u64> {
                self.0.checked_sub(base.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                let value = text.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
                value.map(Self).ok_or_else(|| D::Error::custom(format!("`{text}` is no address; give it as 0x12c0")))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

address! {
    /// An address where the driver means device memory: a base that `halMemAlloc` returned, or anything that a caller
    /// passes in its place.
    DeviceAddr
}

address! {
    /// An address of the host's side, as the driver numbers it: what `halHostRegister` returns through `dst`.
    ///
    /// On a real device the two numbers are equal; nothing in this crate relies on that.
    HostAddr
}

/// A page size in bytes: a power of two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct PageSize(u64);

/// A number that is no page size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is no page size; give a power of two of at least 4096")]
pub struct NoPageSize(u64);

impl TryFrom<u64> for PageSize {
    type Error = NoPageSize;

    /// What a profile may hold: no machine of this kind has pages under 4 KiB.
    fn try_from(bytes: u64) -> Result<Self, NoPageSize> {
        Self::new(bytes).filter(|_| bytes >= 4096).ok_or(NoPageSize(bytes))
    }
}

impl From<PageSize> for u64 {
    fn from(page: PageSize) -> Self {
        page.0
    }
}

impl PageSize {
    /// A page of `bytes`, or `None` when that is no power of two.
    #[must_use]
    pub const fn new(bytes: u64) -> Option<Self> {
        if bytes.is_power_of_two() { Some(Self(bytes)) } else { None }
    }

    /// The size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// `value` rounded up to whole pages, or `None` where that passes the end of the address space.
    #[must_use]
    pub const fn round_up(self, value: u64) -> Option<u64> {
        match value.checked_add(self.0 - 1) {
            Some(sum) => Some(sum & !(self.0 - 1)),
            None => None,
        }
    }

    /// `value` rounded down to whole pages.
    #[must_use]
    pub const fn round_down(self, value: u64) -> u64 {
        value & !(self.0 - 1)
    }

    /// Whether `value` is a multiple of the page.
    #[must_use]
    pub const fn divides(self, value: u64) -> bool {
        value & (self.0 - 1) == 0
    }

    /// How many pages `bytes` touch when they begin on a page.
    #[must_use]
    pub const fn pages(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.0)
    }
}

/// What kind of page an allocation is made of. A property of the allocation, not of the host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PageKind {
    /// The device's ordinary page, 4 KiB on the devices met so far.
    Ordinary,
    /// The device's huge page, 2 MiB.
    Huge,
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ordinary => "ordinary",
            Self::Huge => "huge",
        })
    }
}

/// A number of bytes as a person says it: `1280 B`, `64 KiB`, `1 MiB + 1 B`, `6.72 GiB`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteCount(pub u64);

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        const NEAR: u64 = 64;
        let bytes = self.0;
        if let Some((unit, name)) = UNITS.iter().find(|(unit, _)| bytes > 0 && bytes.is_multiple_of(*unit)) {
            return write!(f, "{} {name}", bytes / unit);
        }
        let Some((unit, name)) = UNITS[..3].iter().find(|(unit, _)| bytes + NEAR > *unit) else {
            return write!(f, "{bytes} B");
        };
        let nearest = (bytes + unit / 2) / unit;
        match i128::from(bytes) - i128::from(nearest * unit) {
            over @ 1..=63 => write!(f, "{nearest} {name} + {over} B"),
            under @ -63..=-1 => write!(f, "{nearest} {name} - {} B", -under),
            _ => write!(f, "{:.2} {name}", bytes as f64 / *unit as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_size_is_a_power_of_two() {
        assert!(PageSize::new(4096).is_some());
        assert!(PageSize::new(0).is_none());
        assert!(PageSize::new(4097).is_none());
    }

    #[test]
    fn rounding_never_wraps() {
        let page = PageSize::new(4096).unwrap();
        assert_eq!(page.round_up(1), Some(4096));
        assert_eq!(page.round_up(4096), Some(4096));
        assert_eq!(page.round_up(u64::MAX), None);
    }

    #[test]
    fn bytes_are_said_as_a_person_would() {
        let said = |bytes| ByteCount(bytes).to_string();
        assert_eq!(said(1), "1 B");
        assert_eq!(said(1280), "1280 B");
        assert_eq!(said(4096), "4 KiB");
        assert_eq!(said(4097), "4097 B");
        assert_eq!(said(65536), "64 KiB");
        assert_eq!(said(1_048_577), "1 MiB + 1 B");
        assert_eq!(said(1_048_544), "1 MiB - 32 B");
        assert_eq!(said(40_860_162_880), "38.05 GiB");
    }
}
