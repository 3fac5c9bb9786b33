//! Bytes that were told of as sent while nobody knows yet whether the store takes them.

/// What an attempt told of as sent; dropped before it is kept, it is taken back.
pub(crate) struct Sent<F: Fn(i64)> {
    tell: F,
    bytes: i64,
}

impl<F: Fn(i64)> Sent<F> {
    /// Nothing yet. `tell` gets numbers of bytes, negative ones where they are taken back.
    pub const fn new(tell: F) -> Self {
        Self { tell, bytes: 0 }
    }

    /// So many more have left.
    pub fn more(&mut self, bytes: usize) {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.bytes += bytes;
        (self.tell)(bytes);
    }

    /// The store has them.
    pub fn keep(mut self) {
        self.bytes = 0;
    }
}

impl<F: Fn(i64)> Drop for Sent<F> {
    fn drop(&mut self) {
        if self.bytes != 0 {
            (self.tell)(-self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_is_not_kept_is_taken_back() {
        let told = Cell::new(0);
        let begin = || Sent::new(|bytes| told.set(told.get() + bytes));
        let mut sent = begin();
        sent.more(3);
        sent.more(4);
        assert_eq!(told.get(), 7);
        drop(sent);
        assert_eq!(told.get(), 0);
        let mut sent = begin();
        sent.more(5);
        sent.keep();
        assert_eq!(told.get(), 5);
    }
}
