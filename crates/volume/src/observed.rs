//! A layer that watches a store: every request feeds the store's live model, and passes through as it is.
//!
//! What is measured is how long the caller waits, as it does for the latency of Hou 2017 (section 3.3): from the call on,
//! with what the store's leaf takes to get a connection or to ask again. Between two pieces of an object it is
//! the time from asking for the next until it comes, so that a slow reader or writer does not make its store look slow.
//! - A **read** is done with its last byte. Its first byte is the answer to the call.
//! - A **write** is the waiting for `stage`, for each `write` and for `commit`; its first byte is the answer to `commit`.
//! - What the **caller lets go of**, by dropping a future, a body or a [`Staged`] or by cancelling, is given up: no failure, and
//!   no sample of how long it takes. A first byte that came counts.
//! - A body in one buffer has come with the answer, whatever becomes of it.
//!
//! Nothing is copied, no task is added; a request costs two looks at the clock and some atomic additions, a body in pieces
//! an allocation and two more looks for each piece. `close` is not watched.

mod carried;
mod request;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use carried::{Writing, reading};
use request::{Request, Watch};
use tradewind_core::error::Result;
use tradewind_core::listing::{ListPage, ListRequest, ObjectSummary};
use tradewind_core::metadata::Tags;
use tradewind_core::multipart::{
    CompleteUpload, CreateUpload, ListUploads, PartInfo, PartNumber, PartsPage, UploadId, UploadsPage,
};
use tradewind_core::object::Committed;
use tradewind_core::store::{
    BucketInfo, Capabilities, CopyPartRequest, CopyRequest, Deleted, Found, GetRequest, StageRequest,
};
use tradewind_core::{Address, Body, BucketName, Clock, Context, ObjectStore, Precondition, Staged};
use tradewind_model::store_model::{Operation, StoreModel};

/// See the module's head.
pub struct Observed {
    inner: Arc<dyn ObjectStore>,
    watch: Arc<Watch>,
}

/// As what lies below: it is the same store.
impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Observed {
    /// Watches `inner`, by this clock.
    pub fn new(inner: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let watch = Arc::new(Watch { model: Arc::default(), clock });
        Arc::new(Self { inner, watch })
    }

    /// The time, as the model is to be asked for.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.watch.clock.now()
    }

    /// What is known of the store.
    #[must_use]
    pub fn model(&self) -> &Arc<StoreModel> {
        &self.watch.model
    }

    fn begin(&self, operation: Operation) -> Request {
        Request::begin(&self.watch, operation)
    }

    async fn call<T>(&self, operation: Operation, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let request = self.begin(operation);
        let answer = work.await;
        request.end_as(&answer, |_| 0);
        answer
    }

    async fn copying(&self, work: impl Future<Output = Result<Committed>> + Send) -> Result<Committed> {
        let request = self.begin(Operation::Copy);
        let answer = work.await;
        request.end_as(&answer, |committed| committed.size);
        answer
    }

    async fn staging(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<Box<dyn Staged>>> + Send,
    ) -> Result<Box<dyn Staged>> {
        let mut request = self.begin(operation);
        let answer = work.await;
        let at = request.come();
        match answer {
            Ok(staged) => Ok(Writing::wrap(staged, request)),
            Err(error) => {
                request.failed(at, &error);
                Err(error)
            }
        }
    }
}

#[async_trait]
impl ObjectStore for Observed {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn expect_requests(&self, bucket: &BucketName, requests: usize) {
        self.inner.expect_requests(bucket, requests);
    }

    fn round_trip(&self, bucket: &BucketName) -> Option<Duration> {
        self.inner.round_trip(bucket)
    }

    async fn create_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.call(Operation::Bucket, self.inner.create_bucket(context, bucket)).await
    }

    async fn delete_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.call(Operation::Bucket, self.inner.delete_bucket(context, bucket)).await
    }

    async fn head_bucket(&self, context: &Context, bucket: &BucketName) -> Result<()> {
        self.call(Operation::Bucket, self.inner.head_bucket(context, bucket)).await
    }

    async fn list_buckets(&self, context: &Context) -> Result<Vec<BucketInfo>> {
        self.call(Operation::List, self.inner.list_buckets(context)).await
    }

    async fn head(&self, context: &Context, address: &Address, request: GetRequest) -> Result<Found<()>> {
        self.call(Operation::Head, self.inner.head(context, address, request)).await
    }

    async fn get(&self, context: &Context, address: &Address, request: GetRequest) -> Result<Found<Body>> {
        let mut watched = self.begin(Operation::Get);
        let answer = self.inner.get(context, address, request).await;
        let at = watched.come();
        match answer {
            Ok(found) => {
                watched.answered(at, found.body.length(), &found.observation);
                Ok(Found { body: reading(found.body, at, watched), ..found })
            }
            Err(error) => {
                watched.failed(at, &error);
                Err(error)
            }
        }
    }

    async fn stage(
        &self,
        context: &Context,
        address: &Address,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        self.staging(Operation::Put, self.inner.stage(context, address, request)).await
    }

    async fn delete(
        &self,
        context: &Context,
        address: &Address,
        precondition: Precondition,
    ) -> Result<Deleted> {
        self.call(Operation::Delete, self.inner.delete(context, address, precondition)).await
    }

    async fn list(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListRequest,
    ) -> Result<ListPage<ObjectSummary>> {
        self.call(Operation::List, self.inner.list(context, bucket, request)).await
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.copying(self.inner.copy(context, request)).await
    }

    async fn set_tags(&self, context: &Context, address: &Address, tags: Tags) -> Result<()> {
        self.call(Operation::Tag, self.inner.set_tags(context, address, tags)).await
    }

    async fn object_parts(
        &self,
        context: &Context,
        address: &Address,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<(Vec<PartInfo>, bool)> {
        self.call(Operation::List, self.inner.object_parts(context, address, after, limit)).await
    }

    async fn create_upload(
        &self,
        context: &Context,
        address: &Address,
        request: CreateUpload,
    ) -> Result<UploadId> {
        self.call(Operation::Upload, self.inner.create_upload(context, address, request)).await
    }

    async fn stage_part(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        number: PartNumber,
        request: StageRequest,
    ) -> Result<Box<dyn Staged>> {
        let work = self.inner.stage_part(context, address, upload, number, request);
        self.staging(Operation::Part, work).await
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        self.copying(self.inner.copy_part(context, request)).await
    }

    async fn list_parts(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        self.call(Operation::List, self.inner.list_parts(context, address, upload, after, limit)).await
    }

    async fn list_uploads(
        &self,
        context: &Context,
        bucket: &BucketName,
        request: &ListUploads,
    ) -> Result<UploadsPage> {
        self.call(Operation::List, self.inner.list_uploads(context, bucket, request)).await
    }

    async fn complete_upload(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        request: CompleteUpload,
    ) -> Result<Committed> {
        let work = self.inner.complete_upload(context, address, upload, request);
        self.call(Operation::Upload, work).await
    }

    async fn abort_upload(&self, context: &Context, address: &Address, upload: &UploadId) -> Result<()> {
        self.call(Operation::Upload, self.inner.abort_upload(context, address, upload)).await
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }
}
