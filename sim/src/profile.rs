//! Profiles: one configuration of a simulated platform, from a TOML file that is checked on load.
//!
//! A profile says what the host and the device are (page sizes, write-combining, memory), which driver generation runs,
//! where its regimes lie and what a call costs. What follows from those (the capabilities of [`Capabilities`]) is derived,
//! and can be overridden by name for a host that nobody understands yet.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::addr::{DeviceAddr, PageKind, PageSize};
use crate::config::{self, ConfigError};

/// Which driver generation a profile runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Generation {
    /// SVM v2: Ascend 910B and 910_93, the runtime's `a2a3`.
    V2,
    /// SVM v3: Ascend 950, the runtime's `a5`.
    V3,
}

/// What a free of an allocation does while a registration covers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FreeWhileRegistered {
    /// v2: a small block goes to the user-space cache with its registration; only a block that goes back to the kernel
    /// is refused.
    Cached,
    /// v3: refused with BUSY, whatever the size.
    Busy,
}

/// The host that the device sits in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostProfile {
    /// `getconf PAGESIZE`, in bytes.
    pub page_size: PageSize,
    /// Whether the CPU can map device memory write-combined; a virtual machine often cannot.
    pub write_combining: bool,
    /// Whether the device is a virtual function.
    pub virtual_function: bool,
}

/// The devices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// How many devices there are, numbered from 0.
    pub count: u32,
    /// The ordinary page, in bytes.
    pub page_size: PageSize,
    /// The huge page, in bytes.
    pub huge_page_size: PageSize,
    /// High-bandwidth memory of each device, in bytes.
    pub memory: u64,
    /// Whether the chip reports that its memory lies behind a PCIe bar.
    pub reports_bar: bool,
}

/// The driver: its generation, its address range and the regimes of its allocator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverProfile {
    /// Which generation's rules apply.
    pub generation: Generation,
    /// Whether `DEV_SVM_MAP_HOST` exists at all, as the runtime sees it.
    pub maps_device_memory: bool,
    /// Where the shared address range begins.
    pub svm_start: u64,
    /// How long it is, in bytes.
    pub svm_size: u64,
    /// Where ordinary device heaps begin.
    pub heap_start: u64,
    /// The size of a heap, in bytes: a power of two.
    pub heap_size: PageSize,
    /// What is added to a device address to give the view's; 0 on every real device.
    pub view_offset: u64,
    /// Freed ordinary blocks up to this many bytes stay in the user-space cache.
    pub ordinary_cache_threshold: u64,
    /// Freed huge blocks up to this many bytes stay in the user-space cache.
    pub huge_cache_threshold: u64,
    /// Whether the threshold that starts a shrink follows the heap's peak use (v2) or stands still (v3).
    pub adaptive_threshold: bool,
    /// What a free does while a registration covers the block.
    pub free_while_registered: FreeWhileRegistered,
}

/// A cost in microseconds, read at two points of its distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// The least of 300 measurements.
    pub min: f64,
    /// Their median.
    pub median: f64,
}

/// What a call costs, one constant per mechanism, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostProfile {
    /// A register call in an ordinary heap, before its first page.
    pub register_ordinary: Cost,
    /// A register call in a huge heap, before its first page.
    pub register_huge: Cost,
    /// Each ordinary page registered.
    pub register_per_ordinary_page: Cost,
    /// Each huge page registered.
    pub register_per_huge_page: Cost,
    /// An unregister call in an ordinary heap, before its first page.
    pub unregister_ordinary: Cost,
    /// An unregister call in a huge heap, before its first page.
    pub unregister_huge: Cost,
    /// Each *host* page unregistered, in an ordinary heap.
    pub unregister_per_host_page_ordinary: Cost,
    /// Each *host* page unregistered, in a huge heap.
    pub unregister_per_host_page_huge: Cost,
    /// A synchronous copy to or from the device, before its first byte.
    pub copy: Cost,
    /// What a copy moves, in bytes per microsecond.
    pub copy_bandwidth: f64,
}

