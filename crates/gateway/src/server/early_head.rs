//! Responses whose head is sent before the result is known: those of copies and completions that take long.
//!
//! A client waits for the first byte of a response for a limited time only, and a copy of a large object takes longer. As in
//! S3, the head then has status 200. The body begins with the XML declaration. A blank follows every few seconds, and then the
//! document with the result, or with an error; for a client that would ignore it, the response ends early. Such a response names no version, because its headers were sent before. From
//! then on, the operation runs to its end even if its client disconnects, within a limit of such operations. A shutdown waits
//! for it as for a request in flight.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{FutureExt as _, stream};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::GatewayState;
use super::connection_state::ConnectionState;
use super::service;
use crate::body::{BoxError, RequestBody, ResponseBody};
use crate::error::{Code, WireError};
use crate::outcome::{self, LateStatus, LoggedError};
use crate::request_id::RequestId;
use crate::s3::LongOperation;

const XML_DECLARATION: &[u8] = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// The beginning of the user agents of MinIO's libraries. minio-go takes any document after status 200 for the result of a
/// copy, also `<Error>`.
const IGNORES_ERRORS: &[u8] = b"MinIO ";

/// The number of times that the reception of the body is checked in `early_head_time`.
const RECEPTION_CHECKS: u32 = 10;

/// Operations whose clients have disconnected, of all clients together. Their memory cannot be taken for other requests.
pub(super) const MAX_ABANDONED_OPERATIONS: usize = 16;

/// The operations whose heads were early.
#[derive(Debug)]
pub(super) struct EarlyHeads {
    tasks: TaskTracker,
    abandoned: Semaphore,
}

impl Default for EarlyHeads {
    fn default() -> Self {
        Self { tasks: TaskTracker::new(), abandoned: Semaphore::new(MAX_ABANDONED_OPERATIONS) }
    }
}

impl EarlyHeads {
    /// Waits until the operations have ended, or the time is over. No further one may begin.
    pub(super) async fn wait(&self, shared: &GatewayState, time: Duration) -> bool {
        self.tasks.close();
        tokio::select! {
            biased;
            () = self.tasks.wait() => true,
            () = shared.clock.sleep_until(shared.clock.now() + time) => false,
        }
    }
}

/// A request of such an operation.
pub(super) struct LongRequest {
    pub operation: LongOperation,
    pub id: RequestId,
    pub request: Request<RequestBody>,
}

impl LongRequest {
    /// Executes the operation. Its head is early if the result is not known `early_head_time` after its body was read.
    pub(super) async fn respond(
        self,
        shared: &Arc<GatewayState>,
        connection: &ConnectionState,
    ) -> Response<ResponseBody> {
        let Self { operation, id, mut request } = self;
        let interval = shared.config.early_head_time;
        let resource = request.uri().path().to_owned();
        let agent = request.headers().get(header::USER_AGENT);
        let ignores_errors = agent.is_some_and(|agent| agent.as_bytes().starts_with(IGNORES_ERRORS));
        // The body follows blanks that are not compressed.
        request.headers_mut().remove(header::ACCEPT_ENCODING);
        let mut work = Box::pin({
            let shared = shared.clone();
            let call = async move { shared.operations.call(request).await };
            AssertUnwindSafe(call).catch_unwind()
        });
        let mut received = None;
        loop {
            let now = shared.clock.now();
            if received.is_none() && !(operation.reads_body && connection.is_body_unread()) {
                received = Some(now);
            }
            let until = received.map_or(now + interval / RECEPTION_CHECKS, |received| received + interval);
            if until <= now {
                break;
            }
            tokio::select! {
                biased;
                response = &mut work => match response {
                    Ok(response) => return response,
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                () = shared.clock.sleep_until(until) => {}
            }
        }
        let (sender, receiver) = mpsc::channel(2);
        let state = shared.clone();
        let status = LateStatus::default();
        let late_status = status.clone();
        let follow = async move {
            let mut next = Bytes::from_static(XML_DECLARATION);
            let response = loop {
                // A client that does not read needs no blank.
                let _ = sender.try_send(Ok(next));
                tokio::select! {
                    biased;
                    response = &mut work => break response,
                    () = state.clock.sleep_until(state.clock.now() + interval) => {}
                    () = sender.closed() => {
                        // At the limit, the operation is cancelled by its end here.
                        let Ok(_permit) = state.early_heads.abandoned.try_acquire() else {
                            tracing::warn!(%id, operation = operation.name, "cancelled: its client has disconnected");
                            return;
                        };
                        if let Ok(response) = work.await {
                            log_result(id, operation, response);
                        }
                        return;
                    }
                }
                next = Bytes::from_static(b" ");
            };
            let result = match response {
                Ok(ref response) => response.status(),
                Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
            };
            status.set(result);
            let document = match response {
                Ok(response) => document(id, operation, &resource, response).await,
                Err(_) => error_document(id, &resource, result),
            };
            let end = match result.is_success() || !ignores_errors {
                true => Ok(document),
                false => Err("the operation failed, and its client ignores errors in documents".into()),
            };
            // Sending fails only if the client has disconnected.
            let _ = sender.send(end).await;
        };
        shared.early_heads.tasks.spawn(follow.in_current_span());
        let frames =
            stream::unfold(receiver, async |mut receiver: mpsc::Receiver<Result<Bytes, BoxError>>| {
                let bytes = receiver.recv().await?;
                Some((bytes.map(Frame::data), receiver))
            });
        let mut response = Response::new(ResponseBody::boxed(StreamBody::new(frames)));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        outcome::set_operation(&mut response, operation.name);
        response.extensions_mut().insert(late_status);
        response
    }
}

fn log_result(
    id: RequestId,
    operation: LongOperation,
    mut response: Response<ResponseBody>,
) -> Response<ResponseBody> {
    let logged = response.extensions_mut().remove::<LoggedError>();
    service::log(id, operation.name, response.status(), logged.as_ref());
    response
}

/// The document of a response, without its XML declaration.
async fn document(
    id: RequestId,
    operation: LongOperation,
    resource: &str,
    response: Response<ResponseBody>,
) -> Bytes {
    let response = log_result(id, operation, response);
    let status = response.status();
    match response.into_body().collect().await {
        Ok(body) if status.is_success() => without_declaration(body.to_bytes()),
        _ => error_document(id, resource, status),
    }
}

/// After the head, S3 reports errors with two codes only.
fn error_document(id: RequestId, resource: &str, status: StatusCode) -> Bytes {
    let error = match status {
        StatusCode::SERVICE_UNAVAILABLE => WireError::new(Code::SlowDown, "Please reduce your request rate."),
        _ => WireError::new(Code::InternalError, "We encountered an internal error. Please try again."),
    };
    without_declaration(error.document(id, resource).into())
}

fn without_declaration(document: Bytes) -> Bytes {
    let end = document.windows(2).position(|end| end == b"?>").filter(|_| document.starts_with(b"<?xml"));
    end.map_or_else(|| document.clone(), |end| document.slice(end + 2..))
}
