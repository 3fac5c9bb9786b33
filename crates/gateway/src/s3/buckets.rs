//! The bucket operations: create, delete, head, list, location.

use s3s::S3Response;
use s3s::dto::{
    Bucket, BucketLocationConstraint, CreateBucketInput, CreateBucketOutput, DeleteBucketInput,
    DeleteBucketOutput, GetBucketLocationInput, GetBucketLocationOutput, HeadBucketInput, HeadBucketOutput,
    ListBucketsInput, ListBucketsOutput,
};

use tradewind_core::listing::ListPosition;
use tradewind_core::version::Versioning;
use tradewind_core::{BucketName, Error, Reason};

use super::call::Call;
use super::failure::{Failure, Result};
use super::paging::{decode_token, encode_token};
use super::response::xml_time;
use super::service_context::ServiceContext;
use crate::auth::Access;
use crate::error::{Code, WireError};

const DEFAULT_REGION: &str = "us-east-1";
const MAX_BUCKETS: usize = 10_000;

/// CreateBucket.
pub(super) async fn create(
    service: &ServiceContext,
    call: &Call,
    input: CreateBucketInput,
) -> Result<S3Response<CreateBucketOutput>> {
    let bucket = call.bucket()?;
    let mut names_location = false;
    if let Some(configuration) = input.create_bucket_configuration {
        if configuration.bucket.is_some() || configuration.location.is_some() {
            return Err(Failure::not_implemented("directory buckets"));
        }
        let wanted = configuration.location_constraint.as_ref().map_or("", BucketLocationConstraint::as_str);
        names_location = !wanted.is_empty();
        if names_location && wanted != service.options.region {
            let message = "The specified location-constraint is not valid";
            return Err(Failure::new(Code::InvalidLocationConstraint, message)
                .with_field("LocationConstraint", wanted)
                .with_field("Region", &service.options.region));
        }
    }
    match service.store.create_bucket(&call.context, bucket).await {
        // In its default region, S3 reports success to the owner of the bucket. A bucket of a service may be another owner's.
        Err(error)
            if error.reason() == Reason::BucketExists
                && service.options.region == DEFAULT_REGION
                && !names_location =>
        {
            let owned = service.store.list_buckets(&call.context).await.unwrap_or_default();
            if !owned.iter().any(|owned| owned.name == *bucket) {
                return Err(error.into());
            }
        }
        created => created?,
    }
    Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{bucket}")) }))
}

/// DeleteBucket.
pub(super) async fn delete(
    service: &ServiceContext,
    call: &Call,
    _: DeleteBucketInput,
) -> Result<S3Response<DeleteBucketOutput>> {
    let bucket = call.bucket()?;
    let _forget = service.completed_uploads.forget_bucket_on_drop(bucket);
    match service.store.delete_bucket(&call.context, bucket).await {
        Ok(()) => Ok(S3Response::new(DeleteBucketOutput::default())),
        Err(error) if error.reason() == Reason::BucketNotEmpty => {
            Err(not_empty(service, call, bucket, error).await)
        }
        Err(error) => Err(error.into()),
    }
}

/// The failure of a deletion: a bucket that seems to be empty may have versions.
async fn not_empty(service: &ServiceContext, call: &Call, bucket: &BucketName, error: Error) -> Failure {
    match service.store.versioning(&call.context, bucket).await {
        Ok(Versioning::Enabled | Versioning::Suspended) => {
            let message =
                "The bucket you tried to delete is not empty. You must delete all versions in the bucket.";
            WireError::with_source(Code::BucketNotEmpty, message, error).into()
        }
        Ok(Versioning::Off) | Err(_) => error.into(),
    }
}

/// HeadBucket.
pub(super) async fn head(
    service: &ServiceContext,
    call: &Call,
    _: HeadBucketInput,
) -> Result<S3Response<HeadBucketOutput>> {
    service.store.head_bucket(&call.context, call.bucket()?).await?;
    let output =
        HeadBucketOutput { bucket_region: Some(service.options.region.clone()), ..Default::default() };
    Ok(S3Response::new(output))
}

/// GetBucketLocation. The default region is returned as an empty location.
pub(super) async fn location(
    service: &ServiceContext,
    call: &Call,
    _: GetBucketLocationInput,
) -> Result<S3Response<GetBucketLocationOutput>> {
    service.store.head_bucket(&call.context, call.bucket()?).await?;
    let region = Some(service.options.region.clone()).filter(|region| region != DEFAULT_REGION);
    let output = GetBucketLocationOutput { location_constraint: region.map(BucketLocationConstraint::from) };
    Ok(S3Response::new(output))
}

/// ListBuckets: the buckets visible to the client, in pages if requested.
pub(super) async fn list(
    service: &ServiceContext,
    call: &Call,
    input: ListBucketsInput,
) -> Result<S3Response<ListBucketsOutput>> {
    let limit = match input.max_buckets {
        None => MAX_BUCKETS,
        Some(limit) => {
            let valid = usize::try_from(limit).ok().filter(|limit| (1..=MAX_BUCKETS).contains(limit));
            valid.ok_or_else(|| {
                let message = "Argument max-buckets must be an integer between 1 and 10000.";
                Failure::invalid_argument(message, "max-buckets", &limit.to_string())
            })?
        }
    };
    let after = input.continuation_token.as_deref().map(decode_token).transpose()?.map(|after| after.name);
    let prefix = input.prefix.as_deref().unwrap_or_default();
    let in_region = input.bucket_region.as_deref().is_none_or(|region| region == service.options.region);
    let mut visible = service.store.list_buckets(&call.context).await?.into_iter().filter(|bucket| {
        let name = bucket.name.as_str();
        in_region
            && name.starts_with(prefix)
            && after.as_deref().is_none_or(|after| name > after)
            && call.auth.identity.may(Access::List, Some(name))
    });
    let page: Vec<_> = visible.by_ref().take(limit).collect();
    let next = visible.next().and(page.last()).map(|last| ListPosition::after(last.name.as_str()));
    let next = next.as_ref().map(encode_token).transpose()?;
    let buckets = page.into_iter().map(|bucket| Bucket {
        name: Some(bucket.name.to_string()),
        // Clients such as `aws s3 ls` fail without it; 1970 stands for an unknown time.
        creation_date: Some(xml_time(bucket.created.unwrap_or_default())),
        bucket_region: Some(service.options.region.clone()),
    });
    Ok(S3Response::new(ListBucketsOutput {
        buckets: Some(buckets.collect()),
        continuation_token: next,
        owner: Some(service.owner()),
        prefix: input.prefix,
    }))
}
