//! Verification of an object by its checksum or MD5 while its bytes are delivered in order. The leaf verifies only
//! objects that it reads in one request.

use md5::{Digest as _, Md5};
use tradewind_core::checksum::Hasher;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Checksum, ChecksumScope, ObjectInfo};

/// The running and the expected digest of an object.
pub(super) enum Verifier {
    Checksum(Box<Hasher>, Checksum),
    Md5(Box<Md5>, [u8; 16]),
}

impl Verifier {
    /// A verifier for the whole object; `None` without an expected digest. The ETag counts only if `etags_are_md5`: in
    /// this store, an ETag in the form of an MD5 is always the MD5 of the bytes.
    pub fn for_object(info: &ObjectInfo, etags_are_md5: bool) -> Option<Self> {
        let checksum = info.checksums.first().filter(|_| info.scope == ChecksumScope::FullObject);
        if let Some(checksum) = checksum {
            return Some(Self::Checksum(Box::new(Hasher::new(checksum.algorithm())), *checksum));
        }
        let md5 = info.etag.md5().filter(|_| etags_are_md5)?;
        Some(Self::Md5(Box::default(), md5))
    }

    /// Returns true if the digest is cheap to compute.
    pub fn is_cheap(&self) -> bool {
        matches!(self, Self::Checksum(_, expected) if expected.algorithm().is_crc())
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Checksum(hasher, _) => hasher.update(bytes),
            Self::Md5(hasher, _) => hasher.update(bytes),
        }
    }

    /// Fails with [`CorruptData`](Reason::CorruptData) if the digests differ.
    pub fn verify(self) -> Result<()> {
        let is_right = match self {
            Self::Checksum(hasher, expected) => hasher.finish() == expected,
            Self::Md5(hasher, expected) => <[u8; 16]>::from(hasher.finalize()) == expected,
        };
        let wrong = "checksum mismatch: the bytes received do not match the checksum of the object";
        is_right.then_some(()).ok_or_else(|| Error::new(Reason::CorruptData, wrong))
    }
}
