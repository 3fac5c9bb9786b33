//! Emptying one segment: what is live is copied to the end of the log (or to a bulk segment), what is
//! dead is taken out of the counts that keep tombstones alive, and the file is removed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::executor::block_on;
use tradewind_core::error::{Error, Reason, Result};

use super::reclaim::reclaim;
use super::{Control, Pace};
use crate::local::apply::{forget_record, hold, put_tombstone, release, remove_tombstone, upload_records};
use crate::local::bulk::ExtentBytes;
use crate::local::commit::{Amendment, Batch, RecordCopy, Relocate};
use crate::local::frame::RecordKind;
use crate::local::index::Changes;
use crate::local::index::entries::{
    BucketEntry, DeletedEntry, ObjectEntry, PartEntry, Place, SegmentEntry, UploadEntry,
};
use crate::local::index::keys;
use crate::local::leaf::Local;
use crate::local::position::Position;
use crate::local::record::{BucketId, Record, UploadSeq, decode_name};
use crate::local::scan::{Item, Scanned, Scanner, read_payload};
use crate::local::segment::{Segment, SegmentKind};

/// Records moved or taken out of the counts, or extents swapped, in one change.
const CHUNK: usize = 256;
/// Bytes of records moved in one change, more or less.
const CHUNK_BYTES: usize = 1 << 20;

/// What a record is about, as far as compaction must know.
#[derive(Debug, Clone)]
enum About {
    Bucket(BucketId),
    BucketEnd(BucketId),
    Key { bucket: BucketId, key: String },
    Upload(UploadSeq),
    Part { upload: UploadSeq, number: u16 },
    UploadEnd(UploadSeq),
    Extent(u64),
    Void(Position),
}

/// What becomes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Something refers to it.
    Live,
    /// It hides nothing any more, or is superseded.
    Dead,
}

/// Empties and removes a segment. False where it must stay: damaged, or used again meanwhile.
pub(super) fn compact(local: &Local, segment: &Arc<Segment>, control: &Control) -> Result<bool> {
    let moved = match segment.kind {
        SegmentKind::Log => move_records(local, segment, control)?,
        SegmentKind::Bulk => move_extents(local, segment, control)?,
    };
    if !moved || !all_dead(local, segment)? {
        return Ok(false);
    }
    // Records here may have been superseded meanwhile: what they held is freed while they can be read.
    reclaim(local, control)?;
    if segment.kind == SegmentKind::Log {
        forget(local, segment, control)?;
    }
    let number = segment.number;
    local.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
        let entry = SegmentEntry { retired: true, ..SegmentEntry::default() };
        batch.changes.put(keys::segment(number), entry.encode());
        Ok(())
    }))?;
    local.shared.index.checkpoint()?;
    if let Err(e) = local.shared.segments.unlink(&local.shared.layout.segments(), segment) {
        // Whether the records are gone cannot be known: what hides them must not go, nor anything else.
        local.committer.fail();
        return Err(e);
    }
    local.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
        batch.changes.remove(keys::segment(number));
        Ok(())
    }))?;
    tracing::debug!(segment = number, "segment compacted");
    Ok(true)
}

fn scanner(local: &Local, segment: &Arc<Segment>, from: u32) -> Scanner {
    Scanner::new(segment.clone(), local.shared.layout.salt, from)
}

/// Copies live commit records to the end of the log.
fn move_records(local: &Local, segment: &Arc<Segment>, control: &Control) -> Result<bool> {
    let mut pace = Pace::new(local.shared.options.compact_bytes_per_second);
    let mut scanner = scanner(local, segment, 0);
    let (mut copies, mut bytes) = (Vec::new(), 0);
    while let Some(item) = scanner.next()? {
        let Item::Record(scanned) = item else { continue };
        if fate(&local.shared.index.changes(), local, &scanned)? == Fate::Dead {
            continue;
        }
        let Some(payload) = read_payload(segment, &scanned)? else {
            keep_damaged(segment, &scanned);
            continue;
        };
        bytes += scanned.header.record_bytes();
        let Scanned { header, fields, table, .. } = scanned;
        copies.push(RecordCopy { header, fields, payload, table });
        if copies.len() >= CHUNK || bytes >= CHUNK_BYTES {
            local.committer.submit_blocking(Relocate(std::mem::take(&mut copies)))?;
            if !pace.spend(std::mem::take(&mut bytes) as u64, control) {
                return Ok(false);
            }
        }
    }
    if !copies.is_empty() {
        local.committer.submit_blocking(Relocate(copies))?;
    }
    Ok(!control.stopped())
}

