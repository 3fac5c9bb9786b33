//! The storage system of Chen, Mesnier and Hahn, *Client-aware Cloud Storage* (MSST 2014), on the device model: the
//! workload of table I on disks, on SSDs, and on disks with an SSD as a cache.
//!
//! Four storage nodes hold three replicas of each object. A node has an SSD, a disk, and a link in each direction. 100
//! clients PUT all objects, then GET random ones, then DELETE all; each has one request in flight. A PUT is sent to all
//! replicas in step, a GET to one at random. Every configuration serves the same requests.
//!
//! - The nodes of the paper have eight workers each ([`node`]). A worker has one device request in flight, and accepts
//!   connections only in between: one that is not accepted within 0.5 s fails, and its request is repeated later.
//! - A stream reads and writes a device in slices of 1 MiB, as page cache and elevator gather them. A cache in front of
//!   the disk sees the server's chunks of 64 KiB ([`Options::chunk_bytes`]), and writes them back in its own order ([`hybrid`]).
//! - Tradewind's node accepts at once, and has the queues of [`tradewind_model::slices`] ([`tiered`]).
//!
//! Not simulated: the proxy, CPU time, RAM as a cache, garbage collection of the SSD, and failures of devices.
//!
//! [`traffic`] is the second experiment of the paper: streams of different types on an SSD and a disk without a cache.

mod classes;
mod earned;
mod hybrid;
mod lists;
mod node;
mod report;
mod run;
mod server;
pub mod streams;
#[cfg(test)]
mod tests;
mod tiered;
pub mod traffic;

mod world;

use std::fmt;

use tradewind_model::workload::Labels;

pub use self::report::{Contents, PhaseReport, Report, RunReport};
use self::run::Run;
use self::world::World;

/// Storage nodes.
pub const NODES: usize = 4;
/// Replicas of an object, on different nodes.
pub const REPLICAS: usize = 3;
/// Requests in flight, one per client.
pub const CLIENTS: usize = 100;

/// The storage of all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Configuration {
    /// Disks only.
    Hdd,
    /// Disks, and an SSD as a cache in LRU order.
    Lru,
    /// Disks, and an SSD as a cache with the priorities of the paper (section III.D.1).
    Dss,
    /// SSDs only.
    Ssd,
    /// Like [`Self::Tradewind`], with whole objects in the order of S3-FIFO: sizes and labels are ignored.
    S3Fifo,
    /// Disks and an SSD with Tradewind's cache and disk slices.
    Tradewind,
}

impl Configuration {
    /// All configurations.
    pub const ALL: [Self; 6] = [Self::Hdd, Self::Lru, Self::Dss, Self::Ssd, Self::S3Fifo, Self::Tradewind];

    /// Its name in reports and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hdd => "hdd",
            Self::Lru => "lru",
            Self::Dss => "dss",
            Self::Ssd => "ssd",
            Self::S3Fifo => "s3-fifo",
            Self::Tradewind => "tradewind",
        }
    }

    /// True if it has an SSD as a cache.
    #[must_use]
    pub fn is_cached(self) -> bool {
        !matches!(self, Self::Hdd | Self::Ssd)
    }

    /// True if a node accepts at once and serves by the queues of [`tradewind_model::slices`].
    fn has_tradewinds_node(self) -> bool {
        matches!(self, Self::S3Fifo | Self::Tradewind)
    }

    /// True if labels make a difference.
    #[must_use]
    pub fn obeys_labels(self) -> bool {
        matches!(self, Self::Dss | Self::Tradewind)
    }
}

