//! From an operation to the module that does the work. Those that neither read nor answer XML are called
//! outright; the others by `s3s`, whose trait's own answer to anything else is `NotImplemented`.

use std::sync::Arc;

use async_trait::async_trait;
use s3s::dto;
use s3s::{S3, S3Request, S3Response, S3Result};
use tradewind_core::ObjectStore;

use super::answer::Plain;
use super::call::Call;
use super::failure::Result;
use super::operation::Operation;
use super::{Options, attributes, buckets, copy, delete, list, multipart, parts, read, tagging, write};

/// What every operation works with.
#[derive(Clone)]
pub(super) struct Delegate {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) options: Arc<Options>,
}

impl Delegate {
    /// Carries out an operation without XML; `None` where this is not one.
    pub(super) async fn plain(&self, call: &Call) -> Option<Result<Plain>> {
        match call.operation {
            Operation::GetObject => Some(read::get(self, call).await),
            Operation::HeadObject => Some(read::head(self, call).await),
            Operation::PutObject => Some(write::put(self, call).await),
            Operation::UploadPart => Some(parts::upload(self, call).await),
            Operation::DeleteObject => Some(delete::one(self, call).await),
            _ => None,
        }
    }
}

macro_rules! delegate {
    ($($operation:ident($input:ident) -> $output:ident = $run:path;)*) => {
        #[async_trait]
        impl S3 for Delegate {
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

delegate! {
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
