//! Checksums of whole objects and of blocks: S3's ten algorithms, their text forms, the combination of CRCs of
//! adjacent pieces (so that payload is read once), and S3's composite form.
//!
//! MD5 as a checksum is stored and compared like the others. It is not the MD5 of an entity tag or of
//! `Content-MD5`, even where the values are equal.

mod combine;
mod hasher;

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use crc_fast::CrcAlgorithm;

pub use self::hasher::Hasher;
use crate::error::{Error, Reason, Result};

/// The size of the longest value.
const MAX_VALUE_BYTES: usize = 64;

/// The prefix of headers that carry a value.
const HEADER_PREFIX: &str = "x-amz-checksum-";

/// A checksum algorithm of S3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    /// CRC-32 (ISO-HDLC), 4 bytes.
    Crc32,
    /// CRC-32C (Castagnoli), 4 bytes.
    Crc32c,
    /// CRC-64/NVME, 8 bytes: the default checksum of objects.
    Crc64Nvme,
    /// SHA-1, 20 bytes.
    Sha1,
    /// SHA-256, 32 bytes.
    Sha256,
    /// SHA-512, 64 bytes.
    Sha512,
    /// MD5, 16 bytes.
    Md5,
    /// XXH64 with seed 0, 8 bytes.
    XxHash64,
    /// XXH3 of 64 bits with seed 0, 8 bytes.
    XxHash3,
    /// XXH3 of 128 bits with seed 0, 16 bytes.
    XxHash128,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Crc32,
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Sha1,
        Self::Sha256,
        Self::Sha512,
        Self::Md5,
        Self::XxHash64,
        Self::XxHash3,
        Self::XxHash128,
    ];

    /// The name as S3 writes it in `x-amz-checksum-algorithm`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
            Self::Sha512 => "SHA512",
            Self::Md5 => "MD5",
            Self::XxHash64 => "XXHASH64",
            Self::XxHash3 => "XXHASH3",
            Self::XxHash128 => "XXHASH128",
        }
    }

    /// The header and trailer that carry a value: `x-amz-checksum-...`.
    #[must_use]
    pub const fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
            Self::Sha512 => "x-amz-checksum-sha512",
            Self::Md5 => "x-amz-checksum-md5",
            Self::XxHash64 => "x-amz-checksum-xxhash64",
            Self::XxHash3 => "x-amz-checksum-xxhash3",
            Self::XxHash128 => "x-amz-checksum-xxhash128",
        }
    }

    /// The algorithm of a header, given the header's name in lower case.
    #[must_use]
    pub fn from_header(name: &str) -> Option<Self> {
        // Rejects nearly all names.
        name.strip_prefix(HEADER_PREFIX)?;
        Self::ALL.into_iter().find(|algorithm| algorithm.header() == name)
    }

    /// Bytes in a value.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme | Self::XxHash64 | Self::XxHash3 => 8,
            Self::Md5 | Self::XxHash128 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => MAX_VALUE_BYTES,
        }
    }

    /// Returns true if values of adjacent pieces combine into the value of the whole.
    #[must_use]
    pub const fn is_crc(self) -> bool {
        matches!(self, Self::Crc32 | Self::Crc32c | Self::Crc64Nvme)
    }

    /// Returns true if a multipart object can have this checksum over `scope`. Only CRCs of parts combine into a CRC of
    /// the whole, and S3 has no composite CRC-64/NVME.
    #[must_use]
    pub const fn supports(self, scope: ChecksumScope) -> bool {
        match scope {
            ChecksumScope::FullObject => self.is_crc(),
            ChecksumScope::Composite => !matches!(self, Self::Crc64Nvme),
        }
    }

    /// The scope for a multipart object if the client names none.
    #[must_use]
    pub const fn default_scope(self) -> ChecksumScope {
        match self {
            Self::Crc64Nvme => ChecksumScope::FullObject,
            _ => ChecksumScope::Composite,
        }
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|a| a.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            Error::for_client(Reason::InvalidArgument, format!("unknown checksum algorithm {text:?}"))
        })
    }
}

