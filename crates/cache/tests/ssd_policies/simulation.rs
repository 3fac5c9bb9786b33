//! The server misses as often as the simulation of its policy.

use tradewind_model::class_policy::ClassPolicyTable;
use tradewind_model::eviction::{
    AdaptiveWindow, Capacity, Entry, EvictionPolicy, KeyedCache, Lookup, Lru, MissCost, S3Fifo,
};

use super::*;

const BLOCK_BYTES: usize = 4 * KIB;
const FRAME_BLOCKS: usize = 18;
/// Bytes of an object in one data extent.
const EXTENT_BYTES: usize = 143 * 512;
/// The largest object that is one extent with its head.
const MAX_SMALL_BYTES: usize = 64 * KIB;
/// Bytes of the SSD for each entry of the index.
const BYTES_PER_ENTRY: usize = 32 * KIB;

/// The blocks of the extents of an object. The first one includes the head.
fn extents_blocks(bytes: usize) -> Vec<u32> {
    let size = |payload: usize| {
        let blocks = (payload + 48).div_ceil(BLOCK_BYTES);
        [1, 2, 3, 4, 6, 9, 13, 18].into_iter().find(|size| *size as usize >= blocks).unwrap()
    };
    if bytes <= MAX_SMALL_BYTES {
        return vec![size(bytes + 300)];
    }
    let extents = bytes.div_ceil(EXTENT_BYTES);
    let payload = |number: usize| EXTENT_BYTES.min(bytes - number * EXTENT_BYTES);
    (0..extents).map(|number| size(payload(number)) + u32::from(number == 0)).collect()
}

fn policy(eviction: Eviction, capacity: Capacity) -> Box<dyn EvictionPolicy> {
    match eviction {
        Eviction::Lru => Box::new(Lru::new(capacity)),
        Eviction::S3Fifo => Box::new(S3Fifo::new(capacity)),
        Eviction::AdaptiveWindow => {
            let policies = ClassPolicyTable::default().eviction_policies();
            Box::new(AdaptiveWindow::class_aware(capacity, &policies, MissCost::default()))
        }
    }
}

/// A hash with uniformly distributed bits.
fn hash(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Requests of objects of one size.
#[derive(Debug, Clone, Copy)]
struct Trace {
    bytes: usize,
    /// The data divided by the cache.
    data_factor: usize,
    disk_bytes: usize,
}

impl Trace {
    fn blocks(&self) -> u32 {
        extents_blocks(self.bytes).iter().sum()
    }

    /// Objects that fit into the cache.
    fn capacity_objects(&self) -> usize {
        let frames = self.disk_bytes / (FRAME_BLOCKS * BLOCK_BYTES);
        let by_blocks = frames * FRAME_BLOCKS / self.blocks() as usize;
        by_blocks.min(self.disk_bytes / BYTES_PER_ENTRY)
    }

    fn requests(&self) -> Vec<usize> {
        let objects = self.capacity_objects() * self.data_factor;
        let mut zipf = Zipf::new(objects, 0.8, 3);
        // Popularity is not the order of the numbers.
        (0..self.capacity_objects() * 24).map(|_| zipf.draw() * 7919 % objects).collect()
    }

    /// The misses of the second half of the requests.
    fn simulated_misses(&self, eviction: Eviction) -> usize {
        let frames = self.disk_bytes / (FRAME_BLOCKS * BLOCK_BYTES);
        let capacity = Capacity {
            blocks: (frames * FRAME_BLOCKS) as u64,
            slots: u32::try_from(self.disk_bytes / BYTES_PER_ENTRY).unwrap(),
        };
        let mut cache = KeyedCache::new(capacity, policy(eviction, capacity));
        let requests = self.requests();
        let mut misses = 0;
        for (request, object) in requests.iter().enumerate() {
            let mut is_hit = true;
            for (number, blocks) in extents_blocks(self.bytes).into_iter().enumerate() {
                let key = hash((object * 1000 + number) as u64);
                is_hit &= cache.request(&Entry { key, blocks, class: 0 }) == Lookup::Hit;
            }
            misses += usize::from(!is_hit && request >= requests.len() / 2);
        }
        misses
    }

    async fn served_misses(&self, eviction: Eviction) -> usize {
        let desk = Desk::open(eviction, self.disk_bytes).await;
        let kind = Kind { name: "object", bytes: self.bytes, class: None };
        desk.put_all(kind, self.capacity_objects() * self.data_factor).await;
        let requests = self.requests();
        let mut misses = 0;
        for (request, object) in requests.iter().enumerate() {
            let is_hit = desk.read(kind, *object).await;
            misses += usize::from(!is_hit && request >= requests.len() / 2);
        }
        let used = desk.cached.ssd_used_bytes() * 100 / self.disk_bytes as u64;
        println!("{used} % of the SSD, {} extents", desk.cached.ssd_extents());
        // Below 16 KiB, the index is full before.
        assert!(self.bytes < 16 * KIB || used >= 90, "{self:?}: {used} %");
        desk.cached.close().await.unwrap();
        misses
    }
}

async fn compare(eviction: Eviction, bytes: usize, data_factors: &[usize]) -> Vec<String> {
    let mut failures = Vec::new();
    for data_factor in data_factors {
        // Enough objects that one miss is little of all.
        let disk_bytes = match bytes {
            MIB => 48 * MIB,
            KIB..16_384 => 4 * MIB,
            _ => 16 * MIB,
        } * scale();
        let trace = Trace { bytes, data_factor: *data_factor, disk_bytes };
        let simulated = trace.simulated_misses(eviction);
        let served = trace.served_misses(eviction).await;
        let requests = trace.requests().len() / 2;
        println!(
            "{eviction:?} {trace:?}: {served} misses, {simulated} simulated, ratio {:.3}, of {requests}",
            served as f64 / simulated as f64
        );
        if served.abs_diff(simulated) * 50 > simulated {
            failures.push(format!("{eviction:?} {trace:?}: {served} misses, {simulated} in the simulation"));
        }
    }
    failures
}

#[tokio::test(flavor = "multi_thread")]
async fn server_misses_as_its_simulation_at_all_sizes() {
    let factors: &[usize] = if scale() > 1 { &[2, 5, 10] } else { &[5] };
    let mut failures = Vec::new();
    for bytes in [4 * KIB, 64 * KIB, 66 * KIB, 140 * KIB, MIB] {
        let all: &[Eviction] = &[Eviction::AdaptiveWindow, Eviction::S3Fifo, Eviction::Lru];
        // Objects of 1 MiB take most of the time.
        let evictions = if bytes == MIB && scale() == 1 { &all[..1] } else { all };
        for eviction in evictions.iter().copied() {
            failures.extend(compare(eviction, bytes, factors).await);
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
