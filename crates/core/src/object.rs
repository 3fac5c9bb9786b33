//! What a store says about an object it holds.

use std::fmt;

use crate::checksum::{Checksum, ChecksumScope};
use crate::clock::Timestamp;
use crate::error::{Error, Reason, Result};
use crate::metadata::Metadata;

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

    /// The MD5 in the tag, where it has the form of one.
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

/// Which write of a key this is: unique within a store and growing with each write of any key. Two
/// reads with equal generations saw the same bytes and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u64);

/// Everything a store knows of an object, but its bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectInfo {
    /// Bytes in the object.
    pub size: u64,
    /// Its entity tag.
    pub etag: ETag,
    /// When it was written.
    pub modified: Timestamp,
    /// Which write this is.
    pub generation: Generation,
    /// Headers, user metadata, tags, classes.
    pub metadata: Metadata,
    /// The checksums kept with it: what the writer asked for, else a CRC-64/NVME of the whole.
    pub checksums: Vec<Checksum>,
    /// What `checksums` were computed over.
    pub scope: ChecksumScope,
    /// The number of parts where it was written by a multipart upload.
    pub parts: Option<u32>,
}

/// What the writer promised about the bytes; the store verifies it before anything is committed.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The exact number of bytes.
    pub size: Option<u64>,
    /// `Content-MD5`.
    pub md5: Option<[u8; 16]>,
    /// Values from headers or trailers.
    pub checksums: Vec<Checksum>,
}

impl Expected {
    /// The same, with the size that was said when the write began where none is said now.
    #[must_use]
    pub fn or_size(mut self, said: Option<u64>) -> Self {
        self.size = self.size.or(said);
        self
    }

    /// Compares promises with what was computed. A promised algorithm that was not computed is a
    /// defect of the caller, who did not plan it at staging.
    pub fn verify(&self, size: u64, md5: Option<[u8; 16]>, computed: &[Checksum]) -> Result<()> {
        if let Some(expected) = self.size {
            if size < expected {
                return Err(Error::of_request(
                    Reason::IncompleteBody,
                    format!("the body ended after {size} of {expected} bytes"),
                ));
            }
            if size > expected {
                return Err(Error::of_request(
                    Reason::InvalidRequest,
                    format!("the body has {size} bytes, not {expected}"),
                ));
            }
        }
        let mut not_planned = None;
        if let Some(expected) = self.md5 {
            match md5 {
                Some(md5) if md5 == expected => {}
                Some(_) => return Err(bad_digest("Content-MD5")),
                None => not_planned = Some("Content-MD5"),
            }
        }
        for expected in &self.checksums {
            match computed.iter().find(|c| c.algorithm() == expected.algorithm()) {
                Some(c) if c == expected => {}
                Some(_) => return Err(bad_digest(expected.algorithm().header())),
                None => not_planned = Some(expected.algorithm().header()),
            }
        }
        match not_planned {
            Some(name) => {
                Err(Error::new(Reason::Defect, format!("{name} is expected but was not planned at staging")))
            }
            None => Ok(()),
        }
    }
}

fn bad_digest(name: &str) -> Error {
    Error::of_request(
        Reason::BadDigest,
        format!("the {name} you sent does not match the bytes received; nothing was stored"),
    )
}

/// The result of a commit.
#[derive(Debug, Clone)]
pub struct Committed {
    /// The object's or the part's entity tag.
    pub etag: ETag,
    /// Bytes written.
    pub size: u64,
    /// When.
    pub modified: Timestamp,
    /// Which write.
    pub generation: Generation,
    /// The checksums kept with it.
    pub checksums: Vec<Checksum>,
    /// What they were computed over.
    pub scope: ChecksumScope,
}
