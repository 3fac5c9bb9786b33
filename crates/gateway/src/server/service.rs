//! One request, from its head to the last byte of its answer: authenticated, admitted, carried out by
//! the fast path or by the operations, logged once and counted.

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
use tradewind_core::budget::GRAIN;
use tradewind_core::context::Deadline;
use tradewind_core::{ErrorKind, Reason, Window};

use super::Shared;
use super::admission::{self, Grant};
use super::buffers::{HEAD_FREE_BYTES, Slot};
use super::watch::{Phase, Watch};
use crate::auth::{Authenticated, Identity};
use crate::body::{BoxError, ResponseBody};
use crate::error::{Code, WireError};
use crate::fast;
use crate::metrics::OperationMetrics;
use crate::outcome::{self, Failure, Operation};
use crate::payload::{self, Rest, WireBody};
use crate::request_id::{RequestId, host_id};
use crate::s3::Operations;
use crate::sigv4::Verified;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const HOST_ID: HeaderName = HeaderName::from_static("x-amz-id-2");
const SERVER: HeaderValue = HeaderValue::from_static("Tradewind");

/// A body that nobody read and that is longer than this is not worth waiting for: the connection is
/// closed behind the answer.
const DRAIN_BYTES: u64 = 64 << 10;

/// How long an answer is held back for such a body: it is under way already, or it does not come.
const DRAIN_TIME: Duration = Duration::from_millis(200);

