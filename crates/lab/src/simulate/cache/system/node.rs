//! A storage node: its devices, links and workers, and what happens on them.

use std::collections::VecDeque;

use tradewind_model::slices::{HEAD_BYTES, MAX_UNSLICED_BYTES};

use super::classes::{Priority, label_priority};
use super::hybrid::{EntryNumber, HybridCache, Ranking};
use super::server::{Part, QueueOrder, Server};
use super::tiered::{ObjectRanking, TieredCache};
use super::world::{ObjectIndex, World};
use super::{Configuration, Labels, Setup};

/// Workers of the paper's storage server, each with one device request in flight.
const WORKERS: usize = 8;
/// Bytes of one stream that reach a device at once, as page cache and elevator gather them.
const GATHERED_BYTES: u64 = 1 << 20;

/// A client's connection to one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leg {
    pub client: usize,
    /// Below [`super::REPLICAS`].
    pub number: usize,
}

impl Leg {
    /// The number of its stream in queues.
    pub fn stream(self) -> u32 {
        (self.client * super::REPLICAS + self.number) as u32
    }
}

/// An index into the operations of a run.
pub(super) type IoIndex = usize;

/// The purpose of a request to a device or link.
#[derive(Debug, Clone, Copy)]
pub(super) enum Token {
    /// A part of an operation.
    Io(IoIndex),
    /// A unit to the client, the first one or a later one.
    Send { leg: Leg, bytes: u64, is_first: bool },
    /// A unit from the client.
    Receive { leg: Leg, bytes: u64 },
}

/// An operation on the storage of a node.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    ReadMetadata(Leg),
    WriteMetadata(Leg),
    /// A slice of an object.
    Read {
        leg: Leg,
        from: u64,
        to: u64,
    },
    /// A slice of an object, with the next byte to write of those that wait for the cache.
    Write {
        leg: Leg,
        from: u64,
        to: u64,
        next: u64,
    },
    /// The syncer reads an entry from the SSD.
    CleanRead(EntryNumber),
    /// The syncer writes it to the disk.
    CleanWrite(EntryNumber),
    /// Write-back reads an object from the SSD.
    WriteBackRead,
    /// Write-back writes it to the disk.
    WriteBackWrite,
    /// The SSD gets what was read from the disk.
    Fill,
}

impl Work {
    /// The connection that waits for it, and whose worker does it.
    pub fn leg(self) -> Option<Leg> {
        match self {
            Self::ReadMetadata(leg) | Self::WriteMetadata(leg) => Some(leg),
            Self::Read { leg, .. } | Self::Write { leg, .. } => Some(leg),
            _ => None,
        }
    }
}

/// An operation in progress.
#[derive(Debug)]
pub(super) struct Io {
    pub node: usize,
    pub work: Work,
    pub object: ObjectIndex,
    /// Device requests in flight.
    pub pending: usize,
}

/// The devices of a node and their use.
#[derive(Debug)]
pub(super) enum Storage {
    /// One device.
    Plain(Part),
    /// The paper's cache.
    Hybrid(HybridCache),
    /// Tradewind's cache.
    Tiered(Box<TieredCache>),
}

/// A storage node.
#[derive(Debug)]
pub(super) struct Node {
    servers: [Server<Token>; Part::ALL.len()],
    pub storage: Storage,
    pub free_workers: usize,
    /// Connections that are not accepted yet.
    pub accepts: VecDeque<Leg>,
    /// Operations that wait for a worker.
    pub tasks: VecDeque<IoIndex>,
    /// Writes that wait for a free entry of the cache.
    pub waiting: VecDeque<IoIndex>,
    /// Operations of the syncer or of write-back in progress.
    pub cleaning: usize,
}

impl Node {
    pub fn new(world: &World, setup: &Setup, number: usize, seed: u64) -> Self {
        let is_tradewind = setup.configuration.has_tradewinds_node();
        let server = |part: Part| {
            let is_device = matches!(part, Part::Ssd | Part::Disk);
            let is_sliced = is_tradewind && (is_device || !setup.has_fifo_links);
            let order = if is_sliced { QueueOrder::Slices } else { QueueOrder::Fifo };
            Server::new(part, order, seed.wrapping_mul(31).wrapping_add((number * 4 + part as usize) as u64))
        };
        Self {
            servers: Part::ALL.map(server),
            storage: Storage::new(world, setup, number),
            free_workers: if is_tradewind { usize::MAX } else { WORKERS },
            accepts: VecDeque::new(),
            tasks: VecDeque::new(),
            waiting: VecDeque::new(),
            cleaning: 0,
        }
    }

    pub fn server(&mut self, part: Part) -> &mut Server<Token> {
        &mut self.servers[part as usize]
    }

    pub fn part(&self, part: Part) -> &Server<Token> {
        &self.servers[part as usize]
    }
}

impl Storage {
    fn new(world: &World, setup: &Setup, node: usize) -> Self {
        let capacity = (setup.cache_share.unwrap_or(0.0) * world.node_bytes[node] as f64) as u64;
        let hybrid = |ranking| HybridCache::new(world, capacity, setup.chunk_bytes, ranking);
        let tiered = |ranking| Self::Tiered(Box::new(TieredCache::new(world, capacity, ranking)));
        match setup.configuration {
            Configuration::Hdd => Self::Plain(Part::Disk),
            Configuration::Ssd => Self::Plain(Part::Ssd),
            Configuration::Lru => Self::Hybrid(hybrid(Ranking::Lru)),
            Configuration::Dss => Self::Hybrid(hybrid(Ranking::Classes)),
            Configuration::S3Fifo => tiered(ObjectRanking::S3Fifo),
            Configuration::Tradewind => tiered(ObjectRanking::Earned(setup.labels.unwrap_or(Labels::On))),
        }
    }

    /// The most bytes of a stream that a device reads or writes at once.
    pub fn slice_bytes(&self) -> u64 {
        match self {
            Self::Plain(_) | Self::Hybrid(_) => GATHERED_BYTES,
            Self::Tiered(_) => super::server::DISK.slice_bytes(),
        }
    }

    /// The end of the slice that a read of an object starts at `from`.
    pub fn read_slice_end(&self, world: &World, object: ObjectIndex, from: u64) -> u64 {
        let size = world.objects[object].bytes;
        let slice = match self {
            Self::Tiered(_) if size <= MAX_UNSLICED_BYTES => size,
            // The first slice of a stream is as urgent as a small object, and short for that.
            Self::Tiered(cache) if from == 0 => match cache.cached_bytes(object) {
                0 => GATHERED_BYTES,
                cached => cached.min(HEAD_BYTES),
            },
            _ => self.slice_bytes(),
        };
        size.min(from + slice)
    }
}

/// The priority of an object in the paper's cache.
pub(super) fn priority(world: &World, setup: &Setup, object: ObjectIndex) -> Priority {
    label_priority(&world.objects[object], setup.labels.unwrap_or(Labels::On))
}
