//! Incremental computation of checksums, with one state for each family of algorithms.

use crc_fast::CrcAlgorithm;
use sha1::Digest as _;
use xxhash_rust::xxh3::Xxh3;
use xxhash_rust::xxh64::Xxh64;

use super::{Algorithm, Checksum};

/// An incremental checksum.
pub struct Hasher {
    algorithm: Algorithm,
    state: HasherState,
}

enum HasherState {
    Crc(Box<crc_fast::Digest>),
    Sha1(Box<sha1::Sha1>),
    Sha256(Box<sha2::Sha256>),
    Sha512(Box<sha2::Sha512>),
    Md5(Box<md5::Md5>),
    XxHash64(Box<Xxh64>),
    /// XXH3 of 64 and of 128 bits: only the finalization differs.
    XxHash3(Box<Xxh3>),
}

impl HasherState {
    fn crc(algorithm: CrcAlgorithm) -> Self {
        Self::Crc(Box::new(crc_fast::Digest::new(algorithm)))
    }
}

impl Hasher {
    /// A hasher without data.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        let state = match algorithm {
            Algorithm::Crc32 => HasherState::crc(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => HasherState::crc(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => HasherState::crc(CrcAlgorithm::Crc64Nvme),
            Algorithm::Sha1 => HasherState::Sha1(Box::default()),
            Algorithm::Sha256 => HasherState::Sha256(Box::default()),
            Algorithm::Sha512 => HasherState::Sha512(Box::default()),
            Algorithm::Md5 => HasherState::Md5(Box::default()),
            Algorithm::XxHash64 => HasherState::XxHash64(Box::default()),
            Algorithm::XxHash3 | Algorithm::XxHash128 => HasherState::XxHash3(Box::default()),
        };
        Self { algorithm, state }
    }

    /// The algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Adds bytes. CRCs and XXH run at many GB/s, SHA and MD5 at about 1 GB/s: callers on an
    /// async worker should pass at most 256 KiB per call.
    pub fn update(&mut self, data: &[u8]) {
        match &mut self.state {
            HasherState::Crc(digest) => digest.update(data),
            HasherState::Sha1(digest) => digest.update(data),
            HasherState::Sha256(digest) => digest.update(data),
            HasherState::Sha512(digest) => digest.update(data),
            HasherState::Md5(digest) => digest.update(data),
            HasherState::XxHash64(digest) => digest.update(data),
            HasherState::XxHash3(digest) => digest.update(data),
        }
    }

    /// Returns the checksum of all bytes added.
    #[must_use]
    pub fn finish(self) -> Checksum {
        let algorithm = self.algorithm;
        match self.state {
            HasherState::Crc(digest) => Checksum::from_number(algorithm, digest.finalize()),
            HasherState::Sha1(digest) => Checksum::padded(algorithm, &digest.finalize()),
            HasherState::Sha256(digest) => Checksum::padded(algorithm, &digest.finalize()),
            HasherState::Sha512(digest) => Checksum::padded(algorithm, &digest.finalize()),
            HasherState::Md5(digest) => Checksum::padded(algorithm, &digest.finalize()),
            HasherState::XxHash64(digest) => Checksum::from_number(algorithm, digest.digest()),
            HasherState::XxHash3(digest) if algorithm == Algorithm::XxHash128 => {
                Checksum::padded(algorithm, &digest.digest128().to_be_bytes())
            }
            HasherState::XxHash3(digest) => Checksum::from_number(algorithm, digest.digest()),
        }
    }
}
