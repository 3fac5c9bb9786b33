//! Operations on the storage of a node, with what caches do around them.

use tradewind_model::slices::Urgency;

use super::super::classes::METADATA;
use super::super::hybrid::{HybridCache, Placement};
use super::super::node::{Io, IoIndex, Leg, Storage, Work, priority};
use super::super::server::Part;
use super::super::world::ObjectIndex;
use super::transfer::stream_urgency;
use super::{Operation, Run};
use crate::device_model::{Access, DeviceRequest};

/// Bytes of an object's metadata.
const METADATA_BYTES: u64 = 4096;
/// Concurrent operations of the syncer or of write-back, on each node.
const MAX_CLEANING: usize = 1;
/// The stream of the syncer and of write-back in queues.
const CLEANING_STREAM: u32 = u32::MAX;
/// The stream of data that the SSD gets from the disk.
const FILL_STREAM: u32 = u32::MAX - 1;

impl Run<'_> {
    /// Queues an operation that occupies a worker.
    pub(super) fn add_task(&mut self, leg: Leg, work: Work) {
        let (node, object) = (self.leg(leg).node, self.object(leg.client));
        let io = self.new_io(node, object, work);
        self.nodes[node].tasks.push_back(io);
        self.dispatch(node);
    }

    /// Starts an operation that occupies no worker.
    fn start(&mut self, node: usize, object: ObjectIndex, work: Work) {
        let io = self.new_io(node, object, work);
        self.begin(io);
    }

    fn new_io(&mut self, node: usize, object: ObjectIndex, work: Work) -> IoIndex {
        let io = Io { node, work, object, pending: 0 };
        match self.free_ios.pop() {
            Some(index) => {
                self.ios[index] = io;
                index
            }
            None => {
                self.ios.push(io);
                self.ios.len() - 1
            }
        }
    }

    /// Sends the device requests of an operation, or the first of them.
    pub(super) fn begin(&mut self, io: IoIndex) {
        let Io { node, work, object, .. } = self.ios[io];
        match work {
            Work::ReadMetadata(_) => {
                let part = self.metadata_part(node, object);
                self.push_io(io, part, self.metadata_request(Access::Read, object));
            }
            Work::WriteMetadata(_) => self.write_metadata(io),
            Work::Read { from, to, .. } => self.begin_read(io, from, to),
            Work::Write { from, to, .. } => match self.nodes[node].storage {
                Storage::Plain(part) => self.push_range(io, part, Access::Write, from, to),
                Storage::Hybrid(_) => self.write_chunks_or_wait(io),
                Storage::Tiered(_) => self.write_tiered(io, from, to),
            },
            Work::CleanRead(entry) => {
                let world = self.world;
                let bytes = self.hybrid(node).bytes(world, entry);
                self.push_io(io, Part::Ssd, DeviceRequest { access: Access::Read, offset: 0, bytes });
            }
            Work::CleanWrite(entry) => {
                let (world, cache) = (self.world, self.hybrid(node));
                let bytes = cache.bytes(world, entry);
                match cache.offset(entry) {
                    None => self.push_io(io, Part::Disk, self.metadata_request(Access::Write, object)),
                    Some(from) => self.push_range(io, Part::Disk, Access::Write, from, from + bytes),
                }
            }
            Work::WriteBackRead => {
                self.push_range(io, Part::Ssd, Access::Read, 0, self.world.objects[object].bytes);
            }
            Work::WriteBackWrite => {
                self.push_range(io, Part::Disk, Access::Write, 0, self.world.objects[object].bytes);
            }
            Work::Fill => {}
        }
    }

    /// The device requests of an operation are complete: sends the next ones, or ends the operation.
    pub(super) fn advance(&mut self, io: IoIndex) {
        let Io { node, work, object, .. } = self.ios[io];
        if let Work::Write { to, next, .. } = work
            && next < to
            && matches!(self.nodes[node].storage, Storage::Hybrid(_))
        {
            return self.write_chunks_or_wait(io);
        }
        self.free_ios.push(io);
        if work.leg().is_some() {
            self.nodes[node].free_workers += 1;
        }
        match work {
            Work::ReadMetadata(leg) => {
                self.fill_metadata(node, object);
                self.pump_download(leg);
            }
            Work::WriteMetadata(leg) => self.complete_leg(leg),
            Work::Read { leg, from, to } => {
                self.fill(node, object, from, to);
                self.read(leg, to);
            }
            Work::Write { leg, to, .. } => self.written(leg, to),
            Work::CleanRead(entry) => self.start(node, object, Work::CleanWrite(entry)),
            Work::CleanWrite(entry) => {
                let world = self.world;
                self.hybrid(node).cleaned(world, entry);
                self.nodes[node].cleaning -= 1;
            }
            Work::WriteBackRead => self.start(node, object, Work::WriteBackWrite),
            Work::WriteBackWrite => {
                if let Storage::Tiered(cache) = &mut self.nodes[node].storage {
                    cache.written_back(object);
                }
                self.nodes[node].cleaning -= 1;
            }
            Work::Fill => {}
        }
        self.clean(node);
        self.dispatch(node);
    }

    /// The urgency of an operation's device requests.
    pub(super) fn urgency(&self, io: IoIndex) -> Urgency {
        match self.ios[io].work {
            Work::ReadMetadata(_) | Work::WriteMetadata(_) => Urgency::First,
            Work::Read { leg, from, .. } | Work::Write { leg, from, .. } => stream_urgency(leg, from),
            Work::Fill => Urgency::Stream(FILL_STREAM),
            _ => Urgency::Stream(CLEANING_STREAM),
        }
    }

    /// Removes an object from the cache of a connection's node.
    pub(super) fn remove(&mut self, leg: Leg) {
        let (node, object, world) = (self.leg(leg).node, self.object(leg.client), self.world);
        match &mut self.nodes[node].storage {
            Storage::Plain(_) => {}
            Storage::Hybrid(cache) => cache.remove_object(world, object),
            Storage::Tiered(cache) => cache.remove(object),
        }
    }

    /// Starts operations of the syncer or of write-back, and the writes that waited for them.
    fn clean(&mut self, node: usize) {
        self.start_cleaning(node);
        while let Some(&io) = self.nodes[node].waiting.front() {
            if !self.write_chunks(io) {
                return;
            }
            self.nodes[node].waiting.pop_front();
            self.start_cleaning(node);
        }
    }

    fn start_cleaning(&mut self, node: usize) {
        let world = self.world;
        while self.nodes[node].cleaning < MAX_CLEANING {
            let next = match &mut self.nodes[node].storage {
                Storage::Plain(_) => None,
                Storage::Hybrid(cache) => {
                    let entry = cache.next_to_clean(world);
                    entry.map(|entry| (cache.object(entry), Work::CleanRead(entry)))
                }
                Storage::Tiered(cache) => {
                    cache.next_to_write_back().map(|object| (object, Work::WriteBackRead))
                }
            };
            let Some((object, work)) = next else { return };
            self.nodes[node].cleaning += 1;
            self.start(node, object, work);
        }
    }

    fn hybrid(&mut self, node: usize) -> &mut HybridCache {
        match &mut self.nodes[node].storage {
            Storage::Hybrid(cache) => cache,
            _ => unreachable!("only the paper's cache has a syncer"),
        }
    }

    fn metadata_request(&self, access: Access, object: ObjectIndex) -> DeviceRequest {
        let offset = self.world.disk_end + 2 * METADATA_BYTES * object as u64;
        DeviceRequest { access, offset, bytes: METADATA_BYTES }
    }

    /// The device from which metadata is read.
    fn metadata_part(&mut self, node: usize, object: ObjectIndex) -> Part {
        let world = self.world;
        match &mut self.nodes[node].storage {
            Storage::Plain(part) => *part,
            Storage::Hybrid(cache) => {
                let entry = cache.metadata(object);
                if cache.read(world, entry) { Part::Ssd } else { Part::Disk }
            }
            Storage::Tiered(cache) => {
                cache.record(object);
                Part::Ssd
            }
        }
    }

    fn write_metadata(&mut self, io: IoIndex) {
        let Io { node, object, .. } = self.ios[io];
        let (world, is_put) = (self.world, self.operation == Operation::Put);
        let part = match &mut self.nodes[node].storage {
            Storage::Plain(part) => *part,
            Storage::Hybrid(cache) if is_put => {
                let entry = cache.metadata(object);
                match cache.write(world, entry, METADATA) {
                    Placement::Cached => Part::Ssd,
                    Placement::Bypassed | Placement::Full => Part::Disk,
                }
            }
            Storage::Hybrid(_) => Part::Disk,
            Storage::Tiered(cache) => {
                if is_put {
                    cache.insert_metadata();
                }
                Part::Ssd
            }
        };
        self.push_io(io, part, self.metadata_request(Access::Write, object));
    }

    fn fill_metadata(&mut self, node: usize, object: ObjectIndex) {
        let world = self.world;
        if let Storage::Hybrid(cache) = &mut self.nodes[node].storage {
            let entry = cache.metadata(object);
            if cache.fill(world, entry, METADATA) {
                self.fill_ssd(node, object, METADATA_BYTES);
            }
        }
    }

    /// Requests a range of an object from a device.
    fn push_range(&mut self, io: IoIndex, part: Part, access: Access, from: u64, to: u64) {
        let start = self.world.objects[self.ios[io].object].disk_offset;
        let request = DeviceRequest { access, offset: start + from, bytes: to - from };
        self.push_io(io, part, request);
    }

    fn begin_read(&mut self, io: IoIndex, from: u64, to: u64) {
        let Io { node, object, .. } = self.ios[io];
        let (world, chunk_bytes) = (self.world, self.setup.chunk_bytes);
        match &mut self.nodes[node].storage {
            Storage::Plain(part) => {
                let part = *part;
                self.push_range(io, part, Access::Read, from, to);
            }
            Storage::Hybrid(cache) => {
                let mut runs: Vec<ReadRun> = Vec::new();
                for chunk in from / chunk_bytes..to.div_ceil(chunk_bytes) {
                    let entry = cache.chunk(object, chunk);
                    let part = if cache.read(world, entry) { Part::Ssd } else { Part::Disk };
                    let end = to.min((chunk + 1) * chunk_bytes);
                    match runs.last_mut() {
                        Some(run) if run.part == part => run.to = end,
                        _ => runs.push(ReadRun { part, from: chunk * chunk_bytes, to: end }),
                    }
                }
                for run in runs {
                    self.push_range(io, run.part, Access::Read, run.from, run.to);
                }
            }
            Storage::Tiered(cache) => {
                let cached = cache.cached_bytes(object).clamp(from, to);
                if cached > from {
                    self.push_range(io, Part::Ssd, Access::Read, from, cached);
                }
                if cached < to {
                    self.push_range(io, Part::Disk, Access::Read, cached, to);
                }
            }
        }
    }

    /// Adds what was read from the disk to the cache.
    fn fill(&mut self, node: usize, object: ObjectIndex, from: u64, to: u64) {
        let (world, chunk_bytes) = (self.world, self.setup.chunk_bytes);
        let priority = priority(world, &self.setup, object);
        let filled = match &mut self.nodes[node].storage {
            Storage::Plain(_) => 0,
            Storage::Hybrid(cache) => {
                let mut filled = 0;
                for chunk in from / chunk_bytes..to.div_ceil(chunk_bytes) {
                    let entry = cache.chunk(object, chunk);
                    if cache.fill(world, entry, priority) {
                        filled += cache.bytes(world, entry);
                    }
                }
                filled
            }
            Storage::Tiered(cache) if cache.completes(object, from, to) => cache.insert_read(object),
            Storage::Tiered(_) => 0,
        };
        if filled > 0 {
            self.fill_ssd(node, object, filled);
        }
    }

    fn fill_ssd(&mut self, node: usize, object: ObjectIndex, bytes: u64) {
        let io = self.new_io(node, object, Work::Fill);
        self.push_io(io, Part::Ssd, DeviceRequest { access: Access::Write, offset: 0, bytes });
    }

    fn write_chunks_or_wait(&mut self, io: IoIndex) {
        let node = self.ios[io].node;
        if !self.nodes[node].waiting.is_empty() || !self.write_chunks(io) {
            self.nodes[node].waiting.push_back(io);
        }
        self.clean(node);
    }

    /// Writes the next chunk of a slice to the cache, or all of its chunks to the disk if they bypass the cache. Returns
    /// false if the cache has no space.
    fn write_chunks(&mut self, io: IoIndex) -> bool {
        let Io { node, object, work, .. } = self.ios[io];
        let Work::Write { leg, from, to, next } = work else { return true };
        let (world, chunk_bytes) = (self.world, self.setup.chunk_bytes);
        let priority = priority(world, &self.setup, object);
        let mut end = next;
        let mut part = Part::Disk;
        while end < to && part == Part::Disk {
            let cache = self.hybrid(node);
            let entry = cache.chunk(object, end / chunk_bytes);
            match cache.write(world, entry, priority) {
                Placement::Bypassed => {}
                Placement::Cached => part = Part::Ssd,
                Placement::Full => return false,
            }
            end = to.min(end + chunk_bytes);
        }
        self.ios[io].work = Work::Write { leg, from, to, next: end };
        self.push_range(io, part, Access::Write, next, end);
        true
    }

    fn write_tiered(&mut self, io: IoIndex, from: u64, to: u64) {
        let Io { node, object, .. } = self.ios[io];
        let world = self.world;
        let Storage::Tiered(cache) = &mut self.nodes[node].storage else { return };
        if from == 0 {
            cache.record(object);
            cache.insert_written(world, object);
        }
        let cached = cache.cached_bytes(object);
        // The disk gets all of a whole object later, also if that begins before its last slice is written.
        let is_whole = cached == world.objects[object].bytes;
        let end = cached.clamp(from, to);
        if end > from {
            self.push_range(io, Part::Ssd, Access::Write, from, end);
        }
        if !is_whole {
            self.push_range(io, Part::Disk, Access::Write, from, to);
        }
    }
}

/// Consecutive chunks on one device.
struct ReadRun {
    part: Part,
    from: u64,
    to: u64,
}