/// A simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Configurations.
    pub configurations: Vec<Configuration>,
    /// Sizes of the cache, as shares of the data of a node.
    pub cache_shares: Vec<f64>,
    /// Labels, for configurations that obey them.
    pub labels: Vec<Labels>,
    /// Links of [`Configuration::Tradewind`] send in the order of arrival, as those of the other configurations, and not
    /// the first units of streams first.
    pub has_fifo_links: bool,
    /// The server's reads and writes, which a cache sees: [`Configuration::Lru`] and [`Configuration::Dss`] place and
    /// write back units of this size. A power of two from 4 KiB to 1 MiB.
    pub chunk_bytes: u64,
    /// Size of the workload: 1 is the paper's 26,000 PUTs of about 100 GB and 100,000 GETs. Below it there are fewer
    /// objects, but at least four disk images, which become smaller.
    pub scale: f64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            configurations: Configuration::ALL.to_vec(),
            cache_shares: vec![0.05, 0.10],
            labels: vec![Labels::On],
            has_fifo_links: false,
            chunk_bytes: 64 << 10,
            scale: 1.0,
            seed: 1,
        }
    }
}

/// Options that make no simulation. Its text says which one and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidOptions(String);

impl fmt::Display for InvalidOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidOptions {}

/// Range of [`Options::scale`]: below it too few objects have a type, above it a run takes hours.
const MIN_SCALE: f64 = 0.01;
const MAX_SCALE: f64 = 10.0;
/// Range of [`Options::cache_shares`].
const MIN_CACHE_SHARE: f64 = 0.001;
const MAX_CACHE_SHARE: f64 = 1.0;

impl Options {
    fn validate(&self) -> Result<(), InvalidOptions> {
        let check =
            |is_valid: bool, why: &str| if is_valid { Ok(()) } else { Err(InvalidOptions(why.to_owned())) };
        check(!self.configurations.is_empty(), "name at least one configuration")?;
        check(!self.cache_shares.is_empty(), "name at least one size of the cache")?;
        check(!self.labels.is_empty(), "name at least one kind of labels")?;
        let is_share = |share: &f64| (MIN_CACHE_SHARE..=MAX_CACHE_SHARE).contains(share);
        check(self.cache_shares.iter().all(is_share), "the cache must be from 0.1% to 100% of the data")?;
        let is_chunk = self.chunk_bytes.is_power_of_two() && (4096..=1 << 20).contains(&self.chunk_bytes);
        check(is_chunk, "the chunk must be a power of two from 4 KiB to 1 MiB")?;
        check((MIN_SCALE..=MAX_SCALE).contains(&self.scale), "the scale must be from 0.01 to 10")
    }

    /// The runs, without those that would differ in a property only that the configuration ignores.
    fn setups(&self) -> Vec<Setup> {
        let mut setups = Vec::new();
        for &configuration in &self.configurations {
            let shares: Vec<Option<f64>> = if configuration.is_cached() {
                self.cache_shares.iter().copied().map(Some).collect()
            } else {
                vec![None]
            };
            let labels: Vec<Option<Labels>> = if configuration.obeys_labels() {
                self.labels.iter().copied().map(Some).collect()
            } else {
                vec![None]
            };
            for &cache_share in &shares {
                let setup = |&labels: &Option<Labels>| Setup {
                    configuration,
                    cache_share,
                    labels,
                    has_fifo_links: self.has_fifo_links,
                    chunk_bytes: self.chunk_bytes,
                };
                setups.extend(labels.iter().map(setup));
            }
        }
        setups
    }
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Setup {
    configuration: Configuration,
    /// `None` without a cache.
    cache_share: Option<f64>,
    /// `None` if labels are ignored.
    labels: Option<Labels>,
    has_fifo_links: bool,
    chunk_bytes: u64,
}

/// Runs each configuration over the same requests. At scale 1, a run takes seconds to a minute, and 200 MB of memory.
///
/// # Errors
///
/// If an option is out of its range.
pub fn simulate(options: &Options) -> Result<Report, InvalidOptions> {
    options.validate()?;
    let world = World::new(options.scale, options.seed);
    let run = |setup| Run::new(&world, setup).finish();
    Ok(Report { runs: options.setups().into_iter().map(run).collect() })
}
