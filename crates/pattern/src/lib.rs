//! Deterministic content: an object's bytes follow from its key and size alone, so that any byte of any response can be
//! verified without storing anything, at the cost of a memory compare.
//!
//! An object is a sequence of 4 KiB blocks. Each begins with a stamp that identifies object and block, so that a block
//! of another object or position never matches; the rest is a slice of one pool of random bytes that stays in the CPU
//! cache, at an offset derived from the stamp.

use std::fmt;

const BLOCK_BYTES: u64 = 4096;
const STAMP_BYTES: usize = 16;
const POOL_BYTES: usize = 256 * 1024;

/// The pool from which all contents are cut.
pub struct Content {
    pool: Box<[u8]>,
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Content")
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::new()
    }
}

/// Identifies one object's content; a function of its key and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentId(u64);

impl ContentId {
    /// The content of the object `key_for` of `size` bytes.
    #[must_use]
    pub fn new(key: &str, size: u64) -> Self {
        let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self(mix(hash ^ mix(size)))
    }
}

impl Content {
    /// Generates the pool, which is the same in every process.
    #[must_use]
    pub fn new() -> Self {
        let mut state = 0x7472_6164_6577_696e;
        let mut pool = Vec::with_capacity(POOL_BYTES + BLOCK_BYTES as usize);
        while pool.len() < pool.capacity() {
            state = mix(state);
            pool.extend_from_slice(&state.to_le_bytes());
        }
        Self { pool: pool.into_boxed_slice() }
    }

    /// Fills `out` with the content from `position` on.
    pub fn fill(&self, id: ContentId, mut position: u64, mut out: &mut [u8]) {
        let mut stamp = [0; STAMP_BYTES];
        while !out.is_empty() {
            let expected = self.run(id, position, &mut stamp);
            let length = expected.len().min(out.len());
            let (now, rest) = out.split_at_mut(length);
            now.copy_from_slice(&expected[..length]);
            position += length as u64;
            out = rest;
        }
    }

    /// Position of the first byte of `found`, which was read at `position`, that differs from the content.
    #[must_use]
    pub fn first_difference(&self, id: ContentId, mut position: u64, mut found: &[u8]) -> Option<u64> {
        let mut stamp = [0; STAMP_BYTES];
        while !found.is_empty() {
            let expected = self.run(id, position, &mut stamp);
            let length = expected.len().min(found.len());
            if found[..length] != expected[..length] {
                let same = found.iter().zip(expected).take_while(|(left, right)| left == right).count();
                return Some(position + same as u64);
            }
            position += length as u64;
            found = &found[length..];
        }
        None
    }

    /// The longest run of expected bytes at `position`: never empty, never beyond the end of the block.
    fn run<'a>(&'a self, id: ContentId, position: u64, stamp: &'a mut [u8; STAMP_BYTES]) -> &'a [u8] {
        let block = position / BLOCK_BYTES;
        let within = (position % BLOCK_BYTES) as usize;
        let place = mix(id.0 ^ block);
        if within < STAMP_BYTES {
            stamp[..8].copy_from_slice(&id.0.to_le_bytes());
            stamp[8..].copy_from_slice(&place.to_le_bytes());
            &stamp[within..]
        } else {
            let start = place as usize % POOL_BYTES;
            &self.pool[start + within..start + BLOCK_BYTES as usize]
        }
    }
}

/// SplitMix64: one well-mixed number from another.
#[must_use]
pub const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_equal_the_whole() {
        let content = Content::new();
        let id = ContentId::new("a/b", 20_000);
        let mut whole = vec![0; 20_000];
        content.fill(id, 0, &mut whole);
        for (start, length) in [(0, 1), (5, 30), (4090, 20), (4096, 4096), (8191, 9000), (19_999, 1)] {
            let mut piece = vec![0; length];
            content.fill(id, start as u64, &mut piece);
            assert_eq!(piece, whole[start..start + length]);
            assert_eq!(content.first_difference(id, start as u64, &piece), None);
        }
    }

    #[test]
    fn every_flipped_byte_is_located() {
        let content = Content::new();
        let id = ContentId::new("a", 9000);
        let mut bytes = vec![0; 9000];
        content.fill(id, 0, &mut bytes);
        for at in [0, 7, 15, 16, 4095, 4096, 4112, 8999] {
            bytes[at] ^= 1;
            assert_eq!(content.first_difference(id, 0, &bytes), Some(at as u64));
            bytes[at] ^= 1;
        }
    }

    #[test]
    fn other_objects_and_blocks_differ() {
        let content = Content::new();
        let id = ContentId::new("a", 8192);
        let mut bytes = vec![0; 8192];
        content.fill(id, 0, &mut bytes);
        assert!(content.first_difference(ContentId::new("b", 8192), 0, &bytes).is_some());
        assert!(content.first_difference(ContentId::new("a", 8191), 0, &bytes).is_some());
        assert!(content.first_difference(id, 4096, &bytes[..4096]).is_some());
    }
}
