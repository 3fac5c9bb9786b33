//! Sends requests to one service over pooled connections, and retries them where that is safe and likely to help.
//! Rarely needed futures are boxed, because a request's future is created and moved for every request.

#[cfg(test)]
mod tests;

use std::error::Error as _;
use std::future::Future;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use http::header::{CONTENT_LENGTH, HOST, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use hyper::body::Incoming;
use tradewind_core::cache_status::CacheOutcome;
use tradewind_core::context::OnUnknownOutcome;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{BucketName, Clock, Context, Observation, Timestamp, random};

use super::header_fields::parse_retry_after;
use super::payload::{BufferedBody, Payload};
use super::peer_clock::{DatedResponse, PeerClock};
use super::pool::{Connection, LostRequest, Pool, Reuse};
use super::proxy::Proxy;
use super::query::Query;
use super::response::{HeldConnection, StoreResponse};
use super::status::is_unavailable_status;
use super::tunnel::credentials_rejected;
use tradewind_model::outage::{OutageFailure, OutageTracker};
use tradewind_model::retry::{Attempts, RetryBudget, RetryOptions, RetryableFailure};
use tradewind_wire::sigv4::ChunkSignatureChain;

/// Maximum number of bytes read of an error response's body.
const MAX_ERROR_BODY_BYTES: usize = 64 << 10;
/// Time allowed for sending each KiB of a body, in addition to the response timeout.
const SEND_TIME_PER_KIB: Duration = Duration::from_millis(16);
/// The response timeout is multiplied by this for requests that the store works on before it responds.
const LONG_RUNNING_TIMEOUT_FACTOR: u32 = 10;

/// The kind of resource that a request addresses: it explains an error response without a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResourceKind {
    Service,
    Bucket,
    Object,
    Upload,
}

/// An error response to a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorResponse<'a> {
    pub status: StatusCode,
    pub headers: &'a HeaderMap,
    /// Its body; empty if it cannot be read.
    pub body: &'a [u8],
    /// The resource of the request.
    pub resource: ResourceKind,
    /// The description of the request, for messages.
    pub request: &'a str,
}

/// An error response, classified by the protocol.
pub(crate) struct ClassifiedError {
    pub error: Error,
    /// A retry of the request may succeed.
    pub is_retryable: bool,
    /// The store certainly rejected it before doing anything.
    pub is_unprocessed: bool,
}

/// The parts of a request and its response that are specific to one protocol.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// The scheme of this service's URLs in messages: `s3://`.
    fn scheme(&self) -> &'static str;

    /// The path and query of a request, and its `Host`.
    fn request_target(&self, call: &Call<'_>) -> Result<(Uri, HeaderValue)>;

    /// Adds the credentials to the headers. Called for each attempt, since an attempt may start long after the previous
    /// one. Returns the signer of the body's chunks if the headers declare signed chunks.
    fn authorize(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &mut HeaderMap,
        body: &Payload,
        now: Timestamp,
    ) -> Result<Option<ChunkSignatureChain>>;

    /// Classifies an error response.
    fn classify_and_record(&self, response: &ErrorResponse<'_>) -> ClassifiedError;
}

/// Decides whether a change may be sent again after an attempt of unknown outcome.
#[async_trait]
pub(crate) trait RepeatGuard: Send + Sync {
    /// Returns true if [`Self::may_repeat`] is expected to return false. Sends nothing.
    fn expects_denial(&self) -> bool;

    /// Returns true if carrying out the change twice has the same result as once, also if the first request is carried
    /// out last. Called after each attempt whose whole body may have reached the store.
    async fn may_repeat(&self) -> bool;
}

/// A client of one service. Its clones share connections and the retry budget.
#[derive(Clone)]
pub(crate) struct Client {
    pub protocol: Arc<dyn Protocol>,
    /// The service's name in observations and messages.
    pub peer: Arc<str>,
    pub pool: Arc<Pool>,
    pub retry_options: RetryOptions,
    pub retry_budget: Arc<RetryBudget>,
    /// The outage that all requests to the peer wait for.
    pub outage: Arc<OutageTracker>,
    pub clock: Arc<dyn Clock>,
    /// The service's clock.
    pub peer_clock: Arc<PeerClock>,
    /// Maximum time until the response begins, without the allowance for unsent body bytes ([`SEND_TIME_PER_KIB`]) and
    /// the factor for long-running requests.
    pub response_timeout: Duration,
    /// Maximum time without progress of a request or response body.
    pub stall_timeout: Duration,
}

/// A request.
pub(crate) struct Call<'a> {
    pub method: Method,
    pub resource: ResourceKind,
    pub bucket: Option<&'a str>,
    pub key: Option<&'a str>,
    pub query: Query,
    pub headers: HeaderMap,
    pub payload: BufferedBody,
    /// The request may be sent again after an attempt with unknown outcome: it is idempotent, or its write id reveals
    /// whether it took effect.
    pub may_repeat: bool,
    /// Sent while another response is being read, so it is exempt from the connection limit.
    pub caller_holds_connection: bool,
    /// The store works on it before it responds: a copy, a completion. The response timeout is longer.
    pub is_long_running: bool,
    /// Set if an attempt failed without a response that says whether the store carried it out, and its whole body may
    /// have reached the store.
    pub outcome_unknown: Arc<AtomicBool>,
    /// Set if an attempt may have reached the store, even if its response says that the request failed: a proxy may have sent
    /// that response.
    pub may_have_arrived: Arc<AtomicBool>,
}

