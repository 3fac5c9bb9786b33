//! What a store's refusal means in the port's words, and what a person can do about it. S3's error codes:
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>.

use std::error::Error as _;
use std::fmt;

use http::{HeaderMap, StatusCode};
use tradewind_core::error::{Error, Reason};

use super::dialect::Dialect;
use super::xml;
use crate::remote::client::Subject;

/// A refusal: the code and message of its body where it had one, and what its head says of the service. It is the
/// source of the port's error, so that whoever gets that can find out more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub code: String,
    pub message: String,
    /// Where the bucket is, as far as the store says.
    pub region: Option<String>,
    pub status: StatusCode,
    pub dialect: Option<Dialect>,
}

impl std::error::Error for Refusal {}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.code)
    }
}

impl Refusal {
    /// The refusal that an error is made of, if any.
    pub fn of(error: &Error) -> Option<&Self> {
        error.source()?.downcast_ref()
    }

    /// Reads an answer's head and body.
    pub fn read_all(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let mut refusal = Self::read(body);
        refusal.status = status;
        let region = headers.get("x-amz-bucket-region").and_then(|region| region.to_str().ok());
        refusal.region = refusal.region.or(region.map(str::to_owned));
        refusal.dialect = Dialect::of(headers);
        refusal
    }

    /// Reads a body. What is no S3 error (a proxy's page) says nothing.
    pub fn read(body: &[u8]) -> Self {
        let mut refusal = Self::default();
        let read = xml::leaves(body, |path, text| match path {
            ["Error", "Code"] => refusal.code = text.to_owned(),
            ["Error", "Message"] => refusal.message = text.to_owned(),
            ["Error", "Region"] => refusal.region = Some(text.to_owned()),
            _ => {}
        });
        if read.is_ok() { refusal } else { Self::default() }
    }

    /// The region that the request is to be signed for, and sent to, instead. An answer to HEAD has no code to say it.
    pub fn moved_to(&self) -> Option<&str> {
        let is_moved = match self.code.as_str() {
            "" => matches!(self.status.as_u16(), 301 | 307 | 400),
            "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect" | "Redirect" => true,
            _ => false,
        };
        // It becomes a part of a host's name.
        let is_legal = |region: &&str| {
            let is_plain = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
            (1..64).contains(&region.len()) && region.bytes().all(is_plain)
        };
        self.region.as_deref().filter(|_| is_moved).filter(is_legal)
    }

