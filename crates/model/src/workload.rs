//! The workload of Chen, Mesnier and Hahn, *Client-aware cloud storage*, MSST 2014, section V.B: five types of objects
//! with the sizes of table I, and the labels that clients send. Simulations and benchmarks share it, so that their
//! figures are about the same objects. Random numbers are arguments.

use tradewind_core::Class;

use crate::class_policy::{DataType, MIN_LARGE_OBJECT_BYTES, class_by_name, class_for_type};

/// Objects of the paper: PUT and DELETE requests at scale 1.
const OBJECTS: f64 = 26_000.0;
/// GET requests of the paper, at scale 1.
const GETS: f64 = 100_000.0;
/// Minimum number of disk images at small scales.
const MIN_DISK_IMAGES: usize = 4;
/// Sizes of disk images.
const MIN_DISK_IMAGE_BYTES: f64 = 1e9;
const MAX_DISK_IMAGE_BYTES: f64 = 5e9;
/// Minimum size of other objects. The paper gives none.
const MIN_OBJECT_BYTES: f64 = 4096.0;
/// Upper bounds of the size ranges of table I. The last one is ours, for videos.
const UPPER_BOUNDS: [f64; 8] = {
    const KIB: f64 = 1024.0;
    const MIB: f64 = KIB * KIB;
    [64.0 * KIB, 512.0 * KIB, MIB, 5.0 * MIB, 10.0 * MIB, 50.0 * MIB, 100.0 * MIB, 200.0 * MIB]
};

impl DataType {
    /// All types, from the highest priority to the lowest.
    pub const ALL: [Self; 5] = [Self::Files, Self::Pictures, Self::Music, Self::Video, Self::DiskImages];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Pictures => "pictures",
            Self::Music => "music",
            Self::Video => "video",
            Self::DiskImages => "vmdk",
        }
    }

    /// Share of the objects, 0 to 1.
    const fn share(self) -> f64 {
        match self {
            Self::Files => 0.60,
            Self::Pictures => 0.35,
            Self::Music => 0.04,
            Self::Video => 0.009,
            Self::DiskImages => 0.001,
        }
    }

    /// Relative frequencies of the size ranges of [`UPPER_BOUNDS`]. The paper's columns do not all add up to 100 %.
    const fn size_weights(self) -> [f64; UPPER_BOUNDS.len()] {
        match self {
            Self::Files => [79.0, 14.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0],
            Self::Pictures => [17.1, 43.6, 14.5, 20.0, 3.5, 1.3, 0.0, 0.0],
            Self::Music => [0.0, 0.0, 0.8, 52.3, 39.6, 7.3, 0.0, 0.0],
            Self::Video => [0.3, 2.8, 4.9, 32.4, 31.7, 27.3, 0.4, 0.2],
            Self::DiskImages => [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
        }
    }

    /// The size in bytes at a quantile from 0 to 1. Within a range of table I, the logarithm of the size is uniform;
    /// disk images are uniform between 1 and 5 GB.
    #[must_use]
    pub fn size(self, quantile: f64) -> u64 {
        if self == Self::DiskImages {
            return (MIN_DISK_IMAGE_BYTES + (MAX_DISK_IMAGE_BYTES - MIN_DISK_IMAGE_BYTES) * quantile) as u64;
        }
        let weights = self.size_weights();
        let mut rest = quantile.clamp(0.0, 1.0) * weights.iter().sum::<f64>();
        let mut lower = MIN_OBJECT_BYTES;
        for (weight, upper) in weights.into_iter().zip(UPPER_BOUNDS) {
            if weight > 0.0 && rest <= weight {
                return (lower * (upper / lower).powf(rest / weight)) as u64;
            }
            rest -= weight;
            lower = upper;
        }
        lower as u64
    }
}

/// All objects of one type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Population {
    data_type: DataType,
    /// Number of objects, at least 1.
    pub count: usize,
    /// Factor of the sizes. Small scales have too many disk images, which are smaller instead.
    size_factor: f64,
}

impl Population {
    /// The objects of a type at a scale; 1 is the paper's.
    #[must_use]
    pub fn new(data_type: DataType, scale: f64) -> Self {
        let expected = OBJECTS * scale * data_type.share();
        let is_image = data_type == DataType::DiskImages;
        let count = (expected.round() as usize).max(if is_image { MIN_DISK_IMAGES } else { 1 });
        let size_factor = if is_image { (expected / count as f64).min(1.0) } else { 1.0 };
        Self { data_type, count, size_factor }
    }

