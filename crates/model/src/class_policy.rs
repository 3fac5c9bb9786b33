//! The default policy of classes of data: the class of an object without a label, the priority of each class, and their
//! names. Table II of Chen, Mesnier and Hahn, *Client-aware cloud storage*, MSST 2014, with the rules of section V.C.1.
//!
//! A class is a label without an order; a priority is what a store makes of it, so that both can change independently.
//! `docs/classes.md` has the choices that the paper does not make. The sizes of the classes 11 to 22 are those of
//! *Differentiated Storage Services* (Mesnier et al., SOSP 2011), powers of four from 4 KiB.

mod retention;
mod table;

use tradewind_core::Class;

pub use retention::{Elapsed, decayed_priority};
pub use table::{ClassChanges, ClassPolicyTable, ClassWrite, all_classes, is_store_metadata};

/// The rank of a class for a cache: 0 is the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassPriority(u8);

impl ClassPriority {
    /// The highest priority.
    pub const HIGHEST: Self = Self(0);
    /// The lowest priority: data without a class.
    pub const LOWEST: Self = Self(11);
    /// The priority from which data bypasses a cache under pressure: large objects, large files and data without a class.
    pub const FIRST_BYPASSING: Self = Self(9);

    /// The priority of a number; `None` above 11.
    #[must_use]
    pub const fn new(value: u8) -> Option<Self> {
        if value <= Self::LOWEST.0 { Some(Self(value)) } else { None }
    }

    /// The number, 0 to 11.
    #[must_use]
    pub const fn value(self) -> u8 {
        self.0
    }

    /// Returns true if data of this priority is not admitted to a cache that is evicting.
    #[must_use]
    pub fn bypasses_under_pressure(self) -> bool {
        self >= Self::FIRST_BYPASSING
    }
}

/// The origin of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassSource {
    /// A client's label.
    Client,
    /// The store itself, for its own metadata or for an object without a label.
    Store,
}

/// The first class that clients choose freely, USER0.
const USER0: u8 = 24;
/// The class of the smallest files.
const SMALLEST_FILES: u8 = 11;
/// The class of the largest files.
const LARGEST_FILES: u8 = 22;
/// The class of the largest files with a high priority.
const LARGEST_SMALL_FILES: u8 = 14;
/// The class of the first bytes of large objects without a label: one of the store's own.
pub const FIRST_SLICES: u8 = 10;
/// The share of a cache from which other data does not displace the first bytes of large objects.
const FIRST_SLICES_RESERVED_PERCENT: u8 = 10;
/// The maximum size of the class [`SMALLEST_FILES`]. Each further class is four times as large.
const SMALLEST_FILES_BYTES: u64 = 4 << 10;

/// The size above which an object has the class of large objects, whatever its type. The paper gives no figure.
pub const MIN_LARGE_OBJECT_BYTES: u64 = 10_000_001;

/// The types of user data that the paper distinguishes, in descending priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DataType {
    /// Documents and other files of users.
    Files,
    /// Pictures.
    Pictures,
    /// Music.
    Music,
    /// Video.
    Video,
    /// Images of virtual disks.
    DiskImages,
}

/// Names of classes. The first one of a class is printed.
const NAMES: [(&str, u8); 22] = [
    ("unclassified", 0),
    ("size-4k", 11),
    ("size-16k", 12),
    ("size-64k", 13),
    ("size-256k", 14),
    ("size-1m", 15),
    ("size-4m", 16),
    ("size-16m", 17),
    ("size-64m", 18),
    ("size-256m", 19),
    ("size-1g", 20),
    ("size-4g", 21),
    ("size-max", 22),
    ("user0", 24),
    ("files", 25),
    ("pictures", 26),
    ("music", 27),
    ("video", 28),
    ("disk-images", 29),
    ("user6", 30),
    ("large", 31),
    ("user7", 31),
];

/// A class known to be legal.
fn class(value: u8) -> Class {
    Class::new(value)
        .unwrap_or_else(|_| unreachable!("the classes of this module are at most {}", Class::MAX))
}

/// The class of an object of `bytes` bytes without a label, 11 to 22.
#[must_use]
pub fn class_for_size(bytes: u64) -> Class {
    let steps = (SMALLEST_FILES..LARGEST_FILES).take_while(|value| bytes > max_bytes(*value)).count();
    class(SMALLEST_FILES + u8::try_from(steps).unwrap_or(LARGEST_FILES - SMALLEST_FILES))
}

/// The maximum size of a class of files, except of the last one.
const fn max_bytes(value: u8) -> u64 {
    SMALLEST_FILES_BYTES << (2 * (value - SMALLEST_FILES))
}

