//! The operation of a request. It is determined here, before the router of `s3s`: that router recognises only the
//! sub-resources that it supports and ignores all others, so that `DELETE /bucket?versioning` would delete the bucket.
//! Here a request either matches an operation exactly or is rejected.

use http::{HeaderMap, Method};
use tradewind_core::name::MAX_KEY_BYTES;
use tradewind_core::{BucketName, ObjectKey};

use super::classes;
use super::query::{Query, percent_decode};
use crate::auth::Access;
use crate::error::{Code, WireError};

/// The use of a request's body.
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
/// Enough for 1,000 keys of 1,024 bytes, or 10,000 parts with checksums, with generous formatting.
const LARGE_XML: BodyUse = BodyUse::Xml(4 << 20);

macro_rules! operations {
    ($($name:ident $access:ident $body:expr,)*) => {
        /// The supported S3 operations, and those on classes of data (`super::classes`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(super) enum Operation { $($name,)* }

        impl Operation {
            /// All operations.
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$name),*];

            /// The name in S3, or one of the same form.
            pub(super) const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }

            /// The access that the client needs to the addressed bucket.
            pub(super) const fn access(self) -> Access {
                match self { $(Self::$name => Access::$access,)* }
            }

            /// The use of its body.
            pub(super) const fn body(self) -> BodyUse {
                match self { $(Self::$name => $body,)* }
            }
        }
    };
}

impl Operation {
    /// Returns true if its query may name a version of the object.
    pub(super) const fn accepts_version(self) -> bool {
        matches!(
            self,
            Self::DeleteObject
                | Self::DeleteObjectTagging
                | Self::GetObject
                | Self::GetObjectAcl
                | Self::GetObjectAttributes
                | Self::GetObjectLegalHold
                | Self::GetObjectRetention
                | Self::GetObjectTagging
                | Self::HeadObject
                | Self::PostObjectClasses
                | Self::PutObjectAcl
                | Self::PutObjectClasses
                | Self::PutObjectLegalHold
                | Self::PutObjectRetention
                | Self::PutObjectTagging
                | Self::RestoreObject
        )
    }

