//! Looking a store over from outside: verifying everything, counting, making the index anew. The store
//! must not be open elsewhere.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tradewind_core::SystemClock;
use tradewind_core::error::Result;

use super::frame::RecordKind;
use super::index::entries::{ObjectEntry, PartEntry, Place, SegmentEntry, UploadEntry};
use super::index::keys;
use super::layout::Layout;
use super::leaf::Local;
use super::options::LocalOptions;
use super::position::Position;
use super::read::length;
use super::record::{Content, Record, Run};
use super::recovery::Recovery;
use super::scan::{Item, Scanned, Scanner, read_payload};
use super::segment::{Segment, SegmentKind};

/// Something that cannot be served as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// `bucket/key`, or the upload or file concerned.
    pub what: String,
    /// What is wrong with it.
    pub why: String,
}

/// The result of verifying a store.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    /// Objects verified.
    pub objects: u64,
    /// Parts of unfinished uploads verified.
    pub parts: u64,
    /// Payload bytes read and verified.
    pub bytes: u64,
    /// What is bad. Empty: the store is sound.
    pub damage: Vec<Damage>,
}

/// What a store holds.
#[derive(Debug, Clone, Default)]
pub struct StoreStats {
    /// Buckets.
    pub buckets: u64,
    /// Objects.
    pub objects: u64,
    /// Bytes in all objects.
    pub object_bytes: u64,
    /// Unfinished uploads.
    pub uploads: u64,
    /// Tombstones that still hide older records.
    pub tombstones: u64,
    /// Segment files.
    pub segments: u64,
    /// Bytes of all segment files.
    pub segment_bytes: u64,
    /// Bytes of them that something refers to.
    pub live_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Bytes free on the device.
    pub free_bytes: u64,
}

fn open(root: &Path) -> Result<Arc<Local>> {
    let layout = Layout::open(root)?;
    Ok(Local::open_layout(layout, LocalOptions::default(), SystemClock::shared())?.0)
}

/// Makes the index of the store in `root` anew from the log.
pub fn reindex_store(root: &Path) -> Result<Recovery> {
    let layout = Layout::open(root)?;
    layout.remove_index()?;
    let (local, recovery) = Local::open_layout(layout, LocalOptions::default(), SystemClock::shared())?;
    local.shared.index.checkpoint()?;
    Ok(recovery)
}

/// Counts what the store in `root` holds.
pub fn stats(root: &Path) -> Result<StoreStats> {
    let local = open(root)?;
    let shared = &local.shared;
    let view = shared.index.view();
    let mut stats = StoreStats {
        buckets: shared.buckets.read().len() as u64,
        index_bytes: shared.index.disk_bytes()?,
        free_bytes: shared.space.free()?,
        ..StoreStats::default()
    };
    for entry in view.prefix(&[keys::space::OBJECT]) {
        stats.objects += 1;
        stats.object_bytes += ObjectEntry::decode(&entry?.1)?.size;
    }
    stats.uploads = view.prefix(&[keys::space::UPLOAD]).count() as u64;
    stats.tombstones = view.prefix(&[keys::space::DELETED]).count() as u64;
    for segment in shared.segments.all().values() {
        stats.segments += 1;
        stats.segment_bytes += u64::from(segment.end.load(Ordering::Acquire));
        if let Some(value) = shared.index.get(&keys::segment(segment.number))? {
            stats.live_bytes += u64::try_from(SegmentEntry::decode(&value)?.live_bytes).unwrap_or(0);
        }
    }
    Ok(stats)
}

/// Verifies every byte that the store in `root` would serve.
pub fn check(root: &Path) -> Result<CheckReport> {
    let local = open(root)?;
    let shared = &local.shared;
    let mut report = CheckReport::default();
    let names: BTreeMap<u32, String> =
        shared.buckets.read().values().map(|b| (b.id, b.name.clone())).collect();
    let view = shared.index.view();
    for entry in view.prefix(&[keys::space::OBJECT]) {
        let (key, value) = entry?;
        let bucket =
            key.get(1..5).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes).unwrap_or_default();
        let name = names.get(&bucket).map_or("(no bucket)", String::as_str);
        let what = format!("{name}/{}", keys::object_name(&key)?);
        report.objects += 1;
        let entry = ObjectEntry::decode(&value)?;
        if let Err(why) = check_object(&local, &entry, &mut report.bytes)? {
            report.damage.push(Damage { what, why });
        }
    }
    for entry in view.prefix(&[keys::space::UPLOAD]) {
        let (key, value) = entry?;
        let (seq, upload) = (keys::number(&key)?, UploadEntry::decode(&value)?);
        let what = format!("upload {} of {}", super::uploads::format_id(seq), upload.key);
        if let Err(why) = record_at(&local, upload.place)? {
            report.damage.push(Damage { what: what.clone(), why });
        }
        for entry in view.prefix(&keys::parts(seq)) {
            report.parts += 1;
            if let Record::Part(part) =
                Record::decode(RecordKind::Part, &PartEntry::decode(&entry?.1)?.fields)?
                && let Err(why) = check_runs(&local, &part.runs, part.size, &mut report.bytes)?
            {
                report.damage.push(Damage { what: format!("part {} of {what}", part.number), why });
            }
        }
    }
    for damage in check_logs(&local)? {
        report.damage.push(damage);
    }
    Ok(report)
}

