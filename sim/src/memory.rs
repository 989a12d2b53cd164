//! Device memory, and what the host may touch of it.
//!
//! The device's side always reaches its memory. The host's side faults wherever no registration allows it: in *protected*
//! mode the operating system sees to that, and a loose pointer meets a real fault; in *bookkeeping* mode the same rule is
//! kept in a table, for runs too large for the system's limits and for hosts that cannot map memory this way.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use crate::addr::{DeviceAddr, HostAddr, PageKind};
use crate::profile::{KERNEL_BLOCK, Profile};
use crate::sys::{self, Arena, Protection};

/// How much of the shared range the simulator keeps, from the first ordinary heap on. More than any device has.
const WINDOW: u64 = 1 << 40;

/// Grain of the bookkeeping table and of memory that is not mapped: no page of any profile is smaller.
const GRAIN: u64 = 4096;

/// How host access is kept from unregistered memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemoryMode {
    /// By the memory protection of the operating system.
    Protected,
    /// By a table; the reason says why.
    Bookkeeping(String),
}

/// A host access that a device would have answered with SIGSEGV.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error, Serialize, Deserialize)]
#[error("SIGSEGV at {address}")]
pub struct Fault {
    /// The first byte that could not be accessed, as the driver numbers it.
    pub address: HostAddr,
}

/// Whether an access reads or writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
}

/// Ranges of this process that are protected apart from their surroundings, by all hosts together. Each may cost two of the
/// mappings that the system allows, and a process that has none left cannot even allocate memory.
static FENCES: AtomicUsize = AtomicUsize::new(0);

/// Mappings left for everything else in the process.
const MAPPINGS_LEFT: usize = 8192;

/// One simulated host at a time sits at the driver's own addresses.
static DRIVERS_RANGE_TAKEN: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
enum Store {
    Mapped(Arena),
    /// Pages that were ever written, by their offset.
    Pages(HashMap<u64, Box<[u8]>>),
}

#[derive(Debug)]
pub(crate) struct Memory {
    store: Store,
    mode: MemoryMode,
    start: DeviceAddr,
    len: u64,
    view_offset: u64,
    at_drivers_range: bool,
    guards_work: bool,
    /// How many of [`FENCES`] are this host's.
    fences: usize,
    /// Kernel blocks whose host side is fenced by guard markers instead of `mprotect`, by offset.
    guarded: BTreeMap<u64, u64>,
    /// What the host may touch: offset to (end, access). Kept in both modes; the law in bookkeeping mode.
    allowed: BTreeMap<u64, (u64, Protection)>,
}

impl Memory {
    pub(crate) fn new(profile: &Profile, bookkeeping: Option<&str>) -> Self {
        let start = profile.heap_start();
        let len = (profile.driver.svm_start + profile.driver.svm_size - start.get()).min(WINDOW);
        let view_offset = profile.driver.view_offset;
        let system_page = sys::system_page_size();
        let too_fine = profile.device.page_size.bytes() < system_page;
        let reason = match bookkeeping {
            Some(reason) => Some(reason.to_owned()),
            None if too_fine => Some(format!(
                "this machine has {system_page}-byte pages and cannot protect the profile's {}-byte pages apart",
                profile.device.page_size.bytes()
            )),
            None => None,
        };
        let seat = reason.is_none() && !DRIVERS_RANGE_TAKEN.swap(true, Ordering::AcqRel);
        let view_start = start.get() + view_offset;
        let (store, mode, seated) = match reason {
            Some(reason) => (Store::Pages(HashMap::new()), MemoryMode::Bookkeeping(reason), false),
            None => match Arena::new(usize::try_from(len).unwrap_or(usize::MAX), seat.then_some(view_start)) {
                Ok(arena) => {
                    let seated = arena.host_base() == view_start;
                    (Store::Mapped(arena), MemoryMode::Protected, seated)
                }
                Err(error) => {
                    let reason = format!("memory of this kind cannot be mapped here: {error}");
                    (Store::Pages(HashMap::new()), MemoryMode::Bookkeeping(reason), false)
                }
            },
        };
        if seat && !seated {
            DRIVERS_RANGE_TAKEN.store(false, Ordering::Release);
        }
        Self {
            store,
            mode,
            start,
            len,
            view_offset,
            at_drivers_range: seat && seated,
            guards_work: true,
            fences: 0,
            guarded: BTreeMap::new(),
            allowed: BTreeMap::new(),
        }
    }

