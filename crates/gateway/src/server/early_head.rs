//! Responses whose head is sent before the result is known: those of copies and completions that take long.
//!
//! A client waits for the first byte of a response for a limited time only, and a copy of a large object takes longer. As in
//! S3, the head then has status 200. The body begins with the XML declaration. A blank follows every few seconds, and then the
//! document with the result, or with an error. Such a response names no version, because its headers were sent before. From
//! then on, the operation runs to its end even if its client disconnects.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::sync::mpsc;
use tracing::Instrument as _;

use super::GatewayState;
use super::admission::{has_query, is_copy};
use super::connection_state::ConnectionState;
use super::service;
use crate::body::{BoxError, RequestBody, ResponseBody};
use crate::error::{Code, WireError};
use crate::outcome::{self, LoggedError};
use crate::request_id::RequestId;

const XML_DECLARATION: &[u8] = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

/// An operation whose head may be early.
#[derive(Debug, Clone, Copy)]
pub(super) struct LongOperation {
    name: &'static str,
    pub id: RequestId,
}

impl LongOperation {
    /// The operation of a request; `None` for all others.
    pub(super) fn recognize(parts: &Parts, id: RequestId) -> Option<Self> {
        let name = match parts.method {
            Method::PUT if is_copy(parts) && has_query(parts, "partNumber") => "UploadPartCopy",
            Method::PUT if is_copy(parts) => "CopyObject",
            Method::POST if has_query(parts, "uploadId") => "CompleteMultipartUpload",
            _ => return None,
        };
        Some(Self { name, id })
    }

    /// Executes the operation. Its response is early if the request was read to its end and the result is not known after
    /// `early_head_time`.
    pub(super) async fn respond(
        self,
        shared: &Arc<GatewayState>,
        connection: &ConnectionState,
        request: Request<RequestBody>,
    ) -> Response<ResponseBody> {
        let interval = shared.config.early_head_time;
        let resource = request.uri().path().to_owned();
        let mut operation = Box::pin({
            let shared = shared.clone();
            async move { shared.operations.call(request).await }
        });
        loop {
            let wait = shared.clock.sleep_until(shared.clock.now() + interval);
            tokio::select! {
                biased;
                response = &mut operation => return response,
                () = wait => {}
            }
            if !connection.is_body_unread() {
                break;
            }
        }
        let (sender, receiver) = mpsc::channel(2);
        let clock = shared.clock.clone();
        let work = async move {
            let mut next = Bytes::from_static(XML_DECLARATION);
            let response = loop {
                // A client that does not read, or has disconnected, needs no blank.
                let _ = sender.try_send(next);
                tokio::select! {
                    biased;
                    response = &mut operation => break response,
                    () = clock.sleep_until(clock.now() + interval) => {}
                }
                next = Bytes::from_static(b" ");
            };
            let document = self.document(response, &resource).await;
            // Sending fails only if the client has disconnected.
            let _ = sender.send(document).await;
        };
        tokio::spawn(work.in_current_span());
        let frames = stream::unfold(receiver, async |mut receiver| {
            let bytes = receiver.recv().await?;
            Some((Ok::<_, BoxError>(Frame::data(bytes)), receiver))
        });
        let mut response = Response::new(ResponseBody::boxed(StreamBody::new(frames)));
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/xml"));
        outcome::set_operation(&mut response, self.name);
        response
    }

    /// The document of a response, without its XML declaration. After the head, S3 reports errors with two codes only.
    async fn document(self, mut response: Response<ResponseBody>, resource: &str) -> Bytes {
        let status = response.status();
        let logged = response.extensions_mut().remove::<LoggedError>();
        service::log(self.id, self.name, status, logged.as_ref());
        let body = response.into_body().collect().await.map(|body| body.to_bytes());
        match body {
            Ok(document) if status.is_success() => without_declaration(document),
            _ => {
                let error = match status {
                    StatusCode::SERVICE_UNAVAILABLE => {
                        WireError::new(Code::SlowDown, "Please reduce your request rate.")
                    }
                    _ => WireError::new(
                        Code::InternalError,
                        "We encountered an internal error. Please try again.",
                    ),
                };
                without_declaration(error.document(self.id, resource).into())
            }
        }
    }
}

fn without_declaration(document: Bytes) -> Bytes {
    let end = document.windows(2).position(|end| end == b"?>").filter(|_| document.starts_with(b"<?xml"));
    end.map_or_else(|| document.clone(), |end| document.slice(end + 2..))
}
