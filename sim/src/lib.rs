//! A faithful simulator of page-granular device-memory registration.
//!
//! [`SimHost`] is a host with its devices as one process sees them through the driver: allocations in heaps of ordinary and
//! huge pages, the driver's user-space cache of freed blocks, registration of whole pages into the host, what each call
//! costs, and memory that really faults where no registration allows it. [`Profile`] says which host it is.
//!
//! Each call in the journal comes to a [`Rule`], which names its evidence: see [`Event`].
//!
//! Not simulated: registration of host memory into the device, shared and reserved (VMM) memory, giant pages, host agents,
//! and what two threads inside one driver call can do to each other.

mod addr;
mod clock;
pub mod config;
mod error;
mod flags;
mod heap;
mod host;
mod idle;
mod journal;
mod kernel;
mod memory;
mod profile;
mod register_v2;
mod register_v3;
mod rules;
mod runtime;
mod sys;

pub use addr::{ByteCount, DeviceAddr, HostAddr, PageKind, PageSize};
pub use clock::{CostPoint, VirtualTime};
pub use error::{AclError, DrvError};
pub use flags::{AGENT_LIMIT, RegisterFlags, map_type};
pub use heap::Allocation;
pub use host::{FEATURE_REGISTER_RECORDS, RegisterCall, Registration, SimHost, SimOptions, cost_of, resident_bytes};
pub use journal::{Call, CallKind, Event, FaultPlan, Outcome, PlannedFault};
pub use memory::{Access, Fault, MemoryMode};
pub use profile::{
    Capabilities, CapabilityOverrides, Cost, CostProfile, DeviceProfile, DriverProfile, FreeWhileRegistered,
    Generation, HUGE_ABOVE, HostProfile, Profile, ProfileError, files_in,
};
pub use rules::{Evidence, Rule, RuleId, Then, Topic};
pub use runtime::{NoPagePolicy, PagePolicy, acl_padded_size};