    pub(crate) fn mode(&self) -> &MemoryMode {
        &self.mode
    }

    pub(crate) fn at_drivers_range(&self) -> bool {
        self.at_drivers_range
    }

    /// The memory that heaps may use.
    pub(crate) fn window(&self) -> Range<u64> {
        self.start.get()..self.start.get() + self.len
    }

    pub(crate) fn view_of(&self, address: DeviceAddr) -> HostAddr {
        HostAddr::new(address.get() + self.view_offset)
    }

    /// Where a host address of the driver's lies in this process, when it lies in the simulated range at all.
    pub(crate) fn pointer(&self, address: HostAddr) -> Option<u64> {
        let offset = self.host_offset(address, 0)?;
        match &self.store {
            Store::Mapped(arena) => Some(arena.host_base() + offset),
            Store::Pages(_) => None,
        }
    }

    fn offset(&self, address: DeviceAddr) -> u64 {
        address.get() - self.start.get()
    }

    fn host_offset(&self, address: HostAddr, bytes: u64) -> Option<u64> {
        let offset = address.get().checked_sub(self.start.get() + self.view_offset)?;
        (offset.checked_add(bytes)? <= self.len).then_some(offset)
    }

    /// Lets the host touch a range inside one kernel block: what a registration does.
    pub(crate) fn allow(&mut self, at: DeviceAddr, bytes: u64, kind: PageKind, block: Range<u64>, access: Access) {
        let offset = self.offset(at);
        let protection = if access == Access::Read { Protection::Read } else { Protection::ReadWrite };
        self.record(offset, bytes, protection);
        self.fence(|memory, arena| {
            let block = block.start - memory.start.get()..block.end - memory.start.get();
            if memory.in_guarded_block(kind, &block, offset, arena)? {
                arena.unguard(offset, bytes)?;
                if protection == Protection::Read {
                    arena.protect(offset, bytes, protection)?;
                }
                return Ok(());
            }
            memory.add_fence()?;
            arena.protect(offset, bytes, protection)
        });
    }

    /// Counts one more range that is protected apart.
    fn add_fence(&mut self) -> io::Result<()> {
        let (fences, allowed) = (FENCES.fetch_add(1, Ordering::Relaxed) + 1, sys::mappings_allowed());
        self.fences += 1;
        if 2 * fences + MAPPINGS_LEFT > allowed {
            let problem = format!("{fences} ranges apart, and the system allows a process {allowed} mappings");
            return Err(io::Error::other(problem));
        }
        Ok(())
    }

    fn drop_fences(&mut self, count: usize) {
        let count = count.min(self.fences);
        self.fences -= count;
        FENCES.fetch_sub(count, Ordering::Relaxed);
    }

    /// Takes a range from the host again: what unregister, a free to the kernel and the end of a heap do.
    pub(crate) fn deny(&mut self, at: DeviceAddr, bytes: u64) {
        let offset = self.offset(at);
        // The common case, a registration that ends as it began, needs no list.
        if let Some((to, protection)) = self.allowed.get(&offset).copied().filter(|(to, _)| *to == offset + bytes) {
            self.allowed.remove(&offset);
            return self.fence(|memory, arena| memory.close(arena, offset, to, protection));
        }
        let removed = self.forget(offset, bytes);
        if removed.is_empty() {
            return;
        }
        self.fence(|memory, arena| {
            removed.into_iter().try_for_each(|(from, to, protection)| memory.close(arena, from, to, protection))
        });
    }

