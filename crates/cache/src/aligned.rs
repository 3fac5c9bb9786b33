//! Buffers for O_DIRECT: aligned to the block of the device, in whole blocks.

use bytes::Bytes;

/// The alignment of buffers, offsets and lengths; also the unit of space on the SSD.
pub(crate) const BLOCK_BYTES: usize = 4096;

#[repr(C, align(4096))]
#[derive(Clone, Copy)]
struct Block([u8; BLOCK_BYTES]);

/// A buffer of whole, aligned blocks.
pub(crate) struct AlignedBuffer(Box<[Block]>);

impl AlignedBuffer {
    /// A buffer of zeros.
    pub fn zeroed(blocks: usize) -> Self {
        Self(vec![Block([0; BLOCK_BYTES]); blocks].into_boxed_slice())
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let bytes = self.0.len() * BLOCK_BYTES;
        // SAFETY: the boxed slice holds `len` blocks of 4096 initialised bytes without padding, borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), bytes) }
    }

    /// The whole buffer as shared bytes.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        let bytes = self.0.len() * BLOCK_BYTES;
        // SAFETY: the boxed slice holds `len` blocks of 4096 initialised bytes without padding.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_whole() {
        for blocks in [0, 1, 16] {
            let mut buffer = AlignedBuffer::zeroed(blocks);
            buffer.as_mut_slice().fill(7);
            let bytes = buffer.into_bytes();
            assert_eq!(bytes.len(), blocks * BLOCK_BYTES);
            assert!(bytes.iter().all(|byte| *byte == 7));
            assert!(bytes.is_empty() || bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES));
        }
    }
}
