//! What a store's refusal means in the port's words, and what a person can do about it. S3's error codes:
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>.

use http::StatusCode;
use tradewind_core::error::{Error, Reason};

use super::xml;
use crate::remote::client::Subject;

/// A refusal: its status, and the code and message of its body where it had one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Refusal {
    pub code: String,
    pub message: String,
    pub region: Option<String>,
}

impl Refusal {
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
        let error = Error::new(reason, format!("{what}: {said}{advice}"));
        if self.is_about_caller() { error.for_all() } else { error }
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
    fn what_passes() {
        let refusal = |code: &str| Refusal { code: code.to_owned(), ..Refusal::default() };
        assert!(refusal("RequestTimeout").is_passing(StatusCode::BAD_REQUEST));
        assert!(refusal("").is_passing(StatusCode::BAD_GATEWAY));
        assert!(!refusal("NoSuchKey").is_passing(StatusCode::NOT_FOUND));
        assert!(!refusal("NotImplemented").is_passing(StatusCode::NOT_IMPLEMENTED));
    }
}