    /// The list element of its document, and the maximum number of them; `None` if the document has no list.
    pub(super) const fn list_element_limit(self) -> Option<(&'static str, usize)> {
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
    DeleteBucketCors Write BodyUse::None,
    DeleteBucketEncryption Write BodyUse::None,
    DeleteBucketLifecycle Write BodyUse::None,
    DeleteBucketOwnershipControls Write BodyUse::None,
    DeleteBucketPolicy Write BodyUse::None,
    DeleteBucketReplication Write BodyUse::None,
    DeleteBucketTagging Write BodyUse::None,
    DeleteBucketWebsite Write BodyUse::None,
    DeleteObject Write BodyUse::None,
    DeleteObjectTagging Write BodyUse::None,
    DeleteObjects Write LARGE_XML,
    DeletePublicAccessBlock Write BodyUse::None,
    GetBucketAccelerateConfiguration List BodyUse::None,
    GetBucketAcl List BodyUse::None,
    GetBucketAnalyticsConfiguration List BodyUse::None,
    GetBucketCors List BodyUse::None,
    GetBucketEncryption List BodyUse::None,
    GetBucketIntelligentTieringConfiguration List BodyUse::None,
    GetBucketInventoryConfiguration List BodyUse::None,
    GetBucketLifecycleConfiguration List BodyUse::None,
    GetBucketLocation List BodyUse::None,
    GetBucketLogging List BodyUse::None,
    GetBucketMetricsConfiguration List BodyUse::None,
    GetBucketNotificationConfiguration List BodyUse::None,
    GetBucketOwnershipControls List BodyUse::None,
    GetBucketPolicy List BodyUse::None,
    GetBucketPolicyStatus List BodyUse::None,
    GetBucketReplication List BodyUse::None,
    GetBucketRequestPayment List BodyUse::None,
    GetBucketTagging List BodyUse::None,
    GetBucketVersioning List BodyUse::None,
    GetBucketWebsite List BodyUse::None,
    GetObject Read BodyUse::None,
    GetObjectAcl List BodyUse::None,
    GetObjectAttributes Read BodyUse::None,
    GetObjectLegalHold List BodyUse::None,
    GetObjectLockConfiguration List BodyUse::None,
    GetObjectRetention List BodyUse::None,
    GetObjectTagging Read BodyUse::None,
    GetPublicAccessBlock List BodyUse::None,
    HeadBucket List BodyUse::None,
    HeadObject Read BodyUse::None,
    ListBucketAnalyticsConfigurations List BodyUse::None,
    ListBucketIntelligentTieringConfigurations List BodyUse::None,
    ListBucketInventoryConfigurations List BodyUse::None,
    ListBucketMetricsConfigurations List BodyUse::None,
    ListBuckets List BodyUse::None,
    ListMultipartUploads List BodyUse::None,
    ListObjectVersions List BodyUse::None,
    ListObjects List BodyUse::None,
    ListObjectsV2 List BodyUse::None,
    ListParts List BodyUse::None,
    PostObjectClasses Write BodyUse::None,
    PutBucketAcl Write BodyUse::None,
    PutBucketVersioning Write SMALL_XML,
    PutObject Write BodyUse::Payload,
    PutObjectAcl Write BodyUse::None,
    PutObjectClasses Write BodyUse::Payload,
    PutObjectLegalHold Write BodyUse::None,
    PutObjectRetention Write BodyUse::None,
    PutObjectTagging Write SMALL_XML,
    RestoreObject Write SMALL_XML,
    UploadPart Write BodyUse::Payload,
    UploadPartCopy Write BodyUse::None,
}

/// Query parameters that name a sub-resource and so select another operation than the plain one of the method. The list
/// includes the sub-resources of unsupported operations, so that [`resolve`] rejects such a request instead of
/// executing the plain operation.
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

/// Returns true for a query parameter that names a sub-resource.
pub(crate) fn is_subresource(name: &str) -> bool {
    SUBRESOURCES.contains(&name)
}

/// The header that turns a PUT into a copy.
pub(super) const COPY_SOURCE: &str = "x-amz-copy-source";

/// Headers that select another operation than the plain one of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Selector {
    /// No such header.
    None,
    /// A PUT is a copy.
    CopySource,
    /// A PUT with a class section as its body, or a POST with class headers.
    Classes,
}

impl Selector {
    pub(super) fn from_headers(method: &Method, headers: &HeaderMap) -> Self {
        if headers.contains_key(COPY_SOURCE) {
            Self::CopySource
        } else if classes::selects_operation(method, headers) {
            Self::Classes
        } else {
            Self::None
        }
    }
}

/// The resource that a request addresses.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The bucket; `None` for the service itself.
    pub(super) bucket: Option<BucketName>,
    /// The key within it.
    pub(super) key: Option<ObjectKey>,
}

impl Target {
    /// Parses the path of a path-style request. The key is everything after the bucket's `/`, decoded once. `.`, `..`
    /// and `//` have no special meaning in it.
    pub(super) fn parse(path: &str) -> Result<Self, WireError> {
        let invalid = || WireError::new(Code::InvalidUri, "Couldn't parse the specified URI.");
        let path = path.strip_prefix('/').ok_or_else(invalid)?;
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket.is_empty() && key.is_empty() {
            return Ok(Self { bucket: None, key: None });
        }
        let bucket = percent_decode(bucket)?;
        let bucket = BucketName::new(&bucket).map_err(|_| invalid_bucket_name_error(&bucket))?;
        let key = match percent_decode(key)? {
            key if key.is_empty() => None,
            key => Some(ObjectKey::new(&key).map_err(|_| key_too_long_error(&key))?),
        };
        Ok(Self { bucket: Some(bucket), key })
    }
}

/// The error of a key over the limit.
pub(super) fn key_too_long_error(key: &str) -> WireError {
    WireError::new(Code::KeyTooLong, "Your key is too long.")
        .with_field("Size", key.len().to_string())
        .with_field("MaxSizeAllowed", MAX_KEY_BYTES.to_string())
}

/// The error of an invalid bucket name.
pub(super) fn invalid_bucket_name_error(name: &str) -> WireError {
    WireError::new(Code::InvalidBucketName, "The specified bucket is not valid.")
        .with_field("BucketName", name)
}

