//! Listings of objects, served from the index alone. Each page is read from one snapshot.

use std::iter::Peekable;

use tradewind_core::VersionId;
use tradewind_core::error::Result;
use tradewind_core::listing::{KeyCursor, ListPage, ListRequest, ObjectSummary, page};
use tradewind_core::object::Generation;
use tradewind_core::version::{ListVersions, ListedVersion, VersionCursor, VersionsPage, page_versions};

use super::current_version::newest_other;
use super::index::IndexSnapshot;
use super::index::entries::ObjectEntry;
use super::index::keys;
use super::record::{BucketId, VersionSlot};
use super::store_state::StoreState;

type Entries = Box<dyn Iterator<Item = Result<(fjall::Slice, fjall::Slice)>>>;

struct IndexCursor {
    snapshot: IndexSnapshot,
    bucket: BucketId,
    entries: Option<Entries>,
}

impl KeyCursor for IndexCursor {
    type Item = ObjectSummary;

    fn seek(&mut self, bytes: &[u8]) -> Result<()> {
        let from = keys::object_from(self.bucket, bytes);
        self.entries = Some(Box::new(self.snapshot.range(&from, &keys::bucket_end(self.bucket))));
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(String, ObjectSummary)>> {
        let Some((key, value)) = self.entries.as_mut().and_then(Iterator::next).transpose()? else {
            return Ok(None);
        };
        Ok(Some((keys::object_name(&key)?, summary(ObjectEntry::decode(&value)?))))
    }
}

/// The versions of a bucket: the entries of current objects and those of all other versions, merged.
struct VersionsCursor {
    snapshot: IndexSnapshot,
    bucket: BucketId,
    current: Peekable<Entries>,
    others: Peekable<Entries>,
    /// The key that was returned last, and its `null` version if newer ones precede it.
    key: Option<String>,
    null: Option<ObjectEntry>,
}

impl VersionsCursor {
    fn new(snapshot: IndexSnapshot, bucket: BucketId) -> Self {
        let none = || -> Peekable<Entries> { (Box::new(std::iter::empty()) as Entries).peekable() };
        Self { snapshot, bucket, current: none(), others: none(), key: None, null: None }
    }

    fn entries(&self, from: Vec<u8>, to: Vec<u8>) -> Peekable<Entries> {
        (Box::new(self.snapshot.range(&from, &to)) as Entries).peekable()
    }

    /// The key of the next entry.
    fn peek_key(entries: &mut Peekable<Entries>) -> Result<Option<String>> {
        match entries.peek() {
            Some(Ok((index_key, _))) => Ok(Some(keys::object_name(index_key)?)),
            Some(Err(_)) => entries.next().transpose().map(|_| None),
            None => Ok(None),
        }
    }

    fn take(entries: &mut Peekable<Entries>) -> Result<Option<ObjectEntry>> {
        let entry = entries.next().transpose()?;
        entry.map(|(_, value)| ObjectEntry::decode(&value)).transpose()
    }

    /// The next version of the last key: by age, of its `null` version and its others.
    fn next_of_key(&mut self, key: &str) -> Result<Option<ObjectEntry>> {
        if Self::peek_key(&mut self.others)?.as_deref() != Some(key) {
            return Ok(self.null.take());
        }
        let other = match self.others.peek() {
            Some(Ok((_, value))) => ObjectEntry::decode(value)?,
            _ => return Self::take(&mut self.others),
        };
        // The `null` version sorts first, whatever its age.
        if other.slot == VersionSlot::Null {
            self.others.next();
            self.null = Some(other);
            return self.next_of_key(key);
        }
        if self.null.as_ref().is_some_and(|null| null.creation_seq > other.creation_seq) {
            return Ok(self.null.take());
        }
        Self::take(&mut self.others)
    }
}

impl VersionCursor for VersionsCursor {
    fn seek(&mut self, bytes: &[u8]) -> Result<()> {
        let bucket = self.bucket;
        self.current = self.entries(keys::object_from(bucket, bytes), keys::bucket_end(bucket));
        self.others = self.entries(keys::versions_from(bucket, bytes), keys::versions_end(bucket));
        (self.key, self.null) = (None, None);
        Ok(())
    }

