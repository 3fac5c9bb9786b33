//! Bytes on their way into segments: requests that are under way while their bytes come, one after the other, compared
//! with the MD5 that Swift answers of each.

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

/// A segment that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    /// In the companion.
    pub name: String,
    pub size: u64,
    /// As Swift answered it.
    pub etag: String,
}

impl Segment {
    /// What a static large object is made of:
    /// <https://docs.openstack.org/swift/latest/overview_large_objects.html#static-large-objects>. Swift compares each
    /// with what is there, and refuses the manifest where they differ.
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

/// Segments in the making. Dropping them deletes them.
pub(super) struct Segments {
    store: Arc<SwiftStore>,
    context: Context,
    bucket: BucketName,
    /// What their names begin with.
    prefix: String,
    /// The most bytes of one.
    most: u64,
    /// Bytes to come, where that was said.
    left: Option<u64>,
    done: Vec<Segment>,
    current: Option<Current>,
}

/// The segment that is under way.
struct Current {
    sending: Sending,
    name: String,
    /// Bytes that it takes still.
    room: u64,
    size: u64,
    /// `None` of the first one: then the hash of the whole is its own.
    md5: Option<Md5>,
}

impl Segments {
    /// None yet, of `length` bytes in all where that is known.
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

    /// Sends bytes. `before` is the MD5 of everything before them.
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
                // Only where a segment ends within these bytes.
                None if !bytes.is_empty() => before.update(&piece),
                None => {}
            }
            let size = piece.len() as u64;
            // A write that is given up here must find the segment under way when it is dropped.
            let current = self.current.insert(current);
            current.sending.write(piece).await?;
            (current.room, current.size) = (current.room - size, current.size + size);
            self.left = self.left.map(|left| left.saturating_sub(size));
        }
        Ok(())
    }

    /// Waits until all of them are there. `whole` is the MD5 of everything.
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

    /// Ends the segment that is under way.
    async fn end(&mut self, whole: &Md5) -> Result<()> {
        let Some(Current { sending, name, size, md5, .. }) = self.current.take() else { return Ok(()) };
        // It is there as soon as the request ends, answered or not.
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
                format!("the store took bytes with the MD5 {found} where {expected} was sent"),
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
        // What is broken off is not kept; but it may have been all just now.
        names.extend(self.current.take().map(|current| current.name));
        if names.is_empty() {
            return;
        }
        let (store, context) = (self.store.clone(), self.context.clone());
        let companion = super::names::companion(&self.bucket);
        tokio::spawn(async move {
            if let Err(e) = store.delete_all(&context, &companion, names).await {
                tracing::warn!(error = %e, "segments of a write that was given up are left in the store");
            }
        });
    }
}

/// Segments that are all there. Dropping them deletes them.
pub(super) struct Whole {
    segments: Segments,
}

impl Whole {
    /// The segments, which nothing deletes from here on: something is about to refer to them.
    pub fn keep(mut self) -> Vec<Segment> {
        std::mem::take(&mut self.segments.done)
    }
}
