//! Offline inspection of a store: verifying everything, statistics, rebuilding the index. The store must not be open
//! elsewhere. Verification and statistics change nothing.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use tradewind_core::SystemClock;
use tradewind_core::error::Result;

use super::frame::RecordKind;
use super::index::entries::{ObjectEntry, PartEntry, RecordLocation, SegmentEntry, UploadEntry};
use super::index::keys;
use super::inspect::{IndexState, Inspection, disk_bytes};
use super::io_threads::io_error;
use super::layout::Layout;
use super::loss::{Loss, LossProof};
use super::loss_evidence::MissingRanges;
use super::open::IndexUse;
use super::open_store::OpenStore;
use super::options::LocalOptions;
use super::position::Position;
use super::read::to_usize;
use super::record::{ExtentRun, ObjectContent, Record, VersionName};
use super::recovery::Recovery;
use super::scan::{ScanItem, ScannedRecord, Scanner, read_payload};
use super::segment::Segment;
use super::space;

/// Stored data that cannot be served unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The affected `bucket/key`, upload or file.
    pub item: String,
    /// The kind of damage.
    pub cause: String,
}

/// The result of verifying a store.
#[derive(Debug, Clone)]
pub struct CheckReport {
    /// Objects verified: current ones and older versions.
    pub objects: u64,
    /// Parts of unfinished uploads verified.
    pub parts: u64,
    /// Payload bytes read and verified.
    pub verified_bytes: u64,
    /// Damaged items.
    pub damage: Vec<Damage>,
    /// Acknowledged changes that are lost.
    pub loss: Option<Loss>,
    /// Lost unless the index is an older copy; the two cases cannot be distinguished. The store can be opened, which
    /// keeps that index as `index.ambiguous`.
    pub possible_loss: Option<Loss>,
    /// The state of the index. Unless it is good, a loss at the end of the log cannot be excluded.
    pub index: IndexState,
}

impl CheckReport {
    /// Returns true if everything can be served unchanged, and no loss is known or suspected.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.damage.is_empty() && self.loss.is_none() && self.possible_loss.is_none()
    }
}

/// Statistics of a store.
#[derive(Debug, Clone)]
pub struct StoreStats {
    /// Buckets.
    pub buckets: u64,
    /// Current objects.
    pub objects: u64,
    /// Bytes in all current objects.
    pub object_bytes: u64,
    /// Versions that are not current, without delete markers.
    pub older_versions: u64,
    /// Bytes in all versions that are not current.
    pub older_version_bytes: u64,
    /// Delete markers.
    pub delete_markers: u64,
    /// Unfinished uploads.
    pub uploads: u64,
    /// Tombstones that still hide older records.
    pub tombstones: u64,
    /// Segment files.
    pub segments: u64,
    /// Bytes of all segment files, without zeros after what was written.
    pub segment_bytes: u64,
    /// Bytes of the records in them that are live.
    pub live_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Free bytes of the device.
    pub free_bytes: u64,
    /// Acknowledged changes that are lost. The counts above still include them.
    pub loss: Option<Loss>,
}

/// Rebuilds the index of the store in `root` from the log. The existing index is first checked for proof of a loss:
/// that is an error unless `accept_loss`, because the index is the only proof.
pub fn reindex_store(root: &Path, accept_loss: bool) -> Result<Recovery> {
    let layout = Layout::open(root)?;
    let options = LocalOptions { accept_loss, ..LocalOptions::default() };
    let (store, recovery) =
        OpenStore::open_layout(layout, options, SystemClock::shared(), IndexUse::Rebuild)?;
    store.state.index.checkpoint()?;
    Ok(recovery)
}

