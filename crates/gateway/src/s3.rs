//! The S3 operations over any store. Authentication and framing are done before a request comes here;
//! `s3s` codes XML and routes the operations that have any, nothing else. Invariants:
//! - a request is exactly one operation that is here, or it is refused (`intent`);
//! - permission is checked before anything is reserved for the request, read of its body or asked of the
//!   store;
//! - payload goes from the body to the store and back buffer by buffer, never through `s3s`;
//! - every error leaves in the form of `crate::error`, those of `s3s` too.

mod answer;
mod attributes;
mod buckets;
mod call;
mod checksums;
mod conditions;
mod copy;
mod delegate;
mod delete;
mod document;
mod encoded_word;
mod failure;
mod intent;
mod list;
mod metadata;
mod multipart;
mod operation;
mod parts;
mod query;
mod read;
mod refusals;
mod tagging;
#[cfg(test)]
mod tests;
mod write;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use s3s::service::{S3Service, S3ServiceBuilder};
use tradewind_core::store::ETagForm;
use tradewind_core::{Context, ObjectStore};

pub use answer::object_headers;
pub(crate) use checksums::add_headers as add_checksum_headers;

use crate::auth::{Authenticated, Identity};
use crate::body::{RequestBody, ResponseBody};
use crate::error::{Code, WireError};
use crate::outcome;
use crate::request_id::RequestId;
use answer::Plain;
use call::Call;
use delegate::Delegate;
use failure::{Failure, Result};
use intent::{Intent, Refused};
use operation::{BodyUse, Operation};
use query::Query;

/// What operations are told once.
#[derive(Debug, Clone)]
pub struct Options {
    /// The region that buckets are in.
    pub region: String,
    /// Which entity tag writes make.
    pub etag: ETagForm,
    /// The owner of everything, as listings name it.
    pub owner_id: String,
    /// How many of a multi-delete's keys are in flight at a time, so that they share commits.
    pub delete_concurrency: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            region: "us-east-1".to_owned(),
            etag: ETagForm::Md5,
            // "tradewind", in the form of AWS's canonical ids: 64 hexadecimal digits.
            owner_id: format!("{:0<64}", "747261646577696e64"),
            delete_concurrency: 64,
        }
    }
}

/// The S3 operations. Cheap to clone.
#[derive(Clone)]
pub struct Operations {
    delegate: Delegate,
    service: S3Service,
}

impl Operations {
    /// The operations over this store.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, options: Options) -> Self {
        let delegate = Delegate { store, options: Arc::new(options) };
        let service = S3ServiceBuilder::new(delegate.clone()).build();
        Self { delegate, service }
    }

    /// Finds out what a request asks for and whether its caller may, so that nothing is reserved for one
    /// who may not: the answer where it is refused. Else [`call`](Self::call) goes on from what was found.
    pub(crate) fn refuse(
        parts: &mut Parts,
        identity: &Identity,
        request_id: RequestId,
    ) -> Option<Response<ResponseBody>> {
        match Intent::read(parts, identity) {
            Ok(intent) => {
                parts.extensions.insert(intent);
                None
            }
            Err(refused) => {
                let is_head = parts.method == Method::HEAD;
                Some(refused.answer(request_id, parts.uri.path(), is_head))
            }
        }
    }

    /// Carries out a request. Its extensions must hold an [`Authenticated`] and a [`Context`]; without
    /// them it is answered with a 500. Dropping the future cancels the operation.
    pub async fn call(&self, request: Request<RequestBody>) -> Response<ResponseBody> {
        let (mut parts, body) = request.into_parts();
        let is_head = parts.method == Method::HEAD;
        let resource = parts.uri.path().to_owned();
        let auth = parts.extensions.remove::<Authenticated>();
        let context = parts.extensions.remove::<Context>();
        let (Some(auth), Some(context)) = (auth, context) else {
            let error = WireError::new(Code::InternalError, "The request was not authenticated.");
            return error.answer(RequestId::next(), &resource, is_head);
        };
        let request_id = auth.request_id;
        let found = match parts.extensions.remove::<Intent>() {
            Some(intent) => Ok(intent),
            None => Intent::read(&mut parts, &auth.identity),
        };
        let intent = match found {
            Ok(intent) => intent,
            Err(refused) => return refused.answer(request_id, &resource, is_head),
        };
        let operation = intent.operation;
        let call = Call::new(intent, parts.headers, auth, context, body);
        match self.carry_out(parts.method, parts.uri, call).await {
            Ok(mut response) => {
                outcome::note_operation(&mut response, operation.name());
                response
            }
            Err(failure) => {
                Refused { failure, operation: Some(operation) }.answer(request_id, &resource, is_head)
            }
        }
    }

    async fn carry_out(&self, method: Method, uri: Uri, call: Call) -> Result<Response<ResponseBody>> {
        call.context.check()?;
        match self.delegate.plain(&call).await {
            Some(plain) => plain.map(Plain::into_response),
            None => self.by_codec(method, uri, Arc::new(call)).await,
        }
    }

    /// Carries out an operation that reads or answers XML.
    async fn by_codec(&self, method: Method, uri: Uri, call: Arc<Call>) -> Result<Response<ResponseBody>> {
        let body = match call.operation.body() {
            BodyUse::Xml(limit) => s3s::Body::from(call.read_xml(limit).await?),
            BodyUse::None | BodyUse::Payload => s3s::Body::empty(),
        };
        let mut bare = Request::new(body);
        *bare.method_mut() = method;
        *bare.uri_mut() = bare_uri(uri, &call.query)?;
        *bare.headers_mut() = bare_headers(call.operation);
        bare.extensions_mut().insert(call.clone());
        let answered = self.service.call(bare).await;
        if let Some(failure) = call.take_failure() {
            return Err(failure);
        }
        let answered = answered.map_err(|e| {
            WireError::with_source(
                Code::InternalError,
                INTERNAL,
                Box::<dyn std::error::Error + Send + Sync>::from(e),
            )
        })?;
        if !answered.status().is_success() {
            return Err(refused_by_s3s(&answered, call.operation));
        }
        let (parts, body) = answered.into_parts();
        let body = match body.bytes() {
            Some(bytes) => ResponseBody::from(reserved(&call, attributes::unquoted(call.operation, bytes))?),
            None => ResponseBody::boxed(body),
        };
        Ok(Response::from_parts(parts, body))
    }
}

