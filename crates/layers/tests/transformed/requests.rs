//! Requests to the store below: what they declare, when an object is replaced between them, and the memory that their
//! responses occupy.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tradewind_core::error::Result;
use tradewind_core::multipart::{MIN_PART_BYTES, PartNumber, UploadId};
use tradewind_core::object::Expected;
use tradewind_core::store::{GetRequest, GetResponse, ObjectStore, Select, StageRequest};
use tradewind_core::testing::{context, pattern, write_all};
use tradewind_core::{Address, Body, Context, ETag, Identity, Staged, Timestamp};

use super::support::{
    Desk, ENCRYPT, POLICIES, address, compressible, keyring, memory, put, read, segments, stored_bytes,
};
use super::upload;

/// A store that records the sizes declared to it, runs `hook` before the next GET, and counts bodies in the window of
/// the request.
struct Probe {
    inner: Arc<dyn ObjectStore>,
    declared: Mutex<Vec<Option<u64>>>,
    hook: Mutex<Option<BoxFuture<'static, ()>>>,
}

impl Probe {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: memory(), declared: Mutex::default(), hook: Mutex::default() })
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Probe {
    tradewind_core::forward_methods! {
        to: |probe| &probe.inner;
        capabilities, prewarm, min_rtt, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, delete, list, list_versions, copy, set_tags, set_classes, object_parts, create_upload,
        copy_part, list_parts, list_uploads, complete_upload, abort_upload, close,
    }

    async fn get(&self, context: &Context, key: &Address, request: GetRequest) -> Result<GetResponse<Body>> {
        let hook = self.hook.lock().take();
        if let Some(hook) = hook {
            hook.await;
        }
        let found = self.inner.get(context, key, request).await?;
        let (length, bytes) = (found.body.length(), found.body.collect().await?);
        let counted = match context.window.try_reserve(bytes.len()) {
            Some(reservation) => reservation.attach(bytes),
            None => bytes,
        };
        let body = Body::from_stream(length, futures::stream::iter([Ok(counted)]));
        Ok(GetResponse { info: found.info, span: found.span, body, observation: found.observation })
    }

    async fn stage(
        &self,
        context: &Context,
        key: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.declared.lock().push(request.size);
        self.inner.stage(context, key, request).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        key: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.declared.lock().push(request.size);
        self.inner.stage_part(context, key, upload, number, request).await
    }
}

#[tokio::test]
async fn part_of_an_object_that_is_overwritten_is_read_again() {
    let below = Probe::new();
    let desk = Desk::with_store(below.clone(), POLICIES[0], keyring(&[])).await;
    let size = usize::try_from(MIN_PART_BYTES).unwrap();
    upload(&*desk.layered, &[pattern(size, 1)], None).await;
    // The last part of it is a copy that shrinks.
    assert!(segments(&*below, "k").await.is_some());
    put(&*desk.layered, "k", pattern(size, 1)).await;
    assert!(segments(&*below, "k").await.is_none());
    let layered = desk.layered.clone();
    let overwrite = async move {
        upload(&*layered, &[compressible(size)], None).await;
    };
    *below.hook.lock() = Some(Box::pin(overwrite));
    let part = GetRequest { select: Select::Part(PartNumber::new(1).unwrap()), ..GetRequest::default() };
    let found = desk.layered.get(&context(), &address("k"), part).await;
    // It has no part 1 any more.
    assert_eq!(found.err().map(|error| error.reason()), Some(tradewind_core::Reason::InvalidRange));
    let part = GetRequest { select: Select::Part(PartNumber::new(2).unwrap()), ..GetRequest::default() };
    let found = desk.layered.get(&context(), &address("k"), part).await.unwrap();
    assert!(found.body.collect().await.unwrap() == compressible(size));
}

#[tokio::test]
async fn stored_size_is_declared_if_it_is_known() {
    for size in [0, 1, 65_535, 65_536, 65_537, 200_000] {
        for policy in POLICIES {
            // Short objects are not compressed.
            let is_known = policy == ENCRYPT || size < 4096;
            let below = Probe::new();
            let desk = Desk::with_store(below.clone(), policy, keyring(&["main"])).await;
            let request = StageRequest { size: Some(size as u64), ..StageRequest::default() };
            let mut staged = desk.layered.stage(&context(), &address("k"), request).await.unwrap();
            write_all(&mut *staged, compressible(size)).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
            assert!(read(&*desk.layered, "k").await == compressible(size));
            if segments(&*below, "k").await.is_none() {
                continue;
            }
            let stored = stored_bytes(&*below.inner, "k").await.len() as u64;
            assert_eq!(*below.declared.lock(), [is_known.then_some(stored)], "{size} bytes, {policy:?}");
        }
    }
}

#[tokio::test]
async fn received_bytes_are_counted_while_they_are_decoded() {
    let size = 500_000;
    for policy in POLICIES {
        let below = Probe::new();
        let desk = Desk::with_store(below.clone(), policy, keyring(&["main"])).await;
        put(&*desk.layered, "k", compressible(size)).await;
        let stored = stored_bytes(&*below.inner, "k").await.len();
        let context = context();
        let found = desk.layered.get(&context, &address("k"), GetRequest::default()).await.unwrap();
        let mut body = found.body;
        let first = body.next().await.unwrap().unwrap();
        let counted = || context.window.size() - context.window.left();
        assert_eq!(counted(), stored + first.len(), "{policy:?}");
        drop((first, body));
        assert_eq!(counted(), 0);
    }
}

/// A moved object keeps its entity tag and its time, also if the layer would report others.
#[tokio::test]
async fn identity_of_a_moved_object_stays() {
    let identity = Identity { etag: ETag::from_tag("12-tw"), modified: Timestamp::from_millis(77_000) };
    let desk = Desk::new(ENCRYPT).await;
    for store in desk.both() {
        let request = StageRequest { identity: Some(identity.clone()), ..StageRequest::default() };
        let mut staged = store.stage(&context(), &address("k"), request).await.unwrap();
        write_all(&mut *staged, Bytes::from_static(b"bytes")).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
        let found = store.head(&context(), &address("k"), GetRequest::default()).await.unwrap();
        assert_eq!(found.info.identity(), identity);
    }
}