/// Returns the statistics of the store in `root`, without changing it. `temporary` is a directory for temporary
/// files: a copy of the index's journals, or, if the index is unusable, a rebuilt index.
pub fn stats(root: &Path, temporary: &Path) -> Result<StoreStats> {
    let store = Inspection::open(root, temporary)?;
    let snapshot = store.index.snapshot();
    let index_bytes = disk_bytes(&root.join("index"));
    let mut stats = StoreStats {
        buckets: store.buckets.len() as u64,
        objects: 0,
        object_bytes: 0,
        older_versions: 0,
        older_version_bytes: 0,
        delete_markers: 0,
        uploads: snapshot.prefix(&[keys::prefix::UPLOAD]).count() as u64,
        tombstones: snapshot.prefix(&[keys::prefix::DELETED]).count() as u64,
        segments: 0,
        segment_bytes: 0,
        live_bytes: 0,
        index_bytes: index_bytes.map_err(|e| io_error("the index could not be read", e))?,
        free_bytes: space::free_bytes(root)?,
        loss: store.loss.clone(),
    };
    for entry in snapshot.all_versions() {
        let (key, value) = entry?;
        let entry = ObjectEntry::decode(&value)?;
        if key.first() == Some(&keys::prefix::OBJECT) {
            stats.objects += 1;
            stats.object_bytes += entry.size;
        } else if entry.is_delete_marker {
            stats.delete_markers += 1;
        } else {
            stats.older_versions += 1;
            stats.older_version_bytes += entry.size;
        }
    }
    for segment in store.files.segments.all().values() {
        stats.segments += 1;
        stats.segment_bytes += u64::from(segment.bytes());
        if let Some(value) = store.index.get(&keys::segment(segment.number))? {
            stats.live_bytes += u64::try_from(SegmentEntry::decode(&value)?.live_bytes).unwrap_or(0);
        }
    }
    Ok(stats)
}

/// Verifies every byte that the store in `root` would serve, and that no loss is known; changes nothing. `temporary`
/// is a directory for temporary files, as for [`stats`].
pub fn check(root: &Path, temporary: &Path) -> Result<CheckReport> {
    let store = Inspection::open(root, temporary)?;
    let mut report = CheckReport {
        objects: 0,
        parts: 0,
        verified_bytes: 0,
        damage: Vec::new(),
        loss: store.loss.clone(),
        possible_loss: store.possible_loss.clone(),
        index: store.state.clone(),
    };
    let snapshot = store.index.snapshot();
    for entry in snapshot.all_versions() {
        let (key, value) = entry?;
        let bucket = store.buckets.get(&keys::bucket_id(&key)?).map_or("(no bucket)", String::as_str);
        let entry = ObjectEntry::decode(&value)?;
        let id = keys::bucket_id(&key)?;
        let version = VersionName { bucket: id, key: keys::object_name(&key)?, slot: entry.slot };
        report.objects += 1;
        if let Err(cause) = check_object(&store, &entry, &mut report.verified_bytes)? {
            report.damage.push(Damage { item: version.describe(bucket), cause });
        }
    }
    for entry in snapshot.prefix(&[keys::prefix::UPLOAD]) {
        let (key, value) = entry?;
        let (seq, upload) = (keys::number(&key)?, UploadEntry::decode(&value)?);
        let upload_name = format!("upload {} of {}", super::uploads::format_id(seq), upload.key);
        if let Err(cause) = record_at(&store, upload.location)? {
            report.damage.push(Damage { item: upload_name.clone(), cause });
        }
        for entry in snapshot.prefix(&keys::parts(seq)) {
            report.parts += 1;
            if let Record::Part(part) =
                Record::decode(RecordKind::Part, &PartEntry::decode(&entry?.1)?.fields)?
                && let Err(cause) =
                    check_runs(&store, &part.runs, part.stored_bytes(), &mut report.verified_bytes)?
            {
                report.damage.push(Damage { item: format!("part {} of {upload_name}", part.number), cause });
            }
        }
    }
    check_log(&store, &mut report)?;
    Ok(report)
}

/// Reads a record. The inner error is the cause of damage.
fn record_at(
    store: &Inspection,
    location: RecordLocation,
) -> Result<Result<(ScannedRecord, Arc<Segment>), String>> {
    let Some(segment) = store.files.segments.get(location.position.segment) else {
        return Ok(Err(format!("its record at {} is in a missing segment", location.position)));
    };
    if segment.bytes() < location.end() {
        return Ok(Err(format!("its record at {} is beyond the end of the segment", location.position)));
    }
    match super::scan::record_at(&segment, store.files.salt, location.position.offset)? {
        Some(scanned) => Ok(Ok((scanned, segment))),
        None => Ok(Err(format!("the head of its record at {} is damaged", location.position))),
    }
}

