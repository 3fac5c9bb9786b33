//! The only translation of errors to S3: [`Code`] lists S3's codes with their HTTP status, [`WireError`] is this
//! crate's error, and `From<tradewind_core::Error>` maps every [`Reason`] of the port. The XML body is written here,
//! too.
//!
//! A store's messages never reach the client, because they may name files, peers and messages of peers. They are
//! logged; the client gets S3's own message and a request ID. The exception is an error that
//! [the request alone explains](tradewind_core::Error::for_client).

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use tradewind_core::{ErrorKind, Reason};

use crate::body::response::ResponseBody;
use crate::request_id::{RequestId, host_id};

/// The `Retry-After` of a response that the store cannot be used now, or cannot accept the request now.
const RETRY_AFTER_SECONDS: HeaderValue = HeaderValue::from_static("1");

macro_rules! codes {
    ($($name:ident $text:literal $status:literal,)*) => {
        /// The S3 error codes that this server returns.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the names are S3's own")]
        pub enum Code { $($name,)* }

        impl Code {
            /// The code as S3 writes it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The HTTP status that goes with it.
            #[must_use]
            pub fn status(self) -> StatusCode {
                let status = match self { $(Self::$name => $status,)* };
                StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }

            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The code with this text; `None` if unknown.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$name),)* _ => None }
            }
        }
    };
}

codes! {
    AccessControlListNotSupported "AccessControlListNotSupported" 400,
    AccessDenied "AccessDenied" 403,
    AccessForbidden "AccessForbidden" 403,
    AuthorizationHeaderMalformed "AuthorizationHeaderMalformed" 400,
    AuthorizationQueryParametersError "AuthorizationQueryParametersError" 400,
    BadDigest "BadDigest" 400,
    BadRequest "BadRequest" 400,
    BucketAlreadyExists "BucketAlreadyExists" 409,
    BucketAlreadyOwnedByYou "BucketAlreadyOwnedByYou" 409,
    BucketNotEmpty "BucketNotEmpty" 409,
    ConditionalRequestConflict "ConditionalRequestConflict" 409,
    EncryptionConfigurationNotFound "ServerSideEncryptionConfigurationNotFoundError" 404,
    EntityTooLarge "EntityTooLarge" 400,
    EntityTooSmall "EntityTooSmall" 400,
    IllegalVersioningConfiguration "IllegalVersioningConfigurationException" 400,
    IncompleteBody "IncompleteBody" 400,
    InsufficientStorage "InsufficientStorage" 507,
    InternalError "InternalError" 500,
    InvalidAccessKeyId "InvalidAccessKeyId" 403,
    InvalidArgument "InvalidArgument" 400,
    InvalidBucketName "InvalidBucketName" 400,
    InvalidBucketOwnerAccountId "InvalidBucketOwnerAWSAccountID" 400,
    InvalidChunkSizeError "InvalidChunkSizeError" 403,
    InvalidDigest "InvalidDigest" 400,
    InvalidLocationConstraint "InvalidLocationConstraint" 400,
    InvalidObjectState "InvalidObjectState" 403,
    InvalidPart "InvalidPart" 400,
    InvalidPartNumber "InvalidPartNumber" 416,
    InvalidPartOrder "InvalidPartOrder" 400,
    InvalidRange "InvalidRange" 416,
    InvalidRedirectLocation "InvalidRedirectLocation" 400,
    InvalidRequest "InvalidRequest" 400,
    InvalidStorageClass "InvalidStorageClass" 400,
    InvalidTag "InvalidTag" 400,
    InvalidToken "InvalidToken" 400,
    InvalidUri "InvalidURI" 400,
    KeyTooLong "KeyTooLongError" 400,
    MalformedPostRequest "MalformedPOSTRequest" 400,
    MalformedTrailer "MalformedTrailerError" 400,
    MalformedXml "MalformedXML" 400,
    MaxMessageLengthExceeded "MaxMessageLengthExceeded" 400,
    MetadataTooLarge "MetadataTooLarge" 400,
    MethodNotAllowed "MethodNotAllowed" 405,
    MissingContentLength "MissingContentLength" 411,
    MissingRequestBody "MissingRequestBodyError" 400,
    MissingSecurityHeader "MissingSecurityHeader" 400,
    NoSuchBucket "NoSuchBucket" 404,
    NoSuchBucketPolicy "NoSuchBucketPolicy" 404,
    NoSuchConfiguration "NoSuchConfiguration" 404,
    NoSuchCorsConfiguration "NoSuchCORSConfiguration" 404,
    NoSuchKey "NoSuchKey" 404,
    NoSuchLifecycleConfiguration "NoSuchLifecycleConfiguration" 404,
    NoSuchPublicAccessBlockConfiguration "NoSuchPublicAccessBlockConfiguration" 404,
    NoSuchTagSet "NoSuchTagSet" 404,
    NoSuchUpload "NoSuchUpload" 404,
    NoSuchVersion "NoSuchVersion" 404,
    NoSuchWebsiteConfiguration "NoSuchWebsiteConfiguration" 404,
    NotImplemented "NotImplemented" 501,
    NotModified "NotModified" 304,
    ObjectLockConfigurationNotFound "ObjectLockConfigurationNotFoundError" 404,
    PreconditionFailed "PreconditionFailed" 412,
    ReplicationConfigurationNotFound "ReplicationConfigurationNotFoundError" 404,
    RequestHeaderSectionTooLarge "RequestHeaderSectionTooLarge" 400,
    RequestTimeTooSkewed "RequestTimeTooSkewed" 403,
    RequestTimeout "RequestTimeout" 400,
    ServiceUnavailable "ServiceUnavailable" 503,
    SignatureDoesNotMatch "SignatureDoesNotMatch" 403,
    SlowDown "SlowDown" 503,
    UnexpectedContent "UnexpectedContent" 400,
    ContentSha256Mismatch "XAmzContentSHA256Mismatch" 400,
}

