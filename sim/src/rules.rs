//! The rules of the simulated driver: each call in the journal comes to one of them, and each names its evidence.
//!
//! An answer is written once, here: the code that decides names the rule and returns what the rule answers.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::DrvError;

/// The name of a rule. It never changes, and is never given to another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RuleId(&'static str);

impl RuleId {
    /// As text.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.0
    }

    /// Its rule; rules alone make ids, so that there is one.
    #[must_use]
    pub fn rule(self) -> Option<&'static Rule> {
        Rule::find(self.0)
    }
}

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl Serialize for RuleId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

impl<'de> Deserialize<'de> for RuleId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = String::deserialize(deserializer)?;
        let unknown = || D::Error::custom(format!("no rule is called `{id}`; `hostview explain` lists them"));
        Rule::find(&id).map(|rule| rule.id).ok_or_else(unknown)
    }
}

/// How a rule is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// On a device: the measured sweep.
    Measured,
    /// In the open driver's source.
    Source,
    /// In the recorded sequences of `fixtures/traces`, where they say otherwise than the source.
    Trace,
    /// In an upstream report.
    Reported,
    /// Nowhere: the likeliest reading.
    Assumed,
}

impl Evidence {
    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Source => "source",
            Self::Trace => "trace",
            Self::Reported => "reported",
            Self::Assumed => "assumed",
        }
    }
}

/// What a rule is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// What a host and its device can do together.
    Capabilities,
    /// `halMemAlloc`.
    Alloc,
    /// `halMemFree`.
    Free,
    /// `halHostRegister`.
    Register,
    /// `halHostUnregister`, `halHostUnregisterEx`.
    Unregister,
    /// Synchronous copies.
    Copy,
    /// Loads and stores of the CPU.
    Access,
    /// What calls cost.
    Cost,
}

impl Topic {
    /// All of them, in the order of lists.
    pub const ALL: [Self; 8] = [
        Self::Capabilities,
        Self::Alloc,
        Self::Free,
        Self::Register,
        Self::Unregister,
        Self::Copy,
        Self::Access,
        Self::Cost,
    ];

    /// The word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Capabilities => "capabilities",
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Register => "register",
            Self::Unregister => "unregister",
            Self::Copy => "copy",
            Self::Access => "access",
            Self::Cost => "cost",
        }
    }
}

/// What comes of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Then {
    /// The call fails, and changes nothing.
    Fails(DrvError),
    /// This.
    Does(&'static str),
}

/// A rule of the simulated driver.
#[derive(PartialEq, Eq, Hash, Debug)]
pub struct Rule {
    /// Its name.
    pub id: RuleId,
    /// What it is about.
    pub topic: Topic,
    /// When it decides; of the rules that could, the first of the list does.
    pub when: &'static str,
    /// What comes of it.
    pub then: Then,
    /// How it is known.
    pub evidence: Evidence,
    /// Where: a file of the driver, an issue, a trace.
    pub place: &'static str,
    /// The keys of a profile that it follows.
    pub keys: &'static [&'static str],
}

impl Rule {
    /// Every rule, by topic; within one in the order in which the driver asks.
    #[must_use]
    pub fn all() -> &'static [&'static Self] {
        ALL
    }

    /// The rule with this name, however it is spelt.
    #[must_use]
    pub fn find(id: &str) -> Option<&'static Self> {
        ALL.iter().copied().find(|rule| rule.id.0.eq_ignore_ascii_case(id))
    }

    /// What a call answers by this rule, which must be one of a refusal.
    pub(crate) fn error(&self) -> DrvError {
        match self.then {
            Then::Fails(error) => error,
            Then::Does(_) => DrvError::InnerErr,
        }
    }
}

macro_rules! rules {
    ($($topic:ident { $($name:ident = $id:literal: $when:literal => $then:expr, $evidence:ident $place:literal $(, by $($key:literal)*)?;)* })*) => {
        $($(pub(crate) static $name: Rule = Rule {
            id: RuleId($id),
            topic: Topic::$topic,
            when: $when,
            then: $then,
            evidence: Evidence::$evidence,
            place: $place,
            keys: &[$($($key),*)?],
        };)*)*

        static ALL: &[&Rule] = &[$($(&$name,)*)*];
    };
}

