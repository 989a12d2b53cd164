//! The cache and the platform it speaks to.

use crate::table::{Range, RangeError, Table};

/// What the cache needs of a driver. Addresses are plain numbers: device addresses as the driver gives them, view addresses
/// as a program would load through them.
pub trait Platform {
    /// The driver's error.
    type Error;

    /// Maps `bytes` from `base` on into the host: the view's address.
    ///
    /// # Errors
    ///
    /// The driver refuses; nothing is mapped then.
    fn register(&mut self, device: u32, base: u64, bytes: u64) -> Result<u64, Self::Error>;

    /// Ends the mapping that begins at `base`.
    ///
    /// # Errors
    ///
    /// The driver refuses; the mapping lives on then.
    fn unregister(&mut self, device: u32, base: u64) -> Result<(), Self::Error>;

    /// Copies to the device.
    ///
    /// # Errors
    ///
    /// The driver refuses.
    fn copy_in(&mut self, device: u32, to: u64, from: &[u8]) -> Result<(), Self::Error>;

    /// Copies from the device.
    ///
    /// # Errors
    ///
    /// The driver refuses.
    fn copy_out(&mut self, device: u32, from: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Stores through a view.
    ///
    /// # Errors
    ///
    /// A platform that can tell says that the access would fault.
    fn store(&mut self, view: u64, from: &[u8]) -> Result<(), Self::Error>;

    /// Loads through a view.
    ///
    /// # Errors
    ///
    /// A platform that can tell says that the access would fault.
    fn load(&mut self, view: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// A mapping was made; this is what is held now. The place to log it.
    fn mapped(&mut self, _held: Held) {}
}

/// What a cache holds mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// How many allocations.
    pub count: u64,
    /// The sum of their sizes as they were asked for.
    pub bytes: u64,
}

/// Why the cache did not do what it was asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CacheError<E> {
    /// The arguments name no allocation.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// Nothing is handed out after finalize.
    #[error("the cache is finalized")]
    Finalized,
    /// The platform refused.
    #[error("the platform refused: {0}")]
    Platform(E),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    device: u32,
    view: Option<u64>,
}

/// The view cache.
#[derive(Clone, Debug, Default)]
pub struct ViewCache {
    allocations: Table<Entry>,
    held: Held,
    finalized: bool,
}

impl ViewCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes note of an allocation that was just made.
    ///
    /// # Errors
    ///
    /// It is no range, or overlaps one that is tracked; nothing after finalize.
    pub fn track<E>(&mut self, device: u32, base: u64, bytes: u64) -> Result<(), CacheError<E>> {
        if self.finalized {
            return Err(CacheError::Finalized);
        }
        self.allocations.insert(Range { base, bytes }, Entry { device, view: None })?;
        Ok(())
    }

    /// The view of a range, mapping its allocation when this is the first access; `None` where the platform refuses, and
    /// device copies serve instead.
    ///
    /// # Errors
    ///
    /// The range is null, empty, wrapping, untracked or overruns its allocation; nothing after finalize.
    pub fn acquire<P: Platform + ?Sized>(
        &mut self,
        platform: &mut P,
        address: u64,
        bytes: u64,
    ) -> Result<Option<u64>, CacheError<P::Error>> {
        if self.finalized {
            return Err(CacheError::Finalized);
        }
        let (range, entry) = self.allocations.find(address, bytes)?;
        if entry.view.is_none() {
            entry.view = platform.register(entry.device, range.base, range.bytes).ok();
            if entry.view.is_some() {
                self.held.count += 1;
                self.held.bytes += range.bytes;
                platform.mapped(self.held);
            }
        }
        Ok(entry.view.map(|view| view + (address - range.base)))
    }

    /// Reads through the view, or by a device copy where there is none.
    ///
    /// # Errors
    ///
    /// As [`ViewCache::acquire`], and the copy's own.
    pub fn read<P: Platform + ?Sized>(
        &mut self,
        platform: &mut P,
        address: u64,
        into: &mut [u8],
    ) -> Result<(), CacheError<P::Error>> {
        let view = self.acquire(platform, address, into.len() as u64)?;
        let device = self.device_of(address)?;
        match view {
            Some(view) => platform.load(view, into),
            None => platform.copy_out(device, address, into),
        }
        .map_err(CacheError::Platform)
    }

    /// Writes through the view, or by a device copy where there is none.
    ///
    /// # Errors
    ///
    /// As [`ViewCache::acquire`], and the copy's own.
    pub fn write<P: Platform + ?Sized>(
        &mut self,
        platform: &mut P,
        address: u64,
        from: &[u8],
    ) -> Result<(), CacheError<P::Error>> {
        let view = self.acquire(platform, address, from.len() as u64)?;
        let device = self.device_of(address)?;
        match view {
            Some(view) => platform.store(view, from),
            None => platform.copy_in(device, address, from),
        }
        .map_err(CacheError::Platform)
    }

    fn device_of(&mut self, address: u64) -> Result<u32, RangeError> {
        self.allocations.find(address, 1).map(|(_, entry)| entry.device)
    }

    /// Lets an allocation go: drops its view, calls `free`, and forgets it when both succeeded.
    ///
    /// # Errors
    ///
    /// The address is no base of a tracked allocation. The platform refused to unregister: the record stays and `free` is
    /// not called. `free` failed: the allocation stays tracked, without a view.
    pub fn release<P: Platform + ?Sized>(
        &mut self,
        platform: &mut P,
        base: u64,
        free: impl FnOnce(&mut P) -> Result<(), P::Error>,
    ) -> Result<(), CacheError<P::Error>> {
        let (range, entry) = self.allocations.at(base)?;
        drop_view(platform, range, entry, &mut self.held).map_err(CacheError::Platform)?;
        free(platform).map_err(CacheError::Platform)?;
        self.allocations.remove(base);
        Ok(())
    }

    /// Drops every view; nothing is handed out afterwards. May be called again, and then tries what is left.
    ///
    /// # Errors
    ///
    /// The first refusal of the platform; the other views are dropped all the same.
    pub fn finalize<P: Platform + ?Sized>(&mut self, platform: &mut P) -> Result<(), CacheError<P::Error>> {
        self.finalized = true;
        let mut first = Ok(());
        for (range, entry) in self.allocations.iter_mut() {
            let dropped = drop_view(platform, range, entry, &mut self.held).map_err(CacheError::Platform);
            first = first.and(dropped);
        }
        first
    }

    /// What is mapped now.
    #[must_use]
    pub fn held(&self) -> Held {
        self.held
    }
}

fn drop_view<P: Platform + ?Sized>(
    platform: &mut P,
    range: Range,
    entry: &mut Entry,
    held: &mut Held,
) -> Result<(), P::Error> {
    if entry.view.is_some() {
        platform.unregister(entry.device, range.base)?;
        entry.view = None;
        held.count -= 1;
        held.bytes -= range.bytes;
    }
    Ok(())
}
