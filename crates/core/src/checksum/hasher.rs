//! A checksum in the making, one state for each family of algorithms.

use crc_fast::CrcAlgorithm;
use sha1::Digest as _;
use xxhash_rust::xxh3::Xxh3;
use xxhash_rust::xxh64::Xxh64;

use super::{Algorithm, Checksum};

/// A checksum in the making.
pub struct Hasher {
    algorithm: Algorithm,
    state: State,
}

enum State {
    Crc(Box<crc_fast::Digest>),
    Sha1(Box<sha1::Sha1>),
    Sha256(Box<sha2::Sha256>),
    Sha512(Box<sha2::Sha512>),
    Md5(Box<md5::Md5>),
    XxHash64(Box<Xxh64>),
    /// Of 64 bits and of 128: they differ at the end.
    XxHash3(Box<Xxh3>),
}

impl State {
    fn crc(algorithm: CrcAlgorithm) -> Self {
        Self::Crc(Box::new(crc_fast::Digest::new(algorithm)))
    }
}

impl Hasher {
    /// Begins.
    #[must_use]
    pub fn new(algorithm: Algorithm) -> Self {
        let state = match algorithm {
            Algorithm::Crc32 => State::crc(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Crc32c => State::crc(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => State::crc(CrcAlgorithm::Crc64Nvme),
            Algorithm::Sha1 => State::Sha1(Box::default()),
            Algorithm::Sha256 => State::Sha256(Box::default()),
            Algorithm::Sha512 => State::Sha512(Box::default()),
            Algorithm::Md5 => State::Md5(Box::default()),
            Algorithm::XxHash64 => State::XxHash64(Box::default()),
            Algorithm::XxHash3 | Algorithm::XxHash128 => State::XxHash3(Box::default()),
        };
        Self { algorithm, state }
    }

    /// Which algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Adds bytes. CRCs and XXH run at many GB/s; SHA and MD5 at about 1 GB/s, so that callers on an
    /// async worker feed at most 256 KiB at a time.
    pub fn update(&mut self, data: &[u8]) {
        match &mut self.state {
            State::Crc(digest) => digest.update(data),
            State::Sha1(digest) => digest.update(data),
            State::Sha256(digest) => digest.update(data),
            State::Sha512(digest) => digest.update(data),
            State::Md5(digest) => digest.update(data),
            State::XxHash64(digest) => digest.update(data),
            State::XxHash3(digest) => digest.update(data),
        }
    }

    /// Ends.
    #[must_use]
    pub fn finish(self) -> Checksum {
        let algorithm = self.algorithm;
        match self.state {
            State::Crc(digest) => Checksum::from_number(algorithm, digest.finalize()),
            State::Sha1(digest) => Checksum::padded(algorithm, &digest.finalize()),
            State::Sha256(digest) => Checksum::padded(algorithm, &digest.finalize()),
            State::Sha512(digest) => Checksum::padded(algorithm, &digest.finalize()),
            State::Md5(digest) => Checksum::padded(algorithm, &digest.finalize()),
            State::XxHash64(digest) => Checksum::from_number(algorithm, digest.digest()),
            State::XxHash3(digest) if algorithm == Algorithm::XxHash128 => {
                Checksum::padded(algorithm, &digest.digest128().to_be_bytes())
            }
            State::XxHash3(digest) => Checksum::from_number(algorithm, digest.digest()),
        }
    }
}
