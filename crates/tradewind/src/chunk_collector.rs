//! The background task that deletes the chunks of a deduplicated volume that no object needs.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tradewind_core::context::Deadline;
use tradewind_core::{Budget, Clock, Context, Result, Timestamp};
use tradewind_layers::deduplicated::CollectionReport;

use crate::assemble::ServedDeduplicated;

/// The memory of a collection: pages of listings and pieces of manifests.
const WINDOW_BYTES: usize = 1 << 20;
/// The time from the start of the server to a collection that is due, and between looks whether the layer is ready.
const START_DELAY: Duration = Duration::from_mins(1);

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

    /// Runs until `stop`. The first collection begins when it is due after the last one, which may be of an earlier run.
    pub async fn run(self, stop: CancellationToken) {
        let Self { served: ServedDeduplicated { volume, layer, collect_every: interval }, .. } = &self;
        let mut delay = self.first_delay(&stop).await;
        loop {
            tokio::select! {
                () = self.clock.sleep_until(self.clock.now() + delay) => {}
                () = stop.cancelled() => return,
            }
            delay = *interval;
            if !layer.is_ready() {
                delay = START_DELAY.min(*interval);
                continue;
            }
            match self.collect(&stop).await {
                Ok(Some(report)) => self.log(report),
                // Another one runs.
                Ok(None) => {}
                Err(_) if stop.is_cancelled() => return,
                Err(error) => {
                    warn!(volume, %error, "cannot delete chunks that no object needs; retrying later");
                }
            }
        }
    }

    /// The time to the first collection.
    async fn first_delay(&self, stop: &CancellationToken) -> Duration {
        let interval = self.served.collect_every;
        let last = match self.last_collection_time(stop).await {
            Ok(last) => last,
            Err(error) => {
                let volume = &self.served.volume;
                warn!(volume, %error, "the time of the last deletion of unused chunks is not known; it begins soon");
                None
            }
        };
        let elapsed = last.and_then(|last| {
            // A time in the future says nothing: the clock was set back since.
            u64::try_from(self.clock.wall().millis().saturating_sub(last.millis())).ok()
        });
        let due_in =
            elapsed.map_or(Duration::ZERO, |elapsed| interval.saturating_sub(Duration::from_millis(elapsed)));
        due_in.max(START_DELAY).min(interval)
    }

    async fn last_collection_time(&self, stop: &CancellationToken) -> Result<Option<Timestamp>> {
        self.served.layer.last_collection_time(&self.context(stop).await?).await
    }

    async fn collect(&self, stop: &CancellationToken) -> Result<Option<CollectionReport>> {
        self.served.layer.collect(&self.context(stop).await?).await
    }

    async fn context(&self, stop: &CancellationToken) -> Result<Context> {
        let deadline = Deadline::none(self.clock.clone()).with_cancellation(stop.clone());
        let window = self.budget.admit(WINDOW_BYTES, &deadline).await?;
        Ok(Context::new(deadline, window))
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
            "collection ended"
        );
    }
}

#[cfg(test)]
mod tests;
