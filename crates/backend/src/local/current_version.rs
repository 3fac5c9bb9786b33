//! The versions of a key in the index. The newest version is *current*: if it is an object, its entry is at
//! [`keys::object`]. All other versions, and every delete marker, have entries at [`keys::version`].
//!
//! A function of the entries, independent of the order in which records are applied.

use tradewind_core::error::Result;

use super::index::entries::ObjectEntry;
use super::index::keys;
use super::index::{IndexChanges, IndexReader};
use super::record::{BucketId, VersionSlot};

/// An entry of a version and its index key.
pub(crate) struct IndexedVersion {
    pub index_key: Vec<u8>,
    pub entry: ObjectEntry,
}

impl IndexedVersion {
    fn read(index: &impl IndexReader, index_key: Vec<u8>) -> Result<Option<Self>> {
        let value = index.value(&index_key)?;
        value.map(|value| Ok(Self { entry: ObjectEntry::decode(&value)?, index_key })).transpose()
    }
}

/// The entry of a version; `None` if it does not exist.
pub(crate) fn find_version(
    index: &impl IndexReader,
    bucket: BucketId,
    key: &str,
    slot: VersionSlot,
) -> Result<Option<IndexedVersion>> {
    let current = IndexedVersion::read(index, keys::object(bucket, key))?;
    if let Some(current) = current.filter(|current| current.entry.slot == slot) {
        return Ok(Some(current));
    }
    if has_versions(index, bucket)? {
        IndexedVersion::read(index, keys::version(bucket, key, slot))
    } else {
        Ok(None)
    }
}

/// Adds a version, or replaces it; `replaced` is its previous entry, if any.
pub(crate) fn put_version(
    changes: &mut IndexChanges<'_>,
    bucket: BucketId,
    key: &str,
    replaced: Option<IndexedVersion>,
    entry: &ObjectEntry,
) -> Result<()> {
    let object_key = keys::object(bucket, key);
    let replaces_current = replaced.as_ref().is_some_and(|replaced| {
        replaced.index_key == object_key && replaced.entry.creation_seq <= entry.creation_seq
    });
    let is_only = || -> Result<bool> {
        let has_others = replaced.is_some() || changes.get(&object_key)?.is_some();
        Ok(!has_others && !has_versions(changes, bucket)?)
    };
    // Neither an older version nor a delete marker is involved: all buckets without versioning end here.
    if !entry.is_delete_marker && (replaces_current || is_only()?) {
        changes.put(object_key, entry.encode());
        return Ok(());
    }
    if let Some(replaced) = replaced {
        changes.remove(replaced.index_key);
    }
    put_other(changes, bucket, key, entry)?;
    choose_current(changes, bucket, key)
}

/// Removes a version that was found.
pub(crate) fn remove_version(
    changes: &mut IndexChanges<'_>,
    bucket: BucketId,
    key: &str,
    version: IndexedVersion,
) -> Result<()> {
    changes.remove(version.index_key);
    if has_versions(changes, bucket)? { choose_current(changes, bucket, key) } else { Ok(()) }
}

/// The newest version of a key that is not at [`keys::object`]. If there is no entry there, this is the newest version.
pub(crate) fn newest_other(
    index: &impl IndexReader,
    bucket: BucketId,
    key: &str,
) -> Result<Option<IndexedVersion>> {
    if !has_versions(index, bucket)? {
        return Ok(None);
    }
    let null_key = keys::version(bucket, key, VersionSlot::Null);
    let null = IndexedVersion::read(index, null_key.clone())?;
    let after_null = [&null_key[..], &[0]].concat();
    let end = keys::versions_end_of_key(bucket, key);
    let own = match index.first_in_range(&after_null, &end)? {
        Some((index_key, value)) => Some(IndexedVersion { entry: ObjectEntry::decode(&value)?, index_key }),
        None => None,
    };
    Ok(null.into_iter().chain(own).max_by_key(|version| version.entry.creation_seq))
}

fn has_versions(index: &impl IndexReader, bucket: BucketId) -> Result<bool> {
    Ok(index.value(&keys::has_versions(bucket))?.is_some())
}

fn put_other(changes: &mut IndexChanges<'_>, bucket: BucketId, key: &str, entry: &ObjectEntry) -> Result<()> {
    if !has_versions(changes, bucket)? {
        changes.put(keys::has_versions(bucket), Vec::new());
    }
    changes.put(keys::version(bucket, key, entry.slot), entry.encode());
    Ok(())
}

/// Moves entries so that the newest version is where the module says.
fn choose_current(changes: &mut IndexChanges<'_>, bucket: BucketId, key: &str) -> Result<()> {
    let object = IndexedVersion::read(changes, keys::object(bucket, key))?;
    let Some(newest) = newest_other(changes, bucket, key)? else { return Ok(()) };
    if let Some(object) = object {
        if object.entry.creation_seq > newest.entry.creation_seq {
            return Ok(());
        }
        changes.remove(object.index_key);
        put_other(changes, bucket, key, &object.entry)?;
    }
    if !newest.entry.is_delete_marker {
        changes.remove(newest.index_key);
        changes.put(keys::object(bucket, key), newest.entry.encode());
    }
    Ok(())
}
