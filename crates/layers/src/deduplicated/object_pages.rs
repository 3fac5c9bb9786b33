//! The objects of all buckets but that of chunks, page by page: all versions of them if the store has versions.

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::{ListEntry, ListRequest};
use tradewind_core::version::ListVersions;
use tradewind_core::{Address, BucketName, Context, ObjectKey};

use super::busy_retry::retry_busy;
use super::chunk_store::{ChunkStore, PAGE_ENTRIES};

/// See the module documentation.
#[derive(Debug)]
pub(super) struct ObjectPages {
    /// Buckets that are not listed to their end, the current one last.
    buckets: Vec<BucketName>,
    keys: ListRequest,
    versions: ListVersions,
}

impl ObjectPages {
    /// Begins before the first object.
    pub async fn begin(store: &ChunkStore, context: &Context) -> Result<Self> {
        let listed = retry_busy(context, || store.inner.list_buckets(context)).await?;
        let buckets = listed.into_iter().map(|bucket| bucket.name).filter(|name| *name != store.bucket);
        let mut pages = Self {
            buckets: buckets.collect(),
            keys: ListRequest::default(),
            versions: ListVersions::default(),
        };
        pages.begin_bucket();
        Ok(pages)
    }

    /// The next page, which may be empty; `None` after the last one.
    pub async fn next(&mut self, store: &ChunkStore, context: &Context) -> Result<Option<Vec<Address>>> {
        let Some(bucket) = self.buckets.last().cloned() else { return Ok(None) };
        let page = match store.inner.capabilities().versions {
            true => self.next_versions(store, context, &bucket).await,
            false => self.next_keys(store, context, &bucket).await,
        };
        match page {
            Err(error) if error.reason() == Reason::NoSuchBucket => {
                self.end_bucket();
                Ok(Some(Vec::new()))
            }
            page => page.map(Some),
        }
    }

    async fn next_keys(
        &mut self,
        store: &ChunkStore,
        context: &Context,
        bucket: &BucketName,
    ) -> Result<Vec<Address>> {
        let page = retry_busy(context, || store.inner.list(context, bucket, &self.keys)).await?;
        let address = |name: &str| Ok(Address::new(bucket.clone(), ObjectKey::new(name)?));
        let objects = page.entries.iter().map(|entry| address(entry.name())).collect::<Result<_>>()?;
        self.keys.after = page.next;
        if self.keys.after.is_none() {
            self.end_bucket();
        }
        Ok(objects)
    }

    async fn next_versions(
        &mut self,
        store: &ChunkStore,
        context: &Context,
        bucket: &BucketName,
    ) -> Result<Vec<Address>> {
        let page = retry_busy(context, || store.inner.list_versions(context, bucket, &self.versions)).await?;
        let mut objects = Vec::with_capacity(page.entries.len());
        for entry in page.entries {
            let ListEntry::Key(key, listed) = entry else { continue };
            if listed.object.is_some() {
                let address = Address::new(bucket.clone(), ObjectKey::new(&key)?);
                objects.push(address.with_version(Some(listed.version)));
            }
        }
        self.versions.after = page.next;
        if self.versions.after.is_none() {
            self.end_bucket();
        }
        Ok(objects)
    }

    fn end_bucket(&mut self) {
        self.buckets.pop();
        self.begin_bucket();
    }

    fn begin_bucket(&mut self) {
        self.keys = ListRequest { limit: PAGE_ENTRIES, ..ListRequest::default() };
        self.versions = ListVersions { limit: PAGE_ENTRIES, ..ListVersions::default() };
    }
}

/// Returns true if the error says that an object does not exist any more.
pub(super) fn is_gone(error: &Error) -> bool {
    matches!(
        error.reason(),
        Reason::NoSuchKey | Reason::NoSuchVersion | Reason::DeleteMarker | Reason::NoSuchBucket
    )
}
