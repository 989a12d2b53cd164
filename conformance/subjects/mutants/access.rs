//! Faults of an access: which range it takes, where in the view it points, and what becomes of the bytes.

use hostview_cache::{Held, Range, RangeError};
use hostview_sim::{DeviceAddr, HostAddr};

use super::base::{Cache, Found};
use super::{Part, Planted};
use crate::plant::plant;
use crate::recorder::PlatformTable;
use crate::subject::SubjectError;

plant! {
    /// An interior address gets the view of its page.
    "offsets-by-the-page" OffsetsByThePage {
        fn offset(&self, offset: u64) -> u64 {
            offset & !4095
        }
    }

    /// An interior address gets the view of its word.
    "offsets-by-the-word" OffsetsByTheWord {
        fn offset(&self, offset: u64) -> u64 {
            offset & !7
        }
    }

    /// An interior address gets the view of the base.
    "forgets-the-offset", "hw-native-sys/simpler#2205", ForgetsTheOffset {
        fn offset(&self, _offset: u64) -> u64 {
            0
        }
    }

    /// acquire hands out the view of the base; reads and writes are right.
    "acquire-forgets-the-offset" AcquireForgetsTheOffset {
        fn acquire(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
            bytes: u64,
        ) -> Result<Option<HostAddr>, SubjectError> {
            self.view(cache, platform, address, bytes)?;
            Ok(cache.find(address, bytes)?.1.view)
        }
    }

    /// An offset is kept in 20 bits: it is lost from 1 MiB on.
    "cuts-the-offset" CutsTheOffset {
        fn offset(&self, offset: u64) -> u64 {
            offset & 0xf_ffff
        }
    }

    /// Only the first byte of a range is checked.
    "serves-past-the-end" ServesPastTheEnd {
        fn find(&self, cache: &Cache, address: DeviceAddr, bytes: u64) -> Result<Found, RangeError> {
            cache.find(address, bytes.min(1))
        }
    }

    /// The end of a range may lie one byte behind that of its allocation.
    "takes-one-byte-too-many" TakesOneTooMany {
        fn find(&self, cache: &Cache, address: DeviceAddr, bytes: u64) -> Result<Found, RangeError> {
            cache.find(address, bytes).or_else(|error| match error {
                RangeError::Overruns { .. } => cache.find(address, bytes - 1),
                other => Err(other),
            })
        }
    }

    /// The last byte of an allocation is refused.
    "refuses-the-last-byte" RefusesTheLastByte {
        fn find(&self, cache: &Cache, address: DeviceAddr, bytes: u64) -> Result<Found, RangeError> {
            let (range, entry) = cache.find(address, bytes)?;
            if address.get() + bytes == range.base + range.bytes && address.get() > range.base {
                return Err(RangeError::Untracked { address: address.get() });
            }
            Ok((range, entry))
        }
    }

    /// The end of a range is computed without a look at whether it wraps.
    "accepts-a-range-that-wraps" AcceptsWrapping {
        fn find(&self, cache: &Cache, address: DeviceAddr, bytes: u64) -> Result<Found, RangeError> {
            let wrapped = address.get().wrapping_add(bytes);
            if wrapped < address.get() { cache.find(address, 1) } else { cache.find(address, bytes) }
        }
    }

    /// A range of no bytes gets a view.
    "accepts-an-empty-range" AcceptsEmpty {
        fn find(&self, cache: &Cache, address: DeviceAddr, bytes: u64) -> Result<Found, RangeError> {
            cache.find(address, bytes.max(1))
        }
    }

    /// A read of nothing succeeds, inside a live allocation.
    "an-empty-read-succeeds" EmptyReadSucceeds {
        fn read(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
            into: &mut [u8],
        ) -> Result<(), SubjectError> {
            if into.is_empty() && cache.find(address, 1).is_ok() && !cache.state().finalized {
                return Ok(());
            }
            match self.view(cache, platform, address, into.len() as u64)? {
                Some(view) => platform.load(view, into),
                None => platform.copy_out(address, into),
            }
        }
    }

    /// What it does not track is copied all the same: the platform will know.
    "copies-what-it-does-not-track" AsksAnyway {
        fn read(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
            into: &mut [u8],
        ) -> Result<(), SubjectError> {
            match self.view(cache, platform, address, into.len() as u64) {
                Ok(Some(view)) => platform.load(view, into),
                Ok(None) | Err(_) => platform.copy_out(address, into),
            }
        }
    }

    /// A write through the view is lost.
    "loses-writes" LosesWrites {
        fn store(
            &self,
            _: &Cache,
            _: &mut dyn PlatformTable,
            _: HostAddr,
            _: (DeviceAddr, &[u8]),
        ) -> Result<(), SubjectError> {
            Ok(())
        }
    }

    /// The last byte of a write is lost where it fills a page exactly.
    "loses-the-last-byte-of-a-page" LosesTheLastByte {
        fn store(
            &self,
            _: &Cache,
            platform: &mut dyn PlatformTable,
            view: HostAddr,
            (_, from): (DeviceAddr, &[u8]),
        ) -> Result<(), SubjectError> {
            let bytes = if from.len() == 4096 { 4095 } else { from.len() };
            platform.store(view, &from[..bytes])
        }
    }

    /// A write goes to a copy of the memory, which nobody pushes back.
    "writes-to-a-copy" WritesToACopy {
        fn store(
            &self,
            cache: &Cache,
            _: &mut dyn PlatformTable,
            _: HostAddr,
            (address, from): (DeviceAddr, &[u8]),
        ) -> Result<(), SubjectError> {
            cache.state().odd.bytes.insert(address.get(), from.to_vec());
            Ok(())
        }
        fn load(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            view: HostAddr,
            (address, into): (DeviceAddr, &mut [u8]),
        ) -> Result<(), SubjectError> {
            platform.load(view, into)?;
            if let Some(copy) = cache.state().odd.bytes.get(&address.get()).filter(|copy| copy.len() == into.len()) {
                into.copy_from_slice(copy);
            }
            Ok(())
        }
    }

    /// What was read once is read from memory of its own: what the device writes since is not seen.
    "keeps-what-it-read" KeepsWhatItRead {
        fn load(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            view: HostAddr,
            (address, into): (DeviceAddr, &mut [u8]),
        ) -> Result<(), SubjectError> {
            let kept = cache.state().odd.bytes.get(&address.get()).filter(|kept| kept.len() >= into.len()).cloned();
            match kept {
                Some(kept) => into.copy_from_slice(&kept[..into.len()]),
                None => {
                    platform.load(view, into)?;
                    cache.state().odd.bytes.insert(address.get(), into.to_vec());
                }
            }
            Ok(())
        }
    }

    /// acquire hands out the address of a copy of its own, in place of the view.
    "hands-out-a-copy" HandsOutACopy {
        fn acquire(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
            bytes: u64,
        ) -> Result<Option<HostAddr>, SubjectError> {
            // Memory of its own, wherever that lies: here always in one place, so that the report is the same each time.
            let at = HostAddr::new(0x7000_0000_0000 | address.get() & 0xffff_ffff);
            if self.view(cache, platform, address, bytes)?.is_none() {
                return Ok(None);
            }
            Ok(Some(at))
        }
    }

    /// The device copy that serves where no view can be had goes to the base of the allocation.
    "copies-to-the-base" CopiesToTheBase {
        fn write(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            address: DeviceAddr,
            from: &[u8],
        ) -> Result<(), SubjectError> {
            match self.view(cache, platform, address, from.len() as u64)? {
                Some(view) => self.store(cache, platform, view, (address, from)),
                None => {
                    let (range, _) = cache.find(address, 1)?;
                    self.copy_in(platform, DeviceAddr::new(range.base), from)
                }
            }
        }
    }

    /// Where no view can be had, a write fails.
    "cannot-write-without-a-view" CannotWriteWithoutAView {
        fn copy_in(&self, _: &mut dyn PlatformTable, _: DeviceAddr, _: &[u8]) -> Result<(), SubjectError> {
            Err(SubjectError::Refused("no view".to_owned()))
        }
    }

    /// The map of allocations has room for four: what comes then is lost, and its access refused.
    "loses-the-fifth-allocation" LosesTheFifth {
        fn track(&self, cache: &Cache, range: Range, device: u32) -> Result<(), RangeError> {
            if cache.ranges().len() < 4 { super::base::track(cache, range, device) } else { Ok(()) }
        }
    }

    /// What is mapped goes when another allocation is asked for, in use or not: one view at a time is enough for everybody.
    "one-view-at-a-time" OneViewAtATime {
        fn open(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            found: Found,
            asked: (DeviceAddr, u64),
        ) -> Result<Option<HostAddr>, SubjectError> {
            for other in cache.ranges().into_iter().filter(|other| other.base != found.0.base) {
                let _ = self.close(cache, platform, other);
            }
            super::base::open(self, cache, platform, found, asked)
        }
    }

    /// Views are remembered by their address alone: an address that comes back gets the view that it once had.
    "keys-by-address", "LMCache-Ascend: stale records of registered memory", KeysByAddress {
        fn opened(&self, cache: &Cache, range: Range, view: HostAddr) {
            cache.set_view(range, Some(view));
            let mut state = cache.state();
            state.odd.views.insert(range.base, view);
            self.count(&mut state.held, range);
        }
        fn open(
            &self,
            cache: &Cache,
            platform: &mut dyn PlatformTable,
            found: Found,
            asked: (DeviceAddr, u64),
        ) -> Result<Option<HostAddr>, SubjectError> {
            let known = cache.state().odd.views.get(&found.0.base).copied();
            if known.is_some() { Ok(known) } else { super::base::open(self, cache, platform, found, asked) }
        }
    }

    /// What is held is what was ever held.
    "never-uncounts" NeverUncounts {
        fn uncount(&self, _: &mut Held, _: Range) {}
    }
}
