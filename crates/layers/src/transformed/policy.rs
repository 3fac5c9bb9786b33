//! The decision which objects are compressed and encrypted: by the classes of an object and its size.

use tradewind_core::{Class, Classes};
use tradewind_model::class_policy::{ClassPolicyTable, all_classes};

/// Smaller objects are not compressed: the record of an object takes more than could be gained.
pub(super) const MIN_COMPRESSED_BYTES: u64 = 4 << 10;

/// A set of classes. Class 0 stands for objects without a class.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClassSet(u32);

impl ClassSet {
    /// Every class.
    pub const ALL: Self = Self(u32::MAX);
    /// No class.
    pub const NONE: Self = Self(0);

    /// Returns true if the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if the set has the class.
    #[must_use]
    pub const fn contains(self, class: Class) -> bool {
        self.0 >> class.value() & 1 == 1
    }

    /// The set with the class, or without it.
    const fn with(self, class: Class, is_member: bool) -> Self {
        let bit = 1 << class.value();
        if is_member { Self(self.0 | bit) } else { Self(self.0 & !bit) }
    }

    /// Returns true if the set has a class of the object or of a range in it.
    pub(crate) fn contains_any(self, classes: &Classes) -> bool {
        let of_object = match classes.object {
            Some(class) => self.contains(class),
            None => self.0 & 1 == 1,
        };
        of_object || classes.ranges.iter().any(|range| self.contains(range.class))
    }
}

impl FromIterator<Class> for ClassSet {
    fn from_iter<I: IntoIterator<Item = Class>>(classes: I) -> Self {
        Self(classes.into_iter().fold(0, |set, class| set | 1 << class.value()))
    }
}

/// The classes whose objects are compressed or encrypted when they are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TransformPolicy {
    /// Classes to compress, if a sample pays.
    pub compress: ClassSet,
    /// Classes to encrypt.
    pub encrypt: ClassSet,
}

/// The treatment of one write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Treatment {
    /// Compress, if a sample of the bytes pays.
    pub compress: bool,
    /// Encrypt.
    pub encrypt: bool,
}

impl Treatment {
    /// Returns true if the bytes are stored as they are.
    pub const fn is_plain(self) -> bool {
        !self.compress && !self.encrypt
    }
}

impl TransformPolicy {
    /// The policy with the decisions of `classes`, which override it.
    #[must_use]
    pub fn with_class_policies(mut self, classes: &ClassPolicyTable) -> Self {
        for class in all_classes() {
            if let Some(compress) = classes.compress(class) {
                self.compress = self.compress.with(class, compress);
            }
            if let Some(encrypt) = classes.encrypt(class) {
                self.encrypt = self.encrypt.with(class, encrypt);
            }
        }
        self
    }

    /// The treatment of an object with these classes, or of a part of it. `size` is that of the object or part, if it is
    /// known.
    pub(super) fn treatment(&self, classes: &Classes, size: Option<u64>) -> Treatment {
        let is_large_enough = size.is_none_or(|size| size >= MIN_COMPRESSED_BYTES);
        Treatment {
            compress: is_large_enough && self.compress.contains_any(classes),
            encrypt: self.encrypt.contains_any(classes),
        }
    }

    /// Returns true if the policy transforms nothing.
    pub(super) const fn is_plain(&self) -> bool {
        self.compress.is_empty() && self.encrypt.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use tradewind_core::class::ClassRange;
    use tradewind_model::class_policy::ClassChanges;

    use super::*;

    fn class(value: u8) -> Class {
        Class::new(value).unwrap()
    }

    #[test]
    fn treatment_follows_the_classes_of_object_and_ranges() {
        let policy = TransformPolicy {
            compress: [class(0), class(31)].into_iter().collect(),
            encrypt: [class(25)].into_iter().collect(),
        };
        let treat = |object: Option<u8>, ranges: &[u8]| {
            let range = |value: &u8| ClassRange { first_sector: 0, sectors: 1, class: class(*value) };
            let ranges = ranges.iter().map(range).collect();
            policy.treatment(&Classes { object: object.map(class), ranges, retention: None }, None)
        };
        assert_eq!(treat(None, &[]), Treatment { compress: true, encrypt: false });
        assert_eq!(treat(Some(0), &[]), Treatment { compress: true, encrypt: false });
        assert_eq!(treat(Some(25), &[]), Treatment { compress: false, encrypt: true });
        assert_eq!(treat(Some(24), &[]), Treatment { compress: false, encrypt: false });
        assert_eq!(treat(None, &[25]), Treatment { compress: true, encrypt: true });
    }

    #[test]
    fn policies_of_classes_override_the_layer() {
        let mut classes = ClassPolicyTable::default();
        let mut set = |value, compress, encrypt| {
            classes.set(class(value), ClassChanges { compress, encrypt, ..ClassChanges::default() });
        };
        set(25, Some(false), Some(true));
        set(26, None, Some(false));
        set(27, Some(true), None);
        let layer = TransformPolicy {
            compress: [class(25), class(26)].into_iter().collect(),
            encrypt: [class(26), class(27)].into_iter().collect(),
        };
        let expected = TransformPolicy {
            compress: [class(26), class(27)].into_iter().collect(),
            encrypt: [class(25), class(27)].into_iter().collect(),
        };
        assert_eq!(layer.with_class_policies(&classes), expected);
        assert_eq!(layer.with_class_policies(&ClassPolicyTable::default()), layer);
    }

    #[test]
    fn small_objects_are_encrypted_but_not_compressed() {
        let policy = TransformPolicy { compress: ClassSet::ALL, encrypt: ClassSet::ALL };
        let treat = |size| policy.treatment(&Classes::default(), Some(size));
        assert_eq!(treat(MIN_COMPRESSED_BYTES - 1), Treatment { compress: false, encrypt: true });
        assert_eq!(treat(MIN_COMPRESSED_BYTES), Treatment { compress: true, encrypt: true });
    }
}
