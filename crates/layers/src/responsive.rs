//! A layer over a service that fails requests soon once the service no longer responds: a stopped process accepts
//! connections and never answers, a vanished host does neither, and a resolver may hang.
//!
//! A request that waits says nothing by itself: a listing may take long, and connections may all be busy with large bodies.
//! So the layer asks. If nothing was received from the service for [`MAX_SILENCE`] while a request waits, it sends a probe, the
//! HEAD of a bucket on a new connection. Any response is a sign of life, also an error of the service. Without one within
//! [`MAX_PROBE_WAIT`], the service is unresponsive: reads that wait fail with [`Io`](Reason::Io), which clients may retry.
//! Until bytes arrive, new requests fail at once, and one per [`PROBE_INTERVAL`] causes another probe. It waits for that probe
//! if the last one began more than [`MIN_PROBE_AGE`] ago: otherwise it may be the retry of a request that has waited already.
//! A probe lasts longer than any request waits for it, so that a slow service is found to be responsive, too.
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
use tokio::task::JoinSet;
use tradewind_core::context::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::layer::{Call, Method};
use tradewind_core::traffic::Traffic;
use tradewind_core::{BucketName, Budget, Clock, Context, ObjectStore};

use signs_of_life::SignsOfLife;

/// The time without a sign of life after which a waiting request causes a probe.
pub const MAX_SILENCE: Duration = Duration::from_secs(2);
/// The time for which requests wait for a probe. With the silence before it, and the second for which layers above wait for
/// other things, a read fails within 5 s.
pub const MAX_PROBE_WAIT: Duration = Duration::from_millis(1500);
/// The minimum interval between the begins of two probes. Shorter than [`MAX_SILENCE`], so that a request that sends none waits
/// for one in flight.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The time since the begin of the last probe after which a request waits for its own probe: longer than a request waits for a
/// probe, and for its retry afterwards.
const MIN_PROBE_AGE: Duration = Duration::from_secs(3);
/// The time after which a probe ends, whose response would be a sign of life until then.
const MAX_PROBE_TIME: Duration = Duration::from_secs(20);
/// The interval at which a request that waits for its response looks for received bytes.
const WATCH_INTERVAL: Duration = Duration::from_millis(250);
/// The interval at which a request that waits for a probe looks for received bytes.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Memory of a probe, in bytes.
const PROBE_BYTES: usize = 4096;
/// Memory of all probes in flight, in bytes.
const MAX_PROBES_BYTES: usize = 16 * PROBE_BYTES;

/// The layer. See the module documentation.
pub struct Responsive {
    inner: Arc<dyn ObjectStore>,
    signs: Arc<SignsOfLife>,
    probes: Mutex<Probes>,
    /// Memory of probes.
    budget: Budget,
    clock: Arc<dyn Clock>,
}

/// The probes in flight. They are aborted when the layer is dropped.
#[derive(Debug, Default)]
struct Probes {
    tasks: JoinSet<()>,
    /// The begin of the last one.
    last_begin: Option<Duration>,
    /// The bucket of the last request that named one.
    last_bucket: Option<BucketName>,
}

impl Responsive {
    /// Watches `inner`, the leaf of a service whose connections `traffic` counts. Times are those of `clock`.
    pub fn new(inner: Arc<dyn ObjectStore>, traffic: Arc<Traffic>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let signs = Arc::new(SignsOfLife::new(traffic, clock.clone()));
        let (probes, budget) = (Mutex::default(), Budget::new(MAX_PROBES_BYTES));
        Arc::new(Self { inner, signs, probes, budget, clock })
    }