/// Copies live extents to other bulk segments, makes the copies durable and swaps the places of those
/// that are still where they were.
fn move_extents(local: &Local, segment: &Arc<Segment>, control: &Control) -> Result<bool> {
    let mut pace = Pace::new(local.shared.options.compact_bytes_per_second);
    let mut scanner = scanner(local, segment, 0);
    let mut moved = Vec::new();
    while let Some(item) = scanner.next()? {
        let Item::Record(scanned) = item else { continue };
        let About::Extent(id) = about(&scanned)? else { continue };
        if fate(&local.shared.index.changes(), local, &scanned)? == Fate::Dead {
            continue;
        }
        let Some(payload) = read_payload(segment, &scanned)? else {
            keep_damaged(segment, &scanned);
            continue;
        };
        let payload_bytes = payload.len();
        let extent = ExtentBytes {
            id,
            payload: vec![payload],
            payload_bytes,
            table: scanned.table.clone(),
            relocated: true,
        };
        let (new, pin) = block_on(local.write_extent(extent))?;
        let old = Place { at: scanned.at, record_bytes: scanned.end() - scanned.at.offset };
        moved.push((id, old, Place { at: new.at, record_bytes: new.record_bytes }, pin));
        if moved.len() >= CHUNK {
            swap(local, std::mem::take(&mut moved))?;
        }
        if !pace.spend(payload_bytes as u64, control) {
            break;
        }
    }
    swap(local, moved)?;
    if control.stopped() {
        return Ok(false);
    }
    Ok(true)
}