    /// Whether the credentials were good and are not any more. An answer to HEAD has no code to say it.
    pub fn is_expired(&self) -> bool {
        match self.code.as_str() {
            "" => self.status == StatusCode::BAD_REQUEST,
            code => matches!(code, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired"),
        }
    }

    /// Whether the store may take it later.
    pub fn is_passing(&self, status: StatusCode) -> bool {
        matches!(status.as_u16(), 429 | 500 | 502 | 503 | 504)
            || matches!(self.code.as_str(), "RequestTimeout" | "SlowDown" | "OperationAborted")
    }

    /// Whether it was certainly refused before anything was done: by the store itself, for being one too many. A
    /// 503 that does not say so may be a proxy's that lost the answer.
    pub fn is_before_all(&self, status: StatusCode) -> bool {
        status == StatusCode::TOO_MANY_REQUESTS
            || matches!(self.code.as_str(), "SlowDown" | "SlowDownRead" | "SlowDownWrite" | "TooManyRequests")
    }

    /// The port's error.
    pub fn into_error(self, status: StatusCode, subject: Subject, what: &str) -> Error {
        let reason = reason_of_code(&self.code).unwrap_or_else(|| reason_of_status(status, subject));
        let said = match (self.code.is_empty(), self.message.is_empty()) {
            (true, _) => match reason {
                // Answers to HEAD have no body to say it in.
                Reason::NoSuchKey => format!("there is no such object ({status})"),
                Reason::NoSuchBucket => format!("there is no such bucket ({status})"),
                Reason::AccessDenied => format!("access is denied ({status})"),
                _ => format!("the store answered {status}"),
            },
            (false, true) => self.code.clone(),
            (false, false) => format!("{} ({})", self.message.trim_end_matches('.'), self.code),
        };
        let advice = self.advice();
        let is_about_caller = self.is_about_caller();
        let error = Error::with_source(reason, format!("{what}: {said}{advice}"), self);
        if is_about_caller { error.for_all() } else { error }
    }

    /// Whether it was the caller that was refused, not what was asked for.
    fn is_about_caller(&self) -> bool {
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

fn reason_of_status(status: StatusCode, subject: Subject) -> Reason {
    match (status.as_u16(), subject) {
        (304, _) => Reason::NotModified,
        (401 | 403, _) => Reason::AccessDenied,
        (404, Subject::Upload) => Reason::NoSuchUpload,
        (404, Subject::Object) => Reason::NoSuchKey,
        (404, Subject::Bucket) => Reason::NoSuchBucket,
        (409, _) => Reason::Conflict,
        (412, _) => Reason::PreconditionFailed,
        (416, _) => Reason::InvalidRange,
        (413, _) => Reason::EntityTooLarge,
        (429, _) => Reason::Overloaded,
        (501 | 405, _) => Reason::Unsupported,
        (507, _) => Reason::Full,
        (500..=599, _) => Reason::Io,
        _ => Reason::InvalidRequest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    const DENIED: &[u8] = b"<?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code>\
        <Message>It &amp; that do not match.</Message><Resource>/b/k</Resource></Error>";

    #[test]
    fn a_body_is_read_and_says_what_to_do() {
        let error = Refusal::read(DENIED).into_error(StatusCode::FORBIDDEN, Subject::Object, "reading k");
        assert_eq!(error.reason(), Reason::AccessDenied);
        assert_eq!(
            error.message(),
            "reading k: It & that do not match (SignatureDoesNotMatch); check the secret key"
        );
        assert!(error.is_for_all());
    }

    #[test]
    fn an_answer_without_a_body_is_judged_by_what_was_asked_for() {
        for (status, subject, reason) in [
            (404, Subject::Object, Reason::NoSuchKey),
            (404, Subject::Bucket, Reason::NoSuchBucket),
            (403, Subject::Object, Reason::AccessDenied),
            (412, Subject::Object, Reason::PreconditionFailed),
            (502, Subject::Service, Reason::Io),
            (418, Subject::Object, Reason::InvalidRequest),
        ] {
            let status = StatusCode::from_u16(status).unwrap();
            let error = Refusal::read(b"<html>").into_error(status, subject, "x");
            assert_eq!(error.reason(), reason, "{status}");
            assert_eq!(error.is_for_all(), reason == Reason::NoSuchBucket);
        }
    }

    #[test]
    fn where_a_bucket_is() {
        let of = |status: u16, header: Option<&'static str>, body: &str| {
            let mut headers = HeaderMap::new();
            if let Some(region) = header {
                headers.insert("x-amz-bucket-region", HeaderValue::from_static(region));
            }
            let refusal = Refusal::read_all(StatusCode::from_u16(status).unwrap(), &headers, body.as_bytes());
            refusal.moved_to().map(str::to_owned)
        };
        let error = |code: &str, more: &str| format!("<Error><Code>{code}</Code>{more}</Error>");
        let there = Some("eu-west-1".to_owned());
        let region = "<Region>eu-west-1</Region>";
        assert_eq!(of(400, None, &error("AuthorizationHeaderMalformed", region)), there);
        assert_eq!(of(301, Some("eu-west-1"), &error("PermanentRedirect", "")), there);
        assert_eq!(of(307, Some("eu-west-1"), &error("TemporaryRedirect", "")), there);
        assert_eq!(of(301, Some("eu-west-1"), ""), there);
        assert_eq!(of(400, Some("eu-west-1"), ""), there);
        // A refusal for other reasons may say where the bucket is, too.
        assert_eq!(of(403, Some("eu-west-1"), &error("AccessDenied", "")), None);
        assert_eq!(of(404, Some("eu-west-1"), ""), None);
        assert_eq!(of(301, None, &error("PermanentRedirect", "")), None);
        for bad in ["<Region>a.b/c</Region>", "<Region></Region>", "<Region>EU</Region>"] {
            assert_eq!(of(400, None, &error("AuthorizationHeaderMalformed", bad)), None, "{bad}");
        }
    }

    #[test]
    fn what_passes() {
        let refusal = |code: &str| Refusal { code: code.to_owned(), ..Refusal::default() };
        assert!(refusal("RequestTimeout").is_passing(StatusCode::BAD_REQUEST));
        assert!(refusal("").is_passing(StatusCode::BAD_GATEWAY));
        assert!(!refusal("NoSuchKey").is_passing(StatusCode::NOT_FOUND));
        assert!(!refusal("NotImplemented").is_passing(StatusCode::NOT_IMPLEMENTED));
    }
}