/// The error of an unsupported operation or feature.
pub(crate) fn not_implemented_error(feature: &str) -> WireError {
    WireError::new(
        Code::NotImplemented,
        format!("A header or query you provided implies functionality that is not implemented: {feature}"),
    )
}

/// Determines the operation. Fails if no supported operation matches exactly.
pub(super) fn resolve(
    method: &Method,
    target: &Target,
    query: &Query,
    selector: Selector,
) -> Result<Operation, WireError> {
    let mut subresources = query.names().filter(|name| SUBRESOURCES.contains(name));
    let (first, second) = (subresources.next(), subresources.next());
    if second.is_some_and(|second| Some(second) != first) {
        return Err(not_implemented_error("this combination of sub-resources"));
    }
    let unsupported = || Err(not_implemented_error(first.unwrap_or(method.as_str())));
    let not_allowed = || {
        Err(WireError::new(
            Code::MethodNotAllowed,
            "The specified method is not allowed against this resource.",
        ))
    };
    if ![Method::GET, Method::HEAD, Method::PUT, Method::POST, Method::DELETE].contains(method) {
        return not_allowed();
    }
    let (Some(_), key) = (&target.bucket, &target.key) else {
        return match (method.as_str(), first) {
            ("GET", None) => Ok(Operation::ListBuckets),
            (_, Some(_)) => unsupported(),
            _ => not_allowed(),
        };
    };
    let has_id = query.get("id").is_some();
    let operation = if key.is_none() {
        match (method.as_str(), first) {
            ("GET", None) => match query.get("list-type") {
                None => Operation::ListObjects,
                Some("2") => Operation::ListObjectsV2,
                Some(other) => {
                    let message = "Invalid List Type specified in Request";
                    return Err(WireError::invalid_argument(message, "list-type", other));
                }
            },
            ("GET", Some("accelerate")) => Operation::GetBucketAccelerateConfiguration,
            ("GET", Some("acl")) => Operation::GetBucketAcl,
            ("GET", Some("analytics")) if has_id => Operation::GetBucketAnalyticsConfiguration,
            ("GET", Some("analytics")) => Operation::ListBucketAnalyticsConfigurations,
            ("GET", Some("cors")) => Operation::GetBucketCors,
            ("GET", Some("encryption")) => Operation::GetBucketEncryption,
            ("GET", Some("intelligent-tiering")) if has_id => {
                Operation::GetBucketIntelligentTieringConfiguration
            }
            ("GET", Some("intelligent-tiering")) => Operation::ListBucketIntelligentTieringConfigurations,
            ("GET", Some("inventory")) if has_id => Operation::GetBucketInventoryConfiguration,
            ("GET", Some("inventory")) => Operation::ListBucketInventoryConfigurations,
            ("GET", Some("lifecycle")) => Operation::GetBucketLifecycleConfiguration,
            ("GET", Some("location")) => Operation::GetBucketLocation,
            ("GET", Some("logging")) => Operation::GetBucketLogging,
            ("GET", Some("metrics")) if has_id => Operation::GetBucketMetricsConfiguration,
            ("GET", Some("metrics")) => Operation::ListBucketMetricsConfigurations,
            ("GET", Some("notification")) => Operation::GetBucketNotificationConfiguration,
            ("GET", Some("object-lock")) => Operation::GetObjectLockConfiguration,
            ("GET", Some("ownershipControls")) => Operation::GetBucketOwnershipControls,
            ("GET", Some("policy")) => Operation::GetBucketPolicy,
            ("GET", Some("policyStatus")) => Operation::GetBucketPolicyStatus,
            ("GET", Some("publicAccessBlock")) => Operation::GetPublicAccessBlock,
            ("GET", Some("replication")) => Operation::GetBucketReplication,
            ("GET", Some("requestPayment")) => Operation::GetBucketRequestPayment,
            ("GET", Some("tagging")) => Operation::GetBucketTagging,
            ("GET", Some("uploads")) => Operation::ListMultipartUploads,
            ("GET", Some("versioning")) => Operation::GetBucketVersioning,
            ("GET", Some("versions")) => Operation::ListObjectVersions,
            ("GET", Some("website")) => Operation::GetBucketWebsite,
            ("HEAD", None) => Operation::HeadBucket,
            ("PUT", None) => Operation::CreateBucket,
            ("PUT", Some("acl")) => Operation::PutBucketAcl,
            ("PUT", Some("versioning")) => Operation::PutBucketVersioning,
            ("DELETE", None) => Operation::DeleteBucket,
            ("DELETE", Some("cors")) => Operation::DeleteBucketCors,
            ("DELETE", Some("encryption")) => Operation::DeleteBucketEncryption,
            ("DELETE", Some("lifecycle")) => Operation::DeleteBucketLifecycle,
            ("DELETE", Some("ownershipControls")) => Operation::DeleteBucketOwnershipControls,
            ("DELETE", Some("policy")) => Operation::DeleteBucketPolicy,
            ("DELETE", Some("publicAccessBlock")) => Operation::DeletePublicAccessBlock,
            ("DELETE", Some("replication")) => Operation::DeleteBucketReplication,
            ("DELETE", Some("tagging")) => Operation::DeleteBucketTagging,
            ("DELETE", Some("website")) => Operation::DeleteBucketWebsite,
            ("POST", Some("delete")) => Operation::DeleteObjects,
            _ => return unsupported(),
        }
    } else {
        match (method.as_str(), first) {
            ("GET", None) => Operation::GetObject,
            ("GET", Some("uploadId")) => Operation::ListParts,
            ("GET", Some("tagging")) => Operation::GetObjectTagging,
            ("GET", Some("acl")) => Operation::GetObjectAcl,
            ("GET", Some("attributes")) => Operation::GetObjectAttributes,
            // S3 has withdrawn both.
            ("GET", Some("torrent")) | ("POST", Some("select")) => return not_allowed(),
            ("HEAD", None) => Operation::HeadObject,
            ("PUT", None) if query.get("partNumber").is_some() => return Err(incomplete_part_parameters()),
            ("PUT", None) if selector == Selector::CopySource => Operation::CopyObject,
            ("PUT", None) if selector == Selector::Classes => Operation::PutObjectClasses,
            ("PUT", None) => Operation::PutObject,
            ("PUT", Some("acl")) => Operation::PutObjectAcl,
            ("GET", Some("legal-hold")) => Operation::GetObjectLegalHold,
            ("GET", Some("retention")) => Operation::GetObjectRetention,
            ("PUT", Some("legal-hold")) => Operation::PutObjectLegalHold,
            ("PUT", Some("retention")) => Operation::PutObjectRetention,
            ("PUT", Some("tagging")) => Operation::PutObjectTagging,
            ("PUT", Some("uploadId")) if query.get("partNumber").is_none() => {
                return Err(incomplete_part_parameters());
            }
            ("PUT", Some("uploadId")) if selector == Selector::CopySource => Operation::UploadPartCopy,
            ("PUT", Some("uploadId")) => Operation::UploadPart,
            ("POST", None) if selector == Selector::Classes => Operation::PostObjectClasses,
            ("POST", None) => return not_allowed(),
            ("POST", Some("restore")) => Operation::RestoreObject,
            ("POST", Some("uploads")) => Operation::CreateMultipartUpload,
            ("POST", Some("uploadId")) => Operation::CompleteMultipartUpload,
            ("DELETE", None) => Operation::DeleteObject,
            ("DELETE", Some("uploadId")) => Operation::AbortMultipartUpload,
            ("DELETE", Some("tagging")) => Operation::DeleteObjectTagging,
            _ => return unsupported(),
        }
    };
    Ok(operation)
}

