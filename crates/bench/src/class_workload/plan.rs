//! All objects and requests of a run: a function of the options, so that equal options mean equal requests.

use std::sync::Arc;

use tradewind_core::Class;
use tradewind_model::class_policy::DataType;
use tradewind_model::workload::{Population, TypedObject, get_count};

use super::{ClassWorkload, STREAM_TYPES};
use crate::random::{mix, unit_fraction};

/// Objects of each stream at scale 1, of which the paper gives no number.
const OBJECTS_PER_STREAM: f64 = 6_400.0;

/// An object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlannedObject {
    pub key: String,
    pub data_type: DataType,
    pub bytes: u64,
    /// The label that its client sends.
    pub class: Option<Class>,
}

/// Objects and requests. Requests are indexes of objects.
#[derive(Debug)]
pub(super) struct Plan {
    pub objects: Vec<PlannedObject>,
    pub puts: Arc<[usize]>,
    pub gets: Arc<[usize]>,
    pub deletes: Arc<[usize]>,
}

impl Plan {
    pub fn new(options: &ClassWorkload, prefix: &str) -> Self {
        let mut rng = NumberStream(options.seed);
        let mut typed = Vec::new();
        for data_type in DataType::ALL {
            let population = Population::new(data_type, options.scale);
            for number in 0..population.count {
                typed.push(TypedObject { data_type, bytes: population.size(number, rng.fraction()) });
            }
        }
        let table_bytes: u64 = typed.iter().map(|object| object.bytes).sum();
        let factor = options.total_bytes.map_or(1.0, |bytes| bytes as f64 / table_bytes as f64);
        // The label follows the size of table I: a scaled workload has the classes of the full one.
        let planned = |(number, object): (usize, TypedObject)| PlannedObject {
            key: format!("{prefix}{}/{number:06}", object.data_type.name()),
            data_type: object.data_type,
            bytes: ((object.bytes as f64 * factor) as u64).max(1),
            class: options.labels.class(object, typed[rng.below(typed.len())]),
        };
        let objects: Vec<PlannedObject> = typed.iter().copied().enumerate().map(planned).collect();
        let (puts, deletes) = (rng.permutation(objects.len()), rng.permutation(objects.len()));
        let gets = (0..get_count(options.scale).max(1)).map(|_| rng.below(objects.len())).collect();
        Self { objects, puts, gets, deletes }
    }

    /// The objects of the streams, equally many of each type, and their requests in random order.
    pub fn for_streams(options: &ClassWorkload, prefix: &str) -> Self {
        let mut rng = NumberStream(options.seed);
        let count = (OBJECTS_PER_STREAM * options.scale).round().max(1.0) as usize;
        let mut typed = Vec::new();
        for data_type in STREAM_TYPES {
            typed
                .extend((0..count).map(|_| TypedObject { data_type, bytes: data_type.size(rng.fraction()) }));
        }
        let table_bytes: u64 = typed.iter().map(|object| object.bytes).sum();
        let factor = options.total_bytes.map_or(1.0, |bytes| bytes as f64 / table_bytes as f64);
        let planned = |(number, object): (usize, TypedObject)| PlannedObject {
            key: format!("{prefix}{}/{number:06}", object.data_type.name()),
            data_type: object.data_type,
            bytes: ((object.bytes as f64 * factor) as u64).max(1),
            class: options.labels.class(object, typed[rng.below(typed.len())]),
        };
        let objects: Vec<PlannedObject> = typed.iter().copied().enumerate().map(planned).collect();
        let (puts, gets) = (rng.permutation(objects.len()), rng.permutation(objects.len()));
        Self { objects, puts, gets, deletes: Arc::default() }
    }

    pub fn total_bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.bytes).sum()
    }
}

/// A stream of pseudo-random numbers.
struct NumberStream(u64);

impl NumberStream {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(mix(self.0))
    }

    /// A number from 0 to below 1.
    fn fraction(&mut self) -> f64 {
        unit_fraction(self.next())
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.fraction() * bound as f64) as usize
    }

    /// The numbers below `count` in random order.
    fn permutation(&mut self, count: usize) -> Arc<[usize]> {
        let mut numbers: Vec<usize> = (0..count).collect();
        for end in (1..count).rev() {
            numbers.swap(end, self.below(end + 1));
        }
        numbers.into()
    }
}
