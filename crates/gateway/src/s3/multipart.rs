//! Operations on whole multipart uploads: create, complete, abort, list.

use std::sync::Arc;

use s3s::S3Response;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType, CommonPrefix,
    CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart, CreateMultipartUploadInput,
    CreateMultipartUploadOutput, ListMultipartUploadsInput, ListMultipartUploadsOutput, MultipartUpload,
    StorageClass,
};
use tradewind_core::listing::ListEntry;
use tradewind_core::multipart::{
    CompletePart, CompleteUpload, CreateUpload, ListUploads, PartNumber, UploadId, UploadInfo,
};
use tradewind_core::object::{Committed, ETag};
use tradewind_core::{Address, Algorithm, Checksum, ChecksumScope, Reason};

use super::call::Call;
use super::checksums::{self, fill_checksums, type_mismatch};
use super::classifier::classify;
use super::completed_uploads::{Completion, CompletionRequest};
use super::conditions;
use super::elements;
use super::failure::{Failure, Result};
use super::metadata;
use super::paging::{NameEncoding, page_size};
use super::response::{xml_etag, xml_time};
use super::service_context::ServiceContext;
use super::version_id;
use crate::error::Code;

/// CreateMultipartUpload.
pub(super) async fn create(
    service: &ServiceContext,
    call: &Call,
    _: CreateMultipartUploadInput,
) -> Result<S3Response<CreateMultipartUploadOutput>> {
    let address = call.address()?;
    let checksum = checksum_of_upload(call)?;
    let mut metadata = metadata::read(call)?;
    // The size is not known yet.
    classify(service, call, &mut metadata, None, None);
    let request = CreateUpload { metadata, checksum };
    let id = service.store.create_upload(&call.context, &address, request).await?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(address.bucket.to_string()),
        key: Some(address.key.to_string()),
        upload_id: Some(id.0),
        checksum_algorithm: checksum.map(|(algorithm, _)| ChecksumAlgorithm::from_static(algorithm.name())),
        checksum_type: checksum.map(|(_, scope)| ChecksumType::from_static(scope.name())),
        ..CreateMultipartUploadOutput::default()
    }))
}

/// The checksum in `x-amz-checksum-algorithm` and `x-amz-checksum-type`, with S3's defaults. Fails for the combinations
/// that S3 forbids.
fn checksum_of_upload(call: &Call) -> Result<Option<(Algorithm, ChecksumScope)>> {
    let algorithm = checksums::named_algorithm(call, "x-amz-checksum-algorithm")?;
    let scope = scope(call)?;
    let Some(algorithm) = algorithm else {
        return match scope {
            None => Ok(None),
            Some(_) => Err(Failure::invalid_request(
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            )),
        };
    };
    let scope = scope.unwrap_or(algorithm.default_scope());
    if !algorithm.supports(scope) {
        return Err(Failure::invalid_request(format!(
            "The {} checksum type cannot be used with the {} checksum algorithm.",
            scope.name(),
            algorithm.name().to_ascii_lowercase()
        )));
    }
    Ok(Some((algorithm, scope)))
}

fn scope(call: &Call) -> Result<Option<ChecksumScope>> {
    let text = call.header("x-amz-checksum-type")?;
    let invalid = |_| Failure::invalid_request("Value for x-amz-checksum-type header is invalid.");
    text.map(|text| text.parse().map_err(invalid)).transpose()
}

/// The settings with which the upload was created.
pub(super) async fn upload_info(service: &ServiceContext, call: &Call) -> Result<UploadInfo> {
    let page = service.store.list_parts(&call.context, &call.address()?, &call.upload_id(), None, 1).await?;
    Ok(page.upload)
}

/// CompleteMultipartUpload.
pub(super) async fn complete(
    service: &ServiceContext,
    call: &Arc<Call>,
    input: CompleteMultipartUploadInput,
) -> Result<S3Response<CompleteMultipartUploadOutput>> {
    let address = call.address()?;
    let named = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
    if named.is_empty() {
        return Err(Failure::malformed_xml());
    }
    let parts = named.into_iter().map(complete_part).collect::<Result<Vec<_>>>()?;
    let count = parts.len();
    let (completed_parts, upload) = (parts.clone(), call.upload_id());
    let completing = complete_in_store(service.clone(), call.clone(), parts);
    let request = CompletionRequest {
        address: &address,
        upload: &upload,
        parts: &completed_parts,
        headers: &call.headers,
    };
    let Completion { committed, is_repeated } = service
        .completed_uploads
        .complete(&call.context, request, completing)
        .await
        .map_err(|failure| with_part_etag(failure, &completed_parts))?;
    if is_repeated {
        service.store.head_bucket(&call.context, &address.bucket).await?;
    }
    let mut output = CompleteMultipartUploadOutput {
        bucket: Some(address.bucket.to_string()),
        key: Some(address.key.to_string()),
        location: Some(location(service, call, &address)),
        e_tag: Some(xml_etag(&committed.etag)),
        checksum_type: (!committed.checksums.is_empty())
            .then(|| ChecksumType::from_static(committed.scope.name())),
        version_id: version_id::named_by_write(committed.version.as_ref()).map(ToString::to_string),
        ..CompleteMultipartUploadOutput::default()
    };
    fill_checksums!(output, &committed.checksums, committed.scope, u32::try_from(count).ok());
    Ok(S3Response::new(output))
}

