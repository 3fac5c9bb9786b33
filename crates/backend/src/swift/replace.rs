//! Writing and deleting what a key names, and what becomes of the segments of what it named before.
//!
//! The order is the same everywhere: segments first, then the one request that changes what the key names, then what
//! nothing refers to any more. A break in between leaves segments that nobody needs; in any other order it would leave
//! an object without its bytes. Therefore nothing is ever deleted with `multipart-manifest=delete`, which takes the
//! segments first.
//!
//! Whoever replaces an object asks before what it is and frees its segments after. Two at once may find the same old
//! object: the segments of the one that was visible in between are left. They cost room, and nothing else.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::header::ETAG;
use http::{HeaderMap, HeaderValue, Method};
use md5::{Digest as _, Md5};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Address, BucketName, Context, ETag, Observation};

use super::headers::Kept;
use super::segments::Segment;
use super::{MOST_EMPTY_BYTES, SwiftStore, names};
use crate::remote::client::{Call, Subject};
use crate::remote::fields::value;
use crate::remote::payload::Held;
use crate::remote::query::Query;

/// That a bucket has no companion is believed so long: until then a write of somebody else's may leave its segments.
const ABSENT_FOR: Duration = Duration::from_secs(60);
/// So many requests at a time free segments.
const AT_A_TIME: usize = 8;
/// The most segments of one manifest: the default of Swift's `max_manifest_segments`.
const MOST_SEGMENTS: usize = 1000;

/// Whether a bucket has a companion.
#[derive(Debug, Clone, Copy)]
pub(super) enum Companions {
    There,
    /// Not, at this time by the store's clock.
    Absent(Duration),
}

/// What a key is to name.
pub(super) enum Content {
    Bytes(Vec<Bytes>),
    Segments(Vec<Segment>),
}

impl SwiftStore {
    /// Makes the companion of a bucket that is there, unless that was done.
    pub(super) async fn need_companion(&self, context: &Context, bucket: &BucketName) -> Result<String> {
        let companion = names::companion(bucket);
        if !matches!(self.companions.lock().get(bucket), Some(Companions::There)) {
            self.find_bucket(context, bucket).await?;
            let call = Call::within(Method::PUT, Subject::Bucket, &companion, None);
            self.send_and_drain(context, &call).await?;
            self.companions.lock().insert(bucket.clone(), Companions::There);
        }
        Ok(companion)
    }

    pub(super) fn forget_companion(&self, bucket: &BucketName) {
        self.companions.lock().remove(bucket);
    }

    async fn has_companion(&self, context: &Context, bucket: &BucketName) -> Result<bool> {
        match self.companions.lock().get(bucket) {
            Some(Companions::There) => return Ok(true),
            Some(Companions::Absent(at)) if self.clock().now() < *at + ABSENT_FOR => return Ok(false),
            _ => {}
        }
        let companion = names::companion(bucket);
        let call = Call::within(Method::HEAD, Subject::Bucket, &companion, None);
        let found = match self.send_and_drain(context, &call).await {
            Ok(_) => Companions::There,
            Err(e) if e.reason() == Reason::NoSuchBucket => Companions::Absent(self.clock().now()),
            Err(e) => return Err(e),
        };
        self.companions.lock().insert(bucket.clone(), found);
        Ok(matches!(found, Companions::There))
    }

