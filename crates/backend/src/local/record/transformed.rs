//! The stored bytes of an object or part that a layer transformed, as its record describes them.

use tradewind_core::error::Result;
use tradewind_core::stored_form::Reported;

use super::PartSummary;
use crate::local::fields::{Decoder, malformed, put_block, put_varint};

/// Stored bytes that differ from the bytes that clients see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TransformedBytes {
    /// Number of stored bytes.
    pub size: u64,
    /// [`Reported::description`].
    pub description: Vec<u8>,
}

impl TransformedBytes {
    /// The form of `size` stored bytes, given what the layer declared.
    pub fn new(size: u64, reported: &Reported) -> Self {
        Self { size, description: reported.description.clone() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.description.len() + 10);
        put_varint(&mut out, self.size);
        out.extend_from_slice(&self.description);
        out
    }

    pub(super) fn decode(mut value: Decoder<'_>) -> Result<Self> {
        Ok(Self { size: value.number()?, description: value.0.to_vec() })
    }

    /// The forms of the parts that are transformed.
    pub(super) fn encode_parts(parts: &[PartSummary]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts {
            if let Some(transformed) = &part.transformed {
                let mut encoded = Vec::new();
                put_varint(&mut encoded, part.number.into());
                encoded.extend_from_slice(&transformed.encode());
                put_block(&mut out, &encoded);
            }
        }
        out
    }

    /// Adds the output of [`Self::encode_parts`] to the parts decoded before.
    pub(super) fn decode_parts(parts: &mut [PartSummary], mut value: Decoder<'_>) -> Result<()> {
        while !value.is_empty() {
            let mut fields = Decoder(value.block()?);
            let number = fields.narrow()?;
            let index = parts.binary_search_by_key(&number, |part| part.number);
            let index = index.map_err(|_| malformed("transformed bytes are of a missing part"))?;
            parts[index].transformed = Some(Self::decode(fields)?);
        }
        Ok(())
    }
}
