//! Classes and their priorities (table II of the paper, and section V.C.1).

use tradewind_model::class_policy::DataType;

use super::Labels;
use super::world::Object;

/// A priority; 0 is the highest.
pub(super) type Priority = u8;

/// Number of priorities.
pub(super) const PRIORITIES: usize = 12;
/// Priority of metadata.
pub(super) const METADATA: Priority = 0;
/// Priority of files of up to 256 KiB without a label.
pub(super) const SMALL_FILE: Priority = 1;
/// Priority of the class USER0; USER7 is seven below it.
const USER0: Priority = 2;
/// Priority of large objects: class USER7.
pub(super) const LARGE: Priority = USER0 + 7;
/// Priority of unclassified objects.
const UNCLASSIFIED: Priority = 11;
/// Objects above this size are large, whatever their type.
const MAX_MEDIUM_BYTES: u64 = 10 << 20;

/// The priority of an object by the label that its client sends: USER1 to USER5 by type, USER7 if it is large.
pub(super) fn label_priority(object: &Object, labels: Labels) -> Priority {
    match labels {
        Labels::On if object.bytes > MAX_MEDIUM_BYTES => LARGE,
        Labels::On => type_priority(object.object_type),
        Labels::Off => UNCLASSIFIED,
        Labels::Shuffled => type_priority(object.shuffled_label),
        Labels::Flooding => USER0,
        Labels::Inverted if object.bytes > MAX_MEDIUM_BYTES => USER0,
        Labels::Inverted => {
            USER0 + 1 + (type_priority(DataType::DiskImages) - type_priority(object.object_type))
        }
    }
}

fn type_priority(object_type: DataType) -> Priority {
    USER0
        + match object_type {
            DataType::Files => 1,
            DataType::Pictures => 2,
            DataType::Music => 3,
            DataType::Video => 4,
            DataType::DiskImages => 5,
        }
}

#[cfg(test)]
mod tests {
    use super::super::world::World;
    use super::*;

    #[test]
    fn labels_rank_types_as_the_paper_does() {
        let world = World::new(0.1, 1);
        for object in &world.objects {
            let on = label_priority(object, Labels::On);
            let inverted = label_priority(object, Labels::Inverted);
            match object.object_type {
                _ if object.bytes > MAX_MEDIUM_BYTES => assert_eq!((on, inverted), (LARGE, USER0)),
                DataType::Files => assert_eq!((on, inverted), (3, 7)),
                DataType::Pictures => assert_eq!((on, inverted), (4, 6)),
                _ => assert!(on > 4 && inverted < 6),
            }
            assert_eq!(label_priority(object, Labels::Off), UNCLASSIFIED);
            assert!((METADATA as usize) < PRIORITIES && usize::from(on) < PRIORITIES);
        }
    }
}
