//! The result of a comparison of configurations.

use std::time::Duration;

use tradewind_model::class_policy::DataType;

use super::node::{Node, Storage};
use super::server::Part;
use super::world::World;
use super::{Configuration, Labels, REPLICAS};

/// Prices of the paper in dollars per GB.
const SSD_DOLLARS_PER_GB: f64 = 3.95;
const DISK_DOLLARS_PER_GB: f64 = 0.15;

/// The result of [`super::simulate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// One per configuration, cache size and kind of labels.
    pub runs: Vec<RunReport>,
}

impl Report {
    /// The run of a configuration with a cache of about this share, if it was simulated. Its first kind of labels.
    #[must_use]
    pub fn get(&self, configuration: Configuration, cache_share: f64) -> Option<&RunReport> {
        let is_share =
            |run: &RunReport| run.cache_share.is_none_or(|share| (share - cache_share).abs() < 1e-9);
        self.runs.iter().find(|run| run.configuration == configuration && is_share(run))
    }
}

/// The result of one configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct RunReport {
    /// The configuration.
    pub configuration: Configuration,
    /// Size of the cache, as a share of the data; `None` without a cache.
    pub cache_share: Option<f64>,
    /// The labels; `None` if they are ignored.
    pub labels: Option<Labels>,
    /// Uploads of all objects.
    pub put: PhaseReport,
    /// Downloads.
    pub get: PhaseReport,
    /// Deletions of all objects.
    pub delete: PhaseReport,
    /// The cache after the uploads.
    pub contents_after_put: Contents,
    /// The cache after the downloads.
    pub contents_after_get: Contents,
}

impl RunReport {
    /// Dollars per GB of data on one node.
    #[must_use]
    pub fn dollars_per_gb(&self) -> f64 {
        match self.configuration {
            Configuration::Hdd => DISK_DOLLARS_PER_GB,
            Configuration::Ssd => SSD_DOLLARS_PER_GB,
            _ => DISK_DOLLARS_PER_GB + SSD_DOLLARS_PER_GB * self.cache_share.unwrap_or(0.0),
        }
    }

    /// Seconds in which disks were busy with uploads and downloads, summed over the nodes.
    #[must_use]
    pub fn disk_busy_seconds(&self) -> f64 {
        self.put.disk_busy_seconds + self.get.disk_busy_seconds
    }

    /// Bytes written to the SSDs by uploads and downloads.
    #[must_use]
    pub fn ssd_bytes_written(&self) -> u64 {
        self.put.ssd_bytes_written + self.get.ssd_bytes_written
    }
}

/// The result of one phase.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PhaseReport {
    /// Requests that succeeded.
    pub requests: u64,
    /// Attempts that failed because a node did not accept the connection in time. They are repeated.
    pub failures: u64,
    /// Bytes of the objects of successful requests, without replicas.
    pub bytes: u64,
    /// Bytes that nodes sent to clients.
    pub bytes_sent: u64,
    /// Bytes that nodes received from clients: three times those of uploads.
    pub bytes_received: u64,
    /// Simulated seconds until the last request is complete.
    pub seconds: f64,
    /// Simulated seconds until a client finds no request left: all clients are busy.
    pub busy_seconds: f64,
    /// Bytes sent or received in that time, without replicas.
    pub busy_bytes: u64,
    /// Mean latency of all attempts, failures included, in seconds.
    pub mean_latency_seconds: f64,
    /// Mean latency of successful attempts.
    pub mean_success_seconds: f64,
    /// Mean time to the first byte of successful downloads; 0 in other phases.
    pub mean_first_byte_seconds: f64,
    /// Bytes written to the SSDs of all nodes.
    pub ssd_bytes_written: u64,
    /// Bytes read from the SSDs.
    pub ssd_bytes_read: u64,
    /// Bytes written to the disks.
    pub disk_bytes_written: u64,
    /// Bytes read from the disks.
    pub disk_bytes_read: u64,
    /// Seconds in which disks were busy, summed over the nodes.
    pub disk_busy_seconds: f64,
}

impl PhaseReport {
    /// Bytes per second of the whole phase.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds
    }

    /// Bytes per second while all clients are busy. The last disk images are omitted.
    #[must_use]
    pub fn busy_bytes_per_second(&self) -> f64 {
        self.busy_bytes as f64 / self.busy_seconds
    }

    /// Successful requests per second.
    #[must_use]
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 / self.seconds
    }

    /// Failed attempts, as a share of all.
    #[must_use]
    pub fn failure_share(&self) -> f64 {
        self.failures as f64 / (self.failures + self.requests).max(1) as f64
    }
}

/// Bytes in the caches of all nodes, by type.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Contents {
    /// Metadata of all objects.
    pub metadata: u64,
    /// Objects above 10 MiB of any type but disk images.
    pub large: u64,
    /// Other objects, in the order of [`DataType::ALL`].
    pub types: Vec<u64>,
}

