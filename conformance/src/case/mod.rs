//! Cases: a sequence of steps in a file, with what must come of it.
//!
//! One type for all forms: a *case* is TOML with `[[step]]` tables, a *trace* is JSON Lines with the case's header first and then
//! one step a line, and a *sequence set* is JSON Lines with one whole sequence a line. A *journal* of the drop-in library is a trace
//! with calls in the place of steps.

mod journal;
mod load;
mod write;

use std::fmt;

use hostview_sim::{CallKind, PagePolicy};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use load::bytes_of_hex;
pub use load::{CaseError, load, load_text};
pub use write::{to_toml, write_atomically};

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Allocates device memory.
    Alloc,
    /// Frees an allocation.
    Free,
    /// Registers device memory into the host.
    Register,
    /// Ends a registration.
    Unregister,
    /// Reads: through a view; in a cache case through the subject.
    Read,
    /// Writes: through a view; in a cache case through the subject.
    Write,
    /// Copies to the device.
    CopyIn,
    /// Copies from the device.
    CopyOut,
    /// Asks the subject for a view.
    Acquire,
    /// Says that the views of an allocation are no longer in use.
    Release,
    /// Finalizes the subject.
    Finalize,
}

impl Op {
    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Register => "register",
            Self::Unregister => "unregister",
            Self::Read => "read",
            Self::Write => "write",
            Self::CopyIn => "copy_in",
            Self::CopyOut => "copy_out",
            Self::Acquire => "acquire",
            Self::Release => "release",
            Self::Finalize => "finalize",
        }
    }
}

/// Which layer a step calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// `rtMalloc`, `rtFree`.
    #[default]
    Rt,
    /// `aclrtMalloc`, `aclrtFree`: pads sizes and gives ACL error numbers.
    Acl,
    /// `halMemAlloc`, `halMemFree`.
    Hal,
}

/// Which address of a name a step passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// The view's, where the device's is meant.
    View,
}

/// What a case's steps go through.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Through {
    /// Steps call the platform.
    #[default]
    Driver,
    /// Steps go through the subject.
    Cache,
}

/// A fault to inject before a step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fail {
    /// The kind of call that fails.
    pub call: CallKind,
    /// Which one from here on.
    #[serde(default = "first")]
    pub nth: u32,
    /// The name of the error.
    pub error: String,
    /// Every such call from there on fails, until the step is done.
    #[serde(default, skip_serializing_if = "is_false")]
    pub lasting: bool,
}

fn first() -> u32 {
    1
}

/// Where in its calls a step stands still, while the step behind it runs to its end in another thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pause {
    /// Before its nth call of the platform.
    Before(u32),
    /// After its nth call of the platform.
    After(u32),
}

/// What a cache reports to hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldExpectation {
    /// Allocations.
    pub count: u64,
    /// Bytes, as they were asked for.
    pub bytes: u64,
}

/// What must come of a step; several may stand together. Success where nothing else is said.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExpectTable {
    /// It fails with this error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// It fails with this number; 0 is success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// The access faults.
    #[serde(skip_serializing_if = "is_false")]
    pub fault: bool,
    /// The read gives these bytes, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<String>,
    /// The allocation lies where this one lay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_address_as: Option<String>,
    /// The driver says that the allocation is on this device, where it says so at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_device: Option<u32>,
    /// The driver has written a line that holds this text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// The registration covers so many pages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pages: Option<u64>,
    /// The call costs so many nanoseconds of virtual time, where that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost_ns: Option<u64>,
    /// The subject reports so much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldExpectation>,
    /// `acquire` gives a view (true), or leaves the access to device copies (false).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub view: Option<bool>,
    /// Whatever it answers: it only must answer.
    #[serde(skip_serializing_if = "is_false")]
    pub any: bool,
    /// The subject refuses the call, whatever its reason.
    #[serde(skip_serializing_if = "is_false")]
    pub refused: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

/// `"ok"`, or a table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Expect(pub ExpectTable);

impl Expect {
    fn is_ok(&self) -> bool {
        self.0 == ExpectTable::default()
    }
}

impl Serialize for Expect {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_ok() { serializer.serialize_str("ok") } else { self.0.serialize(serializer) }
    }
}

impl<'de> Deserialize<'de> for Expect {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OkOrTable;
        impl<'de> Visitor<'de> for OkOrTable {
            type Value = Expect;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"ok\" or a table such as { error = \"DRV_ERROR_NOT_SUPPORT\" }")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Expect, E> {
                match text {
                    "ok" => Ok(Expect::default()),
                    _ => Err(E::custom(format!(
                        "`{text}` is no expectation; write \"ok\" or a table such as {{ error = \"DRV_ERROR_NOT_SUPPORT\" }}"
                    ))),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Expect, A::Error> {
                ExpectTable::deserialize(de::value::MapAccessDeserializer::new(map)).map(Expect)
            }
        }
        deserializer.deserialize_any(OkOrTable)
    }
}

