//! What the suite and the process that has the library say to each other: one JSON line each way for a call.

use hostview_sim::{DeviceAddr, Fault, HostAddr, PagePolicy, RegisterCall, RegisterFlags};
use serde::{Deserialize, Serialize};

use super::abi::Missing;
use super::find::Paths;
use super::platform::Limits;
use crate::case::{Via, bytes_of_hex};
use crate::expect::hex_of;
use crate::platform::MemoryAt;

/// Bytes, as hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex_of(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        bytes_of_hex(&text).map(Self).map_err(serde::de::Error::custom)
    }
}

/// What the suite asks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Open {
        paths: Paths,
        limits: Limits,
    },
    Alloc {
        device: u32,
        bytes: u64,
        policy: PagePolicy,
        via: Via,
    },
    Free {
        address: u64,
        via: Via,
    },
    Register {
        address: u64,
        bytes: u64,
        flags: u32,
        device: u32,
        has_dst: bool,
    },
    Unregister {
        address: u64,
        device: u32,
    },
    UnregisterEx {
        address: u64,
        device: u32,
        flags: u32,
    },
    CopyIn {
        address: u64,
        data: Bytes,
    },
    CopyOut {
        address: u64,
        bytes: u64,
    },
    HostRead {
        address: u64,
        bytes: u64,
    },
    HostWrite {
        address: u64,
        data: Bytes,
    },
    MemoryAt {
        address: u64,
    },
    /// Frees and unregisters everything that is left.
    CleanUp,
}

impl Request {
    /// The call that it comes to, by the name that a reader of a driver's log knows.
    pub(super) fn call(&self) -> &'static str {
        match self {
            Self::Open { .. } => "opening the device",
            Self::Alloc { via: Via::Acl, .. } => "aclrtMalloc",
            Self::Alloc { .. } => "halMemAlloc",
            Self::Free { via: Via::Acl, .. } => "aclrtFree",
            Self::Free { .. } => "halMemFree",
            Self::Register { .. } => "halHostRegister",
            Self::Unregister { .. } => "halHostUnregister",
            Self::UnregisterEx { .. } => "halHostUnregisterEx",
            Self::CopyIn { .. } | Self::CopyOut { .. } => "drvMemcpy",
            Self::HostRead { .. } => "a load through a view",
            Self::HostWrite { .. } => "a store through a view",
            Self::MemoryAt { .. } => "drvMemGetAttribute",
            Self::CleanUp => "cleaning up",
        }
    }

    pub(super) fn register(call: RegisterCall) -> Self {
        let RegisterCall { address, bytes, flags: RegisterFlags(flags), device, has_dst } = call;
        Self::Register { address: address.get(), bytes, flags, device, has_dst }
    }
}

/// What it is answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Reply {
    Opened(Box<MachineFacts>),
    CannotOpen(String),
    Done,
    Address(u64),
    Error(u32),
    Bytes(Bytes),
    Fault(u64),
    Memory(Option<MemoryAt>),
    Left(Leftover),
}

impl Reply {
    pub(super) fn fault(fault: Fault) -> Self {
        Self::Fault(fault.address.get())
    }
}

/// What could not be given back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Leftover {
    /// How many allocations were given back.
    pub freed: u64,
    /// How many registrations were ended.
    pub unregistered: u64,
    /// What is still there, in words.
    pub left: Vec<String>,
}

impl Leftover {
    /// Adds another process' share.
    pub fn add(&mut self, other: Self) {
        self.freed += other.freed;
        self.unregistered += other.unregistered;
        self.left.extend(other.left);
    }
}

/// What a machine says of itself, through its libraries.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MachineFacts {
    /// The chip.
    pub soc: Option<String>,
    /// How many devices the driver counts.
    pub devices: Option<u32>,
    /// The memory of the device in use, in bytes.
    pub memory: Option<u64>,
    /// The answer of the feature query: bit 1 `bar_mem`, bit 2 `dev_mem_map_host`, bit 3 `bar_huge_mem`.
    pub features: Option<u64>,
    /// The host's page, in bytes.
    pub host_page: u64,
    /// ACL's version.
    pub acl_version: Option<String>,
    /// Symbols that are not there.
    pub missing: Vec<Missing>,
    /// Whether there is an ACL library.
    pub acl: bool,
    /// Whether the library says that it is the simulator.
    pub simulator: bool,
}

/// Where a request's address lies, on either side.
pub(super) fn device_address(address: u64) -> DeviceAddr {
    DeviceAddr::new(address)
}

/// A view's address.
pub(super) fn host_address(address: u64) -> HostAddr {
    HostAddr::new(address)
}
