//! The CORS preflight: a browser's `OPTIONS` before a request of a script. This server has no CORS settings, so the
//! response is that of S3 for a bucket without them. It does not depend on a signature: a browser sends no credentials, and
//! those in a presigned URL are for the method that follows. As in S3, it depends on the existence of the bucket.

use http::request::Parts;
use http::{HeaderName, HeaderValue, Method};
use tradewind_core::{BucketName, Context, ObjectStore};

use super::failure::Failure;
use super::operation::Target;
use crate::error::{Code, WireError};

/// The methods of S3 that a script can use.
const METHODS: [Method; 5] = [Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE];

/// A preflight with all that it needs. The path of its request must begin with the bucket.
#[derive(Debug)]
pub(crate) struct Preflight {
    bucket: Option<BucketName>,
    method: Method,
    resource: &'static str,
}

impl Preflight {
    /// Checks the head of an `OPTIONS` request.
    ///
    /// # Errors
    /// `BadRequest` without an origin, or with a method or headers that no request can have; the error of the path.
    pub(crate) fn parse(parts: &Parts) -> Result<Self, WireError> {
        let text =
            |name: &str| parts.headers.get(name).map(HeaderValue::as_bytes).map(String::from_utf8_lossy);
        let bad = |message: String| WireError::new(Code::BadRequest, message);
        if text("origin").is_none_or(|origin| origin.trim().is_empty()) {
            return Err(bad("Insufficient information. Origin request header needed.".to_owned()));
        }
        let requested = text("access-control-request-method").unwrap_or_default();
        let method = METHODS.into_iter().find(|method| method.as_str() == requested);
        let method =
            method.ok_or_else(|| bad(format!("Invalid Access-Control-Request-Method: {requested}")))?;
        let names = text("access-control-request-headers").unwrap_or_default();
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            if HeaderName::from_bytes(name.as_bytes()).is_err() {
                let message =
                    format!("Access-Control-Request-Headers \"{name}\" contains invalid character.");
                return Err(bad(message));
            }
        }
        let Target { bucket, key } = Target::parse(parts.uri.path())?;
        let resource = if key.is_some() { "OBJECT" } else { "BUCKET" };
        Ok(Self { bucket, method, resource })
    }

    /// The error of this preflight: the bucket does not exist, or it has no CORS settings.
    pub(crate) async fn reject(&self, store: &dyn ObjectStore, context: &Context) -> WireError {
        if let Some(bucket) = &self.bucket
            && let Err(error) = store.head_bucket(context, bucket).await
        {
            let error = Failure::from(error).error;
            return match error.code() {
                Code::NoSuchBucket => error.with_field("BucketName", bucket.as_str()),
                _ => error,
            };
        }
        WireError::new(Code::AccessForbidden, "CORSResponse: CORS is not enabled for this bucket.")
            .with_field("Method", self.method.as_str())
            .with_field("ResourceType", self.resource)
    }
}
