//! The framing of a body whose checksum follows it (`aws-chunked` with an unsigned trailer):
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-streaming-trailers.html>.

use bytes::Bytes;
use tradewind_core::Checksum;

/// Bytes in each chunk but the last. MinIO takes no more than 16 MiB; Amazon no less than 8 KiB.
const CHUNK_BYTES: u64 = 1 << 20;

/// Puts the frame around the bytes of a body, which it hands on as they are.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Bytes of the body to come.
    left: u64,
    /// Bytes of the chunk to come.
    in_chunk: u64,
}

impl Chunks {
    /// Of a body of `length` bytes.
    pub const fn new(length: u64) -> Self {
        Self { left: length, in_chunk: 0 }
    }

    /// What the body is on the wire, in bytes, with a trailer for a checksum like this one.
    pub fn length(length: u64, like: &Checksum) -> u64 {
        let framed = |size: u64| format!("{size:x}\r\n\r\n").len() as u64 + size;
        let (full, rest) = (length / CHUNK_BYTES, length % CHUNK_BYTES);
        let last = if rest > 0 { framed(rest) } else { 0 };
        full * framed(CHUNK_BYTES) + last + trailer(like).len() as u64
    }

    /// The next bytes of the body, framed; there are as many as was said at the most.
    pub fn frame(&mut self, mut bytes: Bytes) -> Vec<Bytes> {
        let mut framed = Vec::with_capacity(4);
        while !bytes.is_empty() {
            if self.in_chunk == 0 {
                self.in_chunk = self.left.min(CHUNK_BYTES);
                framed.push(Bytes::from(format!("{:x}\r\n", self.in_chunk)));
            }
            let fits = usize::try_from(self.in_chunk).unwrap_or(usize::MAX).min(bytes.len());
            let piece = bytes.split_to(fits);
            self.in_chunk -= piece.len() as u64;
            self.left = self.left.saturating_sub(piece.len() as u64);
            framed.push(piece);
            if self.in_chunk == 0 {
                framed.push(Bytes::from_static(b"\r\n"));
            }
        }
        framed
    }
}

/// What ends the body.
pub(super) fn trailer(checksum: &Checksum) -> String {
    format!("0\r\n{}:{}\r\n\r\n", checksum.algorithm().header(), checksum.to_base64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tradewind_core::Algorithm;

    #[test]
    fn a_short_body() {
        let checksum = Checksum::of(Algorithm::Crc32, b"hello");
        let mut chunks = Chunks::new(5);
        let framed = [chunks.frame("he".into()), chunks.frame("llo".into())].concat().concat();
        let whole = [&framed[..], trailer(&checksum).as_bytes()].concat();
        assert_eq!(whole, b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n");
        assert_eq!(Chunks::length(5, &checksum), whole.len() as u64);
    }

    proptest! {
        #[test]
        fn the_length_is_known_beforehand(length in 0_usize..3_000_000, piece in 1_usize..300_000) {
            let (bytes, checksum) = (Bytes::from(vec![7; length]), Checksum::of(Algorithm::Crc64Nvme, b""));
            let mut chunks = Chunks::new(length as u64);
            let framed: u64 = bytes.chunks(piece)
                .flat_map(|piece| chunks.frame(bytes.slice_ref(piece)))
                .map(|piece| piece.len() as u64).sum();
            prop_assert_eq!(framed + trailer(&checksum).len() as u64, Chunks::length(length as u64, &checksum));
        }
    }
}
