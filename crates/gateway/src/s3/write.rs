//! The operation PutObject.

use http::StatusCode;
use http::header::{ETAG, HeaderMap};
use tradewind_core::store::StageRequest;

use super::call::Call;
use super::checksums::{self, DeclaredChecksums};
use super::conditions;
use super::failure::Result;
use super::metadata;
use super::response::{PlainResponse, quoted_etag};
use super::service_context::ServiceContext;
use super::version_id;

/// PutObject: stages the object, streams its bytes, and commits them with their declared checksums.
pub(super) async fn put(service: &ServiceContext, call: &Call) -> Result<PlainResponse> {
    let address = call.address()?;
    let length = call.payload_length()?;
    let declared = DeclaredChecksums::read(call)?;
    let precondition = conditions::write_precondition(call)?;
    let request = StageRequest {
        metadata: metadata::read(call)?,
        size: Some(length),
        algorithms: declared.algorithm().into_iter().collect(),
        verify_md5: declared.md5.is_some(),
        etag: service.options.etag,
        precondition,
        checksum: declared.in_header,
    };
    let mut staged = service.store.stage(&call.context, &address, request).await?;
    call.stream_payload(staged.as_mut()).await?;
    let expected = declared.expected(call, Some(length))?;
    let (committed, _) = staged.commit(expected).await?;
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(ETAG, quoted_etag(&committed.etag));
    version_id::add_header(&mut headers, committed.version.as_ref());
    checksums::add_headers(&mut headers, &committed.checksums, Some(committed.scope), None);
    Ok(PlainResponse::new(StatusCode::OK, headers))
}
