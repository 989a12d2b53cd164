//! How a fault is planted: one method of a whole of sound parts written otherwise, beside its story.

/// A list of faults: a story, a name, the report that it resembles, and the part that is written otherwise.
///
/// Where it stands, `Part` is the trait whose methods are the parts, and `Planted` what holds a fault.
macro_rules! plant {
    ($($(#[doc = $story:literal])+ $name:literal $(, $like:literal,)? $Type:ident { $($part:tt)* })*) => {
        $(
            $(#[doc = $story])+
            struct $Type;

            impl Part for $Type {
                $($part)*
            }
        )*

        pub(super) static PLANTED: &[Planted] = &[
            $(Planted {
                name: $name,
                story: concat!($($story),+).trim_ascii(),
                like: $crate::plant::like!($($like)?),
                part: &$Type,
            },)*
        ];
    };
}

macro_rules! like {
    () => {
        None
    };
    ($like:literal) => {
        Some($like)
    };
}

pub(crate) use {like, plant};
