//! Which operation a request asks for. Decided here, before the router of `s3s`, because that one
//! looks only for the sub-resources it knows and takes everything else for the plain operation: to it
//! `DELETE /bucket?versioning` deletes the bucket. Here a request is an operation of ours exactly, or
//! it is refused.

use http::Method;
use percent_encoding::percent_decode_str;
use tradewind_core::{BucketName, ObjectKey};

use super::query::Query;
use crate::auth::Access;
use crate::error::{Code, WireError};

/// What the request's body is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyUse {
    /// Not read.
    None,
    /// The bytes of an object or a part.
    Payload,
    /// An XML document of at most this many bytes.
    Xml(u64),
}

const SMALL_XML: BodyUse = BodyUse::Xml(64 << 10);
/// A thousand keys of 1,024 bytes, or ten thousand parts with checksums, generously written.
const LARGE_XML: BodyUse = BodyUse::Xml(4 << 20);

macro_rules! operations {
    ($($name:ident $access:ident $body:expr,)*) => {
        /// The operations of S3 that are here.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(super) enum Operation { $($name,)* }

        impl Operation {
            /// The name as S3 has it.
            pub(super) const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// What the caller must be allowed to do to the bucket addressed.
            pub(super) const fn access(self) -> Access {
                match self { $(Self::$name => Access::$access,)* }
            }

            /// What its body is for.
            pub(super) const fn body(self) -> BodyUse {
                match self { $(Self::$name => $body,)* }
            }
        }
    };
}

impl Operation {
    /// The element that its document holds a list of, and the most of them.
    pub(super) const fn list(self) -> Option<(&'static str, usize)> {
        match self {
            Self::CompleteMultipartUpload => Some(("Part", 10_000)),
            Self::DeleteObjects => Some(("Object", 1000)),
            _ => None,
        }
    }
}

operations! {
    AbortMultipartUpload Write BodyUse::None,
    CompleteMultipartUpload Write LARGE_XML,
    CopyObject Write BodyUse::None,
    CreateBucket Write SMALL_XML,
    CreateMultipartUpload Write BodyUse::None,
    DeleteBucket Write BodyUse::None,
    DeleteObject Write BodyUse::None,
    DeleteObjectTagging Write BodyUse::None,
    DeleteObjects Write LARGE_XML,
    GetBucketLocation List BodyUse::None,
    GetObject Read BodyUse::None,
    GetObjectAttributes Read BodyUse::None,
    GetObjectTagging Read BodyUse::None,
    HeadBucket List BodyUse::None,
    HeadObject Read BodyUse::None,
    ListBuckets List BodyUse::None,
    ListMultipartUploads List BodyUse::None,
    ListObjects List BodyUse::None,
    ListObjectsV2 List BodyUse::None,
    ListParts List BodyUse::None,
    PutObject Write BodyUse::Payload,
    PutObjectTagging Write SMALL_XML,
    UploadPart Write BodyUse::Payload,
    UploadPartCopy Write BodyUse::None,
}

/// Query names that make a request another operation. Any that an operation of ours does not name is
/// an operation that is not here.
const SUBRESOURCES: &[&str] = &[
    "abac",
    "accelerate",
    "acl",
    "analytics",
    "annotation",
    "append",
    "attributes",
    "cors",
    "delete",
    "encryption",
    "events",
    "intelligent-tiering",
    "inventory",
    "legal-hold",
    "lifecycle",
    "location",
    "logging",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "policyStatus",
    "publicAccessBlock",
    "renameObject",
    "replication",
    "requestPayment",
    "restore",
    "retention",
    "select",
    "session",
    "tagging",
    "torrent",
    "uploadId",
    "uploads",
    "versioning",
    "versions",
    "website",
];

/// The header that makes a PUT a copy.
pub(super) const COPY_SOURCE: &str = "x-amz-copy-source";

/// What a request addresses.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The bucket; `None` for the service itself.
    pub(super) bucket: Option<BucketName>,
    /// The key within it.
    pub(super) key: Option<ObjectKey>,
}

