//! An open store, as used by its parts.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tradewind_core::error::{Reason, Result};

use super::bulk::{ExtentAllocator, ExtentBytes, ExtentWriter};
use super::commit::Committer;
use super::record::ExtentLocation;
use super::segment::{SegmentKind, SegmentPin};
use super::store_state::StoreState;

/// An open store.
pub(crate) struct OpenStore {
    pub(super) handle: Weak<Self>,
    pub state: Arc<StoreState>,
    pub committer: Committer,
    pub bulk: ExtentAllocator,
    /// Held during a round of upkeep: rounds never overlap.
    pub upkeep_round: Mutex<()>,
}

impl OpenStore {
    /// This store, for tasks that outlive a call.
    pub fn this(&self) -> Arc<Self> {
        match self.handle.upgrade() {
            Some(this) => this,
            // `&self` came out of the very `Arc` that `this` refers to.
            None => unreachable!("a store is used only through its handle"),
        }
    }

    /// Starts an extent of at most `capacity` bytes.
    pub async fn begin_extent(&self, id: u64, is_relocated: bool, capacity: usize) -> Result<ExtentWriter> {
        self.committer.check_writable()?;
        loop {
            if let Some(writer) = ExtentWriter::begin(&self.bulk, &self.state, (id, is_relocated), capacity)? {
                return Ok(writer);
            }
            let this = self.this();
            self.state.io.run(move || this.make_room_for_extents()).await?;
        }
    }

    /// A failed sync (of the file or the directory) makes the store read-only before the next attempt, even if no
    /// caller waits for the result.
    fn make_room_for_extents(&self) -> Result<()> {
        self.bulk.ensure_room(self.state.options.segment_bytes, || {
            self.committer.check_writable()?;
            let made = self.state.create_segment(SegmentKind::Bulk);
            if made.as_ref().is_err_and(|e| e.reason() == Reason::ReadOnly) {
                self.committer.set_read_only();
            }
            made
        })
    }

    /// Writes a complete extent. It is not durable yet.
    pub async fn write_extent(&self, extent: ExtentBytes) -> Result<(ExtentLocation, SegmentPin)> {
        let ExtentBytes { id, payload, payload_bytes, block_crcs, is_relocated } = extent;
        self.begin_extent(id, is_relocated, payload_bytes).await?.finish(payload, &block_crcs).await
    }
}