/// One step.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What it does.
    pub op: Op,
    /// What it makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it works on: a name, `null`, or `nowhere` (an address of the shared range that was never allocated).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// How many bytes; the rest of the allocation where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Where in the allocation.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offset: u64,
    /// The device.
    #[serde(default, skip_serializing_if = "is_device_0")]
    pub device: u32,
    /// The page policy.
    #[serde(default, skip_serializing_if = "is_default_policy")]
    pub policy: PagePolicy,
    /// The layer.
    #[serde(default, skip_serializing_if = "is_rt")]
    pub via: Via,
    /// Bytes to write, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// A byte to write all over the range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<u8>,
    /// Which address to pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<By>,
    /// Register read-only.
    #[serde(default, skip_serializing_if = "is_false")]
    pub read_only: bool,
    /// The flag word of a register call, instead of the usual one; of an unregister call, which then is
    /// `halHostUnregisterEx`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flags: Option<u32>,
    /// A fault to inject first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail: Option<Fail>,
    /// The view that it acquires stays in use, until `release`, `free` or `finalize`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub hold: bool,
    /// It stands still there, and the step behind it runs meanwhile; for subjects that say they are thread-safe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Pause>,
    /// What must come of it.
    #[serde(default, skip_serializing_if = "Expect::is_ok")]
    pub expect: Expect,
    /// The number that must come, as recorded sequences have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// The address that must come of an allocation, as recorded sequences have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_device_0(value: &u32) -> bool {
    *value == 0
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_default_policy(policy: &PagePolicy) -> bool {
    *policy == PagePolicy::default()
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde asks for")]
fn is_rt(via: &Via) -> bool {
    *via == Via::Rt
}

impl Step {
    /// A step with nothing but its operation.
    #[must_use]
    pub fn new(op: Op) -> Self {
        Self {
            op,
            name: None,
            target: None,
            bytes: None,
            offset: 0,
            device: 0,
            policy: PagePolicy::default(),
            via: Via::default(),
            data: None,
            fill: None,
            by: None,
            read_only: false,
            flags: None,
            fail: None,
            hold: false,
            pause: None,
            expect: Expect::default(),
            code: None,
            address: None,
        }
    }

    /// An allocation.
    #[must_use]
    pub fn alloc(name: &str, bytes: u64, policy: PagePolicy) -> Self {
        Self { name: Some(name.to_owned()), bytes: Some(bytes), policy, ..Self::new(Op::Alloc) }
    }

    /// A step on a name.
    #[must_use]
    pub fn on(op: Op, target: &str) -> Self {
        Self { target: Some(target.to_owned()), ..Self::new(op) }
    }

    /// The same step over a part of its target.
    #[must_use]
    pub fn range(self, offset: u64, bytes: u64) -> Self {
        Self { offset, bytes: Some(bytes), ..self }
    }

    /// The same step, with what must come of it.
    #[must_use]
    pub fn expecting(self, expect: ExpectTable) -> Self {
        Self { expect: Expect(expect), ..self }
    }

    /// The same step, failing with this error.
    #[must_use]
    pub fn failing(self, error: impl Into<crate::code::ErrorCode>) -> Self {
        let code: crate::code::ErrorCode = error.into();
        let table = match code.name() {
            Some(name) => ExpectTable { error: Some(name.to_owned()), ..ExpectTable::default() },
            None => ExpectTable { code: Some(code.0), ..ExpectTable::default() },
        };
        self.expecting(table)
    }
}

/// The address in a recorded step; `None` when it is no address, which loading refuses.
pub(crate) fn address(text: &str) -> Option<u64> {
    load::parse_address(text).ok()
}

/// A sequence with what must come of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// What it shows, in one line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Where it comes from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// The profile: a shipped one's name, or a file.
    pub profile: String,
    /// What the steps go through.
    #[serde(default)]
    pub through: Through,
    /// What `through = "cache"` drives; the reference cache where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Laws that must be seen to break.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect_law_broken: Vec<String>,
    /// The seed that the sequence was drawn from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Memory is not protected: for sequences that the system's limits cannot carry.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bookkeeping: bool,
    /// Keys of the profile that are otherwise here.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    pub profile_override: toml::Table,
    /// The steps.
    #[serde(default, rename = "step", alias = "steps")]
    pub steps: Vec<Step>,
    /// Whether it was read from a journal of the drop-in library.
    #[serde(skip)]
    pub is_journal: bool,
}
