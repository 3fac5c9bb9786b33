//! Signing keys: HMAC keys derived from a secret for one day, region and service.

use std::fmt;

use ring::{digest, hmac};

/// A derived key, ready to sign.
pub struct SigningKey(hmac::Key);

impl SigningKey {
    /// Derives the key of a scope: `date/region/service/aws4_request`.
    #[must_use]
    pub fn derive(secret: &str, scope: &str) -> Self {
        let start = hmac::Key::new(hmac::HMAC_SHA256, format!("AWS4{secret}").as_bytes());
        Self(scope.split('/').fold(start, |key, part| {
            hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref())
        }))
    }

    /// The signature of a text.
    #[inline]
    #[must_use]
    pub fn sign(&self, text: &[u8]) -> [u8; 32] {
        let mut signature = [0; 32];
        signature.copy_from_slice(hmac::sign(&self.0, text).as_ref());
        signature
    }

    /// Returns true if `signature` is that of `text`. Runs in constant time.
    #[inline]
    #[must_use]
    pub fn verify(&self, text: &[u8], signature: &[u8; 32]) -> bool {
        hmac::verify(&self.0, text, signature).is_ok()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(<redacted>)")
    }
}

/// An incremental SHA-256.
#[derive(Clone)]
pub struct Sha256(digest::Context);

impl Sha256 {
    /// A hash of no data.
    #[must_use]
    pub fn new() -> Self {
        Self(digest::Context::new(&digest::SHA256))
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes added.
    #[must_use]
    pub fn finish(self) -> [u8; 32] {
        let mut value = [0; 32];
        value.copy_from_slice(self.0.finish().as_ref());
        value
    }
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sha256")
    }
}

/// The SHA-256 of one buffer.
#[inline]
pub fn sha256(data: &[u8]) -> [u8; 32] {
    let mut value = [0; 32];
    value.copy_from_slice(digest::digest(&digest::SHA256, data).as_ref());
    value
}
