//! Multipart uploads. An upload belongs to the tier of its class, and its id names the tier. Uploads of one key are
//! listed by tier, those of a tier in order of creation.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::join_all;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartNumber, PartsPage, UploadId, UploadInfo, UploadsPage,
};
use tradewind_core::object::Committed;
use tradewind_core::{Address, BucketName, Context, ETag, ObjectStore, Precondition};

use super::tier_set::{Change, TierSet};

/// Uploads of one key that are requested from a tier at once.
const UPLOADS_PER_PAGE: usize = 1000;

/// The id of an upload, taken apart: `TIER-ID`, with the index of the tier and the id that it gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RoutedUpload {
    /// The index of the tier.
    pub tier: usize,
    /// The id within the tier.
    pub inner: UploadId,
}

impl RoutedUpload {
    /// Parses an id; `None` if it is not one.
    fn parse(id: &UploadId, tiers: usize) -> Option<Self> {
        let (tier, inner) = id.0.strip_prefix('t')?.split_once('-')?;
        let tier = tier.parse().ok().filter(|tier| *tier < tiers)?;
        Some(Self { tier, inner: UploadId(inner.to_owned()) })
    }

    fn id(&self) -> UploadId {
        UploadId(format!("t{}-{}", self.tier, self.inner))
    }
}

/// The position of an entry in a listing of uploads.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UploadPosition {
    /// A key or a common prefix.
    name: String,
    tier: usize,
    /// Among the entries of the tier.
    index: usize,
}

/// Entries of a listing of uploads, in order.
type Entries = BTreeMap<UploadPosition, ListEntry<UploadInfo>>;

impl TierSet {
    /// The tier of an upload, and its id there. Fails if the bucket does not exist, or if no tier has given the id.
    pub async fn upload(
        &self,
        context: &Context,
        bucket: &BucketName,
        id: &UploadId,
    ) -> Result<RoutedUpload> {
        self.check_bucket(context, bucket).await?;
        RoutedUpload::parse(id, self.tiers.len()).ok_or_else(|| Error::no_such_upload(&id.0))
    }

    /// Creates an upload in the tier of its class.
    pub async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        let index = self.place(&request.metadata, None);
        self.prepare_bucket(context, index, &address.bucket).await?;
        let tier = &self.tiers[index];
        let inner = tier.named(tier.store.create_upload(context, address, request).await)?;
        Ok(RoutedUpload { tier: index, inner }.id())
    }

    /// Lists one page of an upload's parts.
    pub async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        let RoutedUpload { tier, inner } = self.upload(context, &address.bucket, upload).await?;
        let listed = self.tiers[tier].store.list_parts(context, address, &inner, after, limit).await;
        let listed = self.about_upload(tier, upload, listed)?;
        Ok(PartsPage { upload: UploadInfo { id: upload.clone(), ..listed.upload }, ..listed })
    }

    /// Completes an upload, like a write to its tier.
    pub async fn complete_upload(
        self: &Arc<Self>,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        let RoutedUpload { tier, inner } = self.upload(context, &address.bucket, upload).await?;
        let (set, id) = (self.clone(), upload.clone());
        let work = move |change: Change| async move {
            let store = change.tier(tier).store.clone();
            match change.admit(tier, &request.precondition).await {
                Ok(copies) => {
                    let request = CompleteUpload { precondition: Precondition::None, ..request };
                    let complete = store.complete_upload(&change.context, &change.address, &inner, request);
                    let committed = change.replace(tier, copies, complete).await;
                    Ok(change.outer(tier, set.about_upload(tier, &id, committed)?))
                }
                Err(failed) if failed.kind() == ErrorKind::Unavailable => Err(failed),
                // As in a single store, what else is wrong is reported first.
                Err(failed) => {
                    let other = find_other_error(&*store, &change, &inner, request).await;
                    set.about_upload(tier, &id, other)?;
                    Err(failed)
                }
            }
        };
        let committed = self.change(context, address, work).await?;
        // The size, by which an object without a label has its tier, was unknown when the upload was created.
        self.queue.push(address);
        Ok(committed)
    }

    /// The result of a tier for a request to an upload. A tier without the bucket has no upload in it either.
    pub fn about_upload<T>(&self, tier: usize, upload: &UploadId, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if tier < self.base() && error.reason() == Reason::NoSuchBucket => {
                Err(Error::no_such_upload(&upload.0))
            }
            result => self.tiers[tier].named(result),
        }
    }

    /// Lists one page of the uploads of all tiers.
    pub async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.check_bucket(context, bucket).await?;
        let marker = match (&request.after_key, &request.after_upload) {
            (Some(_), Some(id)) => Some(
                RoutedUpload::parse(id, self.tiers.len())
                    .ok_or_else(|| Error::for_client(Reason::InvalidArgument, "Invalid uploadId marker"))?,
            ),
            _ => None,
        };
        if request.limit == 0 {
            return Ok(UploadsPage { entries: Vec::new(), next: None });
        }
        let pages = (0..self.tiers.len())
            .map(|tier| self.uploads_after(context, tier, bucket, request, marker.as_ref()));
        let (mut merged, mut is_last) = (Entries::new(), true);
        for page in join_all(pages).await {
            let page = page?;
            is_last &= page.next.is_none();
            for (position, entry) in page.entries {
                merged.entry(position).or_insert(entry);
            }
        }
        is_last &= merged.len() <= request.limit;
        let entries: Vec<ListEntry<UploadInfo>> = merged.into_values().take(request.limit).collect();
        let next = entries.last().filter(|_| !is_last).map(|entry| match entry {
            ListEntry::Key(key, upload) => (key.clone(), Some(upload.id.clone())),
            ListEntry::CommonPrefix(prefix) => (prefix.clone(), None),
        });
        Ok(UploadsPage { entries, next })
    }

    /// The first entries of a tier after a position of the merged listing.
    async fn uploads_after(
        &self,
        context: &Context,
        tier: usize,
        bucket: &BucketName,
        request: &ListUploads,
        marker: Option<&RoutedUpload>,
    ) -> Result<Page> {
        let own_marker = marker.filter(|marker| marker.tier == tier).map(|marker| marker.inner.clone());
        let later = ListUploads { after_upload: own_marker, ..request.clone() };
        let mut found = Vec::new();
        if let (Some(key), true) = (&request.after_key, marker.is_some_and(|marker| marker.tier < tier))
            && is_listed_by_key(key, request)
        {
            found = self.uploads_of_key(context, tier, bucket, key).await?;
        }
        let page = self.uploads_page(context, tier, bucket, &later).await?;
        found.extend(page.entries);
        Ok(Page { entries: with_positions(tier, found), next: page.next })
    }

    /// All uploads of one key in a tier.
    async fn uploads_of_key(
        &self,
        context: &Context,
        tier: usize,
        bucket: &BucketName,
        key: &str,
    ) -> Result<Vec<ListEntry<UploadInfo>>> {
        let mut found = Vec::new();
        let mut request =
            ListUploads { prefix: key.to_owned(), limit: UPLOADS_PER_PAGE, ..ListUploads::default() };
        loop {
            let page = self.uploads_page(context, tier, bucket, &request).await?;
            let count = page.entries.len();
            let before = found.len();
            found.extend(page.entries.into_iter().take_while(|entry| entry.name() == key));
            // The key itself comes first of all keys with this prefix.
            let Some((next_key, upload)) = page.next.filter(|_| found.len() - before == count) else {
                return Ok(found);
            };
            (request.after_key, request.after_upload) = (Some(next_key), upload);
        }
    }

    /// A page of a tier, with ids of the tier. Empty if the bucket does not exist there.
    async fn uploads_page(
        &self,
        context: &Context,
        tier: usize,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        match self.tiers[tier].store.list_uploads(context, bucket, request).await {
            Err(error) if tier < self.base() && error.reason() == Reason::NoSuchBucket => {
                Ok(UploadsPage { entries: Vec::new(), next: None })
            }
            listed => self.tiers[tier].named(listed),
        }
    }
}

