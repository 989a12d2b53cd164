//! The driver's user-space allocator: heaps, the cache of freed blocks, reuse, splitting and merging.
//!
//! Evidence for every rule: source, `devmm_virt_com_heap.c`, `devmm_virt_interface.c`, `devmm_virt_base_heap.c` (v2), and
//! the 240 sequences of `driver-sequences.jsonl`, which give the addresses that come of it. v3's allocator is known by its
//! thresholds alone (`driver-source.md` §8.4); that it places blocks as v2 does is assumed.

use std::collections::BTreeMap;

use crate::addr::{DeviceAddr, PageKind, PageSize};
use crate::idle::IdleRanges;
use crate::kernel::{Kernel, KernelBlock};
use crate::memory::Memory;
use crate::profile::{KERNEL_BLOCK, OWN_HEAP_ABOVE, Profile, SHRINK_SLACK, SPLIT_MIN_BYTES, SPLIT_MIN_PERCENT};
use crate::rules::{self, Rule};

/// An allocation as the user has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// Its base.
    pub base: DeviceAddr,
    /// The size that was asked for.
    pub requested: u64,
    /// The size that the allocator keeps for it.
    pub size: u64,
    /// Its pages.
    pub kind: PageKind,
    /// Its device.
    pub device: u32,
    /// The kernel block that it lies in.
    pub block: DeviceAddr,
    /// That block's size.
    pub block_size: u64,
}

/// A part of a kernel block: somebody's allocation, or idle in the cache.
#[derive(Clone, Copy, Debug)]
struct Piece {
    size: u64,
    requested: u64,
    block: u64,
    block_size: u64,
}

/// The address of an allocation and the rule that gave it, or the rule that refused it.
type Allocated = Result<(DeviceAddr, &'static Rule), &'static Rule>;

/// How a free ended: by which rule, and what came of it besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freed {
    pub(crate) rule: &'static Rule,
    pub(crate) besides: Option<&'static Rule>,
}

#[derive(Debug)]
struct Heap {
    start: u64,
    size: u64,
    kind: PageKind,
    device: u32,
    /// Made for one allocation over 512 MiB; takes no other.
    own: bool,
    unmapped: IdleRanges,
    cached: IdleRanges,
    idle: BTreeMap<u64, Piece>,
    live: BTreeMap<u64, Piece>,
    /// Bytes of live blocks that a free would cache, now and at most; the shrink follows them.
    cacheable: u64,
    cacheable_peak: u64,
}

/// The heaps of one device and page kind, newest first.
type HeapList = Vec<u64>;

#[derive(Debug)]
pub(crate) struct Heaps {
    by_start: BTreeMap<u64, Heap>,
    lists: BTreeMap<(u32, PageKind), HeapList>,
    ranges: IdleRanges,
    heap_size: PageSize,
    pages: [PageSize; 2],
    thresholds: [u64; 2],
    adaptive: bool,
}

impl Heaps {
    pub(crate) fn new(profile: &Profile, window: &std::ops::Range<u64>) -> Self {
        Self {
            by_start: BTreeMap::new(),
            lists: BTreeMap::new(),
            ranges: IdleRanges::of(window.start, window.end - window.start),
            heap_size: profile.driver.heap_size,
            pages: [profile.page(PageKind::Ordinary), profile.page(PageKind::Huge)],
            thresholds: [profile.cache_threshold(PageKind::Ordinary), profile.cache_threshold(PageKind::Huge)],
            adaptive: profile.driver.adaptive_threshold,
        }
    }

    fn page(&self, kind: PageKind) -> PageSize {
        self.pages[kind as usize]
    }

    fn threshold(&self, kind: PageKind) -> u64 {
        self.thresholds[kind as usize]
    }

    fn list(&mut self, device: u32, kind: PageKind) -> &mut HeapList {
        self.lists.entry((device, kind)).or_default()
    }

    /// Allocates `bytes` (over 0) of one page kind.
    ///
    /// Order: the cached pieces of all heaps, then unmapped room of all heaps, then a new heap.
    pub(crate) fn allocate(&mut self, kernel: &mut Kernel, device: u32, kind: PageKind, bytes: u64) -> Allocated {
        if bytes > OWN_HEAP_ABOVE {
            return self.allocate_own_heap(kernel, device, kind, bytes);
        }
        let size = self.page(kind).round_up(bytes).ok_or(&rules::ALLOC_NO_MEMORY)?;
        let list = self.list(device, kind).clone();
        if size <= self.threshold(kind) {
            let found = list.iter().find_map(|start| Some((*start, self.by_start[start].cached.best_fit(size)?)));
            if let Some((heap, (at, _))) = found {
                return Ok((self.take_cached(heap, at, size, bytes), &rules::ALLOC_CACHED));
            }
        }
        let block = KERNEL_BLOCK.round_up(size).ok_or(&rules::ALLOC_NO_MEMORY)?;
        let found = list.iter().find_map(|start| Some((*start, self.by_start[start].unmapped.best_fit(size)?)));
        let ((heap, room), rule) = if let Some(found) = found {
            (found, &rules::ALLOC_BLOCK)
        } else {
            let heap = self.new_heap(device, kind, self.heap_size.bytes(), false).ok_or(&rules::ALLOC_NO_ADDRESSES)?;
            ((heap, (heap, self.heap_size.bytes())), &rules::ALLOC_NEW_HEAP)
        };
        Ok((self.map_block(kernel, heap, room, block, size, bytes)?, rule))
    }

