//! The locations of log records to which an index refers. They show whether a part of the log ever counted.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_core::error::Result;

use super::index::entries::{BucketEntry, DeletedEntry, ObjectEntry, PartEntry, RecordLocation, UploadEntry};
use super::index::{IndexSnapshot, keys};

/// The segments among `ends` in which the index refers to a record that ends after the given offset. Reads the whole
/// index, except for the locations of extents.
pub(super) fn segments_with_records_after(
    snapshot: &IndexSnapshot,
    ends: &BTreeMap<u32, u32>,
) -> Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let mut add = |location: RecordLocation| {
        let segment = location.position.segment;
        if ends.get(&segment).is_some_and(|end| location.end() > *end) {
            found.insert(segment);
        }
    };
    for entry in snapshot.all_versions() {
        add(ObjectEntry::decode(&entry?.1)?.location);
    }
    for entry in snapshot.prefix(&[keys::prefix::DELETED]) {
        add(DeletedEntry::decode(&entry?.1)?.location);
    }
    for entry in snapshot.prefix(&[keys::prefix::UPLOAD]) {
        add(UploadEntry::decode(&entry?.1)?.location);
    }
    for entry in snapshot.prefix(&[keys::prefix::PART]) {
        add(PartEntry::decode(&entry?.1)?.location);
    }
    for entry in snapshot.prefix(&[keys::prefix::BUCKET]) {
        add(BucketEntry::decode(&entry?.1)?.location);
    }
    for prefix in [keys::prefix::BUCKET_DELETED, keys::prefix::UPLOAD_ENDED, keys::prefix::VOID] {
        for entry in snapshot.prefix(&[prefix]) {
            add(RecordLocation::decode(&entry?.1)?);
        }
    }
    Ok(found)
}
