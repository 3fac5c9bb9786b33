//! References of parts that are damaged. One whose upload has ended is needed no more: the object, if there is one, has a
//! manifest. It is removed unread. Its key names the upload by a hash, so that one that no unfinished upload has is enough.
//! The keys of earlier versions do not: these references stay until no upload is unfinished.

use std::collections::BTreeMap;

use tracing::warn;
use tradewind_core::error::{Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::ListUploads;
use tradewind_core::{Address, BucketName, Context, ObjectKey};

use super::busy_retry::retry_busy;
use super::chunk_store::{ChunkStore, PAGE_ENTRIES};
use super::damage::DamagedObject;
use super::part_references::{UploadName, digest_in};

/// The unfinished uploads that damaged references may belong to.
#[derive(Debug, Default)]
struct UnfinishedUploads {
    count: u64,
    /// True if the record of one is damaged, so that others may not be listed.
    is_incomplete: bool,
    /// Those of the references, by the hashes of their names. `None` if none has the hash.
    by_digest: BTreeMap<String, Option<UploadName>>,
}

/// Removes damaged references whose uploads have ended, and returns the others. A collection calls it before it marks
/// objects: those that the uploads have become are visible by then.
pub(super) async fn remove_ended(
    store: &ChunkStore,
    context: &Context,
    damaged: Vec<ObjectKey>,
) -> Result<Vec<DamagedObject>> {
    let mut needed = Vec::new();
    if damaged.is_empty() {
        return Ok(needed);
    }
    let mut unfinished = UnfinishedUploads::default();
    let digests = damaged.iter().filter_map(digest_in);
    unfinished.by_digest = digests.map(|digest| (digest.to_owned(), None)).collect();
    for bucket in retry_busy(context, || store.inner.list_buckets(context)).await? {
        if bucket.name != store.bucket {
            unfinished.add_bucket(store, context, &bucket.name).await?;
        }
    }
    for key in damaged {
        match unfinished.object_of(store, &key) {
            Some(object) => needed.push(object),
            None => {
                retry_busy(context, || store.delete(context, &key)).await?;
                warn!(key = key.as_str(), "removed a damaged list of chunks, whose upload has ended");
            }
        }
    }
    Ok(needed)
}

impl UnfinishedUploads {
    async fn add_bucket(&mut self, store: &ChunkStore, context: &Context, bucket: &BucketName) -> Result<()> {
        let mut request = ListUploads { limit: PAGE_ENTRIES, ..ListUploads::default() };
        loop {
            let page = retry_busy(context, || store.inner.list_uploads(context, bucket, &request)).await;
            let page = match page {
                Err(error) if error.reason() == Reason::NoSuchBucket => return Ok(()),
                Err(error) if error.reason() == Reason::CorruptData => {
                    let bucket = bucket.as_str();
                    warn!(bucket, %error, "cannot list unfinished uploads: damaged lists of chunks are kept");
                    self.is_incomplete = true;
                    return Ok(());
                }
                page => page?,
            };
            for entry in page.entries {
                let ListEntry::Key(key, upload) = entry else { continue };
                let name = UploadName { address: Address::parse(bucket.as_str(), &key)?, upload: upload.id };
                self.count += 1;
                if let Some(found) = self.by_digest.get_mut(&name.digest()?) {
                    *found = Some(name);
                }
            }
            let Some((key, upload)) = page.next else { return Ok(()) };
            (request.after_key, request.after_upload) = (Some(key), upload);
        }
    }

    /// The unfinished upload of a reference, or the reference itself if there may be one that is not known. `None` if the
    /// upload has ended.
    fn object_of(&self, store: &ChunkStore, key: &ObjectKey) -> Option<DamagedObject> {
        let digest = digest_in(key);
        let named = digest.and_then(|digest| self.by_digest.get(digest)?.clone());
        if let Some(UploadName { address, upload }) = named {
            return Some(DamagedObject { address, upload: Some(upload) });
        }
        let may_be_needed = self.is_incomplete || (digest.is_none() && self.count > 0);
        may_be_needed.then(|| DamagedObject::object(store.address(key)))
    }
}
