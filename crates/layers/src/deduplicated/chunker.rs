//! Boundaries of chunks by content: FastCDC 2020, so that an insertion changes the chunks around it only.
//!
//! A boundary must not depend on how the bytes arrive. So a chunk is cut only when the longest possible one has arrived,
//! or at the end. Other boundaries, for example of a later version, cost space and nothing else.

use bytes::{Buf as _, Bytes, BytesMut};
use fastcdc::v2020::FastCDC;

/// The shortest chunk, except for the last one of an object or part.
pub(super) const MIN_CHUNK_BYTES: usize = 16 << 10;
/// The size of a chunk that the boundaries aim at.
const AVERAGE_CHUNK_BYTES: usize = 64 << 10;
/// The longest chunk.
pub(super) const MAX_CHUNK_BYTES: usize = 256 << 10;

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Chunker {
    buffer: BytesMut,
}

impl Chunker {
    /// Bytes that are in no chunk yet.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Adds bytes. Copies them: they may be memory of the request that it needs for the next ones.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next chunk; `None` if more bytes are needed to know its end.
    pub fn next_chunk(&mut self) -> Option<Bytes> {
        (self.buffer.len() >= MAX_CHUNK_BYTES).then(|| self.cut()).flatten()
    }

    /// Returns the next chunk after the last bytes were added; `None` at the end.
    pub fn last_chunk(&mut self) -> Option<Bytes> {
        self.cut()
    }

    /// All bytes that are in no chunk.
    pub fn take_rest(&mut self) -> Bytes {
        self.buffer.split().freeze()
    }

    fn cut(&mut self) -> Option<Bytes> {
        let window = &self.buffer[..self.buffer.len().min(MAX_CHUNK_BYTES)];
        let chunker = FastCDC::new(window, MIN_CHUNK_BYTES, AVERAGE_CHUNK_BYTES, MAX_CHUNK_BYTES);
        let (_, end) = chunker.cut(0, window.len());
        if end == 0 {
            return None;
        }
        // A copy: a part of the buffer would keep all of it while the chunk is stored.
        let chunk = Bytes::copy_from_slice(&self.buffer[..end]);
        self.buffer.advance(end);
        Some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tradewind_core::testing::pattern;

    use super::*;

    fn chunks(bytes: &[u8], write_bytes: usize) -> Vec<Bytes> {
        let (mut chunker, mut chunks) = (Chunker::default(), Vec::new());
        for piece in bytes.chunks(write_bytes) {
            chunker.push(piece);
            chunks.extend(std::iter::from_fn(|| chunker.next_chunk()));
        }
        chunks.extend(std::iter::from_fn(|| chunker.last_chunk()));
        assert_eq!(chunker.len(), 0);
        chunks
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn chunks_do_not_depend_on_the_sizes_of_writes(size in 0..3_000_000_usize, write_bytes in 1_000..700_000_usize) {
            let bytes = pattern(size, 3);
            let whole = chunks(&bytes, usize::MAX);
            prop_assert_eq!(&whole, &chunks(&bytes, write_bytes));
            prop_assert!(whole.concat() == bytes);
            let (last, others) = whole.split_last().map_or((0, &[][..]), |(last, others)| (last.len(), others));
            prop_assert!(last <= MAX_CHUNK_BYTES);
            prop_assert!(others.iter().all(|chunk| (MIN_CHUNK_BYTES..=MAX_CHUNK_BYTES).contains(&chunk.len())));
        }
    }

    #[test]
    fn an_insertion_changes_few_chunks() {
        let mut state = 1_u64;
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .take(8 << 20)
        .collect();
        let changed = [&bytes[..3_000_000], &b"inserted"[..], &bytes[3_000_000..]].concat();
        let before: std::collections::HashSet<Bytes> = chunks(&bytes, usize::MAX).into_iter().collect();
        let after = chunks(&changed, usize::MAX);
        let new = after.iter().filter(|chunk| !before.contains(*chunk)).count();
        assert!((1..=3).contains(&new) && after.len() > 60, "{new} of {} chunks are new", after.len());
    }
}