/// A capability stated instead of derived.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CapabilityOverrides {
    /// Ordinary pages can be registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar_mem: Option<bool>,
    /// Huge pages can be registered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar_huge_mem: Option<bool>,
    /// Memory of a device process can be mapped into the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dev_mem_map_host: Option<bool>,
}

/// What a host and its device can do together.
///
/// Source: `svm_master_dev_capability.c`, and `driver.md` §7.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Capabilities {
    /// Ordinary pages can be registered.
    pub bar_mem: bool,
    /// Huge pages can be registered.
    pub bar_huge_mem: bool,
    /// Memory of a device process can be mapped into the host.
    pub dev_mem_map_host: bool,
}

/// One configuration of a simulated platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The name that the command line and reports use.
    pub name: String,
    /// What it is, in one line.
    pub summary: String,
    /// Where its figures come from.
    pub source: String,
    /// The host.
    pub host: HostProfile,
    /// The devices.
    pub device: DeviceProfile,
    /// The driver.
    pub driver: DriverProfile,
    /// Capabilities that are stated and not derived.
    #[serde(default)]
    pub capabilities: CapabilityOverrides,
    /// Costs.
    pub costs: CostProfile,
}

/// Why a profile was refused.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file is no profile.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A value that cannot be.
    #[error("{place}: `{key}` {problem}")]
    Value {
        /// The file, or the profile's name.
        place: String,
        /// The key, with its table.
        key: &'static str,
        /// What is wrong, and the mend.
        problem: String,
    },
    /// No shipped profile of that name.
    #[error("no profile `{name}`{hint}; `hostview profiles` lists them, and a path ending in .toml names a file")]
    Unknown {
        /// What was asked for.
        name: String,
        /// The nearest name, when there is one.
        hint: String,
    },
}

/// Source: `svm_define.h`: 2 MiB is what the kernel maps at a time, whatever the page kind.
pub(crate) const KERNEL_BLOCK: PageSize = PageSize::new(2 << 20).unwrap();
/// Source: `devmm_svm.h`: an allocation over this takes heaps of its own.
pub(crate) const OWN_HEAP_ABOVE: u64 = 512 << 20;
/// Source: `npu_driver_base.hpp` and `npu_driver_mem.cc`: over this, a policy that prefers huge pages asks for them.
pub const HUGE_ABOVE: u64 = 1 << 20;
/// Source: `devmm_virt_com_heap.h`: the rest of a kernel block is kept apart only from this size on …
pub(crate) const SPLIT_MIN_BYTES: u64 = 4096;
/// … and from this share of the block on.
pub(crate) const SPLIT_MIN_PERCENT: u64 = 20;
/// Source: `devmm_virt_com_heap.c`: the cache shrinks at twice its threshold, or at the threshold and this much.
pub(crate) const SHRINK_SLACK: u64 = 128 << 20;

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        const SHIPPED: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../fixtures/profiles/", $name, ".toml"))),)*
        ];
    };
}

shipped!("a2a3", "a2a3-64k", "a2a3-16k", "a2a3-vm", "a5", "a5-v3", "shifted");

