//! The workload: objects by table I of the paper, their replicas, and the requests.

use fastrand::Rng;

use super::{NODES, REPLICAS};

/// Objects and GET requests at scale 1.
const OBJECTS: f64 = 26_000.0;
const GETS: f64 = 100_000.0;
/// Share of disk images among the objects.
const VMDK_SHARE: f64 = 0.001;
/// Minimum number of disk images at small scales.
const MIN_VMDKS: usize = 4;
/// Sizes of disk images.
const MIN_VMDK_BYTES: f64 = 1e9;
const MAX_VMDK_BYTES: f64 = 5e9;
const MIN_OBJECT_BYTES: f64 = 4096.0;
/// Space between objects on a disk: no two objects are contiguous.
const GAP_BYTES: u64 = 4096;

/// The types of table I.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectType {
    /// Regular user files.
    Files,
    /// Pictures.
    Pictures,
    /// Music.
    Music,
    /// Videos.
    Video,
    /// Disk images of virtual machines.
    Vmdk,
}

impl ObjectType {
    /// All types, from the highest priority to the lowest.
    pub const ALL: [Self; 5] = [Self::Files, Self::Pictures, Self::Music, Self::Video, Self::Vmdk];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Pictures => "pictures",
            Self::Music => "music",
            Self::Video => "video",
            Self::Vmdk => "vmdk",
        }
    }

    /// Share of the objects.
    fn share(self) -> f64 {
        match self {
            Self::Files => 0.60,
            Self::Pictures => 0.35,
            Self::Music => 0.04,
            Self::Video => 0.009,
            Self::Vmdk => VMDK_SHARE,
        }
    }

    /// Relative frequencies of the size ranges of [`UPPER_BOUNDS`]. The paper's columns do not all add up to 100 %.
    fn size_weights(self) -> [f64; UPPER_BOUNDS.len()] {
        match self {
            Self::Files => [79.0, 14.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0],
            Self::Pictures => [17.1, 43.6, 14.5, 20.0, 3.5, 1.3, 0.0, 0.0],
            Self::Music => [0.0, 0.0, 0.8, 52.3, 39.6, 7.3, 0.0, 0.0],
            Self::Video => [0.3, 2.8, 4.9, 32.4, 31.7, 27.3, 0.4, 0.2],
            Self::Vmdk => [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
        }
    }

    /// The size at a quantile from 0 to 1. Within a range of table I, the logarithm of the size is uniform; disk images
    /// are uniform between 1 and 5 GB.
    pub fn size(self, quantile: f64) -> u64 {
        if self == Self::Vmdk {
            return (MIN_VMDK_BYTES + (MAX_VMDK_BYTES - MIN_VMDK_BYTES) * quantile) as u64;
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

/// Upper bounds of the size ranges of table I. The last one is ours, for videos.
const UPPER_BOUNDS: [f64; 8] = {
    const KIB: f64 = 1024.0;
    const MIB: f64 = KIB * KIB;
    [64.0 * KIB, 512.0 * KIB, MIB, 5.0 * MIB, 10.0 * MIB, 50.0 * MIB, 100.0 * MIB, 200.0 * MIB]
};

/// An index into [`World::objects`].
pub(super) type ObjectIndex = usize;

/// An object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object {
    pub object_type: ObjectType,
    pub bytes: u64,
    /// Its place on the disk of each of its nodes.
    pub disk_offset: u64,
    /// The node without a replica.
    excluded_node: usize,
    /// The object whose label it gets if labels are shuffled.
    pub shuffled_label: ObjectType,
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
        for object_type in ObjectType::ALL {
            let expected = OBJECTS * scale * object_type.share();
            let count = match object_type {
                ObjectType::Vmdk => (expected.round() as usize).max(MIN_VMDKS),
                _ => (expected.round() as usize).max(1),
            };
            // Small scales have too many disk images, which are smaller instead.
            let shrink =
                if object_type == ObjectType::Vmdk { (expected / count as f64).min(1.0) } else { 1.0 };
            for number in 0..count {
                let size = object_type.size((number as f64 + rng.f64()) / count as f64) as f64 * shrink;
                objects.push(Object {
                    object_type,
                    bytes: size as u64,
                    disk_offset: 0,
                    excluded_node: rng.usize(..NODES),
                    shuffled_label: object_type,
                });
            }
        }
        rng.shuffle(&mut objects);
        let labels: Vec<ObjectType> = objects.iter().map(|object| object.object_type).collect();
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
        let gets = (0..(GETS * scale).round() as usize)
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
        let counts = ObjectType::ALL.map(|object_type| of_type(object_type).len());
        assert_eq!(counts, [15_600, 9_100, 1_040, 234, 26]);
        assert_eq!((world.puts.len(), world.gets.len()), (26_000, 100_000));
        let bytes: u64 = world.objects.iter().map(|object| object.bytes).sum();
        assert!((95e9..112e9).contains(&(bytes as f64)), "{bytes}");
        let small = of_type(ObjectType::Files).iter().filter(|object| object.bytes <= 64 << 10).count();
        assert!((small as f64 / 15_600.0 - 79.0 / 99.0).abs() < 0.005, "{small}");
    }

    #[test]
    fn small_scale_keeps_the_share_of_disk_images() {
        for scale in [0.02, 0.1] {
            let world = World::new(scale, 1);
            let vmdks = world.objects.iter().filter(|object| object.object_type == ObjectType::Vmdk);
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
