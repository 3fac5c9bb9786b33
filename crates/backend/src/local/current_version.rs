//! The versions of a key in the index. The newest version is *current*: if it is an object, its entry is at
//! [`keys::object`]. All other versions, and every delete marker, have entries at [`keys::version`].
//!
//! The places are a function of the versions, independent of the order in which records are applied. Outside of the
//! committer, look versions up in a snapshot: only there is a version that moves at exactly one of its two places.

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

/// The result of looking up a version, with what was read for it.
pub(crate) struct VersionLookup {
    /// The version; `None` if it does not exist.
    pub found: Option<IndexedVersion>,
    /// The current object, if it is not the version found.
    object: Option<IndexedVersion>,
    /// True if the bucket may have entries at [`keys::version`].
    may_have_others: bool,
}

/// Looks up a version of a key.
pub(crate) fn find_version(
    index: &impl IndexReader,
    bucket: BucketId,
    key: &str,
    slot: VersionSlot,
) -> Result<VersionLookup> {
    let object = IndexedVersion::read(index, keys::object(bucket, key))?;
    if object.as_ref().is_some_and(|object| object.entry.slot == slot) {
        return Ok(VersionLookup { found: object, object: None, may_have_others: true });
    }
    let may_have_others = has_versions(index, bucket)?;
    let found = if may_have_others {
        IndexedVersion::read(index, keys::version(bucket, key, slot))?
            .filter(|found| found.entry.slot == slot)
    } else {
        None
    };
    Ok(VersionLookup { found, object, may_have_others })
}

/// Adds a version, or replaces its entry. `lookup` is that of its slot, before. A record with a higher seq has the
/// creation of the version that it rewrites, or a later one: `entry` is not older than the entry that it replaces.
pub(crate) fn put_version(
    changes: &mut IndexChanges<'_>,
    bucket: BucketId,
    key: &str,
    lookup: VersionLookup,
    entry: &ObjectEntry,
) -> Result<()> {
    let object_key = keys::object(bucket, key);
    let VersionLookup { found, object, may_have_others } = lookup;
    if let Some(replaced) = found {
        let is_rewrite = replaced.entry.creation_seq == entry.creation_seq
            && replaced.entry.is_delete_marker == entry.is_delete_marker;
        // What is newer than the current object is newer than all versions.
        let stays_current = replaced.index_key == object_key && !entry.is_delete_marker;
        if is_rewrite || stays_current {
            changes.put(replaced.index_key, entry.encode());
            return Ok(());
        }
        changes.remove(replaced.index_key.clone());
        if replaced.index_key == object_key {
            return put_other(changes, bucket, key, entry);
        }
    }
    let is_newest = match &object {
        Some(object) => entry.creation_seq > object.entry.creation_seq,
        None if !may_have_others => true,
        None => newest_other(changes, bucket, key, None)?
            .is_none_or(|newest| entry.creation_seq > newest.entry.creation_seq),
    };
    if !is_newest {
        return put_other(changes, bucket, key, entry);
    }
    if let Some(object) = object {
        changes.remove(object.index_key);
        put_other(changes, bucket, key, &object.entry)?;
    }
    if entry.is_delete_marker {
        put_other(changes, bucket, key, entry)
    } else {
        changes.put(object_key, entry.encode());
        Ok(())
    }
}

/// Removes a version that was found.
pub(crate) fn remove_version(
    changes: &mut IndexChanges<'_>,
    bucket: BucketId,
    key: &str,
    version: IndexedVersion,
) -> Result<()> {
    let object_key = keys::object(bucket, key);
    let was_current = version.index_key == object_key;
    changes.remove(version.index_key);
    if !has_versions(changes, bucket)? {
        return Ok(());
    }
    // An object that was not current hides nothing. A delete marker may have: then no object is current.
    let may_have_hidden = version.entry.is_delete_marker && changes.get(&object_key)?.is_none();
    if !was_current && !may_have_hidden {
        return Ok(());
    }
    // Nothing is newer than the current object.
    let newer_than = was_current.then_some(version.entry.slot);
    if let Some(newest) = newest_other(changes, bucket, key, newer_than)?
        && !newest.entry.is_delete_marker
    {
        changes.remove(newest.index_key);
        changes.put(object_key, newest.entry.encode());
    }
    Ok(())
}

/// The newest version of a key that is not at [`keys::object`]. If there is no entry there, this is the newest version.
/// If it is known that no version with an id is newer than `from`, the search starts there.
pub(crate) fn newest_other(
    index: &impl IndexReader,
    bucket: BucketId,
    key: &str,
    from: Option<VersionSlot>,
) -> Result<Option<IndexedVersion>> {
    if !has_versions(index, bucket)? {
        return Ok(None);
    }
    let null_key = keys::version(bucket, key, VersionSlot::Null);
    let first_own = match from {
        Some(slot @ VersionSlot::Own(_)) => keys::version(bucket, key, slot),
        _ => [&null_key[..], &[0]].concat(),
    };
    let null = IndexedVersion::read(index, null_key)?;
    let own = match index.first_in_range(&first_own, &keys::versions_end_of_key(bucket, key))? {
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