impl Profile {
    /// The names of the profiles that ship with this crate, in the order of reports.
    pub fn shipped_names() -> impl Iterator<Item = &'static str> {
        SHIPPED.iter().map(|(name, _)| *name)
    }

    /// A profile that ships with this crate.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Unknown`] names the nearest profile.
    pub fn shipped(name: &str) -> Result<Self, ProfileError> {
        match SHIPPED.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Self::parse(text, &format!("fixtures/profiles/{name}.toml")),
            None => Err(ProfileError::Unknown {
                name: name.to_owned(),
                hint: config::nearest(name, Self::shipped_names())
                    .map_or_else(String::new, |near| format!("; did you mean `{near}`?")),
            }),
        }
    }

    /// A shipped profile by name, or a file by its path (anything that ends in `.toml` or holds a separator).
    ///
    /// # Errors
    ///
    /// Whatever [`Profile::shipped`] or [`Profile::load`] answer.
    pub fn find(name_or_path: &str) -> Result<Self, ProfileError> {
        if Self::is_path(name_or_path) { Self::load(Path::new(name_or_path)) } else { Self::shipped(name_or_path) }
    }

    /// Whether [`Profile::find`] takes a word for a path, and not for a name.
    #[must_use]
    pub fn is_path(word: &str) -> bool {
        Path::new(word).extension().is_some_and(|ext| ext == "toml") || word.contains(std::path::is_separator)
    }

    /// Reads a profile from a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is no TOML, has an unknown key or a value that cannot be; the message names the file
    /// and the line or key.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let text = config::read(path)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads a profile from text; `place` is what messages call it.
    ///
    /// # Errors
    ///
    /// As [`Profile::load`].
    pub fn parse(text: &str, place: &str) -> Result<Self, ProfileError> {
        let profile: Self = config::from_toml(text, place)?;
        profile.check(place)?;
        Ok(profile)
    }

    /// This profile with the keys of `overrides` put in place of its own: how a case changes one thing.
    ///
    /// # Errors
    ///
    /// As [`Profile::load`]; `place` is what messages call the overrides.
    pub fn overridden(&self, overrides: &toml::Table, place: &str) -> Result<Self, ProfileError> {
        if overrides.is_empty() {
            return Ok(self.clone());
        }
        let whole = toml::Table::try_from(self).and_then(|mut table| {
            merge(&mut table, overrides);
            toml::to_string(&table)
        });
        let text =
            whole.map_err(|error| ConfigError::Unreadable { place: place.to_owned(), problem: error.to_string() })?;
        let profile: Self = config::from_toml(&text, place).map_err(ConfigError::without_line)?;
        profile.check(place)?;
        Ok(profile)
    }

    /// What the page sizes, the host and the chip come to, overrides included.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        let same_page = self.host.page_size == self.device.page_size;
        let reported = self.device.reports_bar;
        let derived_bar_mem = same_page && self.host.write_combining && reported;
        let derived_bar_huge = self.host.write_combining && reported;
        let derived_dev_mem = same_page && !self.host.virtual_function && reported;
        Capabilities {
            bar_mem: self.capabilities.bar_mem.unwrap_or(derived_bar_mem),
            bar_huge_mem: self.capabilities.bar_huge_mem.unwrap_or(derived_bar_huge),
            dev_mem_map_host: self.capabilities.dev_mem_map_host.unwrap_or(derived_dev_mem),
        }
    }

    /// Whether `DEV_SVM_MAP_HOST` can succeed for allocations of this kind.
    ///
    /// v3 asks no bar capability when it registers (`driver-source.md` §8.1), but there the address and the size of
    /// ordinary memory must be multiples of the host page, which only some allocations meet.
    #[must_use]
    pub fn can_register(&self, kind: PageKind) -> bool {
        if !self.driver.maps_device_memory {
            return false;
        }
        let capabilities = self.capabilities();
        match (self.driver.generation, kind) {
            (Generation::V3, _) => true,
            (Generation::V2, PageKind::Ordinary) => capabilities.bar_mem,
            (Generation::V2, PageKind::Huge) => capabilities.bar_huge_mem,
        }
    }

    /// The page of this kind: the driver's bookkeeping grain, and the allocator's unit.
    #[must_use]
    pub fn page(&self, kind: PageKind) -> PageSize {
        match kind {
            PageKind::Ordinary => self.device.page_size,
            PageKind::Huge => self.device.huge_page_size,
        }
    }

    /// Where ordinary device heaps begin.
    #[must_use]
    pub fn heap_start(&self) -> DeviceAddr {
        DeviceAddr::new(self.driver.heap_start)
    }

    /// Whether an address lies in the shared range at all.
    #[must_use]
    pub fn in_svm_range(&self, address: DeviceAddr) -> bool {
        address.get().checked_sub(self.driver.svm_start).is_some_and(|offset| offset < self.driver.svm_size)
    }

    /// The size up to which a freed block of this kind stays in the user-space cache.
    #[must_use]
    pub fn cache_threshold(&self, kind: PageKind) -> u64 {
        match kind {
            PageKind::Ordinary => self.driver.ordinary_cache_threshold,
            PageKind::Huge => self.driver.huge_cache_threshold,
        }
    }

    /// Checks what the types cannot: that the values can stand together. [`Profile::parse`] does it; a profile that was
    /// changed in code wants it again.
    ///
    /// # Errors
    ///
    /// [`ProfileError::Value`] with the key and the mend; `place` is what the message calls the profile.
    pub fn check(&self, place: &str) -> Result<(), ProfileError> {
        let wrong = |key, problem: String| Err(ProfileError::Value { place: place.to_owned(), key, problem });
        let driver = &self.driver;
        let heap_size = driver.heap_size;
        if self.device.page_size > self.device.huge_page_size {
            return wrong("device.page_size", "is larger than `device.huge_page_size`; swap them".to_owned());
        }
        if self.device.huge_page_size > KERNEL_BLOCK {
            return wrong(
                "device.huge_page_size",
                "is over 2 MiB, the kernel's own unit; give at most 2097152".to_owned(),
            );
        }
        if self.host.page_size > KERNEL_BLOCK {
            return wrong("host.page_size", "is over 2 MiB; give the host's `getconf PAGESIZE`".to_owned());
        }
        if heap_size.bytes() < OWN_HEAP_ABOVE {
            return wrong("driver.heap_size", format!("must hold an allocation of {OWN_HEAP_ABOVE} bytes; give more"));
        }
        if !(1..=64).contains(&self.device.count) {
            return wrong("device.count", format!("is {}; give 1 to 64", self.device.count));
        }
        if self.device.memory < KERNEL_BLOCK.bytes() {
            return wrong("device.memory", format!("is {}; give at least 2 MiB (2097152)", self.device.memory));
        }
        let end = driver.svm_start.checked_add(driver.svm_size).filter(|end| *end < 1 << 47);
        let Some(end) = end else {
            return wrong(
                "driver.svm_size",
                "runs past the 47-bit address space; give a lower start or size".to_owned(),
            );
        };
        if driver.svm_start == 0 || !heap_size.divides(driver.svm_start) {
            return wrong("driver.svm_start", "must be a multiple of `driver.heap_size`, and not 0".to_owned());
        }
        if driver.heap_start < driver.svm_start || driver.heap_start >= end {
            return wrong("driver.heap_start", "lies outside the shared range; move it inside".to_owned());
        }
        if !heap_size.divides(driver.heap_start) {
            return wrong("driver.heap_start", "must be a multiple of `driver.heap_size`".to_owned());
        }
        if driver.view_offset != 0 && (driver.view_offset < driver.svm_size || driver.view_offset >= 1 << 46) {
            return wrong(
                "driver.view_offset",
                "must be 0, or at least `driver.svm_size` so that views lie outside the shared range".to_owned(),
            );
        }
        if !KERNEL_BLOCK.divides(driver.view_offset) {
            return wrong("driver.view_offset", "must be a multiple of 2 MiB".to_owned());
        }
        self.costs.check().or_else(|(key, problem)| wrong(key, problem))
    }
}

