//! Tagged fields: the encoding of records and index values. A field is a tag, a length and bytes; readers skip
//! unknown tags, so that later versions can add fields without a new format.

use tradewind_core::error::{Error, Reason, Result};

/// Builds a list of fields.
#[derive(Default)]
pub(crate) struct FieldWriter(Vec<u8>);

impl FieldWriter {
    pub fn bytes(&mut self, tag: u8, value: &[u8]) -> &mut Self {
        self.0.push(tag);
        put_varint(&mut self.0, value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    pub fn text(&mut self, tag: u8, value: &str) -> &mut Self {
        self.bytes(tag, value.as_bytes())
    }

    pub fn number(&mut self, tag: u8, value: u64) -> &mut Self {
        let mut encoded = Vec::with_capacity(10);
        put_varint(&mut encoded, value);
        self.bytes(tag, &encoded)
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Walks through a list of fields.
pub(crate) struct FieldReader<'a>(Decoder<'a>);

impl<'a> FieldReader<'a> {
    pub const fn new(encoded: &'a [u8]) -> Self {
        Self(Decoder(encoded))
    }

    /// The next field's tag and value.
    pub fn next(&mut self) -> Result<Option<(u8, Decoder<'a>)>> {
        if self.0.0.is_empty() {
            return Ok(None);
        }
        let tag = self.0.byte()?;
        let length = self.0.length()?;
        Ok(Some((tag, Decoder(self.0.take(length)?))))
    }
}

/// Reads plain values out of bytes. Every error has the reason `CorruptData`.
#[derive(Clone, Copy)]
pub(crate) struct Decoder<'a>(pub &'a [u8]);

impl<'a> Decoder<'a> {
    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    pub fn number(&mut self) -> Result<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(malformed("a number has too many bytes"))
    }

    pub fn narrow<T: TryFrom<u64>>(&mut self) -> Result<T> {
        T::try_from(self.number()?).map_err(|_| malformed("a number is out of range"))
    }

    pub fn length(&mut self) -> Result<usize> {
        self.narrow()
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        if length > self.0.len() {
            return Err(malformed("a field extends beyond the end"));
        }
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    /// Length-prefixed bytes.
    pub fn block(&mut self) -> Result<&'a [u8]> {
        let length = self.length()?;
        self.take(length)
    }

    /// Length-prefixed text.
    pub fn text(&mut self) -> Result<String> {
        as_text(self.block()?)
    }

    /// The rest, as text.
    pub fn rest_as_text(self) -> Result<String> {
        as_text(self.0)
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn as_text(bytes: &[u8]) -> Result<String> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| malformed("text is not UTF-8"))
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "below 0x80")]
    out.push(value as u8);
}

pub(crate) fn put_block(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(crate) fn malformed(why: &str) -> Error {
    Error::new(Reason::CorruptData, format!("malformed record: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip(value: u64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            let mut decoder = Decoder(&out);
            prop_assert_eq!(decoder.number().unwrap(), value);
            prop_assert!(decoder.is_empty());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = FieldReader::new(&bytes);
            while let Ok(Some((_, mut value))) = reader.next() {
                let _ = value.number();
            }
        }
    }
}