/// A page of one tier.
struct Page {
    entries: Entries,
    next: Option<(String, Option<UploadId>)>,
}

/// Returns true if uploads of a key are listed individually, not rolled up into a common prefix.
fn is_listed_by_key(key: &str, request: &ListUploads) -> bool {
    let delimiter = request.delimiter.as_deref().filter(|delimiter| !delimiter.is_empty());
    match key.strip_prefix(&*request.prefix) {
        Some(rest) => delimiter.is_none_or(|delimiter| !rest.contains(delimiter)),
        None => false,
    }
}

/// Entries of a tier with their positions, and with the ids that clients see.
fn with_positions(tier: usize, entries: Vec<ListEntry<UploadInfo>>) -> Entries {
    let positioned = |(index, entry): (usize, ListEntry<UploadInfo>)| match entry {
        ListEntry::Key(key, upload) => {
            let id = RoutedUpload { tier, inner: upload.id }.id();
            let entry = ListEntry::Key(key.clone(), UploadInfo { id, ..upload });
            (UploadPosition { name: key, tier, index }, entry)
        }
        ListEntry::CommonPrefix(prefix) => {
            // Equal in all tiers, so that it is listed once.
            let position = UploadPosition { name: prefix.clone(), tier: 0, index: 0 };
            (position, ListEntry::CommonPrefix(prefix))
        }
    };
    entries.into_iter().enumerate().map(positioned).collect()
}

/// Fails with another error of a completion whose condition fails. Our own stores find such errors before they compare
/// a condition. A service may ignore the condition of a completion: there, only the upload is examined.
async fn find_other_error(
    store: &dyn ObjectStore,
    change: &Change,
    upload: &UploadId,
    request: CompleteUpload,
) -> Result<()> {
    let (context, address) = (&change.context, &change.address);
    if !store.capabilities().generations {
        return store.list_parts(context, address, upload, None, 1).await.map(drop);
    }
    let request =
        CompleteUpload { precondition: Precondition::Matches(ETag::from_tag("no object")), ..request };
    match store.complete_upload(context, address, upload, request).await {
        Err(error) if error.kind() == ErrorKind::Precondition || error.reason() == Reason::NoSuchKey => {
            Ok(())
        }
        Err(error) => Err(error),
        Ok(_) => Err(Error::new(Reason::Defect, "a tier ignored the condition of a completion")),
    }
}
