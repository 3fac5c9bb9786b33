//! Operations on the parts of an upload: upload, copy, list.

use http::StatusCode;
use http::header::{ETAG, HeaderMap};
use s3s::S3Response;
use s3s::dto::{
    ChecksumAlgorithm, ChecksumType, CopyPartResult, ListPartsInput, ListPartsOutput, Part,
    UploadPartCopyInput, UploadPartCopyOutput,
};
use tradewind_core::multipart::PartNumber;
use tradewind_core::store::{CopyPartRequest, StageRequest};
use tradewind_core::{Algorithm, ByteRange, Checksum, ChecksumScope, Reason};

use super::call::Call;
use super::checksums::{self, DeclaredChecksums, fill_checksums, type_mismatch};
use super::conditions;
use super::copy::parse_source;
use super::failure::{Failure, Result};
use super::multipart::{storage_class, upload_info};
use super::paging::page_size;
use super::response::{PlainResponse, quoted_etag, xml_etag, xml_time};
use super::service_context::ServiceContext;

/// The header with the range of a copy's source.
const COPY_SOURCE_RANGE: &str = "x-amz-copy-source-range";

/// UploadPart. The upload determines the checksum of its object, which is computed even if the client sends none.
pub(super) async fn upload(service: &ServiceContext, call: &Call) -> Result<PlainResponse> {
    let (address, number) = (call.address()?, call.part_number()?);
    let length = call.payload_length()?;
    let declared = DeclaredChecksums::read(call)?;
    let upload_checksum = upload_info(service, call).await?.checksum;
    let upload_algorithm = upload_checksum.map(|(algorithm, _)| algorithm);
    // A URL presigned by an SDK names the algorithm in its query.
    if let (Some((algorithm, ChecksumScope::Composite)), None) = (upload_checksum, declared.algorithm())
        && !call.query.has_checksum(algorithm)
    {
        return Err(type_mismatch(algorithm, None));
    }
    let algorithms = algorithms(upload_algorithm, declared.algorithm())?;
    // The response has the checksum that the client declared, else the one that the upload determines, else all.
    let returned = declared.algorithm().or(upload_algorithm);
    let request = StageRequest {
        size: Some(length),
        algorithms,
        verify_md5: declared.md5.is_some(),
        etag: service.options.etag,
        checksum: declared.in_header,
        ..StageRequest::default()
    };
    let mut staged =
        service.store.stage_part(&call.context, &address, &call.upload_id(), number, request).await?;
    call.stream_payload(staged.as_mut()).await?;
    let expected = declared.expected(call, Some(length))?;
    let (committed, _) = staged.commit(expected).await?;
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(ETAG, quoted_etag(&committed.etag));
    let checksums: Vec<Checksum> = committed
        .checksums
        .into_iter()
        .filter(|c| returned.is_none_or(|algorithm| c.algorithm() == algorithm))
        .collect();
    checksums::add_headers(&mut headers, &checksums, None, None);
    Ok(PlainResponse::new(StatusCode::OK, headers))
}

/// The checksums to compute for a part: the one that the upload's object has, and the one that the client declared.
fn algorithms(upload: Option<Algorithm>, declared: Option<Algorithm>) -> Result<Vec<Algorithm>> {
    match (upload, declared) {
        (Some(upload), Some(declared)) if upload != declared => Err(type_mismatch(upload, Some(declared))),
        (Some(upload), _) => Ok(vec![upload]),
        // Without a setting, the object has a CRC-64/NVME.
        (None, Some(declared)) if declared != Algorithm::Crc64Nvme => {
            Ok(vec![Algorithm::Crc64Nvme, declared])
        }
        (None, _) => Ok(Vec::new()),
    }
}

