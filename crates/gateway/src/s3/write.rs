//! The operation PutObject.

use http::StatusCode;
use http::header::{ETAG, HeaderMap};
use tradewind_core::Classes;
use tradewind_core::object::{Committed, Expected};
use tradewind_core::store::StageRequest;

use super::call::Call;
use super::checksums::{self, DeclaredChecksums};
use super::class_body::ClassBody;
use super::classes;
use super::classifier::classify;
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
    let mut request = StageRequest {
        metadata: metadata::read(call)?,
        size: Some(length),
        algorithms: declared.algorithm().into_iter().collect(),
        verify_md5: declared.md5.is_some(),
        etag: service.options.etag,
        precondition: conditions::write_precondition(call)?,
        checksum: declared.in_header,
        identity: None,
    };
    if classes::has_object_file(call)? {
        let body = ClassBody::open(call, declared).await?;
        return put_data(service, call, request, body).await;
    }
    request.metadata.classes.check_within(length)?;
    classify(service, call, &mut request.metadata, Some(length), None);
    let mut staged = service.store.stage(&call.context, &address, request).await?;
    call.stream_payload(staged.as_mut()).await?;
    let expected = declared.expected(call, Some(length))?;
    let (committed, _) = staged.commit(expected).await?;
    Ok(response(&committed))
}

/// Stores the data after a class section. The checksums of the request cover the whole body and are verified here; what
/// the store computes covers the data.
async fn put_data(
    service: &ServiceContext,
    call: &Call,
    mut request: StageRequest,
    mut body: ClassBody<'_>,
) -> Result<PlainResponse> {
    let (classes, size) = body.classes(call.payload_length()?)?;
    let retention = request.metadata.classes.retention;
    request.metadata.classes = Classes { retention, ..classes };
    classify(service, call, &mut request.metadata, Some(size), None);
    request.size = Some(size);
    request.verify_md5 = false;
    request.checksum = None;
    let mut staged = service.store.stage(&call.context, &call.address()?, request).await?;
    while let Some(bytes) = body.next().await? {
        staged.write(bytes).await?;
    }
    body.verify()?;
    let expected = Expected { size: Some(size), ..Expected::default() };
    let (committed, _) = staged.commit(expected).await?;
    Ok(response(&committed))
}

fn response(committed: &Committed) -> PlainResponse {
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(ETAG, quoted_etag(&committed.etag));
    version_id::add_header(&mut headers, version_id::named_by_write(committed.version.as_ref()));
    checksums::add_headers(&mut headers, &committed.checksums, Some(committed.scope), None);
    PlainResponse::new(StatusCode::OK, headers)
}
