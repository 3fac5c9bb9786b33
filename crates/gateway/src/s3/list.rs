//! The operations ListObjects and ListObjectsV2.
//!
//! A page of a service that does not list in byte order is passed on as it comes: the token of ListObjectsV2
//! contains the service's own. The marker of ListObjects is a key, which is no position in another order. So ListObjects
//! rejects such a listing, unless it is one page.

use s3s::S3Response;
use s3s::dto::{
    ChecksumAlgorithm, ChecksumType, CommonPrefix, ListObjectsInput, ListObjectsOutput, ListObjectsV2Input,
    ListObjectsV2Output, Object, ObjectStorageClass,
};
use tradewind_core::listing::{ListEntry, ListPage, ListPosition, ListRequest, ObjectSummary};

use super::call::Call;
use super::failure::Result;
use super::paging::{MAX_ENTRIES, NameEncoding, decode_token, encode_token, page_size};
use super::response::{xml_etag, xml_time};
use super::service_context::ServiceContext;

/// ListObjects.
pub(super) async fn v1(
    service: &ServiceContext,
    call: &Call,
    input: ListObjectsInput,
) -> Result<S3Response<ListObjectsOutput>> {
    let encode = NameEncoding::parse(input.encoding_type.as_ref())?;
    let marker = input.marker.unwrap_or_default();
    let (mut request, max_keys) = request(input.prefix, input.delimiter, input.max_keys)?;
    request.after = Some(marker.as_str()).filter(|marker| !marker.is_empty()).map(ListPosition::after);
    let page = page(service, call, &request, true).await?;
    if request.after.is_some() || page.next.is_some() {
        page.check_order(None)?;
    }
    let next = page.next.as_ref().filter(|_| request.delimiter.is_some());
    let next_marker = next.map(|next| encode.encode(&next.name));
    let is_truncated = page.next.is_some();
    let (contents, common_prefixes) = entries(service, page, encode, true);
    Ok(S3Response::new(ListObjectsOutput {
        name: Some(call.bucket()?.to_string()),
        prefix: Some(encode.encode(&request.prefix)),
        marker: Some(encode.encode(&marker)),
        max_keys: Some(max_keys),
        is_truncated: Some(is_truncated),
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        delimiter: request.delimiter.as_deref().map(|d| encode.encode(d)),
        next_marker,
        encoding_type: input.encoding_type,
        request_charged: None,
    }))
}

/// ListObjectsV2.
pub(super) async fn v2(
    service: &ServiceContext,
    call: &Call,
    input: ListObjectsV2Input,
) -> Result<S3Response<ListObjectsV2Output>> {
    let encode = NameEncoding::parse(input.encoding_type.as_ref())?;
    let (mut request, max_keys) = request(input.prefix, input.delimiter, input.max_keys)?;
    let start_after = input.start_after.filter(|after| !after.is_empty());
    let token = input.continuation_token.as_deref().map(decode_token).transpose()?;
    let is_first = token.is_none();
    request.after = token.or_else(|| start_after.as_ref().map(ListPosition::after));
    let page = page(service, call, &request, is_first).await?;
    let key_count = i32::try_from(page.entries.len()).unwrap_or(MAX_ENTRIES);
    let next = page.next.as_ref().map(encode_token).transpose()?;
    let with_owner = input.fetch_owner.unwrap_or(false);
    let (contents, common_prefixes) = entries(service, page, encode, with_owner);
    Ok(S3Response::new(ListObjectsV2Output {
        name: Some(call.bucket()?.to_string()),
        prefix: Some(encode.encode(&request.prefix)),
        max_keys: Some(max_keys),
        key_count: Some(key_count),
        continuation_token: input.continuation_token,
        is_truncated: Some(next.is_some()),
        next_continuation_token: next,
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        delimiter: request.delimiter.as_deref().map(|d| encode.encode(d)),
        encoding_type: input.encoding_type,
        start_after: start_after.as_deref().map(|after| encode.encode(after)),
        request_charged: None,
    }))
}

