//! Faults of what a host says it can do: which pages, on which host, and what is said first.

use hostview_sim::{DrvError, Fault, HostAddr, PageKind, Profile, RegisterCall};

use super::base::Device;
use super::{Part, Planted};
use crate::code::ErrorCode;
use crate::plant::plant;
use crate::platform::Platform as _;

plant! {
    /// Ordinary pages are registered whatever the host's page size.
    "ordinary-pages-always", "hw-native-sys/simpler#1531", OrdinaryAlways {
        fn make(&self, profile: &mut Profile) {
            profile.capabilities.bar_mem = Some(profile.capabilities().bar_huge_mem);
        }
    }

    /// Huge pages too are refused where host and device have other page sizes.
    "huge-pages-on-equal-pages-only" HugeOnEqualPagesOnly {
        fn make(&self, profile: &mut Profile) {
            profile.capabilities.bar_huge_mem = Some(profile.capabilities().bar_mem);
        }
    }

    /// The capability of ordinary pages is asked for huge ones, and the other way round.
    "capabilities-swapped" Swapped {
        fn make(&self, profile: &mut Profile) {
            let capabilities = profile.capabilities();
            profile.capabilities.bar_mem = Some(capabilities.bar_huge_mem);
            profile.capabilities.bar_huge_mem = Some(capabilities.bar_mem);
        }
    }

    /// A host that cannot map write-combined registers all the same.
    "needs-no-write-combining" NeedsNoWriteCombining {
        fn make(&self, profile: &mut Profile) {
            profile.host.write_combining = true;
        }
    }

    /// Ordinary pages are refused without a word in the log.
    "refuses-ordinary-pages-silently" RefusesOrdinarySilently {
        fn writes(&self, line: &str) -> bool {
            !line.contains("pcie bar remote map")
        }
    }

    /// Huge pages are refused without a word in the log.
    "refuses-huge-pages-silently" RefusesHugeSilently {
        fn writes(&self, line: &str) -> bool {
            !line.contains("pcie bar huge remote map")
        }
    }

    /// The refusal of ordinary pages is another number.
    "a-refusal-has-another-number" RefusalHasAnotherNumber {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let kind = device.allocation_at(call.address).map(|allocation| allocation.kind);
            let refused = kind == Some(PageKind::Ordinary) && !device.profile().can_register(PageKind::Ordinary);
            let result = device.sim.register(call);
            if refused { result.map_err(|_| DrvError::InvalidValue.into()) } else { result }
        }
    }

    /// What a host cannot do is said last, behind everything that is wrong with the call.
    "says-what-it-cannot-last" SaysWhatItCannotLast {
        fn register(&self, device: &mut Device, call: RegisterCall) -> Result<HostAddr, ErrorCode> {
            let unaligned = !call.address.get().is_multiple_of(device.page_at(call.address));
            if unaligned && device.allocation_at(call.address).is_some() {
                return Err(DrvError::ParaError.into());
            }
            device.sim.register(call)
        }
    }

    /// A refused range can be seen by the host all the same.
    "shows-what-it-refuses" ShowsWhatItRefuses {
        fn host_read(&self, device: &mut Device, address: HostAddr, into: &mut [u8]) -> Result<(), Fault> {
            let behind = device.behind(address);
            let kind = device.allocation_at(behind).map(|allocation| allocation.kind);
            let refused = kind.is_some_and(|kind| !device.profile().can_register(kind));
            if refused && device.copy_out(behind, into).is_ok() {
                return Ok(());
            }
            device.sim.host_read(address, into)
        }
    }
}
