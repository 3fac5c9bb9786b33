//! Invariants of compaction.

use std::sync::atomic::Ordering;

use tradewind_core::{SystemClock, Timestamp, Versioning};

use super::*;
use crate::local::commit::{RecordCopy, RelocateRecords};
use crate::local::fields::FieldWriter;
use crate::local::frame::{RecordHeader, RecordKind};
use crate::local::index::entries::{BucketEntry, RecordLocation};
use crate::local::options::LocalOptions;
use crate::local::position::Position;
use crate::local::record::{Bucket, Record};
use crate::local::scan::record_at;
use crate::local::upkeep::plan::CompactionPlan;
use crate::local::upkeep::run_once;

#[test]
fn fields_of_later_versions_are_preserved() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let options =
        || LocalOptions { compact_below_fraction: 2.0, reserve_bytes: 0, ..LocalOptions::default() };
    let (store, _) = OpenStore::open(directory.path(), options(), SystemClock::shared())?;
    let record = Record::BucketCreated(Bucket {
        id: 7,
        name: "later".to_owned(),
        created: Timestamp::from_millis(1),
        versioning: Versioning::Off,
    });
    let mut unknown = FieldWriter::default();
    unknown.text(200, "from a later version");
    let fields = [record.encode(), unknown.finish()].concat();
    let header = RecordHeader {
        kind: RecordKind::BucketCreated,
        is_relocated: false,
        fields_bytes: u32::try_from(fields.len()).unwrap(),
        payload_bytes: 0,
        seq: 5,
        durable_end: Position::default(),
    };
    let copy =
        RecordCopy { header, fields: fields.clone(), payload: bytes::Bytes::new(), block_crcs: Vec::new() };
    store.committer.submit_blocking(RelocateRecords(vec![copy]))?;
    drop(store);

    let (store, _) = OpenStore::open(directory.path(), options(), SystemClock::shared())?;
    let current_location = || -> Result<RecordLocation> {
        Ok(BucketEntry::decode(&store.state.index.get(&keys::bucket(7))?.expect("the bucket exists"))?
            .location)
    };
    let before = current_location()?;
    assert_eq!(run_once(&store)?, 1);
    let after = current_location()?;
    assert_ne!(before.position, after.position);
    let segment = store.state.segments.get(after.position.segment).expect("the segment exists");
    let moved =
        record_at(&segment, store.state.layout.salt, after.position.offset)?.expect("the record exists");
    assert_eq!(moved.fields, fields);
    Ok(())
}

#[test]
fn interrupted_removal_is_finished_first() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let options =
        || LocalOptions { compact_below_fraction: 2.0, reserve_bytes: 0, ..LocalOptions::default() };
    let segments = 3;
    for n in 0..segments {
        let (store, _) = OpenStore::open(directory.path(), options(), SystemClock::shared())?;
        let (name, created) = (format!("bucket{n}"), Timestamp::from_millis(1));
        store.committer.submit_blocking(crate::local::commit::CreateBucket { name, created })?;
    }
    let (store, _) = OpenStore::open(directory.path(), options(), SystemClock::shared())?;
    let mut numbers: Vec<u32> = store.state.segments.all().keys().copied().collect();
    numbers.sort_unstable();
    assert_eq!(numbers.len(), segments);
    // The store was closed after the records of the second segment were uncounted.
    let second = store.state.segments.get(numbers[1]).expect("the segment exists");
    uncount_records(&store, &second, &UpkeepControl::default())?;
    drop(store);
    let (store, _) = OpenStore::open(directory.path(), options(), SystemClock::shared())?;
    let interrupted = CompactionPlan::select(&store, &HashSet::new())?.interrupted;
    assert_eq!(interrupted.iter().map(|segment| segment.number).collect::<Vec<_>>(), [numbers[1]]);
    assert_eq!(run_once(&store)?, segments);
    assert_eq!(store.state.buckets.read().len(), segments);
    Ok(())
}

#[test]
fn unfinishable_removal_blocks_only_log_segments() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let options = LocalOptions { reserve_bytes: 0, ..LocalOptions::default() };
    let (store, _) = OpenStore::open(directory.path(), options, SystemClock::shared())?;
    let state = &store.state;
    let create = |kind| -> Result<Arc<Segment>> {
        let segment = state.create_segment(kind)?;
        segment.is_sealed.store(true, Ordering::Release);
        Ok(segment)
    };
    let (interrupted, log, bulk) =
        (create(SegmentKind::Log)?, create(SegmentKind::Log)?, create(SegmentKind::Bulk)?);
    // The only record of the interrupted segment cannot be decoded, so uncounting fails.
    let header = RecordHeader {
        kind: RecordKind::UploadEnded,
        is_relocated: false,
        fields_bytes: 0,
        payload_bytes: 0,
        seq: 1,
        durable_end: Position::default(),
    };
    let at = Position::new(interrupted.number, interrupted.end.load(Ordering::Acquire));
    let bytes = header.encode_head(state.layout.salt, at, &[], &[]);
    interrupted.end.fetch_add(u32::try_from(bytes.len()).unwrap(), Ordering::AcqRel);
    interrupted.write_all(&[bytes.into()], at.offset.into()).unwrap();
    let mut changes = state.index.changes();
    let entry = SegmentEntry { uncounted_end: 1, ..SegmentEntry::default() };
    changes.put(keys::segment(interrupted.number), entry.encode());
    changes.apply()?;

    assert_eq!(run_once(&store)?, 1);
    let exists = |segment: &Segment| (state.segments.get(segment.number).is_some(), segment.path.exists());
    assert_eq!(exists(&bulk), (false, false));
    assert_eq!((exists(&interrupted), exists(&log)), ((true, true), (true, true)));
    // The obstacle is removed.
    interrupted.end.store(at.offset, Ordering::Release);
    assert_eq!(run_once(&store)?, 2);
    Ok(())
}

/// The index could not be made durable, and a later round repeats the removal: no record is uncounted twice.
#[test]
fn failed_removal_resumes_at_its_last_step() -> Result<()> {
    let directory = tempfile::tempdir().unwrap();
    let options = LocalOptions { reserve_bytes: 0, ..LocalOptions::default() };
    let (store, _) = OpenStore::open(directory.path(), options.clone(), SystemClock::shared())?;
    store.committer.submit_blocking(crate::local::commit::CreateBucket {
        name: "bucket".to_owned(),
        created: Timestamp::from_millis(1),
    })?;
    drop(store);
    let (store, _) = OpenStore::open(directory.path(), options, SystemClock::shared())?;
    let segment = store.state.segments.all().values().next().cloned().expect("the segment exists");
    uncount_records(&store, &segment, &UpkeepControl::default())?;
    let key = keys::segment(segment.number);
    let uncounted_end = |what: &str| -> Result<u32> {
        let value = store.state.index.get(&key)?.expect(what);
        Ok(SegmentEntry::decode(&value)?.uncounted_end)
    };
    let before = uncounted_end("the removal is started")?;
    assert!(before > 0);
    retire(&store, &[segment.number])?;
    assert_eq!(uncounted_end("the segment is retired")?, before);
    assert_eq!(CompactionPlan::select(&store, &HashSet::new())?.interrupted.len(), 1);
    Ok(())
}
