//! Reads of extents. Extents that are neighbours on the SSD are read by one request to it, each into a buffer of its
//! own, and verified one by one.

use std::io::{self, IoSliceMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::sync::oneshot;
use tradewind_model::eviction::{EvictionPolicy, Slot};

use super::frames::Space;
use super::index::IndexEntry;
use super::{Disk, DiskState};
use crate::aligned::{AlignedBuffer, BLOCK_BYTES};
use crate::extent::{ExtentHeader, ExtentKey, read_header, verify};
use crate::fingerprint::Fingerprints;
use crate::io_threads::Urgency;

/// The time that a read waits for the SSD before it uses the backing store.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Extents of one request to the SSD at most: a little over 1 MiB.
pub(crate) const MAX_READ_EXTENTS: usize = 16;

/// Extents that could not be read recently: twice as many as one read has.
const MAX_LAST_UNREADABLE: usize = 2 * MAX_READ_EXTENTS;

/// An extent that could not be read.
#[derive(Debug)]
pub(super) struct UnreadableExtent {
    place: u64,
    /// Recoveries of the SSD before that.
    recoveries: u64,
}

/// A read in flight of one or more extents.
pub(crate) struct DiskRead {
    receiver: oneshot::Receiver<Vec<Option<Bytes>>>,
    deadline: Duration,
    count: usize,
    /// The time at which an I/O thread began it.
    started: Arc<OnceLock<Duration>>,
    /// Jobs that the I/O threads had finished when it was queued.
    finished_jobs: u64,
}

impl DiskRead {
    /// Number of extents that are read.
    pub const fn count(&self) -> usize {
        self.count
    }
}

/// An extent and its entry of the index.
#[derive(Debug, Clone, Copy)]
struct Located {
    key: ExtentKey,
    slot: Slot,
    space: Space,
}

impl Disk {
    /// Number of the first of `keys` that one request reads: those in the index that are neighbours, at most
    /// [`MAX_READ_EXTENTS`]. Not a use of them.
    pub fn count_neighbours(&self, keys: impl Iterator<Item = ExtentKey>) -> usize {
        self.state.lock().locate(self.fingerprints, keys).count()
    }

    /// Begins to read the first of `keys` that one request reads. `None` if the index does not have the first one, or
    /// the SSD is switched off.
    pub fn start_read(self: &Arc<Self>, keys: impl Iterator<Item = ExtentKey>) -> Option<DiskRead> {
        let extents: Vec<Located> = {
            let state = &mut *self.state.lock();
            let extents: Vec<Located> = state.locate(self.fingerprints, keys).collect();
            if let Some(ExtentKey::Data(place, _)) = extents.first().map(|extent| extent.key) {
                state.record_data_of(place.address);
            }
            for extent in &extents {
                if let Some(entry) = state.index.get(extent.slot).filter(IndexEntry::is_ranked) {
                    state.policy.hit(extent.slot, &entry.as_entry());
                }
            }
            extents
        };
        self.start_located(extents)
    }

    /// Records a use of an extent that was read from memory.
    pub fn touch(&self, key: ExtentKey) {
        let state = &mut *self.state.lock();
        let Some(slot) = state.index.find_extent(self.fingerprints.name(key)) else { return };
        if let Some(entry) = state.index.get(slot).filter(IndexEntry::is_ranked) {
            state.policy.hit(slot, &entry.as_entry());
        }
    }

    /// Reads an extent. Not a use of it.
    pub async fn peek(self: &Arc<Self>, key: ExtentKey) -> Option<Bytes> {
        let extents = self.state.lock().locate(self.fingerprints, std::iter::once(key)).collect();
        let read = self.start_located(extents)?;
        self.finish_read(read).await.pop().flatten()
    }

    fn start_located(self: &Arc<Self>, extents: Vec<Located>) -> Option<DiskRead> {
        if extents.is_empty() || !self.health.may_use() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let (disk, count) = (self.clone(), extents.len());
        let (started, finished_jobs) = (Arc::new(OnceLock::new()), self.io.finished_jobs());
        let job_started = started.clone();
        let is_accepted = self.io.spawn(Urgency::Foreground, move || {
            // The reader may have stopped waiting, before the read or during it.
            if !sender.is_closed() {
                job_started.get_or_init(|| disk.clock.now());
                let read = disk.read_extents(&extents, || sender.is_closed());
                let _ = sender.send(read);
            }
        });
        let deadline = self.clock.now() + READ_TIMEOUT;
        is_accepted.then_some(DiskRead { receiver, deadline, count, started, finished_jobs })
    }

    /// Waits for a read. An extent is `None` if it is not there after all, or the SSD fails or is too slow.
    pub async fn finish_read(&self, read: DiskRead) -> Vec<Option<Bytes>> {
        let time_out = self.clock.sleep_until(read.deadline);
        let found = match select(read.receiver, time_out).await {
            Either::Left((found, _)) => found.ok(),
            Either::Right(_) => {
                if self.is_hung(&read.started, read.finished_jobs) {
                    self.health.record_error(&format!("a read took over {READ_TIMEOUT:?}"));
                }
                None
            }
        };
        found.unwrap_or_else(|| vec![None; read.count])
    }

    /// Returns true if a read that has timed out shows that the SSD hangs: most of the time it was with the SSD, or no job
    /// has ended since it was queued. Otherwise it was in a queue that moves.
    fn is_hung(&self, started: &OnceLock<Duration>, finished_jobs: u64) -> bool {
        match started.get() {
            Some(started) => self.clock.now().saturating_sub(*started) >= READ_TIMEOUT / 2,
            None => self.io.finished_jobs() == finished_jobs,
        }
    }

    /// Reads an extent.
    pub async fn read(self: &Arc<Self>, key: ExtentKey) -> Option<Bytes> {
        let read = self.start_read(std::iter::once(key))?;
        self.finish_read(read).await.pop().flatten()
    }

    /// Reads neighbours by one request. If it fails, they are read one by one until `is_abandoned`: one unreadable block
    /// is to cost one extent only.
    fn read_extents(&self, extents: &[Located], is_abandoned: impl Fn() -> bool) -> Vec<Option<Bytes>> {
        let error = match self.read_together(extents) {
            Ok(read) => {
                self.health.record_success();
                let read = extents.iter().zip(read);
                return read.map(|(extent, bytes)| self.verified(extent.key, extent.space, &bytes)).collect();
            }
            Err(error) => error,
        };
        if let [extent] = extents {
            self.health.record_error(&error);
            self.record_unreadable(self.fingerprints.name(extent.key).place, extent.space);
            return vec![None];
        }
        self.read_one_by_one(extents, &error, is_abandoned)
    }

    /// Reads neighbours one by one, after an error of the read of all. An extent that cannot be read beside one that
    /// can be is dropped. All of this counts as one error.
    fn read_one_by_one(
        &self,
        extents: &[Located],
        error: &io::Error,
        is_abandoned: impl Fn() -> bool,
    ) -> Vec<Option<Bytes>> {
        let mut read = Vec::with_capacity(extents.len());
        for extent in extents {
            if is_abandoned() {
                break;
            }
            read.push(self.read_blocks(extent.space));
        }
        let mut found = vec![None; extents.len()];
        if !read.iter().any(Result::is_ok) {
            self.health.record_error(error);
            if read.len() == extents.len() {
                self.record_unreadable_run(extents);
            }
            return found;
        }
        self.health.record_partial_error();
        for ((extent, read), found) in extents.iter().zip(read).zip(&mut found) {
            match read {
                Ok(bytes) => *found = self.verified(extent.key, extent.space, &bytes),
                Err(error) => {
                    tracing::debug!(%error, block = extent.space.block, "an extent is unreadable and is dropped");
                    self.drop_damaged(self.fingerprints.name(extent.key).place, extent.space);
                }
            }
        }
        found
    }

    /// Reads neighbours by one request.
    fn read_together(&self, extents: &[Located]) -> io::Result<Vec<Bytes>> {
        let Some(first) = extents.first() else { return Ok(Vec::new()) };
        let blocks = |extent: &Located| extent.space.blocks() as usize;
        let mut buffers: Vec<AlignedBuffer> =
            extents.iter().map(|extent| AlignedBuffer::with_any_content(blocks(extent))).collect();
        let mut slices: Vec<IoSliceMut<'_>> =
            buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer.as_mut_slice())).collect();
        let offset = u64::from(first.space.block) * BLOCK_BYTES as u64;
        self.device.read_vectored(&mut slices, offset)?;
        Ok(buffers.into_iter().map(AlignedBuffer::into_bytes).collect())
    }

    /// The payload of an extent. If it is damaged or another extent, its entry is dropped.
    fn verified(&self, key: ExtentKey, space: Space, bytes: &Bytes) -> Option<Bytes> {
        let payload = verify(bytes, self.cache_id, key);
        if payload.is_none() {
            self.drop_unverified(self.fingerprints.name(key).place, space, bytes);
        }
        payload
    }

    /// Drops the entry of an extent that failed its verification. Returns true if it is damaged, and false if its entry
    /// was outdated or is gone.
    pub(super) fn drop_unverified(&self, place: u64, space: Space, bytes: &Bytes) -> bool {
        if self.is_outdated(bytes) {
            self.drop_entry(place, space);
            return false;
        }
        self.drop_damaged(place, space)
    }

    /// True if bytes that are not the extent of an entry are no sign of damage: the entry is of an older checkpoint, or
    /// they are another extent of this cache.
    fn is_outdated(&self, bytes: &Bytes) -> bool {
        let is_whole = |header: ExtentHeader| verify(bytes, self.cache_id, header.key).is_some();
        self.has_outdated_entries.load(Ordering::Acquire) || read_header(bytes).is_some_and(is_whole)
    }

    /// Drops the entry of a damaged or unreadable extent. Returns false if it is gone.
    fn drop_damaged(&self, place: u64, space: Space) -> bool {
        let is_dropped = self.drop_entry(place, space);
        if is_dropped {
            self.counters.ssd_corrupt.increment();
        }
        is_dropped
    }

    /// Drops an entry, unless it moved since: then it is another extent.
    fn drop_entry(&self, place: u64, space: Space) -> bool {
        let mut state = self.state.lock();
        let slot = state.index.find(place);
        let slot = slot.filter(|slot| state.index.get(*slot).is_some_and(|entry| entry.space == space));
        slot.and_then(|slot| state.release_slot(slot)).is_some()
    }

    /// Records that an extent could not be read on its own. It is dropped at the second time, unless all of the SSD fails, or
    /// [`MAX_LAST_UNREADABLE`] others were recorded meanwhile. Returns true if it was dropped.
    pub(super) fn record_unreadable(&self, place: u64, space: Space) -> bool {
        let is_second = self.note_unreadable(place).is_some();
        is_second && !self.health.is_off() && self.drop_damaged(place, space)
    }

    /// Records that neighbours could not be read, nor one of them. They are dropped at the second time if the SSD has worked
    /// in between: otherwise all of it may fail.
    fn record_unreadable_run(&self, extents: &[Located]) {
        for extent in extents {
            let place = self.fingerprints.name(extent.key).place;
            let before = self.note_unreadable(place);
            if before.is_some_and(|recoveries| recoveries < self.health.recoveries()) {
                self.drop_damaged(place, extent.space);
            }
        }
    }

    /// Records an extent that could not be read. Returns the recoveries of the SSD at the first time, if there was one.
    fn note_unreadable(&self, place: u64) -> Option<u64> {
        let mut last = self.last_unreadable.lock();
        if let Some(extent) = last.iter().find(|extent| extent.place == place) {
            return Some(extent.recoveries);
        }
        if last.len() == MAX_LAST_UNREADABLE {
            last.pop_front();
        }
        last.push_back(UnreadableExtent { place, recoveries: self.health.recoveries() });
        None
    }

    /// The bytes of one extent or frame. The outcome counts for the health of the SSD.
    pub(super) fn read_space(&self, space: Space) -> Option<Bytes> {
        match self.read_blocks(space) {
            Ok(bytes) => {
                self.health.record_success();
                Some(bytes)
            }
            Err(error) => {
                self.health.record_error(&error);
                None
            }
        }
    }

    fn read_blocks(&self, space: Space) -> io::Result<Bytes> {
        let mut buffer = AlignedBuffer::with_any_content(space.blocks() as usize);
        self.device.read(buffer.as_mut_slice(), u64::from(space.block) * BLOCK_BYTES as u64)?;
        Ok(buffer.into_bytes())
    }
}

impl DiskState {
    /// The first of `keys` that are in the index and neighbours on the SSD.
    fn locate(
        &self,
        fingerprints: Fingerprints,
        keys: impl Iterator<Item = ExtentKey>,
    ) -> impl Iterator<Item = Located> {
        let mut next_block = None;
        let located = keys.map_while(move |key| {
            let slot = self.index.find_extent(fingerprints.name(key))?;
            let space = self.index.get(slot)?.space;
            let is_neighbour = next_block.is_none_or(|next| next == space.block);
            next_block = Some(space.block + space.blocks());
            is_neighbour.then_some(Located { key, slot, space })
        });
        located.take(MAX_READ_EXTENTS)
    }
}