    fn take_cached(&mut self, heap: u64, at: u64, size: u64, requested: u64) -> DeviceAddr {
        let threshold = self.threshold(self.by_start[&heap].kind);
        let heap = self.by_start.get_mut(&heap).expect("a heap of the list");
        heap.cached.remove(at);
        let piece = heap.idle.remove(&at).expect("cached ranges are idle pieces");
        if piece.size > size {
            let rest = Piece { size: piece.size - size, requested: 0, ..piece };
            heap.put_idle(at + size, rest);
        }
        heap.put_live(at, Piece { size, requested, ..piece }, threshold);
        DeviceAddr::new(at)
    }

    fn map_block(
        &mut self,
        kernel: &mut Kernel,
        heap: u64,
        (at, room): (u64, u64),
        block: u64,
        size: u64,
        requested: u64,
    ) -> Result<DeviceAddr, &'static Rule> {
        let threshold = self.threshold(self.by_start[&heap].kind);
        let heap = self.by_start.get_mut(&heap).expect("a heap of the list");
        heap.unmapped.remove(at);
        if room > block {
            heap.unmapped.insert(at + block, room - block);
        }
        // Source: when the kernel refuses, the addresses are not put back: they stay unused while the heap lives.
        kernel.map(heap.device, at, block, heap.kind).map_err(|_| &rules::ALLOC_NO_MEMORY)?;
        let rest = block - size;
        let split = rest >= SPLIT_MIN_BYTES && rest * 100 / block >= SPLIT_MIN_PERCENT && block <= threshold;
        let piece = Piece { size: if split { size } else { block }, requested, block: at, block_size: block };
        if split {
            heap.put_idle(at + size, Piece { size: rest, requested: 0, ..piece });
        }
        heap.put_live(at, piece, threshold);
        Ok(DeviceAddr::new(at))
    }

    fn allocate_own_heap(&mut self, kernel: &mut Kernel, device: u32, kind: PageKind, bytes: u64) -> Allocated {
        let size = self.page(kind).round_up(bytes).ok_or(&rules::ALLOC_HEAP_TOO_LARGE)?;
        let heap_size = self.heap_size.round_up(bytes).ok_or(&rules::ALLOC_HEAP_TOO_LARGE)?;
        if heap_size > kernel.memory().checked_next_power_of_two().unwrap_or(u64::MAX) {
            return Err(&rules::ALLOC_HEAP_TOO_LARGE);
        }
        let start = self.new_heap(device, kind, heap_size, true).ok_or(&rules::ALLOC_NO_ADDRESSES)?;
        if kernel.map(device, start, size, kind).is_err() {
            self.drop_heap(start);
            return Err(&rules::ALLOC_NO_MEMORY);
        }
        let heap = self.by_start.get_mut(&start).expect("made above");
        heap.live.insert(start, Piece { size, requested: bytes, block: start, block_size: size });
        Ok((DeviceAddr::new(start), &rules::ALLOC_OWN_HEAP))
    }

    fn new_heap(&mut self, device: u32, kind: PageKind, size: u64, own: bool) -> Option<u64> {
        let (start, room) = self.ranges.best_fit(size)?;
        self.ranges.remove(start);
        if room > size {
            self.ranges.insert(start + size, room - size);
        }
        let unmapped = if own { IdleRanges::default() } else { IdleRanges::of(start, size) };
        let heap = Heap {
            start,
            size,
            kind,
            device,
            own,
            unmapped,
            cached: IdleRanges::default(),
            idle: BTreeMap::new(),
            live: BTreeMap::new(),
            cacheable: 0,
            cacheable_peak: 0,
        };
        self.by_start.insert(start, heap);
        self.list(device, kind).insert(0, start);
        Some(start)
    }

    fn drop_heap(&mut self, start: u64) -> Heap {
        let heap = self.by_start.remove(&start).expect("a heap of the list");
        self.list(heap.device, heap.kind).retain(|other| *other != start);
        self.ranges.insert_merged(start, heap.size);
        heap
    }

    /// Frees what begins exactly at `at`.
    pub(crate) fn free(
        &mut self,
        kernel: &mut Kernel,
        memory: &mut Memory,
        at: DeviceAddr,
    ) -> Result<Freed, &'static Rule> {
        let start = self.heap_at(at).ok_or(&rules::FREE_UNKNOWN)?;
        let heap = &self.by_start[&start];
        let piece = *heap.live.get(&at.get()).ok_or(&rules::FREE_UNKNOWN)?;
        if heap.own {
            let block = kernel.unmap(piece.block).map_err(|_| &rules::FREE_OWN_HEAP_HELD)?;
            give_back(memory, &block);
            self.drop_heap(start);
            return Ok(Freed { rule: &rules::FREE_OWN_HEAP, besides: None });
        }
        let (device, kind, threshold) = (heap.device, heap.kind, self.threshold(heap.kind));
        let heap = self.by_start.get_mut(&start).expect("found above");
        let (rule, shrank) = if piece.size == piece.block_size && piece.size > threshold {
            let block = kernel.unmap(piece.block).map_err(|_| &rules::FREE_BLOCK_HELD)?;
            give_back(memory, &block);
            heap.take_live(at.get(), threshold);
            heap.unmapped.insert_merged(piece.block, piece.block_size);
            (&rules::FREE_BLOCK, false)
        } else {
            heap.take_live(at.get(), threshold);
            let whole = heap.cache(at.get(), piece);
            (&rules::FREE_CACHED, whole && heap.shrink(kernel, memory, threshold, self.adaptive))
        };
        let dropped = self.drop_idle_heaps(kernel, memory, device, kind);
        let besides = if dropped { Some(&rules::HEAP_GOES) } else { shrank.then_some(&rules::CACHE_SHRINKS) };
        Ok(Freed { rule, besides })
    }

    /// Once a list holds more than one heap, those without a live allocation go, registered pages and all: whether one went.
    fn drop_idle_heaps(&mut self, kernel: &mut Kernel, memory: &mut Memory, device: u32, kind: PageKind) -> bool {
        let list = self.list(device, kind).clone();
        if list.len() <= 1 {
            return false;
        }
        let mut dropped = false;
        for start in list {
            let heap = &self.by_start[&start];
            if heap.own || !heap.live.is_empty() {
                continue;
            }
            let heap = self.drop_heap(start);
            for block in heap.blocks() {
                give_back(memory, &kernel.unmap_by_force(block));
            }
            dropped = true;
        }
        dropped
    }

    /// All heaps of a device go: what closing it does.
    pub(crate) fn close(&mut self, kernel: &mut Kernel, memory: &mut Memory, device: u32) {
        let of_device: Vec<u64> =
            self.by_start.values().filter(|heap| heap.device == device).map(|heap| heap.start).collect();
        for start in of_device {
            let heap = self.drop_heap(start);
            for block in heap.blocks() {
                let block = kernel.unmap_by_force(block);
                kernel.unmark_all(&block);
                give_back(memory, &block);
            }
        }
    }

    fn heap_at(&self, at: DeviceAddr) -> Option<u64> {
        let (start, heap) = self.by_start.range(..=at.get()).next_back()?;
        (at.get() < heap.start + heap.size).then_some(*start)
    }

    /// Where the heap that holds an address ends, when one does.
    pub(crate) fn heap_end(&self, at: DeviceAddr) -> Option<u64> {
        let heap = &self.by_start[&self.heap_at(at)?];
        Some(heap.start + heap.size)
    }

    /// The live allocation that holds an address.
    pub(crate) fn allocation_at(&self, at: DeviceAddr) -> Option<Allocation> {
        let heap = &self.by_start[&self.heap_at(at)?];
        let (base, piece) = heap.live.range(..=at.get()).next_back()?;
        (at.get() < base + piece.size).then(|| heap.allocation(*base, piece))
    }

    /// Every live allocation, in address order.
    pub(crate) fn allocations(&self) -> impl Iterator<Item = Allocation> + '_ {
        self.by_start.values().flat_map(|heap| heap.live.iter().map(|(base, piece)| heap.allocation(*base, piece)))
    }

    /// The state of the heaps as a person reads it, one line each; for the first difference of a replay.
    pub(crate) fn describe(&self, kernel: &Kernel) -> Vec<String> {
        let mut lines = Vec::new();
        for heap in self.by_start.values() {
            let what = if heap.own { "own heap" } else { "heap" };
            lines.push(format!(
                "{what} {:#x}: {} pages, device {}, {} cached of {} bytes' threshold",
                heap.start,
                heap.kind,
                heap.device,
                heap.cached.total(),
                self.threshold(heap.kind)
            ));
            let mut pieces: Vec<_> = heap.live.iter().map(|(at, piece)| (*at, "live", piece)).collect();
            pieces.extend(heap.idle.iter().map(|(at, piece)| (*at, "idle", piece)));
            pieces.sort_by_key(|(at, ..)| *at);
            for (at, state, piece) in pieces {
                let first = if kernel.is_first(at) { ", registered from here" } else { "" };
                lines.push(format!(
                    "  {at:#x} {state} {} bytes in block {:#x} of {}{first}",
                    piece.size, piece.block, piece.block_size
                ));
            }
            for (at, size) in heap.unmapped.iter() {
                lines.push(format!("  {at:#x} unmapped {size} bytes"));
            }
        }
        lines
    }
}

