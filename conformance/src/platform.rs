//! The platform: where the suite runs.

use hostview_sim::{
    DeviceAddr, Event, Fault, FaultPlan, HostAddr, MemoryMode, PagePolicy, PlannedFault, Profile, RegisterCall,
    RegisterFlags, Registration, SimHost, SimOptions, VirtualTime,
};
use serde::{Deserialize, Serialize};

use crate::case::Via;
use crate::code::ErrorCode;
use crate::library::Leftover;

/// What a platform cannot do, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// Why a platform answers no more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Loss {
    /// A call took the process with it.
    #[error("{0}")]
    Crashed(String),
    /// A call did not return in its time.
    #[error("{0}")]
    Hung(String),
    /// The suite itself was told to end.
    #[error("stopped by a signal")]
    Stopped,
}

/// The memory at an address of the shared range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemoryAt {
    /// Its page, in bytes.
    pub page: u64,
    /// The device that it is of, where the driver tells.
    pub device: Option<u32>,
}

/// A platform that is called past the suite as well, by a subject that opens the driver itself: what it called is told
/// afterwards.
pub trait Observed {
    /// The subject is called now: of its coming calls these fail.
    fn begin(&mut self, faults: &FaultPlan);

    /// The subject has come back: the calls that it made since.
    fn end(&mut self) -> Vec<Event>;
}

/// Where the suite runs: the simulator, or a driver library.
pub trait Platform {
    /// Allocates device memory.
    ///
    /// # Errors
    ///
    /// The number that the layer answers.
    fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy, via: Via) -> Result<DeviceAddr, ErrorCode>;

    /// Frees device memory.
    ///
    /// # Errors
    ///
    /// The number that the layer answers.
    fn free(&mut self, address: DeviceAddr, via: Via) -> Result<(), ErrorCode>;

    /// Registers device memory into the host.
    ///
    /// # Errors
    ///
    /// The driver's number.
    fn register(&mut self, call: RegisterCall) -> Result<HostAddr, ErrorCode>;

    /// Ends a registration.
    ///
    /// # Errors
    ///
    /// The driver's number.
    fn unregister(&mut self, address: DeviceAddr, device: u32) -> Result<(), ErrorCode>;

    /// Ends a registration of a given kind: `halHostUnregisterEx`, with its flag word.
    ///
    /// # Errors
    ///
    /// The driver's number.
    fn unregister_ex(&mut self, address: DeviceAddr, device: u32, flags: u32) -> Result<(), ErrorCode>;

    /// Copies to the device.
    ///
    /// # Errors
    ///
    /// The driver's number.
    fn copy_in(&mut self, address: DeviceAddr, from: &[u8]) -> Result<(), ErrorCode>;

    /// Copies from the device.
    ///
    /// # Errors
    ///
    /// The driver's number.
    fn copy_out(&mut self, address: DeviceAddr, into: &mut [u8]) -> Result<(), ErrorCode>;

    /// Loads as the CPU would, without the signal.
    ///
    /// # Errors
    ///
    /// The access would fault.
    fn host_read(&mut self, address: HostAddr, into: &mut [u8]) -> Result<(), Fault>;

    /// Stores as the CPU would, without the signal.
    ///
    /// # Errors
    ///
    /// The access would fault.
    fn host_write(&mut self, address: HostAddr, from: &[u8]) -> Result<(), Fault>;

    /// Makes a coming call fail.
    ///
    /// # Errors
    ///
    /// The platform cannot: no real device fails on demand.
    fn plan_fault(&mut self, fault: PlannedFault) -> Result<(), Unsupported>;

    /// What the driver wrote so far.
    fn log(&self) -> &[String];

    /// Whether what the driver writes can be seen at all.
    fn keeps_log(&self) -> bool {
        true
    }

    /// Waits until the driver has written a line that holds this text, or should have long ago.
    fn await_log(&mut self, _text: &str) {}

    /// Why the platform answers no more.
    fn lost(&self) -> Option<Loss> {
        None
    }

    /// The registrations that the driver holds, where it can be asked.
    fn registrations(&self) -> Option<Vec<Registration>> {
        None
    }

    /// What memory lies at an address, where it can be told.
    fn memory_at(&self, address: DeviceAddr) -> Option<MemoryAt>;

    /// How many pages a registration covers.
    fn pages(&self, _registration: &Registration) -> u64 {
        0
    }

    /// Virtual time, on a platform that keeps it.
    fn virtual_time(&self) -> Option<VirtualTime> {
        None
    }

    /// How the allocator stands, in lines, where it can be asked.
    fn describe(&self) -> Vec<String> {
        Vec::new()
    }

    /// How host access is kept from unregistered memory.
    fn memory_mode(&self) -> MemoryMode {
        MemoryMode::Protected
    }

    /// Ends every registration and frees every allocation that was made here, on a platform that outlives a sequence: what was
    /// given back, and what could not be.
    fn give_back(&mut self) -> Option<Leftover> {
        None
    }

    /// The simulated host behind it, where that is one of this process.
    fn simulated(&self) -> Option<&SimHost> {
        None
    }

    /// The platform as one that a subject calls past the suite, where it does.
    fn observed(&mut self) -> Option<&mut dyn Observed> {
        None
    }
}

