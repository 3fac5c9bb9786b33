//! The operations DeleteObject and DeleteObjects.

use futures::StreamExt as _;
use http::{HeaderMap, StatusCode};
use s3s::S3Response;
use s3s::dto::{DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, Error, ObjectIdentifier};
use tradewind_core::object::ETag;
use tradewind_core::store::Deleted;
use tradewind_core::{Address, BucketName, ObjectKey, Precondition};

use super::call::Call;
use super::checksums::DeclaredChecksums;
use super::conditions;
use super::failure::{Failure, Result};
use super::operation::key_too_long_error;
use super::response::PlainResponse;
use super::service_context::ServiceContext;
use super::version_id;

/// DeleteObject: succeeds if there is no object, unless a condition requires one. Without a version, it adds a delete
/// marker in a bucket with versioning.
pub(super) async fn delete_object(service: &ServiceContext, call: &Call) -> Result<PlainResponse> {
    let precondition = conditions::delete_precondition(call)?;
    let deleted = service.store.delete(&call.context, &call.address()?, precondition).await?;
    let mut headers = HeaderMap::new();
    version_id::add_deleted_headers(&mut headers, &deleted);
    Ok(PlainResponse::new(StatusCode::NO_CONTENT, headers))
}

/// DeleteObjects: deletes several keys concurrently, so that they share the store's commits. The response has the order
/// of the request.
pub(super) async fn many(
    service: &ServiceContext,
    call: &Call,
    input: DeleteObjectsInput,
) -> Result<S3Response<DeleteObjectsOutput>> {
    if DeclaredChecksums::read(call)?.is_empty() {
        return Err(Failure::invalid_request(
            "Missing required header for this request: Content-MD5 OR x-amz-checksum-*",
        ));
    }
    let objects = input.delete.objects;
    if objects.is_empty() || objects.iter().any(|object| object.key.is_empty()) {
        return Err(Failure::malformed_xml());
    }
    let bucket = call.bucket()?;
    service.store.head_bucket(&call.context, bucket).await?;
    let results: Vec<(ObjectIdentifier, Result<Deleted>)> = futures::stream::iter(objects)
        .map(|object| async move {
            let result = delete_named(service, call, bucket, &object).await;
            (object, result)
        })
        .buffered(service.options.delete_concurrency.max(1))
        .collect()
        .await;
    let quiet = input.delete.quiet.unwrap_or(false);
    let (mut deleted, mut errors) = (Vec::new(), Vec::new());
    for (object, result) in results {
        match result {
            Ok(_) if quiet => {}
            Ok(result) => deleted.push(deleted_object(object, result)),
            Err(failure) => errors.push(Error {
                code: Some(failure.code().as_str().to_owned()),
                key: Some(object.key),
                message: Some(failure.error.message().to_owned()),
                version_id: object.version_id,
            }),
        }
    }
    Ok(S3Response::new(DeleteObjectsOutput {
        deleted: Some(deleted),
        errors: Some(errors),
        request_charged: None,
    }))
}

/// The result for one key: the version that was named, and the delete marker that was added or deleted.
fn deleted_object(object: ObjectIdentifier, result: Deleted) -> DeletedObject {
    let marker = result.version.filter(|_| result.is_delete_marker);
    DeletedObject {
        key: Some(object.key),
        version_id: object.version_id,
        delete_marker: result.is_delete_marker.then_some(true),
        delete_marker_version_id: marker.map(|version| version.to_string()),
    }
}

async fn delete_named(
    service: &ServiceContext,
    call: &Call,
    bucket: &BucketName,
    object: &ObjectIdentifier,
) -> Result<Deleted> {
    if object.size.is_some() || object.last_modified_time.is_some() {
        return Err(Failure::not_implemented("conditions on size or time"));
    }
    let precondition = match object.e_tag.as_ref().map(s3s::dto::ETag::value) {
        None => Precondition::None,
        Some("*") => Precondition::Exists,
        Some(tag) => Precondition::Matches(ETag::from_text(tag)),
    };
    let key = ObjectKey::new(&object.key).map_err(|_| key_too_long_error(&object.key))?;
    let version = object.version_id.as_deref().map(version_id::parse).transpose()?;
    let address = Address::new(bucket.clone(), key).with_version(version);
    Ok(service.store.delete(&call.context, &address, precondition).await?)
}
