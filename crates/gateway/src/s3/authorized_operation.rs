//! The operation that a request selects, determined from its head before resources are reserved for it. A request
//! either selects exactly one supported operation for which the client has permission, or it is rejected.

use http::request::Parts;
use http::{Method, Response};
use tradewind_core::{BucketName, ObjectKey};

use super::failure::{Failure, Result};
use super::operation::{COPY_SOURCE, Operation, Target, resolve};
use super::query::Query;
use super::unsupported_headers;
use crate::addressing::BucketInHost;
use crate::auth::{Access, Identity};
use crate::body::ResponseBody;
use crate::error::WireError;
use crate::outcome;
use crate::request_id::RequestId;

/// The requested operation and its target. The client has permission for it.
#[derive(Debug, Clone)]
pub(super) struct AuthorizedOperation {
    pub(super) operation: Operation,
    pub(super) bucket: Option<BucketName>,
    pub(super) key: Option<ObjectKey>,
    pub(super) query: Query,
    /// The client named the bucket by the host.
    pub(super) is_bucket_in_host: bool,
}

impl AuthorizedOperation {
    /// Determines the operation and checks the client's permission for it. Adds to `parts` the headers that a presigned
    /// URL carries in its query.
    pub(super) fn authorize(parts: &mut Parts, identity: &Identity) -> Result<Self, Rejection> {
        let query = Query::parse(parts.uri.query())?;
        let target = Target::parse(parts.uri.path())?;
        query.lift_headers(&mut parts.headers)?;
        let bucket = target.bucket.as_ref().map(BucketName::as_str);
        let is_copy = parts.headers.contains_key(COPY_SOURCE);
        let operation = match resolve(&parts.method, &target, &query, is_copy) {
            Ok(operation) => operation,
            // Before authorization, the response must not reveal which operations are supported.
            Err(_) if !may_see_unsupported(&parts.method, identity, bucket) => {
                return Err(WireError::access_denied().into());
            }
            Err(error) => return Err(error.into()),
        };
        let reject = |failure| Rejection { failure, operation: Some(operation) };
        if !identity.may(operation.access(), bucket) {
            return Err(reject(WireError::access_denied().into()));
        }
        unsupported_headers::check(&parts.headers).map_err(reject)?;
        let is_bucket_in_host = parts.extensions.get::<BucketInHost>().is_some();
        Ok(Self { operation, bucket: target.bucket, key: target.key, query, is_bucket_in_host })
    }
}

/// Returns true if the response may reveal that the operation is not supported. The client needs the permission for a
/// similar supported operation: listing for a request that only reads, else writing. `OPTIONS` needs none: a browser's
/// preflight request never carries a key.
fn may_see_unsupported(method: &Method, identity: &Identity, bucket: Option<&str>) -> bool {
    let is_read_only = bucket.is_none() || matches!(*method, Method::GET | Method::HEAD);
    let access = if is_read_only { Access::List } else { Access::Write };
    *method == Method::OPTIONS || identity.may(access, bucket)
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
