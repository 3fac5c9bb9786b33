//! One request, from its head until the last buffer of its response is handed to the connection: authentication,
//! admission, execution by the fast path or by the operations, one log entry on failure, and metrics.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tracing::Instrument as _;
use tracing::field::Empty;
use tradewind_core::Context;
use tradewind_core::budget::GRAIN_BYTES;
use tradewind_core::context::Deadline;
use tradewind_core::{ErrorKind, Reason, Window};

use super::GatewayState;
use super::admission::{self, Requirements};
use super::buffers::{INITIAL_READ_BYTES, Slot};
use super::connection_state::{ConnectionState, Phase};
use super::early_head::LongRequest;
use crate::auth::{Authenticated, Identity};
use crate::body::{BoxError, ResponseBody};
use crate::error::{Code, WireError};
use crate::fast;
use crate::metrics::OperationMetrics;
use crate::outcome::{self, LateStatus, LoggedError, OperationName};
use crate::payload::{self, UnreadBody, WireBody};
use crate::request_id::{RequestId, host_id};
use crate::s3::{Operations, Preflight, anonymous_rejection};
use crate::sigv4::Verified;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const HOST_ID: HeaderName = HeaderName::from_static("x-amz-id-2");
const SERVER: HeaderValue = HeaderValue::from_static("Tradewind");

/// The longest unread body that is drained before the response, in bytes. After a longer one the connection is closed.
const MAX_DRAIN_BYTES: u64 = 64 << 10;

/// The maximum time for draining a body, which delays the response. A client that sends its body without waiting for
/// the response has it in flight already, so a longer wait is pointless.
const MAX_DRAIN_TIME: Duration = Duration::from_millis(200);

