//! The cache that the mutants are mutants of: one view per allocation, for several threads, within a budget where it has one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hostview_cache::{Held, Range, RangeError, Table};
use hostview_sim::{DeviceAddr, HostAddr, PagePolicy};

use crate::recorder::PlatformTable;
use crate::subject::{Acquired, Subject, SubjectError, SubjectInfo};

/// What is known of an allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) device: u32,
    /// The view of its base, while it is mapped.
    pub(super) view: Option<HostAddr>,
    /// How many of the views that were handed out are still in use.
    pub(super) in_use: u32,
    /// When it was last acquired.
    pub(super) used: u64,
}

/// What the cache knows.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) allocations: Table<Entry>,
    pub(super) held: Held,
    pub(super) finalized: bool,
    /// Counts acquires.
    pub(super) clock: u64,
    pub(super) odd: Odd,
}

/// What no cache should keep, and some do.
#[derive(Debug, Default)]
pub(super) struct Odd {
    /// Addresses of which something is remembered that should not be.
    pub(super) addresses: BTreeSet<u64>,
    /// Views by the address that they are of.
    pub(super) views: BTreeMap<u64, HostAddr>,
    /// The last allocation.
    pub(super) last: Option<DeviceAddr>,
    /// Bytes on their way, by the address that they are for.
    pub(super) bytes: BTreeMap<u64, Vec<u8>>,
}

/// The calls of a cache that lock it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Alloc,
    Free,
    Acquire,
    Read,
    Write,
    Finalize,
}

/// A live allocation: where it is, and what is known of it.
pub(super) type Found = (Range, Entry);

/// A cache. Its state is locked for a moment only; what keeps two calls apart is the lock of [`PlatformTable::enter`].
#[derive(Clone)]
pub(super) struct Cache {
    parts: &'static dyn Parts,
    state: Arc<Mutex<State>>,
}

/// What a cache does at each point, done right. A mutant does one of them otherwise.
pub(super) trait Parts: Sync {
    fn info(&self) -> SubjectInfo {
        SubjectInfo::default()
    }

    /// Whether a call keeps others out.
    fn locks(&self, _call: Call) -> bool {
        true
    }

    // Allocation.

    fn alloc(
        &self,
        cache: &Cache,
        platform: &mut dyn PlatformTable,
        device: u32,
        bytes: u64,
        policy: PagePolicy,
    ) -> Result<DeviceAddr, SubjectError> {
        alloc(self, cache, platform, (device, device), bytes, policy)
    }

    fn alloc_failed(
        &self,
        _cache: &Cache,
        _platform: &mut dyn PlatformTable,
        error: SubjectError,
    ) -> Result<DeviceAddr, SubjectError> {
        Err(error)
    }

    fn track(&self, cache: &Cache, range: Range, device: u32) -> Result<(), RangeError> {
        track(cache, range, device)
    }

    /// A new allocation is tracked; nothing is to be done yet.
    fn allocated(&self, _cache: &Cache, _platform: &mut dyn PlatformTable, _base: DeviceAddr) {}

    // Free.