/// A record, or why it cannot be had.
fn record_at(local: &Local, place: Place) -> Result<Result<(Scanned, Arc<Segment>), String>> {
    let Some(segment) = local.shared.segments.get(place.at.segment) else {
        return Ok(Err(format!("its record at {} is in a segment that is not there", place.at)));
    };
    match super::scan::record_at(&segment, local.shared.layout.salt, place.at.offset)? {
        Some(scanned) => Ok(Ok((scanned, segment))),
        None => Ok(Err(format!("the head of its record at {} is damaged", place.at))),
    }
}

fn check_object(local: &Local, entry: &ObjectEntry, bytes: &mut u64) -> Result<Result<(), String>> {
    let (scanned, segment) = match record_at(local, entry.place)? {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    let Ok(Record::Object(object)) = scanned.record() else {
        return Ok(Err(format!("the record at {} is not an object", entry.place.at)));
    };
    match object.content {
        Content::Inline => match read_payload(&segment, &scanned)? {
            Some(payload) if payload.len() == length(object.size)? => {
                *bytes += object.size;
                Ok(Ok(()))
            }
            _ => Ok(Err(format!("the data of its record at {} is damaged", entry.place.at))),
        },
        Content::Extents { runs, .. } => check_runs(local, &runs, object.size, bytes),
    }
}

fn check_runs(local: &Local, runs: &[Run], size: u64, bytes: &mut u64) -> Result<Result<(), String>> {
    let mut seen = 0;
    for id in runs.iter().flat_map(|run| run.ids()) {
        let Some(value) = local.shared.index.get(&keys::extent(id))? else {
            return Ok(Err(format!("extent {id} is missing")));
        };
        let place = Place::decode(&value)?;
        let (scanned, segment) = match record_at(local, place)? {
            Ok(found) => found,
            Err(why) => return Ok(Err(format!("extent {id}: {why}"))),
        };
        if scanned.record().ok() != Some(Record::Extent { id }) {
            return Ok(Err(format!("another record lies where extent {id} should be, at {}", place.at)));
        }
        match read_payload(&segment, &scanned)? {
            Some(payload) => seen += payload.len() as u64,
            None => return Ok(Err(format!("the data of extent {id} at {} is damaged", place.at))),
        }
    }
    *bytes += seen;
    if seen != size {
        return Ok(Err(format!("its extents hold {seen} bytes, not {size}")));
    }
    Ok(Ok(()))
}

/// Holes in what was durable: records lost there may have been acknowledged. A torn tail is none: no
/// record says that it was durable.
fn check_logs(local: &Local) -> Result<Vec<Damage>> {
    let salt = local.shared.layout.salt;
    let mut gaps = Vec::new();
    let mut durable: BTreeMap<u32, u32> = BTreeMap::new();
    for segment in local.shared.segments.all().values().filter(|s| s.kind == SegmentKind::Log) {
        let mut scanner = Scanner::new(segment.clone(), salt, 0);
        while let Some(item) = scanner.next()? {
            match item {
                Item::Record(scanned) => {
                    let until = durable.entry(scanned.header.durable.segment).or_default();
                    *until = (*until).max(scanned.header.durable.offset);
                }
                Item::Gap { from, to } => gaps.push((segment.clone(), from, to)),
            }
        }
    }
    gaps.retain(|(segment, from, _)| durable.get(&segment.number).is_some_and(|until| from < until));
    // What a crash tore was never acknowledged, and a void says so.
    let voided = |segment: u32, from: u32| local.shared.index.get(&keys::void(Position::new(segment, from)));
    let mut damaged = Vec::with_capacity(gaps.len());
    for gap in gaps {
        if voided(gap.0.number, gap.1)?.is_none() {
            damaged.push(gap);
        }
    }
    let describe = |(segment, from, to): (Arc<Segment>, u32, u32)| Damage {
        what: segment.path.display().to_string(),
        why: format!("bytes {from} to {to} of the log are damaged"),
    };
    Ok(damaged.into_iter().map(describe).collect())
}
