//! The background task that moves objects of a volume to the tiers of their classes: all objects after the start, as the
//! settings may have changed, and then those whose class or size has changed.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};
use tradewind_core::context::Deadline;
use tradewind_core::{BucketName, Budget, Clock, Context, Result};
use tradewind_layers::routed::{MoveLimits, MoveReport, Mover};

use crate::assemble::{ServedRouted, ServedStores};

/// Objects in progress.
const MOVE_CONCURRENCY: usize = 2;
/// The memory of a pass: the pieces of the objects in progress.
const WINDOW_BYTES: usize = 1 << 20;
/// The time between a pass that failed and the next one.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);

/// Moves the objects of one volume.
#[derive(Debug)]
pub struct TierMover {
    volume: String,
    mover: Mover,
    /// Tells which buckets are those of the volume.
    served: Arc<ServedStores>,
    budget: Budget,
    clock: Arc<dyn Clock>,
}

impl TierMover {
    /// A task for a layer, whose move rate is not 0.
    #[must_use]
    pub fn new(
        routed: &ServedRouted,
        served: Arc<ServedStores>,
        budget: Budget,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let limits =
            MoveLimits { bytes_per_second: routed.move_rate.0.max(1), concurrency: MOVE_CONCURRENCY };
        Self { volume: routed.volume.clone(), mover: routed.layer.mover(limits), served, budget, clock }
    }

    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            match self.run_pass(&stop).await {
                Ok(report) => self.log(report),
                Err(_) if stop.is_cancelled() => return,
                Err(error) => {
                    warn!(volume = self.volume, %error, "cannot move objects to their tiers; retrying later");
                    tokio::select! {
                        () = self.clock.sleep_until(self.clock.now() + RETRY_INTERVAL) => continue,
                        () = stop.cancelled() => return,
                    }
                }
            }
            loop {
                let next = tokio::select! {
                    next = self.mover.next_object() => next,
                    () = stop.cancelled() => return,
                };
                let Some(address) = next else { break };
                let moved = async { self.mover.run_object(&self.context(&stop).await?, &address).await };
                match moved.await {
                    Ok(_) => {}
                    Err(_) if stop.is_cancelled() => return,
                    Err(error) => {
                        warn!(volume = self.volume, %error, "cannot move an object to its tier; retrying later");
                        tokio::select! {
                            () = self.clock.sleep_until(self.clock.now() + RETRY_INTERVAL) => break,
                            () = stop.cancelled() => return,
                        }
                    }
                }
            }
        }
    }

    async fn run_pass(&self, stop: &CancellationToken) -> Result<MoveReport> {
        let is_served = |bucket: &BucketName| self.served.is_in_volume(&self.volume, bucket);
        self.mover.run_pass(&self.context(stop).await?, is_served).await
    }

    async fn context(&self, stop: &CancellationToken) -> Result<Context> {
        let deadline = Deadline::none(self.clock.clone()).with_cancellation(stop.clone());
        let window = self.budget.admit(WINDOW_BYTES, &deadline).await?;
        Ok(Context::new(deadline, window))
    }

    fn log(&self, report: MoveReport) {
        if report == MoveReport::default() {
            info!(volume = self.volume, "all objects are in the tiers of their classes");
            return;
        }
        let MoveReport { moved, moved_bytes, hidden_deleted, unmovable, failed } = report;
        info!(
            volume = self.volume,
            moved,
            moved_bytes,
            hidden_deleted,
            unmovable,
            failed,
            "moved objects to the tiers of their classes"
        );
    }
}
