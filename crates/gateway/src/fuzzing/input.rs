//! Parses the bytes of a case. Missing bytes read as zero, so that any bytes are a case.

pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) const fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub(super) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number of eight bytes.
    pub(super) fn read_u64(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// An index below `length`, which is not 0.
    pub(super) fn index(&mut self, length: usize) -> usize {
        (usize::from(self.byte()) << 8 | usize::from(self.byte())) % length
    }

    /// One of the choices.
    pub(super) fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }

    /// `length` bytes, or all that are left.
    pub(super) fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// At most `max_length` bytes, preceded by their number.
    pub(super) fn length_prefixed(&mut self, max_length: usize) -> &'a [u8] {
        let length = usize::from(self.byte()) % (max_length + 1);
        self.take(length)
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }
}
