//! The operations GetObject and HeadObject: whole, by range or by part; conditions; overrides of response headers.

use http::StatusCode;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use tradewind_core::condition::ETagMatch;
use tradewind_core::multipart::PartNumber;
use tradewind_core::object::ETag;
use tradewind_core::store::{GetRequest, GetResponse, Select};
use tradewind_core::{Body, ByteRange, ChecksumScope, Context, Error, ObjectInfo, Reason, Span};

use super::call::Call;
use super::checksums;
use super::classes;
use super::conditions;
use super::failure::{Failure, Result};
use super::metadata;
use super::response::{PlainResponse, add_cache_status, http_date, object_headers, quoted_etag};
use super::service_context::ServiceContext;
use super::version_id;
use crate::error::Code;

/// Query parameters that override a response header.
const OVERRIDES: &[(&str, HeaderName)] = &[
    ("response-cache-control", header::CACHE_CONTROL),
    ("response-content-disposition", header::CONTENT_DISPOSITION),
    ("response-content-encoding", header::CONTENT_ENCODING),
    ("response-content-language", header::CONTENT_LANGUAGE),
    ("response-content-type", header::CONTENT_TYPE),
    ("response-expires", header::EXPIRES),
];

/// A body of at most this size is a single piece, which the connection's queue and the socket accept at once. The store
/// can therefore finish the read at its own speed, even if the client is slow.
const MAX_BRIEF_READ_BYTES: u64 = 256 << 10;

/// Bytes that a store reads in addition to the requested ones: the head of the object's record, and the rest of the first and the
/// last block.
const MAX_EXTRA_READ_BYTES: usize = 128 << 10;

/// GetObject.
pub(super) async fn get(service: &ServiceContext, call: &Call) -> Result<PlainResponse> {
    let request = selection(call)?;
    let overrides = overrides(call)?;
    let update = classes::update_of_read(call)?;
    if !update.is_empty()
        && let Err(error) = classes::change_before_read(service, call, &request, update).await
    {
        return Err(explain(service, call, &request, error).await);
    }
    let (found, select) = match read_selected(service, call, request.clone()).await {
        Ok(found) => found,
        Err(error) => return Err(explain(service, call, &request, error).await),
    };
    trim_window(&call.context, found.span);
    let (mut headers, status) = headers(service, call, select, (&found.info, found.span), overrides).await?;
    add_cache_status(&mut headers, &found.observation);
    Ok(PlainResponse { status, headers, body: Some(found.body) })
}

/// Shrinks the window to what a read of `span` needs, so that other requests need not wait for the rest. The object's
/// size was unknown at admission.
///
/// Also drops the minimum size of the window (see `GatewayConfig::min_window_bytes`) for a body of at most
/// [`MAX_BRIEF_READ_BYTES`]: such a read occupies the store only briefly.
pub(crate) fn trim_window(context: &Context, span: Span) {
    if span.length <= MAX_BRIEF_READ_BYTES {
        context.window.set_min_size(0);
    }
    let bytes = usize::try_from(span.length).unwrap_or(usize::MAX);
    context.window.shrink_to(bytes.saturating_add(MAX_EXTRA_READ_BYTES));
}

/// HeadObject.
pub(super) async fn head(service: &ServiceContext, call: &Call) -> Result<PlainResponse> {
    let request = selection(call)?;
    let overrides = overrides(call)?;
    let found = match service.store.head(&call.context, &call.address()?, request.clone()).await {
        Ok(found) => found,
        Err(error) => return Err(explain(service, call, &request, error).await),
    };
    let (mut headers, status) =
        headers(service, call, request.select, (&found.info, found.span), overrides).await?;
    add_cache_status(&mut headers, &found.observation);
    Ok(PlainResponse::new(status, headers))
}

/// The requested bytes and conditions.
fn selection(call: &Call) -> Result<GetRequest> {
    let range = call.header_list("range")?;
    let select = match (call.query.get("partNumber"), range) {
        (Some(_), Some(_)) => {
            return Err(Failure::invalid_request(
                "Cannot specify both Range header and partNumber query parameter",
            ));
        }
        (Some(_), None) => Select::Part(call.part_number()?),
        (None, Some(range)) => ByteRange::parse(&range).map_or(Select::Whole, Select::Range),
        (None, None) => Select::Whole,
    };
    Ok(GetRequest { select, conditions: conditions::read_conditions(call)?, ..GetRequest::default() })
}