impl Heap {
    fn put_idle(&mut self, at: u64, piece: Piece) {
        self.cached.insert(at, piece.size);
        self.idle.insert(at, piece);
    }

    fn take_idle(&mut self, at: u64) -> Option<Piece> {
        self.cached.remove(at)?;
        self.idle.remove(&at)
    }

    fn put_live(&mut self, at: u64, piece: Piece, threshold: u64) {
        if piece.size <= threshold {
            self.cacheable += piece.size;
            self.cacheable_peak = self.cacheable_peak.max(self.cacheable);
        }
        self.live.insert(at, piece);
    }

    fn take_live(&mut self, at: u64, threshold: u64) {
        let piece = self.live.remove(&at).expect("a live piece");
        if piece.size <= threshold {
            self.cacheable -= piece.size;
        }
    }

    /// Puts a freed piece into the cache, joined with idle neighbours of the same kernel block: whether it is the whole block
    /// now.
    fn cache(&mut self, at: u64, piece: Piece) -> bool {
        let (mut at, mut piece) = (at, Piece { requested: 0, ..piece });
        let right =
            self.idle.get(&(at + piece.size)).filter(|right| right.block == piece.block).map(|right| right.size);
        if let Some(size) = right {
            self.take_idle(at + piece.size);
            piece.size += size;
        }
        let left = self.idle.range(..at).next_back().map(|(from, left)| (*from, *left));
        if let Some((from, left)) = left.filter(|(from, left)| left.block == piece.block && from + left.size == at) {
            self.take_idle(from);
            (at, piece.size) = (from, piece.size + left.size);
        }
        self.put_idle(at, piece);
        piece.size == piece.block_size
    }

