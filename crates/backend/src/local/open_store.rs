//! [`OpenStore`]: the state of an open store plus its committer and extent allocator, as requests and upkeep use it.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tradewind_core::error::{Reason, Result};

use super::bulk::{ExtentAllocator, ExtentBytes, ExtentWriter};
use super::commit::Committer;
use super::record::ExtentLocation;
use super::segment::{SegmentKind, SegmentPin};
use super::store_state::StoreState;

/// An open store: its state, committer and extent allocator. [`LocalStore`](super::LocalStore) implements the port with
/// it.
pub(crate) struct OpenStore {
    /// The `Arc` that holds this store.
    pub(super) weak_self: Weak<Self>,
    pub state: Arc<StoreState>,
    pub committer: Committer,
    pub extent_allocator: ExtentAllocator,
    /// Held during a round of upkeep: rounds never overlap.
    pub upkeep_round: Mutex<()>,
}

impl OpenStore {
    /// This store, for tasks that outlive a call.
    pub fn this(&self) -> Arc<Self> {
        match self.weak_self.upgrade() {
            Some(this) => this,
            // A store exists only inside its `Arc`, which `&self` keeps alive.
            None => unreachable!("a store is used only through its handle"),
        }
    }

    /// Starts an extent of at most `capacity` bytes, creating a bulk segment if none is open.
    pub async fn begin_extent(&self, id: u64, is_relocated: bool, capacity: usize) -> Result<ExtentWriter> {
        self.committer.check_writable()?;
        loop {
            if let Some(writer) =
                ExtentWriter::begin(&self.extent_allocator, &self.state, (id, is_relocated), capacity)?
            {
                return Ok(writer);
            }
            let this = self.this();
            self.state.io.run(move || this.ensure_open_bulk_segment()).await?;
        }
    }

    /// Ensures that the active bulk segment is not full. A failed sync of a new segment's file or directory makes the
    /// store read-only here, on the I/O thread: the request may have been cancelled, and no later attempt may succeed.
    fn ensure_open_bulk_segment(&self) -> Result<()> {
        self.extent_allocator.ensure_segment(self.state.options.segment_bytes, || {
            self.committer.check_writable()?;
            let created = self.state.create_segment(SegmentKind::Bulk);
            if created.as_ref().is_err_and(|e| e.reason() == Reason::ReadOnly) {
                self.committer.set_read_only();
            }
            created
        })
    }

    /// Writes a complete extent. It is not durable yet.
    pub async fn write_extent(&self, extent: ExtentBytes) -> Result<(ExtentLocation, SegmentPin)> {
        let ExtentBytes { id, payload, payload_bytes, block_crcs, is_relocated } = extent;
        self.begin_extent(id, is_relocated, payload_bytes).await?.finish(payload, &block_crcs).await
    }
}
