//! A layer over a service that fails requests soon once the service no longer responds: a stopped process accepts
//! connections and never answers, a vanished host does neither, and a resolver may hang.
//!
//! A request that waits says nothing by itself: a listing may take long, and connections may all be busy with large bodies.
//! So the layer asks. If nothing was received from the service for [`MAX_SILENCE`] while a request waits, one of the waiting
//! requests sends a probe, the HEAD of a bucket. Any response is a sign of life, also an error of the service. Without one
//! within [`MAX_PROBE_TIME`], the service is unresponsive: reads that wait fail with [`Io`](Reason::Io), which clients may
//! retry. Until bytes arrive, new requests fail at once, except for one probe per [`PROBE_INTERVAL`].
//!
//! A change that was sent is never failed: its outcome would be unknown. A change that begins while the service is
//! unresponsive is rejected before anything is sent.

mod signs_of_life;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::layer::{Call, Method};
use tradewind_core::traffic::Traffic;
use tradewind_core::{BucketName, Clock, Context, ObjectStore};

use signs_of_life::SignsOfLife;

/// The time without a sign of life after which a waiting request causes a probe.
pub const MAX_SILENCE: Duration = Duration::from_secs(2);
/// The time after which a probe without a response has failed. With the silence before it, and the second for which layers
/// above wait for other things, a read fails within 5 s.
pub const MAX_PROBE_TIME: Duration = Duration::from_millis(1500);
/// The minimum interval between the end of a failed probe and the next one.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The layer. See the module documentation.
pub struct Responsive {
    inner: Arc<dyn ObjectStore>,
    signs: SignsOfLife,
    /// Held by the request that probes.
    probing: tokio::sync::Mutex<()>,
    /// The bucket of the last request that named one.
    last_bucket: Mutex<Option<BucketName>>,
    clock: Arc<dyn Clock>,
}

/// The behaviour of a request that needs the result of a probe while another request probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OtherProbe {
    /// It waits for the result.
    Wait,
    /// It fails: the service was unresponsive before.
    Fail,
}

impl Responsive {
    /// Watches `inner`, the leaf of a service whose connections `traffic` counts. Times are those of `clock`.
    pub fn new(inner: Arc<dyn ObjectStore>, traffic: Arc<Traffic>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let signs = SignsOfLife::new(traffic, clock.clone());
        let (probing, last_bucket) = (tokio::sync::Mutex::default(), Mutex::default());
        Arc::new(Self { inner, signs, probing, last_bucket, clock })
    }

    /// Awaits a request. A read fails once the service is found to be unresponsive.
    async fn watch<T>(&self, call: Call<'_>, request: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if let Some(bucket) = call.bucket {
            self.note_bucket(bucket);
        }
        if self.signs.observe().is_unresponsive {
            self.probe(call, OtherProbe::Fail).await?;
        }
        if is_change(call.method) {
            return request.await;
        }
        let mut request = std::pin::pin!(request);
        let mut silent_since = self.clock.now();
        loop {
            let limit = self.clock.sleep_until(silent_since + MAX_SILENCE);
            tokio::select! {
                biased;
                response = &mut request => return response,
                () = limit => {}
            }
            let last = self.signs.observe().last;
            if last > silent_since {
                silent_since = last;
                continue;
            }
            tokio::select! {
                biased;
                response = &mut request => return response,
                probed = self.probe(call, OtherProbe::Wait) => probed?,
            }
            silent_since = self.clock.now();
        }
    }

    fn note_bucket(&self, bucket: &BucketName) {
        let mut last = self.last_bucket.lock();
        if last.as_ref() != Some(bucket) {
            *last = Some(bucket.clone());
        }
    }

    /// Returns once there was a sign of life since this was called. Fails if the service does not respond. Does nothing if no
    /// bucket is known. Concurrent requests share a probe.
    async fn probe(&self, call: Call<'_>, other: OtherProbe) -> Result<()> {
        let Some(bucket) = call.bucket.cloned().or_else(|| self.last_bucket.lock().clone()) else {
            return Ok(());
        };
        let called = self.clock.now();
        let _probing = match (self.probing.try_lock(), other) {
            (Ok(probing), _) => probing,
            (Err(_), OtherProbe::Fail) => return Err(unresponsive()),
            (Err(_), OtherProbe::Wait) => call.context.guard(self.probing.lock()).await?,
        };
        let started = self.clock.now();
        let seen = self.signs.observe();
        if seen.failed_since(started.saturating_sub(PROBE_INTERVAL)) {
            return Err(unresponsive());
        }
        if seen.last > called {
            return Ok(());
        }
        let deadline = Deadline::after(self.clock.clone(), MAX_PROBE_TIME);
        let limited = Context { deadline, ..call.context.clone() };
        let probe = limited.guard(self.inner.head_bucket(&limited, &bucket));
        let response = call.context.guard(probe).await?.and_then(|response| response);
        // The service may have responded to another request, or with an error that the leaf was about to retry.
        if self.signs.observe().last >= started || response.as_ref().err().is_none_or(is_response) {
            self.signs.note_response();
            return Ok(());
        }
        self.signs.note_failed_probe();
        Err(unresponsive())
    }
}

/// True if a request changes the service: it is not failed while its outcome is unknown.
const fn is_change(method: Method) -> bool {
    match method {
        Method::HeadBucket
        | Method::ListBuckets
        | Method::Versioning
        | Method::Head
        | Method::Get
        | Method::List
        | Method::ListVersions
        | Method::ObjectParts
        | Method::ListParts
        | Method::ListUploads => false,
        Method::CreateBucket
        | Method::DeleteBucket
        | Method::SetVersioning
        | Method::Stage
        | Method::Delete
        | Method::Copy
        | Method::SetTags
        | Method::SetClasses
        | Method::Redescribe
        | Method::RedescribeUpload
        | Method::CreateUpload
        | Method::StagePart
        | Method::CopyPart
        | Method::CompleteUpload
        | Method::AbortUpload => true,
    }
}

/// True if the service has certainly sent this error.
fn is_response(error: &Error) -> bool {
    !matches!(
        error.reason(),
        Reason::Io | Reason::DeadlineExceeded | Reason::Cancelled | Reason::ShuttingDown
    )
}

fn unresponsive() -> Error {
    let message =
        "The service behind this server does not respond. Nothing was changed: send the request again later.";
    Error::for_client(Reason::Io, message).before_sending()
}

/// Formats as the inner store, which it represents.
impl fmt::Debug for Responsive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait::async_trait]
impl ObjectStore for Responsive {
    tradewind_core::forward_methods! {
        to: |layer| &layer.inner;
        around: |layer, call, response| layer.watch(call, response).await;
        capabilities, prewarm, min_rtt, accepts, create_bucket, delete_bucket, head_bucket, list_buckets, versioning,
        set_versioning, head, get, stage, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload,
        abort_upload, close,
    }
}
