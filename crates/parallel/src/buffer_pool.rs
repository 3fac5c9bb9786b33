//! A pool of reusable buffers. A transfer holds as many buffers as it has pieces in flight; reuse avoids the page
//! faults of newly allocated memory.

use std::sync::{Arc, Mutex, PoisonError};

/// Size of a pooled buffer, and of one read from a source.
pub const BUFFER_BYTES: usize = 128 << 10;
/// Unused buffers that the pool retains; further ones are freed.
const MAX_FREE_BUFFERS: usize = 128;

/// The buffers not in use.
#[derive(Debug, Default)]
pub(crate) struct BufferPool {
    free: Mutex<Vec<Box<[u8]>>>,
}

/// A buffer of which the first `length` bytes are valid. Dropping it returns it to the pool.
pub(crate) struct PooledBuffer {
    bytes: Box<[u8]>,
    length: usize,
    pool: Arc<BufferPool>,
}

impl BufferPool {
    /// Returns a buffer of `length` bytes, at most [`BUFFER_BYTES`]. Its content is unspecified: data of an earlier
    /// user may remain.
    pub fn take(self: &Arc<Self>, length: usize) -> PooledBuffer {
        let length = length.min(BUFFER_BYTES);
        // A small request would waste most of a pooled buffer.
        let reused = if length > BUFFER_BYTES / 4 {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
        } else {
            None
        };
        let size = if length > BUFFER_BYTES / 4 { BUFFER_BYTES } else { length };
        let bytes = reused.unwrap_or_else(|| vec![0; size].into_boxed_slice());
        PooledBuffer { bytes, length, pool: self.clone() }
    }
}

impl PooledBuffer {
    /// The valid bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        if self.bytes.len() == BUFFER_BYTES {
            let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
            if free.len() < MAX_FREE_BUFFERS {
                free.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_buffers_return_to_the_pool() {
        let buffers = Arc::new(BufferPool::default());
        let mut first = buffers.take(BUFFER_BYTES);
        first.bytes_mut()[0] = 7;
        drop(first);
        let again = buffers.take(BUFFER_BYTES - 5);
        assert_eq!((again.as_ref().len(), again.as_ref()[0]), (BUFFER_BYTES - 5, 7));
        let small = buffers.take(10);
        assert_eq!(small.as_ref(), [0; 10]);
        drop((again, small));
        assert_eq!(buffers.free.lock().unwrap().len(), 1);
        assert!(buffers.take(0).as_ref().is_empty());
    }
}
