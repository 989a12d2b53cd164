//! Which allocation an address belongs to.

use std::collections::BTreeMap;

/// A range of device memory: an allocation as its owner asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// Where it begins.
    pub base: u64,
    /// How many bytes were asked for.
    pub bytes: u64,
}

/// Why an address names no allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// A null address.
    #[error("the address is null")]
    Null,
    /// A range of 0 bytes.
    #[error("the range is empty")]
    Empty,
    /// Past the end of the address space.
    #[error("{address:#x} and {bytes} bytes wrap past the end of the address space")]
    Wraps {
        /// The address.
        address: u64,
        /// The length.
        bytes: u64,
    },
    /// No allocation is there.
    #[error("{address:#x} lies in no tracked allocation")]
    Untracked {
        /// The address.
        address: u64,
    },
    /// The range runs past the end of its allocation.
    #[error("{address:#x} and {bytes} bytes run past the end of the allocation at {base:#x} of {size} bytes")]
    Overruns {
        /// The address.
        address: u64,
        /// The length.
        bytes: u64,
        /// The allocation's base.
        base: u64,
        /// The allocation's size.
        size: u64,
    },
    /// An address inside an allocation where its base is meant.
    #[error("{address:#x} lies inside the allocation at {base:#x} and is not its base")]
    Interior {
        /// The address.
        address: u64,
        /// The allocation's base.
        base: u64,
    },
    /// Two allocations at once in one place.
    #[error("{address:#x} and {bytes} bytes overlap the allocation at {base:#x}")]
    Overlaps {
        /// The new range.
        address: u64,
        /// Its length.
        bytes: u64,
        /// The allocation that is there.
        base: u64,
    },
}

/// Allocations by address, each with what its owner keeps about it.
#[derive(Clone, Debug)]
pub struct Table<T> {
    by_base: BTreeMap<u64, (u64, T)>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { by_base: BTreeMap::new() }
    }
}

impl<T> Table<T> {
    /// Adds an allocation.
    ///
    /// # Errors
    ///
    /// Null, empty, wrapping, or overlapping one that is there: nothing is changed.
    pub fn insert(&mut self, range: Range, value: T) -> Result<(), RangeError> {
        let Range { base: address, bytes } = range;
        let end = check(address, bytes)?;
        let before = self.by_base.range(..end).next_back().filter(|(base, (size, _))| *base + *size > address);
        if let Some((base, _)) = before {
            return Err(RangeError::Overlaps { address, bytes, base: *base });
        }
        self.by_base.insert(address, (bytes, value));
        Ok(())
    }

    /// The allocation that holds all of a range.
    ///
    /// # Errors
    ///
    /// Which of null, empty, wrapping, untracked or overrunning the range is.
    pub fn find(&mut self, address: u64, bytes: u64) -> Result<(Range, &mut T), RangeError> {
        let end = check(address, bytes)?;
        let (base, (size, value)) =
            self.by_base.range_mut(..=address).next_back().ok_or(RangeError::Untracked { address })?;
        let (base, size) = (*base, *size);
        if address >= base + size {
            return Err(RangeError::Untracked { address });
        }
        if end > base + size {
            return Err(RangeError::Overruns { address, bytes, base, size });
        }
        Ok((Range { base, bytes: size }, value))
    }

    /// The allocation that begins at `base`.
    ///
    /// # Errors
    ///
    /// Which of null, untracked or interior the address is.
    pub fn at(&mut self, base: u64) -> Result<(Range, &mut T), RangeError> {
        let (range, value) = self.find(base, 1)?;
        if range.base != base {
            return Err(RangeError::Interior { address: base, base: range.base });
        }
        Ok((range, value))
    }

    /// Takes the allocation that begins at `base` out.
    pub fn remove(&mut self, base: u64) -> Option<T> {
        self.by_base.remove(&base).map(|(_, value)| value)
    }

    /// Every allocation, in address order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Range, &mut T)> {
        self.by_base.iter_mut().map(|(base, (bytes, value))| (Range { base: *base, bytes: *bytes }, value))
    }

    /// Every allocation, in address order.
    pub fn iter(&self) -> impl Iterator<Item = (Range, &T)> {
        self.by_base.iter().map(|(base, (bytes, value))| (Range { base: *base, bytes: *bytes }, value))
    }
}

fn check(address: u64, bytes: u64) -> Result<u64, RangeError> {
    if address == 0 {
        return Err(RangeError::Null);
    }
    if bytes == 0 {
        return Err(RangeError::Empty);
    }
    address.checked_add(bytes).ok_or(RangeError::Wraps { address, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table<char> {
        let mut table = Table::default();
        table.insert(Range { base: 100, bytes: 50 }, 'a').unwrap();
        table.insert(Range { base: 150, bytes: 10 }, 'b').unwrap();
        table
    }

    #[test]
    fn an_address_finds_its_allocation_up_to_the_last_byte() {
        let mut table = table();
        assert_eq!(*table.find(100, 50).unwrap().1, 'a');
        assert_eq!(*table.find(149, 1).unwrap().1, 'a');
        assert_eq!(*table.find(150, 1).unwrap().1, 'b');
    }

    #[test]
    fn what_names_no_allocation_says_why() {
        let mut table = table();
        let mut why = |address, bytes| table.find(address, bytes).unwrap_err();
        assert_eq!(why(0, 1), RangeError::Null);
        assert_eq!(why(100, 0), RangeError::Empty);
        assert_eq!(why(99, 1), RangeError::Untracked { address: 99 });
        assert_eq!(why(160, 1), RangeError::Untracked { address: 160 });
        assert_eq!(why(140, 11), RangeError::Overruns { address: 140, bytes: 11, base: 100, size: 50 });
        assert_eq!(why(140, u64::MAX), RangeError::Wraps { address: 140, bytes: u64::MAX });
    }

    #[test]
    fn two_allocations_cannot_lie_in_one_place() {
        let mut table = table();
        for (base, bytes) in [(90, 11), (100, 1), (120, 5), (149, 1), (99, 100)] {
            assert!(matches!(table.insert(Range { base, bytes }, 'c'), Err(RangeError::Overlaps { .. })));
        }
        table.insert(Range { base: 90, bytes: 10 }, 'c').unwrap();
    }
}
