//! The flag word of `halHostRegister`. Source: `ascend_hal_define.h`, and the masks of `devmm_svm.c`.

/// `SVM_MAX_AGENT_NUM`: device ids at or over this are invalid.
pub const AGENT_LIMIT: u32 = 66;

/// What a registration maps where.
pub mod map_type {
    /// Host memory into the device.
    pub const HOST_MEM_MAP_DEV: u32 = 0;
    /// Device memory of the shared range into the host: what views are made of.
    pub const DEV_SVM_MAP_HOST: u32 = 2;
    /// One past the last.
    pub const LIMIT: u32 = 7;
}

/// `DEVDRV_PROCESS_CPTYPE_MAX`: process types at or over this are unknown.
const PROCESS_TYPE_LIMIT: u32 = 6;

/// The flag word of a register call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegisterFlags(pub u32);

impl RegisterFlags {
    /// `MEM_REGISTER_READ_ONLY`.
    pub const READ_ONLY_BIT: u32 = 1 << 28;
    /// A view that can be read and written.
    pub const VIEW: Self = Self(map_type::DEV_SVM_MAP_HOST);
    /// A view that can only be read.
    pub const READ_ONLY_VIEW: Self = Self(map_type::DEV_SVM_MAP_HOST | Self::READ_ONLY_BIT);

    /// The map type: the low 16 bits.
    #[must_use]
    pub const fn map_type(self) -> u32 {
        self.0 & 0xffff
    }

    /// The process type as v2 masks it: 6 bits from bit 16.
    #[must_use]
    pub const fn process_type(self) -> u32 {
        (self.0 >> 16) & 0x3f
    }

    /// Everything from bit 16 on, which v3 takes for the process type.
    #[must_use]
    pub const fn unmasked_process_type(self) -> u32 {
        self.0 >> 16
    }

    /// Whether the view may only be read.
    #[must_use]
    pub const fn read_only(self) -> bool {
        self.0 & Self::READ_ONLY_BIT != 0
    }

    pub(crate) const fn known_map_type(self) -> bool {
        self.map_type() < map_type::LIMIT
    }

    pub(crate) const fn known_process_type(self) -> bool {
        self.process_type() < PROCESS_TYPE_LIMIT
    }

    /// Whether it asks for a host view of device memory: `DEV_SVM_MAP_HOST`.
    #[must_use]
    pub const fn maps_device_memory(self) -> bool {
        self.map_type() == map_type::DEV_SVM_MAP_HOST
    }
}