/// Serves a request.
pub(super) async fn serve(
    shared: Arc<GatewayState>,
    connection: Arc<ConnectionState>,
    request: Request<Incoming>,
) -> Response<CountedBody> {
    let started = shared.clock.now();
    let id = RequestId::next();
    let (parts, incoming) = request.into_parts();
    let head = RequestHead::new(&parts, &incoming);
    connection.begin_request(head.has_body);
    let (body, unread) = WireBody::new(incoming);
    let span = tracing::debug_span!("request", %id, operation = Empty, class = Empty, outcome = Empty);
    let has_large_body = head.has_large_body;
    let mut exchange = Exchange { shared, connection, id, has_large_body, memory: OnceLock::new() };
    let mut response = if span.is_disabled() {
        exchange.respond(parts, body).await
    } else {
        exchange.respond(parts, body).instrument(span.clone()).await
    };
    if !response.status().is_success() {
        // An error response needs none of the memory. The client may take long to send the rest of its body or to read
        // the response.
        exchange.memory.take();
    }
    let is_body_unread = exchange.connection.is_body_unread() && !exchange.drain(&head, unread).await;
    if is_body_unread || head.expects_continue_without_body {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    exchange.finish(started, &head, &span, response)
}

/// Properties of a request that are needed after its head was consumed.
struct RequestHead {
    is_head_method: bool,
    has_body: bool,
    /// The body may be larger than [`INITIAL_READ_BYTES`], so it is read in large pieces.
    has_large_body: bool,
    /// Length of the body as declared by `Content-Length`, 0 if undeclared.
    body_bytes: u64,
    is_drainable: bool,
    /// The client expects a `100 Continue`, but there is no body whose reading would send it. Some clients keep waiting
    /// for it before their next request, so the connection must not be reused.
    expects_continue_without_body: bool,
}

impl RequestHead {
    fn new(parts: &Parts, incoming: &Incoming) -> Self {
        let length = incoming.size_hint().exact();
        let expects = parts.headers.contains_key(header::EXPECT);
        let has_body = !incoming.is_end_stream();
        Self {
            is_head_method: parts.method == Method::HEAD,
            has_body,
            has_large_body: has_body && length.is_none_or(|length| length > INITIAL_READ_BYTES as u64),
            body_bytes: length.unwrap_or(0),
            // A client that expects a 100 and did not get it may not send the body at all.
            is_drainable: !expects && length.is_some_and(|length| length <= MAX_DRAIN_BYTES),
            expects_continue_without_body: expects && incoming.is_end_stream(),
        }
    }
}

/// A request in flight and its response.
struct Exchange {
    shared: Arc<GatewayState>,
    connection: Arc<ConnectionState>,
    id: RequestId,
    has_large_body: bool,
    /// The request's window. Held until hyper has taken the last buffer of the response, even if the store has dropped
    /// its reference. Released early if the response is an error.
    memory: OnceLock<Arc<Window>>,
}

impl Exchange {
    async fn respond(&self, mut parts: Parts, body: WireBody) -> Response<ResponseBody> {
        if parts.method == Method::OPTIONS {
            let error = Box::pin(self.reject_preflight(&mut parts)).await;
            return self.error_response(error, &parts);
        }
        let verified = match self.verify(&mut parts) {
            Ok(verified) => verified,
            Err(error) => return self.error_response(error, &parts),
        };
        let Some(read) = fast::recognize(&parts, &verified) else {
            return Box::pin(self.run_operation(parts, body, verified, None)).await;
        };
        let required = admission::requirements(&parts, Some(0), &self.shared.config.limits);
        let context = match self.admit(required, &verified.identity).await {
            Ok(context) => context,
            Err(error) => return self.error_response(error, &parts),
        };
        match fast::read(&*self.shared.store, &context, read).await {
            Some(response) => response,
            // The fast path reports no errors: the operation repeats the read and builds the error response.
            None => Box::pin(self.run_operation(parts, body, verified, Some(context))).await,
        }
    }

    /// Authenticates a request and resolves its address. After this, its path begins with its bucket.
    fn verify(&self, parts: &mut Parts) -> Result<Verified, WireError> {
        check_head(&self.shared, parts)?;
        let verifier = &self.shared.verifier;
        let verified =
            verifier.verify(parts).and_then(|verified| self.to_path_style(parts).map(|()| verified));
        let rejection = match &verified {
            Ok(verified) => anonymous_rejection(parts, &verified.identity),
            // A request without a signature is denied before it is malformed.
            Err(_) if verifier.is_unsigned(parts) => {
                anonymous_rejection(parts, &verifier.anonymous_identity())
            }
            Err(_) => None,
        };
        rejection.map_or(verified, Err)
    }

    /// Moves the bucket of a host into the path.
    fn to_path_style(&self, parts: &mut Parts) -> Result<(), WireError> {
        match &self.shared.config.domain {
            Some(domain) => domain.to_path_style(parts),
            None => Ok(()),
        }
    }

    /// The error of a CORS preflight, which has no signature. The lookup of its bucket is admitted like any other request.
    async fn reject_preflight(&self, parts: &mut Parts) -> WireError {
        let checked = check_head(&self.shared, parts).and_then(|()| self.to_path_style(parts));
        let preflight = match checked.and_then(|()| Preflight::parse(parts)) {
            Ok(preflight) => preflight,
            Err(error) => return error,
        };
        let required = admission::requirements(parts, Some(0), &self.shared.config.limits);
        match self.admit(required, &self.shared.verifier.anonymous_identity()).await {
            Ok(context) => preflight.reject(&*self.shared.store, &context).await,
            Err(error) => error,
        }
    }

    /// Executes a request by the S3 operations: one that the fast path does not handle, or a plain read that failed
    /// there. `context` is that of the failed read, which is already admitted. If it is `None`, the request is admitted
    /// here.
    async fn run_operation(
        &self,
        mut parts: Parts,
        body: WireBody,
        verified: Verified,
        context: Option<Context>,
    ) -> Response<ResponseBody> {
        let Verified { identity, declared, .. } = verified;
        let limits = &self.shared.config.limits;
        let prepared =
            payload::prepare(&mut parts, body, declared, self.connection.clone(), limits.body_bytes);
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return self.error_response(error, &parts),
        };
        // Before admission: a request without permission neither waits for memory nor holds any.
        if let Err(rejection) = self.shared.operations.authorize(&mut parts, &identity, self.id) {
            return *rejection;
        }
        let context = match context {
            Some(context) => Ok(context),
            None => self.admit(admission::requirements(&parts, prepared.length, limits), &identity).await,
        };
        match context {
            Ok(context) => parts.extensions.insert(context),
            Err(error) => return self.error_response(error, &parts),
        };
        parts.extensions.insert(Authenticated {
            identity,
            trailers: prepared.trailers,
            announced_trailers: prepared.announced,
            decoded_length: prepared.length,
            request_id: self.id,
            payload_sha256: prepared.sha256,
        });
        let long = Operations::long_operation(&parts);
        let request = Request::from_parts(parts, prepared.body);
        match long {
            Some(operation) => {
                let long = LongRequest { operation, id: self.id, request };
                Box::pin(long.respond(&self.shared, &self.connection)).await
            }
            None => self.shared.operations.call(request).await,
        }
    }

    /// Reserves the request's memory, waiting up to the admission time, and creates its context.
    async fn admit(&self, required: Requirements, identity: &Arc<Identity>) -> Result<Context, WireError> {
        let GatewayState { clock, cancel, budget, config, accounts, buffers, .. } = &*self.shared;
        let deadline = |timeout| Deadline::after(clock.clone(), timeout).with_cancellation(cancel.clone());
        let account = self.connection.account(accounts, identity);
        let head_bytes = if self.connection.slot() == Slot::None { 0 } else { buffers.slot_bytes() };
        let head_bytes = head_bytes.next_multiple_of(GRAIN_BYTES);
        let window_bytes = required.window_bytes.max(config.min_window_bytes);
        let bytes = window_bytes + head_bytes;
        let window = match budget.try_admit_for(&account, bytes) {
            Some(window) => window,
            None => {
                self.connection.set_phase(Phase::Admission);
                let admitted =
                    budget.admit_for(&account, bytes, &deadline(config.limits.admission_time)).await;
                self.connection.set_phase(Phase::Working);
                admitted?
            }
        };
        self.connection.set_admitted(&window, self.has_large_body);
        window.set_min_size(config.min_window_bytes);
        admission::mark_head_overhead(&window, window_bytes, head_bytes);
        let window = self.memory.get_or_init(|| window);
        Ok(Context::new(deadline(required.timeout), window.clone()).with_client(identity.shared_key_id()))
    }

    fn error_response(&self, error: WireError, parts: &Parts) -> Response<ResponseBody> {
        let mut response = error.to_response(self.id, parts.uri.path(), parts.method == Method::HEAD);
        outcome::set_logged_error(&mut response, error);
        response
    }

    /// Reads the rest of a short body, so that the connection can be reused. Returns false if the body was not read to
    /// its end.
    async fn drain(&self, head: &RequestHead, unread: UnreadBody) -> bool {
        let Some(mut body) = unread.take().filter(|_| head.is_drainable) else { return false };
        let clock = &self.shared.clock;
        let mut timeout = clock.sleep_until(clock.now() + MAX_DRAIN_TIME);
        let end = std::future::poll_fn(|cx| {
            loop {
                if timeout.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(false);
                }
                match std::task::ready!(Pin::new(&mut body).poll_frame(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) => return Poll::Ready(false),
                    None => return Poll::Ready(true),
                }
            }
        });
        let is_read = end.await;
        if is_read {
            self.connection.set_body_read();
        }
        is_read
    }

    /// Adds the headers common to all responses, logs the failure of an error response, and attaches the guard that
    /// ends the request with the last buffer of its response.
    fn finish(
        self,
        started: Duration,
        head: &RequestHead,
        span: &tracing::Span,
        mut response: Response<ResponseBody>,
    ) -> Response<CountedBody> {
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, self.id.to_header());
        headers.insert(HOST_ID, host_id().clone());
        headers.insert(header::SERVER, SERVER);
        let operation = response.extensions_mut().remove::<OperationName>().map_or("Unknown", |name| name.0);
        let logged_error = response.extensions_mut().remove::<LoggedError>();
        let late_status = response.extensions_mut().remove::<LateStatus>();
        let status = response.status();
        if !span.is_disabled() {
            span.record("operation", operation);
            span.record("outcome", status.as_u16());
            if let Some(class) = response.headers().get("x-dss-object-class").and_then(|v| v.to_str().ok()) {
                span.record("class", class);
            }
        }
        log(self.id, operation, status, logged_error.as_ref());
        let guard = ResponseGuard {
            id: self.id,
            operation,
            metrics: self.shared.metrics.operation(operation),
            shared: self.shared,
            connection: self.connection,
            _memory: self.memory.into_inner(),
            started,
            status,
            late_status,
            received_bytes: head.body_bytes,
            sent_bytes: 0,
        };
        let is_head_method = head.is_head_method;
        response.map(|body| CountedBody {
            body: if is_head_method { ResponseBody::empty() } else { body },
            guard,
        })
    }
}