    /// Awaits a request. A read fails once the service is found to be unresponsive.
    async fn watch<T>(&self, call: Call<'_>, request: impl Future<Output = Result<T>> + Send) -> Result<T> {
        if let Some(bucket) = call.bucket {
            self.note_bucket(bucket);
        }
        if self.signs.observe().is_unresponsive {
            let is_recent = self.last_probe_age().is_some_and(|age| age < MIN_PROBE_AGE);
            if !self.begin_probe() || is_recent {
                return Err(unresponsive());
            }
            self.wait_for_sign(call.context, self.clock.now()).await?;
        }
        if is_change(call.method) {
            return request.await;
        }
        let mut request = std::pin::pin!(request);
        let mut silent_since = self.clock.now();
        loop {
            let look = self.clock.sleep_until(self.clock.now() + WATCH_INTERVAL);
            tokio::select! {
                biased;
                response = &mut request => return response,
                () = look => {}
            }
            silent_since = silent_since.max(self.signs.observe().last);
            let now = self.clock.now();
            if now < silent_since + MAX_SILENCE {
                continue;
            }
            self.begin_probe();
            tokio::select! {
                biased;
                response = &mut request => return response,
                sign = self.wait_for_sign(call.context, now) => sign?,
            }
            silent_since = self.clock.now();
        }
    }

    fn note_bucket(&self, bucket: &BucketName) {
        let last = &mut self.probes.lock().last_bucket;
        if last.as_ref() != Some(bucket) {
            *last = Some(bucket.clone());
        }
    }

    /// The time since the begin of the last probe.
    fn last_probe_age(&self) -> Option<Duration> {
        self.probes.lock().last_begin.map(|begin| self.clock.now().saturating_sub(begin))
    }

    /// Sends a probe, unless one was sent within [`PROBE_INTERVAL`]. Returns true if it was sent.
    fn begin_probe(&self) -> bool {
        let now = self.clock.now();
        let mut probes = self.probes.lock();
        while probes.tasks.try_join_next().is_some() {}
        let is_recent = probes.last_begin.is_some_and(|begin| now.saturating_sub(begin) < PROBE_INTERVAL);
        let (Some(bucket), false) = (probes.last_bucket.clone(), is_recent) else { return false };
        let Some(window) = self.budget.try_admit_optional(PROBE_BYTES) else { return false };
        probes.last_begin = Some(now);
        let context = Context::new(Deadline::after(self.clock.clone(), MAX_PROBE_TIME), window).probing();
        let (inner, signs) = (self.inner.clone(), self.signs.clone());
        probes.tasks.spawn(async move {
            let response =
                context.guard(inner.head_bucket(&context, &bucket)).await.and_then(|response| response);
            if response.as_ref().err().is_none_or(is_response) {
                signs.note_response();
            }
        });
        true
    }

    /// Returns once there was a sign of life since `time`. Fails without one within [`MAX_PROBE_WAIT`]: the service is
    /// unresponsive then.
    async fn wait_for_sign(&self, context: &Context, time: Duration) -> Result<()> {
        let end = self.clock.now() + MAX_PROBE_WAIT;
        loop {
            let noticed = self.signs.noticed();
            if self.signs.observe().last >= time {
                return Ok(());
            }
            let now = self.clock.now();
            if now >= end {
                break;
            }
            // Received bytes wake no task.
            let look = self.clock.sleep_until(end.min(now + LOOK_INTERVAL));
            let wait = async {
                tokio::select! {
                    () = noticed => {}
                    () = look => {}
                }
            };
            context.guard(wait).await?;
        }
        if self.probes.lock().last_bucket.is_none() {
            // Nothing was asked.
            return Ok(());
        }
        self.signs.note_silence();
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
        capabilities, prewarm, min_rtt, object_clock, accepts, create_bucket, delete_bucket, head_bucket,
        list_buckets, versioning,
        set_versioning, head, get, stage, delete, list, list_versions, copy, set_tags, set_classes, redescribe,
        redescribe_upload, object_parts, create_upload, stage_part, copy_part, list_parts, list_uploads, complete_upload,
        abort_upload,
    }

    async fn close(&self) -> Result<()> {
        self.probes.lock().tasks.abort_all();
        self.inner.close().await
    }
}
