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

/// They have consecutive numbers if possible, so that manifests stay short.
pub(super) struct StagedExtents {
    /// Size of the whole write, if declared. It may be wrong.
    expected: Option<u64>,
    ids: ExtentIds,
    open: Option<ExtentWriter>,
    /// The complete ones.
    pub runs: Vec<ExtentRun>,
    pub fresh: Vec<ExtentLocation>,
    /// The segments that contain them.
    pub pins: Vec<SegmentPin>,
    bytes: u64,
}

impl StagedExtents {
    pub fn with_expected_size(bytes: Option<u64>) -> Self {
        Self {
            expected: bytes,
            ids: ExtentIds::for_size(bytes),
            open: None,
            runs: Vec::new(),
            fresh: Vec::new(),
            pins: Vec::new(),
            bytes: 0,
        }
    }

    /// The declared size of the whole write.
    pub const fn expected(&self) -> Option<u64> {
        self.expected
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

    /// Returns true if `bytes`, not submitted yet, are the last ones as far as is known.
    pub fn is_expected_end(&self, bytes: usize) -> bool {
        self.remaining_bytes() == Some(bytes)
    }

    /// Submits `payload` as part of an extent, starting one if none is open.
    pub async fn append(&mut self, local: &Arc<OpenStore>, payload: Vec<Bytes>) -> Result<()> {
        let bytes = total_bytes(&payload);
        // Full, unless less is expected.
        let capacity = self.remaining_bytes().filter(|left| *left >= bytes).unwrap_or(MAX_PAYLOAD_BYTES);
        let extent = match &mut self.open {
            Some(open) => open,
            None => {
                let writer = self.begin(local, capacity.min(MAX_PAYLOAD_BYTES)).await?;
                self.open.insert(writer)
            }
        };
        extent.append(payload).await
    }

    /// Completes an extent with the last of its payload: the open one, or one of only these bytes.
    pub async fn finish_extent(
        &mut self,
        local: &Arc<OpenStore>,
        payload: Vec<Bytes>,
        table: &[u64],
    ) -> Result<()> {
        let last = total_bytes(&payload);
        let extent = match self.open.take() {
            Some(open) => open,
            None => self.begin(local, last).await?,
        };
        let bytes = (extent.handed() + last) as u64;
        let (at, pin) = extent.finish(payload, table).await?;
        self.bytes += bytes;
        self.fresh.push(at);
        if !self.pins.iter().any(|held| held.0.number == pin.0.number) {
            self.pins.push(pin);
        }
        match self.runs.last_mut() {
            Some(run) if run.ids().end == at.id && run.bytes % MAX_PAYLOAD_BYTES as u64 == 0 => {
                run.bytes += bytes
            }
            _ => self.runs.push(ExtentRun { first: at.id, bytes }),
        }
        Ok(())
    }

    async fn begin(&mut self, local: &Arc<OpenStore>, capacity: usize) -> Result<ExtentWriter> {
        local.begin_extent(self.ids.next(&local.shared.next_id), false, capacity).await
    }

    /// Bytes still to be submitted, as far as is known.
    fn remaining_bytes(&self) -> Option<usize> {
        let handed = self.bytes + self.open.as_ref().map_or(0, |extent| extent.handed() as u64);
        self.expected?.checked_sub(handed)?.try_into().ok()
    }
}

fn total_bytes(payload: &[Bytes]) -> usize {
    payload.iter().map(Bytes::len).sum()
}