/// Answers a request.
pub(super) async fn serve(
    shared: Arc<Shared>,
    watch: Arc<Watch>,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let started = shared.clock.now();
    let id = RequestId::next();
    let (parts, incoming) = request.into_parts();
    let asked = Asked::of(&parts, &incoming);
    watch.begin_request(asked.has_body);
    let (body, rest) = WireBody::new(incoming);
    let span = tracing::debug_span!("request", %id, operation = Empty, class = Empty, outcome = Empty);
    let has_large_body = asked.has_large_body;
    let mut exchange = Exchange { shared, watch, id, has_large_body, memory: OnceLock::new() };
    let mut response = if span.is_disabled() {
        exchange.respond(parts, body).await
    } else {
        exchange.respond(parts, body).instrument(span.clone()).await
    };
    if !response.status().is_success() {
        // What is said in its place needs none of the memory, however long the client takes to send the
        // rest of its body or to read.
        exchange.memory.take();
    }
    let is_left_unread = exchange.watch.is_body_unread() && !exchange.drain(&asked, rest).await;
    if is_left_unread || asked.expects_in_vain {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    exchange.finish(started, &asked, &span, response)
}

/// What is remembered of a request's head.
struct Asked {
    is_head: bool,
    has_body: bool,
    /// Worth being read in large pieces.
    has_large_body: bool,
    body_bytes: u64,
    drains: bool,
    /// A 100 was asked for and there is no body whose reading would send it. Some clients keep waiting for
    /// it in front of their next request on the connection: it must not be used on.
    expects_in_vain: bool,
}

impl Asked {
    fn of(parts: &Parts, incoming: &Incoming) -> Self {
        let length = incoming.size_hint().exact();
        let expects = parts.headers.contains_key(header::EXPECT);
        let has_body = !incoming.is_end_stream();
        Self {
            is_head: parts.method == Method::HEAD,
            has_body,
            has_large_body: has_body && length.is_none_or(|length| length > HEAD_FREE_BYTES as u64),
            body_bytes: length.unwrap_or(0),
            // Whoever expects a 100 and did not get it may not send the body at all.
            drains: !expects && length.is_some_and(|length| length <= DRAIN_BYTES),
            expects_in_vain: expects && incoming.is_end_stream(),
        }
    }
}

/// A request being answered.
struct Exchange {
    shared: Arc<Shared>,
    watch: Arc<Watch>,
    id: RequestId,
    has_large_body: bool,
    /// Kept until the answer is out, whatever the store does with it, but not behind a failure.
    memory: OnceLock<Arc<Window>>,
}

impl Exchange {
    async fn respond(&self, mut parts: Parts, body: WireBody) -> Response<ResponseBody> {
        let verified = match self.verify(&mut parts) {
            Ok(verified) => verified,
            Err(error) => return self.refuse(error, &parts),
        };
        let Some(read) = fast::plan(&parts, &verified) else {
            return Box::pin(self.carry_out(parts, body, verified, None)).await;
        };
        let grant = admission::grant(&parts, Some(0), &self.shared.config.limits);
        let context = match self.admit(grant, &verified.identity).await {
            Ok(context) => context,
            Err(error) => return self.refuse(error, &parts),
        };
        match fast::read(&*self.shared.store, &context, read).await {
            Some(response) => response,
            // Whatever is not plain success is explained by the operations, in one place.
            None => Box::pin(self.carry_out(parts, body, verified, Some(context))).await,
        }
    }

    /// Who asks, and for which object: behind this, a request's path names its bucket.
    fn verify(&self, parts: &mut Parts) -> Result<Verified, WireError> {
        check_head(&self.shared, parts)?;
        let verified = self.shared.verifier.verify(parts)?;
        if let Some(domain) = &self.shared.config.domain {
            domain.to_path_style(parts)?;
        }
        Ok(verified)
    }

    /// The way of all requests but plain reads.
    async fn carry_out(
        &self,
        mut parts: Parts,
        body: WireBody,
        verified: Verified,
        context: Option<Context>,
    ) -> Response<ResponseBody> {
        let Verified { identity, payload, .. } = verified;
        if identity.key_id().is_none()
            && !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS)
        {
            return self.refuse(WireError::access_denied(), &parts);
        }
        let limits = &self.shared.config.limits;
        let prepared = payload::prepare(&mut parts, body, payload, self.watch.clone(), limits.body_bytes);
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => return self.refuse(error, &parts),
        };
        // Who may not, waits for no memory and holds none.
        if let Some(refusal) = Operations::refuse(&mut parts, &identity, self.id) {
            return refusal;
        }
        let context = match context {
            Some(context) => Ok(context),
            None => self.admit(admission::grant(&parts, prepared.length, limits), &identity).await,
        };
        match context {
            Ok(context) => parts.extensions.insert(context),
            Err(error) => return self.refuse(error, &parts),
        };
        parts.extensions.insert(Authenticated {
            identity,
            trailers: prepared.trailers,
            announced_trailers: prepared.announced,
            decoded_length: prepared.length,
            request_id: self.id,
            payload_sha256: prepared.sha256,
        });
        self.shared.operations.call(Request::from_parts(parts, prepared.body)).await
    }

    async fn admit(&self, grant: Grant, identity: &Arc<Identity>) -> Result<Context, WireError> {
        let Shared { clock, cancel, budget, config, accounts, buffers, .. } = &*self.shared;
        let after = |patience| Deadline::after(clock.clone(), patience).with_cancellation(cancel.clone());
        let account = self.watch.account(accounts, identity);
        let head_bytes = if self.watch.slot() == Slot::None { 0 } else { buffers.slot_bytes() };
        let head_bytes = head_bytes.next_multiple_of(GRAIN);
        let window_bytes = grant.window_bytes.max(config.min_window_bytes);
        let bytes = window_bytes + head_bytes;
        let window = match budget.try_admit_for(&account, bytes) {
            Some(window) => window,
            None => {
                self.watch.set_phase(Phase::Admission);
                let admitted = budget.admit_for(&account, bytes, &after(config.limits.admission_time)).await;
                self.watch.set_phase(Phase::Working);
                admitted?
            }
        };
        self.watch.set_admitted(&window, self.has_large_body);
        window.set_min_size(config.min_window_bytes);
        admission::set_head_aside(&window, window_bytes, head_bytes);
        let window = self.memory.get_or_init(|| window);
        Ok(Context::new(after(grant.patience), window.clone()).of_client(identity.client()))
    }

    fn refuse(&self, error: WireError, parts: &Parts) -> Response<ResponseBody> {
        let mut response = error.answer(self.id, parts.uri.path(), parts.method == Method::HEAD);
        outcome::note_failure(&mut response, error);
        response
    }

    /// Reads what is left of a short body, so that the connection can be used on; `false` where it
    /// cannot.
    async fn drain(&self, asked: &Asked, rest: Rest) -> bool {
        let Some(mut rest) = rest.take().filter(|_| asked.drains) else { return false };
        let clock = &self.shared.clock;
        let mut late = clock.sleep_until(clock.now() + DRAIN_TIME);
        let end = std::future::poll_fn(|cx| {
            loop {
                if late.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(false);
                }
                match std::task::ready!(Pin::new(&mut rest).poll_frame(cx)) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) => return Poll::Ready(false),
                    None => return Poll::Ready(true),
                }
            }
        });
        let is_read = end.await;
        if is_read {
            self.watch.set_body_read();
        }
        is_read
    }

    /// Adds what every answer carries, logs a failure, and counts when the last byte is out.
    fn finish(
        self,
        started: Duration,
        asked: &Asked,
        span: &tracing::Span,
        mut response: Response<ResponseBody>,
    ) -> Response<AnswerBody> {
        let headers = response.headers_mut();
        headers.insert(REQUEST_ID, self.id.to_header());
        headers.insert(HOST_ID, host_id().clone());
        headers.insert(header::SERVER, SERVER);
        let operation =
            response.extensions_mut().remove::<Operation>().map_or("Unknown", |operation| operation.0);
        let failure = response.extensions_mut().remove::<Failure>();
        let status = response.status();
        if !span.is_disabled() {
            span.record("operation", operation);
            span.record("outcome", status.as_u16());
            if let Some(class) = response.headers().get("x-dss-object-class").and_then(|v| v.to_str().ok()) {
                span.record("class", class);
            }
        }
        log(self.id, operation, status, failure.as_ref());
        let counted = Counted {
            metrics: self.shared.metrics.operation(operation),
            shared: self.shared,
            watch: self.watch,
            _memory: self.memory.into_inner(),
            started,
            status,
            body_bytes: asked.body_bytes,
            sent: 0,
        };
        let is_head = asked.is_head;
        response.map(|body| AnswerBody { body: if is_head { ResponseBody::empty() } else { body }, counted })
    }
}