impl<'a> Call<'a> {
    /// A request about a bucket.
    pub fn bucket(method: Method, bucket: &'a BucketName) -> Self {
        Self { resource: ResourceKind::Bucket, bucket: Some(bucket.as_str()), ..Self::service(method) }
    }

    /// A request about an object.
    pub fn object(method: Method, bucket: &'a BucketName, key: &'a str) -> Self {
        Self { resource: ResourceKind::Object, key: Some(key), ..Self::bucket(method, bucket) }
    }

    /// A request to a container that is not a bucket of the port.
    pub fn in_container(
        method: Method,
        resource: ResourceKind,
        container: &'a str,
        key: Option<&'a str>,
    ) -> Self {
        Self { resource, bucket: Some(container), key, ..Self::service(method) }
    }

    /// A request about the service.
    pub fn service(method: Method) -> Self {
        let may_repeat = method != Method::POST;
        Self {
            method,
            resource: ResourceKind::Service,
            bucket: None,
            key: None,
            query: Query::default(),
            headers: HeaderMap::new(),
            payload: BufferedBody::default(),
            may_repeat,
            caller_holds_connection: false,
            is_long_running: false,
            outcome_unknown: Arc::default(),
            may_have_arrived: Arc::default(),
        }
    }

    /// A copy of this request with other headers. Both record outcomes in one place.
    pub fn with_headers(&self, headers: HeaderMap) -> Self {
        Self {
            method: self.method.clone(),
            resource: self.resource,
            bucket: self.bucket,
            key: self.key,
            query: self.query.clone(),
            headers,
            payload: self.payload.clone(),
            may_repeat: self.may_repeat,
            caller_holds_connection: self.caller_holds_connection,
            is_long_running: self.is_long_running,
            outcome_unknown: self.outcome_unknown.clone(),
            may_have_arrived: self.may_have_arrived.clone(),
        }
    }

    /// Returns true if the request may be sent again after an attempt with unknown outcome, and the caller allows it.
    fn may_repeat_in(&self, context: &Context) -> bool {
        let is_read = matches!(self.method, Method::GET | Method::HEAD);
        let changes_object = self.resource == ResourceKind::Object && !is_read;
        self.may_repeat && !(changes_object && context.on_unknown_outcome == OnUnknownOutcome::Fail)
    }
}

/// Description of a sent request, for errors and observations.
pub(crate) struct RequestInfo {
    scheme: &'static str,
    endpoint: Arc<str>,
    /// The proxy that the request is sent to; its response may be the proxy's own.
    forward_proxy: Option<Arc<Proxy>>,
    method: Method,
    bucket: Option<Box<str>>,
    key: Option<Box<str>>,
    resource: ResourceKind,
    is_long_running: bool,
    /// Length of its body, in bytes.
    body_bytes: u64,
    /// Bytes of the body that may still be unsent when the wait for the response begins.
    pub unsent_bytes: u64,
    started_at: Duration,
    sent_at: Duration,
}