    /// The name under which the companion holds something of what a key names now.
    pub(super) async fn held_by(&self, context: &Context, address: &Address) -> Result<Option<String>> {
        if !self.has_companion(context, &address.bucket).await? {
            return Ok(None);
        }
        let name = names::object(address.key.as_str())?;
        let mut call = Call::object(Method::HEAD, &address.bucket, &name);
        call.headers.insert("x-newest", HeaderValue::from_static("true"));
        match self.send_and_drain(context, &call).await {
            Ok(head) => Ok(Kept::write_of(&head.headers)),
            Err(e) if e.reason() == Reason::NoSuchKey => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes the key name something else; answers the headers.
    pub(super) async fn put(
        &self,
        context: &Context,
        address: &Address,
        mut kept: Kept,
        content: Content,
    ) -> Result<(HeaderMap, Observation)> {
        let old = self.held_by(context, address).await?;
        let mut written = kept.write()?;
        if written.aside.is_some() && kept.write.is_none() {
            kept.write = Some(names::unique(self.clock().wall())?);
            written = kept.write()?;
        }
        if let (Some(aside), Some(write)) = (written.aside, &kept.write) {
            let companion = self.need_companion(context, &address.bucket).await?;
            self.put_aside(context, &companion, &names::metadata(write), aside).await?;
        }
        let name = names::object(address.key.as_str())?;
        let mut call = Call::object(Method::PUT, &address.bucket, &name);
        // There is nothing but the container that could be missing.
        call.subject = Subject::Bucket;
        call.headers = written.headers;
        match content {
            Content::Bytes(pieces) => {
                let mut md5 = Md5::new();
                pieces.iter().for_each(|piece| md5.update(piece));
                let md5: [u8; 16] = md5.finalize().into();
                call.headers.insert(ETAG, value(ETag::from_md5(&md5).as_str())?);
                call.payload = Held::of(pieces);
            }
            Content::Segments(segments) => {
                let companion = names::companion(&address.bucket);
                let manifest = self.manifest(context, &companion, &kept, segments).await?;
                call.query = Query::default().with("multipart-manifest", "put");
                call.payload = Held::of([manifest]);
            }
        }
        let sent = self.send(context, &call).await;
        let mut answer = sent.inspect_err(|e| {
            if e.reason() == Reason::NoSuchBucket {
                self.forget_companion(&address.bucket);
            }
        })?;
        let (headers, observation) = (std::mem::take(&mut answer.head.headers), answer.observation.clone());
        answer.collect(MOST_EMPTY_BYTES).await?;
        if let Some(old) = old.filter(|old| Some(old) != kept.write.as_ref()) {
            self.retire(context, &address.bucket, &old).await;
        }
        Ok((headers, observation))
    }

    /// Deletes what a key names. What is not there is none of an error.
    pub(super) async fn remove(&self, context: &Context, address: &Address) -> Result<()> {
        let old = self.held_by(context, address).await?;
        let name = names::object(address.key.as_str())?;
        match self.send_and_drain(context, &Call::object(Method::DELETE, &address.bucket, &name)).await {
            Ok(_) => {}
            Err(e) if e.reason() == Reason::NoSuchKey => self.find_bucket(context, &address.bucket).await?,
            Err(e) => return Err(e),
        }
        if let Some(old) = old {
            self.retire(context, &address.bucket, &old).await;
        }
        Ok(())
    }

    /// Frees what the companion holds of a write that no key names any more. The write that ended it is done: where
    /// this fails, room is lost.
    pub(super) async fn retire(&self, context: &Context, bucket: &BucketName, write: &str) {
        let companion = names::companion(bucket);
        let retired = async {
            // Were it an upload whose completion was broken off, nobody could complete it again.
            self.delete_all(context, &companion, [names::upload(write)]).await?;
            let lines = self.all_lines(context, &companion, &names::data(write)).await?;
            self.expire_all(context, &companion, lines.into_iter().map(|line| line.name)).await
        };
        if let Err(e) = retired.await {
            tracing::warn!(error = %e, bucket = %bucket, write, "segments of what was replaced are left in the store");
        }
    }

    /// Lets objects of a companion go after the time of grace.
    async fn expire_all(
        &self,
        context: &Context,
        companion: &str,
        all: impl IntoIterator<Item = String>,
    ) -> Result<()> {
        if self.grace < Duration::from_secs(1) {
            return self.delete_all(context, companion, all).await;
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-delete-after", self.grace.as_secs().into());
        self.each(context, companion, Method::POST, &headers, all).await
    }

    /// Deletes objects of a companion. Those that are not there are deleted.
    pub(super) async fn delete_all(
        &self,
        context: &Context,
        companion: &str,
        all: impl IntoIterator<Item = String>,
    ) -> Result<()> {
        self.each(context, companion, Method::DELETE, &HeaderMap::new(), all).await
    }

    async fn each(
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
                let mut call = Call::within(method, Subject::Object, companion, Some(&name));
                (call.headers, call.may_repeat) = (headers.clone(), true);
                match self.send_and_drain(context, &call).await {
                    Err(e) if e.reason() == Reason::NoSuchKey => Ok(()),
                    other => other.map(drop),
                }
            }
        };
        // One that fails does not keep the others.
        let done: Vec<Result<()>> =
            futures::stream::iter(all).map(one).buffer_unordered(AT_A_TIME).collect().await;
        done.into_iter().collect()
    }

    /// Writes a small object into a companion.
    pub(super) async fn put_aside(
        &self,
        context: &Context,
        companion: &str,
        name: &str,
        bytes: Bytes,
    ) -> Result<()> {
        let mut call = Call::within(Method::PUT, Subject::Bucket, companion, Some(name));
        let md5: [u8; 16] = Md5::digest(&bytes).into();
        call.headers.insert(ETAG, value(ETag::from_md5(&md5).as_str())?);
        call.payload = Held::of([bytes]);
        self.send_and_drain(context, &call).await.map(drop)
    }

    /// The manifest of segments; of more than one holds, those that it is made of are written.
    async fn manifest(
        &self,
        context: &Context,
        companion: &str,
        kept: &Kept,
        segments: Vec<Segment>,
    ) -> Result<Bytes> {
        if segments.len() <= MOST_SEGMENTS {
            return Ok(Segment::manifest(companion, &segments));
        }
        if segments.len() > MOST_SEGMENTS * MOST_SEGMENTS {
            return Err(Error::new(
                Reason::EntityTooLarge,
                "Swift takes no object of more than a million segments",
            ));
        }
        let write = kept.write.as_deref().unwrap_or_default();
        let mut groups = Vec::new();
        for (n, group) in segments.chunks(MOST_SEGMENTS).enumerate() {
            let name = format!("{}manifest-{n:04}", names::data(write));
            let mut call = Call::within(Method::PUT, Subject::Bucket, companion, Some(&name));
            call.query = Query::default().with("multipart-manifest", "put");
            call.payload = Held::of([Segment::manifest(companion, group)]);
            let head = self.send_and_drain(context, &call).await?;
            let etag = crate::remote::fields::etag(&head.headers)?.as_str().to_owned();
            groups.push(Segment { size: group.iter().map(|segment| segment.size).sum(), name, etag });
        }
        Ok(Segment::manifest(companion, &groups))
    }
}