    /// Gives whole idle blocks back to the kernel once the cache is well over its threshold: smallest first, down to the
    /// threshold. A block that the kernel refuses goes back into the cache and ends it. Whether it was over.
    ///
    /// v2's threshold follows the heap's use: half of what is live and what was at most, but at most twice what is live, and
    /// never under the fixed one. (The peak also decays by wall time on a device; here time stands still.)
    fn shrink(&mut self, kernel: &mut Kernel, memory: &mut Memory, fixed: u64, adaptive: bool) -> bool {
        let middle = u64::midpoint(self.cacheable_peak, self.cacheable);
        let twice_live = self.cacheable * 2;
        let threshold = if adaptive && middle > fixed && twice_live > fixed { middle.min(twice_live) } else { fixed };
        // Source: it also asks whether the freed block or the cache is over the threshold, which is so by then.
        if self.cached.total() < (threshold * 2).min(threshold + SHRINK_SLACK) {
            return false;
        }
        let whole: Vec<(u64, u64)> =
            self.cached.smallest_oldest_first().filter(|(at, size)| self.idle[at].block_size == *size).collect();
        for (at, size) in whole {
            if self.cached.total() - size <= threshold {
                break;
            }
            let piece = self.take_idle(at).expect("listed above");
            match kernel.unmap(at) {
                Ok(block) => {
                    give_back(memory, &block);
                    self.unmapped.insert_merged(at, size);
                }
                Err(_) => {
                    self.put_idle(at, piece);
                    break;
                }
            }
        }
        true
    }

    fn blocks(&self) -> Vec<u64> {
        let mut blocks: Vec<u64> = self.live.values().chain(self.idle.values()).map(|piece| piece.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }

    fn allocation(&self, base: u64, piece: &Piece) -> Allocation {
        Allocation {
            base: DeviceAddr::new(base),
            requested: piece.requested,
            size: piece.size,
            kind: self.kind,
            device: self.device,
            block: DeviceAddr::new(piece.block),
            block_size: piece.block_size,
        }
    }
}

/// A block that the kernel has back is out of the host's reach, whatever was registered in it.
fn give_back(memory: &mut Memory, block: &KernelBlock) {
    memory.discard(DeviceAddr::new(block.start), block.end - block.start);
}
