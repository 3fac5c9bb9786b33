//! The fields of an object's metadata: tags 32 and up of object and upload records.

use tradewind_core::class::{Class, ClassRange, Retention};
use tradewind_core::error::Result;
use tradewind_core::{Metadata, Tags};

use crate::local::fields::{Decoder, FieldWriter, malformed, put_block, put_varint};

const CONTENT_TYPE: u8 = 32;
const CONTENT_ENCODING: u8 = 33;
const CONTENT_DISPOSITION: u8 = 34;
const CONTENT_LANGUAGE: u8 = 35;
const CACHE_CONTROL: u8 = 36;
const EXPIRES: u8 = 37;
const WEBSITE_REDIRECT: u8 = 38;
const STORAGE_CLASS: u8 = 39;
const USER: u8 = 40;
const TAGS: u8 = 41;
const CLASS: u8 = 42;
const CLASS_RANGES: u8 = 43;
const RETENTION: u8 = 44;

pub(super) fn put_metadata(out: &mut FieldWriter, metadata: &Metadata) {
    let headers = &metadata.headers;
    let texts = [
        (CONTENT_TYPE, &headers.content_type),
        (CONTENT_ENCODING, &headers.content_encoding),
        (CONTENT_DISPOSITION, &headers.content_disposition),
        (CONTENT_LANGUAGE, &headers.content_language),
        (CACHE_CONTROL, &headers.cache_control),
        (EXPIRES, &headers.expires),
        (WEBSITE_REDIRECT, &headers.website_redirect),
        (STORAGE_CLASS, &headers.storage_class),
    ];
    for (tag, text) in texts {
        if let Some(text) = text {
            out.text(tag, text);
        }
    }
    if !metadata.user.is_empty() {
        out.bytes(USER, &encode_pairs(&metadata.user));
    }
    if !metadata.tags.is_empty() {
        out.bytes(TAGS, &encode_pairs(metadata.tags.pairs()));
    }
    if let Some(class) = metadata.classes.object {
        out.bytes(CLASS, &[class.value()]);
    }
    if !metadata.classes.ranges.is_empty() {
        let mut ranges = Vec::new();
        for range in &metadata.classes.ranges {
            put_varint(&mut ranges, range.first_sector.into());
            put_varint(&mut ranges, range.sectors.into());
            ranges.push(range.class.value());
        }
        out.bytes(CLASS_RANGES, &ranges);
    }
    if let Some(retention) = metadata.classes.retention {
        let mut span = Vec::new();
        put_varint(&mut span, retention.end_seconds());
        put_varint(&mut span, retention.period_seconds().into());
        out.bytes(RETENTION, &span);
    }
}

/// Decodes one field; unknown tags are skipped.
pub(super) fn read_metadata_field(metadata: &mut Metadata, tag: u8, mut value: Decoder<'_>) -> Result<()> {
    let headers = &mut metadata.headers;
    match tag {
        CONTENT_TYPE => headers.content_type = Some(value.rest_as_text()?),
        CONTENT_ENCODING => headers.content_encoding = Some(value.rest_as_text()?),
        CONTENT_DISPOSITION => headers.content_disposition = Some(value.rest_as_text()?),
        CONTENT_LANGUAGE => headers.content_language = Some(value.rest_as_text()?),
        CACHE_CONTROL => headers.cache_control = Some(value.rest_as_text()?),
        EXPIRES => headers.expires = Some(value.rest_as_text()?),
        WEBSITE_REDIRECT => headers.website_redirect = Some(value.rest_as_text()?),
        STORAGE_CLASS => headers.storage_class = Some(value.rest_as_text()?),
        USER => metadata.user = decode_pairs(value)?,
        TAGS => {
            metadata.tags = Tags::new(decode_pairs(value)?).map_err(|_| malformed("tags are not legal"))?;
        }
        CLASS => metadata.classes.object = Some(class(value.byte()?)?),
        CLASS_RANGES => {
            while !value.is_empty() {
                let (first_sector, sectors) = (value.narrow()?, value.narrow()?);
                metadata.classes.ranges.push(ClassRange {
                    first_sector,
                    sectors,
                    class: class(value.byte()?)?,
                });
            }
        }
        RETENTION => {
            let (end_seconds, period_seconds) = (value.number()?, value.narrow()?);
            let retention = Retention::new(end_seconds, period_seconds);
            metadata.classes.retention =
                Some(retention.map_err(|_| malformed("a retention is out of range"))?);
        }
        _ => {}
    }
    Ok(())
}

fn class(byte: u8) -> Result<Class> {
    Class::new(byte).map_err(|_| malformed("a class is out of range"))
}

fn encode_pairs(pairs: &[(String, String)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (key, value) in pairs {
        put_block(&mut out, key.as_bytes());
        put_block(&mut out, value.as_bytes());
    }
    out
}

fn decode_pairs(mut value: Decoder<'_>) -> Result<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    while !value.is_empty() {
        pairs.push((value.text()?, value.text()?));
    }
    Ok(pairs)
}
