//! One request to an operation. Operations without XML get it directly and never involve `s3s`.
//!
//! An operation with XML is routed by `s3s`, which gets only method, path, query and, if any, the XML body. The
//! [`Call`] accompanies that request in its extensions and holds everything else: `s3s` would misread some of it (lists
//! of tags, ranges to be ignored, dates, metadata that is not ASCII), and payload must not pass through `s3s`. A
//! failure of the operation returns through the [`Call`], too.

use std::sync::Arc;

use futures::StreamExt as _;
use http::{Extensions, HeaderMap, HeaderValue};
use parking_lot::Mutex;
use s3s::{S3Error, S3ErrorCode, S3Result};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::{Address, BucketName, Context, ObjectKey, Staged, VersionId};

use super::authorized_operation::AuthorizedOperation;
use super::failure::{Failure, Result};
use super::operation::Operation;
use super::query::Query;
use super::unsupported_headers::FixedError;
use crate::auth::{Access, Authenticated};
use crate::body::RequestBody;
use crate::error::{Code, WireError};

/// S3's maximum size of one PUT or one part.
const MAX_PUT_BYTES: u64 = 5 << 30;

/// A request to an operation, except for the parts that `s3s` decodes: the XML body and the parameters of its
/// operations.
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) bucket: Option<BucketName>,
    pub(super) key: Option<ObjectKey>,
    version: Option<VersionId>,
    pub(super) headers: HeaderMap,
    pub(super) query: Query,
    pub(super) is_bucket_in_host: bool,
    /// The error that the headers cause once bucket and object are known to exist.
    pub(super) header_error: Option<FixedError>,
    pub(super) auth: Authenticated,
    pub(super) context: Context,
    body: Mutex<Option<RequestBody>>,
    /// The failure of an operation called by `s3s`.
    failure: Mutex<Option<Failure>>,
}

impl Call {
    pub(super) fn new(
        authorized: AuthorizedOperation,
        headers: HeaderMap,
        auth: Authenticated,
        context: Context,
        body: RequestBody,
    ) -> Self {
        let AuthorizedOperation { operation, bucket, key, version, query, is_bucket_in_host, header_error } =
            authorized;
        Self {
            operation,
            bucket,
            key,
            version,
            headers,
            query,
            is_bucket_in_host,
            header_error,
            auth,
            context,
            body: Mutex::new(Some(body)),
            failure: Mutex::default(),
        }
    }

    /// The call of a request inside `s3s`.
    pub(super) fn from_extensions(extensions: &Extensions) -> S3Result<Arc<Self>> {
        extensions.get::<Arc<Self>>().cloned().ok_or_else(|| S3Error::new(S3ErrorCode::InternalError))
    }

    /// Converts an operation's result for `s3s`, and stores the failure for [`take_failure`](Self::take_failure).
    pub(super) fn to_s3s_result<T>(&self, result: Result<T>) -> S3Result<T> {
        result.map_err(|failure| {
            *self.failure.lock() = Some(failure);
            S3Error::new(S3ErrorCode::InternalError)
        })
    }

