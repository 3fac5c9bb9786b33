//! The background task that deletes the chunks of a deduplicated volume that no object needs.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tradewind_core::context::Deadline;
use tradewind_core::{Budget, Clock, Context, Result};
use tradewind_layers::deduplicated::CollectionReport;

use crate::assemble::ServedDeduplicated;

/// The memory of a collection: pages of listings and pieces of manifests.
const WINDOW_BYTES: usize = 1 << 20;

/// Deletes the unused chunks of one volume, again and again.
#[derive(Debug)]
pub struct ChunkCollector {
    served: ServedDeduplicated,
    budget: Budget,
    clock: Arc<dyn Clock>,
}

impl ChunkCollector {
    /// A task for a layer, which collects regularly.
    #[must_use]
    pub fn new(served: &ServedDeduplicated, budget: Budget, clock: Arc<dyn Clock>) -> Self {
        Self { served: served.clone(), budget, clock }
    }

    /// Runs until `stop`. The first collection begins after the time between two of them.
    pub async fn run(self, stop: CancellationToken) {
        let interval: Duration = self.served.collect_every;
        loop {
            tokio::select! {
                () = self.clock.sleep_until(self.clock.now() + interval) => {}
                () = stop.cancelled() => return,
            }
            if !self.served.layer.is_ready() {
                continue;
            }
            match self.collect(&stop).await {
                Ok(report) => self.log(report),
                Err(_) if stop.is_cancelled() => return,
                Err(error) => {
                    let volume = &self.served.volume;
                    warn!(volume, %error, "cannot delete chunks that no object needs; retrying later");
                }
            }
        }
    }

    async fn collect(&self, stop: &CancellationToken) -> Result<CollectionReport> {
        let deadline = Deadline::none(self.clock.clone()).with_cancellation(stop.clone());
        let window = self.budget.admit(WINDOW_BYTES, &deadline).await?;
        Ok(self.served.layer.collect(&Context::new(deadline, window)).await?.unwrap_or_default())
    }

    fn log(&self, report: CollectionReport) {
        let CollectionReport {
            objects,
            referenced_bytes,
            parts,
            part_bytes,
            chunks,
            chunk_bytes,
            deleted_chunks,
            deleted_bytes,
        } = report;
        info!(
            volume = self.served.volume,
            objects,
            object_bytes = referenced_bytes,
            parts,
            part_bytes,
            chunks,
            chunk_bytes,
            deleted_chunks,
            deleted_bytes,
            "deleted the chunks that no object needs"
        );
    }
}