fn check_object(
    store: &Inspection,
    entry: &ObjectEntry,
    verified_bytes: &mut u64,
) -> Result<Result<(), String>> {
    let (scanned, segment) = match record_at(store, entry.location)? {
        Ok(found) => found,
        Err(why) => return Ok(Err(why)),
    };
    let Ok(Record::Object(object)) = scanned.record() else {
        return Ok(Err(format!("the record at {} is not an object", entry.location.position)));
    };
    let stored_bytes = object.stored_bytes();
    match object.content {
        ObjectContent::Inline => match read_payload(&segment, &scanned)? {
            Some(payload) if payload.len() == to_usize(stored_bytes)? => {
                *verified_bytes += stored_bytes;
                Ok(Ok(()))
            }
            _ => Ok(Err(format!("the data of its record at {} is damaged", entry.location.position))),
        },
        ObjectContent::Extents { runs, .. } => check_runs(store, &runs, stored_bytes, verified_bytes),
    }
}

fn check_runs(
    store: &Inspection,
    runs: &[ExtentRun],
    size: u64,
    verified_bytes: &mut u64,
) -> Result<Result<(), String>> {
    let mut found_bytes = 0;
    for id in runs.iter().flat_map(|run| run.ids()) {
        let Some(value) = store.index.get(&keys::extent(id))? else {
            return Ok(Err(format!("extent {id} is missing")));
        };
        let location = RecordLocation::decode(&value)?;
        let (scanned, segment) = match record_at(store, location)? {
            Ok(found) => found,
            Err(why) => return Ok(Err(format!("extent {id}: {why}"))),
        };
        if scanned.record().ok() != Some(Record::Extent { id }) {
            return Ok(Err(format!(
                "another record is in the place of extent {id}, at {}",
                location.position
            )));
        }
        match read_payload(&segment, &scanned)? {
            Some(payload) => found_bytes += payload.len() as u64,
            None => return Ok(Err(format!("the data of extent {id} at {} is damaged", location.position))),
        }
    }
    *verified_bytes += found_bytes;
    if found_bytes != size {
        return Ok(Err(format!("its extents hold {found_bytes} bytes, not {size}")));
    }
    Ok(Ok(()))
}

/// Reports bytes of the durable part of the log that are not a record: records lost there may have been acknowledged. A
/// torn tail is not reported: no record states that it was durable.
fn check_log(store: &Inspection, report: &mut CheckReport) -> Result<()> {
    let mut non_records = Vec::new();
    let mut durable_ends: BTreeMap<u32, u32> = BTreeMap::new();
    for (segment, _) in store.files.log_segments_from(Position::default()) {
        let mut scanner = Scanner::new(segment.clone(), store.files.salt, 0);
        while let Some(item) = scanner.next()? {
            match item {
                ScanItem::Record(scanned) => {
                    let end = durable_ends.entry(scanned.header.durable_end.segment).or_default();
                    *end = (*end).max(scanned.header.durable_end.offset);
                }
                ScanItem::NoRecord { from, to } => non_records.push((segment.clone(), from, to)),
            }
        }
    }
    let mut voided = HashSet::new();
    for entry in store.index.snapshot().prefix(&[keys::prefix::VOID]) {
        voided.insert(Position::unpack(keys::number(&entry?.0)?));
    }
    for (segment, from, to) in non_records {
        let is_durable = durable_ends.get(&segment.number).is_some_and(|end| from < *end);
        // A write torn by a crash was never acknowledged, and has a void. If the loss of the segment's end was
        // accepted, the rest of a record that was cut off there is not reported either.
        let is_expected = voided.contains(&Position::new(segment.number, from))
            || (to >= segment.bytes()
                && store.files.accepted_ends(segment.number).any(|end| voided.contains(&end)));
        if is_durable && !is_expected {
            report.damage.push(Damage {
                item: segment.path.display().to_string(),
                cause: format!("bytes {from} to {to} of the log are damaged"),
            });
        }
    }
    if report.loss.is_none() {
        // An index of an earlier version does not record where each segment ended.
        let missing = MissingRanges::find_in_log(&store.files, durable_ends, |at| voided.contains(&at));
        report.loss = (!missing.is_empty()).then(|| missing.to_loss(LossProof::Log));
    }
    Ok(())
}