impl RequestInfo {
    /// The request in one line for messages: method, URL, endpoint, and the proxy that the request is sent to.
    pub fn description(&self) -> String {
        let bucket = self.bucket.as_deref().unwrap_or_default();
        let key = self.key.as_ref().map(|key| format!("/{key}")).unwrap_or_default();
        let proxy = self.forward_proxy.as_ref();
        let through = proxy.map(|proxy| format!(" through the proxy {proxy}")).unwrap_or_default();
        format!("{} {}{bucket}{key} on {}{through}", self.method, self.scheme, self.endpoint)
    }

    /// The number of this operation, for [`LostRequest`].
    fn operation(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.method, &self.bucket, &self.key).hash(&mut hasher);
        hasher.finish()
    }

    /// This request, without a response, because its connection was reset or closed.
    fn reset(&self) -> LostRequest {
        LostRequest { operation: self.operation(), silent_since: self.sent_at, is_timeout: false }
    }

    /// This request, without progress for `timeout` until `now`.
    pub(super) fn timed_out(&self, timeout: Duration, now: Duration) -> LostRequest {
        let silent_since = now.saturating_sub(timeout);
        LostRequest { operation: self.operation(), silent_since, is_timeout: true }
    }
}

/// The loss of the connection that a request was sent on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionLoss {
    /// A reused connection was closed before any of the request was written: nothing has failed yet.
    BeforeWriting,
    /// It was reset or closed later, or no response arrived in time.
    AfterWriting,
}

/// A failed attempt.
pub(crate) struct FailedAttempt {
    pub error: Error,
    /// The store certainly rejected the request, or cannot have received all of it.
    is_unprocessed: bool,
    /// The store cannot have received all of the request.
    is_unsent: bool,
    /// A retry may succeed.
    is_retryable: bool,
    /// Set if no response arrived because of the connection.
    connection_loss: Option<ConnectionLoss>,
    /// Set if all other requests would fail now, too.
    outage: Option<OutageFailure>,
    /// The delay that the store requested (`Retry-After`).
    retry_after: Option<Duration>,
}

impl FailedAttempt {
    /// An attempt that failed before anything was sent.
    fn before_sending(error: Error) -> Self {
        Self {
            is_retryable: error.kind().is_retryable(),
            is_unprocessed: true,
            is_unsent: true,
            connection_loss: None,
            outage: None,
            retry_after: None,
            error,
        }
    }

    /// Returns true if the store may carry out the request, or have carried it out.
    pub(super) const fn is_outcome_unknown(&self) -> bool {
        self.is_retryable && !self.is_unprocessed
    }

    /// A failure to connect: the store is unavailable, unless its name or its TLS is the cause.
    pub(super) fn connecting(error: Error, started_at: Duration, failed_at: Duration) -> Self {
        let is_network = error.source().and_then(|e| e.downcast_ref()).is_some_and(is_network_error);
        let outage = is_network.then_some(OutageFailure { started_at, failed_at, retry_after: None });
        Self { outage, ..Self::before_sending(error) }
    }
}

/// Returns true for an error that a store causes which is being restarted, or a path that is interrupted.
/// Returns whether a cache of the service had the object of a read; `None` if no cache says so.
fn remote_cache(headers: &HeaderMap) -> Option<CacheOutcome> {
    CacheOutcome::parse(headers.get("cache-status")?.to_str().ok()?)
}

fn is_network_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::TimedOut
            | io::ErrorKind::UnexpectedEof
    )
}

/// Classifies the error of a request: `None` if the cause is not the connection, but a response that is not HTTP, or the
/// request's own body.
fn classify_loss(connection: &Connection, error: &hyper::Error) -> Option<ConnectionLoss> {
    if error.is_parse() || error.is_user() {
        return None;
    }
    // hyper cancels only requests of which nothing was written.
    let is_unwritten = error.is_canceled() && connection.is_reused;
    Some(if is_unwritten { ConnectionLoss::BeforeWriting } else { ConnectionLoss::AfterWriting })
}

impl Client {
    /// Sends a request, with retries, until it succeeds, fails permanently, or the retry budget or number of attempts
    /// is exhausted. An outage of the store is waited out first.
    pub async fn send(&self, context: &Context, call: &Call<'_>) -> Result<StoreResponse> {
        self.send_guarded(context, call, None).await
    }

