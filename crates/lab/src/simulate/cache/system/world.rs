//! The workload: objects by table I of the paper, their replicas, and the requests.

use fastrand::Rng;
use tradewind_model::class_policy::DataType;
use tradewind_model::workload::{Population, get_count};

use super::{NODES, REPLICAS};

/// Space between objects on a disk: no two objects are contiguous.
const GAP_BYTES: u64 = 4096;

/// An index into [`World::objects`].
pub(super) type ObjectIndex = usize;

/// An object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object {
    pub object_type: DataType,
    pub bytes: u64,
    /// Its place on the disk of each of its nodes.
    pub disk_offset: u64,
    /// The node without a replica.
    excluded_node: usize,
    /// The object whose label it gets if labels are shuffled.
    pub shuffled_label: DataType,
}

impl Object {
    /// The nodes that hold it.
    pub fn nodes(&self) -> [usize; REPLICAS] {
        std::array::from_fn(|replica| (self.excluded_node + 1 + replica) % NODES)
    }
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub object: ObjectIndex,
    /// The replica that a GET reads, below [`REPLICAS`].
    pub replica: usize,
}

/// All that is equal in every run.
#[derive(Debug)]
pub(super) struct World {
    pub objects: Vec<Object>,
    pub puts: Vec<Request>,
    pub gets: Vec<Request>,
    pub deletes: Vec<Request>,
    /// Bytes of the objects on each node.
    pub node_bytes: [u64; NODES],
    /// The end of the objects' space on a disk.
    pub disk_end: u64,
    /// Seed of the devices.
    pub device_seed: u64,
}

impl World {
    pub fn new(scale: f64, seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut objects = Vec::new();
        for object_type in DataType::ALL {
            let population = Population::new(object_type, scale);
            for number in 0..population.count {
                let bytes = population.size(number, rng.f64());
                objects.push(Object {
                    object_type,
                    bytes,
                    disk_offset: 0,
                    excluded_node: rng.usize(..NODES),
                    shuffled_label: object_type,
                });
            }
        }
        rng.shuffle(&mut objects);
        let labels: Vec<DataType> = objects.iter().map(|object| object.object_type).collect();
        let mut disk_end = 0;
        let mut node_bytes = [0; NODES];
        for object in &mut objects {
            object.shuffled_label = labels[rng.usize(..labels.len())];
            object.disk_offset = disk_end;
            disk_end += object.bytes + GAP_BYTES;
            object.nodes().into_iter().for_each(|node| node_bytes[node] += object.bytes);
        }
        let all = |rng: &mut Rng| {
            let mut requests: Vec<Request> =
                (0..objects.len()).map(|object| Request { object, replica: 0 }).collect();
            rng.shuffle(&mut requests);
            requests
        };
        let (puts, deletes) = (all(&mut rng), all(&mut rng));
        let gets = (0..get_count(scale))
            .map(|_| Request { object: rng.usize(..objects.len()), replica: rng.usize(..REPLICAS) })
            .collect();
        Self { objects, puts, gets, deletes, node_bytes, disk_end, device_seed: rng.u64(..) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn world_has_the_papers_number_types_and_bytes() {
        let world = World::new(1.0, 1);
        let of_type = |object_type| {
            let objects = world.objects.iter().filter(move |object| object.object_type == object_type);
            objects.collect::<Vec<_>>()
        };
        let counts = DataType::ALL.map(|object_type| of_type(object_type).len());
        assert_eq!(counts, [15_600, 9_100, 1_040, 234, 26]);
        assert_eq!((world.puts.len(), world.gets.len()), (26_000, 100_000));
        let bytes: u64 = world.objects.iter().map(|object| object.bytes).sum();
        assert!((95e9..112e9).contains(&(bytes as f64)), "{bytes}");
        let small = of_type(DataType::Files).iter().filter(|object| object.bytes <= 64 << 10).count();
        assert!((small as f64 / 15_600.0 - 79.0 / 99.0).abs() < 0.005, "{small}");
    }

    #[test]
    fn small_scale_keeps_the_share_of_disk_images() {
        for scale in [0.02, 0.1] {
            let world = World::new(scale, 1);
            let vmdks = world.objects.iter().filter(|object| object.object_type == DataType::DiskImages);
            let bytes: u64 = vmdks.map(|object| object.bytes).sum();
            assert!((bytes as f64 / (78e9 * scale) - 1.0).abs() < 0.1, "{bytes} at {scale}");
        }
    }

    #[test]
    fn replicas_are_on_different_nodes_and_evenly_spread() {
        let world = World::new(0.1, 1);
        let total: u64 = world.node_bytes.iter().sum();
        let bytes: u64 = world.objects.iter().map(|object| object.bytes).sum();
        assert_eq!(total, 3 * bytes);
        let nodes = world.objects[0].nodes();
        assert!(nodes[0] != nodes[1] && nodes[1] != nodes[2] && nodes[0] != nodes[2]);
    }
}
