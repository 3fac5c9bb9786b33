//! The names of the headers that carry an object's metadata.

use http::HeaderName;
use http::header::{
    CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_TYPE, EXPIRES,
};

/// The content headers, in the order of [`SystemHeaders::values`](tradewind_core::SystemHeaders::values).
pub const SYSTEM_HEADERS: [HeaderName; 8] = [
    CONTENT_TYPE,
    CONTENT_ENCODING,
    CONTENT_DISPOSITION,
    CONTENT_LANGUAGE,
    CACHE_CONTROL,
    EXPIRES,
    WEBSITE_REDIRECT,
    STORAGE_CLASS,
];
/// The prefix of user metadata headers.
pub const USER_PREFIX: &str = "x-amz-meta-";
/// The redirect target of this object on a website served from the bucket.
pub const WEBSITE_REDIRECT: HeaderName = HeaderName::from_static("x-amz-website-redirect-location");
/// The storage class.
pub const STORAGE_CLASS: HeaderName = HeaderName::from_static("x-amz-storage-class");
/// The class of the object's data (DSS), not its storage class.
pub const DSS_OBJECT_CLASS: HeaderName = HeaderName::from_static("x-dss-object-class");
/// The classes of the data of ranges (DSS), not storage classes.
pub const DSS_RANGE_CLASS: HeaderName = HeaderName::from_static("x-dss-range-class");
/// `True` if a class section is in front of the data of a PUT (DSS).
pub const DSS_OBJECT_FILE: HeaderName = HeaderName::from_static("x-dss-object-file");
/// `True` if the body of a PUT is a class section, for an existing object (DSS).
pub const DSS_CLASS_FILE: HeaderName = HeaderName::from_static("x-dss-class-file");
/// Seconds for which an object has a higher priority; in a response, those that remain.
pub const DSS_RETENTION: HeaderName = HeaderName::from_static("x-dss-retention");
/// A retention as an absolute time, `END-SECONDS`: for servers that copy it.
pub const DSS_RETENTION_SPAN: HeaderName = HeaderName::from_static("x-dss-retention-span");
/// Tags, in a request.
pub const TAGGING: HeaderName = HeaderName::from_static("x-amz-tagging");
/// The number of tags, in a response.
pub const TAGGING_COUNT: HeaderName = HeaderName::from_static("x-amz-tagging-count");
/// The scope of the checksum of a multipart object.
pub const CHECKSUM_TYPE: HeaderName = HeaderName::from_static("x-amz-checksum-type");
/// The content type that S3 returns for an object without one.
pub const DEFAULT_TYPE: &str = "binary/octet-stream";

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_core::SystemHeaders;

    #[test]
    fn names_are_in_the_order_of_their_values() {
        let headers = SystemHeaders {
            content_type: Some("content-type".to_owned()),
            content_encoding: Some("content-encoding".to_owned()),
            content_disposition: Some("content-disposition".to_owned()),
            content_language: Some("content-language".to_owned()),
            cache_control: Some("cache-control".to_owned()),
            expires: Some("expires".to_owned()),
            website_redirect: Some("x-amz-website-redirect-location".to_owned()),
            storage_class: Some("x-amz-storage-class".to_owned()),
        };
        let values = headers.values().map(|value| value.clone().unwrap());
        assert_eq!(SYSTEM_HEADERS.map(|name| name.to_string()), values);
        assert_eq!(headers.clone().values_mut().map(|value| value.clone().unwrap()), values);
    }
}