impl Cost {
    /// No cost.
    pub const ZERO: Self = Self { min: 0.0, median: 0.0 };
}

impl CostProfile {
    /// What registering costs: a call before its first page, and each page.
    #[must_use]
    pub fn register(&self, kind: PageKind) -> (Cost, Cost) {
        match kind {
            PageKind::Ordinary => (self.register_ordinary, self.register_per_ordinary_page),
            PageKind::Huge => (self.register_huge, self.register_per_huge_page),
        }
    }

    /// What unregistering costs: a call before its first page, and each *host* page.
    #[must_use]
    pub fn unregister(&self, kind: PageKind) -> (Cost, Cost) {
        match kind {
            PageKind::Ordinary => (self.unregister_ordinary, self.unregister_per_host_page_ordinary),
            PageKind::Huge => (self.unregister_huge, self.unregister_per_host_page_huge),
        }
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let costs = [
            ("costs.register_ordinary", self.register_ordinary),
            ("costs.register_huge", self.register_huge),
            ("costs.register_per_ordinary_page", self.register_per_ordinary_page),
            ("costs.register_per_huge_page", self.register_per_huge_page),
            ("costs.unregister_ordinary", self.unregister_ordinary),
            ("costs.unregister_huge", self.unregister_huge),
            ("costs.unregister_per_host_page_ordinary", self.unregister_per_host_page_ordinary),
            ("costs.unregister_per_host_page_huge", self.unregister_per_host_page_huge),
            ("costs.copy", self.copy),
        ];
        for (key, cost) in costs {
            let sound = cost.min.is_finite() && cost.median.is_finite() && 0.0 <= cost.min && cost.min <= cost.median;
            if !sound || cost.median > 1e9 {
                return Err((key, "must hold 0 <= min <= median <= 1e9 microseconds".to_owned()));
            }
        }
        if !(self.copy_bandwidth.is_finite() && self.copy_bandwidth > 0.0) {
            return Err(("costs.copy_bandwidth", "must be over 0 bytes per microsecond".to_owned()));
        }
        Ok(())
    }
}

