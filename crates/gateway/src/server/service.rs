//! One request, from its head to the last byte of its answer: authenticated, admitted, carried out by
//! the fast path or by the operations, logged once and counted.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tracing::Instrument as _;
use tradewind_core::context::Deadline;
use tradewind_core::Context;

use super::Shared;
use super::admission::{self, Grant};
use super::watch::{Phase, Watch};
use crate::auth::Authenticated;
use crate::body::{BoxError, ResponseBody};
use crate::error::{Code, WireError};
use crate::fast;
use crate::metrics::OperationMetrics;
use crate::outcome::{Failure, Operation};
use crate::payload;
use crate::request_id::{RequestId, host_id};
use crate::sigv4::Verified;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");
const HOST_ID: HeaderName = HeaderName::from_static("x-amz-id-2");
const SERVER: HeaderValue = HeaderValue::from_static("Tradewind");

/// A body that nobody read and that is longer than this is not worth waiting for: the connection is
/// closed behind the answer.
const DRAIN_BYTES: u64 = 64 << 10;

/// Answers a request.
pub(super) async fn serve(
    shared: Arc<Shared>,
    watch: Arc<Watch>,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let started = shared.clock.now();
    let id = RequestId::next();
    let (parts, incoming) = request.into_parts();
    watch.begin_request(!incoming.is_end_stream());
    let asked = Asked::of(&parts, &incoming);
    let span = tracing::debug_span!("request", %id, operation = tracing::field::Empty, class = tracing::field::Empty);
    let mut response = if span.is_disabled() {
        respond(&shared, &watch, id, parts, incoming).await
    } else {
        respond(&shared, &watch, id, parts, incoming).instrument(span.clone()).await
    };
    if watch.is_body_unread() && asked.closes_unread {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    finish(&shared, watch, id, started, &asked, &span, response)
}

/// What is remembered of a request's head.
struct Asked {
    is_head: bool,
    body_bytes: u64,
    closes_unread: bool,
}

impl Asked {
    fn of(parts: &Parts, incoming: &Incoming) -> Self {
        let length = incoming.size_hint().exact();
        Self {
            is_head: parts.method == Method::HEAD,
            body_bytes: length.unwrap_or(0),
            closes_unread: length.is_none_or(|length| length > DRAIN_BYTES)
                || parts.headers.contains_key(header::EXPECT),
        }
    }
}

async fn respond(
    shared: &Arc<Shared>,
    watch: &Arc<Watch>,
    id: RequestId,
    parts: Parts,
    incoming: Incoming,
) -> Response<ResponseBody> {
    let verified = match check_head(shared, &parts).and_then(|()| shared.verifier.verify(&parts)) {
        Ok(verified) => verified,
        Err(error) => return refuse(error, id, &parts),
    };
    if let Some(read) = fast::plan(&parts, &verified) {
        let context = match admit(shared, admission::grant(&parts, Some(0), &shared.config.limits)).await {
            Ok(context) => context,
            Err(error) => return refuse(error, id, &parts),
        };
        match fast::read(&*shared.store, &context, read).await {
            Some(response) => return response,
            // Whatever is not plain success is explained by the operations, in one place.
            None => return Box::pin(carry_out(shared, watch, id, parts, incoming, verified, Some(context))).await,
        }
    }
    Box::pin(carry_out(shared, watch, id, parts, incoming, verified, None)).await
}

/// The way of all requests but plain reads.
async fn carry_out(
    shared: &Arc<Shared>,
    watch: &Arc<Watch>,
    id: RequestId,
    mut parts: Parts,
    incoming: Incoming,
    verified: Verified,
    context: Option<Context>,
) -> Response<ResponseBody> {
    let Verified { identity, payload, .. } = verified;
    if identity.key_id().is_none() && !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS) {
        return refuse(WireError::access_denied(), id, &parts);
    }
    let limit = shared.config.limits.body_bytes;
    let prepared = match payload::prepare(&mut parts, incoming, payload, watch.clone(), limit) {
        Ok(prepared) => prepared,
        Err(error) => return refuse(error, id, &parts),
    };
    let context = match context {
        Some(context) => context,
        None => {
            let grant = admission::grant(&parts, prepared.length, &shared.config.limits);
            match admit(shared, grant).await {
                Ok(context) => context,
                Err(error) => return refuse(error, id, &parts),
            }
        }
    };
    parts.extensions.insert(context);
    parts.extensions.insert(Authenticated {
        identity,
        trailers: prepared.trailers,
        announced_trailers: prepared.announced,
        decoded_length: prepared.length,
        request_id: id,
        payload_sha256: prepared.sha256,
    });
    shared.operations.call(Request::from_parts(parts, prepared.body)).await
}

