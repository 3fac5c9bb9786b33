//! Elements of an error document beside code and message, as S3 has them: the bucket, the key, the condition that did
//! not hold. Clients and scripts read them. They follow from the request and the code, so they are added in one place.

use http::Method;
use tradewind_core::Reason;
use tradewind_core::metadata::MAX_USER_METADATA_BYTES;
use tradewind_core::multipart::MIN_PART_BYTES;
use tradewind_wire::headers::{STORAGE_CLASS, USER_PREFIX};

use super::call::Call;
use super::copy::parse_source;
use super::failure::Failure;
use super::operation::Operation;
use super::version_id;
use crate::error::{Code, WireError};

/// Conditions of a read or a write, in the order in which they can fail, with their names in S3's documents.
const CONDITIONS: &[(&str, &str)] = &[
    ("if-match", "If-Match"),
    ("if-unmodified-since", "If-Unmodified-Since"),
    ("if-none-match", "If-None-Match"),
    ("if-modified-since", "If-Modified-Since"),
];

/// Conditions on the source of a copy.
const SOURCE_CONDITIONS: &[(&str, &str)] = &[
    ("x-amz-copy-source-if-match", "x-amz-copy-source-If-Match"),
    ("x-amz-copy-source-if-unmodified-since", "x-amz-copy-source-If-Unmodified-Since"),
    ("x-amz-copy-source-if-none-match", "x-amz-copy-source-If-None-Match"),
    ("x-amz-copy-source-if-modified-since", "x-amz-copy-source-If-Modified-Since"),
];

/// Adds the elements to the failure of a call.
pub(super) fn add(failure: Failure, call: &Call, method: &Method) -> Failure {
    let Failure { error, headers } = failure;
    Failure { error: described(error, call, method), headers }
}

fn described(error: WireError, call: &Call, method: &Method) -> WireError {
    match error.code() {
        Code::NoSuchBucket
        | Code::BucketAlreadyExists
        | Code::BucketAlreadyOwnedByYou
        | Code::BucketNotEmpty => with_bucket(error, call),
        Code::NoSuchKey | Code::NoSuchVersion => with_key(error, call),
        Code::InvalidArgument if is_of_reason(&error, Reason::InvalidVersionId) => with_version(error, call),
        Code::NoSuchUpload | Code::InvalidPart | Code::InvalidPartOrder => {
            error.with_field("UploadId", call.upload_id().0)
        }
        Code::EntityTooSmall => error.with_field("MinSizeAllowed", MIN_PART_BYTES.to_string()),
        Code::PreconditionFailed => match condition(call) {
            Some(name) => error.with_field("Condition", name),
            None => error,
        },
        Code::MethodNotAllowed => {
            let found_marker = is_of_reason(&error, Reason::DeleteMarker);
            let resource = if found_marker { "DeleteMarker" } else { "OBJECT" };
            error.with_field("Method", method.as_str()).with_field("ResourceType", resource)
        }
        Code::InvalidRange => with_header(error, call, "range", "RangeRequested"),
        Code::InvalidPartNumber => {
            error.with_field("PartNumberRequested", call.query.get("partNumber").unwrap_or_default())
        }
        Code::InvalidStorageClass => {
            with_header(error, call, STORAGE_CLASS.as_str(), "StorageClassRequested")
        }
        Code::MetadataTooLarge => error
            .with_field("Size", user_metadata_bytes(call).to_string())
            .with_field("MaxSizeAllowed", MAX_USER_METADATA_BYTES.to_string()),
        _ => error,
    }
}

/// Returns true if the store rejected the request for this reason.
fn is_of_reason(error: &WireError, reason: Reason) -> bool {
    error.store_error().is_some_and(|error| error.reason() == reason)
}

/// Adds the version id that is invalid: that of the source for a copy.
fn with_version(error: WireError, call: &Call) -> WireError {
    let address = if is_copy(call) { parse_source(call) } else { call.address() };
    match address.ok().and_then(|address| address.version) {
        Some(version) => error
            .with_field("ArgumentName", version_id::PARAMETER)
            .with_field("ArgumentValue", version.as_str()),
        None => error,
    }
}

/// Adds the bucket, unless a copy has two and either could be meant.
fn with_bucket(error: WireError, call: &Call) -> WireError {
    let Some(bucket) = &call.bucket else { return error };
    if is_copy(call) && parse_source(call).is_ok_and(|source| source.bucket != *bucket) {
        return error;
    }
    error.with_field("BucketName", bucket.as_str())
}

/// Adds the key and the version that do not exist: those of the source for a copy.
fn with_key(error: WireError, call: &Call) -> WireError {
    let address = if is_copy(call) { parse_source(call) } else { call.address() };
    let Ok(address) = address else { return error };
    let error = error.with_field("Key", address.key.as_str());
    match address.version {
        Some(version) => error.with_field("VersionId", version.to_string()),
        None => error,
    }
}

/// The condition that did not hold. If a request has several, the first that can fail.
fn condition(call: &Call) -> Option<&'static str> {
    let conditions = if is_copy(call) { SOURCE_CONDITIONS } else { &[] };
    let mut given =
        conditions.iter().chain(CONDITIONS).filter(|(header, _)| call.headers.contains_key(*header));
    given.next().map(|(_, name)| *name)
}

fn with_header(error: WireError, call: &Call, header: &str, field: &'static str) -> WireError {
    match call.header_list(header) {
        Ok(Some(value)) => error.with_field(field, value),
        _ => error,
    }
}

fn user_metadata_bytes(call: &Call) -> usize {
    let user = call.headers.iter().filter_map(|(name, value)| {
        name.as_str().strip_prefix(USER_PREFIX).map(|short| short.len() + value.len())
    });
    user.sum()
}

const fn is_copy(call: &Call) -> bool {
    matches!(call.operation, Operation::CopyObject | Operation::UploadPartCopy)
}