/// Completes an upload in the store, which has not been completed by this process.
async fn complete_in_store(
    service: ServiceContext,
    call: Arc<Call>,
    parts: Vec<CompletePart>,
) -> Result<Committed> {
    let call = &*call;
    let info = upload_info(&service, call).await?;
    check_part_checksums(&info, &parts)?;
    let request = CompleteUpload {
        expected_checksum: expected_checksum(call, &info, parts.len())?,
        expected_size: expected_size(call)?,
        precondition: conditions::write_precondition(call)?,
        parts,
        identity: None,
    };
    let address = call.address()?;
    conditions::check_destination(&service, call, &address, &request.precondition).await?;
    Ok(service.store.complete_upload(&call.context, &address, &call.upload_id(), request).await?)
}

/// Checks that each part has a checksum, which S3 requires for a composite one, and that it is of the upload's
/// algorithm.
fn check_part_checksums(upload: &UploadInfo, parts: &[CompletePart]) -> Result<()> {
    let Some((algorithm, scope)) = upload.checksum else { return Ok(()) };
    for part in parts {
        let number = part.number.get();
        match part.checksum {
            Some(checksum) if checksum.algorithm() != algorithm => {
                return Err(Failure::new(
                    Code::BadDigest,
                    format!(
                        "The {} you specified for part {number} did not match what we received.",
                        checksum.algorithm().name().to_ascii_lowercase()
                    ),
                ));
            }
            None if scope == ChecksumScope::Composite => {
                return Err(Failure::invalid_request(format!(
                    "The upload was created using a {} checksum. The complete request must include the checksum \
                     for each part. It was missing for part {number} in the request.",
                    algorithm.name().to_ascii_lowercase()
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Adds the entity tag that the request names for the part that a failure is about.
fn with_part_etag(failure: Failure, parts: &[CompletePart]) -> Failure {
    let number = failure.error.store_error().and_then(tradewind_core::Error::part);
    match parts.iter().find(|part| Some(part.number) == number) {
        Some(part) => failure.with_field("ETag", part.etag.as_str()),
        None => failure,
    }
}

/// The object's URL for this client: with the host of its request, and the bucket in host or path as in its request.
fn location(service: &ServiceContext, call: &Call, address: &Address) -> String {
    let bucket = if call.is_bucket_in_host { String::new() } else { format!("/{}", address.bucket) };
    let path = format!("{bucket}/{}", NameEncoding::Url.encode(address.key.as_str()));
    match call.header("host") {
        Ok(Some(host)) => format!("http{}://{host}{path}", if service.options.is_tls { "s" } else { "" }),
        _ => path,
    }
}

fn complete_part(part: CompletedPart) -> Result<CompletePart> {
    let (Some(number), Some(etag)) = (part.part_number, part.e_tag) else {
        return Err(Failure::malformed_xml());
    };
    let mut checksum = None;
    let other = part.checksum_sha256.as_deref().map(elements::decode_value);
    let (other, other_text) = other.unzip();
    for (algorithm, text) in [
        (Algorithm::Crc32, part.checksum_crc32.as_deref()),
        (Algorithm::Crc32c, part.checksum_crc32c.as_deref()),
        (Algorithm::Crc64Nvme, part.checksum_crc64nvme.as_deref()),
        (Algorithm::Sha1, part.checksum_sha1.as_deref()),
        (other.unwrap_or(Algorithm::Sha256), other_text),
    ] {
        let Some(text) = text else { continue };
        let value = Checksum::from_base64(algorithm, text).map_err(|_| {
            let name = format!("Checksum{}", algorithm.name());
            Failure::invalid_argument(format!("Value for {name} is invalid."), &name, text)
        })?;
        if checksum.replace(value).is_some() {
            return Err(Failure::invalid_request("A part may have only one checksum."));
        }
    }
    Ok(CompletePart {
        number: PartNumber::new(i64::from(number))?,
        etag: ETag::from_text(etag.value()),
        checksum,
    })
}

/// The checksum declared for the whole object; `None` if absent. Fails if it does not match the upload's settings.
fn expected_checksum(call: &Call, upload: &UploadInfo, count: usize) -> Result<Option<Checksum>> {
    let declared = checksums::completion_checksum(call)?;
    let requested_scope = scope(call)?;
    if declared.is_none() && requested_scope.is_none() {
        return Ok(None);
    }
    let (algorithm, scope) = upload.checksum.unwrap_or((Algorithm::Crc64Nvme, ChecksumScope::FullObject));
    if requested_scope.is_some_and(|requested| requested != scope) {
        return Err(Failure::invalid_request(format!(
            "The upload was created using the {} checksum mode. The complete request must use the same \
             checksum mode.",
            scope.name()
        )));
    }
    let Some((checksum, parts)) = declared else { return Ok(None) };
    if checksum.algorithm() != algorithm {
        return Err(type_mismatch(algorithm, Some(checksum.algorithm())));
    }
    match (scope, parts) {
        (ChecksumScope::FullObject, Some(_)) => Err(checksums::invalid_value(algorithm.header())),
        (ChecksumScope::Composite, Some(parts)) if parts != count => Err(Failure::new(
            Code::BadDigest,
            format!("The {} you specified is for {parts} parts, not for {count}.", algorithm.header()),
        )),
        _ => Ok(Some(checksum)),
    }
}

fn expected_size(call: &Call) -> Result<Option<u64>> {
    let invalid = || Failure::invalid_request("Value for x-amz-mp-object-size header is invalid.");
    call.header("x-amz-mp-object-size")?.map(|text| text.parse().map_err(|_| invalid())).transpose()
}

/// AbortMultipartUpload.
pub(super) async fn abort(
    service: &ServiceContext,
    call: &Call,
    _: AbortMultipartUploadInput,
) -> Result<S3Response<AbortMultipartUploadOutput>> {
    let (address, upload) = (call.address()?, call.upload_id());
    service.completed_uploads.forget(&address, &upload);
    service.store.abort_upload(&call.context, &address, &upload).await?;
    Ok(S3Response::new(AbortMultipartUploadOutput::default()))
}

/// ListMultipartUploads.
pub(super) async fn list(
    service: &ServiceContext,
    call: &Call,
    input: ListMultipartUploadsInput,
) -> Result<S3Response<ListMultipartUploadsOutput>> {
    let encode = NameEncoding::parse(input.encoding_type.as_ref())?;
    let max_uploads = page_size(input.max_uploads, "max-uploads")?;
    let key_marker = input.key_marker.filter(|marker| !marker.is_empty());
    let upload_marker = input.upload_id_marker.filter(|marker| !marker.is_empty() && key_marker.is_some());
    let request = ListUploads {
        prefix: input.prefix.unwrap_or_default(),
        delimiter: input.delimiter.filter(|delimiter| !delimiter.is_empty()),
        after_key: key_marker.clone(),
        after_upload: upload_marker.clone().map(UploadId),
        limit: usize::try_from(max_uploads).unwrap_or_default(),
    };
    let page = service.store.list_uploads(&call.context, call.bucket()?, &request).await;
    let page = page.map_err(|error| match error.reason() {
        Reason::InvalidArgument => {
            let marker = upload_marker.as_deref().unwrap_or_default();
            Failure::invalid_argument("Invalid uploadId marker", "upload-id-marker", marker)
        }
        _ => error.into(),
    })?;
    let (mut uploads, mut prefixes) = (Vec::new(), Vec::new());
    for entry in page.entries {
        match entry {
            ListEntry::CommonPrefix(prefix) => {
                prefixes.push(CommonPrefix { prefix: Some(encode.encode(&prefix)) });
            }
            ListEntry::Key(_, upload) => uploads.push(listed(service, encode, upload)),
        }
    }
    let (next_key, next_upload) = page.next.clone().unzip();
    let output = ListMultipartUploadsOutput {
        bucket: Some(call.bucket()?.to_string()),
        prefix: Some(encode.encode(&request.prefix)),
        delimiter: request.delimiter.as_deref().map(|d| encode.encode(d)),
        key_marker: Some(encode.encode(key_marker.as_deref().unwrap_or_default())),
        upload_id_marker: Some(upload_marker.unwrap_or_default()),
        next_key_marker: next_key.map(|key| encode.encode(&key)),
        next_upload_id_marker: next_upload.map(|upload| upload.map_or_else(String::new, |upload| upload.0)),
        max_uploads: Some(max_uploads),
        is_truncated: Some(page.next.is_some()),
        encoding_type: input.encoding_type,
        uploads: Some(uploads),
        common_prefixes: Some(prefixes),
        request_charged: None,
    };
    Ok(S3Response::new(output))
}

fn listed(service: &ServiceContext, encode: NameEncoding, upload: UploadInfo) -> MultipartUpload {
    MultipartUpload {
        checksum_algorithm: upload
            .checksum
            .map(|(algorithm, _)| ChecksumAlgorithm::from_static(algorithm.name())),
        checksum_type: upload.checksum.map(|(_, scope)| ChecksumType::from_static(scope.name())),
        initiated: upload.initiated.map(xml_time),
        initiator: Some(service.initiator()),
        key: Some(encode.encode(&upload.key)),
        owner: Some(service.owner()),
        storage_class: Some(storage_class(&upload)),
        upload_id: Some(upload.id.0),
    }
}

/// The storage class that the upload's object will have.
pub(super) fn storage_class(upload: &UploadInfo) -> StorageClass {
    match &upload.metadata.headers.storage_class {
        Some(class) => StorageClass::from(class.clone()),
        None => StorageClass::from_static(StorageClass::STANDARD),
    }
}