    /// Makes a range that was allowed inaccessible.
    fn close(&mut self, arena: &mut Arena, from: u64, to: u64, protection: Protection) -> io::Result<()> {
        let guarded = self.guarded.range(..=from).next_back().is_some_and(|(_, end)| to <= *end);
        if !guarded {
            self.drop_fences(1);
            return arena.protect(from, to - from, Protection::None);
        }
        arena.guard(from, to - from)?;
        if protection == Protection::Read { arena.protect(from, to - from, Protection::ReadWrite) } else { Ok(()) }
    }

    /// A small block of ordinary pages can hold hundreds of registrations. Under `mprotect` each would be a mapping of its
    /// own, of which a process may have 65,530; guard markers cost none.
    fn in_guarded_block(
        &mut self,
        kind: PageKind,
        block: &Range<u64>,
        offset: u64,
        arena: &mut Arena,
    ) -> io::Result<bool> {
        if self.guarded.range(..=offset).next_back().is_some_and(|(_, end)| offset < *end) {
            return Ok(true);
        }
        let small = kind == PageKind::Ordinary && block.end - block.start <= KERNEL_BLOCK.bytes();
        if !small || !self.guards_work {
            return Ok(false);
        }
        let len = block.end - block.start;
        if arena.guard(block.start, len).is_err() {
            self.guards_work = false;
            return Ok(false);
        }
        self.add_fence()?;
        arena.protect(block.start, len, Protection::ReadWrite)?;
        self.guarded.insert(block.start, block.end);
        Ok(true)
    }

    /// Changes protection; where the system has no room for one more mapping, this host goes on by the table alone.
    fn fence(&mut self, change: impl FnOnce(&mut Self, &mut Arena) -> io::Result<()>) {
        if self.mode != MemoryMode::Protected {
            return;
        }
        let Store::Mapped(mut arena) = std::mem::replace(&mut self.store, Store::Pages(HashMap::new())) else { return };
        let result = change(self, &mut arena);
        self.store = Store::Mapped(arena);
        if let Err(error) = result {
            self.mode = MemoryMode::Bookkeeping(format!("half-way, no more ranges could be protected: {error}"));
        }
    }

    fn record(&mut self, offset: u64, bytes: u64, protection: Protection) {
        self.allowed.insert(offset, (offset + bytes, protection));
    }

    /// Takes a range out of the table; the parts of it that were allowed.
    fn forget(&mut self, offset: u64, bytes: u64) -> Vec<(u64, u64, Protection)> {
        let end = offset + bytes;
        let before = self.allowed.range(..offset).next_back().filter(|(_, (to, _))| *to > offset);
        let inside = self.allowed.range(offset..end);
        let touched: Vec<_> =
            before.into_iter().chain(inside).map(|(from, (to, protection))| (*from, *to, *protection)).collect();
        for (from, to, protection) in &touched {
            self.allowed.remove(from);
            if *from < offset {
                self.allowed.insert(*from, (offset, *protection));
            }
            if *to > end {
                self.allowed.insert(end, (*to, *protection));
            }
        }
        touched.into_iter().map(|(from, to, protection)| (from.max(offset), to.min(end), protection)).collect()
    }

