//! Writes bytes into segments, one after another. Each segment is a streamed request, verified against the MD5 that
//! Swift returns.

use std::sync::Arc;

use bytes::Bytes;
use http::header::ETAG;
use http::{HeaderValue, Method};
use md5::{Digest as _, Md5};
use serde_json::json;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{BucketName, Context, ETag};

use super::SwiftStore;
use crate::remote::client::{Call, ResourceKind};
use crate::remote::header_fields;
use crate::remote::streaming_request::StreamingRequest;

/// A stored segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// Its name in the companion.
    pub name: String,
    pub size: u64,
    /// The ETag that Swift returned.
    pub etag: String,
}

impl Segment {
    /// Builds the manifest of a static large object:
    /// <https://docs.openstack.org/swift/latest/overview_large_objects.html#static-large-objects>. Swift verifies each
    /// entry against the stored segment, and rejects the manifest if one differs.
    pub fn manifest(companion: &str, segments: &[Self]) -> Bytes {
        let entry = |segment: &Self| {
            json!({
                "path": format!("/{companion}/{}", segment.name),
                "etag": segment.etag,
                "size_bytes": segment.size,
            })
        };
        Bytes::from(serde_json::Value::from_iter(segments.iter().map(entry)).to_string())
    }
}

/// A writer of segments. Dropping it deletes them in the background.
pub(super) struct SegmentWriter {
    store: Arc<SwiftStore>,
    context: Context,
    bucket: BucketName,
    /// The prefix of their names.
    prefix: String,
    /// Maximum size of a segment, in bytes.
    max_segment_bytes: u64,
    /// Bytes not yet written, if the total is known.
    remaining_bytes: Option<u64>,
    completed: Vec<Segment>,
    current: Option<CurrentSegment>,
}

/// The segment that is being written.
struct CurrentSegment {
    request: StreamingRequest,
    name: String,
    /// Bytes that still fit into it.
    remaining_bytes: u64,
    size: u64,
    /// `None` for the first segment, whose MD5 is that of all bytes so far.
    md5: Option<Md5>,
}

impl SegmentWriter {
    /// Creates a writer of segments of at most `max_segment_bytes` bytes. `length` is the total, if known.
    pub fn new(
        store: Arc<SwiftStore>,
        context: &Context,
        bucket: &BucketName,
        prefix: String,
        max_segment_bytes: u64,
        length: Option<u64>,
    ) -> Self {
        let (context, bucket) = (context.clone(), bucket.clone());
        Self {
            store,
            context,
            bucket,
            prefix,
            max_segment_bytes,
            remaining_bytes: length,
            completed: Vec::new(),
            current: None,
        }
    }

    /// Writes bytes. `before` is the MD5 of all earlier bytes.
    pub async fn write(&mut self, mut bytes: Bytes, before: &Md5) -> Result<()> {
        let mut before = before.clone();
        while !bytes.is_empty() {
            if self.current.as_ref().is_some_and(|current| current.remaining_bytes == 0) {
                self.finish_segment(&before).await?;
            }
            let mut current = match self.current.take() {
                Some(current) => current,
                None => self.start_segment().await?,
            };
            let fits = usize::try_from(current.remaining_bytes).unwrap_or(usize::MAX).min(bytes.len());
            let piece = bytes.split_to(fits);
            match &mut current.md5 {
                Some(md5) => md5.update(&piece),
                // Needed only if a segment ends within these bytes.
                None if !bytes.is_empty() => before.update(&piece),
                None => {}
            }
            let size = piece.len() as u64;
            // If this future is cancelled here, dropping the writer must find the current segment.
            let current = self.current.insert(current);
            current.request.write(piece).await?;
            (current.remaining_bytes, current.size) = (current.remaining_bytes - size, current.size + size);
            self.remaining_bytes = self.remaining_bytes.map(|left| left.saturating_sub(size));
        }
        Ok(())
    }

    /// Waits until all segments are stored. `whole` is the MD5 of all bytes.
    pub async fn finish(mut self, whole: &Md5) -> Result<CompleteSegments> {
        self.finish_segment(whole).await?;
        Ok(CompleteSegments { segments: self })
    }

