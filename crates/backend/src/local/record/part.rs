//! Parts, and the elements of manifests.

use tradewind_core::error::Result;
use tradewind_core::{Checksum, ETag, Timestamp};

use super::{
    TransformedBytes, UploadSeq, algorithm_byte, algorithm_from_byte, checksum_of, is_original_algorithm,
    known_algorithm, put_checksum, put_etag, put_time, read_checksum, read_time, tag,
};
use crate::local::fields::{Decoder, FieldReader, FieldWriter, malformed, put_block, put_varint};
use crate::local::frame::MAX_PAYLOAD_BYTES;
use crate::local::position::Position;

/// Extents with consecutive ids, `bytes` bytes in total; not necessarily adjacent on disk. All are full, except
/// possibly the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentRun {
    pub first_id: u64,
    pub bytes: u64,
}

impl ExtentRun {
    /// The number of extents.
    pub const fn extent_count(self) -> u64 {
        self.bytes.div_ceil(MAX_PAYLOAD_BYTES as u64)
    }

    /// The ids of the extents.
    pub const fn ids(self) -> std::ops::Range<u64> {
        self.first_id..self.first_id + self.extent_count()
    }

    pub fn encode_all(runs: &[Self]) -> Vec<u8> {
        let mut out = Vec::with_capacity(runs.len() * 8);
        for run in runs {
            put_varint(&mut out, run.first_id);
            put_varint(&mut out, run.bytes);
        }
        out
    }

    pub fn decode_all(mut value: Decoder<'_>) -> Result<Vec<Self>> {
        let mut runs = Vec::new();
        while !value.is_empty() {
            let run = Self { first_id: value.number()?, bytes: value.number()? };
            if run.first_id.checked_add(run.extent_count()).is_none() {
                return Err(malformed("a run of extents exceeds the number range"));
            }
            runs.push(run);
        }
        Ok(runs)
    }
}

/// The position and length of an extent's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExtentLocation {
    pub id: u64,
    pub position: Position,
    pub record_bytes: u32,
}

impl ExtentLocation {
    pub fn encode_all(extents: &[Self]) -> Vec<u8> {
        let mut out = Vec::with_capacity(extents.len() * 16);
        for extent in extents {
            put_varint(&mut out, extent.id);
            put_varint(&mut out, extent.position.pack());
            put_varint(&mut out, extent.record_bytes.into());
        }
        out
    }

    pub fn decode_all(mut value: Decoder<'_>) -> Result<Vec<Self>> {
        let mut extents = Vec::new();
        while !value.is_empty() {
            let (id, position) = (value.number()?, Position::unpack(value.number()?));
            extents.push(Self { id, position, record_bytes: value.narrow()? });
        }
        Ok(extents)
    }
}

/// A completed object's record of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartSummary {
    pub number: u16,
    pub size: u64,
    pub etag: ETag,
    pub checksums: Vec<Checksum>,
    /// The stored bytes, if they are transformed.
    pub transformed: Option<TransformedBytes>,
}

impl PartSummary {
    /// The number of stored bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.transformed.as_ref().map_or(self.size, |transformed| transformed.size)
    }

    pub fn encode_all(parts: &[Self]) -> Vec<u8> {
        let mut out = Vec::with_capacity(parts.len() * 48);
        for part in parts {
            let mut encoded = Vec::with_capacity(48);
            put_varint(&mut encoded, part.number.into());
            put_varint(&mut encoded, part.size);
            put_block(&mut encoded, part.etag.as_str().as_bytes());
            put_checksums(
                &mut encoded,
                part.checksums.iter().filter(|sum| is_original_algorithm(sum.algorithm())),
            );
            put_block(&mut out, &encoded);
        }
        out
    }

    /// The checksums by later algorithms, for the parts that have some.
    pub fn encode_more(parts: &[Self]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts {
            let mut more =
                part.checksums.iter().filter(|sum| !is_original_algorithm(sum.algorithm())).peekable();
            if more.peek().is_some() {
                let mut encoded = Vec::new();
                put_varint(&mut encoded, part.number.into());
                put_checksums(&mut encoded, more);
                put_block(&mut out, &encoded);
            }
        }
        out
    }

    pub fn decode_all(mut value: Decoder<'_>) -> Result<Vec<Self>> {
        let mut parts = Vec::new();
        while !value.is_empty() {
            let mut fields = Decoder(value.block()?);
            let (number, size) = (fields.narrow()?, fields.number()?);
            let etag = ETag::from_tag(&fields.text()?);
            let checksums = read_checksums(tag::PARTS, fields)?;
            parts.push(Self { number, size, etag, checksums, transformed: None });
        }
        Ok(parts)
    }

    /// Adds the output of [`Self::encode_more`] to the parts decoded before.
    pub fn decode_more(parts: &mut [Self], mut value: Decoder<'_>) -> Result<()> {
        while !value.is_empty() {
            let mut fields = Decoder(value.block()?);
            let number = fields.narrow()?;
            let index = parts.binary_search_by_key(&number, |part| part.number);
            let index = index.map_err(|_| malformed("a checksum is of a missing part"))?;
            parts[index].checksums.extend(read_checksums(tag::LATER_PART_CHECKSUMS, fields)?);
        }
        Ok(())
    }
}

