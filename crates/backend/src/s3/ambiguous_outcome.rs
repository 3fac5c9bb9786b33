//! Writes whose response was lost. A write stores a random id in the object's metadata, by which it is recognized among
//! the newest versions of its key. The bytes alone are not enough: another client may have written the same ones. A
//! write carries an id if it has a condition, because a retry may fail if the first attempt succeeded, and unless its
//! bucket keeps no versions; each write carries one if the service's responses have no ETags. See
//! `docs/decisions/0016-the-s3-leaf-and-other-stores.md`.

use std::sync::atomic::Ordering;

use http::{HeaderMap, HeaderValue, Method};
use tradewind_core::context::OnUnknownOutcome;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::listing::ListEntry;
use tradewind_core::metadata::MAX_USER_METADATA_BYTES;
use tradewind_core::object::ETag;
use tradewind_core::store::GetRequest;
use tradewind_core::version::{ListVersions, VersionId};
use tradewind_core::{Address, Checksum, Context, Precondition};

use tradewind_wire::headers::USER_PREFIX;

use super::headers::{self, WRITE_ID};
use super::repeats::ChangeGuard;
use super::{S3Store, versions};
use crate::remote::client::{Call, RepeatGuard as _};
use crate::remote::limits::MAX_PAGE_ENTRIES;
use crate::remote::response::ResponseHead;

/// Length of a write id, in characters.
const WRITE_ID_CHARS: usize = 32;
/// Maximum number of versions whose metadata is compared with a write.
const MAX_CANDIDATES: usize = 16;

/// A write with an id by which it can be recognized.
#[derive(Debug, Clone)]
pub(super) struct IdentifiedWrite {
    id: HeaderValue,
    /// The size of the object, in bytes, if known.
    size: Option<u64>,
    /// The checksum of the whole object, if known.
    checksum: Option<Checksum>,
}

impl IdentifiedWrite {
    /// Adds an id to a write that needs one. Returns true if the request may be retried: false if it has a condition and
    /// the metadata has no room for the id.
    pub fn add_id(
        store: &S3Store,
        address: &Address,
        precondition: &Precondition,
        headers: &mut HeaderMap,
    ) -> Result<bool> {
        let is_conditional = *precondition != Precondition::None;
        let may_keep_versions = store.observed_versioning.may_keep_versions(address.bucket.as_str());
        // A write whose response has no ETag is recognized by its id.
        if !is_conditional && !may_keep_versions && !store.lacks_etags() {
            return Ok(true);
        }
        // Classes may be user metadata too.
        let user = headers.iter().filter_map(|(name, value)| {
            name.as_str().strip_prefix(USER_PREFIX).map(|name| name.len() + value.len())
        });
        let taken: usize = user.sum();
        if taken + WRITE_ID.as_str().len() + WRITE_ID_CHARS > MAX_USER_METADATA_BYTES {
            return Ok(!is_conditional);
        }
        let random = || Some([getrandom::u64().ok()?, getrandom::u64().ok()?]);
        let [high, low] =
            random().ok_or_else(|| Error::new(Reason::Io, "the system's random number generator failed"))?;
        let id = HeaderValue::try_from(format!("{high:016x}{low:016x}"))
            .map_err(|e| Error::with_source(Reason::Defect, "a write id is not a valid header value", e))?;
        headers.insert(WRITE_ID, id);
        Ok(true)
    }

    /// The write with the id in these headers, if any, and its size and checksum if known.
    pub fn from_headers(
        headers: &HeaderMap,
        size: impl Into<Option<u64>>,
        checksum: impl Into<Option<Checksum>>,
    ) -> Option<Self> {
        Some(Self::new(headers.get(WRITE_ID)?.clone(), size, checksum))
    }

    /// The write with this id, and its size and checksum if known.
    pub fn new(id: HeaderValue, size: impl Into<Option<u64>>, checksum: impl Into<Option<Checksum>>) -> Self {
        Self { id, size: size.into(), checksum: checksum.into() }
    }

    /// Returns true if `head` is the response to a HEAD of the object that this write has created.
    fn has_created(&self, head: &VersionHead) -> Result<bool> {
        if head.response.headers.get(WRITE_ID) != Some(&self.id)
            || self.size.is_some_and(|size| head.size != Some(size))
        {
            return Ok(false);
        }
        let (checksums, _) = headers::checksums(&head.response.headers)?;
        Ok(self.checksum.is_none_or(|written| {
            let stored = checksums.iter().find(|stored| stored.algorithm() == written.algorithm());
            stored.is_none_or(|stored| *stored == written)
        }))
    }
}

/// The response to a HEAD of one version.
pub(super) struct VersionHead {
    pub response: ResponseHead,
    /// The size of the object, in bytes.
    pub size: Option<u64>,
}