/// The class of an object of a known type: 25 to 29, or 31 if it is large.
#[must_use]
pub fn class_for_type(data: DataType, bytes: u64) -> Class {
    if bytes >= MIN_LARGE_OBJECT_BYTES {
        return class(31);
    }
    class(match data {
        DataType::Files => 25,
        DataType::Pictures => 26,
        DataType::Music => 27,
        DataType::Video => 28,
        DataType::DiskImages => 29,
    })
}

/// The default priority of a class. The classes 1 to 10 are the store's own metadata: a client's label of them, like the
/// unassigned class 23, has the priority of data without a class.
#[must_use]
pub const fn priority(class: Class, source: ClassSource) -> ClassPriority {
    match (class.value(), source) {
        (1..=10, ClassSource::Store) => ClassPriority::HIGHEST,
        (SMALLEST_FILES..=LARGEST_SMALL_FILES, _) => ClassPriority(1),
        (value @ USER0..=Class::MAX, _) => ClassPriority(2 + value - USER0),
        (15..=LARGEST_FILES, _) => ClassPriority(10),
        _ => ClassPriority::LOWEST,
    }
}

/// The name of a class; `None` if it has none.
#[must_use]
pub fn name(class: Class) -> Option<&'static str> {
    NAMES.iter().find(|(_, value)| *value == class.value()).map(|(name, _)| *name)
}

/// All names, in order of their classes.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.iter().map(|(name, _)| *name)
}

/// The class of this name. Names are case-insensitive.
#[must_use]
pub fn class_by_name(text: &str) -> Option<Class> {
    let found = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text));
    let user = || match text.to_ascii_lowercase().strip_prefix("user")?.as_bytes() {
        [digit @ b'0'..=b'7'] => Some(USER0 + digit - b'0'),
        _ => None,
    };
    found.map(|(_, value)| *value).or_else(user).map(class)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_without_a_label_get_the_class_of_their_size() {
        for (bytes, expected) in [
            (0, 11),
            (4096, 11),
            (4097, 12),
            (16 << 10, 12),
            (64 << 10, 13),
            (256 << 10, 14),
            ((256 << 10) + 1, 15),
            (1 << 20, 15),
            (4 << 20, 16),
            (1 << 30, 20),
            (4 << 30, 21),
            ((4 << 30) + 1, 22),
            (u64::MAX, 22),
        ] {
            assert_eq!(class_for_size(bytes), class(expected), "{bytes}");
        }
    }

    /// Table II.
    #[test]
    fn priorities_are_those_of_the_paper() {
        for (classes, expected) in
            [(11..=14, 1), (24..=24, 2), (25..=25, 3), (31..=31, 9), (15..=22, 10), (0..=0, 11)]
        {
            for value in classes {
                for source in [ClassSource::Client, ClassSource::Store] {
                    assert_eq!(priority(class(value), source).value(), expected, "{value}");
                }
            }
        }
        for value in 1..=10 {
            assert_eq!(priority(class(value), ClassSource::Store), ClassPriority::HIGHEST);
        }
    }

    #[test]
    fn a_label_of_a_client_never_outranks_small_files() {
        for value in 0..=Class::MAX {
            assert!(priority(class(value), ClassSource::Client) > ClassPriority::HIGHEST, "{value}");
        }
        for value in (0..=10).chain([23]) {
            assert_eq!(priority(class(value), ClassSource::Client), ClassPriority::LOWEST, "{value}");
        }
    }

    #[test]
    fn large_and_unclassified_data_bypasses_a_cache_under_pressure() {
        let bypasses = |value| priority(class(value), ClassSource::Client).bypasses_under_pressure();
        assert!([0, 1, 10, 15, 22, 23, 31].into_iter().all(bypasses));
        assert!(![11, 14, 24, 25, 29, 30].into_iter().any(bypasses));
    }

    #[test]
    fn types_have_descending_priority_and_large_objects_the_last() {
        let types =
            [DataType::Files, DataType::Pictures, DataType::Music, DataType::Video, DataType::DiskImages];
        let priorities = types.map(|data| priority(class_for_type(data, 10_000_000), ClassSource::Client));
        assert!(priorities.is_sorted() && priorities[0].value() == 3 && priorities[4].value() == 7);
        assert!(types.into_iter().all(|data| class_for_type(data, MIN_LARGE_OBJECT_BYTES) == class(31)));
    }

    #[test]
    fn names_and_classes_correspond() {
        for text in names() {
            let class = class_by_name(text).unwrap();
            assert!(name(class).is_some_and(|printed| class_by_name(printed) == Some(class)), "{text}");
        }
        assert_eq!(class_by_name("FILES"), Some(class(25)));
        assert_eq!(class_by_name("user3"), Some(class(27)));
        assert_eq!((class_by_name("user8"), class_by_name(""), class_by_name("25")), (None, None, None));
        assert_eq!((name(class(25)), name(class(23)), name(class(5))), (Some("files"), None, None));
    }
}
