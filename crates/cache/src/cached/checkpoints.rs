//! Checkpoints of the index of the SSD tier: now and then, and at close.

use std::sync::Arc;
use std::time::Duration;

use futures::channel::oneshot;
use futures::future::{Either, select};
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};
use tradewind_core::Clock;

use crate::disk::{CacheDirectory, Disk};
use crate::tiers::Tiers;

/// Time between checkpoints.
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(300);

/// Time for which closing waits for the SSD.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Writes the checkpoints of a cache. The periodic ones end when it is closed or dropped.
pub(super) struct Checkpoints {
    writer: Arc<CheckpointSource>,
    clock: Arc<dyn Clock>,
    periodic: Mutex<Option<DropGuard>>,
}

struct CheckpointSource {
    tiers: Arc<Tiers>,
    directory: CacheDirectory,
}

impl Checkpoints {
    /// Starts periodic checkpoints.
    pub fn start(tiers: Arc<Tiers>, directory: CacheDirectory, clock: Arc<dyn Clock>) -> Self {
        let writer = Arc::new(CheckpointSource { tiers, directory });
        let stop = CancellationToken::new();
        let periodic = Mutex::new(Some(stop.clone().drop_guard()));
        let (source, timer) = (writer.clone(), clock.clone());
        tokio::spawn(async move {
            loop {
                let sleep = timer.sleep_until(timer.now() + CHECKPOINT_INTERVAL);
                if stop.run_until_cancelled(sleep).await.is_none() {
                    return;
                }
                let (Some(disk), source) = (source.tiers.disk.clone(), source.clone()) else { return };
                let writing = disk.clone();
                let (sender, written) = oneshot::channel::<()>();
                disk.run_in_background(move || {
                    if !writing.is_checkpointed() {
                        source.write(&writing);
                    }
                    drop(sender);
                });
                // Also if the SSD hangs, only one is queued. The sender only ends the wait.
                let _ = stop.run_until_cancelled(written).await;
            }
        });
        Self { writer, clock, periodic }
    }

    /// Finishes all fills, writes the last checkpoint and ends the session.
    pub async fn close(&self) {
        drop(self.periodic.lock().take());
        let writer = self.writer.clone();
        let closing = async move {
            writer.tiers.flush().await;
            // Extents of a removal that is cut off have no head, and those of a pinned class would stay.
            if let Some(disk) = &writer.tiers.disk {
                disk.finish_removals().await;
            }
            tokio::task::spawn_blocking(move || writer.end()).await
        };
        let time_out = self.clock.sleep_until(self.clock.now() + CLOSE_TIMEOUT);
        match select(std::pin::pin!(closing), time_out).await {
            Either::Left((Ok(()), _)) => {}
            Either::Left((Err(error), _)) => tracing::error!(%error, "the cache was not closed"),
            Either::Right(_) => tracing::warn!("the SSD of the cache hangs; the cache ends uncleanly"),
        }
    }
}

impl CheckpointSource {
    fn end(&self) {
        let Some(disk) = &self.tiers.disk else { return };
        let ended =
            disk.close().and_then(|()| if self.write(disk) { self.directory.end_session() } else { Ok(()) });
        if let Err(error) = ended {
            self.tiers.counters.ssd_errors.increment();
            tracing::warn!(%error, "the cache could not be closed cleanly; what was cached last may be lost");
        }
        self.directory.release();
    }

    /// Returns true if a checkpoint was written.
    fn write(&self, disk: &Disk) -> bool {
        let header = self.directory.checkpoint_header();
        match disk.write_checkpoint(&self.directory.index_path(), &header) {
            Ok(is_written) => is_written,
            Err(error) => {
                self.tiers.counters.ssd_errors.increment();
                tracing::warn!(%error, "the index of the cache could not be written");
                false
            }
        }
    }
}