    /// The size in bytes of the object with a number below [`Self::count`]. Sizes are stratified: each object has its
    /// own section of the distribution, and `position`, from 0 to 1, is random within it.
    #[must_use]
    pub fn size(&self, number: usize, position: f64) -> u64 {
        let size = self.data_type.size((number as f64 + position) / self.count as f64);
        (size as f64 * self.size_factor) as u64
    }
}

/// The number of GET requests at a scale.
#[must_use]
pub fn get_count(scale: f64) -> usize {
    (GETS * scale).round() as usize
}

/// The labels that clients send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Labels {
    /// The class of the object's type (table II).
    On,
    /// None.
    Off,
    /// The class of a random object.
    Shuffled,
    /// The classes in reverse order: the least important objects get the highest priority.
    Inverted,
    /// The highest priority for every object.
    Flooding,
}

/// An object as its client sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TypedObject {
    /// Type.
    pub data_type: DataType,
    /// Size in bytes.
    pub bytes: u64,
}

impl Labels {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::On, Self::Off, Self::Shuffled, Self::Inverted, Self::Flooding];

    /// Its name in reports and on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
            Self::Shuffled => "shuffled",
            Self::Inverted => "inverted",
            Self::Flooding => "flooding",
        }
    }

    /// The class that the client of `object` sends; `None` for no label. `other` is a random object, for shuffled labels.
    #[must_use]
    pub fn class(self, object: TypedObject, other: TypedObject) -> Option<Class> {
        match self {
            Self::On => Some(class_for_type(object.data_type, object.bytes)),
            Self::Off => None,
            Self::Shuffled => Some(class_for_type(other.data_type, other.bytes)),
            Self::Inverted if object.bytes >= MIN_LARGE_OBJECT_BYTES => class_by_name("user0"),
            Self::Inverted => {
                let rank = DataType::ALL.iter().position(|data_type| *data_type == object.data_type)?;
                Some(class_for_type(DataType::ALL[DataType::ALL.len() - 1 - rank], 0))
            }
            Self::Flooding => class_by_name("user0"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn populations_have_the_papers_counts_and_sizes() {
        let populations = DataType::ALL.map(|data_type| Population::new(data_type, 1.0));
        assert_eq!(populations.map(|population| population.count), [15_600, 9_100, 1_040, 234, 26]);
        let sizes = |population: &Population| {
            (0..population.count).map(|n| population.size(n, 0.5)).collect::<Vec<_>>()
        };
        let total: u64 = populations.iter().flat_map(sizes).sum();
        assert!((95e9..112e9).contains(&(total as f64)), "{total}");
        let small = sizes(&populations[0]).iter().filter(|bytes| **bytes <= 64 << 10).count();
        assert!((small as f64 / 15_600.0 - 79.0 / 99.0).abs() < 0.005, "{small}");
        assert_eq!(get_count(1.0), 100_000);
    }

    #[test]
    fn a_small_scale_has_smaller_disk_images() {
        for scale in [0.001, 0.02, 0.1] {
            let images = Population::new(DataType::DiskImages, scale);
            let total: u64 = (0..images.count).map(|number| images.size(number, 0.5)).sum();
            assert!(images.count >= MIN_DISK_IMAGES);
            assert!((total as f64 / (78e9 * scale) - 1.0).abs() < 0.1, "{total} at {scale}");
        }
    }

    #[test]
    fn labels_give_the_classes_of_their_kind() {
        let object = |data_type, bytes| TypedObject { data_type, bytes };
        let (file, image) = (object(DataType::Files, 4096), object(DataType::DiskImages, 1 << 30));
        let values = |own: TypedObject, other: TypedObject| {
            Labels::ALL.map(|labels| labels.class(own, other).map(Class::value))
        };
        assert_eq!(values(file, image), [Some(25), None, Some(31), Some(29), Some(24)]);
        assert_eq!(values(image, file), [Some(31), None, Some(25), Some(24), Some(24)]);
        let music = object(DataType::Music, 4096);
        assert_eq!(Labels::Inverted.class(music, file).map(Class::value), Some(27));
    }
}
