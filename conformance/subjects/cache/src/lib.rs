//! A view cache: one host mapping per device allocation.
//!
//! A runtime that reads and writes device memory from the host maps each allocation at its first access and keeps the
//! mapping for the allocation's life. [`ViewCache`] holds those mappings, speaks to the driver through [`Platform`], and
//! keeps what matters: no view outlives its allocation.
//!
//! * A mapping covers the whole allocation from its base; an interior address gets the view plus the offset.
//! * [`ViewCache::release`] unregisters before the pages go. Where the driver refuses, the record and the allocation stay.
//! * A refused registration leaves nothing behind, and access goes on by device copies. It is not remembered: the next
//!   access asks again, so that a refusal that was of the moment heals, and no new allocation inherits an old answer.
//! * Allocation itself is the owner's business: the cache is told of each one, and is asked before each one goes.
//!
//! ```
//! use hostview_cache::{Platform, ViewCache};
//!
//! # struct Driver(Vec<u8>);
//! # impl Platform for Driver {
//! #     type Error = u32;
//! #     fn register(&mut self, _: u32, base: u64, _: u64) -> Result<u64, u32> { Ok(base) }
//! #     fn unregister(&mut self, _: u32, _: u64) -> Result<(), u32> { Ok(()) }
//! #     fn copy_in(&mut self, _: u32, _: u64, _: &[u8]) -> Result<(), u32> { Ok(()) }
//! #     fn copy_out(&mut self, _: u32, _: u64, _: &mut [u8]) -> Result<(), u32> { Ok(()) }
//! #     fn store(&mut self, _: u64, _: &[u8]) -> Result<(), u32> { Ok(()) }
//! #     fn load(&mut self, _: u64, _: &mut [u8]) -> Result<(), u32> { Ok(()) }
//! # }
//! # let mut driver = Driver(vec![]);
//! let mut cache = ViewCache::new();
//! cache.track(0, 0x12c0_0000_0000, 4096)?;                      // the owner allocated it
//! let view = cache.acquire(&mut driver, 0x12c0_0000_0040, 8)?;  // the first access maps it
//! assert_eq!(view, Some(0x12c0_0000_0040));
//! assert_eq!(cache.held().bytes, 4096);
//! cache.release(&mut driver, 0x12c0_0000_0000, |_driver| Ok(()))?; // unregister, then the owner's free
//! assert_eq!(cache.held().count, 0);
//! # Ok::<(), hostview_cache::CacheError<u32>>(())
//! ```

pub mod abi;
mod cache;
mod table;

pub use cache::{CacheError, Held, Platform, ViewCache};
pub use table::{Range, RangeError, Table};