fn merge(table: &mut toml::Table, overrides: &toml::Table) {
    for (key, value) in overrides {
        match (table.get_mut(key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(with)) => merge(inner, with),
            _ => drop(table.insert(key.clone(), value.clone())),
        }
    }
}

/// The files of a folder that hold profiles, in name order.
///
/// # Errors
///
/// The folder cannot be read.
pub fn files_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|ext| ext == "toml"));
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capabilities(name: &str) -> (bool, bool, bool) {
        let Capabilities { bar_mem, bar_huge_mem, dev_mem_map_host } = Profile::shipped(name).unwrap().capabilities();
        (bar_mem, bar_huge_mem, dev_mem_map_host)
    }

    #[test]
    fn every_file_in_fixtures_is_shipped_and_bears_its_own_name() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/profiles");
        let mut found: Vec<String> = Vec::new();
        for file in files_in(&folder).unwrap() {
            let stem = file.file_stem().unwrap().to_str().unwrap().to_owned();
            assert_eq!(Profile::load(&file).unwrap().name, stem);
            found.push(stem);
        }
        let mut shipped: Vec<_> = Profile::shipped_names().map(str::to_owned).collect();
        shipped.sort();
        found.sort();
        assert_eq!(found, shipped);
    }

    #[test]
    fn ordinary_pages_need_equal_page_sizes_and_huge_pages_do_not() {
        assert_eq!(capabilities("a2a3"), (true, true, true));
        assert_eq!(capabilities("a2a3-64k"), (false, true, false));
        assert_eq!(capabilities("a2a3-16k"), (false, true, false));
    }

    #[test]
    fn a_virtual_machine_without_write_combining_has_neither() {
        let (bar_mem, bar_huge_mem, _) = capabilities("a2a3-vm");
        assert!(!bar_mem && !bar_huge_mem);
    }

    #[test]
    fn a_capability_can_be_stated_against_the_derivation() {
        let overrides = "[capabilities]\nbar_mem = false".parse().unwrap();
        let profile = Profile::shipped("a2a3").unwrap().overridden(&overrides, "here").unwrap();
        assert!(!profile.capabilities().bar_mem);
        assert!(profile.capabilities().bar_huge_mem);
    }

    #[test]
    fn an_unknown_key_names_its_line_and_the_nearest_key() {
        let text = SHIPPED[0].1.replace("write_combining", "write_combinning");
        let message = Profile::parse(&text, "my.toml").unwrap_err().to_string();
        assert!(message.starts_with("my.toml:"), "{message}");
        assert!(message.contains("unknown key `write_combinning`; did you mean `write_combining`?"), "{message}");
    }

    #[test]
    fn a_page_size_that_is_no_power_of_two_names_the_key() {
        let text = SHIPPED[0].1.replacen("page_size = 4096", "page_size = 5000", 1);
        let message = Profile::parse(&text, "my.toml").unwrap_err().to_string();
        assert_eq!(message, "my.toml:6: 5000 is no page size; give a power of two of at least 4096");
    }

    #[test]
    fn an_unknown_profile_names_the_nearest() {
        let message = Profile::find("a2a3-46k").unwrap_err().to_string();
        assert!(message.contains("did you mean `a2a3-64k`?"), "{message}");
    }
}
