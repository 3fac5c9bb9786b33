//! Fingerprints: keyed hashes of 64 bits of addresses and extents, never 0. They only find candidates, which
//! the caller compares.

use tradewind_core::{Address, BucketName};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::changes::KeyHash;
use crate::extent::ExtentKey;
use crate::head::ContentId;

/// Computes fingerprints with the key of one cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fingerprints {
    seed: u64,
}

impl Fingerprints {
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Of a bucket and a key. The first is also the fingerprint of the head.
    pub fn key(self, address: &Address) -> KeyHash {
        let bucket = self.bucket(&address.bucket);
        let key = nonzero(xxh3_64_with_seed(address.key.as_str().as_bytes(), bucket));
        KeyHash { key, bucket }
    }

    /// Of a bucket.
    pub fn bucket(self, bucket: &BucketName) -> u64 {
        nonzero(xxh3_64_with_seed(bucket.as_str().as_bytes(), self.seed))
    }

    /// Of a data extent.
    pub fn data(self, content: ContentId, number: u32) -> u64 {
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&content.0.to_le_bytes());
        bytes[8..].copy_from_slice(&number.to_le_bytes());
        nonzero(xxh3_64_with_seed(&bytes, self.seed))
    }

    /// Of an extent.
    pub fn extent(self, key: ExtentKey) -> u64 {
        match key {
            ExtentKey::Head(fingerprint) => fingerprint,
            ExtentKey::Data(content, number) => self.data(content, number),
        }
    }
}

fn nonzero(hash: u64) -> u64 {
    hash.max(1)
}