/// An error of a request, as reported to the client. Request bodies and authentication return it; it becomes the
/// response.
pub struct WireError {
    code: Code,
    message: Cow<'static, str>,
    /// Further elements of the document: names and values.
    fields: Vec<(&'static str, String)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl WireError {
    /// An error with a message for the client.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), fields: Vec::new(), source: None }
    }

    /// Like [`new`](Self::new), with a cause that is only logged.
    pub fn with_source(
        code: Code,
        message: impl Into<Cow<'static, str>>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { source: Some(source.into()), ..Self::new(code, message) }
    }

    /// The error of an invalid argument: `name` is that of a header, a query parameter or an element.
    pub fn invalid_argument(message: impl Into<Cow<'static, str>>, name: &str, value: &str) -> Self {
        let error = Self::new(Code::InvalidArgument, message);
        error.with_field("ArgumentName", name).with_field("ArgumentValue", value)
    }

    /// Adds an element to the document, such as `BucketName`. If it has the element already, nothing changes.
    #[must_use]
    pub fn with_field(mut self, name: &'static str, value: impl Into<String>) -> Self {
        if self.fields.iter().all(|(other, _)| *other != name) {
            self.fields.push((name, value.into()));
        }
        self
    }

    /// The error of a request without permission.
    #[must_use]
    pub fn access_denied() -> Self {
        Self::new(Code::AccessDenied, "Access Denied")
    }

    /// S3's code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// The message for the client.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The store's error that caused this one; `None` for another cause.
    pub(crate) fn store_error(&self) -> Option<&tradewind_core::Error> {
        self.source.as_deref()?.downcast_ref()
    }

    /// True if the store, and not this server, is at a limit.
    fn is_busy_store(&self) -> bool {
        self.store_error().is_some_and(|error| error.kind() == ErrorKind::Busy)
    }

    /// The error response. `resource` is the path of the request; `head` omits the body.
    #[must_use]
    pub fn to_response(&self, request_id: RequestId, resource: &str, head: bool) -> Response<ResponseBody> {
        let status = self.code.status();
        let is_bodiless = head || status == StatusCode::NOT_MODIFIED || status == StatusCode::NO_CONTENT;
        let body = if is_bodiless {
            ResponseBody::empty()
        } else {
            ResponseBody::from(Bytes::from(self.document(request_id, resource)))
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        if !is_bodiless {
            let xml = HeaderValue::from_static("application/xml");
            response.headers_mut().insert(header::CONTENT_TYPE, xml);
        }
        if self.code == Code::ServiceUnavailable || self.is_busy_store() {
            response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER_SECONDS);
        }
        response
    }

    /// The error document, in S3's order of elements.
    pub(crate) fn document(&self, request_id: RequestId, resource: &str) -> String {
        let mut xml = String::with_capacity(384 + self.message.len() + resource.len());
        xml.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
        let request_id = request_id.to_string();
        let host_id = host_id().to_str().unwrap_or_default();
        let head = [("Code", self.code.as_str()), ("Message", &self.message)];
        let fields = self.fields.iter().map(|(name, value)| (*name, value.as_str()));
        let end = [("Resource", resource), ("RequestId", &request_id), ("HostId", host_id)];
        for (name, value) in head.into_iter().chain(fields).chain(end) {
            for piece in ["<", name, ">"] {
                xml.push_str(piece);
            }
            escape(value, &mut xml);
            for piece in ["</", name, ">"] {
                xml.push_str(piece);
            }
        }
        xml.push_str("</Error>");
        xml
    }
}

