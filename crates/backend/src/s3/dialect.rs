//! Deviations of services from S3's documentation. The service is detected by the format of its request ids, so no
//! setting is needed, and no extra request once there has been a response.
//!
//! The facts about radosgw are of release 16, from tests and from its documentation:
//! <https://docs.ceph.com/en/pacific/radosgw/s3/objectops/>. It supports no checksums except MD5, no selection of a
//! part and no object attributes. It honours write conditions on a PUT and silently ignores them on a delete, a copy or
//! a completion. Conditions on reads and copies support a single ETag, those on copies under different header names;
//! conditions on part copies are ignored. A copy with new tags loses all tags. It has versions, but not every response
//! names them.

use http::header::SERVER;
use http::{HeaderMap, HeaderValue};
use tradewind_core::store::{Capabilities, Feature};
use tradewind_wire::encoded_word;

/// The kind of service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Follows S3's documentation, as far as is known.
    Plain,
    /// Ceph's radosgw.
    Ceph,
    /// Another Tradewind server, the only service that has headers for classes of data.
    Tradewind,
}

impl Dialect {
    /// All dialects.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Ceph, Self::Tradewind];

    /// Detects the dialect from the headers of a response; `None` without a request id, as from a proxy.
    pub fn detect(headers: &HeaderMap) -> Option<Self> {
        let name = headers.get("x-amz-request-id")?.to_str().ok()?;
        // A proxy may replace the header `Server`; servers of version 0.1 have only that one.
        let host = headers.get("x-amz-id-2").map(HeaderValue::as_bytes).unwrap_or_default();
        if host.starts_with(b"tradewind-") || headers.get(SERVER).is_some_and(|server| server == "Tradewind")
        {
            return Some(Self::Tradewind);
        }
        // radosgw: `tx`, a number, the time, the process and the zone. Swift's S3 API stops after the time.
        let is_ceph = name.starts_with("tx") && name.bytes().filter(|c| *c == b'-').count() >= 3;
        Some(if is_ceph { Self::Ceph } else { Self::Plain })
    }

    /// Decodes the value of a metadata header.
    pub fn decode_metadata(self, text: String) -> String {
        match self {
            Self::Plain | Self::Tradewind => encoded_word::decode(text),
            Self::Ceph => decode_ceph_metadata(&text).unwrap_or(text),
        }
    }

    /// The capabilities of such a service.
    pub const fn capabilities(self) -> &'static Capabilities {
        match self {
            Self::Plain => &PLAIN,
            Self::Ceph => &CEPH,
            Self::Tradewind => &TRADEWIND,
        }
    }
}

const PLAIN: Capabilities = Capabilities {
    kind: "s3",
    owns_buckets: true,
    atomic_buckets: true,
    conditional_writes: true,
    multipart: true,
    tags: true,
    generations: false,
    unique_etags: false,
    multiple_checksums: false,
    listing_reports_checksums: true,
    upload_metadata: false,
    reports_all_parts: false,
    reports_deleted: false,
    stage_checks_bucket: false,
    versions: true,
    max_key_bytes: tradewind_core::name::MAX_KEY_BYTES,
    max_object_bytes: 5 << 40,
    reported_attributes: false,
    unsupported: UNSUPPORTED_BY_PLAIN,
};

const UNSUPPORTED_BY_PLAIN: &[Feature] = &[
    // Some services list directory by directory, or by hashes.
    Feature::ByteOrder,
    // A completion that is sent again gets the response of the first one.
    Feature::SingleCompletion,
    // Classes are user metadata, which has a limit and is changed by a copy only.
    Feature::ManyClassRanges,
    Feature::ClassChanges,
    // As in S3, responses to writes omit the `null` version.
    Feature::NullVersionOfWrites,
    Feature::VersionIdForm,
    Feature::Identity,
];

/// Amazon's own service, except for directory buckets, which have other endpoints. It lists in the order of bytes.
pub(super) const AMAZON: Capabilities = Capabilities {
    unsupported: match UNSUPPORTED_BY_PLAIN {
        [Feature::ByteOrder, others @ ..] => others,
        _ => UNSUPPORTED_BY_PLAIN,
    },
    ..PLAIN
};

/// Cloudflare R2, by the end of its host names.
pub(super) const R2: Capabilities = Capabilities {
    unsupported: &[
        Feature::ByteOrder,
        Feature::SingleCompletion,
        Feature::UnequalParts,
        Feature::ManyClassRanges,
        Feature::ClassChanges,
        Feature::NullVersionOfWrites,
        Feature::VersionIdForm,
        Feature::Identity,
    ],
    ..PLAIN
};
/// The end of the host names of R2.
pub(super) const R2_HOST_SUFFIX: &str = ".r2.cloudflarestorage.com";