fn request(
    prefix: Option<String>,
    delimiter: Option<String>,
    max_keys: Option<i32>,
) -> Result<(ListRequest, i32)> {
    let max_keys = page_size(max_keys, "maxKeys")?;
    let request = ListRequest {
        prefix: prefix.unwrap_or_default(),
        delimiter: delimiter.filter(|delimiter| !delimiter.is_empty()),
        after: None,
        limit: usize::try_from(max_keys).unwrap_or_default(),
    };
    Ok((request, max_keys))
}

/// One page. A marker chosen by the client may lie within a common prefix. S3 then still returns the prefix if it has
/// keys after the marker. The port omits it, because its own pages never end within a prefix. A separate request to the
/// store therefore checks for such keys.
async fn page(
    service: &ServiceContext,
    call: &Call,
    request: &ListRequest,
    is_first: bool,
) -> Result<ListPage<ObjectSummary>> {
    let bucket = call.bucket()?;
    let Some(common) = is_first.then(|| split_prefix(request)).flatten() else {
        let mut page = service.store.list(&call.context, bucket, request).await?;
        if request.limit == 0 {
            page.next = None;
        }
        return Ok(page);
    };
    let within =
        ListRequest { prefix: common.clone(), delimiter: None, after: request.after.clone(), limit: 1 };
    if service.store.list(&call.context, bucket, &within).await?.entries.is_empty() {
        return Ok(service.store.list(&call.context, bucket, request).await?);
    }
    // One entry less, and not one that is removed again: the position of the rest would be a name only.
    let rest = ListRequest { limit: (request.limit - 1).max(1), ..request.clone() };
    let mut page = service.store.list(&call.context, bucket, &rest).await?;
    if request.limit == 1 {
        page.next = page.entries.pop().map(|_| ListPosition::after(common.as_str()));
    }
    page.entries.insert(0, ListEntry::CommonPrefix(common));
    Ok(page)
}

/// The common prefix that contains the client's marker; `None` if there is none.
pub(super) fn split_prefix(request: &ListRequest) -> Option<String> {
    let (after, delimiter) = (request.after_name()?, request.delimiter.as_deref()?);
    let rest = after.strip_prefix(request.prefix.as_str())?;
    let end = request.prefix.len() + rest.find(delimiter)? + delimiter.len();
    (request.limit > 0 && end < after.len()).then(|| after[..end].to_owned())
}

fn entries(
    service: &ServiceContext,
    page: ListPage<ObjectSummary>,
    encode: NameEncoding,
    with_owner: bool,
) -> (Vec<Object>, Vec<CommonPrefix>) {
    let (mut contents, mut prefixes) = (Vec::with_capacity(page.entries.len()), Vec::new());
    for entry in page.entries {
        match entry {
            ListEntry::CommonPrefix(prefix) => {
                prefixes.push(CommonPrefix { prefix: Some(encode.encode(&prefix)) });
            }
            ListEntry::Key(key, summary) => contents.push(Object {
                checksum_algorithm: summary
                    .checksum
                    .map(|(algorithm, _)| vec![ChecksumAlgorithm::from_static(algorithm.name())]),
                checksum_type: summary.checksum.map(|(_, scope)| ChecksumType::from_static(scope.name())),
                e_tag: Some(xml_etag(&summary.etag)),
                key: Some(encode.encode(&key)),
                last_modified: Some(xml_time(summary.modified)),
                owner: with_owner.then(|| service.owner()),
                restore_status: None,
                size: Some(i64::try_from(summary.size).unwrap_or(i64::MAX)),
                storage_class: Some(match summary.storage_class {
                    Some(class) => ObjectStorageClass::from(class),
                    None => ObjectStorageClass::from_static(ObjectStorageClass::STANDARD),
                }),
            }),
        }
    }
    (contents, prefixes)
}