fn put_checksums<'a>(out: &mut Vec<u8>, checksums: impl Iterator<Item = &'a Checksum>) {
    for checksum in checksums {
        out.push(algorithm_byte(checksum.algorithm()));
        put_block(out, checksum.bytes());
    }
}

fn read_checksums(tag: u8, mut value: Decoder<'_>) -> Result<Vec<Checksum>> {
    let mut checksums = Vec::new();
    while !value.is_empty() {
        let algorithm = known_algorithm(tag, algorithm_from_byte(value.byte()?))?;
        let bytes = value.block()?;
        if let Some(algorithm) = algorithm {
            checksums.push(checksum_of(algorithm, bytes)?);
        }
    }
    Ok(checksums)
}

/// An uploaded part.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Part {
    pub upload: UploadSeq,
    pub number: u16,
    pub size: u64,
    pub modified: Timestamp,
    pub etag: ETag,
    pub checksums: Vec<Checksum>,
    pub runs: Vec<ExtentRun>,
    /// The stored bytes, if they are transformed.
    pub transformed: Option<TransformedBytes>,
    /// The extents to which this record is the first to refer, and their locations when it was written.
    pub new_extents: Vec<ExtentLocation>,
    /// The seq of the part's previous record, whose extents this record takes over, if only its description changed.
    pub rewritten_seq: Option<u64>,
}

impl Part {
    /// The number of stored bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.transformed.as_ref().map_or(self.size, |transformed| transformed.size)
    }

    pub(super) fn encode(&self, out: &mut FieldWriter) {
        out.number(tag::UPLOAD, self.upload)
            .number(tag::NUMBER, self.number.into())
            .number(tag::SIZE, self.size);
        put_time(out, self.modified);
        put_etag(out, &self.etag);
        for checksum in &self.checksums {
            put_checksum(out, checksum);
        }
        out.bytes(tag::RUNS, &ExtentRun::encode_all(&self.runs));
        out.bytes(tag::NEW_EXTENTS, &ExtentLocation::encode_all(&self.new_extents));
        if let Some(transformed) = &self.transformed {
            out.bytes(tag::TRANSFORMED, &transformed.encode());
        }
        if let Some(seq) = self.rewritten_seq {
            out.number(tag::REWRITES, seq);
        }
    }

    pub(super) fn decode(fields: &[u8]) -> Result<Self> {
        let mut part = Self {
            upload: 0,
            number: 0,
            size: 0,
            modified: Timestamp::default(),
            etag: ETag::from_text(""),
            checksums: Vec::new(),
            runs: Vec::new(),
            transformed: None,
            new_extents: Vec::new(),
            rewritten_seq: None,
        };
        let mut reader = FieldReader::new(fields);
        while let Some((tag, mut value)) = reader.next()? {
            match tag {
                tag::UPLOAD => part.upload = value.number()?,
                tag::NUMBER => part.number = value.narrow()?,
                tag::SIZE => part.size = value.number()?,
                tag::TIME => part.modified = read_time(value)?,
                tag::ETAG_MD5 => part.etag = ETag::from_md5(&value.array()?),
                tag::ETAG_TEXT => part.etag = ETag::from_tag(&value.rest_as_text()?),
                tag::CHECKSUM | tag::LATER_CHECKSUMS => part.checksums.extend(read_checksum(tag, value)?),
                tag::RUNS => part.runs = ExtentRun::decode_all(value)?,
                tag::NEW_EXTENTS => part.new_extents = ExtentLocation::decode_all(value)?,
                tag::TRANSFORMED => part.transformed = Some(TransformedBytes::decode(value)?),
                tag::REWRITES => part.rewritten_seq = Some(value.number()?),
                _ => {}
            }
        }
        Ok(part)
    }
}
