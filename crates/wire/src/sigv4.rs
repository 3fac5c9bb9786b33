//! AWS Signature Version 4: the text to sign, the signing keys, and a client's signer. Verification of requests is part
//! of the gateway.

mod canonical;
mod chunks;
mod date;
pub mod hex;
mod key;
mod signer;

use std::fmt::Write as _;

pub use canonical::{NotCanonical, SignedParts, encode_path, encode_query};
pub use chunks::ChunkSignatureChain;
pub use date::AmzDate;
pub use key::{Sha256, SigningKey, sha256};
pub use signer::{Credentials, Payload, Signer};

/// The only signing algorithm.
pub const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// The service of signatures for Tradewind's admin API.
pub const ADMIN_SERVICE: &str = "tradewind-admin";
/// The SHA-256 of empty data, in hexadecimal.
pub const EMPTY_SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// The text to sign for a request: its date, scope (`date/region/service/aws4_request`) and the SHA-256 of its
/// canonical text.
#[must_use]
pub fn string_to_sign(date: &AmzDate, scope: &str, hash: &[u8; 32]) -> Vec<u8> {
    let mut text = Vec::with_capacity(ALGORITHM.len() + scope.len() + 96);
    for line in [ALGORITHM.as_bytes(), date.text(), scope.as_bytes()] {
        text.extend_from_slice(line);
        text.push(b'\n');
    }
    text.extend_from_slice(&hex::to_hex(hash));
    text
}

/// The scope of a day, a region and a service.
#[must_use]
pub fn scope(date: &AmzDate, region: &str, service: &str) -> String {
    let mut scope = String::with_capacity(region.len() + 32);
    scope.push_str(&String::from_utf8_lossy(date.day()));
    // Writing to a string cannot fail.
    let _ = write!(scope, "/{region}/{service}/aws4_request");
    scope
}
