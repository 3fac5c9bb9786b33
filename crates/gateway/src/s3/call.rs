//! One request on its way through `s3s`. The request that `s3s` sees is bare: method, path, query and,
//! where it has one, the XML body. Everything else waits here, in the request's extensions, because
//! `s3s` would misread some of it (lists of tags, ranges to be ignored, dates, metadata that is not
//! ASCII) and because payload must not pass through it. Failures come back the same way.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::{Extensions, HeaderMap};
use parking_lot::Mutex;
use s3s::{S3Error, S3ErrorCode, S3Result};
use tradewind_core::{Address, BucketName, Context, ObjectKey, Staged};

use super::checksums::Plan;
use super::document;
use super::failure::{Failure, Result};
use super::intent::Intent;
use super::operation::Operation;
use super::query::Query;
use crate::auth::{Access, Authenticated};
use crate::body::RequestBody;
use crate::error::{Code, WireError};

/// The most bytes of one PUT or one part, as S3 has it.
pub(super) const MAX_PUT_BYTES: u64 = 5 << 30;

/// A request, all but what `s3s` decodes of it.
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) bucket: Option<BucketName>,
    pub(super) key: Option<ObjectKey>,
    pub(super) headers: HeaderMap,
    pub(super) query: Query,
    pub(super) auth: Authenticated,
    pub(super) context: Context,
    body: Mutex<Option<RequestBody>>,
    failure: Mutex<Option<Failure>>,
}

impl Call {
    pub(super) fn new(
        intent: Intent,
        headers: HeaderMap,
        auth: Authenticated,
        context: Context,
        body: RequestBody,
    ) -> Self {
        let Intent { operation, bucket, key, query } = intent;
        Self {
            operation,
            bucket,
            key,
            headers,
            query,
            auth,
            context,
            body: Mutex::new(Some(body)),
            failure: Mutex::default(),
        }
    }

    /// The call behind a request of `s3s`.
    pub(super) fn of(extensions: &Extensions) -> S3Result<Arc<Self>> {
        extensions.get::<Arc<Self>>().cloned().ok_or_else(|| S3Error::new(S3ErrorCode::InternalError))
    }

    /// Hands an operation's result to `s3s`, keeping the failure here.
    pub(super) fn settle<T>(&self, result: Result<T>) -> S3Result<T> {
        result.map_err(|failure| {
            *self.failure.lock() = Some(failure);
            S3Error::new(S3ErrorCode::InternalError)
        })
    }

    /// The failure that an operation left.
    pub(super) fn take_failure(&self) -> Option<Failure> {
        self.failure.lock().take()
    }

    /// The bucket addressed.
    pub(super) fn bucket(&self) -> Result<&BucketName> {
        self.bucket
            .as_ref()
            .ok_or_else(|| Failure::new(Code::InvalidBucketName, "The request names no bucket."))
    }

    /// The object addressed.
    pub(super) fn address(&self) -> Result<Address> {
        let key = self.key.clone().ok_or_else(|| Failure::argument("The request names no key."))?;
        Ok(Address::new(self.bucket()?.clone(), key))
    }

    /// Refuses where the caller may not do this.
    pub(super) fn allow(&self, access: Access, bucket: Option<&BucketName>) -> Result<()> {
        if self.auth.identity.may(access, bucket.map(BucketName::as_str)) {
            return Ok(());
        }
        Err(WireError::access_denied().into())
    }

    /// A header's text, trimmed; `None` where it is absent or empty. More than one is refused.
    pub(super) fn header(&self, name: &str) -> Result<Option<&str>> {
        let mut values = self.headers.get_all(name).iter();
        let (Some(value), more) = (values.next(), values.next()) else { return Ok(None) };
        if more.is_some() {
            return Err(Failure::argument(format!("Header {name} is given more than once.")));
        }
        let text = std::str::from_utf8(value.as_bytes())
            .map_err(|_| Failure::argument(format!("Header {name} is not valid UTF-8.")))?;
        Ok(Some(text.trim()).filter(|text| !text.is_empty()))
    }

    /// All values of a header that is a list, joined by commas.
    pub(super) fn header_list(&self, name: &str) -> Result<Option<String>> {
        let mut values = Vec::new();
        for value in self.headers.get_all(name) {
            values.push(
                std::str::from_utf8(value.as_bytes())
                    .map_err(|_| Failure::argument(format!("Header {name} is not valid UTF-8.")))?,
            );
        }
        let joined = values.join(",");
        Ok(Some(joined).filter(|text| !text.trim().is_empty()))
    }

    /// The payload's length, which S3 wants to know before it takes a byte.
    pub(super) fn payload_length(&self) -> Result<u64> {
        let length = self.auth.decoded_length.ok_or_else(|| {
            Failure::new(Code::MissingContentLength, "You must provide the Content-Length HTTP header.")
        })?;
        if length > MAX_PUT_BYTES {
            return Err(too_large());
        }
        Ok(length)
    }

    /// Streams the payload into a staged write, buffer by buffer.
    pub(super) async fn pour(&self, staged: &mut dyn Staged) -> Result<()> {
        let Some(mut body) = self.body.lock().take() else { return Ok(()) };
        let mut total = 0_u64;
        while let Some(bytes) = body.next().await {
            let bytes = bytes?;
            total += bytes.len() as u64;
            if total > MAX_PUT_BYTES {
                return Err(too_large());
            }
            staged.write(bytes).await?;
        }
        Ok(())
    }

    /// Reads an XML body whole, within the request's memory, verifies what was promised about it, and
    /// answers it as `s3s` may read it.
    pub(super) async fn read_xml(&self, limit: u64) -> Result<Bytes> {
        let Some(mut body) = self.body.lock().take() else { return Ok(Bytes::new()) };
        if body.is_empty() {
            return Ok(Bytes::new());
        }
        let too_big = || Failure::new(Code::MaxMessageLengthExceeded, "Your request was too big.");
        let length = self.auth.decoded_length.ok_or_else(|| {
            Failure::new(Code::MissingContentLength, "You must provide the Content-Length HTTP header.")
        })?;
        if length > limit {
            return Err(too_big());
        }
        let size = usize::try_from(length).map_err(|_| too_big())?;
        let reserved = self.context.window.try_reserve(size).ok_or_else(Failure::no_memory)?;
        let mut all = BytesMut::with_capacity(size);
        while let Some(bytes) = self.context.guard(body.next()).await? {
            let bytes = bytes?;
            if all.len() + bytes.len() > size {
                return Err(Failure::request("The body is longer than announced."));
            }
            all.extend_from_slice(&bytes);
        }
        if all.len() < size {
            return Err(Failure::new(
                Code::IncompleteBody,
                "You did not provide the number of bytes specified by the Content-Length HTTP header.",
            ));
        }
        Plan::of_document(self)?.verify(self, &all)?;
        document::readable(self.operation, reserved.attach(all.freeze()), &self.context.window)
    }
}

fn too_large() -> Failure {
    Failure::new(Code::EntityTooLarge, "Your proposed upload exceeds the maximum allowed object size.")
}
