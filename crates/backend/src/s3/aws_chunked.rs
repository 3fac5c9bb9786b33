//! The `aws-chunked` framing of a body: unsigned chunks with a trailing checksum, or a signature for each chunk.
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html> and
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming.html>.

use bytes::{Bytes, BytesMut};
use tradewind_core::Checksum;
use tradewind_wire::sigv4::{ChunkSignatureChain, sha256};

/// Size of each unsigned chunk except the last. MinIO allows at most 16 MiB, Amazon S3 at least 8 KiB.
const UNSIGNED_CHUNK_BYTES: u64 = 1 << 20;
/// Size of each signed chunk except the last. A whole chunk must be in memory before its first byte is sent, so it is
/// small: a slow source fills it before the store times out.
const SIGNED_CHUNK_BYTES: usize = 16 << 10;
/// Separator between the size of a chunk and its signature.
const SIGNATURE_EXTENSION: &str = ";chunk-signature=";

/// The encoder of a framed body.
#[derive(Debug)]
pub(super) enum FrameEncoder {
    /// With a trailing checksum.
    Trailing(UnsignedChunks),
    /// Each chunk is signed.
    Signed(SignedChunks),
}

impl FrameEncoder {
    /// Frames the next bytes of the body. All calls together must not exceed the declared length.
    pub fn frame(&mut self, bytes: Bytes) -> Vec<Bytes> {
        match self {
            Self::Trailing(chunks) => chunks.frame(bytes),
            Self::Signed(chunks) => chunks.frame(bytes),
        }
    }

    /// The bytes that end the body: the last chunk and the trailer.
    pub fn end(&mut self, checksum: &Checksum) -> Bytes {
        match self {
            Self::Trailing(_) => trailer(checksum).into(),
            Self::Signed(chunks) => chunks.end(),
        }
    }
}

/// Encoder of unsigned chunks. The bytes of the body are not copied.
#[derive(Debug)]
pub(super) struct UnsignedChunks {
    /// Bytes of the body not yet framed.
    remaining_bytes: u64,
    /// Bytes missing in the current chunk.
    remaining_in_chunk: u64,
}

impl UnsignedChunks {
    /// Creates an encoder for a body of `length` bytes.
    pub const fn new(length: u64) -> Self {
        Self { remaining_bytes: length, remaining_in_chunk: 0 }
    }

    /// Length of the framed body in bytes, with a trailing checksum of the same algorithm as `like`.
    pub fn framed_length(length: u64, like: &Checksum) -> u64 {
        let framed = |size: u64| format!("{size:x}\r\n\r\n").len() as u64 + size;
        let (full, rest) = (length / UNSIGNED_CHUNK_BYTES, length % UNSIGNED_CHUNK_BYTES);
        let last = if rest > 0 { framed(rest) } else { 0 };
        full * framed(UNSIGNED_CHUNK_BYTES) + last + trailer(like).len() as u64
    }

    fn frame(&mut self, mut bytes: Bytes) -> Vec<Bytes> {
        let mut framed = Vec::with_capacity(4);
        while !bytes.is_empty() {
            if self.remaining_in_chunk == 0 {
                self.remaining_in_chunk = self.remaining_bytes.min(UNSIGNED_CHUNK_BYTES);
                framed.push(Bytes::from(format!("{:x}\r\n", self.remaining_in_chunk)));
            }
            let fits = usize::try_from(self.remaining_in_chunk).unwrap_or(usize::MAX).min(bytes.len());
            let piece = bytes.split_to(fits);
            self.remaining_in_chunk -= piece.len() as u64;
            self.remaining_bytes = self.remaining_bytes.saturating_sub(piece.len() as u64);
            framed.push(piece);
            if self.remaining_in_chunk == 0 {
                framed.push(Bytes::from_static(b"\r\n"));
            }
        }
        framed
    }
}

/// The last chunk and the trailing checksum.
fn trailer(checksum: &Checksum) -> String {
    format!("0\r\n{}:{}\r\n\r\n", checksum.algorithm().header(), checksum.to_base64())
}

/// Encoder of signed chunks. The bytes of the body are copied only if a chunk arrives in several buffers.
#[derive(Debug)]
pub(super) struct SignedChunks {
    signer: ChunkSignatureChain,
    /// Size of each chunk except the last, in bytes.
    chunk_bytes: usize,
    /// Bytes of the body not yet received.
    remaining_bytes: u64,
    /// The beginning of the next chunk. Copied, so that the caller's buffer can be reused.
    partial_chunk: BytesMut,
}

impl SignedChunks {
    /// Creates an encoder for a body of `length` bytes.
    pub fn new(length: u64, signer: ChunkSignatureChain) -> Self {
        Self {
            signer,
            chunk_bytes: SIGNED_CHUNK_BYTES,
            remaining_bytes: length,
            partial_chunk: BytesMut::new(),
        }
    }

    /// Length of the framed body in bytes.
    pub fn framed_length(length: u64) -> u64 {
        Self::framed_length_with(length, SIGNED_CHUNK_BYTES as u64)
    }

