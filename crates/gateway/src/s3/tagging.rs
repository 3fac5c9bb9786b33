//! The operations on object tags.

use s3s::S3Response;
use s3s::dto::{
    DeleteObjectTaggingInput, DeleteObjectTaggingOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
    PutObjectTaggingInput, PutObjectTaggingOutput, Tag,
};
use tradewind_core::Tags;
use tradewind_core::store::GetRequest;

use super::call::Call;
use super::failure::{Failure, Result};
use super::metadata::checked_tags;
use super::service_context::ServiceContext;

/// GetObjectTagging.
pub(super) async fn get(
    service: &ServiceContext,
    call: &Call,
    _: GetObjectTaggingInput,
) -> Result<S3Response<GetObjectTaggingOutput>> {
    let found = service.store.head(&call.context, &call.address()?, GetRequest::default()).await?;
    let tag = |(key, value): &(String, String)| Tag { key: Some(key.clone()), value: Some(value.clone()) };
    let tag_set = found.info.metadata.tags.pairs().iter().map(tag).collect();
    let version_id = found.info.version.map(|version| version.to_string());
    Ok(S3Response::new(GetObjectTaggingOutput { tag_set, version_id }))
}

/// PutObjectTagging: replaces all tags.
pub(super) async fn put(
    service: &ServiceContext,
    call: &Call,
    input: PutObjectTaggingInput,
) -> Result<S3Response<PutObjectTaggingOutput>> {
    let pair = |tag: Tag| Some((tag.key?, tag.value?));
    let pairs: Option<Vec<_>> = input.tagging.tag_set.into_iter().map(pair).collect();
    let tags = checked_tags(pairs.ok_or_else(Failure::malformed_xml)?)?;
    let version_id = set(service, call, tags).await?;
    Ok(S3Response::new(PutObjectTaggingOutput { version_id }))
}

/// DeleteObjectTagging.
pub(super) async fn delete(
    service: &ServiceContext,
    call: &Call,
    _: DeleteObjectTaggingInput,
) -> Result<S3Response<DeleteObjectTaggingOutput>> {
    let version_id = set(service, call, Tags::default()).await?;
    Ok(S3Response::new(DeleteObjectTaggingOutput { version_id }))
}

/// Sets an object's tags. Returns the id of the version if the request names one.
async fn set(service: &ServiceContext, call: &Call, tags: Tags) -> Result<Option<String>> {
    let address = call.address()?;
    service.store.set_tags(&call.context, &address, tags).await?;
    Ok(address.version.map(|version| version.to_string()))
}