/// From here on an answer in XML is worth counting.
const LARGE_ANSWER_BYTES: usize = 16 << 10;

const INTERNAL: &str = "We encountered an internal error. Please try again.";

impl fmt::Debug for Operations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Operations")
    }
}

/// Counts a large answer against the request's memory for as long as it is being sent. All operations
/// that answer so much can be asked for again.
fn reserved(call: &Call, bytes: Bytes) -> Result<Bytes> {
    if bytes.len() < LARGE_ANSWER_BYTES {
        return Ok(bytes);
    }
    let reservation = call.context.window.try_reserve(bytes.len()).ok_or_else(Failure::no_memory)?;
    Ok(reservation.attach(bytes))
}

/// The URI without what `s3s` must not see.
fn bare_uri(uri: Uri, query: &Query) -> Result<Uri> {
    if !query.needs_cut() {
        return Ok(uri);
    }
    let kept = query.cut();
    let text = if kept.is_empty() { uri.path().to_owned() } else { format!("{}?{kept}", uri.path()) };
    text.parse().map_err(|_| WireError::new(Code::InvalidUri, "Couldn't parse the specified URI.").into())
}

/// The few headers that steer the router of `s3s`, with values that pass it; the true ones are read
/// from the call.
fn bare_headers(operation: Operation) -> HeaderMap {
    let mut headers = HeaderMap::new();
    match operation {
        Operation::CopyObject | Operation::UploadPartCopy => {
            headers.insert(copy::SOURCE, http::HeaderValue::from_static("bucket/key"));
        }
        Operation::GetObjectAttributes => {
            headers.insert(attributes::WANTED, http::HeaderValue::from_static("ETag"));
        }
        _ => {}
    }
    headers
}

/// An error that `s3s` found itself, in the form of all others.
fn refused_by_s3s(response: &Response<s3s::Body>, operation: Operation) -> Failure {
    let bytes = response.body().bytes().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
    };
    let code = element("Code").and_then(|code| Code::parse(&code));
    let message = element("Message");
    match (code, response.status()) {
        (Some(Code::MalformedXml), _) => Failure::xml(),
        (Some(Code::MissingRequestBody), _) => {
            Failure::new(Code::MissingRequestBody, "Request Body is empty")
        }
        (Some(code), status) if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED => {
            Failure::new(code, message.unwrap_or_else(|| "The request is not valid.".to_owned()))
        }
        _ => {
            let what =
                format!("{} was answered {} by the codec: {text}", operation.name(), response.status());
            WireError::with_source(Code::InternalError, INTERNAL, what).into()
        }
    }
}
