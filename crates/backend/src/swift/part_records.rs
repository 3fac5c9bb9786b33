//! Records of an upload's parts: one small object per part, written when the part is committed. Of two parts with the
//! same number, the one committed last counts.
//!
//! The record is encoded in the object's content type, which is part of a listing: a page of parts is one request.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use http::Method;
use http::header::CONTENT_TYPE;
use serde_json::{Value as Json, json};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::{PartInfo, PartNumber, PartsPage, UploadId};
use tradewind_core::{Address, Algorithm, Checksum, Context, ETag, Timestamp};

use super::json::{ListedObject, ListingEntry};
use super::list::ListingQuery;
use super::segments::Segment;
use super::{SwiftStore, names};
use crate::remote::client::{Call, ResourceKind};
use crate::remote::decimal::{json_part_size, parse_count};
use crate::remote::header_fields::header_value;
use crate::remote::limits::MAX_PAGE_ENTRIES;

const CONTENT_TYPE_PREFIX: &str = "application/x-tradewind-part;v=";

/// The record of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PartRecord {
    pub number: PartNumber,
    pub size: u64,
    pub md5: [u8; 16],
    pub checksums: Vec<Checksum>,
    /// The segment with its bytes; `None` for an empty part.
    pub segment: Option<String>,
}

impl PartRecord {
    fn content_type(&self) -> String {
        let sums = self.checksums.iter().map(|sum| (sum.algorithm().name(), sum.to_base64()));
        let all =
            json!([self.size, ETag::from_md5(&self.md5).as_str(), self.segment, sums.collect::<Vec<_>>()]);
        format!("{CONTENT_TYPE_PREFIX}{}", BASE64.encode(all.to_string()))
    }

    fn from_listing(listed: &ListedObject) -> Option<(Self, Timestamp)> {
        let number = parse_count(listed.name.rsplit('/').next()?)?.into();
        let document = BASE64.decode(listed.content_type.strip_prefix(CONTENT_TYPE_PREFIX)?).ok()?;
        let all: Json = serde_json::from_slice(&document).ok()?;
        let sum = |sum: &Json| {
            let algorithm: Algorithm = sum[0].as_str()?.parse().ok()?;
            Checksum::from_base64(algorithm, sum[1].as_str()?).ok()
        };
        let record = Self {
            number: PartNumber::new(number).ok()?,
            size: json_part_size(&all[0])?,
            md5: ETag::from_text(all[1].as_str()?).md5()?,
            segment: all[2].as_str().map(str::to_owned),
            checksums: all[3].as_array()?.iter().map(sum).collect::<Option<_>>()?,
        };
        Some((record, listed.modified))
    }

    /// The port's description of the part.
    pub fn info(&self, modified: Timestamp) -> PartInfo {
        PartInfo {
            number: self.number,
            size: self.size,
            etag: ETag::from_md5(&self.md5),
            modified: Some(modified),
            checksums: self.checksums.clone(),
        }
    }

    /// The manifest entry of its bytes; `None` for an empty part.
    pub fn into_segment(self) -> Option<Segment> {
        let etag = ETag::from_md5(&self.md5).as_str().to_owned();
        Some(Segment { name: self.segment?, size: self.size, etag })
    }
}

/// The part number in a segment's name; `None` if it is not the segment of a part.
pub(super) fn part_number(name: &str) -> Option<PartNumber> {
    let number = name.splitn(3, '/').nth(2)?.split('-').next()?;
    PartNumber::new(parse_count(number)?.into()).ok()
}

impl SwiftStore {
    /// Writes the record of a part, if its upload still exists. Returns the modification time.
    pub(super) async fn put_record(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        record: &PartRecord,
    ) -> Result<Timestamp> {
        let _lock = self.upload_locks.lock_shared(context, upload).await?;
        self.find_upload(context, address, upload).await?;
        let companion = names::companion(&address.bucket);
        let name = names::record_name(&upload.0, record.number.get());
        let mut call = Call::in_container(Method::PUT, ResourceKind::Upload, &companion, Some(&name));
        call.headers.insert(CONTENT_TYPE, header_value(&record.content_type())?);
        let head = self.send_and_drain(context, &call).await?;
        self.modification_time(&head.headers)
    }

    /// All records of an upload, in the order of part numbers.
    pub(super) async fn all_records(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
    ) -> Result<Vec<(PartRecord, Timestamp)>> {
        let companion = names::companion(&address.bucket);
        let lines = self.list_objects(context, &companion, &names::record_prefix(&upload.0)).await?;
        lines
            .iter()
            .map(|listed| PartRecord::from_listing(listed).ok_or_else(|| corrupt_record(listed)))
            .collect()
    }

    /// Lists one page of an upload's parts.
    pub(super) async fn parts_page(
        &self,
        context: &Context,
        address: &Address,
        upload: &UploadId,
        after: Option<PartNumber>,
        limit: usize,
    ) -> Result<PartsPage> {
        let marker = self.find_upload(context, address, upload).await?;
        let mut page = PartsPage { upload: marker.info(upload), parts: Vec::new(), next: None };
        if limit == 0 {
            return Ok(page);
        }
        let (companion, prefix) = (names::companion(&address.bucket), names::record_prefix(&upload.0));
        let after = after.map(|number| names::record_name(&upload.0, number.get()));
        let limit = limit.min(MAX_PAGE_ENTRIES);
        let request =
            ListingQuery { prefix: &prefix, delimiter: None, marker: after.as_deref(), limit: limit + 1 };
        let lines = self.fetch_entries(context, &companion, request).await?;
        let is_last = lines.len() <= limit;
        for line in lines.into_iter().take(limit) {
            let ListingEntry::Object(listed) = line else { continue };
            let (record, modified) =
                PartRecord::from_listing(&listed).ok_or_else(|| corrupt_record(&listed))?;
            page.parts.push(record.info(modified));
        }
        page.next = page.parts.last().map(|part| part.number).filter(|_| !is_last);
        Ok(page)
    }
}

fn corrupt_record(listed: &ListedObject) -> Error {
    Error::new(Reason::CorruptData, format!("the record of part {:?} is corrupt", listed.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trips() {
        for segment in [None, Some("d/x/00007-y-000000".to_owned())] {
            let record = PartRecord {
                number: PartNumber::new(7).unwrap(),
                size: 1 << 32,
                md5: [9; 16],
                checksums: vec![
                    Checksum::compute(Algorithm::Sha256, b"x"),
                    Checksum::compute(Algorithm::Crc32, b"x"),
                ],
                segment,
            };
            let listed = ListedObject {
                name: names::record_name("x", 7),
                size: 0,
                hash: String::new(),
                content_type: record.content_type(),
                slo_etag: None,
                modified: Timestamp::from_millis(5000),
            };
            assert!(record.content_type().len() < 1000);
            assert_eq!(PartRecord::from_listing(&listed), Some((record, listed.modified)));
            assert_eq!(
                PartRecord::from_listing(&ListedObject { content_type: "text/plain".to_owned(), ..listed }),
                None
            );
        }
    }

    #[test]
    fn number_of_reads_segment_names() {
        assert_eq!(part_number("d/x/00007-y-000000").map(PartNumber::get), Some(7));
        assert_eq!(
            (part_number("d/x/manifest-0000"), part_number("d/x/000000"), part_number("d")),
            (None, None, None)
        );
    }
}
