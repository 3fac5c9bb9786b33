//! Fingerprints: keyed hashes of 64 bits of addresses and extents, never 0. They only find candidates, which
//! the caller compares.

use tradewind_core::{Address, BucketName};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::changes::KeyHash;
use crate::extent::{ExtentKey, Place};
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

    /// Of the place of a data extent. Equal for all contents.
    pub fn place(self, place: Place) -> u64 {
        self.data(ContentId(place.address), place.number)
    }

    /// The name of an extent in the index of the SSD.
    pub fn name(self, key: ExtentKey) -> ExtentName {
        match key {
            ExtentKey::Head(address) => ExtentName::of_head(address),
            ExtentKey::Data(place, content) => {
                ExtentName { place: self.place(place), content: Some(self.content_tag(content)) }
            }
        }
    }

    /// Of a content, as the index of the SSD has it.
    pub fn content_tag(self, content: ContentId) -> ContentTag {
        let hash = xxh3_64_with_seed(&content.0.to_le_bytes(), self.seed);
        ContentTag((hash & u64::from(ContentTag::MAX)).max(1) as u32)
    }
}

/// A hash of the id of a content: 31 bits, never 0. Two contents may share one: the header on the SSD decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ContentTag(pub u32);

impl ContentTag {
    /// The highest tag.
    pub const MAX: u32 = u32::MAX >> 1;
}

/// The name of an extent in the index of the SSD. The eviction policy knows the place only, at which reuse shows. The
/// content tells the extents of a replaced object from the present ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentName {
    /// The fingerprint of the place, or of the address of a head.
    pub place: u64,
    /// The content of a data extent; `None` for a head, which has its content in its payload.
    pub content: Option<ContentTag>,
}

impl ExtentName {
    /// The name of the head of the address with this fingerprint.
    pub const fn of_head(address: u64) -> Self {
        Self { place: address, content: None }
    }
}

fn nonzero(hash: u64) -> u64 {
    hash.max(1)
}
