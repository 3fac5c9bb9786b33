//! Parts in the response documents of ListParts and GetObjectAttributes.

use tradewind_core::error::{Error, Reason};
use tradewind_core::multipart::{PartInfo, PartNumber};
use tradewind_core::{Checksum, ETag, Timestamp};

use super::headers;
use crate::remote::decimal::{parse_count, parse_part_size};
use crate::remote::time::parse_time;

/// A part that is being parsed.
#[derive(Default)]
pub(super) struct PartialPart {
    pub number: Option<PartNumber>,
    pub size: Option<u64>,
    pub etag: Option<ETag>,
    pub modified: Option<Timestamp>,
    pub checksums: Vec<Checksum>,
}

impl PartialPart {
    /// Reads a child element of the part.
    pub fn read(&mut self, name: &str, text: &str) {
        match name {
            "PartNumber" => {
                self.number = parse_count(text).and_then(|number| PartNumber::new(number.into()).ok());
            }
            "Size" => self.size = parse_part_size(text),
            "ETag" => self.etag = Some(ETag::from_text(text)),
            "LastModified" => self.modified = parse_time(text),
            name => self.checksums.extend(headers::checksum_element(name, text)),
        }
    }

    /// The part; `None` without an ETag, a valid number or a valid size.
    pub fn into_info(self) -> Option<PartInfo> {
        Some(PartInfo {
            number: self.number?,
            size: self.size?,
            etag: self.etag?,
            modified: self.modified,
            checksums: self.checksums,
        })
    }
}

/// The error of a list with an incomplete part: without that part, an object would lack bytes.
pub(super) fn invalid_part_error() -> Error {
    Error::new(Reason::Io, "a part in the store's response has no valid PartNumber, no valid Size or no ETag")
}
