//! Metadata that a store reports about an object: entity tag, generation, checksums.

use std::fmt;

use crate::checksum::{Algorithm, Checksum, ChecksumScope};
use crate::clock::Timestamp;
use crate::error::{Error, Reason, Result};
use crate::metadata::Metadata;
use crate::stored_form::{Reported, StoredForm};
use crate::version::VersionId;

/// An entity tag, without its quotes. Opaque: it names a version of the bytes for HTTP conditions and
/// is never used as an integrity check or to compare objects in different stores.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ETag(String);

impl ETag {
    /// The MD5 form of a single PUT.
    #[must_use]
    pub fn from_md5(md5: &[u8; 16]) -> Self {
        Self(hex(md5))
    }

    /// The `md5-N` form of a multipart object: the MD5 of the parts' MD5s and their number.
    #[must_use]
    pub fn from_parts(md5_of_md5s: &[u8; 16], parts: usize) -> Self {
        Self(format!("{}-{parts}", hex(md5_of_md5s)))
    }

    /// From the tag itself, as [`Self::as_str`] gives it.
    #[must_use]
    pub fn from_tag(tag: &str) -> Self {
        Self(tag.to_owned())
    }

    /// From text with or without quotes and a weak prefix.
    #[must_use]
    pub fn from_text(text: &str) -> Self {
        let text = text.trim();
        let text = text.strip_prefix("W/").unwrap_or(text);
        Self(text.trim_matches('"').to_owned())
    }

    /// The tag without quotes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The MD5 in the tag, if it has the form of one.
    #[must_use]
    pub fn md5(&self) -> Option<[u8; 16]> {
        let text = self.0.as_bytes();
        if text.len() != 32 {
            return None;
        }
        let mut md5 = [0; 16];
        for (byte, pair) in md5.iter_mut().zip(text.chunks(2)) {
            let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(md5)
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// The identity of a write: unique within a store and growing with each write of any key. Two
/// reads with equal generations saw the same bytes and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// The values that clients compare to recognize an object. They stay if a layer moves the object to another store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The entity tag.
    pub etag: ETag,
    /// When the object was written.
    pub modified: Timestamp,
}

/// Everything a store records about an object except its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectInfo {
    /// Bytes in the object.
    pub size: u64,
    /// Its entity tag.
    pub etag: ETag,
    /// When it was written.
    pub modified: Timestamp,
    /// The write that created this version.
    pub generation: Generation,
    /// Headers, user metadata, tags, classes.
    pub metadata: Metadata,
    /// The checksums stored with it: those that the writer requested, else a CRC-64/NVME of the whole.
    pub checksums: Vec<Checksum>,
    /// The data that `checksums` were computed over.
    pub scope: ChecksumScope,
    /// The number of parts, if a multipart upload wrote it.
    pub parts: Option<u32>,
    /// Its version; `None` in a bucket whose versioning was never enabled.
    pub version: Option<VersionId>,
    /// The stored bytes, if a layer transformed them. Size, entity tag and checksums are those that it declared.
    pub stored: Option<StoredForm>,
}

/// Properties of the bytes that the writer declares; the store verifies them before anything is committed.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The exact number of bytes.
    pub size: Option<u64>,
    /// `Content-MD5`.
    pub md5: Option<[u8; 16]>,
    /// Values from headers or trailers.
    pub checksums: Vec<Checksum>,
    /// Attributes to report instead of those of the bytes, which a layer transformed. The other fields are about the
    /// transformed bytes. Needs [`Capabilities::reported_attributes`](crate::store::Capabilities::reported_attributes).
    pub reported: Option<Reported>,
}

impl Expected {
    /// Uses the size declared when the write began if this has none.
    #[must_use]
    pub fn with_default_size(mut self, declared: Option<u64>) -> Self {
        self.size = self.size.or(declared);
        self
    }

    /// Compares the declared values with the computed ones. A declared algorithm that was not computed is a
    /// defect of the caller, which did not request it at staging.
    pub fn verify(&self, size: u64, md5: Option<[u8; 16]>, computed: &[Checksum]) -> Result<()> {
        if let Some(expected) = self.size {
            if size < expected {
                return Err(Error::new(
                    Reason::IncompleteBody,
                    format!("the body ended after {size} of {expected} bytes"),
                ));
            }
            if size > expected {
                return Err(Error::for_client(
                    Reason::InvalidRequest,
                    format!("the body has {size} bytes, not {expected}"),
                ));
            }
        }
        let mut not_requested = None;
        if let Some(expected) = self.md5 {
            match md5 {
                Some(md5) if md5 == expected => {}
                Some(_) => return Err(bad_digest(None)),
                None => not_requested = Some("Content-MD5"),
            }
        }
        for expected in &self.checksums {
            match computed.iter().find(|c| c.algorithm() == expected.algorithm()) {
                Some(c) if c == expected => {}
                Some(_) => return Err(bad_digest(Some(expected.algorithm()))),
                None => not_requested = Some(expected.algorithm().header()),
            }
        }
        match not_requested {
            Some(name) => Err(Error::new(
                Reason::Defect,
                format!("{name} is expected but was not requested at staging"),
            )),
            None => Ok(()),
        }
    }
}

/// The error of a declared value that differs, in the words of S3.
fn bad_digest(algorithm: Option<Algorithm>) -> Error {
    let message = match algorithm {
        None => "The Content-MD5 you specified did not match what we received.".to_owned(),
        Some(algorithm) => {
            format!("The {} you specified did not match the calculated checksum.", algorithm.name())
        }
    };
    Error::for_client(Reason::BadDigest, message)
}

impl ObjectInfo {
    /// The identity of the object.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity { etag: self.etag.clone(), modified: self.modified }
    }
}

/// The result of a commit.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The object's or the part's entity tag.
    pub etag: ETag,
    /// Bytes written.
    pub size: u64,
    /// When it was written.
    pub modified: Timestamp,
    /// The write that this commit made.
    pub generation: Generation,
    /// The checksums stored with it.
    pub checksums: Vec<Checksum>,
    /// The data that the checksums were computed over.
    pub scope: ChecksumScope,
    /// The version that was written; `None` in a bucket whose versioning was never enabled, and for parts. Without
    /// [`Feature::NullVersionOfWrites`](crate::store::Feature::NullVersionOfWrites) also if versioning is suspended.
    pub version: Option<VersionId>,
    /// The version that was read, if this is the result of a copy.
    pub source_version: Option<VersionId>,
}
