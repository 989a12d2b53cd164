//! The driver's kernel side: which memory is mapped, and the marks that a registration leaves on its pages.
//!
//! The kernel knows blocks of whole 2 MiB, not the user's allocations: everything between a user's block and the kernel's
//! is the user-space allocator's affair.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::addr::{DeviceAddr, PageKind, PageSize};
use crate::error::DrvError;

/// A range of device memory that the kernel has mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelBlock {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: PageKind,
    pub(crate) device: u32,
    /// 1 for the allocation itself and 1 for each registration that begins in the block.
    pub(crate) references: u32,
}

impl KernelBlock {
    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

const FIRST: u8 = 1;
const MAPPED: u8 = 2;

/// The marks of one heap's worth of addresses. They belong to the addresses: they outlive the heap that had them.
///
/// Evidence: source for the marks (`svm_master_remote_map.c`); trace 145 of `driver-sequences.jsonl` for their outliving a
/// heap: there a heap of ordinary pages is destroyed under a registration, and the next heap at these addresses meets the
/// old marks. By the source the whole bitmap goes with the heap; the traces win. That huge heaps do the same is assumed.
#[derive(Clone, Debug)]
struct Marks {
    page: PageSize,
    flags: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Kernel {
    blocks: BTreeMap<u64, KernelBlock>,
    marks: BTreeMap<u64, Marks>,
    heap_size: PageSize,
    ordinary: PageSize,
    huge: PageSize,
    memory: u64,
    used: Vec<u64>,
}

impl Kernel {
    pub(crate) fn new(devices: u32, memory: u64, heap_size: PageSize, ordinary: PageSize, huge: PageSize) -> Self {
        let used = vec![0; devices as usize];
        Self { blocks: BTreeMap::new(), marks: BTreeMap::new(), heap_size, ordinary, huge, memory, used }
    }

    pub(crate) fn page(&self, kind: PageKind) -> PageSize {
        match kind {
            PageKind::Ordinary => self.ordinary,
            PageKind::Huge => self.huge,
        }
    }

    /// Device memory in use on a device, in bytes.
    pub(crate) fn used(&self, device: u32) -> u64 {
        self.used[device as usize]
    }

    pub(crate) fn memory(&self) -> u64 {
        self.memory
    }

    /// Maps a block. Source: `devmm_proc_info.c`, ALLOC and ADVISE(POPULATE); any failure but a few becomes
    /// OUT_OF_MEMORY.
    pub(crate) fn map(&mut self, device: u32, start: u64, size: u64, kind: PageKind) -> Result<(), DrvError> {
        let used = &mut self.used[device as usize];
        if self.memory - *used < size {
            return Err(DrvError::OutOfMemory);
        }
        *used += size;
        self.blocks.insert(start, KernelBlock { start, end: start + size, kind, device, references: 1 });
        Ok(())
    }

    /// Gives a block back, unless a registration that begins in it holds a reference. The block that went.
    ///
    /// Source: `svm_heap_mng.c`, "Set free error. (…ref_count=2)". By the source a page that is mapped by a registration
    /// from elsewhere is refused too; trace 199 of `driver-sequences.jsonl` frees such a block, and the traces win.
    pub(crate) fn unmap(&mut self, start: u64) -> Result<KernelBlock, DrvError> {
        let block = self.blocks.get(&start).ok_or(DrvError::IocrlFail)?;
        if block.references > 1 {
            return Err(DrvError::Busy);
        }
        let block = self.take(start);
        self.unmark_all(&block);
        Ok(block)
    }

    /// The block goes whatever refers to it, its marks stay: what the end of a heap does.
    pub(crate) fn unmap_by_force(&mut self, start: u64) -> KernelBlock {
        self.take(start)
    }

    /// The first pages of the registrations that begin in a block.
    pub(crate) fn first_pages(&self, block: &KernelBlock) -> impl Iterator<Item = u64> + '_ {
        let (range, page) = (block.range(), self.page(block.kind).bytes());
        let slots = self.marks.range(self.heap_size.round_down(range.start)..range.end);
        slots.filter(move |(_, marks)| marks.page.bytes() == page).flat_map(move |(slot, marks)| {
            let from = ((range.start.max(*slot) - slot) / page) as usize;
            let to = (((range.end - slot) / page) as usize).min(marks.flags.len());
            let flags = marks.flags[from..to].iter().enumerate();
            flags.filter(|(_, flags)| **flags & FIRST != 0).map(move |(index, _)| slot + (from + index) as u64 * page)
        })
    }

    /// Takes every mark of a block away.
    pub(crate) fn unmark_all(&mut self, block: &KernelBlock) {
        self.clear(block.range(), FIRST | MAPPED, block.kind);
    }

    fn take(&mut self, start: u64) -> KernelBlock {
        let block = self.blocks.remove(&start).expect("a block that the allocator holds");
        self.used[block.device as usize] -= block.end - block.start;
        block
    }

