//! Replaces and deletes objects, and frees the segments of the previous object.
//!
//! The order is always: write new segments, then the one request that changes the key, then delete unreferenced
//! segments. An interruption leaves orphaned segments; any other order could leave an object without its bytes.
//! Therefore `multipart-manifest=delete` is never used: it deletes the segments first.
//!
//! The previous object is determined before the replacement, and its segments are freed afterwards. Two concurrent
//! replacements may find the same previous object; the segments of the one visible in between are then orphaned. They
//! only occupy space.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::ETAG;
use http::{HeaderMap, HeaderValue, Method};
use md5::{Digest as _, Md5};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Address, BucketName, Context, ETag};

use super::segments::Segment;
use super::stored_metadata::StoredMetadata;
use super::{SwiftStore, names};
use crate::remote::client::{Call, ResourceKind};
use crate::remote::header_fields::header_value;
use crate::remote::payload::BufferedBody;
use crate::remote::query::Query;
use crate::remote::response::ResponseHead;

/// Time for which the absence of a companion is cached. Until then, segments written by another process may be
/// orphaned.
const ABSENCE_CACHE_TIME: Duration = Duration::from_secs(60);
/// Maximum number of concurrent requests that free segments.
const FREE_CONCURRENCY: usize = 8;
/// Maximum number of segments in a manifest: the default of Swift's `max_manifest_segments`.
const MAX_MANIFEST_SEGMENTS: usize = 1000;

/// The cached existence of a bucket's companion.
#[derive(Debug, Clone, Copy)]
pub(super) enum CompanionState {
    Exists,
    /// It did not exist at this time of the store's clock.
    Absent(Duration),
}

/// The new content of a key.
pub(super) enum ObjectContent {
    Bytes(Vec<Bytes>),
    Segments(Vec<Segment>),
}

impl SwiftStore {
    /// Creates the companion of an existing bucket, unless it is cached as existing. Returns its name.
    pub(super) async fn ensure_companion(&self, context: &Context, bucket: &BucketName) -> Result<String> {
        let companion = names::companion(bucket);
        if !matches!(self.companions.lock().get(bucket), Some(CompanionState::Exists)) {
            self.find_bucket(context, bucket).await?;
            let call = Call::in_container(Method::PUT, ResourceKind::Bucket, &companion, None);
            self.send_and_drain(context, &call).await?;
            self.companions.lock().insert(bucket.clone(), CompanionState::Exists);
        }
        Ok(companion)
    }

    pub(super) fn uncache_companion(&self, bucket: &BucketName) {
        self.companions.lock().remove(bucket);
    }

    async fn has_companion(&self, context: &Context, bucket: &BucketName) -> Result<bool> {
        match self.companions.lock().get(bucket) {
            Some(CompanionState::Exists) => return Ok(true),
            Some(CompanionState::Absent(at)) if self.clock().now() < *at + ABSENCE_CACHE_TIME => {
                return Ok(false);
            }
            _ => {}
        }
        let companion = names::companion(bucket);
        let call = Call::in_container(Method::HEAD, ResourceKind::Bucket, &companion, None);
        let found = match self.send_and_drain(context, &call).await {
            Ok(_) => CompanionState::Exists,
            Err(e) if e.reason() == Reason::NoSuchBucket => CompanionState::Absent(self.clock().now()),
            Err(e) => return Err(e),
        };
        self.companions.lock().insert(bucket.clone(), found);
        Ok(matches!(found, CompanionState::Exists))
    }