    fn free(&self, cache: &Cache, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError> {
        let (range, _) = self.freed(cache, platform, address)?;
        self.close(cache, platform, range)?;
        self.free_memory(cache, platform, range)?;
        self.forget(cache, range);
        Ok(())
    }

    /// The allocation that a free is about.
    fn freed(
        &self,
        cache: &Cache,
        _platform: &mut dyn PlatformTable,
        address: DeviceAddr,
    ) -> Result<Found, SubjectError> {
        Ok(cache.at(address)?)
    }

    fn free_memory(&self, _cache: &Cache, platform: &mut dyn PlatformTable, range: Range) -> Result<(), SubjectError> {
        platform.free(DeviceAddr::new(range.base))
    }

    fn forget(&self, cache: &Cache, range: Range) {
        cache.state().allocations.remove(range.base);
    }

    // The end of a view.

    fn close(&self, cache: &Cache, platform: &mut dyn PlatformTable, range: Range) -> Result<(), SubjectError> {
        let Some(entry) = cache.entry(range.base).filter(|entry| entry.view.is_some()) else { return Ok(()) };
        self.unregister(platform, entry.device, range)?;
        self.closed(cache, range);
        Ok(())
    }

    fn unregister(&self, platform: &mut dyn PlatformTable, device: u32, range: Range) -> Result<(), SubjectError> {
        platform.unregister(device, DeviceAddr::new(range.base))
    }

    fn closed(&self, cache: &Cache, range: Range) {
        cache.set_view(range, None);
        self.uncount(&mut cache.state().held, range);
    }

    // Access.

    /// The allocation that holds a whole range.
    fn find(&self, cache: &Cache, address: DeviceAddr, bytes: u64) -> Result<Found, RangeError> {
        cache.find(address, bytes)
    }

    /// Where a range is in its view; none where device copies serve.
    fn view(
        &self,
        cache: &Cache,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<Option<HostAddr>, SubjectError> {
        view(self, cache, platform, address, bytes)
    }

    fn offset(&self, offset: u64) -> u64 {
        offset
    }

    /// The view of an allocation's base, which is mapped if it is not yet.
    fn open(
        &self,
        cache: &Cache,
        platform: &mut dyn PlatformTable,
        found: Found,
        asked: (DeviceAddr, u64),
    ) -> Result<Option<HostAddr>, SubjectError> {
        open(self, cache, platform, found, asked)
    }

    fn register(
        &self,
        _cache: &Cache,
        platform: &mut dyn PlatformTable,
        (range, entry): Found,
        _asked: (DeviceAddr, u64),
    ) -> Result<HostAddr, SubjectError> {
        platform.register(entry.device, DeviceAddr::new(range.base), range.bytes)
    }

    fn opened(&self, cache: &Cache, range: Range, view: HostAddr) {
        cache.set_view(range, Some(view));
        self.count(&mut cache.state().held, range);
    }

    /// The platform refused to map: device copies serve.
    fn refused(
        &self,
        _cache: &Cache,
        _platform: &mut dyn PlatformTable,
        _range: Range,
        _error: SubjectError,
    ) -> Result<Option<HostAddr>, SubjectError> {
        Ok(None)
    }

    fn acquire(
        &self,
        cache: &Cache,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<Option<HostAddr>, SubjectError> {
        let view = self.view(cache, platform, address, bytes)?;
        if view.is_some() {
            cache.change(address, |entry| entry.in_use += 1);
        }
        Ok(view)
    }

    fn release(&self, cache: &Cache, address: DeviceAddr) {
        cache.change(address, |entry| entry.in_use = entry.in_use.saturating_sub(1));
    }

    fn read(
        &self,
        cache: &Cache,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        into: &mut [u8],
    ) -> Result<(), SubjectError> {
        match self.view(cache, platform, address, into.len() as u64)? {
            Some(view) => self.load(cache, platform, view, (address, into)),
            None => self.copy_out(platform, address, into),
        }
    }

    fn load(
        &self,
        _cache: &Cache,
        platform: &mut dyn PlatformTable,
        view: HostAddr,
        (_address, into): (DeviceAddr, &mut [u8]),
    ) -> Result<(), SubjectError> {
        platform.load(view, into)
    }

    fn copy_out(
        &self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        into: &mut [u8],
    ) -> Result<(), SubjectError> {
        platform.copy_out(address, into)
    }

    fn write(
        &self,
        cache: &Cache,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        from: &[u8],
    ) -> Result<(), SubjectError> {
        match self.view(cache, platform, address, from.len() as u64)? {
            Some(view) => self.store(cache, platform, view, (address, from)),
            None => self.copy_in(platform, address, from),
        }
    }

    fn store(
        &self,
        _cache: &Cache,
        platform: &mut dyn PlatformTable,
        view: HostAddr,
        (_address, from): (DeviceAddr, &[u8]),
    ) -> Result<(), SubjectError> {
        platform.store(view, from)
    }

    fn copy_in(&self, platform: &mut dyn PlatformTable, address: DeviceAddr, from: &[u8]) -> Result<(), SubjectError> {
        platform.copy_in(address, from)
    }

    // What is held.

    fn count(&self, held: &mut Held, range: Range) {
        held.count += 1;
        held.bytes += range.bytes;
    }

    fn uncount(&self, held: &mut Held, range: Range) {
        held.count = held.count.saturating_sub(1);
        held.bytes = held.bytes.saturating_sub(range.bytes);
    }

    fn held(&self, cache: &Cache) -> Held {
        cache.state().held
    }

    // The budget.

    /// Makes room for so many bytes, by closing what was not used for longest; false where there is none to be had.
    fn make_room(&self, cache: &Cache, platform: &mut dyn PlatformTable, bytes: u64) -> bool {
        make_room(self, cache, platform, bytes)
    }

    fn fits(&self, held: Held, bytes: u64, budget: u64) -> bool {
        held.bytes + bytes <= budget
    }

    fn victim(&self, cache: &Cache) -> Option<Range> {
        let state = cache.state();
        let open = state.allocations.iter().filter(|(_, entry)| entry.view.is_some() && entry.in_use == 0);
        open.min_by_key(|(_, entry)| entry.used).map(|(range, _)| range)
    }

    fn evict(&self, cache: &Cache, platform: &mut dyn PlatformTable, victim: Range) -> Result<(), SubjectError> {
        self.close(cache, platform, victim)
    }

    // The end.

    fn finalize(&self, cache: &Cache, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
        finalize(self, cache, platform)
    }
}

/// [`Parts::alloc`], for a mutant that does something beside it.
pub(super) fn alloc<P: Parts + ?Sized>(
    parts: &P,
    cache: &Cache,
    platform: &mut dyn PlatformTable,
    (device, tracked): (u32, u32),
    bytes: u64,
    policy: PagePolicy,
) -> Result<DeviceAddr, SubjectError> {
    if cache.state().finalized {
        return Err(SubjectError::Refused("finalized".to_owned()));
    }
    let base = match platform.alloc(device, bytes, policy) {
        Ok(base) => base,
        Err(error) => return parts.alloc_failed(cache, platform, error),
    };
    let tracked = parts.track(cache, Range { base: base.get(), bytes }, tracked);
    if let Err(refused) = tracked {
        platform.free(base)?;
        return Err(refused.into());
    }
    parts.allocated(cache, platform, base);
    Ok(base)
}

/// [`Parts::track`], for a mutant that does something beside it.
pub(super) fn track(cache: &Cache, range: Range, device: u32) -> Result<(), RangeError> {
    cache.state().allocations.insert(range, Entry { device, view: None, in_use: 0, used: 0 })
}

/// [`Parts::view`], for a mutant that does something beside it.
pub(super) fn view<P: Parts + ?Sized>(
    parts: &P,
    cache: &Cache,
    platform: &mut dyn PlatformTable,
    address: DeviceAddr,
    bytes: u64,
) -> Result<Option<HostAddr>, SubjectError> {
    if cache.state().finalized {
        return Err(SubjectError::Refused("finalized".to_owned()));
    }
    let found = parts.find(cache, address, bytes)?;
    let base = parts.open(cache, platform, found, (address, bytes))?;
    cache.touch(found.0);
    Ok(base.map(|view| view.wrapping_add(parts.offset(address.get() - found.0.base))))
}

/// [`Parts::open`], for a mutant that does something beside it.
pub(super) fn open<P: Parts + ?Sized>(
    parts: &P,
    cache: &Cache,
    platform: &mut dyn PlatformTable,
    (range, entry): Found,
    asked: (DeviceAddr, u64),
) -> Result<Option<HostAddr>, SubjectError> {
    if entry.view.is_some() {
        return Ok(entry.view);
    }
    if !parts.make_room(cache, platform, range.bytes) {
        return Ok(None);
    }
    match parts.register(cache, platform, (range, entry), asked) {
        Ok(view) => {
            parts.opened(cache, range, view);
            Ok(Some(view))
        }
        Err(error) => parts.refused(cache, platform, range, error),
    }
}

/// [`Parts::make_room`], for a mutant that does something beside it.
pub(super) fn make_room<P: Parts + ?Sized>(
    parts: &P,
    cache: &Cache,
    platform: &mut dyn PlatformTable,
    bytes: u64,
) -> bool {
    let Some(budget) = parts.info().budget else { return true };
    if bytes > budget {
        return false;
    }
    while !parts.fits(cache.state().held, bytes, budget) {
        let Some(victim) = parts.victim(cache) else { return false };
        if parts.evict(cache, platform, victim).is_err() {
            return false;
        }
    }
    true
}

/// [`Parts::finalize`], for a mutant that does something beside it.
pub(super) fn finalize<P: Parts + ?Sized>(
    parts: &P,
    cache: &Cache,
    platform: &mut dyn PlatformTable,
) -> Result<(), SubjectError> {
    cache.state().finalized = true;
    let mut first = Ok(());
    for range in cache.ranges() {
        first = first.and(parts.close(cache, platform, range));
    }
    first
}

/// No fault, two threads and a budget.
struct Sound;

impl Parts for Sound {
    fn info(&self) -> SubjectInfo {
        SubjectInfo { thread_safe: true, ..budgeted() }
    }
}

/// The budget of those that have one: an allocation of 2 MiB just fits.
pub(super) const BUDGET: u64 = 2 << 20;

/// What a cache with a budget says of itself.
pub(super) fn budgeted() -> SubjectInfo {
    SubjectInfo { budget: Some(BUDGET), ..SubjectInfo::default() }
}

/// What a cache for several threads says of itself.
pub(super) fn thread_safe() -> SubjectInfo {
    SubjectInfo { thread_safe: true, ..SubjectInfo::default() }
}

/// The cache without a fault.
pub(in crate::subject) fn sound() -> impl Subject {
    Cache::new(&Sound)
}

impl Cache {
    pub(super) fn new(parts: &'static dyn Parts) -> Self {
        Self { parts, state: Arc::default() }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The allocation that holds a whole range.
    pub(super) fn find(&self, address: DeviceAddr, bytes: u64) -> Result<Found, RangeError> {
        self.state().allocations.find(address.get(), bytes).map(|(range, entry)| (range, *entry))
    }

    /// The allocation that begins at an address.
    pub(super) fn at(&self, address: DeviceAddr) -> Result<Found, RangeError> {
        self.state().allocations.at(address.get()).map(|(range, entry)| (range, *entry))
    }

    /// What is known of the allocation from a base.
    pub(super) fn entry(&self, base: u64) -> Option<Entry> {
        self.at(DeviceAddr::new(base)).ok().map(|(_, entry)| entry)
    }

    /// Every allocation, in address order.
    pub(super) fn ranges(&self) -> Vec<Range> {
        self.state().allocations.iter().map(|(range, _)| range).collect()
    }

    /// Changes what is known of an allocation, if it is still there.
    pub(super) fn change(&self, address: DeviceAddr, change: impl FnOnce(&mut Entry)) {
        if let Ok((_, entry)) = self.state().allocations.find(address.get(), 1) {
            change(entry);
        }
    }

    pub(super) fn set_view(&self, range: Range, view: Option<HostAddr>) {
        self.change(DeviceAddr::new(range.base), |entry| {
            entry.view = view;
            entry.in_use = 0;
        });
    }

    fn touch(&self, range: Range) {
        let now = {
            let mut state = self.state();
            state.clock += 1;
            state.clock
        };
        self.change(DeviceAddr::new(range.base), |entry| entry.used = now);
    }

    fn locked<R>(
        &self,
        call: Call,
        platform: &mut dyn PlatformTable,
        work: impl FnOnce(&mut dyn PlatformTable) -> R,
    ) -> R {
        let locks = self.parts.locks(call);
        if locks {
            platform.enter();
        }
        let result = work(platform);
        if locks {
            platform.leave();
        }
        result
    }
}

impl Subject for Cache {
    fn info(&self) -> SubjectInfo {
        self.parts.info()
    }

    fn alloc(
        &mut self,
        platform: &mut dyn PlatformTable,
        device: u32,
        bytes: u64,
        policy: PagePolicy,
    ) -> Result<DeviceAddr, SubjectError> {
        self.locked(Call::Alloc, platform, |platform| self.parts.alloc(self, platform, device, bytes, policy))
    }

    fn free(&mut self, platform: &mut dyn PlatformTable, address: DeviceAddr) -> Result<(), SubjectError> {
        self.locked(Call::Free, platform, |platform| self.parts.free(self, platform, address))
    }

    fn acquire(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        bytes: u64,
    ) -> Result<Acquired, SubjectError> {
        let view =
            self.locked(Call::Acquire, platform, |platform| self.parts.acquire(self, platform, address, bytes))?;
        Ok(view.map_or(Acquired::DeviceCopies, Acquired::View))
    }

    fn release(&mut self, _platform: &mut dyn PlatformTable, address: DeviceAddr) {
        self.parts.release(self, address);
    }

    fn read(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        into: &mut [u8],
    ) -> Result<(), SubjectError> {
        self.locked(Call::Read, platform, |platform| self.parts.read(self, platform, address, into))
    }

    fn write(
        &mut self,
        platform: &mut dyn PlatformTable,
        address: DeviceAddr,
        from: &[u8],
    ) -> Result<(), SubjectError> {
        self.locked(Call::Write, platform, |platform| self.parts.write(self, platform, address, from))
    }

    fn held(&self) -> Held {
        self.parts.held(self)
    }

    fn finalize(&mut self, platform: &mut dyn PlatformTable) -> Result<(), SubjectError> {
        self.locked(Call::Finalize, platform, |platform| self.parts.finalize(self, platform))
    }

    fn twin(&self) -> Option<Box<dyn Subject>> {
        self.info().thread_safe.then(|| Box::new(self.clone()) as Box<dyn Subject>)
    }
}