    async fn start_segment(&mut self) -> Result<CurrentSegment> {
        let companion = self.store.ensure_companion(&self.context, &self.bucket).await?;
        let name = format!("{}{:06}", self.prefix, self.completed.len());
        let length = self.remaining_bytes.map(|left| left.min(self.max_segment_bytes));
        let call = Call::in_container(Method::PUT, ResourceKind::Bucket, &companion, Some(&name));
        let request = self.store.start_streaming(&self.context, call, length).await?;
        let md5 = (!self.completed.is_empty()).then(Md5::new);
        Ok(CurrentSegment {
            request,
            name,
            remaining_bytes: length.unwrap_or(self.max_segment_bytes),
            size: 0,
            md5,
        })
    }

    /// Finishes the current segment and verifies its MD5.
    async fn finish_segment(&mut self, whole: &Md5) -> Result<()> {
        let Some(CurrentSegment { request, name, size, md5, .. }) = self.current.take() else {
            return Ok(());
        };
        // It may be stored as soon as the request ends, even if the response is lost.
        self.completed.push(Segment { name, size, etag: String::new() });
        let response = request.finish().await.inspect_err(|e| {
            if e.reason() == Reason::NoSuchBucket {
                self.store.uncache_companion(&self.bucket);
            }
        })?;
        let head = response.drain().await?;
        let expected = ETag::from_md5(&md5.unwrap_or_else(|| whole.clone()).finalize().into());
        let found = match (head.headers.contains_key(ETAG), self.completed.last()) {
            // No other client writes this segment.
            (false, Some(Segment { name, .. })) => {
                self.store.find_segment_etag(&self.context, &self.bucket, name).await?
            }
            _ => header_fields::etag(&head.headers)?,
        };
        if found != expected {
            return Err(Error::new(
                Reason::BadDigest,
                format!("checksum mismatch: the store received MD5 {found}, {expected} was sent"),
            ));
        }
        if let Some(segment) = self.completed.last_mut() {
            segment.etag = expected.as_str().to_owned();
        }
        Ok(())
    }
}

impl SwiftStore {
    /// The ETag of a stored segment, according to its HEAD.
    ///
    /// # Errors
    /// [`Io`](Reason::Io) if it is missing, although it was acknowledged.
    async fn find_segment_etag(&self, context: &Context, bucket: &BucketName, name: &str) -> Result<ETag> {
        let companion = super::names::companion(bucket);
        let mut call = Call::in_container(Method::HEAD, ResourceKind::Object, &companion, Some(name));
        // A replica may not have it yet.
        call.headers.insert("x-newest", HeaderValue::from_static("true"));
        match self.send_and_drain(context, &call).await {
            Ok(head) => header_fields::etag(&head.headers),
            Err(e) if e.reason() == Reason::NoSuchKey => {
                let why = "the store's response to a segment has no ETag, and the segment is missing; retry";
                Err(Error::with_source(Reason::Io, why, e))
            }
            Err(e) => Err(e),
        }
    }
}

impl Drop for SegmentWriter {
    fn drop(&mut self) {
        let mut names: Vec<String> = self.completed.drain(..).map(|segment| segment.name).collect();
        // Swift discards an incomplete segment, but the current one may just have become complete.
        names.extend(self.current.take().map(|current| current.name));
        if names.is_empty() {
            return;
        }
        let (store, context) = (self.store.clone(), self.context.clone());
        let companion = super::names::companion(&self.bucket);
        tokio::spawn(async move {
            if let Err(e) = store.delete_all(&context, &companion, names).await {
                tracing::warn!(error = %e, "cannot delete the segments of an abandoned write");
            }
        });
    }
}

/// A complete set of stored segments. Dropping it deletes them.
pub(super) struct CompleteSegments {
    segments: SegmentWriter,
}

impl CompleteSegments {
    /// Takes the segments, so that they are no longer deleted: a manifest is about to refer to them.
    pub fn into_segments(mut self) -> Vec<Segment> {
        std::mem::take(&mut self.segments.completed)
    }
}
