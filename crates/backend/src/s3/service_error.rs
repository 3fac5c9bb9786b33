//! Translates S3 error responses into the port's errors, with advice for the user. S3's error codes:
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>.

use std::error::Error as _;
use std::fmt;

use http::{HeaderMap, StatusCode};
use tradewind_core::clock::Timestamp;
use tradewind_core::error::{Error, Reason};
use tradewind_core::version::VersionId;

use super::dialect::Dialect;
use super::{versions, xml};
use crate::remote::client::ResourceKind;
use crate::remote::header_fields::last_modified;
use crate::remote::status::{is_retryable_status, reason_of_status};

/// An error response: code and message of its body, if any, and what its head says about the service. It is the source
/// of the port's error, so that callers can inspect it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceError {
    pub code: String,
    pub message: String,
    /// The header or argument that the service names as the cause; empty if it names none.
    pub named_header: String,
    /// The bucket's region, if the service returns it.
    pub region: Option<String>,
    pub status: StatusCode,
    pub dialect: Option<Dialect>,
    /// The addition to the message if access is denied.
    pub denial_advice: String,
    /// Set if the response is about a delete marker, with its version if the service returns it.
    pub delete_marker: Option<Option<VersionId>>,
    /// When the delete marker was created, if the service returns it.
    pub last_modified: Option<Timestamp>,
}

impl std::error::Error for ServiceError {}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code)
    }
}

impl ServiceError {
    /// The error response that is the source of an error, if any.
    pub fn from_source(error: &Error) -> Option<&Self> {
        error.source()?.downcast_ref()
    }

    /// Parses the head and body of a response.
    pub fn parse(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let mut error = Self::parse_body(body);
        error.status = status;
        let region = headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok());
        error.region = error.region.or(region.map(str::to_owned));
        error.dialect = Dialect::detect(headers);
        error.delete_marker = versions::is_delete_marker(headers).then(|| versions::version_id(headers));
        error.last_modified = last_modified(headers).ok();
        error
    }

    /// Parses a body. One that is not an S3 error, such as a proxy's page, gives an empty code and message.
    pub fn parse_body(body: &[u8]) -> Self {
        let mut error = Self::default();
        let read = xml::for_each_element(body, |path, text| match path {
            ["Error", "Code"] => error.code = text.to_owned(),
            ["Error", "Message"] => error.message = text.to_owned(),
            ["Error", "Header" | "ArgumentName"] => error.named_header = text.to_owned(),
            ["Error", "Region"] => error.region = Some(text.to_owned()),
            _ => {}
        });
        if read.is_ok() { error } else { Self::default() }
    }

    /// The region that the request must be signed for and sent to instead. A response to HEAD has no code; its status
    /// decides.
    pub fn redirect_region(&self) -> Option<&str> {
        let is_moved = match self.code.as_str() {
            "" => matches!(self.status.as_u16(), 301 | 307 | 400),
            "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect" | "Redirect" => true,
            _ => false,
        };
        // It becomes part of a host name.
        let is_legal = |region: &&str| {
            let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
            (1..64).contains(&region.len()) && region.bytes().all(is_plain)
        };
        self.region.as_deref().filter(|_| is_moved).filter(is_legal)
    }

    /// Returns true if the credentials have expired. A response to HEAD has no code; its status decides.
    pub fn is_expired(&self) -> bool {
        match self.code.as_str() {
            "" => self.status == StatusCode::BAD_REQUEST,
            code => matches!(code, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired"),
        }
    }

    /// Returns true if the same request may succeed later.
    pub fn is_retryable(&self, status: StatusCode) -> bool {
        is_retryable_status(status)
            || matches!(self.code.as_str(), "RequestTimeout" | "SlowDown" | "OperationAborted")
    }

    /// Returns true if the service certainly rejected the request before doing anything, because of a rate limit. A 503
    /// without such a code may come from a proxy that lost the response.
    pub fn is_unprocessed(&self, status: StatusCode) -> bool {
        status == StatusCode::TOO_MANY_REQUESTS
            || matches!(self.code.as_str(), "SlowDown" | "SlowDownRead" | "SlowDownWrite" | "TooManyRequests")
    }

    /// Converts into the port's error. `what` describes the request.
    pub fn into_error(self, status: StatusCode, subject: ResourceKind, what: &str) -> Error {
        let reason = reason_of_code(&self.code).unwrap_or_else(|| reason_of_status(status, subject));
        let message = match (self.code.is_empty(), self.message.is_empty()) {
            (true, _) => match reason {
                // Responses to HEAD have no body with a message.
                Reason::NoSuchKey => format!("there is no such object ({status})"),
                Reason::NoSuchBucket => format!("there is no such bucket ({status})"),
                Reason::AccessDenied => format!("access is denied ({status})"),
                _ => format!("the store answered {status}"),
            },
            (false, true) => self.code.clone(),
            (false, false) => format!("{} ({})", self.message.trim_end_matches('.'), self.code),
        };
        let advice = match (self.advice(), reason) {
            (advice, Reason::AccessDenied) if advice.is_empty() => self.denial_advice.clone(),
            (advice, _) => advice,
        };
        let is_about_caller = self.rejects_caller();
        let error = Error::with_source(reason, format!("{what}: {message}{advice}"), self);
        if is_about_caller { error.affecting_whole_bucket() } else { error }
    }

    /// Returns true if the caller's credentials or clock were rejected, so that every request would fail.
    fn rejects_caller(&self) -> bool {
        matches!(
            self.code.as_str(),
            "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "RequestTimeTooSkewed"
                | "ExpiredToken"
                | "InvalidToken"
                | "TokenRefreshRequired"
        )
    }

    fn advice(&self) -> String {
        let advice = match self.code.as_str() {
            "AuthorizationHeaderMalformed"
            | "PermanentRedirect"
            | "TemporaryRedirect"
            | "IllegalLocationConstraintException" => {
                return match &self.region {
                    Some(region) => {
                        format!("; the bucket is in region {region}: set AWS_REGION or the store's region")
                    }
                    None => "; check the region and the endpoint".to_owned(),
                };
            }
            "SignatureDoesNotMatch" => "; check the secret key",
            "InvalidAccessKeyId" => "; check the access key and that it belongs to this store",
            "RequestTimeTooSkewed" => "; set this machine's clock",
            "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => "; get new temporary credentials",
            _ => "",
        };
        advice.to_owned()
    }
}

