//! Page-aligned memory, as direct access requires.

use super::access_form::DIRECT_ALIGNMENT_BYTES;

/// An aligned buffer of fixed length.
#[derive(Debug)]
pub(super) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    pub fn new(length: usize) -> Self {
        let alignment = DIRECT_ALIGNMENT_BYTES as usize;
        // Filled with ones, so that its pages are mapped before anything is timed.
        let bytes = vec![1; length + alignment];
        let start = bytes.as_ptr().align_offset(alignment);
        Self { bytes, start, length }
    }

    pub fn first(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length.min(length)]
    }

    pub const fn len(&self) -> usize {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_aligned_and_has_the_requested_length() {
        for length in [1, 512, 4096, 70_000] {
            let mut buffer = AlignedBuffer::new(length);
            assert_eq!((buffer.len(), buffer.first(usize::MAX).len()), (length, length));
            assert_eq!(buffer.first(1).as_ptr() as usize % 4096, 0);
        }
    }
}
