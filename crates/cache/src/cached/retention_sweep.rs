//! A slow sweep in the background: retained objects that are not read step down to the rank of their class, too.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use tradewind_core::Clock;

use crate::tiers::Tiers;

/// Time between sweeps.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);

/// The task of the sweep, which ends when this is dropped. Without retained objects, it sleeps.
#[derive(Debug)]
pub(super) struct RetentionSweep {
    _stop: DropGuard,
}

impl RetentionSweep {
    /// Starts the task.
    pub fn start(tiers: &Arc<Tiers>, clock: Arc<dyn Clock>) -> Self {
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        let (retained, tiers) = (tiers.policies.retained().clone(), Arc::downgrade(tiers));
        let sweep = async move {
            loop {
                retained.wait_until_present().await;
                clock.sleep_until(clock.now() + SWEEP_INTERVAL).await;
                let Some(tiers) = tiers.upgrade() else { return };
                tiers.sweep_retained().await;
            }
        };
        tokio::spawn(async move { stop.run_until_cancelled(sweep).await });
        Self { _stop: guard }
    }
}
