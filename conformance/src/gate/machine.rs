//! The machine: what it says of itself, what trying shows, and the profile that comes of both.

use std::fs;
use std::path::{Path, PathBuf};

use hostview_sim::{
    CapabilityOverrides, DeviceAddr, DrvError, Generation, PageKind, PagePolicy, PageSize, Profile, ProfileError,
    RegisterCall,
};

use crate::case::Via;
use crate::code::ErrorCode;
use crate::library::MachineFacts;
use crate::platform::Platform;

/// A machine that the gate stands on.
#[derive(Clone, Debug)]
pub struct Machine {
    /// What it says of itself.
    pub facts: MachineFacts,
    /// The shipped profile that its chip is like.
    pub like: String,
    /// What the simulator would have to be to be this machine.
    pub profile: Profile,
    /// What was found by trying, and why; a line each.
    pub tried: Vec<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The driver's version, by its installation.
    pub driver: Option<String>,
    /// The toolkit's version, by its installation.
    pub cann: Option<String>,
}

/// Bits of the feature query. Source: `ascend_hal_define.h`.
const BAR_MEM: u64 = 1 << 1;
const DEV_MEM_MAP_HOST: u64 = 1 << 2;
const BAR_HUGE_MEM: u64 = 1 << 3;

impl Machine {
    /// What the machine is; asks it, and tries what it does not say.
    ///
    /// # Errors
    ///
    /// `like` names no profile, or the machine's own page size is none.
    pub fn find(
        platform: &mut dyn Platform,
        facts: &MachineFacts,
        devices: usize,
        like: Option<&str>,
    ) -> Result<Self, ProfileError> {
        let mut tried = Vec::new();
        let like = match (like, facts.soc.as_deref()) {
            (Some(like), _) => like.to_owned(),
            // Source: CANN runtime: Ascend 950 is the a5; its driver is SVM v3.
            (None, Some(soc)) if soc.starts_with("Ascend950") => "a5-v3".to_owned(),
            (None, Some(soc)) if soc.starts_with("Ascend910") => "a2a3".to_owned(),
            (None, soc) => {
                let chip = soc.map_or_else(|| "the chip is not known".to_owned(), |soc| format!("{soc} is not known"));
                tried.push(format!("{chip}: taken for an a2a3; --like PROFILE says otherwise"));
                "a2a3".to_owned()
            }
        };
        let mut profile = Profile::find(&like)?;
        "machine".clone_into(&mut profile.name);
        "found by the gate".clone_into(&mut profile.summary);
        profile.source = format!("hostview gate on {}", facts.soc.as_deref().unwrap_or("an unknown chip"));
        if let Some(page) = PageSize::new(facts.host_page) {
            profile.host.page_size = page;
        }
        profile.device.count = u32::try_from(devices).unwrap_or(1);
        if let Some(memory) = facts.memory {
            profile.device.memory = memory;
        }
        let ordinary = try_to_register(platform, PagePolicy::NormalOnly, 4096);
        let huge = try_to_register(platform, PagePolicy::HugeOnly, 2 << 20);
        profile.capabilities = match facts.features {
            Some(granted) => CapabilityOverrides {
                bar_mem: Some(granted & BAR_MEM != 0),
                bar_huge_mem: Some(granted & BAR_HUGE_MEM != 0),
                dev_mem_map_host: Some(granted & DEV_MEM_MAP_HOST != 0),
            },
            None => {
                tried.push(format!(
                    "the driver does not say what it can map; by trying: ordinary pages {}, huge pages {}",
                    word(&ordinary),
                    word(&huge)
                ));
                CapabilityOverrides {
                    bar_mem: Some(ordinary.is_ok()),
                    bar_huge_mem: Some(huge.is_ok()),
                    dev_mem_map_host: None,
                }
            }
        };
        // v3 asks no capability when it registers: only trying tells whether the host-map path is there.
        let not_supported = |tried: &Result<_, ErrorCode>| *tried == Err(DrvError::NotSupport.into());
        if profile.driver.generation == Generation::V3 && not_supported(&ordinary) && not_supported(&huge) {
            profile.driver.maps_device_memory = false;
            tried.push("no device memory can be mapped into the host, as on an a5: found by trying".to_owned());
        }
        if let Ok(offset) = ordinary.or(huge)
            && offset != 0
        {
            tried.push(format!("views lie {offset:#x} behind the device's addresses: found by trying"));
            profile.driver.view_offset = offset;
            if profile.check("").is_err() {
                // Not at a distance that a profile can have: what the simulator shows of it is then the identity.
                profile.driver.view_offset = 0;
            }
        }
        profile.check("the machine")?;
        Ok(Self {
            facts: facts.clone(),
            like,
            profile,
            tried,
            kernel: read("/proc/sys/kernel/osrelease"),
            driver: version_in(Path::new("/usr/local/Ascend/driver/version.info")),
            cann: toolkit_version(),
        })
    }