impl Target {
    /// Reads the path of a path-style request. Nothing in a key is special: it is what follows the
    /// first `/` behind the bucket, decoded once.
    pub(super) fn parse(path: &str) -> Result<Self, WireError> {
        let invalid = || WireError::new(Code::InvalidUri, "Couldn't parse the specified URI.");
        let path = path.strip_prefix('/').ok_or_else(invalid)?;
        let decode = |text| percent_decode_str(text).decode_utf8().map_err(|_| invalid());
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket.is_empty() && key.is_empty() {
            return Ok(Self { bucket: None, key: None });
        }
        let bucket = BucketName::new(&decode(bucket)?)
            .map_err(|_| WireError::new(Code::InvalidBucketName, "The specified bucket is not valid."))?;
        let key = match decode(key)? {
            key if key.is_empty() => None,
            key => Some(ObjectKey::new(&key).map_err(|_| key_too_long())?),
        };
        Ok(Self { bucket: Some(bucket), key })
    }
}

/// The error of a key over the limit.
pub(super) fn key_too_long() -> WireError {
    WireError::new(Code::KeyTooLong, "Your key is too long.")
}

/// The error of an operation that is not here.
pub(super) fn not_implemented(what: &str) -> WireError {
    WireError::new(
        Code::NotImplemented,
        format!("A header, query parameter or operation you provided is not implemented: {what}"),
    )
}

/// Finds the operation.
pub(super) fn resolve(
    method: &Method,
    target: &Target,
    query: &Query,
    is_copy: bool,
) -> Result<Operation, WireError> {
    let mut asked = query.names().filter(|name| SUBRESOURCES.contains(name));
    let (first, second) = (asked.next(), asked.next());
    if second.is_some_and(|second| Some(second) != first) {
        return Err(not_implemented("this combination of sub-resources"));
    }
    if query.get("versionId").is_some_and(|version| !matches!(version, "" | "null")) {
        return Err(not_implemented("versionId"));
    }
    let not_here = || Err(not_implemented(first.unwrap_or(method.as_str())));
    let not_allowed = || {
        Err(WireError::new(
            Code::MethodNotAllowed,
            "The specified method is not allowed against this resource.",
        ))
    };
    if ![Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE, Method::OPTIONS]
        .contains(method)
    {
        return not_allowed();
    }
    let (Some(_), key) = (&target.bucket, &target.key) else {
        return match (method.as_str(), first) {
            ("GET", None) => Ok(Operation::ListBuckets),
            ("OPTIONS", _) | (_, Some(_)) => not_here(),
            _ => not_allowed(),
        };
    };
    let operation = if key.is_none() {
        match (method.as_str(), first) {
            ("GET", None) => match query.get("list-type") {
                None => Operation::ListObjects,
                Some("2") => Operation::ListObjectsV2,
                Some(other) => {
                    return Err(WireError::new(
                        Code::InvalidArgument,
                        format!("Invalid List Type specified in Request: {other}"),
                    ));
                }
            },
            ("GET", Some("location")) => Operation::GetBucketLocation,
            ("GET", Some("uploads")) => Operation::ListMultipartUploads,
            ("HEAD", None) => Operation::HeadBucket,
            ("PUT", None) => Operation::CreateBucket,
            ("DELETE", None) => Operation::DeleteBucket,
            ("POST", Some("delete")) => Operation::DeleteObjects,
            _ => return not_here(),
        }
    } else {
        match (method.as_str(), first) {
            ("GET", None) => Operation::GetObject,
            ("GET", Some("uploadId")) => Operation::ListParts,
            ("GET", Some("tagging")) => Operation::GetObjectTagging,
            ("GET", Some("attributes")) => Operation::GetObjectAttributes,
            ("HEAD", None) => Operation::HeadObject,
            ("PUT", None) if query.get("partNumber").is_some() => return Err(half_a_part()),
            ("PUT", None) if is_copy => Operation::CopyObject,
            ("PUT", None) => Operation::PutObject,
            ("PUT", Some("tagging")) => Operation::PutObjectTagging,
            ("PUT", Some("uploadId")) if query.get("partNumber").is_none() => return Err(half_a_part()),
            ("PUT", Some("uploadId")) if is_copy => Operation::UploadPartCopy,
            ("PUT", Some("uploadId")) => Operation::UploadPart,
            ("POST", None) => return not_allowed(),
            ("POST", Some("uploads")) => Operation::CreateMultipartUpload,
            ("POST", Some("uploadId")) => Operation::CompleteMultipartUpload,
            ("DELETE", None) => Operation::DeleteObject,
            ("DELETE", Some("uploadId")) => Operation::AbortMultipartUpload,
            ("DELETE", Some("tagging")) => Operation::DeleteObjectTagging,
            _ => return not_here(),
        }
    };
    Ok(operation)
}