fn escape(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            // Unescaped, a parser would return a line feed.
            '\r' => out.push_str("&#13;"),
            // XML 1.0 cannot represent other control characters.
            c if c.is_control() && !matches!(c, '\n' | '\t') => out.push('\u{FFFD}'),
            '\u{FFFE}' | '\u{FFFF}' => out.push('\u{FFFD}'),
            c => out.push(c),
        }
    }
}

impl From<tradewind_core::Error> for WireError {
    fn from(error: tradewind_core::Error) -> Self {
        let reason = error.reason();
        let message =
            error.client_message().map_or(Cow::Borrowed(message_for(reason)), |text| text.to_owned().into());
        let part = error.part();
        let wire = Self::with_source(code_for(reason), message, error);
        match part {
            Some(number) => wire.with_field("PartNumber", number.get().to_string()),
            None => wire,
        }
    }
}

/// The S3 code for a reason of the port.
#[must_use]
pub const fn code_for(reason: Reason) -> Code {
    match reason {
        Reason::NoSuchBucket => Code::NoSuchBucket,
        Reason::NoSuchKey => Code::NoSuchKey,
        Reason::NoSuchVersion => Code::NoSuchVersion,
        Reason::DeleteMarker => Code::MethodNotAllowed,
        Reason::NoSuchUpload => Code::NoSuchUpload,
        Reason::PreconditionFailed => Code::PreconditionFailed,
        Reason::NotModified => Code::NotModified,
        Reason::BucketExists => Code::BucketAlreadyOwnedByYou,
        Reason::BucketNotEmpty => Code::BucketNotEmpty,
        Reason::Conflict => Code::ConditionalRequestConflict,
        Reason::InvalidBucketName => Code::InvalidBucketName,
        Reason::KeyTooLong => Code::KeyTooLong,
        Reason::InvalidRange => Code::InvalidRange,
        Reason::BadDigest => Code::BadDigest,
        Reason::IncompleteBody => Code::IncompleteBody,
        Reason::EntityTooLarge => Code::EntityTooLarge,
        Reason::EntityTooSmall => Code::EntityTooSmall,
        Reason::InvalidPart => Code::InvalidPart,
        Reason::InvalidPartOrder => Code::InvalidPartOrder,
        Reason::MetadataTooLarge => Code::MetadataTooLarge,
        Reason::InvalidTag => Code::InvalidTag,
        Reason::InvalidKey | Reason::InvalidVersionId | Reason::InvalidArgument => Code::InvalidArgument,
        Reason::InvalidRequest => Code::InvalidRequest,
        Reason::AccessDenied => Code::AccessDenied,
        Reason::Full => Code::InsufficientStorage,
        Reason::ReadOnly
        | Reason::DeadlineExceeded
        | Reason::Cancelled
        | Reason::ShuttingDown
        | Reason::Io => Code::ServiceUnavailable,
        Reason::Overloaded => Code::SlowDown,
        Reason::Unsupported => Code::NotImplemented,
        Reason::CorruptData | Reason::Defect => Code::InternalError,
    }
}

/// The message to the client for a reason of the port.
const fn message_for(reason: Reason) -> &'static str {
    match reason {
        Reason::NoSuchBucket => "The specified bucket does not exist.",
        Reason::NoSuchKey => "The specified key does not exist.",
        Reason::NoSuchVersion => "The specified version does not exist.",
        Reason::DeleteMarker => "The specified method is not allowed against this resource.",
        Reason::NoSuchUpload => {
            "The specified multipart upload does not exist. The upload ID may be invalid, or the upload may have been \
             aborted or completed."
        }
        Reason::PreconditionFailed => "At least one of the pre-conditions you specified did not hold.",
        Reason::NotModified => "Not Modified",
        Reason::BucketExists => {
            "Your previous request to create the named bucket succeeded and you already own it."
        }
        Reason::BucketNotEmpty => "The bucket you tried to delete is not empty.",
        Reason::Conflict => {
            "The conditional request cannot succeed due to a conflicting operation against this resource."
        }
        Reason::InvalidBucketName => "The specified bucket is not valid.",
        Reason::KeyTooLong => "Your key is too long.",
        Reason::InvalidRange => "The requested range is not satisfiable",
        Reason::BadDigest => {
            "The Content-MD5 or checksum value that you specified did not match what the server received."
        }
        Reason::IncompleteBody => {
            "You did not provide the number of bytes specified by the Content-Length HTTP header"
        }
        Reason::EntityTooLarge => "Your proposed upload exceeds the maximum allowed object size.",
        Reason::EntityTooSmall => "Your proposed upload is smaller than the minimum allowed size",
        Reason::InvalidPart => {
            "One or more of the specified parts could not be found.  The part may not have been uploaded, or the \
             specified entity tag may not match the part's entity tag."
        }
        Reason::InvalidPartOrder => {
            "The list of parts was not in ascending order. Parts must be ordered by part number."
        }
        Reason::MetadataTooLarge => "Your metadata headers exceed the maximum allowed metadata size",
        Reason::InvalidTag => "The tag provided was not a valid tag.",
        Reason::InvalidVersionId => "Invalid version id specified",
        Reason::InvalidKey | Reason::InvalidArgument => "Invalid Argument.",
        Reason::InvalidRequest => "Invalid Request.",
        Reason::AccessDenied => "Access Denied",
        Reason::Full => "The store is full. Deletes still work.",
        Reason::ReadOnly => "The store is read-only until its operator reopens it.",
        Reason::DeadlineExceeded => "The request took too long. Please try again.",
        Reason::ShuttingDown | Reason::Cancelled => "The server is shutting down. Please try again.",
        Reason::Io => "The store is unavailable. Please try again.",
        Reason::Overloaded => "Please reduce your request rate.",
        Reason::Unsupported => {
            "A header or query you provided implies functionality that is not implemented."
        }
        Reason::CorruptData | Reason::Defect => "We encountered an internal error. Please try again.",
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

impl fmt::Debug for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)?;
        match &self.source {
            Some(source) => write!(f, " ({source:?})"),
            None => Ok(()),
        }
    }
}

