//! Listings of objects, served from the index alone. Each page is read from one snapshot.

use tradewind_core::error::Result;
use tradewind_core::listing::{KeyCursor, ListPage, ListRequest, ObjectSummary, page};
use tradewind_core::object::Generation;

use super::index::IndexSnapshot;
use super::index::entries::ObjectEntry;
use super::index::keys;
use super::record::BucketId;
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
        let entry = ObjectEntry::decode(&value)?;
        let summary = ObjectSummary {
            size: entry.size,
            etag: entry.etag,
            modified: entry.modified,
            generation: Generation(entry.seq),
            checksum: entry.checksum,
        };
        Ok(Some((keys::object_name(&key)?, summary)))
    }
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
