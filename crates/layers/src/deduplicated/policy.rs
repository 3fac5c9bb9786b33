//! The decision which objects are deduplicated: by the classes of an object and its size.

use tradewind_core::Classes;

use crate::transformed::ClassSet;

/// The default of [`DeduplicationPolicy::min_bytes`].
pub const DEFAULT_MIN_OBJECT_BYTES: u64 = 64 << 10;
/// The lowest [`DeduplicationPolicy::min_bytes`]: a smaller object is at most one small chunk.
pub const MIN_MIN_OBJECT_BYTES: u64 = 16 << 10;
/// The highest [`DeduplicationPolicy::min_bytes`]: that many bytes of a write of unknown size are held in memory.
pub const MAX_MIN_OBJECT_BYTES: u64 = 1 << 20;

/// The objects and parts that are deduplicated when they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeduplicationPolicy {
    /// Classes to deduplicate.
    pub classes: ClassSet,
    /// Smaller objects and parts are stored as they are.
    /// From [`MIN_MIN_OBJECT_BYTES`] to [`MAX_MIN_OBJECT_BYTES`].
    pub min_bytes: u64,
}

impl Default for DeduplicationPolicy {
    fn default() -> Self {
        Self { classes: ClassSet::ALL, min_bytes: DEFAULT_MIN_OBJECT_BYTES }
    }
}

impl DeduplicationPolicy {
    /// Returns false if the bytes are stored as they are. Of a write of unknown size, the first bytes decide.
    pub(super) fn applies(&self, classes: &Classes, size: Option<u64>) -> bool {
        size.is_none_or(|size| size >= self.min_bytes) && self.classes.contains_any(classes)
    }
}

#[cfg(test)]
mod tests {
    use tradewind_core::Class;

    use super::*;

    #[test]
    fn classes_and_size_decide_together() {
        let class = Class::new(25).unwrap();
        let policy =
            DeduplicationPolicy { classes: [class].into_iter().collect(), ..DeduplicationPolicy::default() };
        let labelled = Classes { object: Some(class), ..Classes::default() };
        let min = DEFAULT_MIN_OBJECT_BYTES;
        for (classes, size, expected) in [
            (&labelled, Some(min), true),
            (&labelled, None, true),
            (&labelled, Some(min - 1), false),
            (&Classes::default(), Some(min), false),
        ] {
            assert_eq!(policy.applies(classes, size), expected, "{classes:?}, {size:?}");
        }
    }
}
