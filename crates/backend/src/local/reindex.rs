//! Making the index anew from the log alone. Log records are taken in as in a replay; which extents are
//! live, and where, is worked out at the end from the manifests, since extents may have been moved in
//! any order.

use std::collections::HashSet;

use tradewind_core::error::Result;

use super::apply::hold;
use super::frame::RecordKind;
use super::index::entries::{Coverage, ObjectEntry, PartEntry, Place, SegmentEntry, UploadEntry};
use super::index::{Index, keys};
use super::io::io_error;
use super::layout::Layout;
use super::open::{REPLAY_BATCH, Recovery, apply_with_coverage, log_segments, take_in};
use super::position::Position;
use super::record::{Content, Record, Run};
use super::scan::{Item, Scanner, read_payload};
use super::segment::{SegmentKind, Segments};

/// Fills an empty index. Answers what it covers and the torn records at the log's end.
pub(super) fn reindex(
    layout: &Layout,
    index: &Index,
    segments: &Segments,
    recovery: &mut Recovery,
) -> Result<(Coverage, Vec<Position>)> {
    let known = survey(layout, segments)?;
    let mut voids = Vec::new();
    let mut coverage = Coverage { covered: known.end, next_id: known.next_id, next_bucket: known.next_bucket };
    let mut changes = index.changes();
    for segment in log_segments(segments) {
        let mut scanner = Scanner::new(segment.clone(), layout.salt, 0);
        while let Some(item) = scanner.next()? {
            let scanned = match item {
                Item::Record(scanned) => scanned,
                Item::Gap { from, to } => {
                    recovery.damaged_bytes += u64::from(to - from);
                    continue;
                }
            };
            if known.voided.contains(&scanned.at) {
                continue;
            }
            if scanned.at >= known.durable && read_payload(&segment, &scanned)?.is_none() {
                voids.push(scanned.at);
                continue;
            }
            take_in(&mut changes, &scanned, &scanned.record()?)?;
            recovery.replayed += 1;
            if changes.len() >= REPLAY_BATCH {
                // Nothing is covered before all of it is: a stop half way begins anew.
                std::mem::replace(&mut changes, index.changes()).apply()?;
            }
        }
        segment.file.sync_data().map_err(|e| io_error("a segment could not be made durable", e))?;
    }
    changes.apply()?;
    drop_orphans(index)?;
    place_extents(layout, index, segments, &mut coverage)?;
    apply_with_coverage(index.changes(), coverage)?;
    index.checkpoint()?;
    Ok((coverage, voids))
}

/// What has to be known before records are taken in.
struct Survey {
    voided: HashSet<Position>,
    durable: Position,
    end: Position,
    next_id: u64,
    next_bucket: u32,
}

fn survey(layout: &Layout, segments: &Segments) -> Result<Survey> {
    let mut known = Survey {
        voided: HashSet::new(),
        durable: Position::default(),
        end: Position::default(),
        next_id: 1,
        next_bucket: 1,
    };
    for segment in log_segments(segments) {
        let mut scanner = Scanner::new(segment.clone(), layout.salt, 0);
        while let Some(item) = scanner.next()? {
            let Item::Record(scanned) = item else { continue };
            known.durable = known.durable.max(scanned.header.durable);
            known.end = known.end.max(Position::new(segment.number, scanned.end()));
            known.next_id = known.next_id.max(scanned.header.seq + 1);
            match scanned.header.kind {
                RecordKind::Void => {
                    if let Record::Void { at } = scanned.record()? {
                        known.voided.insert(at);
                    }
                }
                RecordKind::BucketCreated | RecordKind::BucketDeleted => {
                    let id = match scanned.record()? {
                        Record::BucketCreated(bucket) => bucket.id,
                        Record::BucketDeleted { id } => id,
                        _ => 0,
                    };
                    known.next_bucket = known.next_bucket.max(id + 1);
                }
                _ => {}
            }
        }
    }
    Ok(known)
}

