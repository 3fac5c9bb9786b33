//! Content that is generated from a number, so that bytes read back can be compared.

use super::random::Random;

/// The bytes of one write. No two writes have the same `id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Content {
    pub id: u64,
    pub size: usize,
}

/// The first `size` bytes of the content with this number.
pub fn content(id: u64, size: usize) -> Vec<u8> {
    Content { id, size }.bytes()
}

impl Content {
    pub fn bytes(self) -> Vec<u8> {
        let mut random = Random::new(self.id);
        let mut bytes = Vec::with_capacity(self.size + 8);
        while bytes.len() < self.size {
            bytes.extend_from_slice(&random.next().to_le_bytes());
        }
        bytes.truncate(self.size);
        bytes
    }
}
