//! The operation PutObject.

use http::StatusCode;
use http::header::{ETAG, HeaderMap};
use tradewind_core::store::StageRequest;

use super::answer::{Plain, quoted};
use super::call::Call;
use super::checksums::{self, Plan};
use super::conditions;
use super::failure::Result;
use super::metadata;
use super::site::ServiceContext;

/// PutObject: stages the object, streams its bytes, and commits them with their declared checksums.
pub(super) async fn put(service: &ServiceContext, call: &Call) -> Result<Plain> {
    let address = call.address()?;
    let length = call.payload_length()?;
    let plan = Plan::read(call)?;
    let precondition = conditions::of_write(call)?;
    let request = StageRequest {
        metadata: metadata::read(call)?,
        size: Some(length),
        algorithms: plan.algorithm().into_iter().collect(),
        verify_md5: plan.md5.is_some(),
        etag: service.options.etag,
        precondition,
        checksum: None,
    };
    let mut staged = service.store.stage(&call.context, &address, request).await?;
    call.pour(staged.as_mut()).await?;
    let expected = plan.expected(call, Some(length))?;
    let (committed, _) = staged.commit(expected).await?;
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(ETAG, quoted(&committed.etag));
    checksums::add_headers(&mut headers, &committed.checksums, Some(committed.scope), None);
    Ok(Plain::new(StatusCode::OK, headers))
}
