//! Idle ranges of addresses, found by size: exactly that size and newest first, else the smallest larger one.
//!
//! Source: `multi_rbtree.c` and `devmm_rbtree.c`: ranges of one size hang in a list, put in and taken out at its tail.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The idle ranges of one heap.
#[derive(Debug, Default, Clone)]
pub(crate) struct IdleRanges {
    by_size: BTreeMap<(u64, Reverse<u64>), u64>,
    by_start: BTreeMap<u64, (u64, u64)>,
    total: u64,
    stamp: u64,
}

impl IdleRanges {
    pub(crate) fn of(start: u64, size: u64) -> Self {
        let mut ranges = Self::default();
        ranges.insert(start, size);
        ranges
    }

    /// Puts a range in, as the newest of its size.
    pub(crate) fn insert(&mut self, start: u64, size: u64) {
        self.stamp += 1;
        self.by_size.insert((size, Reverse(self.stamp)), start);
        self.by_start.insert(start, (size, self.stamp));
        self.total += size;
    }

    /// Takes a range out by its start; its size.
    pub(crate) fn remove(&mut self, start: u64) -> Option<u64> {
        let (size, stamp) = self.by_start.remove(&start)?;
        self.by_size.remove(&(size, Reverse(stamp)));
        self.total -= size;
        Some(size)
    }

    /// The range that an allocation of `size` is cut from: its start and size.
    pub(crate) fn best_fit(&self, size: u64) -> Option<(u64, u64)> {
        self.by_size.range((size, Reverse(u64::MAX))..).next().map(|((size, _), start)| (*start, *size))
    }

    /// Puts a range in and joins it with the idle ranges that touch it.
    pub(crate) fn insert_merged(&mut self, start: u64, size: u64) {
        let (mut start, mut size) = (start, size);
        let left = self.by_start.range(..start).next_back().map(|(from, (len, _))| (*from, *len));
        if let Some((from, len)) = left.filter(|(from, len)| from + len == start) {
            self.remove(from);
            (start, size) = (from, size + len);
        }
        if let Some(len) = self.remove(start + size) {
            size += len;
        }
        self.insert(start, size);
    }

    /// From small to large, and of one size the oldest first.
    pub(crate) fn smallest_oldest_first(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut ranges: Vec<_> = self.by_size.iter().map(|((size, stamp), start)| (*size, stamp.0, *start)).collect();
        ranges.sort_unstable();
        ranges.into_iter().map(|(size, _, start)| (start, size))
    }

    /// Bytes in all ranges.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Every range in address order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(start, (size, _))| (*start, *size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_the_exact_size_comes_first() {
        let mut ranges = IdleRanges::default();
        ranges.insert(0, 10);
        ranges.insert(100, 10);
        ranges.insert(200, 11);
        assert_eq!(ranges.best_fit(10), Some((100, 10)));
    }

    #[test]
    fn without_the_exact_size_the_smallest_larger_one_is_taken_newest_first() {
        let mut ranges = IdleRanges::default();
        ranges.insert(0, 30);
        ranges.insert(100, 20);
        ranges.insert(200, 20);
        assert_eq!(ranges.best_fit(15), Some((200, 20)));
        assert_eq!(ranges.best_fit(31), None);
    }

    #[test]
    fn neighbours_join_on_both_sides() {
        let mut ranges = IdleRanges::default();
        ranges.insert(0, 10);
        ranges.insert(20, 10);
        ranges.insert_merged(10, 10);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 30)]);
        assert_eq!(ranges.total(), 30);
    }
}