    /// Takes the failure that an operation stored.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().take()
    }

    /// The addressed bucket.
    pub(super) fn bucket(&self) -> Result<&BucketName> {
        self.bucket
            .as_ref()
            .ok_or_else(|| Failure::new(Code::InvalidBucketName, "The request names no bucket."))
    }

    /// The addressed object, with the version that the query names.
    pub(super) fn address(&self) -> Result<Address> {
        let key = self.key.clone().ok_or_else(|| Failure::invalid_request("The request names no key."))?;
        Ok(Address::new(self.bucket()?.clone(), key).with_version(self.version.clone()))
    }

    /// The upload named by the query.
    pub(super) fn upload_id(&self) -> UploadId {
        UploadId(self.query.get("uploadId").unwrap_or_default().to_owned())
    }

    /// The part named by the query.
    pub(super) fn part_number(&self) -> Result<PartNumber> {
        let text = self.query.get("partNumber").unwrap_or_default();
        text.parse().ok().and_then(|number| PartNumber::new(number).ok()).ok_or_else(|| {
            let message = "Part number must be an integer between 1 and 10000, inclusive.";
            Failure::invalid_argument(message, "partNumber", text)
        })
    }

    /// Checks the client's permission. Fails with `AccessDenied`.
    pub(super) fn require_access(&self, access: Access, bucket: Option<&BucketName>) -> Result<()> {
        if self.auth.identity.may(access, bucket.map(BucketName::as_str)) {
            return Ok(());
        }
        Err(WireError::access_denied().into())
    }

    /// A header's text, trimmed; `None` if it is absent or empty. Fails if it is repeated.
    pub(super) fn header(&self, name: &str) -> Result<Option<&str>> {
        let mut values = self.headers.get_all(name).iter();
        let (Some(value), more) = (values.next(), values.next()) else { return Ok(None) };
        if more.is_some() {
            let (message, value) = (format!("Header {name} is given more than once."), value.as_bytes());
            return Err(Failure::invalid_argument(message, name, &String::from_utf8_lossy(value)));
        }
        let text = std::str::from_utf8(value.as_bytes()).map_err(|_| not_utf8(name, value))?;
        Ok(Some(text.trim()).filter(|text| !text.is_empty()))
    }

    /// All values of a header that is a list, joined by commas.
    pub(super) fn header_list(&self, name: &str) -> Result<Option<String>> {
        let mut values = Vec::new();
        for value in self.headers.get_all(name) {
            values.push(std::str::from_utf8(value.as_bytes()).map_err(|_| not_utf8(name, value))?);
        }
        let joined = values.join(",");
        Ok(Some(joined).filter(|text| !text.trim().is_empty()))
    }

    /// The body's length, which S3 requires in advance.
    pub(super) fn body_length(&self) -> Result<u64> {
        self.auth.decoded_length.ok_or_else(|| {
            Failure::new(Code::MissingContentLength, "You must provide the Content-Length HTTP header.")
        })
    }

    /// The length of a payload body, at most S3's limit for one PUT.
    pub(super) fn payload_length(&self) -> Result<u64> {
        let length = self.body_length()?;
        if length > MAX_PUT_BYTES {
            return Err(too_large(length));
        }
        Ok(length)
    }

    /// Returns true if the request has a body that was not taken.
    pub(super) fn has_body(&self) -> bool {
        self.body.lock().as_ref().is_some_and(|body| !body.is_empty() && body.length() != Some(0))
    }

    /// Takes the body. Only the first call returns it.
    pub(super) fn take_body(&self) -> Option<RequestBody> {
        self.body.lock().take()
    }

    /// Streams the payload into a staged write, buffer by buffer.
    pub(super) async fn stream_payload(&self, staged: &mut dyn Staged) -> Result<()> {
        let Some(mut body) = self.take_body() else { return Ok(()) };
        let mut total = 0_u64;
        while let Some(bytes) = body.next().await {
            let bytes = bytes?;
            total += bytes.len() as u64;
            if total > MAX_PUT_BYTES {
                return Err(too_large(total));
            }
            staged.write(bytes).await?;
        }
        Ok(())
    }
}

fn too_large(bytes: u64) -> Failure {
    Failure::new(Code::EntityTooLarge, "Your proposed upload exceeds the maximum allowed object size.")
        .with_field("ProposedSize", bytes.to_string())
        .with_field("MaxSizeAllowed", MAX_PUT_BYTES.to_string())
}

/// The error of a header that is not UTF-8.
pub(super) fn not_utf8(name: &str, value: &HeaderValue) -> Failure {
    let message = format!("Header {name} is not valid UTF-8.");
    Failure::invalid_argument(message, name, &String::from_utf8_lossy(value.as_bytes()))
}