    /// The first byte of a range that the table refuses.
    fn first_refused(&self, offset: u64, bytes: u64, access: Access) -> Option<u64> {
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            match self.allowed.range(..=at).next_back() {
                Some((_, (to, protection))) if *to > at => {
                    if access == Access::Write && *protection == Protection::Read {
                        return Some(at);
                    }
                    at = *to;
                }
                _ => return Some(at),
            }
        }
        None
    }

    /// Gives the memory of a range back; what is allocated there next reads as zeroes.
    pub(crate) fn discard(&mut self, at: DeviceAddr, bytes: u64) {
        self.deny(at, bytes);
        let offset = self.offset(at);
        if let Some(end) = self.guarded.remove(&offset) {
            self.drop_fences(1);
            // The next block here may be cut otherwise: back to one plain inaccessible range.
            self.fence(|_, arena| {
                arena.protect(offset, end - offset, Protection::None)?;
                arena.unguard(offset, end - offset)
            });
        }
        match &mut self.store {
            // A hole that cannot be punched only keeps old bytes, which device memory may do as well.
            Store::Mapped(arena) => drop(arena.discard(offset, bytes)),
            Store::Pages(pages) => pages.retain(|page, _| !(offset..offset + bytes).contains(page)),
        }
    }

    /// Reads through the host's side.
    pub(crate) fn host_read(&mut self, at: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
        let offset = self.accessible(at, into.len() as u64, Access::Read)?;
        if self.mode == MemoryMode::Protected
            && let Store::Mapped(arena) = &mut self.store
        {
            return arena.host_read(offset, into).map_err(|done| Fault { address: at.wrapping_add(done as u64) });
        }
        self.read_store(offset, into);
        Ok(())
    }

    /// Writes through the host's side.
    pub(crate) fn host_write(&mut self, at: HostAddr, from: &[u8]) -> Result<(), Fault> {
        let offset = self.accessible(at, from.len() as u64, Access::Write)?;
        if self.mode == MemoryMode::Protected
            && let Store::Mapped(arena) = &mut self.store
        {
            return arena.host_write(offset, from).map_err(|done| Fault { address: at.wrapping_add(done as u64) });
        }
        self.write_store(offset, from);
        Ok(())
    }

    /// The offset of a range that the host may try: in protected mode the system decides, else the table.
    fn accessible(&self, at: HostAddr, bytes: u64, access: Access) -> Result<u64, Fault> {
        let offset = self.host_offset(at, bytes).ok_or(Fault { address: at })?;
        if self.mode != MemoryMode::Protected
            && let Some(refused) = self.first_refused(offset, bytes, access)
        {
            return Err(Fault { address: at.wrapping_add(refused - offset) });
        }
        Ok(offset)
    }

    /// Whether the table lets the host touch a range, whatever the mode.
    pub(crate) fn table_allows(&self, at: HostAddr, bytes: u64, access: Access) -> bool {
        self.host_offset(at, bytes).is_some_and(|offset| self.first_refused(offset, bytes, access).is_none())
    }

    /// Reads from the device's side.
    pub(crate) fn device_read(&self, at: DeviceAddr, into: &mut [u8]) {
        self.read_store(self.offset(at), into);
    }

    /// Writes from the device's side.
    pub(crate) fn device_write(&mut self, at: DeviceAddr, from: &[u8]) {
        let offset = self.offset(at);
        self.write_store(offset, from);
    }

    fn read_store(&self, offset: u64, into: &mut [u8]) {
        match &self.store {
            Store::Mapped(arena) => arena.device_read(offset, into),
            Store::Pages(pages) => {
                for_each_page(offset, into.len(), |page, inside, span| match pages.get(&page) {
                    Some(bytes) => into[span.clone()].copy_from_slice(&bytes[inside..inside + span.len()]),
                    None => into[span].fill(0),
                });
            }
        }
    }

    fn write_store(&mut self, offset: u64, from: &[u8]) {
        match &mut self.store {
            Store::Mapped(arena) => arena.device_write(offset, from),
            Store::Pages(pages) => for_each_page(offset, from.len(), |page, inside, span| {
                let bytes = pages.entry(page).or_insert_with(|| vec![0; GRAIN as usize].into_boxed_slice());
                bytes[inside..inside + span.len()].copy_from_slice(&from[span]);
            }),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.drop_fences(self.fences);
        if self.at_drivers_range {
            self.store = Store::Pages(HashMap::new());
            DRIVERS_RANGE_TAKEN.store(false, Ordering::Release);
        }
    }
}

/// Cuts a range into pages: the page's offset, where in the page, and which part of the buffer.
fn for_each_page(offset: u64, len: usize, mut each: impl FnMut(u64, usize, Range<usize>)) {
    let mut done = 0;
    while done < len {
        let at = offset + done as u64;
        let inside = (at % GRAIN) as usize;
        let take = (GRAIN as usize - inside).min(len - done);
        each(at - inside as u64, inside, done..done + take);
        done += take;
    }
}
