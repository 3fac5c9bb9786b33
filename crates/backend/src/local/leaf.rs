//! An open store, as used by its parts.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tradewind_core::error::{Reason, Result};

use super::bulk::{BulkWriter, ExtentBytes, ExtentWriter};
use super::commit::Committer;
use super::record::ExtentAt;
use super::segment::{Pin, SegmentKind};
use super::shared::Shared;

/// An open store.
pub(crate) struct Local {
    pub(super) this: Weak<Self>,
    pub shared: Arc<Shared>,
    pub committer: Committer,
    pub bulk: BulkWriter,
    /// Held during a round of upkeep: rounds never overlap.
    pub round: Mutex<()>,
}

impl Local {
    /// This store, for tasks that outlive a call.
    pub fn this(&self) -> Arc<Self> {
        match self.this.upgrade() {
            Some(this) => this,
            // `&self` came out of the very `Arc` that `this` refers to.
            None => unreachable!("a store is used only through its handle"),
        }
    }

    /// Starts an extent of at most `capacity` bytes.
    pub async fn begin_extent(&self, id: u64, relocated: bool, capacity: usize) -> Result<ExtentWriter> {
        self.committer.check()?;
        loop {
            if let Some(writer) = ExtentWriter::begin(&self.bulk, &self.shared, (id, relocated), capacity)? {
                return Ok(writer);
            }
            let this = self.this();
            self.shared.io.run(move || this.make_room_for_extents()).await?;
        }
    }

    /// A failed sync (of the file or the directory) makes the store read-only before the next attempt, even if no
    /// caller waits for the result.
    fn make_room_for_extents(&self) -> Result<()> {
        self.bulk.make_room(self.shared.options.segment_bytes, || {
            self.committer.check()?;
            let made = self.shared.create_segment(SegmentKind::Bulk);
            if made.as_ref().is_err_and(|e| e.reason() == Reason::ReadOnly) {
                self.committer.fail();
            }
            made
        })
    }

    /// Writes a complete extent. It is not durable yet.
    pub async fn write_extent(&self, extent: ExtentBytes) -> Result<(ExtentAt, Pin)> {
        let ExtentBytes { id, payload, payload_bytes, table, relocated } = extent;
        self.begin_extent(id, relocated, payload_bytes).await?.finish(payload, &table).await
    }
}