/// UploadPartCopy.
pub(super) async fn copy(
    service: &ServiceContext,
    call: &Call,
    _: UploadPartCopyInput,
) -> Result<S3Response<UploadPartCopyOutput>> {
    let request = CopyPartRequest {
        source: parse_source(call)?,
        range: call.header(COPY_SOURCE_RANGE)?.map(copy_range).transpose()?,
        source_conditions: conditions::source_conditions(call)?,
        destination: call.address()?,
        upload: call.upload_id(),
        number: call.part_number()?,
        etag: service.options.etag,
    };
    let committed =
        service.store.copy_part(&call.context, request).await.map_err(|error| match error.reason() {
            Reason::InvalidRange => {
                let range = call.header(COPY_SOURCE_RANGE).ok().flatten().unwrap_or_default();
                Failure::invalid_argument(
                    "Range specified is not valid for the source object",
                    COPY_SOURCE_RANGE,
                    range,
                )
            }
            _ => conditions::source_failure(error),
        })?;
    let mut result = CopyPartResult {
        e_tag: Some(xml_etag(&committed.etag)),
        last_modified: Some(xml_time(committed.modified)),
        ..CopyPartResult::default()
    };
    fill_checksums!(result, &committed.checksums, ChecksumScope::FullObject, None);
    Ok(S3Response::new(UploadPartCopyOutput {
        copy_part_result: Some(result),
        copy_source_version_id: committed.source_version.map(|version| version.to_string()),
        ..UploadPartCopyOutput::default()
    }))
}

/// Parses the range of a copy. Both ends must be given.
fn copy_range(text: &str) -> Result<ByteRange> {
    match ByteRange::parse(text) {
        Some(range @ ByteRange::Inclusive { .. }) => Ok(range),
        _ => Err(Failure::invalid_argument(
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are \
             the zero-based offsets of the first and last bytes to copy",
            COPY_SOURCE_RANGE,
            text,
        )),
    }
}

/// ListParts.
pub(super) async fn list(
    service: &ServiceContext,
    call: &Call,
    input: ListPartsInput,
) -> Result<S3Response<ListPartsOutput>> {
    let address = call.address()?;
    let max_parts = page_size(input.max_parts, "max-parts")?;
    let marker = input.part_number_marker.unwrap_or(0);
    let after = match marker {
        0 => None,
        marker => Some(PartNumber::new(i64::from(marker)).map_err(|_| {
            Failure::invalid_argument(
                "Argument part-number-marker must be an integer between 0 and 10000",
                "part-number-marker",
                &marker.to_string(),
            )
        })?),
    };
    let page_limit = usize::try_from(max_parts).unwrap_or_default();
    let page =
        service.store.list_parts(&call.context, &address, &call.upload_id(), after, page_limit).await?;
    let next = page.next.filter(|_| page_limit > 0);
    let last = page.parts.last().map_or(marker, |part| i32::from(part.number.get()));
    let checksum = page.upload.checksum;
    let parts = page.parts.iter().map(|part| {
        let mut listed = Part {
            e_tag: Some(xml_etag(&part.etag)),
            last_modified: part.modified.map(xml_time),
            part_number: Some(i32::from(part.number.get())),
            size: Some(i64::try_from(part.size).unwrap_or(i64::MAX)),
            ..Part::default()
        };
        let is_listed = |c: &&Checksum| checksum.is_none_or(|(algorithm, _)| c.algorithm() == algorithm);
        fill_checksums!(listed, part.checksums.iter().filter(is_listed), ChecksumScope::FullObject, None);
        listed
    });
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(address.bucket.to_string()),
        key: Some(address.key.to_string()),
        upload_id: Some(page.upload.id.0.clone()),
        checksum_algorithm: checksum.map(|(algorithm, _)| ChecksumAlgorithm::from_static(algorithm.name())),
        checksum_type: checksum.map(|(_, scope)| ChecksumType::from_static(scope.name())),
        initiator: Some(service.initiator()),
        owner: Some(service.owner()),
        is_truncated: Some(next.is_some()),
        max_parts: Some(max_parts),
        part_number_marker: Some(marker),
        next_part_number_marker: Some(last),
        parts: Some(parts.collect()),
        storage_class: Some(storage_class(&page.upload)),
        ..ListPartsOutput::default()
    }))
}
