//! The extents of a write: those that are complete, and the one that is being filled.

use std::sync::Arc;

use bytes::Bytes;
use tradewind_core::error::Result;

use super::ids::ExtentIds;
use crate::local::bulk::ExtentWriter;
use crate::local::frame::MAX_PAYLOAD_BYTES;
use crate::local::leaf::Local;
use crate::local::record::{ExtentAt, Run};
use crate::local::segment::Pin;

/// They have consecutive numbers where possible, so that manifests stay short.
pub(super) struct Extents {
    /// Bytes of the whole write, where somebody said so. It may be wrong.
    expected: Option<u64>,
    ids: ExtentIds,
    open: Option<(u64, ExtentWriter)>,
    /// The complete ones.
    pub runs: Vec<Run>,
    pub fresh: Vec<ExtentAt>,
    /// The segments they are in.
    pub pins: Vec<Pin>,
    bytes: u64,
}

impl Extents {
    pub fn expecting(bytes: Option<u64>) -> Self {
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

    /// What the whole write is said to have.
    pub const fn expected(&self) -> Option<u64> {
        self.expected
    }

    /// Nothing was handed on so far.
    pub const fn is_empty(&self) -> bool {
        self.open.is_none() && self.runs.is_empty()
    }

    /// An extent was begun that is not complete.
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Bytes that the extent being filled can still take; without one, those that the next one can.
    pub fn room(&self) -> usize {
        self.open.as_ref().map_or(MAX_PAYLOAD_BYTES, |(_, extent)| extent.room())
    }

    /// So many bytes, not handed on yet, are the last ones as far as is known.
    pub fn expects(&self, bytes: usize) -> bool {
        self.left() == Some(bytes)
    }

    /// Hands on `payload`, of `bytes` bytes: part of an extent, which is begun where none is open.
    pub async fn append(&mut self, local: &Arc<Local>, payload: Vec<Bytes>, bytes: usize) -> Result<()> {
        if self.open.is_none() {
            // Full, unless less is expected.
            let capacity = self.left().filter(|left| *left >= bytes).unwrap_or(MAX_PAYLOAD_BYTES);
            let id = self.ids.next(&local.shared.next_id);
            self.open = Some((id, local.begin_extent(id, false, capacity.min(MAX_PAYLOAD_BYTES)).await?));
        }
        match &mut self.open {
            Some((_, extent)) => extent.append(payload).await,
            None => unreachable!("it was opened above"),
        }
    }

    /// Completes an extent with the last of its payload: the open one, or one of these bytes alone.
    pub async fn end(&mut self, local: &Arc<Local>, payload: Vec<Bytes>, table: &[u64]) -> Result<()> {
        let last: usize = payload.iter().map(Bytes::len).sum();
        let (id, extent) = match self.open.take() {
            Some(open) => open,
            None => {
                let id = self.ids.next(&local.shared.next_id);
                (id, local.begin_extent(id, false, last).await?)
            }
        };
        let bytes = (extent.handed() + last) as u64;
        let (at, pin) = extent.finish(payload, table).await?;
        self.bytes += bytes;
        self.fresh.push(at);
        if !self.pins.iter().any(|held| held.0.number == pin.0.number) {
            self.pins.push(pin);
        }
        match self.runs.last_mut() {
            Some(run) if run.ids().end == id && run.bytes % MAX_PAYLOAD_BYTES as u64 == 0 => {
                run.bytes += bytes
            }
            _ => self.runs.push(Run { first: id, bytes }),
        }
        Ok(())
    }

    /// Bytes still to be handed on, as far as is known.
    fn left(&self) -> Option<usize> {
        let handed = self.bytes + self.open.as_ref().map_or(0, |(_, extent)| extent.handed() as u64);
        self.expected?.checked_sub(handed)?.try_into().ok()
    }
}