/// Checks the limits that hyper does not enforce.
fn check_head(shared: &GatewayState, parts: &Parts) -> Result<(), WireError> {
    let headers: usize =
        parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let target = parts.uri.path().len() + parts.uri.query().map_or(0, str::len);
    if headers + target > shared.config.limits.header_bytes {
        return Err(WireError::new(
            Code::RequestHeaderSectionTooLarge,
            "Your request header section exceeds the maximum allowed request header section size.",
        ));
    }
    Ok(())
}

/// Logs the failure of an error response. The log has the store's message, while the client received S3's message. A
/// body that fails after its head was sent is logged by [`CountedBody`].
pub(super) fn log(
    id: RequestId,
    operation: &'static str,
    status: StatusCode,
    logged_error: Option<&LoggedError>,
) {
    let Some(LoggedError(error)) = logged_error else { return };
    let status_code = status.as_u16();
    if status == StatusCode::INTERNAL_SERVER_ERROR || status == StatusCode::INSUFFICIENT_STORAGE {
        tracing::error!(%id, operation, status = status_code, ?error, "request failed");
    } else if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
        tracing::warn!(%id, operation, status = status_code, ?error, "request failed");
    } else if error.store_error().is_some_and(|inner| inner.kind() == ErrorKind::Denied) {
        // The store denied access to this server, not to the client.
        tracing::warn!(%id, operation, status = status_code, ?error, "the store denied a request");
    } else if error.store_error().is_some_and(is_for_operator) {
        tracing::info!(%id, operation, status = status_code, ?error, "request rejected");
    } else {
        tracing::debug!(%id, operation, status = status_code, ?error, "request rejected");
    }
}