/// Limits that hyper does not keep.
fn check_head(shared: &Shared, parts: &Parts) -> Result<(), WireError> {
    let headers: usize = parts.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    let target = parts.uri.path().len() + parts.uri.query().map_or(0, str::len);
    if headers + target > shared.config.limits.header_bytes {
        return Err(WireError::new(
            Code::RequestHeaderSectionTooLarge,
            "Your request header section exceeds the maximum allowed request header section size.",
        ));
    }
    Ok(())
}

async fn admit(shared: &Shared, grant: Grant) -> Result<Context, WireError> {
    let limits = &shared.config.limits;
    let wait = Deadline::after(shared.clock.clone(), limits.admission_time).with_cancellation(shared.cancel.clone());
    let window = shared.budget.admit(grant.window_bytes, &wait).await?;
    let deadline =
        Deadline::after(shared.clock.clone(), grant.patience).with_cancellation(shared.cancel.clone());
    Ok(Context::new(deadline, window))
}

fn refuse(error: WireError, id: RequestId, parts: &Parts) -> Response<ResponseBody> {
    let mut response = error.answer(id, parts.uri.path(), parts.method == Method::HEAD);
    crate::outcome::note_failure(&mut response, error);
    response
}

/// Adds what every answer carries, logs a failure, and counts when the last byte is out.
fn finish(
    shared: &Arc<Shared>,
    watch: Arc<Watch>,
    id: RequestId,
    started: Duration,
    asked: &Asked,
    span: &tracing::Span,
    mut response: Response<ResponseBody>,
) -> Response<AnswerBody> {
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id.to_header());
    headers.insert(HOST_ID, host_id().clone());
    headers.insert(header::SERVER, SERVER);
    let operation = response.extensions_mut().remove::<Operation>().map_or("Unknown", |operation| operation.0);
    let failure = response.extensions_mut().remove::<Failure>();
    let status = response.status();
    span.record("operation", operation);
    log(id, operation, status, failure.as_ref());
    let counted = Counted {
        metrics: shared.metrics.operation(operation),
        shared: shared.clone(),
        watch,
        started,
        status,
        body_bytes: asked.body_bytes,
        sent: 0,
        complete: false,
    };
    let is_head = asked.is_head;
    response.map(|body| AnswerBody { body: if is_head { ResponseBody::empty() } else { body }, counted })
}

/// The one place where a failure is logged.
fn log(id: RequestId, operation: &'static str, status: StatusCode, failure: Option<&Failure>) {
    let Some(Failure(error)) = failure else { return };
    if status == StatusCode::INTERNAL_SERVER_ERROR || status == StatusCode::INSUFFICIENT_STORAGE {
        tracing::error!(%id, operation, status = status.as_u16(), ?error, "request failed");
    } else if status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED {
        tracing::warn!(%id, operation, status = status.as_u16(), ?error, "request failed");
    } else {
        tracing::debug!(%id, operation, status = status.as_u16(), ?error, "request refused");
    }
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
                self.counted.complete = self.body.is_end_stream();
            }
            Poll::Ready(None) => self.counted.complete = true,
            Poll::Ready(Some(Err(error))) => {
                // The head is out: all that is left is to cut the connection, so that the client sees
                // that bytes are missing.
                tracing::warn!(error = %error, "an answer broke off");
            }
            Poll::Pending => {}
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
    started: Duration,
    status: StatusCode,
    body_bytes: u64,
    sent: u64,
    complete: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let took = self.shared.clock.now().saturating_sub(self.started);
        self.metrics.count(self.status, took, self.body_bytes, self.sent);
        self.watch.set_phase(Phase::Idle);
    }
}
