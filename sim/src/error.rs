//! The driver's and the runtime's error numbers, as types.
//!
//! Source: `ascend_hal_error.h` of the open driver for [`DrvError`], `rt_error_codes.h` and the runtime's own mapping
//! table for [`AclError`].

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::nearest;

macro_rules! codes {
    ($(#[$doc:meta])* $name:ident: $repr:ty { $($(#[$vdoc:meta])* $variant:ident = $code:literal, $text:literal;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vdoc])* $variant,)* }

        impl $name {
            /// Every error that has a name here, in the order of the header.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number that a C caller sees.
            #[must_use]
            pub const fn code(self) -> $repr {
                match self { $(Self::$variant => $code,)* }
            }

            /// The name in the header.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The error with this number.
            #[must_use]
            pub fn from_code(code: $repr) -> Option<Self> {
                Self::ALL.iter().copied().find(|error| error.code() == code)
            }

            /// The error with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|error| error.name() == name)
            }
        }

        /// As its name in the header.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = String::deserialize(deserializer)?;
                Self::from_name(&name).ok_or_else(|| {
                    let near = nearest(&name, Self::ALL.iter().map(|error| error.name()));
                    let mend = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
                    D::Error::custom(format!("no error is called `{name}`{mend}"))
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ({})", self.name(), self.code())
            }
        }

        impl std::error::Error for $name {}
    };
}

codes! {
    /// What the driver answers (`drvError_t`), success left out.
    DrvError: u32 {
        /// No such device.
        NoDevice = 1, "DRV_ERROR_NO_DEVICE";
        /// A device id at or over the agent limit.
        InvalidDevice = 2, "DRV_ERROR_INVALID_DEVICE";
        /// A null pointer, a size of 0, or a free of what is not allocated.
        InvalidValue = 3, "DRV_ERROR_INVALID_VALUE";
        /// No heap manager yet, or a bad address in the kernel (EFAULT).
        InvalidHandle = 4, "DRV_ERROR_INVALID_HANDLE";
        /// An unknown allocation type.
        InvalidMallocType = 5, "DRV_ERROR_INVALID_MALLOC_TYPE";
        /// Device memory is used up (ENOMEM).
        OutOfMemory = 6, "DRV_ERROR_OUT_OF_MEMORY";
        /// An internal error.
        InnerErr = 7, "DRV_ERROR_INNER_ERR";
        /// EINVAL from the kernel: not allocated, not aligned, registered already, not registered.
        ParaError = 8, "DRV_ERROR_PARA_ERROR";
        /// Not initialised.
        Uninit = 9, "DRV_ERROR_UNINIT";
        /// Initialised twice.
        RepeatedInit = 10, "DRV_ERROR_REPEATED_INIT";
        /// No record of that.
        NotExist = 11, "DRV_ERROR_NOT_EXIST";
        /// Registered already (v3).
        RepeatedUserd = 12, "DRV_ERROR_REPEATED_USERD";
        /// EBUSY: a registration holds the block.
        Busy = 13, "DRV_ERROR_BUSY";
        /// ENOSPC.
        NoResources = 14, "DRV_ERROR_NO_RESOURCES";
        /// Every errno without a row of its own.
        IocrlFail = 17, "DRV_ERROR_IOCRL_FAIL";
        /// ENOENT, EEXIST.
        FileOps = 38, "DRV_ERROR_FILE_OPS";
        /// ESRCH: the process is gone.
        ProcessExit = 42, "DRV_ERROR_PROCESS_EXIT";
        /// EPERM.
        OperNotPermitted = 46, "DRV_ERROR_OPER_NOT_PERMITTED";
        /// EAGAIN.
        TryAgain = 51, "DRV_ERROR_TRY_AGAIN";
        /// EOPNOTSUPP: this host or device cannot do that.
        NotSupport = 65534, "DRV_ERROR_NOT_SUPPORT";
    }
}

codes! {
    /// What the ACL and runtime layers answer (`aclError`), success left out.
    AclError: u32 {
        /// A bad argument that the ACL layer caught.
        InvalidParam = 100_000, "ACL_ERROR_INVALID_PARAM";
        /// A bad argument that the runtime or the driver caught.
        ParamInvalid = 107_000, "ACL_ERROR_RT_PARAM_INVALID";
        /// An unknown device.
        InvalidDeviceId = 107_001, "ACL_ERROR_RT_INVALID_DEVICEID";
        /// A bad handle.
        InvalidHandle = 107_017, "ACL_ERROR_RT_INVALID_HANDLE";
        /// An unknown allocation type.
        InvalidMallocType = 107_018, "ACL_ERROR_RT_INVALID_MALLOC_TYPE";
        /// The driver does not support that.
        FeatureNotSupport = 207_000, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT";
        /// Out of device memory.
        MemoryAllocation = 207_001, "ACL_ERROR_RT_MEMORY_ALLOCATION";
        /// No such device.
        NoDevice = 207_004, "ACL_ERROR_RT_NO_DEVICE";
        /// The driver ran out of something else.
        ResourceAllocFail = 207_005, "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL";
        /// Not permitted.
        NoPermission = 207_006, "ACL_ERROR_RT_NO_PERMISSION";
        /// Initialised twice.
        RepeatedInit = 207_015, "ACL_ERROR_RT_REPEATED_INIT";
        /// Any driver error without a row of its own.
        DrvInternalError = 507_899, "ACL_ERROR_RT_DRV_INTERNAL_ERROR";
    }
}

impl From<DrvError> for AclError {
    /// Source: `runtime.md` §5, the runtime's driver-error table; what it does not list becomes `507899`.
    fn from(error: DrvError) -> Self {
        match error {
            DrvError::NoDevice => Self::NoDevice,
            DrvError::InvalidDevice => Self::InvalidDeviceId,
            DrvError::InvalidValue => Self::ParamInvalid,
            DrvError::InvalidHandle => Self::InvalidHandle,
            DrvError::InvalidMallocType => Self::InvalidMallocType,
            DrvError::OutOfMemory => Self::MemoryAllocation,
            DrvError::RepeatedInit => Self::RepeatedInit,
            DrvError::NoResources => Self::ResourceAllocFail,
            DrvError::OperNotPermitted => Self::NoPermission,
            DrvError::NotSupport => Self::FeatureNotSupport,
            _ => Self::DrvInternalError,
        }
    }
}
