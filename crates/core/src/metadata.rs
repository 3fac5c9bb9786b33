//! Metadata of an object: content headers, user metadata, tags and classes.
//! Stores return all of it unchanged; only tags can be changed without a new write.

use crate::class::Classes;
use crate::error::{Error, Reason, Result};

/// The HTTP content headers that S3 stores with an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SystemHeaders {
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// `Content-Encoding`, without `aws-chunked`.
    pub content_encoding: Option<String>,
    /// `Content-Disposition`.
    pub content_disposition: Option<String>,
    /// `Content-Language`.
    pub content_language: Option<String>,
    /// `Cache-Control`.
    pub cache_control: Option<String>,
    /// `Expires`, as sent.
    pub expires: Option<String>,
    /// `x-amz-website-redirect-location`.
    pub website_redirect: Option<String>,
    /// `x-amz-storage-class`, if it is not `STANDARD`.
    pub storage_class: Option<String>,
}

impl SystemHeaders {
    /// The values, in the order of the fields.
    #[must_use]
    pub const fn values(&self) -> [&Option<String>; 8] {
        [
            &self.content_type,
            &self.content_encoding,
            &self.content_disposition,
            &self.content_language,
            &self.cache_control,
            &self.expires,
            &self.website_redirect,
            &self.storage_class,
        ]
    }

    /// Mutable references to the values, in the order of the fields.
    #[must_use]
    pub const fn values_mut(&mut self) -> [&mut Option<String>; 8] {
        [
            &mut self.content_type,
            &mut self.content_encoding,
            &mut self.content_disposition,
            &mut self.content_language,
            &mut self.cache_control,
            &mut self.expires,
            &mut self.website_redirect,
            &mut self.storage_class,
        ]
    }
}

/// User metadata: lowercase names without the `x-amz-meta-` prefix, sorted by name.
pub type UserMetadata = Vec<(String, String)>;

/// The limit of user metadata, names and values together, as in S3.
pub const MAX_USER_METADATA_BYTES: usize = 2048;

/// Everything an object carries besides its bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Content headers.
    pub headers: SystemHeaders,
    /// User metadata.
    pub user: UserMetadata,
    /// Tags.
    pub tags: Tags,
    /// Classes of the object and its ranges.
    pub classes: Classes,
}

impl Metadata {
    /// The metadata of a copy for which the caller names none: all but the website redirect and the storage class, which
    /// S3 does not copy.
    #[must_use]
    pub fn for_copy(mut self) -> Self {
        self.headers.website_redirect = None;
        self.headers.storage_class = None;
        self
    }

    /// Rejects user metadata over [`MAX_USER_METADATA_BYTES`], and content headers with an empty value, which HTTP does
    /// not distinguish from absent ones.
    pub fn check(&self) -> Result<()> {
        if self.headers.values().into_iter().flatten().any(String::is_empty) {
            return Err(Error::for_client(
                Reason::InvalidArgument,
                "a content header is empty; leave it out",
            ));
        }
        let bytes: usize = self.user.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes > MAX_USER_METADATA_BYTES {
            return Err(Error::new(
                Reason::MetadataTooLarge,
                format!("user metadata has {bytes} bytes; at most {MAX_USER_METADATA_BYTES} are allowed"),
            ));
        }
        Ok(())
    }
}

/// Up to ten tags with distinct keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tags(Vec<(String, String)>);

impl Tags {
    /// The limit of tags per object.
    pub const MAX_TAGS: usize = 10;

    /// Checks count, lengths (128 and 256 characters), characters and distinctness.
    pub fn new(tags: Vec<(String, String)>) -> Result<Self> {
        let reject = |why: String| Err(Error::for_client(Reason::InvalidTag, why));
        if tags.len() > Self::MAX_TAGS {
            return reject(format!("an object has at most {} tags, not {}", Self::MAX_TAGS, tags.len()));
        }
        for (i, (key, value)) in tags.iter().enumerate() {
            if key.is_empty() || key.chars().count() > 128 {
                return reject(format!("tag key {key:?} must have 1 to 128 characters"));
            }
            if value.chars().count() > 256 {
                return reject(format!("the value of tag {key:?} must have at most 256 characters"));
            }
            let legal = |c: char| c.is_alphanumeric() || c.is_whitespace() || "+-=._:/@".contains(c);
            if !key.chars().all(legal) || !value.chars().all(legal) {
                return reject(format!("tag {key:?} has a character that is not allowed"));
            }
            if tags[..i].iter().any(|(other, _)| other == key) {
                return reject(format!("tag key {key:?} is given twice"));
            }
        }
        Ok(Self(tags))
    }

    /// Key and value pairs in the order given.
    #[must_use]
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    /// Returns true if there are no tags.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
