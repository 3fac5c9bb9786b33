//! Parses locations on the command line: `s3://bucket/key` or the same with another store's name, a path, or `-` for
//! standard input or output. Whether the store exists is checked elsewhere.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::bail;
use tradewind_core::BucketName;

use crate::stores::{S3, SWIFT};

/// A source or destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// The object with this key, or all objects with this prefix.
    Objects(ObjectsLocation),
    /// A file or a directory.
    Path(PathBuf),
    /// Standard input or output.
    Standard,
}

/// A bucket, and a key or prefix in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectsLocation {
    /// The name of the store.
    pub scheme: String,
    /// The bucket.
    pub bucket: BucketName,
    /// A key or a prefix; may be empty.
    pub key: String,
}

/// A whole store, or a location in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreLocation {
    /// All buckets of the store with this name.
    Buckets(String),
    /// Objects in a bucket.
    Objects(ObjectsLocation),
}

impl Location {
    /// The name of the store; `None` for a path or standard input or output.
    #[must_use]
    pub fn scheme(&self) -> Option<&str> {
        match self {
            Self::Objects(location) => Some(&location.scheme),
            Self::Path(_) | Self::Standard => None,
        }
    }
}

/// Splits a location at `://` into store and rest; `None` for a path, such as one with a slash before `://`.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    (scheme.starts_with(|c: char| c.is_ascii_alphanumeric()) && scheme.chars().all(is_legal))
        .then_some((scheme, rest))
}

/// Splits a location that looks like a URL with fewer than two slashes, at the colon: `NAME:/…`, and any `s3:…` and
/// `swift:…`. It would otherwise be a path.
fn split_incomplete_scheme(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_builtin = [S3, SWIFT].iter().any(|name| name.eq_ignore_ascii_case(scheme));
    let is_name = scheme.starts_with(|c: char| c.is_ascii_alphanumeric()) && scheme.chars().all(is_legal);
    let shown = if is_builtin { scheme.to_ascii_lowercase() } else { scheme.to_owned() };
    (is_builtin || is_name && rest.starts_with('/')).then_some((shown, rest))
}

impl FromStr for Location {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if text == "-" {
            return Ok(Self::Standard);
        }
        match split_scheme(text) {
            Some((scheme, rest)) => Ok(Self::Objects(parse_objects(scheme, rest)?)),
            None if text.is_empty() => bail!("the location is empty; write s3://BUCKET/KEY, a path, or -"),
            None if let Some((scheme, rest)) = split_incomplete_scheme(text) => bail!(
                "{text:?} lacks a slash of {scheme}://; write {scheme}://{}, or ./{text} for a path",
                rest.trim_start_matches('/')
            ),
            None => Ok(Self::Path(PathBuf::from(text))),
        }
    }
}

impl FromStr for ObjectsLocation {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text.parse()? {
            Location::Objects(location) => Ok(location),
            _ => bail!("{text:?} is not in a store; write s3://BUCKET/KEY"),
        }
    }
}

impl FromStr for StoreLocation {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match split_scheme(text) {
            Some((scheme, "")) => Ok(Self::Buckets(scheme.to_owned())),
            _ => text.parse().map(Self::Objects),
        }
    }
}

fn parse_objects(scheme: &str, rest: &str) -> anyhow::Result<ObjectsLocation> {
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        bail!("{scheme}://{rest} has no bucket; write {scheme}://BUCKET/KEY");
    }
    let bucket = BucketName::new(bucket).map_err(|e| anyhow::anyhow!("{scheme}://{rest}: {e}"))?;
    Ok(ObjectsLocation { scheme: scheme.to_owned(), bucket, key: key.to_owned() })
}

impl fmt::Display for ObjectsLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme, self.bucket, self.key)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Objects(location) => location.fmt(f),
            Self::Path(path) => path.display().fmt(f),
            Self::Standard => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_parse_or_fail() {
        let location = |text: &str| text.parse::<Location>();
        assert_eq!(location("-").unwrap(), Location::Standard);
        assert_eq!(location("a/b").unwrap(), Location::Path("a/b".into()));
        assert_eq!(location("./s3:x").unwrap(), Location::Path("./s3:x".into()));
        for (text, key) in [("s3://abc", ""), ("s3://abc/", ""), ("s3://abc/d//e/", "d//e/")] {
            let Location::Objects(found) = location(text).unwrap() else { panic!("{text}") };
            assert_eq!((found.bucket.as_str(), found.key.as_str()), ("abc", key));
        }
        for (text, scheme) in [("swift://abc/d", "swift"), ("my-disk_2.x://abc", "my-disk_2.x")] {
            assert_eq!(location(text).unwrap().scheme(), Some(scheme));
        }
        assert_eq!(location("./x://abc").unwrap(), Location::Path("./x://abc".into()));
        assert_eq!("disk://".parse::<StoreLocation>().unwrap(), StoreLocation::Buckets("disk".to_owned()));
        assert!(matches!("disk://abc".parse(), Ok(StoreLocation::Objects(_))));
        assert!("disk".parse::<StoreLocation>().is_err() && "disk:///x".parse::<StoreLocation>().is_err());
        for path in ["12:30.log", "./west:/b", "a/west:/b", ":/b"] {
            assert_eq!(location(path).unwrap(), Location::Path(path.into()));
        }
        for (text, meant) in [
            ("s3:/bucket/key", "s3://bucket/key, or ./s3:/bucket/key"),
            ("s3:bucket/key", "s3://bucket/key, or ./s3:bucket/key"),
            ("S3:/bucket", "s3://bucket, or ./S3:/bucket"),
            ("west:/b", "west://b, or ./west:/b"),
        ] {
            let why = location(text).unwrap_err().to_string();
            assert!(why.contains(meant), "{why}");
        }
        for bad in ["", "s3://", "s3:///key", "http://x/y", "s3://A_B/key"] {
            assert!(location(bad).is_err(), "{bad}");
        }
        assert!("a/b".parse::<ObjectsLocation>().is_err());
    }
}
