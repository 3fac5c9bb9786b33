//! Buffers that are used again: a transfer needs as many as are under way at a time, and not the memory of all that
//! ever were. The memory that an allocator takes anew costs a fault for each page, too.

use std::sync::{Arc, Mutex, PoisonError};

/// The size of each, in bytes: what is read of a source at once.
pub const BUFFER_BYTES: usize = 128 << 10;
/// Buffers that are kept while nobody needs them.
const MOST_KEPT: usize = 128;

/// The buffers that nobody has now.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Box<[u8]>>>,
}

/// A buffer, of which the first `length` bytes are meant. Dropping it gives it back.
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    length: usize,
    home: Arc<Buffers>,
}

impl Buffers {
    /// A buffer for `length` bytes, [`BUFFER_BYTES`] at the most. What it holds is left from whoever had it before.
    pub fn take(self: &Arc<Self>, length: usize) -> Buffer {
        let length = length.min(BUFFER_BYTES);
        // Small ones are not worth a whole buffer.
        let kept = if length > BUFFER_BYTES / 4 {
            self.free.lock().unwrap_or_else(PoisonError::into_inner).pop()
        } else {
            None
        };
        let size = if length > BUFFER_BYTES / 4 { BUFFER_BYTES } else { length };
        let bytes = kept.unwrap_or_else(|| vec![0; size].into_boxed_slice());
        Buffer { bytes, length, home: self.clone() }
    }
}

impl Buffer {
    /// The bytes that are meant.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.bytes.len() == BUFFER_BYTES {
            let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
            if free.len() < MOST_KEPT {
                free.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_ones_are_used_again() {
        let buffers = Arc::new(Buffers::default());
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
