//! The examination of a store without a bucket of chunks: a new bucket is right only if nothing is deduplicated.
//!
//! The parts of unfinished uploads are examined before requests are served, because a completion would make objects of
//! them behind the cursor. Objects are examined while requests are served: without a bucket of chunks, all writes are
//! plain. The cursor stays over errors, and so does the list of objects that cannot be examined.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tracing::error;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::ListUploads;
use tradewind_core::store::GetRequest;
use tradewind_core::stored_form::{DescriptionChange, StoredSegment};
use tradewind_core::{Address, BucketName, Context};

use super::chunk_store::{ChunkStore, PAGE_ENTRIES};
use super::manifest::SegmentForm;
use super::object_pages::{ObjectPages, is_gone};

/// Objects that cannot be examined. With more of them, the examination waits for the first one of these.
const MAX_UNREADABLE_OBJECTS: usize = 1_000;

/// The progress of an examination, for operators.
#[derive(Debug, Default)]
pub(super) struct ExaminationProgress {
    /// Objects that were seen.
    pub objects: AtomicU64,
    /// Objects whose form cannot be known, because their records are damaged.
    pub unreadable: Mutex<Vec<Address>>,
}

/// An examination of all objects in progress.
#[derive(Debug)]
pub(super) struct Examination {
    pages: ObjectPages,
    /// Objects of the current page that were not examined yet.
    pending: VecDeque<Address>,
}

impl Examination {
    /// Begins before the first object.
    pub async fn begin(store: &ChunkStore, context: &Context) -> Result<Self> {
        Ok(Self { pages: ObjectPages::begin(store, context).await?, pending: VecDeque::new() })
    }

    /// Examines all objects that were not examined yet. After an error, the next call goes on with the object that
    /// caused it. Damaged objects are passed, and examined again at the begin of the next call.
    ///
    /// Fails with [`InvalidArgument`](Reason::InvalidArgument) if an object is deduplicated, with
    /// [`Unsupported`](Reason::Unsupported) if one is stored in a form of a later version, and at the end with
    /// [`CorruptData`](Reason::CorruptData) if some cannot be examined.
    pub async fn run(&mut self, store: &ChunkStore, context: &Context) -> Result<()> {
        examine_unreadable(store, context).await?;
        let progress = &store.examination_progress;
        loop {
            while let Some(address) = self.pending.front() {
                match examine(store, context, address).await {
                    Err(error) if error.reason() == Reason::CorruptData => {
                        record_unreadable(store, address, error)?;
                    }
                    examined => examined?,
                }
                progress.objects.fetch_add(1, Ordering::Relaxed);
                self.pending.pop_front();
            }
            match self.pages.next(store, context).await? {
                Some(page) => self.pending = page.into(),
                None => break,
            }
        }
        let unreadable = progress.unreadable.lock();
        unreadable.first().map_or(Ok(()), |first| Err(unreadable_error(unreadable.len(), first)))
    }
}

/// Examines an object.
async fn examine(store: &ChunkStore, context: &Context, address: &Address) -> Result<()> {
    match store.inner.head(context, address, GetRequest::default()).await {
        Ok(head) => check_plain(head.info.stored.iter().flat_map(|form| form.segments.iter()), address),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Examines the damaged objects again: they may have been replaced or deleted.
async fn examine_unreadable(store: &ChunkStore, context: &Context) -> Result<()> {
    let unreadable = store.examination_progress.unreadable.lock().clone();
    for address in unreadable {
        match examine(store, context, &address).await {
            Ok(()) => store.examination_progress.unreadable.lock().retain(|other| *other != address),
            Err(error) if error.reason() == Reason::CorruptData => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn record_unreadable(store: &ChunkStore, address: &Address, error: Error) -> Result<()> {
    let mut unreadable = store.examination_progress.unreadable.lock();
    if unreadable.len() >= MAX_UNREADABLE_OBJECTS {
        return Err(error);
    }
    let (bucket, key) = (address.bucket.as_str(), address.key.as_str());
    error!(bucket, key, %error, "an object cannot be examined: it may be deduplicated");
    unreadable.push(address.clone());
    Ok(())
}

fn unreadable_error(count: usize, first: &Address) -> Error {
    let message = format!(
        "{count} objects cannot be examined, such as {:?} of the bucket {:?}: a new bucket of chunks could hide that \
         their chunks are lost; restore, overwrite or delete them",
        first.key.as_str(),
        first.bucket.as_str()
    );
    Error::new(Reason::CorruptData, message)
}

/// Fails if a segment is deduplicated.
fn check_plain<'a>(segments: impl Iterator<Item = &'a StoredSegment>, address: &Address) -> Result<()> {
    for segment in segments {
        if let SegmentForm::Manifest(_) = SegmentForm::of_segment(segment)? {
            return Err(ChunkStore::missing_chunks(address));
        }
    }
    Ok(())
}

/// Reads the descriptions of parts, and changes none.
struct NoChange;

impl DescriptionChange for NoChange {
    fn new_description(&self, _: &StoredSegment) -> Option<Vec<u8>> {
        None
    }
}

/// Examines the parts of all unfinished uploads. Must end before requests are served.
///
/// Fails as [`Examination::run`], and with [`CorruptData`](Reason::CorruptData) at the first damaged part.
pub(super) async fn examine_uploads(store: &ChunkStore, context: &Context) -> Result<()> {
    for bucket in store.inner.list_buckets(context).await?.into_iter().map(|bucket| bucket.name) {
        if bucket != store.bucket {
            examine_uploads_of(store, context, &bucket).await?;
        }
    }
    Ok(())
}

async fn examine_uploads_of(store: &ChunkStore, context: &Context, bucket: &BucketName) -> Result<()> {
    let mut request = ListUploads { limit: PAGE_ENTRIES, ..ListUploads::default() };
    loop {
        let page = store.inner.list_uploads(context, bucket, &request).await?;
        for entry in page.entries {
            let ListEntry::Key(key, upload) = entry else { continue };
            let address = Address::parse(bucket.as_str(), &key)?;
            let described =
                store.inner.redescribe_upload(context, &address, &upload.id, Arc::new(NoChange)).await;
            let checked = described.and_then(|parts| check_plain(parts.segments.iter(), &address));
            checked.map_err(|error| name_upload(error, &address))?;
        }
        let Some((key, upload)) = page.next else { return Ok(()) };
        (request.after_key, request.after_upload) = (Some(key), upload);
    }
}

/// Names the upload in an error that does not pass, and what to do.
fn name_upload(error: Error, address: &Address) -> Error {
    if !matches!(error.reason(), Reason::InvalidArgument | Reason::CorruptData | Reason::Unsupported) {
        return error;
    }
    let message = format!(
        "an unfinished upload of {:?} to the bucket {:?}: {}; to abort the upload instead, start the server without the \
         layer \"deduplicated\"",
        address.key.as_str(),
        address.bucket.as_str(),
        error.message()
    );
    Error::with_source(error.reason(), message, error)
}
