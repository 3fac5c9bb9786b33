//! Places as commands name them: `s3://bucket/key`, a path, or `-` for standard input and output.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::bail;
use tradewind_core::BucketName;

/// Where something is or goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Objects whose keys begin with this, or the one that has it.
    Objects(ObjectsPlace),
    /// A file or a directory.
    Path(PathBuf),
    /// Standard input or output.
    Standard,
}

/// A bucket and the beginning of keys in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectsPlace {
    /// The bucket.
    pub bucket: BucketName,
    /// A key or a prefix; may be empty.
    pub key: String,
}

impl FromStr for Place {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if text == "-" {
            return Ok(Self::Standard);
        }
        match text.split_once("://") {
            Some(("s3", rest)) => Ok(Self::Objects(parse_objects(rest)?)),
            Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphanumeric()) => {
                bail!("{text:?}: places begin with s3://, or are paths; there is no scheme {scheme:?}")
            }
            _ if text.is_empty() => bail!("a place is empty; write s3://BUCKET/KEY, a path, or -"),
            _ => Ok(Self::Path(PathBuf::from(text))),
        }
    }
}

impl FromStr for ObjectsPlace {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        match text.parse()? {
            Place::Objects(place) => Ok(place),
            _ => bail!("{text:?} is not in a store; write s3://BUCKET/KEY"),
        }
    }
}

fn parse_objects(rest: &str) -> anyhow::Result<ObjectsPlace> {
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        bail!("s3://{rest} names no bucket; write s3://BUCKET/KEY");
    }
    let bucket = BucketName::new(bucket).map_err(|e| anyhow::anyhow!("s3://{rest}: {e}"))?;
    Ok(ObjectsPlace { bucket, key: key.to_owned() })
}

impl fmt::Display for ObjectsPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}/{}", self.bucket, self.key)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Objects(place) => place.fmt(f),
            Self::Path(path) => path.display().fmt(f),
            Self::Standard => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let place = |text: &str| text.parse::<Place>();
        assert_eq!(place("-").unwrap(), Place::Standard);
        assert_eq!(place("a/b").unwrap(), Place::Path("a/b".into()));
        assert_eq!(place("./s3:x").unwrap(), Place::Path("./s3:x".into()));
        for (text, key) in [("s3://abc", ""), ("s3://abc/", ""), ("s3://abc/d//e/", "d//e/")] {
            let Place::Objects(found) = place(text).unwrap() else { panic!("{text}") };
            assert_eq!((found.bucket.as_str(), found.key.as_str()), ("abc", key));
        }
        for bad in ["", "s3://", "s3:///key", "http://x/y", "s3://A_B/key"] {
            assert!(place(bad).is_err(), "{bad}");
        }
        assert!("a/b".parse::<ObjectsPlace>().is_err());
    }
}