    fn framed_length_with(length: u64, size: u64) -> u64 {
        let framed = |size: u64| (format!("{size:x}{SIGNATURE_EXTENSION}").len() + 64 + 4) as u64 + size;
        let (full, rest) = (length / size, length % size);
        full * framed(size) + if rest > 0 { framed(rest) } else { 0 } + framed(0)
    }

    fn frame(&mut self, mut bytes: Bytes) -> Vec<Bytes> {
        let mut framed = Vec::with_capacity(4);
        self.remaining_bytes = self.remaining_bytes.saturating_sub(bytes.len() as u64);
        while !bytes.is_empty() {
            let wanted = self.chunk_bytes - self.partial_chunk.len();
            let is_whole = bytes.len() >= wanted || self.remaining_bytes == 0;
            let piece = bytes.split_to(wanted.min(bytes.len()));
            if is_whole && self.partial_chunk.is_empty() {
                self.sign(piece, &mut framed);
                continue;
            }
            self.partial_chunk.extend_from_slice(&piece);
            if is_whole {
                let chunk = self.partial_chunk.split().freeze();
                self.sign(chunk, &mut framed);
            }
        }
        framed
    }

    fn sign(&mut self, chunk: Bytes, framed: &mut Vec<Bytes>) {
        framed.push(self.chunk_header(&chunk));
        framed.push(chunk);
        framed.push(Bytes::from_static(b"\r\n"));
    }

    fn chunk_header(&mut self, chunk: &[u8]) -> Bytes {
        let signature = self.signer.sign(&sha256(chunk));
        [format!("{:x}{SIGNATURE_EXTENSION}", chunk.len()).as_bytes(), &signature, b"\r\n"].concat().into()
    }

    fn end(&mut self) -> Bytes {
        [&self.chunk_header(b""), &b"\r\n"[..]].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use tradewind_core::Algorithm;
    use tradewind_wire::sigv4::hex::from_hex;
    use tradewind_wire::sigv4::{AmzDate, SigningKey};

    #[test]
    fn chunks_frame_a_short_body() {
        let checksum = Checksum::compute(Algorithm::Crc32, b"hello");
        let mut chunks = UnsignedChunks::new(5);
        let framed = [chunks.frame("he".into()), chunks.frame("llo".into())].concat().concat();
        let whole = [&framed[..], trailer(&checksum).as_bytes()].concat();
        assert_eq!(whole, b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n");
        assert_eq!(UnsignedChunks::framed_length(5, &checksum), whole.len() as u64);
    }

    fn signer() -> ChunkSignatureChain {
        let (scope, date) =
            ("20130524/us-east-1/s3/aws4_request", AmzDate::parse(b"20130524T000000Z").unwrap());
        let key = SigningKey::derive("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", scope);
        let seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
        ChunkSignatureChain::new(Arc::new(key), &date, scope, &from_hex(seed.as_bytes()).unwrap())
    }

    /// The example in Amazon's documentation, with the body in buffers of several sizes.
    #[test]
    fn signed_chunks_match_the_documented_example() {
        let expected = [
            b"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n"
                .as_slice(),
            &[b'a'; 65_536],
            b"\r\n400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n",
            &[b'a'; 1024],
            b"\r\n0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n",
        ]
        .concat();
        assert_eq!(SignedChunks::framed_length_with(66_560, 65_536), expected.len() as u64);
        let whole = Bytes::from(vec![b'a'; 66_560]);
        for piece in [1000, 40_000, 65_536, 66_560] {
            let mut chunks = SignedChunks { chunk_bytes: 65_536, ..SignedChunks::new(66_560, signer()) };
            let mut framed: Vec<Bytes> =
                whole.chunks(piece).flat_map(|piece| chunks.frame(whole.slice_ref(piece))).collect();
            framed.push(chunks.end());
            assert!(framed.concat() == expected, "in buffers of {piece} bytes");
        }
    }

    proptest! {
        #[test]
        fn signed_length_equals_the_bytes_framed(length in 0_usize..300_000, piece in 1_usize..100_000) {
            let (bytes, mut chunks) = (Bytes::from(vec![7; length]), SignedChunks::new(length as u64, signer()));
            let framed: usize =
                bytes.chunks(piece).flat_map(|piece| chunks.frame(bytes.slice_ref(piece))).map(|piece| piece.len()).sum();
            prop_assert_eq!((framed + chunks.end().len()) as u64, SignedChunks::framed_length(length as u64));
        }

        #[test]
        fn unsigned_length_equals_the_bytes_framed(length in 0_usize..3_000_000, piece in 1_usize..300_000) {
            let (bytes, checksum) = (Bytes::from(vec![7; length]), Checksum::compute(Algorithm::Crc64Nvme, b""));
            let mut chunks = UnsignedChunks::new(length as u64);
            let framed: u64 = bytes.chunks(piece)
                .flat_map(|piece| chunks.frame(bytes.slice_ref(piece)))
                .map(|piece| piece.len() as u64).sum();
            prop_assert_eq!(framed + trailer(&checksum).len() as u64, UnsignedChunks::framed_length(length as u64, &checksum));
        }
    }
}
