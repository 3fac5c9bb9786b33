//! The admin API: the paths below `/v1/` of the admin listener. Each call has an AWS Signature Version 4 of the root key
//! for the service [`ADMIN_SERVICE`], in the `Authorization` header, and signs the SHA-256 of its body.
//!
//! - A signature for S3 is not one for this API: a request that was signed for one is rejected by the other.
//! - The signature is verified before the body is read, so only a holder of the root key can make this server buffer.
//! - Bounded are the size of a body, the time of its arrival, concurrent calls, the time to a response, and the
//!   duration of a call. A call ends if its client goes away or stops reading.
//!
//! The gateway knows no call: [`AdminApi`] is implemented by the binary.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt as _};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Limited, StreamBody};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;
use tradewind_core::Clock;
use tradewind_wire::sigv4::{ADMIN_SERVICE, sha256};

use crate::body::{BoxError, ResponseBody};
use crate::error::WireError;
use crate::keys::Keys;
use crate::s3::percent_decode;
use crate::sigv4::{BodyDeclaration, Verifier};

/// The first segment of each path of the API.
const ROOT: &str = "/v1/";
/// The maximum size of a call's body.
const MAX_BODY_BYTES: usize = 64 << 10;
/// The time within which a body must arrive.
const MAX_BODY_TIME: Duration = Duration::from_secs(30);
/// The time to the head of a response.
const MAX_RESPONSE_TIME: Duration = Duration::from_secs(60);
/// The maximum duration of a call whose response is a stream of lines.
const MAX_CALL_TIME: Duration = Duration::from_secs(24 * 3600);
/// The time after which a client that does not read is disconnected.
const MAX_STALL_TIME: Duration = Duration::from_secs(60);
/// The maximum number of concurrent calls.
const MAX_CALLS: usize = 16;
/// Lines that a client may be behind before the call waits for it.
const MAX_QUEUED_LINES: usize = 64;

/// A call by a client that holds the root key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminCall {
    /// The method.
    pub method: Method,
    /// The segments of the path below `/v1/`, without percent-encoding.
    pub path: Vec<String>,
    /// The query as sent, if any.
    pub query: Option<String>,
    /// The body, which the signature covers.
    pub body: Bytes,
}

/// The response to a call.
pub enum AdminResponse {
    /// A status and a JSON document.
    Document {
        /// The status.
        status: StatusCode,
        /// The document.
        json: Bytes,
    },
    /// JSON lines of a call that takes long. Dropping the stream cancels the call.
    Lines(BoxStream<'static, Bytes>),
}

impl AdminResponse {
    /// A document with status 200.
    #[must_use]
    pub fn document(json: &serde_json::Value) -> Self {
        Self::Document { status: StatusCode::OK, json: json.to_string().into() }
    }

    /// An error: `{"error": {"code": ..., "message": ...}}`.
    #[must_use]
    pub fn error(status: StatusCode, code: &str, message: &str) -> Self {
        let json = json!({ "error": { "code": code, "message": message } });
        Self::Document { status, json: json.to_string().into() }
    }
}

impl fmt::Debug for AdminResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Document { status, .. } => write!(f, "Document({status})"),
            Self::Lines(_) => f.write_str("Lines"),
        }
    }
}

/// The calls of the API.
#[async_trait]
pub trait AdminApi: Send + Sync {
    /// Answers a call. The caller holds the root key, and its signature covers method, path, query and body.
    async fn call(&self, call: AdminCall) -> AdminResponse;
}

/// The API with its guards. Cheap to clone.
#[derive(Clone)]
pub struct GuardedApi {
    api: Arc<dyn AdminApi>,
    verifier: Verifier,
    root_id: Arc<str>,
    calls: Arc<Semaphore>,
    /// The calls that stream lines.
    pub(super) streams: TaskTracker,
}

impl fmt::Debug for GuardedApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuardedApi")
    }
}

