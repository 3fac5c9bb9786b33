//! Verification in the background: all extents are read and compared with their checksums at a bounded rate, so that
//! damage is found before it costs a request the time of a failed read. A damaged extent is dropped.

use std::sync::Arc;
use std::time::Duration;

use futures::channel::oneshot;
use tokio_util::sync::CancellationToken;
use tradewind_model::eviction::Slot;

use super::Disk;
use super::index::IndexEntry;
use crate::aligned::BLOCK_BYTES;
use crate::extent::{read_header, verify};
use crate::policy::SlotEntries;

/// Slots that are examined under one lock.
const MAX_EXAMINED_SLOTS: Slot = 1 << 16;

/// Time until the next attempt if the SSD has other work, or holds nothing.
const PAUSE: Duration = Duration::from_secs(1);

/// Verifies the extents of an SSD, one after another and again from the start, until `stop`.
pub(crate) struct Verifier {
    disk: Arc<Disk>,
    bytes_per_second: u64,
    next_slot: Slot,
}

impl Verifier {
    /// A verifier of `bytes_per_second`; `None` for 0.
    pub fn new(disk: Arc<Disk>, bytes_per_second: u64) -> Option<Self> {
        (bytes_per_second > 0).then_some(Self { disk, bytes_per_second, next_slot: 0 })
    }

    /// Verifies until it is stopped.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut wait = PAUSE;
        loop {
            let clock = self.disk.clock.clone();
            let sleep = clock.sleep_until(clock.now() + wait);
            if stop.run_until_cancelled(sleep).await.is_none() {
                return;
            }
            wait = match stop.run_until_cancelled(self.verify_next()).await {
                Some(Some(bytes)) => self.time_of(bytes),
                Some(None) => PAUSE,
                None => return,
            };
        }
    }

    /// The time that so many bytes take.
    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.bytes_per_second)
    }

    /// Verifies the next extent. Returns its bytes; `None` if there is none, or the SSD has other work.
    async fn verify_next(&mut self) -> Option<u64> {
        if self.disk.io.is_busy() {
            return None;
        }
        let entry = self.next_entry()?;
        let (sender, verified) = oneshot::channel();
        let disk = self.disk.clone();
        self.disk.run_in_background(move || {
            disk.verify_entry(entry);
            // The verifier may have been stopped.
            let _ = sender.send(());
        });
        // An error means that the tier was closed.
        verified.await.ok()?;
        Some(u64::from(entry.space.blocks()) * BLOCK_BYTES as u64)
    }

    /// The next entry of the index; `None` if there is none in the slots that are examined at once.
    fn next_entry(&mut self) -> Option<IndexEntry> {
        let state = self.disk.state.lock();
        let slots = state.index.slots();
        if self.next_slot >= slots {
            self.next_slot = 0;
        }
        let end = self.next_slot.saturating_add(MAX_EXAMINED_SLOTS).min(slots);
        let found = (self.next_slot..end).find_map(|slot| Some((slot, state.index.get(slot)?)));
        self.next_slot = found.map_or(end, |(slot, _)| slot + 1);
        found.map(|(_, entry)| entry)
    }
}

impl Disk {
    /// Reads and verifies an extent; drops it if it is damaged.
    fn verify_entry(&self, entry: IndexEntry) {
        if !self.health.may_use() {
            return;
        }
        let Some(bytes) = self.read_space(entry.space) else { return };
        let header =
            read_header(&bytes).filter(|header| self.fingerprints.extent(header.key) == entry.fingerprint);
        let is_whole = header.is_some_and(|header| verify(&bytes, self.cache_id, header.key).is_some());
        self.counters.ssd_verified_bytes.add(bytes.len() as u64);
        if !is_whole && self.drop_damaged(entry.fingerprint, entry.space) {
            tracing::warn!(
                block = entry.space.block,
                "an extent on the SSD of the cache is damaged and was dropped"
            );
        }
    }
}
