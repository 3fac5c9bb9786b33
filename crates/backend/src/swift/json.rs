//! Parses Swift's JSON listings of an account and of a container.

use http::StatusCode;
use serde_json::Value as Json;
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason, Result};

use crate::remote::decimal::json_size;
use crate::remote::time::parse_time;

/// Longest page: 1000 names of 1000 bytes, each byte escaped in six characters, and content types of the same length.
pub(super) const MAX_PAGE_BYTES: usize = 24 << 20;

/// An entry of a container's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ListingEntry {
    /// A common prefix.
    Prefix(String),
    Object(ListedObject),
}

impl ListingEntry {
    pub fn name(&self) -> &str {
        match self {
            Self::Prefix(name) => name,
            Self::Object(object) => &object.name,
        }
    }
}

/// An object in a container's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedObject {
    pub name: String,
    pub size: u64,
    pub hash: String,
    pub content_type: String,
    /// The ETag of a static large object.
    pub slo_etag: Option<String>,
    /// Rounded up to the next full second, like `Last-Modified`.
    pub modified: Timestamp,
}

/// Parses a page of a container.
pub(super) fn parse_container(status: StatusCode, document: &[u8]) -> Result<Vec<ListingEntry>> {
    parse_entries(status, document)?
        .iter()
        .map(|entry| parse_entry(entry).ok_or_else(malformed_error))
        .collect()
}

/// Parses a page of an account: names and times of containers. Not every service lists the times.
pub(super) fn parse_account(status: StatusCode, document: &[u8]) -> Result<Vec<(String, Option<Timestamp>)>> {
    let container = |entry: &Json| {
        let time = entry["last_modified"].as_str().and_then(parse_listed_time);
        Some((entry["name"].as_str()?.to_owned(), time))
    };
    parse_entries(status, document)?
        .iter()
        .map(|entry| container(entry).ok_or_else(malformed_error))
        .collect()
}

fn parse_entries(status: StatusCode, document: &[u8]) -> Result<Vec<Json>> {
    // An empty listing may have no body only with status 204. Otherwise a lost body would look like an empty listing.
    if document.is_empty() && status == StatusCode::NO_CONTENT {
        return Ok(Vec::new());
    }
    match serde_json::from_slice(document) {
        Ok(Json::Array(entries)) => Ok(entries),
        Ok(_) => Err(malformed_error()),
        Err(e) => Err(Error::with_source(Reason::Io, "the store's listing is not JSON", e)),
    }
}

fn parse_entry(entry: &Json) -> Option<ListingEntry> {
    if let Some(prefix) = entry["subdir"].as_str() {
        return Some(ListingEntry::Prefix(prefix.to_owned()));
    }
    let text = |name: &str| entry[name].as_str().map(str::to_owned);
    Some(ListingEntry::Object(ListedObject {
        name: text("name")?,
        size: json_size(&entry["bytes"])?,
        hash: text("hash")?,
        content_type: text("content_type").unwrap_or_default(),
        slo_etag: text("slo_etag"),
        modified: parse_listed_time(entry["last_modified"].as_str()?)?,
    }))
}

/// Parses `2026-11-22T02:58:54.632770` in UTC, and rounds it up to a full second, like `Last-Modified`. Ceph appends a
/// `Z`.
fn parse_listed_time(text: &str) -> Option<Timestamp> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let whole = parse_time(&format!("{seconds}Z"))?;
    let is_between = fraction.bytes().any(|digit| digit != b'0');
    Some(Timestamp::from_millis(whole.millis() + if is_between { 1000 } else { 0 }))
}

fn malformed_error() -> Error {
    Error::new(Reason::Io, "the store's response is not a listing")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_parses_prefixes_and_objects() {
        let page =
            br#"[{"subdir": "a\u0001/"}, {"bytes": 7, "hash": "5112", "name": "\u00e9", "content_type": "x",
            "last_modified": "2026-11-22T02:58:54.000010", "slo_etag": "\"94b7\""}]"#;
        let object = ListedObject {
            name: "é".to_owned(),
            size: 7,
            hash: "5112".to_owned(),
            content_type: "x".to_owned(),
            slo_etag: Some("\"94b7\"".to_owned()),
            modified: Timestamp::from_millis(1_795_316_335_000),
        };
        assert_eq!(
            parse_container(StatusCode::OK, page).unwrap(),
            [ListingEntry::Prefix("a\u{1}/".to_owned()), ListingEntry::Object(object)]
        );
        assert_eq!(parse_container(StatusCode::NO_CONTENT, b"").unwrap(), []);
    }

    #[test]
    fn time_rounds_up_to_seconds() {
        let seconds = |text| parse_listed_time(text).map(|time| time.millis());
        assert_eq!(seconds("1970-01-01T00:00:01.000000"), Some(1000));
        assert_eq!(seconds("1970-01-01T00:00:01"), Some(1000));
        assert_eq!(seconds("1970-01-01T00:00:01.000001"), Some(2000));
        assert_eq!(seconds("1970-01-01T00:00:01.000Z"), Some(1000));
        assert_eq!(seconds("1970-01-01T00:00:01Z"), Some(1000));
        assert_eq!(seconds("yesterday"), None);
    }

    #[test]
    fn container_without_a_valid_time_has_none() {
        let page = br#"[{"name": "a"}, {"name": "b", "last_modified": "?"},
            {"name": "c", "last_modified": "1970-01-01T00:00:01.5"}]"#;
        let expected = [("a", None), ("b", None), ("c", Some(Timestamp::from_millis(2000)))];
        let expected = expected.map(|(name, time)| (name.to_owned(), time));
        assert_eq!(parse_account(StatusCode::OK, page).unwrap(), expected);
    }

    #[test]
    fn lines_rejects_other_documents() {
        for bad in [&b""[..], b"<html>", b"{}", b"[{}]", b"[1]", b"[{\"name\": \"a\"}]"] {
            assert_eq!(parse_container(StatusCode::OK, bad).unwrap_err().reason(), Reason::Io);
        }
    }

    proptest! {
        #[test]
        fn parsers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_container(StatusCode::OK, &bytes);
            let _ = parse_account(StatusCode::OK, &bytes);
        }

        #[test]
        fn lines_preserves_any_name(name in ".*") {
            let page = serde_json::json!([{"subdir": name}]).to_string();
            prop_assert_eq!(parse_container(StatusCode::OK, page.as_bytes()).unwrap(), [ListingEntry::Prefix(name)]);
        }
    }
}