    /// Like [`Self::send`]. An attempt of unknown outcome is repeated only if `guard` allows it, too.
    pub async fn send_guarded(
        &self,
        context: &Context,
        call: &Call<'_>,
        guard: Option<&dyn RepeatGuard>,
    ) -> Result<StoreResponse> {
        let started_at = self.clock.now();
        let mut attempts = Attempts::new();
        let may_repeat = call.may_repeat_in(context) && !guard.is_some_and(RepeatGuard::expects_denial);
        let mut reuse = if may_repeat { Reuse::Any } else { Reuse::Recent };
        loop {
            self.wait_until_available(context).await?;
            self.pool.check_open()?;
            let attempted = context.guard(self.attempt(context, call, started_at, reuse)).await;
            if !matches!(&attempted, Ok(Err(failed)) if failed.is_unsent) {
                call.may_have_arrived.store(true, Ordering::Relaxed);
            }
            match attempted? {
                Ok(response) => {
                    self.retry_budget.record_success();
                    return Ok(response);
                }
                Err(failed) => {
                    if failed.connection_loss.is_some() {
                        reuse = Reuse::Never;
                    }
                    if failed.is_unsent && failed.connection_loss == Some(ConnectionLoss::BeforeWriting) {
                        continue;
                    }
                    let mut may_repeat = call.may_repeat_in(context);
                    if failed.is_outcome_unknown() {
                        call.outcome_unknown.store(true, Ordering::Relaxed);
                        if let Some(guard) = guard.filter(|_| may_repeat) {
                            may_repeat = guard.may_repeat().await;
                        }
                    }
                    Box::pin(self.wait_before_retry(context, failed, may_repeat, &mut attempts)).await?;
                }
            }
        }
    }

    /// Waits before the next attempt, or returns the error if no retry is allowed.
    pub(super) async fn wait_before_retry(
        &self,
        context: &Context,
        failed: FailedAttempt,
        may_repeat: bool,
        attempts: &mut Attempts,
    ) -> Result<()> {
        let is_safe = failed.is_unprocessed || may_repeat;
        let is_retryable = failed.is_retryable;
        let retry_after = failed.retry_after;
        let error = self.record_failure(failed);
        if !is_safe || !is_retryable {
            return Err(error);
        }
        self.wait_after(context, error, retry_after, attempts).await
    }

    /// Waits before a request is sent again after it failed with `error`, or returns the error if no attempts are left.
    /// `retry_after` is the delay that the store requested.
    pub async fn wait_after(
        &self,
        context: &Context,
        error: Error,
        retry_after: Option<Duration>,
        attempts: &mut Attempts,
    ) -> Result<()> {
        let failed_at = self.clock.now();
        let failure = RetryableFailure { failed_at, outage_delay: error.outage_delay(), retry_after };
        let random = random::jitter_seed();
        let Some(delay) = attempts.next_delay(&self.retry_options, &self.retry_budget, failure, random)
        else {
            let seconds = attempts.failing_time(failed_at).as_secs();
            let has_waited = !self.retry_options.max_outage.is_zero()
                && attempts.failing_time(failed_at) >= self.retry_options.max_outage;
            let error = if has_waited {
                let message = format!("retried for {seconds} s: {error}");
                error.with_message(message)
            } else {
                error
            };
            return Err(error.without_retry());
        };
        tracing::debug!(error = %error, attempt = attempts.number(), ?delay, "retrying a request");
        context.guard(self.clock.sleep_until(failed_at + delay)).await
    }

    /// Sleeps for the backoff delay before the given attempt; the first attempt is number 1.
    pub async fn backoff(&self, context: &Context, attempt: u32) -> Result<()> {
        let delay = self.retry_options.delay(attempt, random::jitter_seed());
        context.guard(self.clock.sleep_until(self.clock.now() + delay)).await
    }

    /// Records an attempt that failed. Its error is marked if it is due to an outage that is waited out.
    pub(super) fn record_failure(&self, failed: FailedAttempt) -> Error {
        let FailedAttempt { error, outage, .. } = failed;
        let Some(failure) = outage else { return error };
        let wait = self.outage.record_failure(&self.retry_options, failure, random::jitter_seed());
        let Some(wait) = wait else { return error };
        if wait.should_report {
            let seconds = self.retry_options.max_outage.as_secs();
            tracing::warn!("{error}; waiting up to {seconds} s for {}", self.peer);
        }
        error.during_outage(wait.delay)
    }

