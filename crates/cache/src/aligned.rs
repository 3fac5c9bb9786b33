//! Buffers for O_DIRECT: aligned to the block of the device, in whole blocks. Those of the size of a frame are recycled:
//! their allocation and clearing would be a notable part of a read from the SSD.

use bytes::Bytes;
use parking_lot::Mutex;

use crate::extent::FRAME_BLOCKS;

/// The alignment of buffers, offsets and lengths; also the unit of space on the SSD.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Blocks of the buffers that are recycled: those of a frame.
const RECYCLED_BLOCKS: usize = FRAME_BLOCKS;

/// Buffers that wait for their next use: up to 2.25 MiB.
const MAX_RECYCLED_BUFFERS: usize = 32;

/// The buffers that wait for their next use.
static RECYCLED: Mutex<Vec<Box<[Block]>>> = Mutex::new(Vec::new());

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

    /// A buffer with any content, possibly that of an earlier buffer, for a caller that overwrites all of it.
    pub fn with_any_content(blocks: usize) -> Self {
        let recycled = if blocks == RECYCLED_BLOCKS { RECYCLED.lock().pop() } else { None };
        recycled.map_or_else(|| Self::zeroed(blocks), Self)
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

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.0.len() != RECYCLED_BLOCKS {
            return;
        }
        let mut recycled = RECYCLED.lock();
        if recycled.len() < MAX_RECYCLED_BUFFERS {
            recycled.push(std::mem::take(&mut self.0));
        }
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

    #[test]
    fn zeroed_buffer_is_zeroed_after_another_one_was_recycled() {
        assert_eq!(RECYCLED_BLOCKS, crate::extent::FRAME_BLOCKS);
        for _ in 0..2 * MAX_RECYCLED_BUFFERS {
            let mut buffer = AlignedBuffer::with_any_content(RECYCLED_BLOCKS);
            assert_eq!(buffer.as_ref().len(), RECYCLED_BLOCKS * BLOCK_BYTES);
            buffer.as_mut_slice().fill(7);
            drop(buffer);
            assert!(AlignedBuffer::zeroed(RECYCLED_BLOCKS).as_ref().iter().all(|byte| *byte == 0));
            assert!(RECYCLED.lock().len() <= MAX_RECYCLED_BUFFERS);
        }
    }

    /// The memory tier may still serve the bytes.
    #[test]
    fn buffer_is_not_recycled_while_its_bytes_are_in_use() {
        let mut buffer = AlignedBuffer::with_any_content(RECYCLED_BLOCKS);
        buffer.as_mut_slice().fill(3);
        let bytes = buffer.into_bytes();
        let slice = bytes.slice(5000..6000);
        drop(bytes);
        for _ in 0..2 * MAX_RECYCLED_BUFFERS {
            AlignedBuffer::with_any_content(RECYCLED_BLOCKS).as_mut_slice().fill(9);
        }
        assert!(slice.iter().all(|byte| *byte == 3));
    }
}