fn half_a_part() -> WireError {
    WireError::new(
        Code::InvalidArgument,
        "A part is written with both partNumber and uploadId; only one of them was given.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_path_and_query_is_decided(path in "/?[ -~]{0,40}", query in "[ -~]{0,40}", method in "[A-Z]{3,6}") {
            if let (Ok(target), Ok(query)) = (Target::parse(&path), Query::parse(Some(&query))) {
                let found = resolve(&method.parse().unwrap(), &target, &query, false);
                if let Ok(operation) = found {
                    prop_assert_eq!(target.bucket.is_none(), operation == Operation::ListBuckets);
                }
            }
        }

        #[test]
        fn keys_are_decoded_once(key in "\\PC{1,60}") {
            use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
            let path = format!("/abc/{}", utf8_percent_encode(&key, NON_ALPHANUMERIC));
            let found = Target::parse(&path).unwrap().key.unwrap();
            prop_assert_eq!(found.as_str(), key.as_str());
        }
    }

    fn asked(method: &str, path: &str, query: &str) -> Result<&'static str, &'static str> {
        let target = Target::parse(path).map_err(|e| e.code().as_str())?;
        let query = Query::parse(Some(query)).map_err(|e| e.code().as_str())?;
        resolve(&method.parse().unwrap(), &target, &query, false)
            .map(Operation::name)
            .map_err(|e| e.code().as_str())
    }

    #[test]
    fn plain_operations() {
        assert_eq!(asked("GET", "/", ""), Ok("ListBuckets"));
        assert_eq!(asked("GET", "/abc/", "list-type=2"), Ok("ListObjectsV2"));
        assert_eq!(asked("GET", "/abc//", "x-id=GetObject"), Ok("GetObject"));
        assert_eq!(asked("PUT", "/abc/k", "partNumber=1&uploadId=u"), Ok("UploadPart"));
        assert_eq!(asked("DELETE", "/abc/k", "versionId=null"), Ok("DeleteObject"));
    }

    #[test]
    fn what_is_not_here_is_never_taken_for_something_else() {
        for sub in SUBRESOURCES {
            for method in ["PUT", "DELETE"] {
                assert_eq!(asked(method, "/abc", sub), Err("NotImplemented"), "{method} ?{sub}");
            }
        }
        assert_eq!(asked("DELETE", "/abc/k", "acl"), Err("NotImplemented"));
        assert_eq!(asked("DELETE", "/abc/k", "versionId=v1"), Err("NotImplemented"));
        assert_eq!(asked("PUT", "/abc/k", "tagging&acl"), Err("NotImplemented"));
        assert_eq!(asked("PUT", "/abc/k", "partNumber=1"), Err("InvalidArgument"));
        assert_eq!(asked("PUT", "/abc/k", "uploadId=u"), Err("InvalidArgument"));
        assert_eq!(asked("POST", "/abc", ""), Err("NotImplemented"));
        assert_eq!(asked("OPTIONS", "/abc/k", ""), Err("NotImplemented"));
        assert_eq!(asked("PATCH", "/abc/k", ""), Err("MethodNotAllowed"));
        assert_eq!(asked("PUT", "/", ""), Err("MethodNotAllowed"));
    }

    #[test]
    fn targets() {
        let key =
            |path| Target::parse(path).map(|t| t.key.map(|k| k.as_str().to_owned())).map_err(|e| e.code());
        assert_eq!(key("/abc"), Ok(None));
        assert_eq!(key("/abc/a%2F%2Fb/../c"), Ok(Some("a//b/../c".to_owned())));
        assert_eq!(key("/abc//lead+plus"), Ok(Some("/lead+plus".to_owned())));
        assert_eq!(key("/abc/%252F"), Ok(Some("%2F".to_owned())));
        assert_eq!(key("/abc/%FF"), Err(Code::InvalidUri));
        assert_eq!(key("/Abc/k"), Err(Code::InvalidBucketName));
        assert_eq!(key("//k"), Err(Code::InvalidBucketName));
        assert_eq!(key(&format!("/abc/{}", "k".repeat(1025))), Err(Code::KeyTooLong));
    }
}