fn incomplete_part_parameters() -> WireError {
    WireError::new(
        Code::InvalidArgument,
        "Uploading a part requires both partNumber and uploadId; only one of them was given.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compatibility_page_lists_exactly_these_operations() {
        let page = include_str!("../../../../docs/s3-compatibility.md");
        let table = page.split("## ").find(|section| section.starts_with("Operations")).unwrap();
        let cells = table.lines().filter_map(|line| line.strip_prefix("| `")?.split('|').next());
        let mut listed: Vec<&str> =
            cells.flat_map(|cell| cell.split(',').map(|name| name.trim().trim_matches('`'))).collect();
        listed.sort_unstable();
        let mut supported: Vec<&str> = Operation::ALL.iter().map(|operation| operation.name()).collect();
        supported.sort_unstable();
        assert_eq!(listed, supported);
    }
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn resolving_any_path_and_query_does_not_panic(path in "/?[ -~]{0,40}", query in "[ -~]{0,40}", method in "[A-Z]{3,6}") {
            if let (Ok(target), Ok(query)) = (Target::parse(&path), Query::parse(Some(&query))) {
                let found = resolve(&method.parse().unwrap(), &target, &query, Selector::None);
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

    fn resolved(method: &str, path: &str, query: &str) -> Result<&'static str, &'static str> {
        let target = Target::parse(path).map_err(|e| e.code().as_str())?;
        let query = Query::parse(Some(query)).map_err(|e| e.code().as_str())?;
        resolve(&method.parse().unwrap(), &target, &query, Selector::None)
            .map(Operation::name)
            .map_err(|e| e.code().as_str())
    }

    #[test]
    fn supported_operations_are_resolved() {
        assert_eq!(resolved("GET", "/", ""), Ok("ListBuckets"));
        assert_eq!(resolved("GET", "/abc/", "list-type=2"), Ok("ListObjectsV2"));
        assert_eq!(resolved("GET", "/abc//", "x-id=GetObject"), Ok("GetObject"));
        assert_eq!(resolved("PUT", "/abc/k", "partNumber=1&uploadId=u"), Ok("UploadPart"));
        assert_eq!(resolved("DELETE", "/abc/k", "versionId=v1"), Ok("DeleteObject"));
        assert_eq!(resolved("PUT", "/abc", "versioning"), Ok("PutBucketVersioning"));
    }

    #[test]
    fn unsupported_operations_are_rejected() {
        for sub in SUBRESOURCES {
            for method in ["PUT", "DELETE"] {
                let found = resolved(method, "/abc", sub);
                match (method, *sub) {
                    ("PUT", "versioning") => assert_eq!(found, Ok("PutBucketVersioning")),
                    ("PUT", "acl") => assert_eq!(found, Ok("PutBucketAcl")),
                    // Deletes of settings that cannot be set succeed.
                    _ if found.is_ok() => {
                        assert_eq!(method, "DELETE", "?{sub}");
                        assert_ne!(found, Ok("DeleteBucket"), "?{sub}");
                    }
                    _ => assert_eq!(found, Err("NotImplemented"), "{method} ?{sub}"),
                }
            }
        }
        assert_eq!(resolved("DELETE", "/abc/k", "acl"), Err("NotImplemented"));
        assert_eq!(resolved("PUT", "/abc/k", "tagging&acl"), Err("NotImplemented"));
        assert_eq!(resolved("PUT", "/abc/k", "partNumber=1"), Err("InvalidArgument"));
        assert_eq!(resolved("PUT", "/abc/k", "uploadId=u"), Err("InvalidArgument"));
        assert_eq!(resolved("POST", "/abc", ""), Err("NotImplemented"));
        assert_eq!(resolved("PATCH", "/abc/k", ""), Err("MethodNotAllowed"));
        assert_eq!(resolved("PUT", "/", ""), Err("MethodNotAllowed"));
    }

    #[test]
    fn paths_are_parsed_into_bucket_and_key() {
        let key =
            |path| Target::parse(path).map(|t| t.key.map(|k| k.as_str().to_owned())).map_err(|e| e.code());
        assert_eq!(key("/abc"), Ok(None));
        assert_eq!(key("/abc/a%2F%2Fb/../c"), Ok(Some("a//b/../c".to_owned())));
        assert_eq!(key("/abc//lead+plus"), Ok(Some("/lead+plus".to_owned())));
        assert_eq!(key("/abc/%252F"), Ok(Some("%2F".to_owned())));
        for bad in ["/abc/%FF", "/abc/%ZZ", "/abc/a%2", "/abc/%", "/a%zzc/k"] {
            assert_eq!(key(bad), Err(Code::InvalidUri), "{bad}");
        }
        assert_eq!(key("/Abc/k"), Err(Code::InvalidBucketName));
        assert_eq!(key("//k"), Err(Code::InvalidBucketName));
        assert_eq!(key(&format!("/abc/{}", "k".repeat(1025))), Err(Code::KeyTooLong));
    }
}