/// Calls in flight on a connection. The connection is not replaced while there are any.
#[derive(Debug, Clone, Default)]
pub(super) struct CallsInFlight(Arc<AtomicUsize>);

impl CallsInFlight {
    pub fn is_zero(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

/// The right to execute a call, held until the call ends.
struct CallPermit {
    _permit: OwnedSemaphorePermit,
    in_flight: CallsInFlight,
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.in_flight.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A rejected call.
#[derive(Debug)]
struct Rejection {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Rejection {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    fn denied(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "AccessDenied", message)
    }
}

/// Whatever is wrong with a signature: the call is not permitted.
impl From<WireError> for Rejection {
    fn from(error: WireError) -> Self {
        Self::new(StatusCode::FORBIDDEN, error.code().as_str(), error.message())
    }
}

impl GuardedApi {
    /// An API for calls that are signed by the key `root_id`, one of `keys`.
    #[must_use]
    pub fn new(api: Arc<dyn AdminApi>, keys: Keys, root_id: &str, clock: Arc<dyn Clock>) -> Self {
        Self {
            api,
            verifier: Verifier::new(keys, clock, None).for_service(ADMIN_SERVICE),
            root_id: root_id.into(),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            streams: TaskTracker::new(),
        }
    }

    /// Returns true if a path belongs to the API. Such a path is never answered without a signature.
    pub(super) fn owns(path: &str) -> bool {
        path.starts_with(ROOT) || path == ROOT.trim_end_matches('/')
    }

    /// Verifies and executes a call.
    pub(super) async fn respond<B>(
        &self,
        request: Request<B>,
        in_flight: &CallsInFlight,
    ) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = request.into_parts();
        match self.execute(&parts, body, in_flight).await {
            Ok(response) => response,
            Err(Rejection { status, code, message }) => {
                tracing::info!(method = %parts.method, status = status.as_u16(), code, "an admin call was rejected");
                document_response(AdminResponse::error(status, code, &message))
            }
        }
    }

    async fn execute<B>(
        &self,
        parts: &Parts,
        body: B,
        in_flight: &CallsInFlight,
    ) -> Result<Response<ResponseBody>, Rejection>
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let declared = self.authorize(parts)?;
        let permit = self.admit(in_flight)?;
        let body = read_body(body).await?;
        if sha256(&body) != declared {
            return Err(Rejection::new(
                StatusCode::FORBIDDEN,
                "XAmzContentSHA256Mismatch",
                "the body is not the one that was signed: its SHA-256 differs from x-amz-content-sha256",
            ));
        }
        let call = AdminCall {
            method: parts.method.clone(),
            path: segments(parts.uri.path())?,
            query: parts.uri.query().map(str::to_owned),
            body,
        };
        tracing::info!(method = %call.method, path = %call.path.join("/"), "admin call");
        let response = timeout(MAX_RESPONSE_TIME, self.api.call(call)).await.map_err(|_elapsed| {
            Rejection::new(StatusCode::GATEWAY_TIMEOUT, "RequestTimeout", "the call took too long")
        })?;
        Ok(match response {
            AdminResponse::Lines(lines) => self.lines_response(lines, permit),
            document @ AdminResponse::Document { .. } => document_response(document),
        })
    }

    /// Returns the SHA-256 that the body must have.
    fn authorize(&self, parts: &Parts) -> Result<[u8; 32], Rejection> {
        let verified = self.verifier.verify(parts)?;
        let Some(id) = verified.identity.key_id() else {
            return Err(Rejection::denied(format!(
                "paths below {ROOT} need an AWS Signature Version 4 of the root key, for the service \
                 {ADMIN_SERVICE:?}"
            )));
        };
        if verified.presigned {
            return Err(Rejection::denied(
                "the signature must be in the Authorization header, not in the URL",
            ));
        }
        if id != &*self.root_id {
            return Err(Rejection::denied(format!("the key {id:?} is not the root key of this server")));
        }
        match verified.declared {
            BodyDeclaration::Sha256(hash) => Ok(hash),
            BodyDeclaration::Unsigned
            | BodyDeclaration::SignedChunks { .. }
            | BodyDeclaration::UnsignedChunks => {
                Err(Rejection::denied("x-amz-content-sha256 must be the SHA-256 of the body"))
            }
        }
    }

    fn admit(&self, in_flight: &CallsInFlight) -> Result<CallPermit, Rejection> {
        let permit = self.calls.clone().try_acquire_owned().map_err(|_none_left| {
            let message = format!("{MAX_CALLS} admin calls are in flight; retry later");
            Rejection::new(StatusCode::SERVICE_UNAVAILABLE, "SlowDown", message)
        })?;
        in_flight.0.fetch_add(1, Ordering::SeqCst);
        Ok(CallPermit { _permit: permit, in_flight: in_flight.clone() })
    }

    /// Streams lines from a task of its own, so that a client that does not read cannot hold a call forever.
    fn lines_response(
        &self,
        mut lines: BoxStream<'static, Bytes>,
        permit: CallPermit,
    ) -> Response<ResponseBody> {
        let (sender, receiver) = mpsc::channel::<Bytes>(MAX_QUEUED_LINES);
        self.streams.spawn(async move {
            let forward = async {
                while let Some(line) = lines.next().await {
                    if !matches!(timeout(MAX_STALL_TIME, sender.send(line)).await, Ok(Ok(()))) {
                        break;
                    }
                }
            };
            tokio::select! {
                () = sender.closed() => tracing::info!("the client of an admin call went away; the call is cancelled"),
                outcome = timeout(MAX_CALL_TIME, forward) => {
                    if outcome.is_err() {
                        tracing::warn!("an admin call exceeded its time and is cancelled");
                    }
                }
            }
            drop(permit);
        });
        let frames = stream::unfold(receiver, |mut receiver| async move {
            let line = receiver.recv().await?;
            Some((Ok::<_, BoxError>(Frame::data(line)), receiver))
        });
        let mut response = Response::new(ResponseBody::boxed(StreamBody::new(frames)));
        set_type(&mut response, "application/x-ndjson");
        response
    }
}

/// Reads a body within its limits.
async fn read_body<B>(body: B) -> Result<Bytes, Rejection>
where
    B: Body<Data = Bytes> + Send,
    B::Error: Into<BoxError>,
{
    let too_large = || {
        let message = format!("a body may have at most {MAX_BODY_BYTES} bytes");
        Rejection::new(StatusCode::PAYLOAD_TOO_LARGE, "EntityTooLarge", message)
    };
    if body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(too_large());
    }
    match timeout(MAX_BODY_TIME, Limited::new(body, MAX_BODY_BYTES).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(_)) => Err(Rejection::new(StatusCode::BAD_REQUEST, "IncompleteBody", "the body ended early")),
        Err(_elapsed) => {
            let message = "the body did not arrive in time";
            Err(Rejection::new(StatusCode::REQUEST_TIMEOUT, "RequestTimeout", message))
        }
    }
}

/// The segments of a path below [`ROOT`], decoded.
fn segments(path: &str) -> Result<Vec<String>, Rejection> {
    let below = path.strip_prefix(ROOT).unwrap_or_default();
    let decode = |segment: &str| percent_decode(segment).map(|text| text.into_owned());
    let decoded = below.split('/').map(decode).collect::<Result<Vec<_>, _>>();
    decoded.map_err(|_malformed| {
        Rejection::new(StatusCode::BAD_REQUEST, "InvalidURI", "the path is not encoded correctly")
    })
}

fn document_response(response: AdminResponse) -> Response<ResponseBody> {
    let AdminResponse::Document { status, json } = response else {
        return Response::new(ResponseBody::empty());
    };
    let mut response = Response::new(ResponseBody::from(json));
    *response.status_mut() = status;
    set_type(&mut response, "application/json");
    response
}

fn set_type(response: &mut Response<ResponseBody>, media_type: &'static str) {
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

#[cfg(test)]
mod tests;
