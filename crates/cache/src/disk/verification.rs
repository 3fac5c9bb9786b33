//! Verification in the background: all extents are read and compared with their checksums at a bounded rate, so that
//! damage is found before it costs a request the time of a failed read. A damaged extent is dropped. So is one whose
//! entry is outdated, which is no damage.

use std::sync::Arc;
use std::sync::atomic::Ordering;
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

/// Time between log lines about damage.
const REPORT_INTERVAL: Duration = Duration::from_secs(3600);

/// Verifies the extents of an SSD, one after another and again from the start, until `stop`.
pub(crate) struct Verifier {
    disk: Arc<Disk>,
    bytes_per_second: u64,
    next_slot: Slot,
    /// An entry that could not be read, to be read again.
    retry: Option<IndexEntry>,
    /// Extents that were dropped and not logged yet.
    damaged: u64,
    next_report: Duration,
}

/// The outcome of the verification of one extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verified {
    /// It is whole, it was dropped because its entry was outdated, or the SSD is switched off.
    Done,
    /// It is damaged and was dropped.
    Damaged,
    /// It could not be read, and may be next time.
    Unreadable,
}

impl Verifier {
    /// A verifier of `bytes_per_second`; `None` for 0.
    pub fn new(disk: Arc<Disk>, bytes_per_second: u64) -> Option<Self> {
        (bytes_per_second > 0).then_some(Self {
            disk,
            bytes_per_second,
            next_slot: 0,
            retry: None,
            damaged: 0,
            next_report: Duration::ZERO,
        })
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
            self.report();
            wait = match stop.run_until_cancelled(self.verify_next()).await {
                Some(Some(bytes)) => self.time_of(bytes),
                Some(None) => PAUSE,
                None => return,
            };
        }
    }

    /// Logs what was dropped, at most once per [`REPORT_INTERVAL`].
    fn report(&mut self) {
        let now = self.disk.clock.now();
        if self.damaged > 0 && now >= self.next_report {
            let extents = std::mem::take(&mut self.damaged);
            self.next_report = now + REPORT_INTERVAL;
            tracing::warn!(extents, "damaged extents on the SSD of the cache were dropped");
        }
    }

    /// The time that these bytes take.
    fn time_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.bytes_per_second)
    }

    /// Verifies the next extent. Returns its bytes; `None` if there is none, or the SSD has other work.
    pub(super) async fn verify_next(&mut self) -> Option<u64> {
        if self.disk.io.is_busy() {
            return None;
        }
        let entry = match self.retry.take() {
            Some(entry) => entry,
            None => self.next_entry()?,
        };
        let (sender, verified) = oneshot::channel();
        let disk = self.disk.clone();
        self.disk.run_in_background(move || {
            // The verifier may have been stopped.
            let _ = sender.send(disk.verify_entry(entry));
        });
        // An error means that the tier was closed.
        match verified.await.ok()? {
            Verified::Done => {}
            Verified::Damaged => self.damaged += 1,
            Verified::Unreadable => self.retry = Some(entry),
        }
        Some(u64::from(entry.space.blocks()) * BLOCK_BYTES as u64)
    }

    /// The next entry of the index; `None` if there is none in the slots that are examined at once.
    fn next_entry(&mut self) -> Option<IndexEntry> {
        let state = self.disk.state.lock();
        let slots = state.index.slots();
        if self.next_slot >= slots {
            self.next_slot = 0;
            if state.removed_while_loading.is_none() {
                // All that a checkpoint had was verified.
                self.disk.has_outdated_entries.store(false, Ordering::Release);
            }
        }
        let end = self.next_slot.saturating_add(MAX_EXAMINED_SLOTS).min(slots);
        let found = (self.next_slot..end).find_map(|slot| Some((slot, state.index.get(slot)?)));
        self.next_slot = found.map_or(end, |(slot, _)| slot + 1);
        found.map(|(_, entry)| entry)
    }
}

impl Disk {
    /// Reads and verifies an extent; drops it if it is damaged, or unreadable twice in a row.
    pub(super) fn verify_entry(&self, entry: IndexEntry) -> Verified {
        if self.state.lock().index.find(entry.place).is_none() || !self.health.may_use() {
            return Verified::Done;
        }
        let Some(bytes) = self.read_space(entry.space) else {
            let is_dropped = self.record_unreadable(entry.place, entry.space);
            return if is_dropped { Verified::Damaged } else { Verified::Unreadable };
        };
        let header = read_header(&bytes).filter(|header| entry.has_name(self.fingerprints.name(header.key)));
        let is_whole = header.is_some_and(|header| verify(&bytes, self.cache_id, header.key).is_some());
        self.counters.ssd_verified_bytes.add(bytes.len() as u64);
        let is_damaged = !is_whole && self.drop_unverified(entry.place, entry.space, &bytes);
        if is_damaged { Verified::Damaged } else { Verified::Done }
    }
}
