//! The signatures of a body's chunks: each signs its chunk and the signature before it, the first one the request's
//! own. <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html>.

use std::fmt;
use std::sync::Arc;

use super::EMPTY_SHA256;
use super::date::AmzDate;
use super::hex::to_hex;
use super::key::SigningKey;

/// A chain of signatures, to create or to verify.
pub struct ChunkSignatureChain {
    key: Arc<SigningKey>,
    /// `date\nscope\n`.
    middle: Vec<u8>,
    /// The previous signature, in hexadecimal.
    previous: [u8; 64],
}

impl ChunkSignatureChain {
    /// A chain that starts from `seed`, the request's signature, with this date and scope.
    #[must_use]
    pub fn new(key: Arc<SigningKey>, date: &AmzDate, scope: &str, seed: &[u8; 32]) -> Self {
        let middle = [date.text().as_slice(), b"\n", scope.as_bytes(), b"\n"].concat();
        Self { key, middle, previous: to_hex(seed) }
    }

    /// The next chunk's signature, in hexadecimal, given the SHA-256 of its bytes.
    pub fn sign(&mut self, hash: &[u8; 32]) -> [u8; 64] {
        self.previous = to_hex(&self.key.sign(&self.text_of_chunk(hash)));
        self.previous
    }

    /// Returns true if this is the next chunk's signature.
    #[must_use]
    pub fn verify_chunk(&mut self, hash: &[u8; 32], signature: &[u8; 32]) -> bool {
        let text = self.text_of_chunk(hash);
        self.step(&text, signature)
    }

    /// Returns true if this is the trailers' signature.
    #[must_use]
    pub fn verify_trailer(&mut self, hash: &[u8; 32], signature: &[u8; 32]) -> bool {
        let text =
            [b"AWS4-HMAC-SHA256-TRAILER\n", self.middle.as_slice(), &self.previous, b"\n", &to_hex(hash)]
                .concat();
        self.step(&text, signature)
    }

    fn text_of_chunk(&self, hash: &[u8; 32]) -> Vec<u8> {
        [
            b"AWS4-HMAC-SHA256-PAYLOAD\n",
            self.middle.as_slice(),
            &self.previous,
            b"\n",
            EMPTY_SHA256.as_bytes(),
            b"\n",
            &to_hex(hash),
        ]
        .concat()
    }

    fn step(&mut self, text: &[u8], signature: &[u8; 32]) -> bool {
        let is_valid = self.key.verify(text, signature);
        self.previous = to_hex(signature);
        is_valid
    }
}

impl fmt::Debug for ChunkSignatureChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChunkSignatureChain(<redacted>)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sigv4::hex::from_hex;
    use crate::sigv4::sha256;

    /// The example in Amazon's description: 66,560 times `a` in two chunks.
    #[test]
    fn signatures_match_the_documentation() {
        let scope = "20130524/us-east-1/s3/aws4_request";
        let key = SigningKey::derive("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", scope);
        let date = AmzDate::parse(b"20130524T000000Z").unwrap();
        let seed = from_hex(b"4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9").unwrap();
        let mut signatures = ChunkSignatureChain::new(Arc::new(key), &date, scope, &seed);
        for (chunk, signature) in [
            (vec![b'a'; 65_536], "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
            (vec![b'a'; 1024], "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
            (vec![], "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
        ] {
            assert_eq!(signatures.sign(&sha256(&chunk)), signature.as_bytes());
        }
    }
}