/// The data that a checksum of a multipart object was computed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChecksumScope {
    /// The object's bytes.
    FullObject,
    /// The concatenated checksums of its parts (S3's `-N` form).
    Composite,
}

impl ChecksumScope {
    /// The name as S3 writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FullObject => "FULL_OBJECT",
            Self::Composite => "COMPOSITE",
        }
    }
}

impl FromStr for ChecksumScope {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut scopes = [Self::FullObject, Self::Composite].into_iter();
        scopes.find(|scope| scope.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            Error::for_client(Reason::InvalidArgument, format!("unknown checksum type {text:?}"))
        })
    }
}

/// One checksum value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Checksum {
    algorithm: Algorithm,
    /// The value, padded with zeros.
    bytes: [u8; MAX_VALUE_BYTES],
}

impl Checksum {
    /// From raw bytes in the order S3 encodes (big endian for CRCs and XXH).
    pub fn new(algorithm: Algorithm, value: &[u8]) -> Result<Self> {
        if value.len() != algorithm.size() {
            return Err(Error::for_client(
                Reason::InvalidArgument,
                format!("a {} value has {} bytes, not {}", algorithm.name(), algorithm.size(), value.len()),
            ));
        }
        Ok(Self::padded(algorithm, value))
    }

    /// From base64, as headers carry it.
    pub fn from_base64(algorithm: Algorithm, text: &str) -> Result<Self> {
        let value = BASE64.decode(text.trim()).map_err(|e| {
            Error::for_client(Reason::InvalidArgument, format!("{} is not base64: {e}", algorithm.header()))
        })?;
        Self::new(algorithm, &value)
    }

    /// The CRC-64/NVME with this value.
    #[must_use]
    pub fn crc64nvme(value: u64) -> Self {
        Self::from_number(Algorithm::Crc64Nvme, value)
    }

    /// The checksum of one buffer.
    #[must_use]
    pub fn compute(algorithm: Algorithm, data: &[u8]) -> Self {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(data);
        hasher.finish()
    }

    /// The algorithm.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The raw bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.size()]
    }

    /// Base64, as headers carry it.
    #[must_use]
    pub fn to_base64(&self) -> String {
        BASE64.encode(self.bytes())
    }

    /// The checksum of two adjacent pieces, from theirs; `None` unless both use the same CRC algorithm.
    #[must_use]
    pub fn combine(&self, next: &Self, next_length: u64) -> Option<Self> {
        if self.algorithm != next.algorithm {
            return None;
        }
        let polynomial = combine::Polynomial::for_algorithm(self.algorithm)?;
        let shift = polynomial.shift(next_length);
        Some(Self::from_number(
            self.algorithm,
            polynomial.multiply(shift, self.crc_value()) ^ next.crc_value(),
        ))
    }

    /// S3's composite form: the checksum of the concatenated part checksums.
    #[must_use]
    pub fn composite<'a>(algorithm: Algorithm, parts: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut hasher = Hasher::new(algorithm);
        for part in parts {
            hasher.update(part.bytes());
        }
        hasher.finish()
    }

    /// From a number, for algorithms with at most eight bytes.
    fn from_number(algorithm: Algorithm, value: u64) -> Self {
        Self::padded(algorithm, &value.to_be_bytes()[8 - algorithm.size()..])
    }

    /// From a value of the right length.
    fn padded(algorithm: Algorithm, value: &[u8]) -> Self {
        let mut bytes = [0; MAX_VALUE_BYTES];
        bytes[..value.len()].copy_from_slice(value);
        Self { algorithm, bytes }
    }

    /// The value of a CRC-64/NVME as a number; of another algorithm, its first eight bytes.
    #[must_use]
    pub fn crc64_value(&self) -> u64 {
        u64::from_be_bytes([
            self.bytes[0],
            self.bytes[1],
            self.bytes[2],
            self.bytes[3],
            self.bytes[4],
            self.bytes[5],
            self.bytes[6],
            self.bytes[7],
        ])
    }

    fn crc_value(&self) -> u64 {
        let mut value = [0; 8];
        let size = self.algorithm.size().min(8);
        value[8 - size..].copy_from_slice(&self.bytes[..size]);
        u64::from_be_bytes(value)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.to_base64())
    }
}