/// Removes what belongs to nothing: objects of buckets that are gone, parts without an upload.
fn drop_orphans(index: &Index) -> Result<()> {
    let mut changes = index.changes();
    for entry in index.view().prefix(&[keys::space::OBJECT]) {
        let (key, _) = entry?;
        let bucket = key.get(1..5).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes).unwrap_or_default();
        if changes.get(&keys::bucket(bucket))?.is_none() {
            changes.remove(key.to_vec());
        }
    }
    for entry in index.view().prefix(&[keys::space::UPLOAD]) {
        let (key, value) = entry?;
        if changes.get(&keys::bucket(UploadEntry::decode(&value)?.bucket))?.is_none() {
            changes.remove(key.to_vec());
        }
    }
    for entry in index.view().prefix(&[keys::space::PART]) {
        let (key, _) = entry?;
        if changes.get(&keys::upload(keys::number(&key)?))?.is_none() {
            changes.remove(key.to_vec());
        }
    }
    // Places of extents and what is to be freed were taken in out of order: they are made anew.
    for space in [keys::space::EXTENT, keys::space::RECLAIM] {
        for entry in index.view().prefix(&[space]) {
            changes.remove(entry?.0.to_vec());
        }
    }
    changes.apply()
}

/// Finds every extent that a manifest refers to.
fn place_extents(layout: &Layout, index: &Index, segments: &Segments, coverage: &mut Coverage) -> Result<()> {
    let mut runs = Vec::new();
    for entry in index.view().prefix(&[keys::space::OBJECT]) {
        let (_, value) = entry?;
        let entry = ObjectEntry::decode(&value)?;
        if entry.in_extents {
            runs.extend(manifest(layout, segments, entry.place)?);
        }
    }
    for entry in index.view().prefix(&[keys::space::PART]) {
        let (_, value) = entry?;
        if let Record::Part(part) = Record::decode(RecordKind::Part, &PartEntry::decode(&value)?.fields)? {
            runs.extend(part.runs);
        }
    }
    runs.sort_by_key(|run| run.first);
    let is_live = |id: u64| {
        let at = runs.partition_point(|run| run.first <= id);
        at > 0 && runs[at - 1].ids().contains(&id)
    };
    let mut bulk: Vec<_> = segments.all().values().filter(|s| s.kind == SegmentKind::Bulk).cloned().collect();
    bulk.sort_by_key(|segment| segment.number);
    for segment in bulk {
        let mut changes = index.changes();
        changes.put(keys::segment(segment.number), SegmentEntry::default().encode());
        let mut scanner = Scanner::new(segment.clone(), layout.salt, 0);
        while let Some(item) = scanner.next()? {
            let Item::Record(scanned) = item else { continue };
            let Record::Extent { id } = scanned.record()? else { continue };
            coverage.next_id = coverage.next_id.max(id + 1);
            // A copy that was being written when the power went may be torn; the other one is whole.
            if !is_live(id) || (scanned.header.relocated && read_payload(&segment, &scanned)?.is_none()) {
                continue;
            }
            let place = Place { at: scanned.at, record_bytes: scanned.end() - scanned.at.offset };
            let key = keys::extent(id);
            if let Some(old) = changes.get(&key)? {
                super::apply::release(&mut changes, Place::decode(&old)?)?;
            }
            hold(&mut changes, place)?;
            changes.put(key, place.encode());
            if changes.len() >= REPLAY_BATCH {
                std::mem::replace(&mut changes, index.changes()).apply()?;
            }
        }
        changes.apply()?;
    }
    Ok(())
}

/// The runs of an object's record.
fn manifest(layout: &Layout, segments: &Segments, place: Place) -> Result<Vec<Run>> {
    let Some(segment) = segments.get(place.at.segment) else { return Ok(Vec::new()) };
    let mut scanner = Scanner::new(segment, layout.salt, place.at.offset);
    if let Some(Item::Record(scanned)) = scanner.next()?
        && let Record::Object(object) = scanned.record()?
        && let Content::Extents { runs, .. } = object.content
    {
        return Ok(runs);
    }
    Ok(Vec::new())
}