/// Limits that hyper does not keep.
fn check_head(shared: &Shared, parts: &Parts) -> Result<(), WireError> {
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

/// The one place where a failure is logged: the client was told S3's words, what the store said stands here.
fn log(id: RequestId, operation: &'static str, status: StatusCode, failure: Option<&Failure>) {
    let Some(Failure(error)) = failure else { return };
    let status_code = status.as_u16();
    if status == StatusCode::INTERNAL_SERVER_ERROR || status == StatusCode::INSUFFICIENT_STORAGE {
        tracing::error!(%id, operation, status = status_code, ?error, "request failed");
    } else if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
        tracing::warn!(%id, operation, status = status_code, ?error, "request failed");
    } else if error.store_error().is_some_and(|inner| inner.kind() == ErrorKind::Denied) {
        // It was this server that the store refused, not the client.
        tracing::warn!(%id, operation, status = status_code, ?error, "the store refused a request");
    } else if error.store_error().is_some_and(is_for_operator) {
        tracing::info!(%id, operation, status = status_code, ?error, "request refused");
    } else {
        tracing::debug!(%id, operation, status = status_code, ?error, "request refused");
    }
}

/// Whether a client that asks why can be answered only with what the log says.
fn is_for_operator(inner: &tradewind_core::Error) -> bool {
    let is_explained = inner.client_message().is_some() || inner.reason() == Reason::InvalidRange;
    inner.kind() == ErrorKind::Invalid && !is_explained
}

/// An answer's body, which knows when it is over.
pub(super) struct AnswerBody {
    body: ResponseBody,
    counted: Counted,
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                self.counted.sent += frame.data_ref().map_or(0, Bytes::len) as u64;
            }
            Poll::Ready(Some(Err(error))) => {
                // The head is out: all that is left is to cut the connection, so that the client sees
                // that bytes are missing.
                tracing::warn!(error = %error, "an answer broke off");
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

/// Counts a request when its answer is out or given up.
struct Counted {
    metrics: Arc<OperationMetrics>,
    shared: Arc<Shared>,
    watch: Arc<Watch>,
    _memory: Option<Arc<Window>>,
    started: Duration,
    status: StatusCode,
    body_bytes: u64,
    sent: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let took = self.shared.clock.now().saturating_sub(self.started);
        self.metrics.count(self.status, took, self.body_bytes, self.sent);
        self.watch.end_request();
    }
}
