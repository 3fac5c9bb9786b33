//! Moving live data out of a segment: log records to the end of the log, extents to other bulk segments.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::executor::block_on;
use tradewind_core::error::Result;

use super::UpkeepControl;
use super::pace::Pace;
use super::subject::{Liveness, RecordSubject, liveness, read_subject};
use crate::local::apply::{add_live_bytes, remove_live_bytes};
use crate::local::bulk::ExtentBytes;
use crate::local::commit::{Batch, MaintenanceChange, RecordCopy, RelocateRecords};
use crate::local::index::entries::RecordLocation;
use crate::local::index::keys;
use crate::local::open_store::OpenStore;
use crate::local::scan::{ScanItem, ScannedRecord, Scanner, read_payload};
use crate::local::segment::{Segment, SegmentPin};

/// Maximum records, or extents, moved per change.
const MAX_CHANGE_ITEMS: usize = 256;
/// Approximate maximum bytes of records moved per change.
const MAX_CHANGE_BYTES: usize = 1 << 20;

/// A copied extent: its id, its old location and the location of the copy.
struct MovedExtent {
    id: u64,
    old: RecordLocation,
    new: RecordLocation,
    pin: SegmentPin,
}

/// Moves live data out of segments. [`Mover::finish`] moves what is still pending.
pub(super) struct Mover<'a> {
    store: &'a OpenStore,
    control: &'a UpkeepControl,
    pace: &'a mut Pace,
    records: Vec<RecordCopy>,
    record_bytes: usize,
    extents: Vec<MovedExtent>,
}

impl<'a> Mover<'a> {
    pub fn new(store: &'a OpenStore, control: &'a UpkeepControl, pace: &'a mut Pace) -> Self {
        Self { store, control, pace, records: Vec::new(), record_bytes: 0, extents: Vec::new() }
    }

    /// Moves the live data of a segment; [`finish`](Self::finish) completes that. Returns early if upkeep is stopped.
    pub fn move_live(&mut self, segment: &Arc<Segment>) -> Result<()> {
        let mut scanner = Scanner::new(segment.clone(), self.store.state.layout.salt, 0);
        while let Some(item) = scanner.next()? {
            let ScanItem::Record(scanned) = item else { continue };
            if liveness(self.store, &scanned)? == Liveness::Dead {
                continue;
            }
            let Some(payload) = read_payload(segment, &scanned)? else {
                mark_damaged(segment, &scanned);
                continue;
            };
            let bytes = scanned.header.record_bytes();
            match read_subject(&scanned)? {
                RecordSubject::Extent(id) => self.copy_extent(id, &scanned, payload)?,
                _ => self.copy_record(scanned, payload)?,
            }
            if !self.pace.spend(bytes as u64, self.control, &self.store.state.space) {
                break;
            }
        }
        Ok(())
    }

    /// Copies a record to the end of the log.
    fn copy_record(&mut self, scanned: ScannedRecord, payload: Bytes) -> Result<()> {
        let ScannedRecord { header, fields, block_crcs, .. } = scanned;
        self.record_bytes += header.record_bytes();
        self.records.push(RecordCopy { header, fields, payload, block_crcs });
        if self.records.len() >= MAX_CHANGE_ITEMS || self.record_bytes >= MAX_CHANGE_BYTES {
            self.submit_records()
        } else {
            Ok(())
        }
    }

    /// Copies an extent to another bulk segment.
    fn copy_extent(&mut self, id: u64, scanned: &ScannedRecord, payload: Bytes) -> Result<()> {
        let payload_bytes = payload.len();
        let block_crcs = scanned.block_crcs.clone();
        let extent =
            ExtentBytes { id, payload: vec![payload], payload_bytes, block_crcs, is_relocated: true };
        let (new, pin) = block_on(self.store.write_extent(extent))?;
        let old = RecordLocation {
            position: scanned.position,
            record_bytes: scanned.end() - scanned.position.offset,
        };
        let new = RecordLocation { position: new.position, record_bytes: new.record_bytes };
        self.extents.push(MovedExtent { id, old, new, pin });
        if self.extents.len() >= MAX_CHANGE_ITEMS {
            switch_to_copies(self.store, std::mem::take(&mut self.extents))
        } else {
            Ok(())
        }
    }

    fn submit_records(&mut self) -> Result<()> {
        self.record_bytes = 0;
        let records = std::mem::take(&mut self.records);
        if records.is_empty() {
            Ok(())
        } else {
            self.store.committer.submit_blocking(RelocateRecords(records))
        }
    }

    /// Moves what is still pending. Returns false if upkeep is stopped, in which case not everything may have been
    /// moved.
    pub fn finish(mut self) -> Result<bool> {
        self.submit_records()?;
        switch_to_copies(self.store, std::mem::take(&mut self.extents))?;
        Ok(!self.control.is_stopped())
    }
}

/// Makes copies durable and switches the index to them where it still refers to the originals.
fn switch_to_copies(store: &OpenStore, moved: Vec<MovedExtent>) -> Result<()> {
    if moved.is_empty() {
        return Ok(());
    }
    let mut synced = Vec::new();
    for MovedExtent { pin, .. } in &moved {
        if !synced.contains(&pin.0.number) {
            if let Err(e) = block_on(pin.0.sync(&store.state.io)) {
                store.committer.set_read_only();
                return Err(e);
            }
            synced.push(pin.0.number);
        }
    }
    store.committer.submit_blocking(MaintenanceChange(move |batch: &mut Batch<'_>| {
        for MovedExtent { id, old, new, .. } in &moved {
            let key = keys::extent(*id);
            let current =
                batch.index_changes.get(&key)?.map(|value| RecordLocation::decode(&value)).transpose()?;
            if current == Some(*old) {
                remove_live_bytes(&mut batch.index_changes, *old)?;
                add_live_bytes(&mut batch.index_changes, *new)?;
                batch.index_changes.put(key, new.encode());
            }
        }
        Ok(())
    }))
}

/// Marks a segment as damaged: it stays, because its damaged live record cannot be moved.
fn mark_damaged(segment: &Segment, scanned: &ScannedRecord) {
    tracing::error!(at = %scanned.position, "a live record is damaged, so its segment is retained; run `tradewind store check`");
    segment.is_damaged.store(true, Ordering::Release);
}