/// The simulator as a platform.
#[derive(Debug)]
pub struct SimPlatform {
    host: SimHost,
}

impl SimPlatform {
    /// A fresh simulated host.
    #[must_use]
    pub fn new(profile: &Profile) -> Self {
        Self { host: SimHost::new(profile) }
    }

    /// A fresh simulated host, made in a certain way.
    #[must_use]
    pub fn with_options(profile: &Profile, options: &SimOptions) -> Self {
        Self { host: SimHost::with_options(profile, options) }
    }

    /// A fresh simulated host that keeps books instead of protecting memory.
    #[must_use]
    pub fn bookkeeping(profile: &Profile, reason: &str) -> Self {
        let options = SimOptions { bookkeeping: Some(reason.to_owned()), ..SimOptions::default() };
        Self::with_options(profile, &options)
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &SimHost {
        &self.host
    }
}

impl Platform for SimPlatform {
    fn alloc(&mut self, device: u32, bytes: u64, policy: PagePolicy, via: Via) -> Result<DeviceAddr, ErrorCode> {
        match via {
            Via::Rt => Ok(self.host.rt_malloc(device, bytes, policy)?),
            Via::Acl => Ok(self.host.acl_malloc(device, bytes, policy)?),
            // A `halMemAlloc` flag word names one page kind: the first of the policy.
            Via::Hal => Ok(self.host.alloc(device, policy.kinds(bytes)[0], bytes)?),
        }
    }

    fn free(&mut self, address: DeviceAddr, via: Via) -> Result<(), ErrorCode> {
        match via {
            Via::Rt | Via::Hal => Ok(self.host.free(address)?),
            Via::Acl => Ok(self.host.acl_free(address)?),
        }
    }

    fn register(&mut self, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
        Ok(self.host.register(call)?)
    }

    fn unregister(&mut self, address: DeviceAddr, device: u32) -> Result<(), ErrorCode> {
        Ok(self.host.unregister(address, device)?)
    }

    fn unregister_ex(&mut self, address: DeviceAddr, device: u32, flags: u32) -> Result<(), ErrorCode> {
        Ok(self.host.unregister_ex(address, device, RegisterFlags(flags))?)
    }

    fn copy_in(&mut self, address: DeviceAddr, from: &[u8]) -> Result<(), ErrorCode> {
        Ok(self.host.copy_in(address, from)?)
    }

    fn copy_out(&mut self, address: DeviceAddr, into: &mut [u8]) -> Result<(), ErrorCode> {
        Ok(self.host.copy_out(address, into)?)
    }

    fn host_read(&mut self, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
        self.host.host_read(address, into)
    }

    fn host_write(&mut self, address: HostAddr, from: &[u8]) -> Result<(), Fault> {
        self.host.host_write(address, from)
    }

    fn plan_fault(&mut self, fault: PlannedFault) -> Result<(), Unsupported> {
        self.host.plan_fault(fault);
        Ok(())
    }

    fn log(&self) -> &[String] {
        self.host.log()
    }

    fn registrations(&self) -> Option<Vec<Registration>> {
        Some(self.host.registrations().collect())
    }

    fn memory_at(&self, address: DeviceAddr) -> Option<MemoryAt> {
        let allocation = self.host.allocation_at(address)?;
        let page = self.host.profile().page(allocation.kind).bytes();
        Some(MemoryAt { page, device: Some(allocation.device) })
    }

    fn pages(&self, registration: &Registration) -> u64 {
        self.host.profile().page(registration.kind).pages(registration.bytes)
    }

    fn virtual_time(&self) -> Option<VirtualTime> {
        Some(self.host.now())
    }

    fn describe(&self) -> Vec<String> {
        self.host.describe_heaps()
    }

    fn memory_mode(&self) -> MemoryMode {
        self.host.memory_mode().clone()
    }

    fn simulated(&self) -> Option<&SimHost> {
        Some(&self.host)
    }
}