const TRADEWIND: Capabilities = Capabilities {
    unsupported: &[
        // It may be in front of a service that has another order.
        Feature::ByteOrder,
        Feature::SingleCompletion,
        Feature::NullVersionOfWrites,
        Feature::VersionIdForm,
        Feature::Identity,
    ],
    ..PLAIN
};

const CEPH: Capabilities = Capabilities {
    // Creating a bucket that the caller already owns succeeds.
    atomic_buckets: false,
    conditional_writes: false,
    listing_reports_checksums: false,
    unsupported: &[
        Feature::Checksums,
        Feature::ManyClassRanges,
        Feature::ClassChanges,
        // Tags are returned in the order of their keys.
        Feature::TagOrder,
        // Its HTTP server limits a header to a few KiB.
        Feature::LargeTags,
        // A PUT concurrent with a change of tags may report success without effect.
        Feature::ConcurrentTagWrites,
        Feature::TagsKeepModified,
        // A bucket's index has several shards, listed one after another.
        Feature::SnapshotListing,
        // Uploads are listed in the order of their ids.
        Feature::UploadOrder,
        Feature::SingleCompletion,
        // A completion that omits a part is rejected.
        Feature::PartialCompletion,
        Feature::CopiesDropParts,
        Feature::PartReads,
        // The response to such a key has status 400.
        Feature::NulInKeys,
        // Responses name a null version only if the request does, and no delete marker. A second delete adds none.
        Feature::VersionDetails,
        Feature::NullVersionOfWrites,
        Feature::VersionIdForm,
        Feature::Identity,
    ],
    ..PLAIN
};

/// Decodes radosgw's metadata values. It encodes only values with control characters, as one encoded word. Unlike
/// RFC 2047 it leaves spaces, question marks and underscores unencoded. `None` if the value is not encoded.
fn decode_ceph_metadata(text: &str) -> Option<String> {
    let mut rest = text.strip_prefix("=?UTF-8?Q?")?.strip_suffix("?=")?.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let [first, tail @ ..] = rest {
        rest = match (first, tail) {
            (b'=', [high, low, tail @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                tail
            }
            _ => {
                bytes.push(*first);
                tail
            }
        };
    }
    String::from_utf8(bytes).ok().filter(|text| text.chars().any(|c| c.is_ascii_control()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_decodes_the_encoding_of_radosgw() {
        let read = |text: &str| Dialect::Ceph.decode_metadata(text.to_owned());
        assert_eq!(read("=?UTF-8?Q?a=09b_c?="), "a\tb_c");
        assert_eq!(
            read("=?UTF-8?Q?=3D?UTF-8?Q?=3DC3=3DA9?=3D tab=09\"?="),
            "=?UTF-8?Q?=C3=A9?= tab\t\"",
            "a value that looks like an encoded word"
        );
        for plain in ["=?UTF-8?Q?plain?=", "Zo\u{eb}", "", "=?UTF-8?Q?=zz?=", "=?UTF-8?Q?a=0"] {
            assert_eq!(read(plain), plain);
        }
    }

    #[test]
    fn amazon_differs_from_plain_s3_by_its_order_only() {
        let features = |of: Capabilities| of.unsupported.to_vec();
        assert_eq!(features(PLAIN), [vec![Feature::ByteOrder], features(AMAZON)].concat());
    }

    #[test]
    fn dialect_is_detected_by_the_request_id() {
        let dialect = |name: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-amz-request-id", HeaderValue::from_static(name));
            Dialect::detect(&headers)
        };
        assert_eq!(dialect("tx00000cdc607c7513cb9ba-006b0282a7-101a-default"), Some(Dialect::Ceph));
        assert_eq!(dialect("tx00000cdc607c7513cb9ba-006b0282a7-101a-eu-west"), Some(Dialect::Ceph));
        assert_eq!(dialect("tx6f2ab1f7e7b04b0a9b6a0-0065a1b2c3"), Some(Dialect::Plain));
        assert_eq!(dialect("656c76696e6727732072657175657374"), Some(Dialect::Plain));
        assert_eq!(Dialect::detect(&HeaderMap::new()), None);
        for (name, value) in [("server", "Tradewind"), ("x-amz-id-2", "tradewind-0123")] {
            let mut headers = HeaderMap::new();
            headers.insert("x-amz-request-id", HeaderValue::from_static("0123456789ABCDEF"));
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(Dialect::detect(&headers), Some(Dialect::Tradewind), "{name}");
        }
    }
}
