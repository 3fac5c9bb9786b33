//! The extents of a write: the complete ones and the one being filled.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::Result;

use super::ids::ExtentIds;
use crate::local::bulk::ExtentWriter;
use crate::local::frame::MAX_PAYLOAD_BYTES;
use crate::local::open_store::OpenStore;
use crate::local::record::{ExtentLocation, ExtentRun};
use crate::local::segment::SegmentPin;

/// The extents of a write. They have consecutive ids if possible, so that manifests stay short.
pub(super) struct StagedExtents {
    /// Size of the whole write, if declared. It may be wrong.
    declared_bytes: Option<u64>,
    ids: ExtentIds,
    open: Option<ExtentWriter>,
    /// The complete extents, as runs.
    pub runs: Vec<ExtentRun>,
    /// The locations of the complete extents.
    pub new_extents: Vec<ExtentLocation>,
    /// Pins of the segments that contain them.
    pub pins: Vec<SegmentPin>,
    /// Bytes of the complete extents.
    complete_bytes: u64,
}

impl StagedExtents {
    pub fn with_declared_size(bytes: Option<u64>) -> Self {
        Self {
            declared_bytes: bytes,
            ids: ExtentIds::for_size(bytes),
            open: None,
            runs: Vec::new(),
            new_extents: Vec::new(),
            pins: Vec::new(),
            complete_bytes: 0,
        }
    }

    /// The declared size of the whole write.
    pub const fn declared_bytes(&self) -> Option<u64> {
        self.declared_bytes
    }

    /// Returns true if nothing was submitted so far.
    pub const fn is_empty(&self) -> bool {
        self.open.is_none() && self.runs.is_empty()
    }

    /// Returns true if an extent is started but incomplete.
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Remaining capacity in bytes of the open extent, or of the next one if none is open.
    pub fn extent_capacity(&self) -> usize {
        self.open.as_ref().map_or(MAX_PAYLOAD_BYTES, |extent| extent.remaining_bytes())
    }

    /// Returns true if, by the declared size, the write ends after `bytes` more bytes than are submitted.
    pub fn is_declared_end(&self, bytes: usize) -> bool {
        self.remaining_bytes() == Some(bytes)
    }

    /// Appends `payload` to the open extent and submits it, starting an extent if none is open.
    pub async fn append(&mut self, store: &Arc<OpenStore>, payload: Vec<Bytes>) -> Result<()> {
        let bytes = total_bytes(&payload);
        // A full extent, unless the declared rest is shorter.
        let capacity =
            self.remaining_bytes().filter(|remaining| *remaining >= bytes).unwrap_or(MAX_PAYLOAD_BYTES);
        let extent = match &mut self.open {
            Some(open) => open,
            None => {
                let writer = self.begin(store, capacity.min(MAX_PAYLOAD_BYTES)).await?;
                self.open.insert(writer)
            }
        };
        extent.append(payload).await
    }

    /// Completes the open extent with the last of its payload, or writes an extent of only these bytes if none is open.
    pub async fn finish_extent(
        &mut self,
        store: &Arc<OpenStore>,
        payload: Vec<Bytes>,
        block_crcs: &[u64],
    ) -> Result<()> {
        let last_bytes = total_bytes(&payload);
        let extent = match self.open.take() {
            Some(open) => open,
            None => self.begin(store, last_bytes).await?,
        };
        let bytes = (extent.submitted_bytes() + last_bytes) as u64;
        let (location, pin) = extent.finish(payload, block_crcs).await?;
        self.complete_bytes += bytes;
        self.new_extents.push(location);
        if !self.pins.iter().any(|existing| existing.0.number == pin.0.number) {
            self.pins.push(pin);
        }
        match self.runs.last_mut() {
            Some(run) if run.ids().end == location.id && run.bytes % MAX_PAYLOAD_BYTES as u64 == 0 => {
                run.bytes += bytes
            }
            _ => self.runs.push(ExtentRun { first_id: location.id, bytes }),
        }
        Ok(())
    }

    async fn begin(&mut self, store: &Arc<OpenStore>, capacity: usize) -> Result<ExtentWriter> {
        store.begin_extent(self.ids.next(&store.state.next_id), false, capacity).await
    }

    /// Bytes still to be submitted, by the declared size. `None` if it is unknown or already exceeded.
    fn remaining_bytes(&self) -> Option<usize> {
        let submitted_bytes =
            self.complete_bytes + self.open.as_ref().map_or(0, |extent| extent.submitted_bytes() as u64);
        self.declared_bytes?.checked_sub(submitted_bytes)?.try_into().ok()
    }
}

fn total_bytes(payload: &[Bytes]) -> usize {
    payload.iter().map(Bytes::len).sum()
}
