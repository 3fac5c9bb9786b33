//! Writes bytes into segments, one after another. Each segment is a streamed request, verified against the MD5 that
//! Swift returns.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use md5::{Digest as _, Md5};
use serde_json::json;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{BucketName, Context, ETag};

use super::{MOST_EMPTY_BYTES, SwiftStore};
use crate::remote::client::{Call, Subject};
use crate::remote::fields;
use crate::remote::sending::Sending;

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
pub(super) struct Segments {
    store: Arc<SwiftStore>,
    context: Context,
    bucket: BucketName,
    /// The prefix of their names.
    prefix: String,
    /// Maximum size of a segment, in bytes.
    most: u64,
    /// Bytes not yet written, if the total is known.
    left: Option<u64>,
    done: Vec<Segment>,
    current: Option<Current>,
}

/// The segment that is being written.
struct Current {
    sending: Sending,
    name: String,
    /// Bytes that still fit into it.
    room: u64,
    size: u64,
    /// `None` for the first segment, whose MD5 is that of all bytes so far.
    md5: Option<Md5>,
}

impl Segments {
    /// Creates a writer of segments of at most `most` bytes. `length` is the total, if known.
    pub fn new(
        store: Arc<SwiftStore>,
        context: &Context,
        bucket: &BucketName,
        prefix: String,
        most: u64,
        length: Option<u64>,
    ) -> Self {
        let (context, bucket) = (context.clone(), bucket.clone());
        Self { store, context, bucket, prefix, most, left: length, done: Vec::new(), current: None }
    }

    /// Writes bytes. `before` is the MD5 of all earlier bytes.
    pub async fn write(&mut self, mut bytes: Bytes, before: &Md5) -> Result<()> {
        let mut before = before.clone();
        while !bytes.is_empty() {
            if self.current.as_ref().is_some_and(|current| current.room == 0) {
                self.end(&before).await?;
            }
            let mut current = match self.current.take() {
                Some(current) => current,
                None => self.begin().await?,
            };
            let fits = usize::try_from(current.room).unwrap_or(usize::MAX).min(bytes.len());
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
            current.sending.write(piece).await?;
            (current.room, current.size) = (current.room - size, current.size + size);
            self.left = self.left.map(|left| left.saturating_sub(size));
        }
        Ok(())
    }

    /// Waits until all segments are stored. `whole` is the MD5 of all bytes.
    pub async fn finish(mut self, whole: &Md5) -> Result<Whole> {
        self.end(whole).await?;
        Ok(Whole { segments: self })
    }

    async fn begin(&mut self) -> Result<Current> {
        let companion = self.store.need_companion(&self.context, &self.bucket).await?;
        let name = format!("{}{:06}", self.prefix, self.done.len());
        let length = self.left.map(|left| left.min(self.most));
        let call = Call::within(Method::PUT, Subject::Bucket, &companion, Some(&name));
        let sending = self.store.begin(&self.context, call, length).await?;
        let md5 = (!self.done.is_empty()).then(Md5::new);
        Ok(Current { sending, name, room: length.unwrap_or(self.most), size: 0, md5 })
    }

    /// Finishes the current segment and verifies its MD5.
    async fn end(&mut self, whole: &Md5) -> Result<()> {
        let Some(Current { sending, name, size, md5, .. }) = self.current.take() else { return Ok(()) };
        // It may be stored as soon as the request ends, even if the response is lost.
        self.done.push(Segment { name, size, etag: String::new() });
        let mut answer = sending.finish().await.inspect_err(|e| {
            if e.reason() == Reason::NoSuchBucket {
                self.store.forget_companion(&self.bucket);
            }
        })?;
        let headers = std::mem::take(&mut answer.head.headers);
        answer.collect(MOST_EMPTY_BYTES).await?;
        let expected = ETag::from_md5(&md5.unwrap_or_else(|| whole.clone()).finalize().into());
        let found = fields::etag(&headers)?;
        if found != expected {
            return Err(Error::new(
                Reason::BadDigest,
                format!("checksum mismatch: the store received MD5 {found}, {expected} was sent"),
            ));
        }
        if let Some(segment) = self.done.last_mut() {
            segment.etag = expected.as_str().to_owned();
        }
        Ok(())
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        let mut names: Vec<String> = self.done.drain(..).map(|segment| segment.name).collect();
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
pub(super) struct Whole {
    segments: Segments,
}

impl Whole {
    /// Takes the segments, so that they are no longer deleted: a manifest is about to refer to them.
    pub fn keep(mut self) -> Vec<Segment> {
        std::mem::take(&mut self.segments.done)
    }
}