/// Reads an object. A range with `If-Range` is served only if the object has that entity tag, which the store checks
/// atomically with the read. A date in `If-Range` is too coarse for that, so the whole object is served.
async fn read_selected(
    service: &ServiceContext,
    call: &Call,
    mut request: GetRequest,
) -> Result<(GetResponse<Body>, Select), Error> {
    let address = call.address().map_err(|_| Error::new(Reason::InvalidKey, "the request names no key"))?;
    let select = request.select;
    let if_range = call.header("if-range").ok().flatten();
    let (Some(if_range), Select::Range(_)) = (if_range, select) else {
        return Ok((service.store.get(&call.context, &address, request).await?, select));
    };
    if if_range.starts_with('"') && request.conditions.if_match.is_none() {
        let mut guarded = request.clone();
        guarded.conditions.if_match = Some(ETagMatch::OneOf(vec![ETag::from_text(if_range)]));
        match service.store.get(&call.context, &address, guarded).await {
            Err(error) if error.reason() == Reason::PreconditionFailed => {}
            result => return Ok((result?, select)),
        }
    }
    request.select = Select::Whole;
    Ok((service.store.get(&call.context, &address, request).await?, Select::Whole))
}

/// The headers and the status of the response to a read.
async fn headers(
    service: &ServiceContext,
    call: &Call,
    select: Select,
    (info, span): (&ObjectInfo, Span),
    overrides: HeaderMap,
) -> Result<(HeaderMap, StatusCode)> {
    let is_partial = select != Select::Whole && span.length > 0;
    let mut headers = object_headers(info, span, is_partial);
    metadata::add_retention(&mut headers, &info.metadata, call.context.deadline.clock().wall());
    let wants_checksums =
        call.header("x-amz-checksum-mode")?.is_some_and(|mode| mode.eq_ignore_ascii_case("enabled"));
    match select {
        Select::Whole if wants_checksums => {
            checksums::add_headers(&mut headers, &info.checksums, Some(info.scope), info.parts);
        }
        Select::Part(number) => {
            if let Some(parts) = info.parts {
                headers.insert("x-amz-mp-parts-count", parts.into());
            }
            if wants_checksums && info.parts.is_some() {
                let before = PartNumber::new(i64::from(number.get()) - 1).ok();
                let address = call.address()?.with_version(info.version.clone());
                let (parts, _) = service.store.object_parts(&call.context, &address, before, 1).await?;
                if let Some(part) = parts.iter().find(|part| part.number == number) {
                    // The values are those of the part itself, over all of its bytes, whatever the object's scope.
                    let scope = Some(ChecksumScope::FullObject);
                    checksums::add_headers(&mut headers, &part.checksums, scope, None);
                }
            } else if wants_checksums {
                checksums::add_headers(&mut headers, &info.checksums, Some(info.scope), None);
            }
        }
        _ => {}
    }
    headers.extend(overrides);
    let status = if is_partial { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    Ok((headers, status))
}

fn overrides(call: &Call) -> Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (parameter, name) in OVERRIDES {
        let Some(value) = call.query.get(parameter) else { continue };
        if call.auth.identity.key_id().is_none() {
            return Err(Failure::invalid_request(
                "Request specific response headers cannot be used for anonymous GET requests.",
            ));
        }
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|_| {
            let message = format!("Header value cannot be represented: {parameter}");
            Failure::invalid_argument(message, parameter, value)
        })?;
        headers.insert(name.clone(), value);
    }
    Ok(headers)
}

/// Completes the response to a rejected read: a 304 gets validators; a 416 is replaced by S3's error with the size, or
/// for a part by InvalidPartNumber. A second
/// request to the store supplies them, so they may belong to a newer object. They are only advisory.
async fn explain(service: &ServiceContext, call: &Call, request: &GetRequest, error: Error) -> Failure {
    let reason = error.reason();
    let mut failure = Failure::from(error);
    if !matches!(reason, Reason::NotModified | Reason::InvalidRange) {
        return failure;
    }
    let Ok(address) = call.address() else { return failure };
    let Ok(found) = service.store.head(&call.context, &address, GetRequest::default()).await else {
        return failure;
    };
    if reason == Reason::NotModified {
        // The object changed since: its validators do not belong to this 304.
        if request.conditions.check(&found.info.etag, found.info.modified).is_ok() {
            return failure;
        }
        failure = failure
            .with_header(header::ETAG, quoted_etag(&found.info.etag))
            .with_header(header::LAST_MODIFIED, http_date(found.info.modified));
        let cache_control = found.info.metadata.headers.cache_control.as_deref();
        if let Some(Ok(value)) = cache_control.map(HeaderValue::from_str) {
            failure = failure.with_header(header::CACHE_CONTROL, value);
        }
        if let Some(Ok(value)) = found.info.version.map(|version| HeaderValue::from_str(version.as_str())) {
            failure = failure.with_header(version_id::HEADER, value);
        }
        return failure;
    }
    if let Select::Part(_) = request.select {
        let parts = found.info.parts.unwrap_or(1);
        return Failure::new(Code::InvalidPartNumber, "The requested partnumber is not satisfiable.")
            .with_field("ActualPartCount", parts.to_string());
    }
    let failure = Failure::new(Code::InvalidRange, "The requested range is not satisfiable")
        .with_field("ActualObjectSize", found.info.size.to_string());
    match HeaderValue::try_from(format!("bytes */{}", found.info.size)) {
        Ok(value) => failure.with_header(header::CONTENT_RANGE, value),
        Err(_) => failure,
    }
}
