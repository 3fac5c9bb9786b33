//! The smallest real layer: it forwards every call, and copies bodies and writes into buffers
//! carved out of the request's window, or passes them unchanged if there is no memory. Stacked, it
//! tests that a store keeps its guarantees under layers, and that layers degrade instead of waiting. It records the
//! highest concurrency hint that it received.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;

use crate::body::Body;
use crate::budget::Window;
use crate::context::Context;
use crate::error::Result;
use crate::multipart::{PartNumber, UploadId};
use crate::name::{Address, BucketName};
use crate::object::Committed;
use crate::object::Expected;
use crate::observation::Observation;
use crate::store::{GetRequest, GetResponse, ObjectStore, StageRequest, Staged};

/// See the module's head.
#[derive(Debug)]
pub struct Passthrough<S: ?Sized> {
    inner: Arc<S>,
    max_hint: AtomicUsize,
}

impl<S: ObjectStore + ?Sized> Passthrough<S> {
    /// A layer over `inner`.
    pub fn new(inner: Arc<S>) -> Arc<Self> {
        Arc::new(Self { inner, max_hint: AtomicUsize::new(0) })
    }

    /// The highest concurrency passed to [`ObjectStore::prewarm`].
    pub fn max_prewarm_hint(&self) -> usize {
        self.max_hint.load(Ordering::Relaxed)
    }
}

/// Stacks `layers` layers on `inner`.
pub fn stack_layers(inner: Arc<dyn ObjectStore>, layers: usize) -> Arc<dyn ObjectStore> {
    (0..layers).fold(inner, |below, _| Passthrough::new(below))
}

/// Copies the bytes into memory of the window if it has any left, else returns them unchanged.
fn copy_into_window(window: &Arc<Window>, bytes: Bytes) -> Bytes {
    match window.try_reserve(bytes.len()) {
        Some(reservation) => reservation.attach(bytes.to_vec()),
        None => bytes,
    }
}

struct PassingStaged {
    inner: Box<dyn Staged>,
    window: Arc<Window>,
}

impl PassingStaged {
    fn wrap(inner: Box<dyn Staged>, context: &Context) -> Box<dyn Staged> {
        Box::new(Self { inner, window: context.window.clone() })
    }
}

#[async_trait]
impl Staged for PassingStaged {
    async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.inner.write(copy_into_window(&self.window, bytes)).await
    }

    async fn commit(self: Box<Self>, expected: Expected) -> Result<(Committed, Observation)> {
        self.inner.commit(expected).await
    }
}

#[async_trait]
impl<S: ObjectStore + ?Sized> ObjectStore for Passthrough<S> {
    crate::forward_methods! {
        to: |layer| &layer.inner;
        capabilities, min_rtt, object_clock, accepts, create_bucket, delete_bucket, head_bucket, list_buckets,
        versioning, set_versioning, head,
        delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, copy_part, list_parts,
        list_uploads, complete_upload, abort_upload, close,
    }

    fn prewarm(&self, bucket: &BucketName, concurrency: usize) {
        self.max_hint.fetch_max(concurrency, Ordering::Relaxed);
        self.inner.prewarm(bucket, concurrency);
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let found = self.inner.get(context, address, request).await?;
        let window = context.window.clone();
        let length = found.body.length();
        let body = found.body.map(move |piece| piece.map(|bytes| copy_into_window(&window, bytes)));
        Ok(GetResponse {
            info: found.info,
            span: found.span,
            body: Body::from_stream(length, body),
            observation: found.observation,
        })
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        Ok(PassingStaged::wrap(self.inner.stage(context, address, request).await?, context))
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let staged = self.inner.stage_part(context, address, upload, number, request).await?;
        Ok(PassingStaged::wrap(staged, context))
    }
}
