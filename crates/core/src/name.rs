//! Names: buckets, keys and the address of an object. A value of these types is legal by
//! construction; stores never re-check what the type already says.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, Reason, Result};
use crate::version::VersionId;

/// The longest key, in bytes of UTF-8, as in S3.
pub const MAX_KEY_BYTES: usize = 1024;

/// The name of a bucket: 3 to 63 characters of `a-z`, `0-9`, `-` and `.`, as in S3.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BucketName(Arc<str>);

impl BucketName {
    /// Checks a name against the rules for general purpose buckets.
    pub fn new(name: &str) -> Result<Self> {
        let reject = |why: &str| {
            Err(Error::for_client(
                Reason::InvalidBucketName,
                format!("bucket name {name:?} is not valid: {why}"),
            ))
        };
        if !(3..=63).contains(&name.len()) {
            return reject("it must have 3 to 63 characters");
        }
        if !name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.') {
            return reject("only lowercase letters, digits, '-' and '.' are allowed");
        }
        let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if !edge(name.as_bytes()[0]) || !edge(name.as_bytes()[name.len() - 1]) {
            return reject("it must begin and end with a letter or a digit");
        }
        if name.contains("..") || name.contains(".-") || name.contains("-.") {
            return reject("'.' must stand between letters or digits");
        }
        if name.parse::<std::net::Ipv4Addr>().is_ok() {
            return reject("it must not look like an IP address");
        }
        if name.starts_with("xn--") || name.ends_with("-s3alias") {
            return reject("it uses a reserved prefix or suffix");
        }
        Ok(Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The key of an object: 1 to 1,024 bytes of any UTF-8. Nothing in it is special: `..`, `//` and a
/// leading `/` are ordinary bytes. Keys order by their bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// Checks the length; UTF-8 is already given by the type.
    pub fn new(key: &str) -> Result<Self> {
        if key.is_empty() {
            return Err(Error::for_client(Reason::InvalidKey, "a key must have at least one byte"));
        }
        if key.len() > MAX_KEY_BYTES {
            return Err(Error::for_client(
                Reason::KeyTooLong,
                format!("the key has {} bytes; at most {MAX_KEY_BYTES} are allowed", key.len()),
            ));
        }
        Ok(Self(key.into()))
    }

    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

macro_rules! text {
    ($type:ty) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
        impl std::borrow::Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    };
}
text!(BucketName);
text!(ObjectKey);

/// The location of an object: its bucket, its key, and optionally one of its versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// The bucket.
    pub bucket: BucketName,
    /// The key within the bucket.
    pub key: ObjectKey,
    /// The version. `None` is the current one. Writes have none.
    pub version: Option<VersionId>,
}

impl Address {
    /// The address of the current version, from parts that are already legal.
    #[must_use]
    pub const fn new(bucket: BucketName, key: ObjectKey) -> Self {
        Self { bucket, key, version: None }
    }

    /// Checks both names.
    pub fn parse(bucket: &str, key: &str) -> Result<Self> {
        Ok(Self::new(BucketName::new(bucket)?, ObjectKey::new(key)?))
    }

    /// The address of a version of the same key.
    #[must_use]
    pub fn with_version(self, version: Option<VersionId>) -> Self {
        Self { version, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_rules() {
        for good in ["abc", "a-b.c", "0ab", "a.b", &"a".repeat(63)] {
            assert!(BucketName::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "ab",
            "Abc",
            "a_b",
            "-ab",
            "ab-",
            ".ab",
            "a..b",
            "a.-b",
            "192.168.0.1",
            "xn--a",
            &"a".repeat(64),
        ] {
            assert_eq!(BucketName::new(bad).unwrap_err().reason(), Reason::InvalidBucketName, "{bad}");
        }
    }

    #[test]
    fn key_rules() {
        for good in ["a", "..", "//", "/a", "a\0b", &"k".repeat(1024)] {
            assert!(ObjectKey::new(good).is_ok(), "{good:?}");
        }
        assert_eq!(ObjectKey::new("").unwrap_err().reason(), Reason::InvalidKey);
        assert_eq!(ObjectKey::new(&"k".repeat(1025)).unwrap_err().reason(), Reason::KeyTooLong);
    }
}