    pub(crate) fn block_at(&self, address: DeviceAddr) -> Option<&KernelBlock> {
        let (_, block) = self.blocks.range(..=address.get()).next_back()?;
        (address.get() < block.end).then_some(block)
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = &KernelBlock> {
        self.blocks.values()
    }

    /// The pieces that a range cuts the kernel's blocks into, or `None` where a page of it has no memory.
    pub(crate) fn pieces(&self, range: &Range<u64>) -> Option<Vec<(Range<u64>, KernelBlock)>> {
        let mut pieces = Vec::with_capacity(1);
        let mut at = range.start;
        while at < range.end {
            let block = *self.block_at(DeviceAddr::new(at))?;
            let end = block.end.min(range.end);
            pieces.push((at..end, block));
            at = end;
        }
        Some(pieces)
    }

    pub(crate) fn add_reference(&mut self, block: u64) {
        self.blocks.get_mut(&block).expect("a block that was just found").references += 1;
    }

    pub(crate) fn drop_reference(&mut self, block: u64) {
        let block = self.blocks.get_mut(&block).expect("a block that was just found");
        // A mark that outlived its heap has no reference in the block that lies there now.
        block.references = block.references.saturating_sub(1).max(1);
    }

    pub(crate) fn is_first(&self, address: u64) -> bool {
        let slot = self.heap_size.round_down(address);
        let flags = self.marks.get(&slot).map(|marks| marks.flags[((address - slot) / marks.page.bytes()) as usize]);
        flags.is_some_and(|flags| flags & FIRST != 0)
    }

    /// Marks a range as one registration: FIRST on its first page, MAPPED on all.
    pub(crate) fn mark(&mut self, range: Range<u64>, kind: PageKind) {
        let first = range.start;
        self.for_each_flag(range, kind, true, |address, flags| {
            *flags |= MAPPED | if address == first { FIRST } else { 0 };
        });
    }

    /// Whether a page of the range is mapped already.
    pub(crate) fn any_mapped(&self, range: Range<u64>, kind: PageKind) -> bool {
        let page = self.page(kind).bytes();
        let mut at = range.start;
        while at < range.end {
            let slot = self.heap_size.round_down(at);
            let end = range.end.min(slot + self.heap_size.bytes());
            if let Some(marks) = self.marks.get(&slot).filter(|marks| marks.page.bytes() == page) {
                let flags = &marks.flags[((at - slot) / page) as usize..((end - slot).div_ceil(page)) as usize];
                if flags.iter().any(|flags| flags & MAPPED != 0) {
                    return true;
                }
            }
            at = end;
        }
        false
    }

    /// How far the registration whose FIRST mark is at `start` reaches inside `end`: to the next page that is not mapped or is the
    /// first of another.
    ///
    /// Source: `svm_master_remote_map.c`: the size is not stored.
    pub(crate) fn extent(&self, start: u64, end: u64, kind: PageKind) -> u64 {
        let page = self.page(kind).bytes();
        let mut at = start;
        while at < end {
            let slot = self.heap_size.round_down(at);
            let Some(marks) = self.marks.get(&slot).filter(|marks| marks.page.bytes() == page) else { return at };
            let stop = end.min(slot + self.heap_size.bytes());
            let flags = &marks.flags[((at - slot) / page) as usize..((stop - slot) / page) as usize];
            // The registration's own first page is the one FIRST that does not end it.
            let skip = usize::from(at == start);
            let goes_on = |flags: &&u8| **flags & (MAPPED | FIRST) == MAPPED;
            let pages = skip + flags[skip..].iter().take_while(goes_on).count();
            at += pages as u64 * page;
            if pages < flags.len() {
                return at;
            }
        }
        at
    }

    /// Takes the marks of one registration away.
    pub(crate) fn unmark(&mut self, range: Range<u64>, kind: PageKind) {
        let first = range.start;
        self.clear(first..first + self.page(kind).bytes(), FIRST, kind);
        self.clear(range, MAPPED, kind);
    }

    fn clear(&mut self, range: Range<u64>, bits: u8, kind: PageKind) {
        self.for_each_flag(range, kind, false, |_, flags| *flags &= !bits);
    }

    /// Visits the flags of a range; where no mark was ever made, only with `create`.
    fn for_each_flag(&mut self, range: Range<u64>, kind: PageKind, create: bool, mut each: impl FnMut(u64, &mut u8)) {
        let page = self.page(kind);
        let pages = (self.heap_size.bytes() / page.bytes()) as usize;
        let mut at = range.start;
        while at < range.end {
            let slot = self.heap_size.round_down(at);
            let end = range.end.min(slot + self.heap_size.bytes());
            if !create && !self.marks.contains_key(&slot) {
                at = end;
                continue;
            }
            let marks = self.marks.entry(slot).or_insert_with(|| Marks { page, flags: vec![0; pages] });
            if marks.page != page {
                // Another kind of heap lies here now; nothing is known of what the old grain's marks mean to it.
                *marks = Marks { page, flags: vec![0; pages] };
            }
            let flags = &mut marks.flags[((at - slot) / page.bytes()) as usize..((end - slot) / page.bytes()) as usize];
            for flags in flags {
                each(at, flags);
                at += page.bytes();
            }
        }
    }
}
