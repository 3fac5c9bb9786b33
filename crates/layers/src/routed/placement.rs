//! The tier of an object: a pure function of its metadata and its size.

use std::fmt;

use tradewind_core::{Class, Metadata};
use tradewind_model::class_policy::class_for_size;

/// Decides in which tier an object is stored. The decision depends on its arguments only.
pub trait Placement: fmt::Debug + Send + Sync + 'static {
    /// The index of the tier of an object. `size` is `None` if it is unknown when the write begins. An index that is
    /// too high stands for the last tier.
    fn tier(&self, metadata: &Metadata, size: Option<u64>) -> usize;
}

/// The tier of each class. An object without a label has the class of its size, 11 to 22; one of unknown size is
/// assumed to be large.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassTiers {
    /// By class. The last tier stands for classes without an entry.
    tiers: Vec<usize>,
}

impl ClassTiers {
    /// The table without entries: all classes are in the last tier.
    #[must_use]
    pub fn new() -> Self {
        Self { tiers: vec![usize::MAX; usize::from(Class::MAX) + 1] }
    }

    /// Adds an entry, which replaces an earlier one of the class.
    #[must_use]
    pub fn with_class(mut self, class: Class, tier: usize) -> Self {
        self.tiers[usize::from(class.value())] = tier;
        self
    }
}

impl Default for ClassTiers {
    fn default() -> Self {
        Self::new()
    }
}

impl Placement for ClassTiers {
    fn tier(&self, metadata: &Metadata, size: Option<u64>) -> usize {
        let class = metadata.classes.object.unwrap_or_else(|| class_for_size(size.unwrap_or(u64::MAX)));
        self.tiers[usize::from(class.value())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_overrides_size_and_unknown_size_is_large() {
        let class = |value| Class::new(value).unwrap();
        let tiers = ClassTiers::new().with_class(class(11), 0).with_class(class(25), 1);
        let tier = |label: Option<u8>, size| {
            let mut metadata = Metadata::default();
            metadata.classes.object = label.map(class);
            tiers.tier(&metadata, size)
        };
        assert_eq!(tier(None, Some(4096)), 0);
        assert_eq!(tier(None, Some(4097)), usize::MAX);
        assert_eq!(tier(None, None), usize::MAX);
        assert_eq!(tier(Some(25), None), 1);
        assert_eq!(tier(Some(0), Some(1)), usize::MAX);
    }
}
