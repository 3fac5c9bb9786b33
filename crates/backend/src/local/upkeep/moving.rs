//! Moving what lives out of a segment: commit records to the end of the log, extents to other bulk segments.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::executor::block_on;
use tradewind_core::error::Result;

use super::Control;
use super::about::{About, Fate, about, fate};
use super::pace::Pace;
use crate::local::apply::{hold, release};
use crate::local::bulk::ExtentBytes;
use crate::local::commit::{Amendment, Batch, RecordCopy, Relocate};
use crate::local::index::entries::Place;
use crate::local::index::keys;
use crate::local::leaf::Local;
use crate::local::scan::{Item, Scanned, Scanner, read_payload};
use crate::local::segment::{Pin, Segment};

/// Records moved, or extents swapped, in one change.
const CHUNK: usize = 256;
/// Bytes of records moved in one change, more or less.
const CHUNK_BYTES: usize = 1 << 20;

/// An extent that was copied: its number, where it was and where the copy is.
struct Moved {
    id: u64,
    old: Place,
    new: Place,
    pin: Pin,
}

/// Moves what lives in some segments. What waits to be moved is moved at the latest by [`Mover::finish`].
pub(super) struct Mover<'a> {
    local: &'a Local,
    control: &'a Control,
    pace: &'a mut Pace,
    records: Vec<RecordCopy>,
    record_bytes: usize,
    extents: Vec<Moved>,
}

impl<'a> Mover<'a> {
    pub fn new(local: &'a Local, control: &'a Control, pace: &'a mut Pace) -> Self {
        Self { local, control, pace, records: Vec::new(), record_bytes: 0, extents: Vec::new() }
    }

    /// Begins to move what lives in a segment. Ends early where upkeep is stopped.
    pub fn empty(&mut self, segment: &Arc<Segment>) -> Result<()> {
        let mut scanner = Scanner::new(segment.clone(), self.local.shared.layout.salt, 0);
        while let Some(item) = scanner.next()? {
            let Item::Record(scanned) = item else { continue };
            if fate(&self.local.shared.index.changes(), self.local, &scanned)? == Fate::Dead {
                continue;
            }
            let Some(payload) = read_payload(segment, &scanned)? else {
                keep_damaged(segment, &scanned);
                continue;
            };
            let bytes = scanned.header.record_bytes();
            match about(&scanned)? {
                About::Extent(id) => self.copy_extent(id, &scanned, payload)?,
                _ => self.copy_record(scanned, payload)?,
            }
            if !self.pace.spend(bytes as u64, self.control, &self.local.shared.space) {
                break;
            }
        }
        Ok(())
    }

    /// To the end of the log.
    fn copy_record(&mut self, scanned: Scanned, payload: Bytes) -> Result<()> {
        let Scanned { header, fields, table, .. } = scanned;
        self.record_bytes += header.record_bytes();
        self.records.push(RecordCopy { header, fields, payload, table });
        if self.records.len() >= CHUNK || self.record_bytes >= CHUNK_BYTES { self.append() } else { Ok(()) }
    }

    /// To another bulk segment.
    fn copy_extent(&mut self, id: u64, scanned: &Scanned, payload: Bytes) -> Result<()> {
        let payload_bytes = payload.len();
        let table = scanned.table.clone();
        let extent = ExtentBytes { id, payload: vec![payload], payload_bytes, table, relocated: true };
        let (new, pin) = block_on(self.local.write_extent(extent))?;
        let old = Place { at: scanned.at, record_bytes: scanned.end() - scanned.at.offset };
        let new = Place { at: new.at, record_bytes: new.record_bytes };
        self.extents.push(Moved { id, old, new, pin });
        if self.extents.len() >= CHUNK { swap(self.local, std::mem::take(&mut self.extents)) } else { Ok(()) }
    }

    fn append(&mut self) -> Result<()> {
        self.record_bytes = 0;
        let records = std::mem::take(&mut self.records);
        if records.is_empty() { Ok(()) } else { self.local.committer.submit_blocking(Relocate(records)) }
    }

    /// Moves what still waits. False where upkeep is stopped, and not all may have been moved.
    pub fn finish(mut self) -> Result<bool> {
        self.append()?;
        swap(self.local, std::mem::take(&mut self.extents))?;
        Ok(!self.control.stopped())
    }
}

/// Makes copies durable and refers to them from now on, where nothing changed meanwhile.
fn swap(local: &Local, moved: Vec<Moved>) -> Result<()> {
    if moved.is_empty() {
        return Ok(());
    }
    let mut synced = Vec::new();
    for Moved { pin, .. } in &moved {
        if !synced.contains(&pin.0.number) {
            if let Err(e) = block_on(pin.0.sync(&local.shared.io)) {
                local.committer.fail();
                return Err(e);
            }
            synced.push(pin.0.number);
        }
    }
    local.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
        for Moved { id, old, new, .. } in &moved {
            let key = keys::extent(*id);
            let current = batch.changes.get(&key)?.map(|value| Place::decode(&value)).transpose()?;
            if current == Some(*old) {
                release(&mut batch.changes, *old)?;
                hold(&mut batch.changes, *new)?;
                batch.changes.put(key, new.encode());
            }
        }
        Ok(())
    }))
}

/// What lives but is damaged stays where it is, and its segment with it; the rest moves.
fn keep_damaged(segment: &Segment, scanned: &Scanned) {
    tracing::error!(at = %scanned.at, "a live record is damaged; its segment is kept; run `tradewind store check`");
    segment.damaged.store(true, Ordering::Release);
}
