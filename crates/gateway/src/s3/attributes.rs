//! The operation GetObjectAttributes.

use bytes::Bytes;
use http::header::LAST_MODIFIED;
use s3s::S3Response;
use s3s::dto::{
    Checksum, ChecksumType, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts,
    ObjectPart, StorageClass,
};
use tradewind_core::multipart::PartNumber;
use tradewind_core::store::GetRequest;
use tradewind_core::{ChecksumScope, ObjectInfo};

use super::call::Call;
use super::checksums::fill_checksums;
use super::conditions;
use super::failure::{Failure, Result};
use super::operation::Operation;
use super::paging::page_size;
use super::response::{http_date, xml_etag};
use super::service_context::ServiceContext;

/// The header that names the requested attributes.
pub(super) const ATTRIBUTES_HEADER: &str = "x-amz-object-attributes";

const ATTRIBUTES: &[&str] = &["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"];

/// GetObjectAttributes.
pub(super) async fn get(
    service: &ServiceContext,
    call: &Call,
    _: GetObjectAttributesInput,
) -> Result<S3Response<GetObjectAttributesOutput>> {
    let wanted = call.header_list(ATTRIBUTES_HEADER)?.unwrap_or_default();
    let wanted: Vec<&str> = wanted.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
    if wanted.is_empty() || wanted.iter().any(|name| !ATTRIBUTES.contains(name)) {
        let value = wanted.join(",");
        return Err(Failure::invalid_argument(
            "Invalid attribute name specified.",
            ATTRIBUTES_HEADER,
            &value,
        ));
    }
    let wants = |name: &str| wanted.contains(&name);
    let address = call.address()?;
    let request = GetRequest { conditions: conditions::read_conditions(call)?, ..GetRequest::default() };
    let info = service.store.head(&call.context, &address, request).await?.info;
    let object_parts = match info.parts {
        Some(total) if wants("ObjectParts") => Some(parts(service, call, &info, total).await?),
        _ => None,
    };
    let storage_class = info.metadata.headers.storage_class.clone();
    let version_id = info.version.as_ref().map(ToString::to_string);
    let output = GetObjectAttributesOutput {
        checksum: wants("Checksum").then(|| checksum(&info)).flatten(),
        e_tag: wants("ETag").then(|| xml_etag(&info.etag)),
        object_parts,
        object_size: wants("ObjectSize").then(|| i64::try_from(info.size).unwrap_or(i64::MAX)),
        storage_class: wants("StorageClass").then(|| {
            storage_class.map_or(StorageClass::from_static(StorageClass::STANDARD), StorageClass::from)
        }),
        version_id,
        ..GetObjectAttributesOutput::default()
    };
    let mut response = S3Response::new(output);
    response.headers.insert(LAST_MODIFIED, http_date(info.modified));
    Ok(response)
}

/// The object's checksums. A composite value has no part count here: `ObjectParts` has it.
fn checksum(info: &ObjectInfo) -> Option<Checksum> {
    if info.checksums.is_empty() {
        return None;
    }
    let mut checksum =
        Checksum { checksum_type: Some(ChecksumType::from_static(info.scope.name())), ..Checksum::default() };
    fill_checksums!(checksum, &info.checksums, info.scope, None);
    Some(checksum)
}

/// The object's parts. As in S3, the individual parts are listed only for a composite checksum.
async fn parts(
    service: &ServiceContext,
    call: &Call,
    info: &ObjectInfo,
    total: u32,
) -> Result<GetObjectAttributesParts> {
    let number = |name: &str| {
        call.header(name)?
            .map(|text| {
                text.parse::<i32>()
                    .map_err(|_| Failure::invalid_argument(format!("{name} must be an integer"), name, text))
            })
            .transpose()
    };
    let max_parts = page_size(number("x-amz-max-parts")?, "max-parts")?;
    let marker = number("x-amz-part-number-marker")?.unwrap_or(0);
    if marker < 0 {
        return Err(Failure::invalid_argument(
            "x-amz-part-number-marker must not be negative",
            "x-amz-part-number-marker",
            &marker.to_string(),
        ));
    }
    let after = PartNumber::new(i64::from(marker)).ok();
    let page_limit = usize::try_from(max_parts).unwrap_or_default();
    let (parts, has_more) = match info.scope {
        ChecksumScope::Composite => {
            let address = call.address()?.with_version(info.version.clone());
            service.store.object_parts(&call.context, &address, after, page_limit).await?
        }
        ChecksumScope::FullObject => (Vec::new(), false),
    };
    let next = parts.last().map_or(marker, |part| i32::from(part.number.get()));
    let listed = parts.iter().map(|part| {
        let mut listed = ObjectPart {
            part_number: Some(i32::from(part.number.get())),
            size: Some(i64::try_from(part.size).unwrap_or(i64::MAX)),
            ..ObjectPart::default()
        };
        fill_checksums!(listed, &part.checksums, ChecksumScope::FullObject, None);
        listed
    });
    Ok(GetObjectAttributesParts {
        is_truncated: Some(has_more),
        max_parts: Some(max_parts),
        next_part_number_marker: Some(next),
        part_number_marker: Some(marker),
        parts: Some(listed.collect()),
        total_parts_count: i32::try_from(total).ok(),
    })
}

/// Removes the quotes from the `ETag`: only this operation returns it without them, but `s3s` always writes them.
pub(super) fn unquote_etag(operation: Operation, body: Bytes) -> Bytes {
    if operation != Operation::GetObjectAttributes {
        return body;
    }
    match std::str::from_utf8(&body) {
        Ok(text) => text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>").into(),
        Err(_) => body,
    }
}
