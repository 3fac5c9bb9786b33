//! A layer that instruments a store: it forwards every request unchanged and records its timing in the store's live
//! statistics.
//!
//! It measures how long the caller waits, like the latency of Hou 2017 (section 3.3): from the call on, including
//! connection setup and retries in the leaf. Between two pieces of a body only the time from the poll to the piece
//! counts, so a slow reader or writer does not make the store look slow.
//! - A **read** is complete with its last byte. Its first byte is the response to the call.
//! - A **write** is the waiting for `stage`, each `write` and `commit`. Its first byte is the response to `commit`.
//! - A request that the **caller abandons**, by dropping a future, body or [`Staged`] or by cancelling, counts neither
//!   as a failure nor as a latency sample. A first byte already received does count.
//! - A body in a single buffer is complete with the response, even if it is not consumed.
//!
//! The layer copies nothing and adds no task. A request costs two clock reads and a few atomic additions; a body in
//! pieces costs one allocation, and two more clock reads a piece. `close` is not measured.

mod instrumented_io;
mod request_timer;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use instrumented_io::{InstrumentedWrite, instrument_body};
use request_timer::{Instruments, RequestTimer};
use tradewind_core::error::Result;
use tradewind_core::layer::Method;
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::store::{CopyPartRequest, CopyRequest, GetRequest, GetResponse, StageRequest};
use tradewind_core::{Address, Body, Clock, Context, ObjectStore, Staged};
use tradewind_model::store_statistics::{Operation, StoreStatistics};

/// The instrumentation layer. See the module documentation.
pub struct Instrumented {
    inner: Arc<dyn ObjectStore>,
    instruments: Arc<Instruments>,
}

/// Formats as the inner store, which it represents.
impl fmt::Debug for Instrumented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Instrumented {
    /// Instruments `inner`; times are those of `clock`.
    pub fn new(inner: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let instruments = Arc::new(Instruments { statistics: Arc::default(), clock });
        Arc::new(Self { inner, instruments })
    }

    /// The current time of the clock, as expected by the statistics.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.instruments.clock.now()
    }

    /// The live statistics of the store.
    #[must_use]
    pub fn statistics(&self) -> &Arc<StoreStatistics> {
        &self.instruments.statistics
    }

    fn start_request(&self, operation: Operation) -> RequestTimer {
        RequestTimer::start(&self.instruments, operation)
    }

    async fn measure<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let request = self.start_request(operation);
        let response = work.await;
        request.end_with_response(&response, |_| 0);
        response
    }

    async fn measure_copy(&self, work: impl Future<Output = Result<Committed>> + Send) -> Result<Committed> {
        let request = self.start_request(Operation::Copy);
        let response = work.await;
        request.end_with_response(&response, |committed| committed.size);
        response
    }

    async fn measure_stage(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<Box<dyn Staged>>> + Send,
    ) -> Result<Box<dyn Staged>> {
        let mut request = self.start_request(operation);
        let response = work.await;
        let wait_end = request.end_wait();
        match response {
            Ok(staged) => Ok(InstrumentedWrite::wrap(staged, request)),
            Err(error) => {
                request.fail(wait_end, &error);
                Err(error)
            }
        }
    }
}

/// The operation that a method is counted as.
fn operation(method: Method) -> Operation {
    match method {
        Method::Get => Operation::Get,
        Method::Head => Operation::Head,
        Method::Stage => Operation::Put,
        Method::StagePart => Operation::Part,
        Method::Delete => Operation::Delete,
        Method::Copy | Method::CopyPart => Operation::Copy,
        Method::SetTags | Method::SetClasses | Method::Redescribe | Method::RedescribeUpload => {
            Operation::Tag
        }
        Method::ListBuckets
        | Method::List
        | Method::ListVersions
        | Method::ObjectParts
        | Method::ListParts
        | Method::ListUploads => Operation::List,
        Method::CreateUpload | Method::CompleteUpload | Method::AbortUpload => Operation::Upload,
        Method::CreateBucket
        | Method::DeleteBucket
        | Method::HeadBucket
        | Method::Versioning
        | Method::SetVersioning => Operation::Bucket,
    }
}

#[async_trait]
impl ObjectStore for Instrumented {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        around: |layer, call, response| layer.measure(operation(call.method), response).await;
        capabilities, prewarm, min_rtt, object_clock, accepts, create_bucket, delete_bucket, head_bucket,
        list_buckets, versioning, set_versioning,
        head, delete, list, list_versions, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, list_parts, list_uploads,
        complete_upload, abort_upload, close,
    }

    async fn get(
        &self,
        context: &Context,
        address: &Address,
        request: GetRequest,
    ) -> Result<GetResponse<Body>> {
        let mut request_timer = self.start_request(Operation::Get);
        let response = self.inner.get(context, address, request).await;
        let wait_end = request_timer.end_wait();
        match response {
            Ok(found) => {
                request_timer.record_first_byte(wait_end, found.body.length(), &found.observation);
                Ok(GetResponse { body: instrument_body(found.body, wait_end, request_timer), ..found })
            }
            Err(error) => {
                request_timer.fail(wait_end, &error);
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
        self.measure_stage(Operation::Put, self.inner.stage(context, address, request)).await
    }

    async fn copy(&self, context: &Context, request: CopyRequest) -> Result<Committed> {
        self.measure_copy(self.inner.copy(context, request)).await
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
        self.measure_stage(Operation::Part, work).await
    }

    async fn copy_part(&self, context: &Context, request: CopyPartRequest) -> Result<Committed> {
        self.measure_copy(self.inner.copy_part(context, request)).await
    }
}