    /// Waits for the end of the delay that all requests share during an outage, also if it is extended meanwhile.
    pub(super) async fn wait_until_available(&self, context: &Context) -> Result<()> {
        while let Some(at) = self.outage.wait_until(self.clock.now(), random::jitter_seed) {
            context.guard(self.clock.sleep_until(at)).await?;
        }
        Ok(())
    }

    async fn attempt(
        &self,
        context: &Context,
        call: &Call<'_>,
        started_at: Duration,
        reuse: Reuse,
    ) -> Result<StoreResponse, FailedAttempt> {
        let attempt_at = self.clock.now();
        let acquired = match context.is_probe {
            true => self.pool.connect_beyond_limit().await,
            false => self.pool.acquire(call.caller_holds_connection, reuse).await,
        };
        let mut connection =
            acquired.map_err(|e| FailedAttempt::connecting(e, attempt_at, self.clock.now()))?;
        let length = call.payload.length();
        let (payload, body_end) = Payload::buffered(call.payload.clone());
        let (request, _) =
            self.build_request(call, payload, Some(length)).map_err(FailedAttempt::before_sending)?;
        let request_info = self.request_info(call, started_at, length);
        let mut is_unsent = false;
        let sending = connection.sender().try_send_request(request);
        let response = {
            let sending = pin!(async {
                sending.await.map_err(|mut e| {
                    is_unsent = e.take_message().is_some();
                    e.into_error()
                })
            });
            self.receive_response(&request_info, sending, connection).await
        };
        if context.is_probe && response.as_ref().err().is_none_or(|failed| failed.connection_loss.is_none()) {
            // Other requests wait without a response: the peer may have lost earlier connections only.
            self.pool.close_idle();
        }
        response.map_err(|failed| {
            let is_unsent = body_end.abandon() || is_unsent;
            FailedAttempt { is_unprocessed: is_unsent || failed.is_unprocessed, is_unsent, ..failed }
        })
    }

    pub(super) fn request_info(&self, call: &Call<'_>, started_at: Duration, length: u64) -> RequestInfo {
        RequestInfo {
            scheme: self.protocol.scheme(),
            endpoint: self.peer.clone(),
            forward_proxy: self.pool.forward_proxy().cloned(),
            method: call.method.clone(),
            bucket: call.bucket.map(Into::into),
            key: call.key.map(Into::into),
            resource: call.resource,
            is_long_running: call.is_long_running,
            body_bytes: length,
            unsent_bytes: length,
            started_at,
            sent_at: self.clock.now(),
        }
    }