    /// The id under which the companion has data of the key's current object, if any.
    pub(super) async fn current_id(&self, context: &Context, address: &Address) -> Result<Option<String>> {
        if !self.has_companion(context, &address.bucket).await? {
            return Ok(None);
        }
        let name = names::object(address.key.as_str())?;
        let mut call = Call::object(Method::HEAD, &address.bucket, &name);
        call.headers.insert("x-newest", HeaderValue::from_static("true"));
        match self.send_and_drain(context, &call).await {
            Ok(head) => Ok(StoredMetadata::id_in_headers(&head.headers)),
            Err(e) if e.reason() == Reason::NoSuchKey => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Replaces the object of a key, and frees the segments of the previous one. Returns the response.
    pub(super) async fn replace_object(
        &self,
        context: &Context,
        address: &Address,
        mut stored: StoredMetadata,
        content: ObjectContent,
    ) -> Result<ResponseHead> {
        let previous_id = self.current_id(context, address).await?;
        let mut encoded = stored.encode()?;
        if encoded.overflow.is_some() && stored.id.is_none() {
            stored.id = Some(names::unique_id(self.clock().wall())?);
            encoded = stored.encode()?;
        }
        if let (Some(overflow), Some(write)) = (encoded.overflow, &stored.id) {
            let companion = self.ensure_companion(context, &address.bucket).await?;
            self.put_companion_object(context, &companion, &names::metadata(write), overflow).await?;
        }
        let name = names::object(address.key.as_str())?;
        let mut call = Call::object(Method::PUT, &address.bucket, &name);
        // A 404 can only mean that the container is missing.
        call.resource = ResourceKind::Bucket;
        call.headers = encoded.headers;
        match content {
            ObjectContent::Bytes(pieces) => {
                let mut md5 = Md5::new();
                pieces.iter().for_each(|piece| md5.update(piece));
                let md5: [u8; 16] = md5.finalize().into();
                call.headers.insert(ETAG, header_value(ETag::from_md5(&md5).as_str())?);
                call.payload = BufferedBody::from_buffers(pieces);
            }
            ObjectContent::Segments(segments) => {
                let companion = names::companion(&address.bucket);
                let manifest = self.write_manifest(context, &companion, &stored, segments).await?;
                call.query = Query::default().with("multipart-manifest", "put");
                call.payload = BufferedBody::from_buffers([manifest]);
            }
        }
        let sent = self.send_change(context, &address.bucket, &call).await;
        let head = sent.inspect_err(|e| {
            if e.reason() == Reason::NoSuchBucket {
                self.uncache_companion(&address.bucket);
            }
        })?;
        if let Some(previous_id) = previous_id.filter(|previous_id| Some(previous_id) != stored.id.as_ref()) {
            self.free_segments(context, &address.bucket, &previous_id).await;
        }
        Ok(head)
    }

    /// Deletes the object of a key, and frees its segments. A missing object is not an error.
    pub(super) async fn delete_object(&self, context: &Context, address: &Address) -> Result<()> {
        let previous_id = self.current_id(context, address).await?;
        let name = names::object(address.key.as_str())?;
        let call = Call::object(Method::DELETE, &address.bucket, &name);
        match self.send_change(context, &address.bucket, &call).await {
            Ok(_) => {}
            Err(e) if e.reason() == Reason::NoSuchKey => self.find_bucket(context, &address.bucket).await?,
            Err(e) => return Err(e),
        }
        if let Some(previous_id) = previous_id {
            self.free_segments(context, &address.bucket, &previous_id).await;
        }
        Ok(())
    }

    /// Frees the companion's data of a write that no key refers to any more. The replacement has succeeded already, so
    /// a failure is only logged: it leaves orphaned segments.
    pub(super) async fn free_segments(&self, context: &Context, bucket: &BucketName, write: &str) {
        let companion = names::companion(bucket);
        let retired = async {
            // If it was an upload whose completion was interrupted, it can no longer be completed.
            self.delete_all(context, &companion, [names::marker_name(write)]).await?;
            let lines = self.list_objects(context, &companion, &names::segment_prefix(write)).await?;
            self.expire_all(context, &companion, lines.into_iter().map(|line| line.name)).await
        };
        if let Err(e) = retired.await {
            tracing::warn!(error = %e, bucket = %bucket, write, "cannot free the segments of a replaced object");
        }
    }

    /// Lets objects of a companion expire after the grace period.
    async fn expire_all(
        &self,
        context: &Context,
        companion: &str,
        all: impl IntoIterator<Item = String>,
    ) -> Result<()> {
        if self.segment_grace_period < Duration::from_secs(1) {
            return self.delete_all(context, companion, all).await;
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-delete-after", self.segment_grace_period.as_secs().into());
        self.for_each_object(context, companion, Method::POST, &headers, all).await
    }

    /// Deletes objects of a companion. Missing objects are not an error.
    pub(super) async fn delete_all(
        &self,
        context: &Context,
        companion: &str,
        all: impl IntoIterator<Item = String>,
    ) -> Result<()> {
        self.for_each_object(context, companion, Method::DELETE, &HeaderMap::new(), all).await
    }

    /// Sends one request per object of a companion, concurrently.
    async fn for_each_object(
        &self,
        context: &Context,
        companion: &str,
        method: Method,
        headers: &HeaderMap,
        all: impl IntoIterator<Item = String>,
    ) -> Result<()> {
        let one = |name: String| {
            let method = method.clone();
            async move {
                let mut call = Call::in_container(method, ResourceKind::Object, companion, Some(&name));
                (call.headers, call.may_repeat) = (headers.clone(), true);
                match self.send_and_drain(context, &call).await {
                    Err(e) if e.reason() == Reason::NoSuchKey => Ok(()),
                    other => other.map(drop),
                }
            }
        };
        // All requests are sent even if one fails.
        let done: Vec<Result<()>> =
            futures::stream::iter(all).map(one).buffer_unordered(FREE_CONCURRENCY).collect().await;
        done.into_iter().collect()
    }

    /// Writes a small object into a companion.
    pub(super) async fn put_companion_object(
        &self,
        context: &Context,
        companion: &str,
        name: &str,
        bytes: Bytes,
    ) -> Result<()> {
        let mut call = Call::in_container(Method::PUT, ResourceKind::Bucket, companion, Some(name));
        let md5: [u8; 16] = Md5::digest(&bytes).into();
        call.headers.insert(ETAG, header_value(ETag::from_md5(&md5).as_str())?);
        call.payload = BufferedBody::from_buffers([bytes]);
        self.send_and_drain(context, &call).await.map(drop)
    }

    /// Builds the manifest of segments. With more segments than one manifest allows, writes second-level manifests.
    async fn write_manifest(
        &self,
        context: &Context,
        companion: &str,
        stored: &StoredMetadata,
        segments: Vec<Segment>,
    ) -> Result<Bytes> {
        if segments.len() <= MAX_MANIFEST_SEGMENTS {
            return Ok(Segment::manifest(companion, &segments));
        }
        if segments.len() > MAX_MANIFEST_SEGMENTS * MAX_MANIFEST_SEGMENTS {
            return Err(Error::new(
                Reason::EntityTooLarge,
                "the object needs more than a million segments; use larger segments",
            ));
        }
        let write = stored.id.as_deref().unwrap_or_default();
        let mut groups = Vec::new();
        for (n, group) in segments.chunks(MAX_MANIFEST_SEGMENTS).enumerate() {
            let name = format!("{}manifest-{n:04}", names::segment_prefix(write));
            let mut call = Call::in_container(Method::PUT, ResourceKind::Bucket, companion, Some(&name));
            call.query = Query::default().with("multipart-manifest", "put");
            call.payload = BufferedBody::from_buffers([Segment::manifest(companion, group)]);
            let head = self.send_and_drain(context, &call).await?;
            let etag = crate::remote::header_fields::etag(&head.headers)?.as_str().to_owned();
            groups.push(Segment { size: group.iter().map(|segment| segment.size).sum(), name, etag });
        }
        Ok(Segment::manifest(companion, &groups))
    }
}