/// Returns true if the response does not explain the rejection, so that the operator needs the log.
fn is_for_operator(inner: &tradewind_core::Error) -> bool {
    let is_explained = inner.client_message().is_some()
        || matches!(inner.reason(), Reason::InvalidRange | Reason::InvalidVersionId);
    inner.kind() == ErrorKind::Invalid && !is_explained
}

/// A response body that counts its bytes, logs its failure and carries the request's [`ResponseGuard`].
pub(super) struct CountedBody {
    body: ResponseBody,
    guard: ResponseGuard,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.guard.sent_bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            Poll::Ready(Some(Err(error))) => {
                // hyper closes the connection, by which the client detects that bytes are missing.
                let ResponseGuard { id, operation, .. } = &self.guard;
                tracing::warn!(
                    %id,
                    operation,
                    error = %error,
                    "request failed: its response ended early, after the head was sent"
                );
            }
            Poll::Ready(None) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The end of a request. When hyper has taken the last buffer of the response, or the response is aborted, it drops the
/// body and with it the guard. The guard counts the request in the metrics, marks the connection as idle and releases
/// its reference to the window. Buffers that are queued for the socket hold the window until they are written.
struct ResponseGuard {
    id: RequestId,
    operation: &'static str,
    metrics: Arc<OperationMetrics>,
    shared: Arc<GatewayState>,
    connection: Arc<ConnectionState>,
    _memory: Option<Arc<Window>>,
    started: Duration,
    status: StatusCode,
    late_status: Option<LateStatus>,
    /// Length of the request's body as declared by `Content-Length`.
    received_bytes: u64,
    /// Bytes of the response's body.
    sent_bytes: u64,
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        let duration = self.shared.clock.now().saturating_sub(self.started);
        let status = self.late_status.as_ref().and_then(LateStatus::get).unwrap_or(self.status);
        self.metrics.count(status, duration, self.received_bytes, self.sent_bytes);
        self.connection.end_request();
    }
}