    /// The lines that a reviewer wants.
    #[must_use]
    pub fn describe(&self, devices: &[u32]) -> Vec<(&'static str, String)> {
        let unknown = || "not known".to_owned();
        let devices: Vec<String> = devices.iter().map(u32::to_string).collect();
        let count = self.facts.devices.map_or_else(String::new, |count| format!(" of {count}"));
        let capabilities = self.profile.capabilities();
        let yes = |can: bool| if can { "yes" } else { "no" };
        vec![
            ("chip", self.facts.soc.clone().unwrap_or_else(unknown)),
            ("device", format!("{}{count}", devices.join(", "))),
            ("memory", self.facts.memory.map_or_else(unknown, |bytes| hostview_sim::ByteCount(bytes).to_string())),
            ("driver", self.driver.clone().unwrap_or_else(unknown)),
            ("CANN", self.cann.clone().unwrap_or_else(unknown)),
            ("ACL", self.facts.acl_version.clone().unwrap_or_else(unknown)),
            ("kernel", self.kernel.clone().unwrap_or_else(unknown)),
            ("host page", hostview_sim::ByteCount(self.facts.host_page).to_string()),
            (
                "maps",
                format!(
                    "ordinary pages {}, huge pages {}{}",
                    yes(self.profile.can_register(PageKind::Ordinary)),
                    yes(self.profile.can_register(PageKind::Huge)),
                    self.facts.features.map_or_else(String::new, |bits| format!(" (features {bits:#x})"))
                ),
            ),
            (
                "like",
                format!(
                    "{}; bar_mem={} bar_huge_mem={} dev_mem_map_host={}",
                    self.like,
                    u8::from(capabilities.bar_mem),
                    u8::from(capabilities.bar_huge_mem),
                    u8::from(capabilities.dev_mem_map_host)
                ),
            ),
        ]
    }
}

/// How far a view lies from its device memory, or why there is none. Everything is given back.
fn try_to_register(platform: &mut dyn Platform, policy: PagePolicy, bytes: u64) -> Result<u64, ErrorCode> {
    let base: DeviceAddr = platform.alloc(0, bytes, policy, Via::Hal)?;
    let view = platform.register(RegisterCall::view(base, bytes));
    if view.is_ok() {
        let _ = platform.unregister(base, 0);
    }
    let _ = platform.free(base, Via::Hal);
    Ok(view?.get().wrapping_sub(base.get()))
}

fn word(tried: &Result<u64, ErrorCode>) -> String {
    match tried {
        Ok(_) => "yes".to_owned(),
        Err(error) => format!("no ({error})"),
    }
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The first line of an installation's file that names a version. Assumed: the form, `Version=25.0.rc1` or the like.
fn version_in(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.to_ascii_lowercase().contains("version"))?;
    let value = line.split_once(['=', ':']).map_or(line, |(_, value)| value);
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn toolkit_version() -> Option<String> {
    let home = PathBuf::from(std::env::var_os("ASCEND_HOME_PATH")?);
    ["version.cfg", "version.info", "ascend_toolkit_install.info"].iter().find_map(|file| version_in(&home.join(file)))
}
