//! The operations that read or answer XML go through `s3s`: it decodes the document, routes to the function
//! that does the work, and encodes what that answers. Invariants:
//! - `s3s` is handed a bare request: what it needs to find the route, and nothing that it would misread; the
//!   call itself rides in the extensions;
//! - an operation without a route is `NotImplemented`, by the own answer of the trait of `s3s`;
//! - a failure of ours is answered as it was found, not in the form that `s3s` would give it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use s3s::dto;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Request, S3Response, S3Result};

use super::call::Call;
use super::failure::{Failure, Result};
use super::operation::{BodyUse, COPY_SOURCE, Operation};
use super::query::Query;
use super::site::Site;
use super::{attributes, buckets, copy, delete, document, elements, list, multipart, parts, tagging, zipped};
use crate::body::ResponseBody;
use crate::error::{Code, WireError};

/// From here on an answer in XML is worth counting.
const LARGE_ANSWER_BYTES: usize = 16 << 10;

const INTERNAL: &str = "We encountered an internal error. Please try again.";

/// `s3s` over a site. Cheap to clone.
#[derive(Clone)]
pub(super) struct Codec {
    router: S3Service,
}

impl Codec {
    pub(super) fn new(site: Site) -> Self {
        Self { router: S3ServiceBuilder::new(site).build() }
    }

    /// Carries out a call, whose request had this method and URI.
    pub(super) async fn carry_out(
        &self,
        method: Method,
        uri: Uri,
        call: Arc<Call>,
    ) -> Result<Response<ResponseBody>> {
        let body = match call.operation.body() {
            BodyUse::Xml(limit) => s3s::Body::from(document::read(&call, limit).await?),
            BodyUse::None | BodyUse::Payload => s3s::Body::empty(),
        };
        let mut bare = Request::new(body);
        *bare.method_mut() = method;
        *bare.uri_mut() = bare_uri(uri, &call.query)?;
        *bare.headers_mut() = bare_headers(call.operation);
        bare.extensions_mut().insert(call.clone());
        let answered = self.router.call(bare).await;
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
        let (mut parts, body) = answered.into_parts();
        let body = match body.bytes() {
            Some(bytes) => {
                let bytes = elements::spread(attributes::unquoted(call.operation, bytes));
                let bytes = zipped::body(&call.headers, &mut parts.headers, bytes);
                ResponseBody::from(reserved(&call, bytes)?)
            }
            None => ResponseBody::boxed(body),
        };
        Ok(Response::from_parts(parts, body))
    }
}

macro_rules! routes {
    ($($operation:ident($input:ident) -> $output:ident = $run:path;)*) => {
        #[async_trait]
        impl S3 for Site {
            $(
                async fn $operation(
                    &self,
                    request: S3Request<dto::$input>,
                ) -> S3Result<S3Response<dto::$output>> {
                    let call = Call::of(&request.extensions)?;
                    call.settle($run(self, &call, request.input).await)
                }
            )*
        }
    };
}

routes! {
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput = multipart::abort;
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput = multipart::complete;
    copy_object(CopyObjectInput) -> CopyObjectOutput = copy::object;
    create_bucket(CreateBucketInput) -> CreateBucketOutput = buckets::create;
    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput = multipart::create;
    delete_bucket(DeleteBucketInput) -> DeleteBucketOutput = buckets::delete;
    delete_object_tagging(DeleteObjectTaggingInput) -> DeleteObjectTaggingOutput = tagging::delete;
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = delete::many;
    get_bucket_location(GetBucketLocationInput) -> GetBucketLocationOutput = buckets::location;
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = attributes::get;
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tagging::get;
    head_bucket(HeadBucketInput) -> HeadBucketOutput = buckets::head;
    list_buckets(ListBucketsInput) -> ListBucketsOutput = buckets::list;
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = multipart::list;
    list_objects(ListObjectsInput) -> ListObjectsOutput = list::v1;
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = list::v2;
    list_parts(ListPartsInput) -> ListPartsOutput = parts::list;
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tagging::put;
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = parts::copy;
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
            headers.insert(COPY_SOURCE, http::HeaderValue::from_static("bucket/key"));
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
