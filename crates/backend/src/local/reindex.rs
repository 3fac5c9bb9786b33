//! Rebuilding the index from the log alone. First the log records are applied as in a replay. Then the live extents are
//! collected from the manifests and located by a scan of the bulk segments: compaction may have moved them since the
//! records were written.

use tradewind_core::Timestamp;
use tradewind_core::Versioning;
use tradewind_core::error::Result;

use super::apply::{NO_LOCATION, add_live_bytes, remove_live_bytes};
use super::frame::RecordKind;
use super::index::entries::{
    BucketEntry, Coverage, ID_MARGIN, ObjectEntry, PartEntry, RecordLocation, UploadEntry,
};
use super::index::{Index, IndexChanges, keys};
use super::loss::NameList;
use super::position::Position;
use super::record::{BucketId, ExtentRun, ObjectContent, Record, VersionName, VersionSlot};
use super::recovery::Recovery;
use super::replay::{LogSurvey, MAX_REPLAY_ENTRIES, ReplayMode, apply_with_coverage, replay_log};
use super::scan::{ScanItem, Scanner, read_payload, record_at};
use super::segment_files::SegmentFiles;
use super::uploads::format_id;

/// Fills an empty index from the whole log, given its survey. Returns the coverage.
pub(super) fn reindex(
    files: &SegmentFiles,
    index: &Index,
    survey: &LogSurvey,
    recovery: &mut Recovery,
) -> Result<Coverage> {
    files.make_log_durable(Position::default())?;
    replay_log(files, index, ReplayMode::Rebuild, survey, recovery)?;
    let mut coverage = survey.coverage;
    // Skips ids that were allocated but of which no record remains, such as those of old uploads.
    coverage.next_id += ID_MARGIN;
    drop_orphans(index, &mut coverage)?;
    recovery.unreadable = locate_extents(files, index, &mut coverage)?;
    apply_with_coverage(index.changes(), coverage)?;
    index.checkpoint()?;
    Ok(coverage)
}

/// Removes orphans: objects and uploads of removed buckets, parts without an upload. If a bucket is missing but was
/// never removed, its record was lost: its contents are kept under a name that indicates this.
fn drop_orphans(index: &Index, coverage: &mut Coverage) -> Result<()> {
    let mut changes = index.changes();
    for entry in index.snapshot().all_versions() {
        let (key, value) = entry?;
        let entry = ObjectEntry::decode(&value)?;
        let bucket = keys::bucket_id(&key)?;
        if !ensure_bucket(&mut changes, bucket, coverage)? {
            remove_live_bytes(&mut changes, entry.location)?;
            changes.remove(key.to_vec());
        } else if entry.slot != VersionSlot::Null || entry.is_delete_marker {
            ensure_versioning(&mut changes, bucket)?;
        }
    }
    for entry in index.snapshot().prefix(&[keys::prefix::HAS_VERSIONS]) {
        let (key, _) = entry?;
        let bucket = BucketId::try_from(keys::number(&key)?).unwrap_or_default();
        if changes.get(&keys::bucket(bucket))?.is_none() {
            changes.remove(key.to_vec());
        }
    }
    for entry in index.snapshot().prefix(&[keys::prefix::UPLOAD]) {
        let (key, value) = entry?;
        let entry = UploadEntry::decode(&value)?;
        if !ensure_bucket(&mut changes, entry.bucket, coverage)? {
            remove_live_bytes(&mut changes, entry.location)?;
            changes.remove(key.to_vec());
        }
    }
    for entry in index.snapshot().prefix(&[keys::prefix::PART]) {
        let (key, value) = entry?;
        if changes.get(&keys::upload(keys::number(&key)?))?.is_none() {
            remove_live_bytes(&mut changes, PartEntry::decode(&value)?.location)?;
            changes.remove(key.to_vec());
        }
    }
    // No live record refers to extents that were still to be freed, so `locate_extents` omits them.
    for entry in index.snapshot().prefix(&[keys::prefix::RECLAIM]) {
        changes.remove(entry?.0.to_vec());
    }
    changes.apply()
}

/// Suspends versioning in a bucket that has versions although its record says that it never had any: the record that
/// enabled it was lost. Otherwise a delete would remove nothing and still succeed.
fn ensure_versioning(changes: &mut IndexChanges<'_>, id: BucketId) -> Result<()> {
    let key = keys::bucket(id);
    let Some(value) = changes.get(&key)? else { return Ok(()) };
    let entry = BucketEntry::decode(&value)?;
    if entry.versioning == Versioning::Off {
        tracing::error!(bucket = entry.name, "the record of a bucket's versioning was lost; it is suspended");
        changes.put(key, BucketEntry { versioning: Versioning::Suspended, ..entry }.encode());
    }
    Ok(())
}

/// Returns true if a bucket exists. Creates it under another name if its record is missing but it was never deleted.
fn ensure_bucket(changes: &mut IndexChanges<'_>, id: BucketId, coverage: &mut Coverage) -> Result<bool> {
    if changes.get(&keys::bucket(id))?.is_some() {
        return Ok(true);
    }
    if changes.get(&keys::bucket_deleted(id))?.is_some() {
        return Ok(false);
    }
    let name = format!("recovered-{id:08x}");
    tracing::error!(
        bucket = id,
        name,
        "the record of a bucket was lost; its objects are kept in a bucket with another name"
    );
    coverage.next_bucket = coverage.next_bucket.max(id + 1);
    let entry = BucketEntry {
        location: NO_LOCATION,
        created: Timestamp::default(),
        name,
        seq: 0,
        versioning: Versioning::Off,
    };
    changes.put(keys::bucket(id), entry.encode());
    Ok(true)
}