use Then::{Does, Fails};

rules! {
    Capabilities {
        BAR_MEM = "P1": "ordinary pages can be registered (bar_mem; v3 reports it, and asks none of these when it registers)"
            => Does("the host's page is the device's, the host can combine writes, and the chip reports it"),
            Source "svm_master_dev_capability.c; hw-native-sys/simpler#1531",
            by "host.page_size" "device.page_size" "host.write_combining" "device.reports_bar" "capabilities.bar_mem";
        BAR_HUGE_MEM = "P2": "huge pages can be registered (bar_huge_mem; as for P1)"
            => Does("the host can combine writes, and the chip reports it; the page sizes are not asked"),
            Source "svm_master_dev_capability.c",
            by "host.write_combining" "device.reports_bar" "capabilities.bar_huge_mem";
        DEV_MEM_MAP_HOST = "P3": "memory of a device process can be mapped (dev_mem_map_host)"
            => Does("the host's page is the device's, and it is no virtual function"),
            Source "svm_master_dev_capability.c",
            by "host.page_size" "device.page_size" "host.virtual_function" "capabilities.dev_mem_map_host";
    }
    Alloc {
        ALLOC_DEVICE = "A1": "the device id is 66 or more" => Fails(DrvError::InvalidDevice),
            Source "devmm_svm.c";
        ALLOC_NO_DEVICE = "A2": "no device has that id" => Fails(DrvError::NoDevice),
            Source "devmm_virt_interface.h", by "device.count";
        ALLOC_NOTHING = "A3": "0 bytes are asked for" => Fails(DrvError::InvalidValue),
            Source "devmm_svm.c";
        ALLOC_HEAP_TOO_LARGE = "A4": "over 512 MiB, and the heap for it is larger than the device's memory rounded up to a power of two"
            => Fails(DrvError::OutOfMemory),
            Source "devmm_proc_info.c", by "device.memory" "driver.heap_size";
        ALLOC_OWN_HEAP = "A5": "over 512 MiB"
            => Does("it gets a heap of its own, of whole pages that no other allocation is cut from"),
            Source "devmm_svm.h, devmm_virt_base_heap.c", by "driver.heap_size";
        ALLOC_CACHED = "A6": "up to the cache's threshold, and the cache has an idle block of that size or larger"
            => Does("it gets the newest of exactly that size, else the low end of the smallest larger one; pages and \
                     registrations of what was there before stay"),
            Source "devmm_virt_com_heap.c", by "driver.ordinary_cache_threshold" "driver.huge_cache_threshold";
        ALLOC_NO_ADDRESSES = "A7": "no address is left for a heap" => Fails(DrvError::OutOfMemory),
            Source "devmm_virt_interface.h", by "driver.svm_size" "driver.heap_start";
        ALLOC_NO_MEMORY = "A8": "the device has less memory left than the block takes"
            => Fails(DrvError::OutOfMemory),
            Source "devmm_proc_info.c", by "device.memory";
        ALLOC_BLOCK = "A9": "a heap of that page kind has room"
            => Does("the kernel maps a block of whole 2 MiB, from the smallest room that fits; a rest of 4 KiB and 20 % or more \
                     stays idle in the cache, where the block is up to its threshold"),
            Source "devmm_virt_com_heap.c";
        ALLOC_NEW_HEAP = "A10": "otherwise"
            => Does("a new heap is made for it, and the kernel maps a block of whole 2 MiB at its low end"),
            Source "devmm_virt_com_heap.c", by "driver.heap_size" "driver.heap_start";
    }
    Free {
        FREE_UNINIT = "F1": "nothing was ever allocated" => Fails(DrvError::InvalidHandle),
            Source "devmm_svm.c";
        FREE_REGISTERED_V3 = "F2": "a page of the allocation is registered, and the driver is one that looks"
            => Fails(DrvError::Busy),
            Source "malloc_mng.c, svm_register.c", by "driver.free_while_registered";
        FREE_UNKNOWN = "F3": "the address is not exactly the base of a live allocation: null, inside one, freed"
            => Fails(DrvError::InvalidValue),
            Source "devmm_virt_com_heap.c";
        FREE_OWN_HEAP_HELD = "F4": "over 512 MiB, and a registration that begins in it holds it"
            => Fails(DrvError::IocrlFail),
            Source "devmm_virt_base_heap.c, svm_heap_mng.c; a page that is mapped by a registration from elsewhere holds nothing: trace 199";
        FREE_OWN_HEAP = "F5": "over 512 MiB" => Does("its block and its heap go back to the kernel"),
            Source "devmm_virt_base_heap.c";
        FREE_BLOCK_HELD = "F6": "a whole block over the cache's threshold, and a registration that begins in it holds it"
            => Fails(DrvError::Busy),
            Source "devmm_virt_com_heap.c, svm_heap_mng.c; a page that is mapped by a registration from elsewhere holds nothing: trace 199",
            by "driver.ordinary_cache_threshold" "driver.huge_cache_threshold";
        FREE_BLOCK = "F7": "a whole block over the cache's threshold" => Does("it goes back to the kernel"),
            Source "devmm_virt_com_heap.c", by "driver.ordinary_cache_threshold" "driver.huge_cache_threshold";
        FREE_CACHED = "F8": "otherwise: up to the threshold, or a part of a block"
            => Does("it goes to the user-space cache, and the kernel is not asked: its pages and its registration stay, and an old \
                     view shows whoever gets the block next"),
            Source "devmm_virt_com_heap.c", by "driver.ordinary_cache_threshold" "driver.huge_cache_threshold";
        CACHE_SHRINKS = "F9": "after that, the cache holds twice its threshold, or the threshold and 128 MiB"
            => Does("whole idle blocks go back to the kernel, the smallest first; one that a registration holds is kept, and ends it"),
            Source "devmm_virt_com_heap.c", by "driver.adaptive_threshold";
        HEAP_GOES = "F10": "after that, a heap that is not the only one of its kind has no live allocation"
            => Does("it goes, and what is registered in it goes from the host; the marks of its pages stay with the addresses"),
            Trace "145; by the source (devmm_virt_interface.c) the marks go too, and for huge heaps their staying is assumed";
    }
    Register {
        R1 = "v2-R1": "the map type (flag bits 0 to 15) is 7 or more" => Fails(DrvError::NotSupport),
            Source "devmm_svm.c";
        R2 = "v2-R2": "the address is outside the shared range, or the map type another, and the device id is 66 or more"
            => Fails(DrvError::InvalidDevice),
            Source "devmm_svm.c";
        R3 = "v2-R3": "the process type (flag bits 16 to 21) is 6 or more" => Fails(DrvError::NotSupport),
            Source "devmm_svm.c";
        R4 = "v2-R4": "there is nowhere to put the view's address" => Fails(DrvError::InvalidValue),
            Source "devmm_svm.c";
        R_NO_PATH = "v2-R18": "the runtime has no path that maps device memory" => Fails(DrvError::NotSupport),
            Reported "hw-native-sys/simpler, the a5 platform", by "driver.maps_device_memory";
        R7 = "v2-R7": "the address is outside the shared range: host memory, null" => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c", by "driver.svm_start" "driver.svm_size";
        R_OTHER_TYPE = "v2-R19": "host memory with another map type: it is not simulated" => Fails(DrvError::NotSupport),
            Assumed "hostview registers device memory alone";
        R5 = "v2-R5": "no kernel block is there: never allocated, or given back" => Fails(DrvError::ParaError),
            Source "devmm_proc_info.c";
        R_DEVICE_MEMORY = "v2-R20": "device memory with another map type than DEV_SVM_MAP_HOST" => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c";
        R9 = "v2-R9": "0 bytes" => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c";
        R10 = "v2-R10": "the process type is not 0" => Fails(DrvError::NotSupport),
            Source "svm_master_remote_map.c";
        R11 = "v2-R11": "pages of that kind cannot be registered here (P1, P2); bounds, alignment and overlap are not asked any more"
            => Fails(DrvError::NotSupport),
            Source "svm_master_remote_map.c; hw-native-sys/simpler#1531",
            by "host.page_size" "device.page_size" "host.write_combining" "device.reports_bar";
        R12 = "v2-R12": "the size, rounded up to whole pages, passes the heap's end" => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c; a size near 2^64, which wraps there, is refused here";
        R13 = "v2-R13": "the address is not on a page of the allocation's kind" => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c", by "device.page_size" "device.huge_page_size";
        R14 = "v2-R14": "the page is the first of a registration" => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c";
        R15 = "v2-R15": "a page of the range is registered" => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c";
        R16 = "v2-R16": "a page of the range has no memory: past the kernel's block" => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c";
        R17 = "v2-R17": "otherwise, whoever owns the pages"
            => Does("the whole pages of the range are the host's too, and the view is the device address; the block of the first page \
                     is held"),
            Source "svm_master_remote_map.c", by "driver.view_offset";
        R3_NO_DST = "v3-R1": "there is nowhere to put the view's address" => Fails(DrvError::InvalidValue),
            Source "svm_register_only.c";
        R3_NO_PATH = "v3-R2": "the runtime has no path that maps device memory" => Fails(DrvError::NotSupport),
            Reported "hw-native-sys/simpler, the a5 platform", by "driver.maps_device_memory";
        R3_RANGE = "v3-R3": "the address is null, the size 0, or the range leaves the shared range" => Fails(DrvError::ParaError),
            Source "svm_register_only.c, va_reserve.c", by "driver.svm_start" "driver.svm_size";
        R3_FLAGS = "v3-R4": "the map type is not DEV_SVM_MAP_HOST, or a flag from bit 16 on is set, read-only among them"
            => Fails(DrvError::NotSupport),
            Source "svm_register_only.c";
        R3_HOST = "v3-R5": "the address is host memory" => Fails(DrvError::InvalidDevice),
            Source "svm_register_only.c";
        R3_FREE = "v3-R6": "no live allocation is there; what idles in the cache is none" => Fails(DrvError::ParaError),
            Source "svm_register.c";
        R3_ALIGN = "v3-R7": "the address or the whole pages of the size are not on pages of the allocation and of the host"
            => Fails(DrvError::ParaError),
            Source "svm_register.c", by "host.page_size" "device.page_size" "device.huge_page_size";
        R3_BOUNDS = "v3-R8": "the range passes the size that was allocated" => Fails(DrvError::ParaError),
            Source "svm_register.c";
        R3_OVERLAP = "v3-R9": "a page of the range is registered" => Fails(DrvError::RepeatedUserd),
            Source "svm_register.c";
        R3_DONE = "v3-R10": "otherwise"
            => Does("the whole pages of the range are the host's too, and the view is the device address; the allocation cannot be \
                     freed meanwhile"),
            Source "svm_register.c", by "driver.view_offset";
    }
    Unregister {
        U_NO_RECORD = "v2-U1": "register records are on (feature 11), and none has this device and address" => Fails(DrvError::NotExist),
            Source "devmm_svm.c";
        U_FLAGS = "v2-U2": "the map type is 7 or more, or the process type 6 or more" => Fails(DrvError::NotSupport),
            Source "devmm_svm.c";
        U_DEVICE = "v2-U3": "the address is outside the shared range, and the device id is 66 or more" => Fails(DrvError::InvalidDevice),
            Source "devmm_svm.c";
        U_HOST = "v2-U4": "the address is outside the shared range, and is no registration of host memory" => Fails(DrvError::FileOps),
            Source "svm_master_remote_map.c", by "driver.svm_start" "driver.svm_size";
        U_NO_BLOCK = "v2-U5": "no kernel block is there" => Fails(DrvError::ParaError),
            Source "devmm_proc_info.c";
        U_ALIGN = "v2-U6": "the address is not on a page of the allocation's kind" => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c", by "device.page_size" "device.huge_page_size";
        U_NOT_FIRST = "v2-U7": "the page is not the first of a registration: never registered, inside one, unregistered before"
            => Fails(DrvError::ParaError),
            Source "svm_master_remote_map.c";
        U_DONE = "v2-U8": "otherwise, also where the memory is freed and idle in the cache"
            => Does("the pages go from the host, up to the next page that is not registered, the next first one or the end of the \
                     kernel's block: the size is not kept"),
            Source "svm_master_remote_map.c";
        U3_HOST = "v3-U1": "the address is outside the shared range" => Fails(DrvError::NotSupport),
            Source "svm_register.c", by "driver.svm_start" "driver.svm_size";
        U3_NULL = "v3-U2": "the address is null (halHostUnregisterEx)" => Fails(DrvError::ParaError),
            Source "svm_register.c";
        U3_FLAGS = "v3-U3": "the map type is 7 or more, or a flag from bit 16 on is set" => Fails(DrvError::NotSupport),
            Source "svm_register.c";
        U3_FREE = "v3-U4": "no live allocation is there" => Fails(DrvError::ParaError),
            Source "svm_register.c";
        U3_NOT_FIRST = "v3-U5": "no registration begins at the address" => Fails(DrvError::ParaError),
            Source "svm_register.c";
        U3_DONE = "v3-U6": "otherwise" => Does("exactly the pages of that registration go from the host"),
            Source "svm_register.c";
    }
    Copy {
        COPY_NOWHERE = "C1": "a byte of the range has no device memory, or there is none to copy" => Fails(DrvError::InvalidValue),
            Assumed "what a copy to such an address answers was not read";
        COPY_DONE = "C2": "otherwise, registered or not" => Does("the bytes are the device's"),
            Measured "CANN 9.0.0, a2a3: copies of 4 to 64 bytes";
    }
    Access {
        ACCESS_SHOWS = "M1": "the page is registered" => Does("the load or store is one of the device's memory, whoever owns it now"),
            Source "svm_master_remote_map.c";
        ACCESS_READ_ONLY = "M2": "a store, and the page is registered read-only (flag bit 28)" => Does("it faults"),
            Source "svm_master_vma_ops.c";
        ACCESS_FAULTS = "M3": "the page of the shared range is not registered" => Does("it faults"),
            Source "svm_master_vma_ops.c";
    }
    Cost {
        COST_REGISTER = "K1": "a registration, or one that was refused for its kind of pages"
            => Does("costs a floor, and a part for each page of the allocation's kind that it registers"),
            Measured "CANN 9.0.0, a2a3, 4 KiB host pages; on other hosts and on v3 assumed",
            by "costs.register_ordinary" "costs.register_huge" "costs.register_per_ordinary_page" "costs.register_per_huge_page";
        COST_UNREGISTER = "K2": "the end of a registration"
            => Does("costs a floor, and a part for each page of the host that it walks, whatever the allocation's pages"),
            Measured "CANN 9.0.0, a2a3, 4 KiB host pages; on other hosts and on v3 assumed",
            by "host.page_size" "costs.unregister_ordinary" "costs.unregister_huge" "costs.unregister_per_host_page_ordinary"
               "costs.unregister_per_host_page_huge";
        COST_COPY = "K3": "a copy" => Does("costs a floor, which was measured up to 64 bytes, and its bytes at a bandwidth, which is assumed"),
            Measured "CANN 9.0.0, a2a3: 9.0 to 9.7 µs for 4 to 64 bytes", by "costs.copy" "costs.copy_bandwidth";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_rules_have_one_name_and_each_is_found_by_its_own() {
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|rule| rule.id).collect();
        assert_eq!(names.len(), ALL.len());
        for rule in ALL {
            assert_eq!(rule.id.rule(), Some(*rule));
            assert_eq!(Rule::find(&rule.id.0.to_lowercase()), Some(*rule));
        }
        assert_eq!(Rule::find("v2-R6"), None);
    }

    #[test]
    fn the_keys_of_a_rule_are_those_of_profiles() {
        let a2a3 = crate::Profile::shipped("a2a3").unwrap();
        let profile = toml::Table::try_from(&a2a3).unwrap();
        for rule in ALL {
            for key in rule.keys {
                let (table, key) = key.split_once('.').unwrap();
                // A stated capability is in no shipped profile, and can be in any.
                let stated = || toml::from_str(&format!("{table}.{key} = true")).unwrap();
                let known = profile.get(table).and_then(|table| table.get(key)).is_some()
                    || table == "capabilities" && a2a3.overridden(&stated(), "here").is_ok();
                assert!(known, "{}: {table}.{key}", rule.id);
            }
        }
    }
}
