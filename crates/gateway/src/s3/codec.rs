//! The path of operations that read or return XML through `s3s`, which decodes the document, routes to the function
//! that executes the operation, and encodes its output. Invariants:
//! - `s3s` gets a bare request: only what it needs for routing, and nothing that it would misread; the call itself is
//!   in the extensions;
//! - an operation without a route is `NotImplemented`, the default of the trait in `s3s`;
//! - a failure of an operation is returned unchanged, not in the format of `s3s`.

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
use super::service_context::ServiceContext;
use super::{
    attributes, buckets, copy, delete, document, elements, gzip, list, list_versions, multipart, parts,
    tagging, versioning,
};
use crate::body::ResponseBody;
use crate::error::{Code, WireError};

/// From this size on, an XML response is counted against the request's memory.
const MIN_RESERVED_RESPONSE_BYTES: usize = 16 << 10;

const INTERNAL_ERROR_MESSAGE: &str = "We encountered an internal error. Please try again.";

/// The router and codec of `s3s` for a service. Cheap to clone.
#[derive(Clone)]
pub(super) struct Codec {
    router: S3Service,
}

impl Codec {
    pub(super) fn new(service: ServiceContext) -> Self {
        Self { router: S3ServiceBuilder::new(service).build() }
    }

    /// Executes a call, whose request had this method and URI.
    pub(super) async fn execute(
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
        let response = self.router.call(bare).await;
        if let Some(failure) = call.take_failure() {
            return Err(failure);
        }
        let response = response.map_err(|e| {
            WireError::with_source(
                Code::InternalError,
                INTERNAL_ERROR_MESSAGE,
                Box::<dyn std::error::Error + Send + Sync>::from(e),
            )
        })?;
        if !response.status().is_success() {
            return Err(s3s_failure(&response, call.operation));
        }
        let (mut parts, body) = response.into_parts();
        let body = match body.bytes() {
            Some(bytes) => {
                let bytes = attributes::unquote_etag(call.operation, bytes);
                let bytes = list_versions::rename_delete_markers(call.operation, bytes);
                let bytes = elements::expand_values(bytes);
                let bytes = escape_carriage_returns(bytes);
                let bytes = gzip::compress_body(&call.headers, &mut parts.headers, bytes);
                ResponseBody::from(reserve_response(&call, bytes)?)
            }
            None => ResponseBody::boxed(body),
        };
        Ok(Response::from_parts(parts, body))
    }
}

macro_rules! routes {
    ($($operation:ident($input:ident) -> $output:ident = $run:path;)*) => {
        #[async_trait]
        impl S3 for ServiceContext {
            $(
                async fn $operation(
                    &self,
                    request: S3Request<dto::$input>,
                ) -> S3Result<S3Response<dto::$output>> {
                    let call = Call::from_extensions(&request.extensions)?;
                    call.to_s3s_result($run(self, &call, request.input).await)
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
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = versioning::get;
    get_object_attributes(GetObjectAttributesInput) -> GetObjectAttributesOutput = attributes::get;
    get_object_tagging(GetObjectTaggingInput) -> GetObjectTaggingOutput = tagging::get;
    head_bucket(HeadBucketInput) -> HeadBucketOutput = buckets::head;
    list_buckets(ListBucketsInput) -> ListBucketsOutput = buckets::list;
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput = multipart::list;
    list_object_versions(ListObjectVersionsInput) -> ListObjectVersionsOutput = list_versions::list;
    list_objects(ListObjectsInput) -> ListObjectsOutput = list::v1;
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = list::v2;
    list_parts(ListPartsInput) -> ListPartsOutput = parts::list;
    put_bucket_versioning(PutBucketVersioningInput) -> PutBucketVersioningOutput = versioning::put;
    put_object_tagging(PutObjectTaggingInput) -> PutObjectTaggingOutput = tagging::put;
    upload_part_copy(UploadPartCopyInput) -> UploadPartCopyOutput = parts::copy;
}

/// Reserves the request's memory for a large response until it is sent. All operations with such responses can be
/// retried.
fn reserve_response(call: &Call, bytes: Bytes) -> Result<Bytes> {
    if bytes.len() < MIN_RESERVED_RESPONSE_BYTES {
        return Ok(bytes);
    }
    let reservation = call.context.window.try_reserve(bytes.len()).ok_or_else(Failure::no_memory)?;
    Ok(reservation.attach(bytes))
}

/// Escapes the carriage returns in a document, which `s3s` writes unescaped: a parser would return a line feed, and with
/// it another key. Outside of text, `s3s` writes none.
fn escape_carriage_returns(document: Bytes) -> Bytes {
    if memchr::memchr(b'\r', &document).is_none() {
        return document;
    }
    let mut escaped = Vec::with_capacity(document.len() + document.len() / 8);
    for (index, text) in document.split(|byte| *byte == b'\r').enumerate() {
        if index > 0 {
            escaped.extend_from_slice(b"&#13;");
        }
        escaped.extend_from_slice(text);
    }
    escaped.into()
}

/// The URI without the parameters that `s3s` must not see.
fn bare_uri(uri: Uri, query: &Query) -> Result<Uri> {
    if !query.has_hidden_parameters() {
        return Ok(uri);
    }
    let kept = query.without_hidden_parameters();
    let text = if kept.is_empty() { uri.path().to_owned() } else { format!("{}?{kept}", uri.path()) };
    text.parse().map_err(|_| WireError::new(Code::InvalidUri, "Couldn't parse the specified URI.").into())
}

/// The headers that the router of `s3s` needs, with valid placeholder values. The actual values are read from the call.
fn bare_headers(operation: Operation) -> HeaderMap {
    let mut headers = HeaderMap::new();
    match operation {
        Operation::CopyObject | Operation::UploadPartCopy => {
            headers.insert(COPY_SOURCE, http::HeaderValue::from_static("bucket/key"));
        }
        Operation::GetObjectAttributes => {
            headers.insert(attributes::ATTRIBUTES_HEADER, http::HeaderValue::from_static("ETag"));
        }
        _ => {}
    }
    headers
}

/// An error detected by `s3s`, in the format of all others.
fn s3s_failure(response: &Response<s3s::Body>, operation: Operation) -> Failure {
    let bytes = response.body().bytes().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.to_owned())
    };
    let code = element("Code").and_then(|code| Code::parse(&code));
    let message = element("Message");
    match (code, response.status()) {
        (Some(Code::MalformedXml), _) => Failure::malformed_xml(),
        (Some(Code::MissingRequestBody), _) => {
            Failure::new(Code::MissingRequestBody, "Request Body is empty")
        }
        (Some(code), status) if status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED => {
            Failure::new(code, message.unwrap_or_else(|| "The request is not valid.".to_owned()))
        }
        _ => {
            let message =
                format!("the codec returned {} for {}: {text}", response.status(), operation.name());
            WireError::with_source(Code::InternalError, INTERNAL_ERROR_MESSAGE, message).into()
        }
    }
}
