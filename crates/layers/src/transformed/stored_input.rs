//! Stored bytes that wait to be decoded. They stay in the memory in which they were received, which the request's window
//! counts. Only the beginning of a frame, whose rest is in the next piece, is copied: a piece that is held while the next
//! one is read could occupy the memory for which that read waits.

use bytes::{Buf as _, Bytes, BytesMut};

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct StoredInput {
    /// Bytes of earlier pieces: less than a frame.
    rest: BytesMut,
    /// The piece that was received last, without what was taken.
    received: Bytes,
}

impl StoredInput {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.rest.len() + self.received.len()
    }

    /// Adds a piece.
    pub fn push(&mut self, received: Bytes) {
        self.release_received();
        self.received = received;
    }

    /// Copies what was not taken, and releases the memory in which it was received.
    pub fn release_received(&mut self) {
        self.rest.extend_from_slice(&self.received);
        self.received = Bytes::new();
    }

    /// The next bytes; `None` if there are fewer.
    pub fn peek<const N: usize>(&self) -> Option<[u8; N]> {
        let mut bytes = self.rest.iter().chain(&self.received).copied();
        let mut next = [0; N];
        for byte in &mut next {
            *byte = bytes.next()?;
        }
        Some(next)
    }

    /// Removes up to `bytes`, and returns their number.
    pub fn skip(&mut self, bytes: u64) -> u64 {
        let skipped = usize::try_from(bytes).unwrap_or(usize::MAX).min(self.len());
        let of_rest = skipped.min(self.rest.len());
        self.rest.advance(of_rest);
        self.received.advance(skipped - of_rest);
        skipped as u64
    }

    /// Removes and returns up to `bytes`, in memory of their own.
    pub fn take(&mut self, bytes: usize) -> BytesMut {
        let bytes = bytes.min(self.len());
        let of_rest = bytes.min(self.rest.len());
        let mut taken = BytesMut::with_capacity(bytes);
        taken.extend_from_slice(&self.rest.split_to(of_rest));
        taken.extend_from_slice(&self.received.split_to(bytes - of_rest));
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A piece, and a handle that is unique once the piece is released.
    fn piece(bytes: &[u8]) -> (Bytes, Arc<[u8]>) {
        struct Owner(Arc<[u8]>);
        impl AsRef<[u8]> for Owner {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }
        let shared: Arc<[u8]> = bytes.into();
        (Bytes::from_owner(Owner(shared.clone())), shared)
    }

    #[test]
    fn bytes_are_taken_in_order_across_pieces() {
        let mut input = StoredInput::default();
        input.push(Bytes::from_static(b"0123"));
        assert_eq!((input.peek::<2>(), input.peek::<5>()), (Some(*b"01"), None));
        input.push(Bytes::from_static(b"456789"));
        assert_eq!((input.skip(3), input.peek::<2>()), (3, Some(*b"34")));
        assert_eq!((&input.take(3)[..], input.len()), (&b"345"[..], 4));
        assert_eq!((&input.take(9)[..], input.skip(1)), (&b"6789"[..], 0));
    }

    #[test]
    fn received_piece_is_held_until_more_is_needed() {
        let mut input = StoredInput::default();
        let (received, handle) = piece(b"0123456789");
        input.push(received);
        input.take(6);
        assert_eq!((Arc::strong_count(&handle), input.rest.len()), (2, 0), "nothing is copied");
        input.release_received();
        assert_eq!((Arc::strong_count(&handle), &input.rest[..]), (1, &b"6789"[..]));
    }
}