/// Objects above this size are counted as large.
const MIN_LARGE_BYTES: u64 = 10 << 20;
const METADATA_BYTES: u64 = 4096;

impl Contents {
    pub(super) fn new(world: &World, nodes: &[Node]) -> Self {
        let mut contents = Self { types: vec![0; DataType::ALL.len()], ..Self::default() };
        for node in nodes {
            match &node.storage {
                Storage::Plain(_) => {}
                Storage::Hybrid(cache) => cache.cached().for_each(|entry| {
                    let bytes = cache.bytes(world, entry);
                    match cache.offset(entry) {
                        None => contents.metadata += bytes,
                        Some(_) => contents.add(world, cache.object(entry), bytes),
                    }
                }),
                Storage::Tiered(cache) => {
                    contents.metadata += METADATA_BYTES * cache.metadata_blocks();
                    cache.cached().for_each(|object| contents.add(world, object, cache.cached_bytes(object)));
                }
            }
        }
        contents
    }

    fn add(&mut self, world: &World, object: usize, bytes: u64) {
        let object = &world.objects[object];
        if object.bytes > MIN_LARGE_BYTES && object.object_type != DataType::DiskImages {
            self.large += bytes;
        } else {
            self.types[object.object_type as usize] += bytes;
        }
    }

    /// All bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.metadata + self.large + self.types.iter().sum::<u64>()
    }
}

/// Counts the requests of a phase.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    started_at: Duration,
    phase: PhaseReport,
    /// Counters of the devices at the start.
    at_start: PhaseReport,
    latency_seconds: f64,
    success_seconds: f64,
    first_byte_seconds: f64,
    first_bytes: u64,
}

impl Recorder {
    pub fn new(now: Duration, nodes: &[Node]) -> Self {
        Self { started_at: now, at_start: device_counters(nodes), ..Self::default() }
    }

    pub fn success(&mut self, latency: Duration, first_byte: Option<Duration>, bytes: u64) {
        self.phase.requests += 1;
        self.phase.bytes += bytes;
        self.latency_seconds += latency.as_secs_f64();
        self.success_seconds += latency.as_secs_f64();
        if let Some(first_byte) = first_byte {
            self.first_bytes += 1;
            self.first_byte_seconds += first_byte.as_secs_f64();
        }
    }

    pub fn failure(&mut self, latency: Duration) {
        self.phase.failures += 1;
        self.latency_seconds += latency.as_secs_f64();
    }

    /// A client has found no request left.
    pub fn idle(&mut self, now: Duration) {
        if self.phase.busy_seconds == 0.0 {
            self.phase.busy_seconds = (now - self.started_at).as_secs_f64();
            self.phase.busy_bytes = self.phase.bytes_sent + self.phase.bytes_received / REPLICAS as u64;
        }
    }

    pub fn sent(&mut self, bytes: u64) {
        self.phase.bytes_sent += bytes;
    }

    pub fn received(&mut self, bytes: u64) {
        self.phase.bytes_received += bytes;
    }

    pub fn finish(self, now: Duration, nodes: &[Node]) -> PhaseReport {
        let Self { phase, at_start, .. } = self;
        let at_end = device_counters(nodes);
        let mean = |sum: f64, count: u64| sum / count.max(1) as f64;
        PhaseReport {
            seconds: (now - self.started_at).as_secs_f64(),
            mean_latency_seconds: mean(self.latency_seconds, phase.requests + phase.failures),
            mean_success_seconds: mean(self.success_seconds, phase.requests),
            mean_first_byte_seconds: mean(self.first_byte_seconds, self.first_bytes),
            ssd_bytes_written: at_end.ssd_bytes_written - at_start.ssd_bytes_written,
            ssd_bytes_read: at_end.ssd_bytes_read - at_start.ssd_bytes_read,
            disk_bytes_written: at_end.disk_bytes_written - at_start.disk_bytes_written,
            disk_bytes_read: at_end.disk_bytes_read - at_start.disk_bytes_read,
            disk_busy_seconds: at_end.disk_busy_seconds - at_start.disk_busy_seconds,
            ..phase
        }
    }
}

fn device_counters(nodes: &[Node]) -> PhaseReport {
    let mut counters = PhaseReport::default();
    for node in nodes {
        let (ssd, disk) = (node.part(Part::Ssd), node.part(Part::Disk));
        counters.ssd_bytes_written += ssd.bytes_written;
        counters.ssd_bytes_read += ssd.bytes_read;
        counters.disk_bytes_written += disk.bytes_written;
        counters.disk_bytes_read += disk.bytes_read;
        counters.disk_busy_seconds += disk.busy.as_secs_f64();
    }
    counters
}
