//! Reports buckets that exist in a volume to which they are not mapped, at the start of a server with several volumes.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::warn;
use tradewind_core::context::Deadline;
use tradewind_core::{Budget, Clock, Context};
use tradewind_layers::Volumes;

/// Maximum time of the check.
const MAX_TIME: Duration = Duration::from_secs(60);
/// The window of the check, which moves no payload.
const WINDOW_BYTES: usize = 64 << 10;

/// Logs a warning for each misplaced bucket, and for each volume that cannot be checked. Ends early on `stop`.
pub async fn report_buckets(
    volumes: Arc<Volumes>,
    budget: Budget,
    clock: Arc<dyn Clock>,
    stop: CancellationToken,
) {
    let deadline = Deadline::after(clock, MAX_TIME).with_cancellation(stop.clone());
    let window = match budget.admit(WINDOW_BYTES, &deadline).await {
        Ok(window) => window,
        Err(_) if stop.is_cancelled() => return,
        Err(error) => return warn!(%error, "cannot check the buckets of the volumes"),
    };
    let report = volumes.check_buckets(&Context::new(deadline, window)).await;
    if stop.is_cancelled() {
        return;
    }
    for found in report.misplaced {
        warn!(
            bucket = found.bucket.as_str(),
            found_in = found.found_in,
            volume = found.volume,
            "a bucket exists in a volume that is not its own: its objects there cannot be reached; to serve them, set \
             its volume in the settings"
        );
    }
    for failed in report.unlisted {
        warn!(volume = failed.volume, error = %failed.error, "cannot list the buckets of a volume");
    }
}
