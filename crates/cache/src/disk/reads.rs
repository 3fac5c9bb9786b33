//! Reads of extents. Extents that are neighbours on the SSD are read by one request to it, each into a buffer of its
//! own, and verified one by one.

use std::io::IoSliceMut;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{Either, select};
use tokio::sync::oneshot;
use tradewind_model::eviction::{EvictionPolicy, Slot};

use super::frames::Space;
use super::{Disk, DiskState};
use crate::aligned::{AlignedBuffer, BLOCK_BYTES};
use crate::extent::{ExtentKey, verify};
use crate::fingerprint::Fingerprints;
use crate::io_threads::Urgency;

/// The time that a read waits for the SSD before it uses the backing store.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Extents of one request to the SSD at most: a little over 1 MiB.
pub(crate) const MAX_READ_EXTENTS: usize = 16;

/// A read in flight of one or more extents.
pub(crate) struct DiskRead {
    receiver: oneshot::Receiver<Vec<Option<Bytes>>>,
    deadline: Duration,
    count: usize,
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
            for extent in &extents {
                if let Some(entry) = state.index.get(extent.slot) {
                    state.policy.hit(extent.slot, &entry.as_entry());
                }
            }
            extents
        };
        if extents.is_empty() || !self.health.may_use() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let (disk, count) = (self.clone(), extents.len());
        let is_accepted = self.io.spawn(Urgency::Foreground, move || {
            // The reader may have stopped waiting.
            let _ = sender.send(disk.read_extents(&extents));
        });
        is_accepted.then(|| DiskRead { receiver, deadline: self.clock.now() + READ_TIMEOUT, count })
    }

    /// Waits for a read. An extent is `None` if it is not there after all, or the SSD fails or is too slow.
    pub async fn finish_read(&self, read: DiskRead) -> Vec<Option<Bytes>> {
        let time_out = self.clock.sleep_until(read.deadline);
        let found = match select(read.receiver, time_out).await {
            Either::Left((found, _)) => found.ok(),
            Either::Right(_) => {
                self.health.record_error(&format!("a read took over {READ_TIMEOUT:?}"));
                None
            }
        };
        found.unwrap_or_else(|| vec![None; read.count])
    }

    /// Reads an extent.
    pub async fn read(self: &Arc<Self>, key: ExtentKey) -> Option<Bytes> {
        let read = self.start_read(std::iter::once(key))?;
        self.finish_read(read).await.pop().flatten()
    }

    /// Reads neighbours by one request.
    fn read_extents(&self, extents: &[Located]) -> Vec<Option<Bytes>> {
        let Some(first) = extents.first() else { return Vec::new() };
        let blocks = |extent: &Located| extent.space.blocks() as usize;
        let mut buffers: Vec<AlignedBuffer> =
            extents.iter().map(|extent| AlignedBuffer::with_any_content(blocks(extent))).collect();
        let mut slices: Vec<IoSliceMut<'_>> =
            buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer.as_mut_slice())).collect();
        let offset = u64::from(first.space.block) * BLOCK_BYTES as u64;
        if let Err(e) = self.device.read_vectored(&mut slices, offset) {
            self.health.record_error(&e);
            return vec![None; extents.len()];
        }
        self.health.record_success();
        let read = extents.iter().zip(buffers);
        read.map(|(extent, buffer)| self.verified(extent.key, extent.space, &buffer.into_bytes())).collect()
    }

    /// The payload of an extent. If it is damaged, its entry is dropped.
    pub(super) fn verified(&self, key: ExtentKey, space: Space, bytes: &Bytes) -> Option<Bytes> {
        let payload = verify(bytes, self.cache_id, key);
        if payload.is_none() {
            self.drop_damaged(self.fingerprints.extent(key), space);
        }
        payload
    }

    /// Drops the entry of a damaged extent, unless it moved since: then it is another extent.
    pub(super) fn drop_damaged(&self, fingerprint: u64, space: Space) -> bool {
        let mut state = self.state.lock();
        let slot = state.index.find(fingerprint);
        let is_there = slot.and_then(|slot| state.index.get(slot)).is_some_and(|entry| entry.space == space);
        if is_there {
            state.remove(fingerprint);
            self.counters.ssd_corrupt.increment();
        }
        is_there
    }

    /// The bytes of one extent or frame.
    pub(super) fn read_space(&self, space: Space) -> Option<Bytes> {
        let mut buffer = AlignedBuffer::with_any_content(space.blocks() as usize);
        let offset = u64::from(space.block) * BLOCK_BYTES as u64;
        if let Err(e) = self.device.read(buffer.as_mut_slice(), offset) {
            self.health.record_error(&e);
            return None;
        }
        self.health.record_success();
        Some(buffer.into_bytes())
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
            let slot = self.index.find(fingerprints.extent(key))?;
            let space = self.index.get(slot)?.space;
            let is_neighbour = next_block.is_none_or(|next| next == space.block);
            next_block = Some(space.block + space.blocks());
            is_neighbour.then_some(Located { key, slot, space })
        });
        located.take(MAX_READ_EXTENTS)
    }
}
