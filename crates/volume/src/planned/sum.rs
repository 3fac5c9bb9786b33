//! What all bytes of an object must have, compared while they are handed on in order. The leaf compares only what it reads in one
//! request.

use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Checksum, ChecksumScope, ObjectInfo};

/// See the module's head.
pub(super) enum Sum {
    Checksum(Box<Hasher>, Checksum),
    Md5(Box<Md5>, [u8; 16]),
}

impl Sum {
    /// What a store says of the whole object, if that is something to compare with: a tag only where those of the store are known to
    /// be of the bytes.
    pub fn of(info: &ObjectInfo, is_tag_md5: bool) -> Option<Self> {
        let checksum = info.checksums.first().filter(|_| info.scope == ChecksumScope::FullObject);
        if let Some(checksum) = checksum {
            return Some(Self::Checksum(Box::new(Hasher::new(checksum.algorithm())), *checksum));
        }
        let md5 = info.etag.md5().filter(|_| is_tag_md5)?;
        Some(Self::Md5(Box::default(), md5))
    }

    /// Whether computing it costs next to nothing.
    pub fn is_cheap(&self) -> bool {
        matches!(self, Self::Checksum(_, expected) if expected.algorithm().is_crc())
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Checksum(hasher, _) => hasher.update(bytes),
            Self::Md5(hasher, _) => hasher.update(bytes),
        }
    }

    /// An error where the bytes were others.
    pub fn finish(self) -> Result<()> {
        let is_right = match self {
            Self::Checksum(hasher, expected) => hasher.finish() == expected,
            Self::Md5(hasher, expected) => <[u8; 16]>::from(hasher.finalize()) == expected,
        };
        let wrong = "the object's bytes came with another checksum than the store has of it";
        is_right.then_some(()).ok_or_else(|| Error::new(Reason::CorruptData, wrong))
    }
}
