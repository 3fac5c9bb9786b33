//! Counts of transfers without checksum headers, by what proved their bodies instead.

use std::sync::atomic::{AtomicU64, Ordering};

/// The proof of a transfer without checksum headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SubstituteProof {
    /// The service has compared the body with Content-MD5.
    ContentMd5,
    /// The MD5 of the body was compared with the ETag.
    ETag,
    /// Only the length was compared.
    Length,
}

impl SubstituteProof {
    /// All kinds of proof.
    pub const ALL: [Self; 3] = [Self::ContentMd5, Self::ETag, Self::Length];
}

/// Numbers of requests without checksum headers, by what proved their bodies instead. They only grow.
#[derive(Debug, Default)]
pub struct SubstituteProofs {
    content_md5: AtomicU64,
    etag: AtomicU64,
    length: AtomicU64,
}

impl SubstituteProofs {
    /// The number of requests with this proof.
    #[must_use]
    pub fn count(&self, proof: SubstituteProof) -> u64 {
        self.counter(proof).load(Ordering::Relaxed)
    }

    /// Counts a request.
    pub(super) fn record(&self, proof: SubstituteProof) {
        self.counter(proof).fetch_add(1, Ordering::Relaxed);
    }

    const fn counter(&self, proof: SubstituteProof) -> &AtomicU64 {
        match proof {
            SubstituteProof::ContentMd5 => &self.content_md5,
            SubstituteProof::ETag => &self.etag,
            SubstituteProof::Length => &self.length,
        }
    }
}
