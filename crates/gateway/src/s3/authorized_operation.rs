//! The operation that a request selects, determined from its head before resources are reserved for it. A request
//! either selects exactly one supported operation for which the client has permission, or it is rejected.

use http::request::Parts;
use http::{HeaderMap, Method, Response};
use tradewind_core::{BucketName, ObjectKey, VersionId};

use super::classes;
use super::failure::{Failure, Result};
use super::form_upload;
use super::operation::{BodyUse, Operation, Selector, Target, resolve};
use super::query::{Query, percent_decode};
use super::service_context::Options;
use super::unsupported_headers::{self, FixedError};
use super::version_id;
use crate::addressing::BucketInHost;
use crate::auth::{Access, Identity};
use crate::body::ResponseBody;
use crate::error::{Code, WireError};
use crate::outcome;
use crate::request_id::RequestId;

/// The requested operation and its target. The client has permission for it.
#[derive(Debug, Clone)]
pub(super) struct AuthorizedOperation {
    pub(super) operation: Operation,
    pub(super) bucket: Option<BucketName>,
    pub(super) key: Option<ObjectKey>,
    /// The version of the object; `None` for the current one.
    pub(super) version: Option<VersionId>,
    pub(super) query: Query,
    /// The client named the bucket by the host.
    pub(super) is_bucket_in_host: bool,
    /// The error that the headers cause once bucket and object are known to exist.
    pub(super) header_error: Option<FixedError>,
}

impl AuthorizedOperation {
    /// Determines the operation and checks the client's permission for it. Adds to `parts` the headers that a presigned
    /// URL carries in its query.
    pub(super) fn authorize(
        parts: &mut Parts,
        identity: &Identity,
        options: &Options,
    ) -> Result<Self, Rejection> {
        if let Some(error) = anonymous_rejection(parts, identity) {
            return Err(error.into());
        }
        let query = Query::parse(parts.uri.query())?;
        let target = Target::parse(parts.uri.path())?;
        query.lift_headers(&mut parts.headers)?;
        let bucket = target.bucket.as_ref().map(BucketName::as_str);
        if form_upload::is_target(&parts.method, &target, &query) {
            let error = match identity.may(Access::Write, bucket) {
                true => form_upload::error(&parts.headers),
                false => WireError::access_denied(),
            };
            return Err(error.into());
        }
        let selector = Selector::from_headers(&parts.method, &parts.headers);
        let operation = match resolve(&parts.method, &target, &query, selector) {
            Ok(operation) => operation,
            // Before authorization, the response must not reveal which operations are supported.
            Err(_) if !may_see_unsupported(&parts.method, identity, bucket) => {
                return Err(WireError::access_denied().into());
            }
            Err(error) => return Err(error.into()),
        };
        let reject = |failure| Rejection { failure, operation: Some(operation) };
        let access = match operation.access() {
            Access::Read if query.get(version_id::PARAMETER).is_some() => Access::ReadVersion,
            access => access,
        };
        if !identity.may(access, bucket) {
            return Err(reject(WireError::access_denied().into()));
        }
        if operation.body() != BodyUse::Payload {
            query.lift_checksums(&mut parts.headers).map_err(|error| reject(error.into()))?;
        }
        check_owner(&parts.headers, &options.account_id).map_err(reject)?;
        let header_error = unsupported_headers::check(&parts.headers).map_err(reject)?;
        classes::check_headers(operation, &parts.headers).map_err(reject)?;
        let version = version(operation, &query).map_err(reject)?;
        let is_bucket_in_host = parts.extensions.get::<BucketInHost>().is_some();
        let Target { bucket, key } = target;
        Ok(Self { operation, bucket, key, version, query, is_bucket_in_host, header_error })
    }
}

/// The rejection of a request without a signature that cannot be allowed: it is denied, even if it is also malformed.
/// `None` for a read of an object in a public bucket, and for a request with a key.
pub(crate) fn anonymous_rejection(parts: &Parts, identity: &Identity) -> Option<WireError> {
    if identity.key_id().is_some() {
        return None;
    }
    let path = parts.uri.path().strip_prefix('/').unwrap_or_default();
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let is_read = matches!(parts.method, Method::GET | Method::HEAD) && !key.is_empty();
    let bucket = percent_decode(bucket).ok();
    if is_read && identity.may(Access::Read, bucket.as_deref()) {
        return None;
    }
    // The signature of a form upload is in its body.
    let query = Query::parse(parts.uri.query()).unwrap_or_default();
    match Target::parse(parts.uri.path()) {
        Ok(target) if form_upload::is_target(&parts.method, &target, &query) => {
            Some(form_upload::error(&parts.headers))
        }
        _ => Some(WireError::access_denied()),
    }
}

/// The version that the query names. Fails with `InvalidArgument` if it is malformed, or if the operation accepts none.
fn version(operation: Operation, query: &Query) -> Result<Option<VersionId>> {
    match query.get(version_id::PARAMETER) {
        None => Ok(None),
        Some(text) if !operation.accepts_version() => Err(Failure::invalid_argument(
            "This operation does not accept a version-id.",
            version_id::PARAMETER,
            text,
        )),
        Some(text) => version_id::parse(text).map(Some),
    }
}

/// Compares the account that the client expects to own the bucket, or the source of its copy, with that of this server.
fn check_owner(headers: &HeaderMap, account_id: &str) -> Result<()> {
    for name in ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"] {
        for value in headers.get_all(name) {
            let expected = value.as_bytes().trim_ascii();
            if expected.len() != 12 || !expected.iter().all(u8::is_ascii_digit) {
                return Err(Failure::new(
                    Code::InvalidBucketOwnerAccountId,
                    "The value of the expected bucket owner parameter must be an AWS Account ID of 12 digits.",
                ));
            }
            if expected != account_id.as_bytes() {
                return Err(WireError::access_denied().into());
            }
        }
    }
    Ok(())
}

/// Returns true if the response may reveal that the operation is not supported. The client needs the permission for a
/// similar supported operation: listing for a request that only reads, else writing.
fn may_see_unsupported(method: &Method, identity: &Identity, bucket: Option<&str>) -> bool {
    let is_read_only = bucket.is_none() || matches!(*method, Method::GET | Method::HEAD);
    let access = if is_read_only { Access::List } else { Access::Write };
    identity.may(access, bucket)
}

/// A rejected request: the failure, and the operation if it was determined.
#[derive(Debug)]
pub(super) struct Rejection {
    pub(super) failure: Failure,
    pub(super) operation: Option<Operation>,
}

impl Rejection {
    /// The error response.
    pub(super) fn into_response(
        self,
        request_id: RequestId,
        resource: &str,
        is_head: bool,
    ) -> Response<ResponseBody> {
        let Self { failure: Failure { error, headers }, operation } = self;
        let mut response = error.to_response(request_id, resource, is_head);
        if let Some(headers) = headers {
            response.headers_mut().extend(*headers);
        }
        outcome::set_logged_error(&mut response, error);
        if let Some(operation) = operation {
            outcome::set_operation(&mut response, operation.name());
        }
        response
    }
}

impl From<WireError> for Rejection {
    fn from(error: WireError) -> Self {
        Self { failure: error.into(), operation: None }
    }
}