fn swap(local: &Local, moved: Vec<(u64, Place, Place, crate::local::segment::Pin)>) -> Result<()> {
    let mut synced = Vec::new();
    for (_, _, _, pin) in &moved {
        if !synced.contains(&pin.0.number) {
            if let Err(e) = block_on(pin.0.sync(&local.shared.io)) {
                local.committer.fail();
                return Err(e);
            }
            synced.push(pin.0.number);
        }
    }
    local.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
        for (id, old, new, _pin) in &moved {
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

fn about(scanned: &Scanned) -> Result<About> {
    if matches!(scanned.header.kind, RecordKind::Object | RecordKind::Tombstone) {
        let (bucket, key) = decode_name(&scanned.fields)?;
        return Ok(About::Key { bucket, key });
    }
    Ok(match scanned.record()? {
        Record::BucketCreated(bucket) => About::Bucket(bucket.id),
        Record::BucketDeleted { id } => About::BucketEnd(id),
        Record::UploadCreated(_) => About::Upload(scanned.header.seq),
        Record::Part(part) => About::Part { upload: part.upload, number: part.number },
        Record::UploadEnded { upload } => About::UploadEnd(upload),
        Record::Extent { id } => About::Extent(id),
        Record::Void { at } => About::Void(at),
        Record::Object(_) | Record::Tombstone { .. } => {
            return Err(Error::new(Reason::Defect, "a record was not recognised"));
        }
    })
}

fn fate(changes: &Changes<'_>, local: &Local, scanned: &Scanned) -> Result<Fate> {
    let at = scanned.at;
    let is_here = |place: Place| if place.at == at { Fate::Live } else { Fate::Dead };
    let place_of = |key: &[u8]| -> Result<Fate> {
        Ok(changes.get(key)?.map(|value| Place::decode(&value)).transpose()?.map_or(Fate::Dead, is_here))
    };
    match about(scanned)? {
        About::Key { bucket, key } => match changes.get(&keys::object(bucket, &key))? {
            Some(value) => Ok(is_here(ObjectEntry::decode(&value)?.place)),
            None => {
                let entry = changes.get(&keys::deleted(bucket, &key))?;
                let entry = entry.map(|value| DeletedEntry::decode(&value)).transpose()?;
                // A tombstone that hides nothing any more is not worth a copy.
                Ok(entry.filter(|entry| entry.others > 0).map_or(Fate::Dead, |entry| is_here(entry.place)))
            }
        },
        About::Bucket(id) => {
            let entry =
                changes.get(&keys::bucket(id))?.map(|value| BucketEntry::decode(&value)).transpose()?;
            Ok(entry.map_or(Fate::Dead, |entry| is_here(entry.place)))
        }
        About::BucketEnd(id) => place_of(&keys::bucket_deleted(id)),
        About::Upload(seq) => {
            let entry =
                changes.get(&keys::upload(seq))?.map(|value| UploadEntry::decode(&value)).transpose()?;
            Ok(entry.map_or(Fate::Dead, |entry| is_here(entry.place)))
        }
        About::Part { upload, number } => {
            let entry = changes
                .get(&keys::part(upload, number))?
                .map(|value| PartEntry::decode(&value))
                .transpose()?;
            Ok(entry.map_or(Fate::Dead, |entry| is_here(entry.place)))
        }
        // Nor is the end of an upload of which nothing is left.
        About::UploadEnd(seq) if upload_records(changes, seq)?.count == 0 => Ok(Fate::Dead),
        About::UploadEnd(seq) => place_of(&keys::upload_ended(seq)),
        About::Extent(id) => place_of(&keys::extent(id)),
        // A void is needed as long as the record that it voids is there.
        About::Void(target) if local.shared.segments.get(target.segment).is_none() => Ok(Fate::Dead),
        About::Void(target) => place_of(&keys::void(target)),
    }
}

/// Once dead, a record stays dead; so a look at a moment is enough.
fn all_dead(local: &Local, segment: &Arc<Segment>) -> Result<bool> {
    let mut scanner = scanner(local, segment, 0);
    let changes = local.shared.index.changes();
    while let Some(item) = scanner.next()? {
        let Item::Record(scanned) = item else { continue };
        if fate(&changes, local, &scanned)? == Fate::Live {
            tracing::debug!(at = %scanned.at, "a record is still live; its segment is kept for now");
            return Ok(false);
        }
    }
    Ok(true)
}

/// Takes the segment's records out of the counts, a chunk at a time; how far it got is part of each
/// change, so that a stop in between counts nothing twice.
fn forget(local: &Local, segment: &Arc<Segment>, control: &Control) -> Result<()> {
    let key = keys::segment(segment.number);
    let entry = local.shared.index.get(&key)?.map(|value| SegmentEntry::decode(&value)).transpose()?;
    let mut scanner = scanner(local, segment, entry.unwrap_or_default().forgotten);
    loop {
        let mut chunk = Vec::with_capacity(CHUNK);
        let mut done_to = None;
        while chunk.len() < CHUNK
            && let Some(item) = scanner.next()?
        {
            if let Item::Record(scanned) = item {
                done_to = Some(scanned.end());
                chunk.push((scanned.at, about(&scanned)?));
            }
        }
        let Some(done_to) = done_to else { return Ok(()) };
        if control.stopped() {
            return Err(Error::new(Reason::ShuttingDown, "the store is closing"));
        }
        local.committer.submit_blocking(Amendment(move |batch: &mut Batch<'_>| {
            for (at, about) in &chunk {
                forget_one(&mut batch.changes, *at, about)?;
            }
            let entry = batch.changes.get(&key)?.map(|value| SegmentEntry::decode(&value)).transpose()?;
            let entry = SegmentEntry { forgotten: done_to, ..entry.unwrap_or_default() };
            batch.changes.put(key, entry.encode());
            Ok(())
        }))?;
    }
}

fn forget_one(changes: &mut Changes<'_>, at: Position, about: &About) -> Result<()> {
    if changes.get(&keys::void(at))?.is_some() {
        // It never happened, so it never counted.
        return Ok(());
    }
    match about {
        About::Key { bucket, key } => {
            let object_key = keys::object(*bucket, key);
            if let Some(value) = changes.get(&object_key)? {
                let mut entry = ObjectEntry::decode(&value)?;
                entry.others = entry.others.saturating_sub(1);
                changes.put(object_key, entry.encode());
                return Ok(());
            }
            forget_tombstone(changes, &keys::deleted(*bucket, key), at)
        }
        About::Upload(upload) | About::Part { upload, .. } => forget_record(changes, *upload),
        // The end of an upload of which nothing is left, and a void of what is not there any more, hide
        // nothing. Copies of them elsewhere were never counted.
        About::UploadEnd(upload) => remove_if_here(changes, &keys::upload_ended(*upload), at).map(|_| ()),
        About::Void(target) => match remove_if_here(changes, &keys::void(*target), at)? {
            Some(place) => release(changes, place),
            None => Ok(()),
        },
        About::Bucket(_) | About::BucketEnd(_) | About::Extent(_) => Ok(()),
    }
}

fn remove_if_here(changes: &mut Changes<'_>, key: &[u8], at: Position) -> Result<Option<Place>> {
    let place =
        changes.get(key)?.map(|value| Place::decode(&value)).transpose()?.filter(|place| place.at == at);
    if place.is_some() {
        changes.remove(key);
    }
    Ok(place)
}

/// A tombstone here goes; one elsewhere has one record less to hide.
fn forget_tombstone(changes: &mut Changes<'_>, key: &[u8], at: Position) -> Result<()> {
    let Some(value) = changes.get(key)? else { return Ok(()) };
    let entry = DeletedEntry::decode(&value)?;
    if entry.place.at != at {
        let others = entry.others.saturating_sub(1);
        return put_tombstone(changes, key.to_vec(), DeletedEntry { others, ..entry });
    }
    if entry.others > 0 {
        return Err(Error::new(
            Reason::Defect,
            "a tombstone that still hides a record was about to be removed",
        ));
    }
    remove_tombstone(changes, key.to_vec())
}

#[cfg(test)]
mod tests;
