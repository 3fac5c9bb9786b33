//! What compaction must not change.

use tradewind_core::error::Result;
use tradewind_core::{SystemClock, Timestamp};

use super::*;
use crate::local::fields::FieldWriter;
use crate::local::frame::Header;
use crate::local::options::LocalOptions;
use crate::local::record::Bucket;
use crate::local::scan::record_at;
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
    let next = |skipped: &[u32]| super::super::next_segment(&local, skipped).map(|s| s.map(|s| s.number));
    assert_eq!(next(&[])?, Some(numbers[1]));
    assert_eq!(next(&[numbers[1]])?, None, "nothing else is touched meanwhile");
    assert_eq!(run_once(&local)?, segments);
    assert_eq!(local.shared.buckets.read().len(), segments);
    Ok(())
}
