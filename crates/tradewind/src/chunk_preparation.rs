//! The first start of a layer `deduplicated` on a store: it examines all objects while the server stores plain ones.

use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use futures::future::try_join_all;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use tradewind_core::context::Deadline;
use tradewind_core::{Budget, Clock, Context, Reason, Result};

use crate::assemble::ServedDeduplicated;

/// The memory of an examination: pages of listings.
const WINDOW_BYTES: usize = 1 << 20;
/// The time between two lines of the log about progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// The time before an examination that failed goes on.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Prepares the layers that are new to their stores.
#[derive(Debug)]
pub struct ChunkPreparation {
    /// The layers.
    pub layers: Vec<ServedDeduplicated>,
    /// The memory of the server.
    pub budget: Budget,
    /// The clock of deadlines.
    pub clock: Arc<dyn Clock>,
    /// Ends the work.
    pub stop: CancellationToken,
}

impl ChunkPreparation {
    /// Prepares all layers concurrently. Returns the first error of one whose store must not be served: the chunks of its
    /// objects are missing, or it has objects of a later version. Otherwise, does not return.
    pub async fn failure(self) -> anyhow::Error {
        let unprepared = self.layers.iter().filter(|served| !served.layer.is_ready());
        match try_join_all(unprepared.map(|served| self.prepare_layer(served))).await {
            Err(error) => error,
            Ok(_) => std::future::pending().await,
        }
    }

    /// Prepares a layer, and repeats what failed. Returns the error of one whose store must not be served.
    async fn prepare_layer(&self, served: &ServedDeduplicated) -> anyhow::Result<()> {
        let volume = &served.volume;
        info!(volume, "deduplication begins after an examination of all objects");
        while let Err(error) = self.prepare(served).await {
            if self.stop.is_cancelled() {
                return Ok(());
            }
            match error.reason() {
                Reason::InvalidArgument | Reason::Unsupported => {
                    let context = format!("volume {volume:?}: the layer \"deduplicated\"");
                    return Err(anyhow!(error).context(context));
                }
                Reason::CorruptData => {
                    error!(volume, %error, "new objects are not deduplicated: damaged ones cannot be examined");
                }
                _ => warn!(volume, %error, "the examination for deduplication failed; it goes on soon"),
            }
            self.clock.sleep_until(self.clock.now() + RETRY_INTERVAL).await;
        }
        let objects = served.layer.examined_objects();
        info!(volume, objects, "all objects are examined: new ones are deduplicated");
        Ok(())
    }

    async fn prepare(&self, served: &ServedDeduplicated) -> Result<()> {
        let deadline = Deadline::none(self.clock.clone()).with_cancellation(self.stop.clone());
        let window = self.budget.admit(WINDOW_BYTES, &deadline).await?;
        let context = Context::new(deadline, window);
        let mut preparing = std::pin::pin!(served.layer.prepare(&context));
        loop {
            tokio::select! {
                prepared = &mut preparing => return prepared,
                () = self.clock.sleep_until(self.clock.now() + REPORT_INTERVAL) => {
                    let objects = served.layer.examined_objects();
                    info!(volume = served.volume, objects, "examining the objects for deduplication");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
