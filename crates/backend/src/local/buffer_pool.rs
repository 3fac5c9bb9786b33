//! A pool of read buffers. New memory costs a page fault per 4 KiB, which for large reads takes longer than the read
//! itself.

use std::sync::Arc;

use parking_lot::Mutex;

/// Buffer sizes. The largest holds a 256 KiB piece with the longest head of a full extent.
const SIZES: [usize; 4] = [8 << 10, 72 << 10, 136 << 10, 264 << 10];
/// Maximum pooled memory per size.
const MAX_POOLED_BYTES: usize = 8 << 20;

/// A pool of buffers.
#[derive(Default)]
pub(crate) struct BufferPool {
    free: [Mutex<Vec<Vec<u8>>>; SIZES.len()],
}

impl BufferPool {
    /// A buffer of `length` bytes with any contents.
    pub fn take(self: &Arc<Self>, length: usize) -> PooledBuffer {
        let class = SIZES.iter().position(|size| length <= *size);
        let bytes = match class {
            Some(class) => self.free[class].lock().pop().unwrap_or_else(|| vec![0; SIZES[class]]),
            None => vec![0; length],
        };
        PooledBuffer { bytes, length, class, pool: self.clone() }
    }
}

/// A buffer that returns to its pool.
pub(crate) struct PooledBuffer {
    bytes: Vec<u8>,
    length: usize,
    class: Option<usize>,
    pool: Arc<BufferPool>,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl AsMut<[u8]> for PooledBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let Some(class) = self.class else { return };
        let mut free = self.pool.free[class].lock();
        if free.len() < MAX_POOLED_BYTES / SIZES[class] {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}