/// The CRC-64/NVME of one buffer: the checksum of blocks on disk.
#[must_use]
pub fn crc64nvme(data: &[u8]) -> u64 {
    crc_fast::checksum(CrcAlgorithm::Crc64Nvme, data)
}

/// Combines CRC-64/NVMEs of adjacent pieces. Fast if the second piece has the length of a block, for which the shift is
/// precomputed.
#[derive(Debug, Clone, Copy)]
pub struct Crc64Blocks {
    length: u64,
    shift: u64,
}

impl Crc64Blocks {
    /// For blocks of `length` bytes.
    #[must_use]
    pub const fn new(length: u64) -> Self {
        Self { length, shift: combine::CRC64_NVME.shift(length) }
    }

    /// The checksum of two adjacent pieces, from theirs. A second piece of another length needs a new shift, which
    /// takes microseconds.
    #[must_use]
    pub const fn combine(&self, first: u64, second: u64, second_length: u64) -> u64 {
        if first == 0 {
            return second;
        }
        let shift =
            if second_length == self.length { self.shift } else { combine::CRC64_NVME.shift(second_length) };
        combine::CRC64_NVME.multiply(shift, first) ^ second
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        // The check values of the CRC catalogue, of FIPS 180 and RFC 1321, and of the reference implementation of
        // xxHash.
        let check = |a, s: &[u8]| hex(Checksum::compute(a, s).bytes());
        assert_eq!(check(Algorithm::Crc32, b"123456789"), "cbf43926");
        assert_eq!(check(Algorithm::Crc32c, b"123456789"), "e3069283");
        assert_eq!(check(Algorithm::Crc64Nvme, b"123456789"), "ae8b14860a799888");
        assert_eq!(check(Algorithm::Sha1, b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert!(check(Algorithm::Sha256, b"abc").starts_with("ba7816bf8f01cfea"));
        assert!(check(Algorithm::Sha512, b"abc").starts_with("ddaf35a193617aba"));
        assert_eq!(check(Algorithm::Md5, b"abc"), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(check(Algorithm::XxHash64, b"123456789"), "8cb841db40e6ae83");
        assert_eq!(check(Algorithm::XxHash3, b"123456789"), "72dcb18b67a17dff");
        assert_eq!(check(Algorithm::XxHash128, b"123456789"), "33119477ede5dcd5e9716427681d5860");
        assert_eq!(check(Algorithm::XxHash64, b""), "ef46db3751d8e999");
        assert_eq!(check(Algorithm::XxHash3, b""), "2d06800538d394c2");
        assert_eq!(check(Algorithm::XxHash128, b""), "99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn headers_name_their_algorithm() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_header(algorithm.header()), Some(algorithm));
            assert_eq!(algorithm.name().parse::<Algorithm>().ok(), Some(algorithm));
            assert!(algorithm.supports(algorithm.default_scope()));
            assert_eq!(Checksum::compute(algorithm, b"x").bytes().len(), algorithm.size());
        }
        for name in ["x-amz-checksum-mode", "x-amz-checksum-", "crc32", "x-amz-checksum-crc32-2"] {
            assert_eq!(Algorithm::from_header(name), None, "{name}");
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    proptest! {
        #[test]
        fn combined_equals_whole(a in prop::collection::vec(any::<u8>(), 0..300), b in prop::collection::vec(any::<u8>(), 0..300)) {
            let whole = [a.clone(), b.clone()].concat();
            for algorithm in Algorithm::ALL {
                let (x, y) = (Checksum::compute(algorithm, &a), Checksum::compute(algorithm, &b));
                match x.combine(&y, b.len() as u64) {
                    Some(both) => prop_assert_eq!(both, Checksum::compute(algorithm, &whole)),
                    None => prop_assert!(!algorithm.is_crc()),
                }
                prop_assert_eq!(Checksum::from_base64(algorithm, &x.to_base64()).unwrap(), x);
            }
        }
    }
}