    /// Own versions order by age, so the position is found although the version was deleted.
    fn seek_after(&mut self, key: &str, version: &VersionId) -> Result<()> {
        let (bucket, object_key) = (self.bucket, keys::object(self.bucket, key));
        let decode = |value: Option<fjall::Slice>| value.map(|value| ObjectEntry::decode(&value)).transpose();
        let object = decode(self.snapshot.get(&object_key)?)?;
        let null = decode(self.snapshot.get(&keys::version(bucket, key, VersionSlot::Null))?)?;
        let creation_seq = match VersionSlot::from_id(version) {
            Some(VersionSlot::Own(seq)) => Some(seq),
            Some(VersionSlot::Null) => {
                let mut entries = object.iter().chain(&null);
                entries.find(|entry| entry.slot == VersionSlot::Null).map(|entry| entry.creation_seq)
            }
            None => None,
        };
        let newest = match &object {
            Some(object) => Some(object.creation_seq),
            None => newest_other(&self.snapshot, bucket, key, None)?.map(|newest| newest.entry.creation_seq),
        };
        let Some(creation_seq) = creation_seq.filter(|seq| newest.is_some_and(|newest| newest >= *seq))
        else {
            // All versions of the key are older, or where the deleted `null` version was is not known.
            return self.seek(key.as_bytes());
        };
        // Behind the current object, if there is one, and behind the newer ones of the others.
        let next_key = [key.as_bytes(), &[0]].concat();
        self.current = self.entries(keys::object_from(bucket, &next_key), keys::bucket_end(bucket));
        let from = [&keys::version(bucket, key, VersionSlot::Own(creation_seq))[..], &[0]].concat();
        self.others = self.entries(from, keys::versions_end(bucket));
        self.key = Some(key.to_owned());
        self.null = null.filter(|null| null.creation_seq < creation_seq);
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(String, ListedVersion)>> {
        if let Some(key) = self.key.clone()
            && let Some(entry) = self.next_of_key(&key)?
        {
            return Ok(Some((key, listed(entry, false))));
        }
        let current = Self::peek_key(&mut self.current)?;
        let other = Self::peek_key(&mut self.others)?;
        // The current object of a key is newer than all of its other versions.
        let (key, entry) = match (current, other) {
            (Some(current), other) if other.as_ref().is_none_or(|other| current <= *other) => {
                (current, Self::take(&mut self.current)?)
            }
            (_, Some(other)) => {
                let entry = self.next_of_key(&other)?;
                (other, entry)
            }
            _ => return Ok(None),
        };
        self.key = Some(key.clone());
        Ok(entry.map(|entry| (key, listed(entry, true))))
    }
}

fn listed(entry: ObjectEntry, is_latest: bool) -> ListedVersion {
    ListedVersion {
        version: entry.slot.id(),
        is_latest,
        modified: entry.modified,
        object: (!entry.is_delete_marker).then(|| summary(entry)),
    }
}

fn summary(entry: ObjectEntry) -> ObjectSummary {
    ObjectSummary {
        size: entry.size,
        etag: entry.etag,
        modified: entry.modified,
        generation: Generation(entry.seq),
        checksum: entry.checksum,
        storage_class: entry.storage_class,
    }
}

/// One page of a bucket's versions.
pub(super) fn versions_page(
    state: &StoreState,
    bucket: BucketId,
    request: &ListVersions,
) -> Result<VersionsPage> {
    page_versions(&mut VersionsCursor::new(state.index.snapshot(), bucket), request)
}

/// One page of a bucket.
pub(super) fn list_page(
    state: &StoreState,
    bucket: BucketId,
    request: &ListRequest,
) -> Result<ListPage<ObjectSummary>> {
    let mut cursor = IndexCursor { snapshot: state.index.snapshot(), bucket, entries: None };
    page(&mut cursor, request)
}