/// The properties that select versions from a listing.
#[derive(Debug, Clone, Default)]
pub(super) struct VersionFilter {
    pub size: Option<u64>,
    pub etag: Option<ETag>,
}

impl S3Store {
    /// Handles a change that failed with `error`. If its outcome is unknown, the service is asked for the object that the
    /// write may have created, if it has an id: then returns the response to the HEAD of that version. Otherwise fails
    /// with `error`, which is final if a retry by the caller could create another version.
    pub(super) async fn resolve_failed_call(
        &self,
        address: &Address,
        call: &Call<'_>,
        guard: &ChangeGuard<'_>,
        identified: Option<&IdentifiedWrite>,
        error: Error,
    ) -> Result<ResponseHead> {
        match call.outcome_unknown.load(Ordering::Relaxed) {
            // Boxed, because it is rarely needed.
            true => Box::pin(self.resolve_unknown_outcome(address, guard, identified, error)).await,
            false => Err(error),
        }
    }

    /// Like [`Self::resolve_failed_call`], for a change whose outcome is unknown.
    pub(super) async fn resolve_unknown_outcome(
        &self,
        address: &Address,
        guard: &ChangeGuard<'_>,
        identified: Option<&IdentifiedWrite>,
        error: Error,
    ) -> Result<ResponseHead> {
        let is_in_doubt =
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Precondition);
        // A caller that forbids repeats knows that the outcome is unknown.
        let caller_decides =
            guard.context.on_unknown_outcome == OnUnknownOutcome::Fail && identified.is_none();
        if !is_in_doubt || caller_decides {
            return Err(error);
        }
        let keeps_versions = !guard.may_repeat().await;
        if let Some(identified) = identified {
            match self.find_written(guard.context, address, identified, keeps_versions).await {
                Ok(Some(head)) => return Ok(head.response),
                Ok(None) => {}
                Err(e) => tracing::debug!(error = %e, "cannot determine whether a write took effect"),
            }
        }
        Err(if keeps_versions { guard.unknown_outcome_error(error) } else { error })
    }

    /// The object that a write has created, if it is the current one or, with `keeps_versions`, among the newest
    /// versions of its key.
    pub(super) async fn find_written(
        &self,
        context: &Context,
        address: &Address,
        identified: &IdentifiedWrite,
        keeps_versions: bool,
    ) -> Result<Option<VersionHead>> {
        let mut found = None;
        if keeps_versions {
            let filter = VersionFilter { size: identified.size, etag: None };
            match self.newest_versions(context, address, &filter).await {
                Ok(candidates) => {
                    for version in candidates.into_iter().take(MAX_CANDIDATES) {
                        let address = address.clone().with_version(Some(version.clone()));
                        let head = match self.head_version(context, &address).await {
                            Ok(head) => head,
                            // Reading a version needs another permission than reading the object.
                            Err(e) => {
                                tracing::debug!(error = %e, "cannot read a version of a key");
                                break;
                            }
                        };
                        // A copy of a version has its id, too. The oldest version with the id is the write.
                        if let Some(mut head) = head
                            && identified.has_created(&head)?
                        {
                            versions::add_version_id(&version, &mut head.response.headers);
                            found = Some(head);
                        }
                    }
                }
                // Listing versions needs another permission than reading the object.
                Err(e) => tracing::debug!(error = %e, "cannot list the versions of a key"),
            }
        }
        if found.is_some() {
            return Ok(found);
        }
        let current = self.head_version(context, address).await?;
        match current {
            Some(head) if identified.has_created(&head)? => Ok(Some(head)),
            _ => Ok(None),
        }
    }

    /// The newest versions of a key that are objects, newest first, of one page of the listing.
    pub(super) async fn newest_versions(
        &self,
        context: &Context,
        address: &Address,
        filter: &VersionFilter,
    ) -> Result<Vec<VersionId>> {
        let key = address.key.as_str();
        let request =
            ListVersions { prefix: key.to_owned(), limit: MAX_PAGE_ENTRIES, ..ListVersions::default() };
        let page = self.versions_page(context, &address.bucket, &request).await?;
        let selected = page.entries.into_iter().filter_map(|entry| match entry {
            ListEntry::Key(listed_key, listed) if listed_key == key => {
                let object = listed.object?;
                let is_selected = filter.size.is_none_or(|size| object.size == size)
                    && filter.etag.as_ref().is_none_or(|etag| object.etag == *etag);
                is_selected.then_some(listed.version)
            }
            _ => None,
        });
        Ok(selected.collect())
    }

    /// The head of the object or version at `address`; `None` if it does not exist.
    pub(super) async fn head_version(
        &self,
        context: &Context,
        address: &Address,
    ) -> Result<Option<VersionHead>> {
        let response = match self.send_read(context, address, &GetRequest::default(), Method::HEAD).await {
            Ok(response) => response,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let size = response.content_length();
        Ok(Some(VersionHead { response: response.drain().await?, size }))
    }
}