/// Locates every extent to which a manifest refers. Returns the names of objects and parts that refer to missing
/// extents.
fn locate_extents(files: &SegmentFiles, index: &Index, coverage: &mut Coverage) -> Result<NameList> {
    let mut runs = Vec::new();
    for entry in index.snapshot().all_versions() {
        let (_, value) = entry?;
        let entry = ObjectEntry::decode(&value)?;
        if entry.in_extents {
            runs.extend(manifest_runs(files, entry.location)?);
        }
    }
    for entry in index.snapshot().prefix(&[keys::prefix::PART]) {
        let (_, value) = entry?;
        if let Record::Part(part) = Record::decode(RecordKind::Part, &PartEntry::decode(&value)?.fields)? {
            runs.extend(part.runs);
        }
    }
    runs.sort_by_key(|run| run.first_id);
    runs.dedup();
    let mut missing_extents: u64 = runs.iter().map(|run| run.extent_count()).sum();
    let is_live = |id: u64| {
        let runs_before = runs.partition_point(|run| run.first_id <= id);
        runs_before > 0 && runs[runs_before - 1].ids().contains(&id)
    };
    for segment in files.bulk_segments() {
        // A copy made by an interrupted compaction may be only in the page cache.
        files.make_segment_durable(&segment)?;
        let mut changes = index.changes();
        let mut scanner = Scanner::new(segment.clone(), files.salt, 0);
        while let Some(item) = scanner.next()? {
            let ScanItem::Record(scanned) = item else { continue };
            let Record::Extent { id } = scanned.record()? else { continue };
            coverage.next_id = coverage.next_id.max(id + 1);
            // A copy that was being written during a power loss may be torn. The original is complete then.
            if !is_live(id) || (scanned.header.is_relocated && read_payload(&segment, &scanned)?.is_none()) {
                continue;
            }
            let location = RecordLocation {
                position: scanned.position,
                record_bytes: scanned.end() - scanned.position.offset,
            };
            let key = keys::extent(id);
            match changes.get(&key)? {
                Some(old) => remove_live_bytes(&mut changes, RecordLocation::decode(&old)?)?,
                None => missing_extents = missing_extents.saturating_sub(1),
            }
            add_live_bytes(&mut changes, location)?;
            changes.put(key, location.encode());
            if changes.len() >= MAX_REPLAY_ENTRIES {
                std::mem::replace(&mut changes, index.changes()).apply()?;
            }
        }
        changes.apply()?;
    }
    if missing_extents == 0 { Ok(NameList::default()) } else { find_unreadable(files, index) }
}

/// The names of objects and parts that refer to missing extents.
fn find_unreadable(files: &SegmentFiles, index: &Index) -> Result<NameList> {
    let is_complete = |runs: &[ExtentRun]| -> Result<bool> {
        for id in runs.iter().flat_map(|run| run.ids()) {
            if index.get(&keys::extent(id))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    };
    let mut names = NameList::default();
    let bucket_name = |id: BucketId| -> Result<String> {
        let value = index.get(&keys::bucket(id))?;
        Ok(value.map(|value| BucketEntry::decode(&value)).transpose()?.map_or_else(String::new, |b| b.name))
    };
    for entry in index.snapshot().all_versions() {
        let (key, value) = entry?;
        let entry = ObjectEntry::decode(&value)?;
        if entry.in_extents && !is_complete(&manifest_runs(files, entry.location)?)? {
            let bucket = keys::bucket_id(&key)?;
            let version = VersionName { bucket, key: keys::object_name(&key)?, slot: entry.slot };
            names.add(version.describe(&bucket_name(bucket)?));
        }
    }
    for entry in index.snapshot().prefix(&[keys::prefix::UPLOAD]) {
        let (key, value) = entry?;
        let (upload, entry) = (keys::number(&key)?, UploadEntry::decode(&value)?);
        for part in index.snapshot().prefix(&keys::parts(upload)) {
            if let Record::Part(part) =
                Record::decode(RecordKind::Part, &PartEntry::decode(&part?.1)?.fields)?
                && !is_complete(&part.runs)?
            {
                let (upload, bucket) = (format_id(upload), bucket_name(entry.bucket)?);
                names.add(format!("part {} of upload {upload} of {bucket}/{}", part.number, entry.key));
            }
        }
    }
    Ok(names)
}

/// The runs of an object's record. Empty if the record is damaged: its extents are then unknown and count as dead.
pub(super) fn manifest_runs(files: &SegmentFiles, location: RecordLocation) -> Result<Vec<ExtentRun>> {
    if let Some(segment) = files.segments.get(location.position.segment)
        && let Some(scanned) = record_at(&segment, files.salt, location.position.offset)?
        && let Record::Object(object) = scanned.record()?
        && let ObjectContent::Extents { runs, .. } = object.content
    {
        return Ok(runs);
    }
    Ok(Vec::new())
}