fn reason_of_code(code: &str) -> Option<Reason> {
    Some(match code {
        "NoSuchBucket" => Reason::NoSuchBucket,
        "NoSuchKey" => Reason::NoSuchKey,
        "NoSuchVersion" => Reason::NoSuchVersion,
        "NoSuchUpload" => Reason::NoSuchUpload,
        "PreconditionFailed" => Reason::PreconditionFailed,
        "NotModified" => Reason::NotModified,
        "BucketAlreadyExists" | "BucketAlreadyOwnedByYou" => Reason::BucketExists,
        "BucketNotEmpty" => Reason::BucketNotEmpty,
        "ConditionalRequestConflict" | "OperationAborted" => Reason::Conflict,
        "InvalidBucketName" => Reason::InvalidBucketName,
        "KeyTooLongError" => Reason::KeyTooLong,
        "InvalidRange" | "InvalidPartNumber" => Reason::InvalidRange,
        "BadDigest" | "XAmzContentSHA256Mismatch" | "XAmzContentChecksumMismatch" | "InvalidDigest" => {
            Reason::BadDigest
        }
        "IncompleteBody" => Reason::IncompleteBody,
        "EntityTooLarge" => Reason::EntityTooLarge,
        "EntityTooSmall" => Reason::EntityTooSmall,
        "InvalidPart" => Reason::InvalidPart,
        "InvalidPartOrder" => Reason::InvalidPartOrder,
        "MetadataTooLarge" => Reason::MetadataTooLarge,
        "InvalidTag" => Reason::InvalidTag,
        "InvalidArgument" => Reason::InvalidArgument,
        "InvalidRequest" | "MalformedXML" => Reason::InvalidRequest,
        "AccessDenied"
        | "AllAccessDisabled"
        | "SignatureDoesNotMatch"
        | "InvalidAccessKeyId"
        | "ExpiredToken"
        | "InvalidToken"
        | "TokenRefreshRequired"
        | "RequestTimeTooSkewed"
        | "AuthorizationHeaderMalformed" => Reason::AccessDenied,
        "SlowDown" | "TooManyRequests" | "Throttling" | "RequestLimitExceeded" => Reason::Overloaded,
        "InsufficientStorage" | "QuotaExceeded" | "XMinioStorageFull" => Reason::Full,
        "NotImplemented" => Reason::Unsupported,
        "InternalError" | "ServiceUnavailable" | "RequestTimeout" => Reason::Io,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const DENIED: &[u8] = b"<?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code>\
        <Message>It &amp; that do not match.</Message><Resource>/b/k</Resource></Error>";

    #[test]
    fn into_error_has_message_code_and_advice() {
        let error = ServiceError::parse_body(DENIED).into_error(
            StatusCode::FORBIDDEN,
            ResourceKind::Object,
            "reading k",
        );
        assert_eq!(error.reason(), Reason::AccessDenied);
        assert_eq!(
            error.message(),
            "reading k: It & that do not match (SignatureDoesNotMatch); check the secret key"
        );
        assert!(error.affects_whole_bucket());
    }

    #[test]
    fn into_error_without_a_code_uses_status_and_subject() {
        for (status, subject, reason) in [
            (404, ResourceKind::Object, Reason::NoSuchKey),
            (404, ResourceKind::Bucket, Reason::NoSuchBucket),
            (403, ResourceKind::Object, Reason::AccessDenied),
            (412, ResourceKind::Object, Reason::PreconditionFailed),
            (502, ResourceKind::Service, Reason::Io),
            (418, ResourceKind::Object, Reason::InvalidRequest),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error = ServiceError::parse_body(b"<html>").into_error(status, subject, "x");
            assert_eq!(error.reason(), reason, "{status}");
            assert_eq!(error.affects_whole_bucket(), reason == Reason::NoSuchBucket);
        }
    }

    #[test]
    fn moved_to_is_the_region_of_a_redirect() {
        let moved = |status: u16, header: Option<&'static str>, body: &str| {
            let mut headers = HeaderMap::new();
            if let Some(region) = header {
                headers.insert("x-amz-bucket-region", HeaderValue::from_static(region));
            }
            let error = ServiceError::parse(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes());
            error.redirect_region().map(str::to_owned)
        };
        let error = |code: &str, more: &str| format!("<Error><Code>{code}</Code>{more}</Error>");
        let there = Some("eu-west-1".to_owned());
        let region = "<Region>eu-west-1</Region>";
        assert_eq!(moved(400, None, &error("AuthorizationHeaderMalformed", region)), there);
        assert_eq!(moved(301, Some("eu-west-1"), &error("PermanentRedirect", "")), there);
        assert_eq!(moved(307, Some("eu-west-1"), &error("TemporaryRedirect", "")), there);
        assert_eq!(moved(301, Some("eu-west-1"), ""), there);
        assert_eq!(moved(400, Some("eu-west-1"), ""), there);
        // An unrelated error may name the region too.
        assert_eq!(moved(403, Some("eu-west-1"), &error("AccessDenied", "")), None);
        assert_eq!(moved(404, Some("eu-west-1"), ""), None);
        assert_eq!(moved(301, None, &error("PermanentRedirect", "")), None);
        for bad in ["<Region>a.b/c</Region>", "<Region></Region>", "<Region>EU</Region>"] {
            assert_eq!(moved(400, None, &error("AuthorizationHeaderMalformed", bad)), None, "{bad}");
        }
    }

    #[test]
    fn is_passing_depends_on_code_and_status() {
        let error = |code: &str| ServiceError { code: code.to_owned(), ..ServiceError::default() };
        assert!(error("RequestTimeout").is_retryable(StatusCode::BAD_REQUEST));
        assert!(error("").is_retryable(StatusCode::BAD_GATEWAY));
        assert!(!error("NoSuchKey").is_retryable(StatusCode::NOT_FOUND));
        assert!(!error("NotImplemented").is_retryable(StatusCode::NOT_IMPLEMENTED));
    }
}
