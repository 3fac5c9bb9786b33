//! What compaction must not change.

use std::sync::atomic::Ordering;

use tradewind_core::{SystemClock, Timestamp};

use super::*;
use crate::local::commit::{RecordCopy, Relocate};
use crate::local::fields::FieldWriter;
use crate::local::frame::{Header, RecordKind};
use crate::local::index::entries::{BucketEntry, Place};
use crate::local::options::LocalOptions;
use crate::local::position::Position;
use crate::local::record::{Bucket, Record};
use crate::local::scan::record_at;
use crate::local::upkeep::plan::Plan;
use crate::local::upkeep::run_once;

#[test]
fn fields_of_later_versions_are_kept() -> Result<()> {
    let place = tempfile::tempdir().unwrap();
    let options = || LocalOptions { compact_below: 2.0, reserve_bytes: 0, ..LocalOptions::default() };
    let (local, _) = Local::open(place.path(), options(), SystemClock::shared())?;
    let record =
        Record::BucketCreated(Bucket { id: 7, name: "later".to_owned(), created: Timestamp::from_millis(1) });
    let mut unknown = FieldWriter::default();
    unknown.text(200, "said by a later version");
    let fields = [record.encode(), unknown.finish()].concat();
    let header = Header {
        kind: RecordKind::BucketCreated,
        relocated: false,
        fields_bytes: u32::try_from(fields.len()).unwrap(),
        payload_bytes: 0,
        seq: 5,
        durable: Position::default(),
    };
    let copy = RecordCopy { header, fields: fields.clone(), payload: bytes::Bytes::new(), table: Vec::new() };
    local.committer.submit_blocking(Relocate(vec![copy]))?;
    drop(local);

    let (local, _) = Local::open(place.path(), options(), SystemClock::shared())?;
    let place_now = || -> Result<Place> {
        Ok(BucketEntry::decode(&local.shared.index.get(&keys::bucket(7))?.expect("the bucket is there"))?
            .place)
    };
    let before = place_now()?;
    assert_eq!(run_once(&local)?, 1);
    let after = place_now()?;
    assert_ne!(before.at, after.at);
    let segment = local.shared.segments.get(after.at.segment).expect("the segment is there");
    let moved = record_at(&segment, local.shared.layout.salt, after.at.offset)?.expect("the record is there");
    assert_eq!(moved.fields, fields);
    Ok(())
}

#[test]
fn a_removal_that_was_begun_is_finished_before_any_other() -> Result<()> {
    let place = tempfile::tempdir().unwrap();
    let options = || LocalOptions { compact_below: 2.0, reserve_bytes: 0, ..LocalOptions::default() };
    let segments = 3;
    for n in 0..segments {
        let (local, _) = Local::open(place.path(), options(), SystemClock::shared())?;
        let (name, created) = (format!("bucket{n}"), Timestamp::from_millis(1));
        local.committer.submit_blocking(crate::local::commit::CreateBucket { name, created })?;
    }
    let (local, _) = Local::open(place.path(), options(), SystemClock::shared())?;
    let mut numbers: Vec<u32> = local.shared.segments.all().keys().copied().collect();
    numbers.sort_unstable();
    assert_eq!(numbers.len(), segments);
    // The store stopped when it had taken the records of the second one out of the counts.
    let second = local.shared.segments.get(numbers[1]).expect("it is there");
    forget(&local, &second, &Control::default())?;
    drop(local);
    let (local, _) = Local::open(place.path(), options(), SystemClock::shared())?;
    let begun = Plan::of(&local, &HashSet::new())?.begun;
    assert_eq!(begun.iter().map(|segment| segment.number).collect::<Vec<_>>(), [numbers[1]]);
    assert_eq!(run_once(&local)?, segments);
    assert_eq!(local.shared.buckets.read().len(), segments);
    Ok(())
}

#[test]
fn a_removal_that_cannot_be_finished_holds_other_log_segments_and_no_more() -> Result<()> {
    let place = tempfile::tempdir().unwrap();
    let options = LocalOptions { reserve_bytes: 0, ..LocalOptions::default() };
    let (local, _) = Local::open(place.path(), options, SystemClock::shared())?;
    let shared = &local.shared;
    let make = |kind| -> Result<Arc<Segment>> {
        let segment = shared.create_segment(kind)?;
        segment.sealed.store(true, Ordering::Release);
        Ok(segment)
    };
    let (begun, log, bulk) = (make(SegmentKind::Log)?, make(SegmentKind::Log)?, make(SegmentKind::Bulk)?);
    // Its only record says nothing that can be understood.
    let header = Header {
        kind: RecordKind::UploadEnded,
        relocated: false,
        fields_bytes: 0,
        payload_bytes: 0,
        seq: 1,
        durable: Position::default(),
    };
    let at = Position::new(begun.number, begun.end.load(Ordering::Acquire));
    let bytes = header.encode_head(shared.layout.salt, at, &[], &[]);
    begun.end.fetch_add(u32::try_from(bytes.len()).unwrap(), Ordering::AcqRel);
    begun.write_all(&[bytes.into()], at.offset.into()).unwrap();
    let mut changes = shared.index.changes();
    let entry = SegmentEntry { forgotten: 1, ..SegmentEntry::default() };
    changes.put(keys::segment(begun.number), entry.encode());
    changes.apply()?;

    assert_eq!(run_once(&local)?, 1);
    let is_there = |segment: &Segment| (shared.segments.get(segment.number).is_some(), segment.path.exists());
    assert_eq!(is_there(&bulk), (false, false));
    assert_eq!((is_there(&begun), is_there(&log)), ((true, true), (true, true)));
    // What kept it is gone.
    begun.end.store(at.offset, Ordering::Release);
    assert_eq!(run_once(&local)?, 2);
    Ok(())
}

/// The index could not be made durable, and upkeep comes back to it: nothing is taken out of the counts twice.
#[test]
fn a_removal_that_failed_at_its_end_is_taken_up_there() -> Result<()> {
    let place = tempfile::tempdir().unwrap();
    let options = LocalOptions { reserve_bytes: 0, ..LocalOptions::default() };
    let (local, _) = Local::open(place.path(), options.clone(), SystemClock::shared())?;
    local.committer.submit_blocking(crate::local::commit::CreateBucket {
        name: "bucket".to_owned(),
        created: Timestamp::from_millis(1),
    })?;
    drop(local);
    let (local, _) = Local::open(place.path(), options, SystemClock::shared())?;
    let segment = local.shared.segments.all().values().next().cloned().expect("it is there");
    forget(&local, &segment, &Control::default())?;
    let key = keys::segment(segment.number);
    let forgotten = |what: &str| -> Result<u32> {
        let value = local.shared.index.get(&key)?.expect(what);
        Ok(SegmentEntry::decode(&value)?.forgotten)
    };
    let before = forgotten("it is begun")?;
    assert!(before > 0);
    retire(&local, &[segment.number])?;
    assert_eq!(forgotten("it is retired")?, before);
    assert_eq!(Plan::of(&local, &HashSet::new())?.begun.len(), 1);
    Ok(())
}
