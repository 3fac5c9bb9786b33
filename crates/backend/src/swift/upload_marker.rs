//! The marker of a multipart upload: an object in the companion with the key, metadata and checksum algorithm.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use serde_json::{Value as Json, json};
use tradewind_core::multipart::{UploadId, UploadInfo};
use tradewind_core::{Algorithm, ChecksumScope, Metadata, Timestamp};

use super::json::ListedObject;
use super::stored_metadata::StoredMetadata;

const CONTENT_TYPE_PREFIX: &str = "application/x-tradewind-upload;key=";
const CHECKSUM_PARAMETER: &str = ";checksum=";

/// The stored description of an upload.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct UploadMarker {
    pub key: String,
    pub metadata: Metadata,
    pub checksum: Option<(Algorithm, ChecksumScope)>,
}

impl UploadMarker {
    /// The checksum algorithm of the parts, from which the object's checksum is computed.
    pub fn algorithm(&self) -> Algorithm {
        self.checksum.map_or(Algorithm::Crc64Nvme, |(algorithm, _)| algorithm)
    }

    /// The upload's entry in a listing.
    pub fn info(&self, id: &UploadId) -> UploadInfo {
        UploadInfo {
            id: id.clone(),
            key: self.key.clone(),
            initiated: start_time(id),
            metadata: self.metadata.clone(),
            checksum: self.checksum,
        }
    }

    /// The marker's content.
    pub fn document(&self) -> Bytes {
        let stored = StoredMetadata { metadata: self.metadata.clone(), ..StoredMetadata::default() };
        let checksum = self.checksum.map(|(algorithm, scope)| (algorithm.name(), scope.name()));
        Bytes::from(json!({"key": self.key, "metadata": stored.to_json(), "checksum": checksum}).to_string())
    }

    /// Parses the result of [`Self::document`].
    pub fn parse(document: &[u8]) -> Option<Self> {
        let all: Json = serde_json::from_slice(document).ok()?;
        let checksum = match all["checksum"].as_array() {
            Some(pair) => Some((pair.first()?.as_str()?.parse().ok()?, pair.get(1)?.as_str()?.parse().ok()?)),
            None => None,
        };
        let metadata = StoredMetadata::from_json(&all["metadata"]).ok()?.metadata;
        Some(Self { key: all["key"].as_str()?.to_owned(), metadata, checksum })
    }

    /// The marker's content type, which encodes key and checksum, because only the content type is listed.
    pub fn content_type(&self) -> String {
        let checksum_text = self
            .checksum
            .map(|(algorithm, scope)| format!("{CHECKSUM_PARAMETER}{}.{}", algorithm.name(), scope.name()));
        format!("{CONTENT_TYPE_PREFIX}{}{}", BASE64.encode(&self.key), checksum_text.unwrap_or_default())
    }

    /// Parses an upload from an entry of the companion's listing.
    pub fn from_listing(listed: &ListedObject) -> Option<UploadInfo> {
        let id = UploadId(listed.name.strip_prefix("u/")?.to_owned());
        let rest = listed.content_type.strip_prefix(CONTENT_TYPE_PREFIX)?;
        let (key, checksum_text) =
            rest.split_once(CHECKSUM_PARAMETER).map_or((rest, None), |(key, text)| (key, Some(text)));
        let checksum = match checksum_text {
            Some(text) => {
                let (algorithm, scope) = text.split_once('.')?;
                Some((algorithm.parse().ok()?, scope.parse().ok()?))
            }
            None => None,
        };
        let key = String::from_utf8(BASE64.decode(key).ok()?).ok()?;
        Some(UploadInfo { initiated: start_time(&id), id, key, metadata: Metadata::default(), checksum })
    }
}

/// The start time, which is part of the id; `None` for an id of another form.
fn start_time(id: &UploadId) -> Option<Timestamp> {
    let digits = id.0.get(..12).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
    i64::from_str_radix(digits, 16).ok().map(Timestamp::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::swift::names;

    #[test]
    fn marker_round_trips() {
        let sums = [None, Some((Algorithm::Sha1, ChecksumScope::Composite))];
        for (checksum, key) in sums.into_iter().zip(["a/b", "\0;key=ü"]) {
            let user = vec![("Name".to_owned(), "ü".to_owned())];
            let metadata = Metadata { user, ..Metadata::default() };
            let marker = UploadMarker { key: key.to_owned(), metadata, checksum };
            assert_eq!(UploadMarker::parse(&marker.document()), Some(marker.clone()));
            let id = names::unique_id(Timestamp::from_millis(1_795_316_334_567)).unwrap();
            let listed = ListedObject {
                name: names::marker_name(&id),
                size: 0,
                hash: String::new(),
                content_type: marker.content_type(),
                slo_etag: None,
                modified: Timestamp::default(),
            };
            let info = UploadMarker::from_listing(&listed).unwrap();
            assert_eq!(
                (info.key.as_str(), info.checksum, info.initiated.unwrap().millis()),
                (key, checksum, 1_795_316_334_567)
            );
        }
    }
}
