//! PutObject.

use http::header::ETAG;
use s3s::S3Response;
use s3s::dto::{PutObjectInput, PutObjectOutput};
use tradewind_core::store::{CommitRequest, StageRequest};

use super::answer::quoted;
use super::call::Call;
use super::checksums::{self, Plan};
use super::conditions;
use super::delegate::Delegate;
use super::failure::Result;
use super::metadata;

/// Stages, streams, and commits with everything that was promised.
pub(super) async fn put(
    to: &Delegate,
    call: &Call,
    _: PutObjectInput,
) -> Result<S3Response<PutObjectOutput>> {
    let address = call.address()?;
    let length = call.payload_length()?;
    let plan = Plan::read(call)?;
    let precondition = conditions::of_write(call)?;
    let request = StageRequest {
        metadata: metadata::read(call)?,
        size_hint: Some(length),
        algorithms: plan.algorithm().into_iter().collect(),
        verify_md5: plan.md5.is_some(),
        etag: to.options.etag,
    };
    let mut staged = to.store.stage(&call.context, &address, request).await?;
    call.pour(staged.as_mut()).await?;
    let expected = plan.expected(call, Some(length))?;
    let (committed, _) = staged.commit(CommitRequest { precondition, expected }).await?;
    let mut response = S3Response::new(PutObjectOutput::default());
    response.headers.insert(ETAG, quoted(&committed.etag));
    checksums::add_headers(&mut response.headers, &committed.checksums, Some(committed.scope), None);
    Ok(response)
}