impl StdError for WireError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt as _;

    #[test]
    fn every_reason_has_a_code_and_a_fitting_status() {
        for reason in Reason::ALL {
            let status = code_for(*reason).status();
            let fits = match reason.kind() {
                ErrorKind::Corrupt | ErrorKind::Internal => status == 500,
                ErrorKind::Unavailable | ErrorKind::Busy => matches!(status.as_u16(), 503 | 507),
                _ => status.is_client_error() || matches!(status.as_u16(), 304 | 501),
            };
            assert!(fits, "{reason:?} has status {status}");
        }
    }

    #[test]
    fn codes_parse_their_own_text() {
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
            assert!(code.status().as_u16() >= 304);
        }
    }

    #[test]
    fn an_unavailable_store_says_when_to_retry() {
        let response = |code| WireError::new(code, "later").to_response(RequestId::next(), "/", true);
        let header = |code| response(code).headers().get(header::RETRY_AFTER).cloned();
        assert_eq!(header(Code::ServiceUnavailable), Some(RETRY_AFTER_SECONDS));
        assert_eq!(header(Code::SlowDown), None);
        let busy =
            WireError::from(tradewind_core::Error::for_client(Reason::Overloaded, "the journal is full"));
        let response = busy.to_response(RequestId::next(), "/", true);
        assert_eq!((busy.code(), busy.message()), (Code::SlowDown, "the journal is full"));
        assert_eq!(response.headers().get(header::RETRY_AFTER), Some(&RETRY_AFTER_SECONDS));
    }

    #[tokio::test]
    async fn xml_is_escaped() {
        let id = RequestId::next();
        let error = WireError::access_denied().with_field("Key", "<\r").with_field("Key", "other");
        let response = error.to_response(id, "/b/<k>&\u{1}\r", false);
        assert_eq!(response.status(), 403);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(text.contains("<Code>AccessDenied</Code>"));
        assert!(text.contains("<Message>Access Denied</Message><Key>&lt;&#13;</Key><Resource>"));
        assert!(text.contains("<Resource>/b/&lt;k&gt;&amp;\u{FFFD}&#13;</Resource>"));
        assert!(text.contains(&format!("<RequestId>{id}</RequestId><HostId>")));
    }

    #[test]
    fn store_messages_are_logged_but_never_returned() {
        use tradewind_core::Error;
        for reason in Reason::ALL {
            let secret = "GET s3://private/key on http://10.0.0.5:9000: /var/lib/secret/place";
            for inner in [Error::new(*reason, secret), Error::with_source(*reason, secret, "secret source")] {
                let error = WireError::from(inner);
                assert!(!error.message().is_empty() && !error.message().contains("secret"), "{reason:?}");
                assert!(format!("{error:?}").contains(secret), "missing in the log: {reason:?}");
            }
            let of_request = Error::for_client(*reason, "part 7 was not uploaded");
            assert_eq!(WireError::from(of_request).message(), "part 7 was not uploaded", "{reason:?}");
        }
    }

    #[tokio::test]
    async fn head_has_no_body() {
        let response = WireError::access_denied().to_response(RequestId::next(), "/", true);
        assert_eq!(response.status(), 403);
        assert!(response.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
}