    /// Waits for the response; the body of an error response is read and classified.
    pub async fn receive_response(
        &self,
        request_info: &RequestInfo,
        response_future: Pin<&mut impl Future<Output = hyper::Result<Response<Incoming>>>>,
        mut connection: Connection,
    ) -> Result<StoreResponse, FailedAttempt> {
        let kib = u32::try_from(request_info.unsent_bytes >> 10).unwrap_or(u32::MAX);
        let timeout = self.response_timeout.saturating_add(SEND_TIME_PER_KIB.saturating_mul(kib));
        let timeout = if request_info.is_long_running {
            timeout.saturating_mul(LONG_RUNNING_TIMEOUT_FACTOR)
        } else {
            timeout
        };
        let lost = |error, connection_loss, outage| FailedAttempt {
            error,
            is_unprocessed: false,
            is_unsent: false,
            is_retryable: true,
            connection_loss,
            outage,
            retry_after: None,
        };
        let received =
            tokio::time::timeout(timeout, connection.drive(response_future)).await.map_err(|_| {
                let timed_out = request_info.timed_out(timeout, self.clock.now());
                self.pool.record_loss(&connection, timed_out);
                let (what, seconds) = (request_info.description(), timeout.as_secs());
                let error = Error::new(Reason::Io, format!("{what}: no response within {seconds} s"));
                lost(error, Some(ConnectionLoss::AfterWriting), None)
            })?;
        let response = received.map_err(|e| {
            let what = format!("{}: the connection failed: {e}", request_info.description());
            let connection_loss = classify_loss(&connection, &e);
            if connection_loss == Some(ConnectionLoss::AfterWriting) {
                self.pool.record_loss(&connection, request_info.reset());
            }
            // A response that is not HTTP has another cause.
            let outage = (!e.is_parse()).then(|| self.outage_failure(request_info, None));
            lost(Error::with_source(Reason::Io, what, e), connection_loss, outage)
        })?;
        let (now, arrived) = (self.clock.now(), self.clock.wall());
        self.pool.record_response(&connection, now, || request_info.operation());
        let waited = now.saturating_sub(request_info.sent_at).as_millis();
        let sent = arrived.millis().saturating_sub(i64::try_from(waited).unwrap_or(i64::MAX));
        self.peer_clock.record(DatedResponse {
            status: response.status(),
            headers: response.headers(),
            sent: Timestamp::from_millis(sent),
            arrived,
        });
        let observation = Observation {
            peer: Some(self.peer.clone()),
            reused: Some(connection.is_reused),
            queued: request_info.sent_at.saturating_sub(request_info.started_at),
            first_byte: now.saturating_sub(request_info.sent_at),
            body_bytes: request_info.body_bytes,
            cache: None,
            remote_cache: remote_cache(response.headers()),
        };
        let held = HeldConnection { pool: self.pool.clone(), connection };
        let response = StoreResponse::new(response, held, self.stall_timeout, observation);
        if response.head.status.is_success() {
            self.outage.record_response(request_info.sent_at);
            return Ok(response);
        }
        Err(Box::pin(self.read_error(request_info, response)).await)
    }

    fn outage_failure(&self, request_info: &RequestInfo, retry_after: Option<Duration>) -> OutageFailure {
        OutageFailure { started_at: request_info.sent_at, failed_at: self.clock.now(), retry_after }
    }

    async fn read_error(&self, request_info: &RequestInfo, response: StoreResponse) -> FailedAttempt {
        let (status, headers) = (response.head.status, response.head.headers.clone());
        if let (StatusCode::PROXY_AUTHENTICATION_REQUIRED, Some(proxy)) =
            (status, &request_info.forward_proxy)
        {
            return FailedAttempt::before_sending(credentials_rejected(proxy));
        }
        // An unreadable body is treated like an empty one: the status remains.
        let body = response.collect_document(MAX_ERROR_BODY_BYTES).await.unwrap_or_default();
        let response = ErrorResponse {
            status,
            headers: &headers,
            body: &body,
            resource: request_info.resource,
            request: &request_info.description(),
        };
        let ClassifiedError { error, is_retryable, is_unprocessed } =
            self.protocol.classify_and_record(&response);
        let retry_after = parse_retry_after(headers.get(RETRY_AFTER), self.clock.wall());
        let is_unavailable = is_retryable && (is_unprocessed || is_unavailable_status(status));
        if !is_unavailable {
            self.outage.record_response(request_info.sent_at);
        }
        let outage = is_unavailable.then(|| self.outage_failure(request_info, retry_after));
        FailedAttempt {
            error,
            is_unprocessed,
            is_unsent: false,
            is_retryable,
            connection_loss: None,
            outage,
            retry_after,
        }
    }

    pub(super) fn build_request(
        &self,
        call: &Call<'_>,
        payload: Payload,
        length: Option<u64>,
    ) -> Result<(Request<Payload>, Option<ChunkSignatureChain>)> {
        let (uri, host) = self.protocol.request_target(call)?;
        let mut headers = call.headers.clone();
        headers.insert(HOST, host.clone());
        // Without a length the body uses chunked transfer encoding, which marks its own end.
        if let Some(length) = length
            && (length > 0 || matches!(call.method, Method::PUT | Method::POST))
        {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        let now = self.clock.wall();
        let signer = self.protocol.authorize(&call.method, &uri, &mut headers, &payload, now)?;
        // The signature is for the store: it covers neither the absolute form nor the proxy's headers.
        let uri = match self.pool.forward_proxy() {
            Some(proxy) => proxy.forward(uri, &host, &mut headers)?,
            None => uri,
        };
        let mut request = Request::new(payload);
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok((request, signer))
    }
}
