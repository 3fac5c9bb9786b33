//! What one service understands differently from S3's documentation. Which service it is, the names say that it gives to
//! requests: nothing need be set, and nothing is asked where an answer has come already.
//!
//! What is known of radosgw is of release 16, measured, and in its documentation:
//! <https://docs.ceph.com/en/pacific/radosgw/s3/objectops/>. It knows no checksums but MD5, no condition on a write (one on
//! a PUT works, one on a delete, a copy or a completion is passed over in silence), no single part of an object, and no
//! attributes. Conditions on reads and on copies take one entity tag, those on copies under names of their own, and those
//! on copied parts none at all. A copy that is told of tags loses all of them.

use http::HeaderMap;
use tradewind_core::store::{Capabilities, Lack};
use tradewind_wire::encoded_word;

/// Which service it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// What does as S3's documentation says, as far as anybody noticed.
    Plain,
    /// Ceph's radosgw.
    Ceph,
}

impl Dialect {
    /// Reads it off an answer; `None` where that says nothing, as a proxy's.
    pub fn of(answered: &HeaderMap) -> Option<Self> {
        let name = answered.get("x-amz-request-id")?.to_str().ok()?;
        // `tx`, a number, the time, the process and the zone. Swift's S3 has the first two of the four.
        let is_ceph = name.starts_with("tx") && name.bytes().filter(|c| *c == b'-').count() >= 3;
        Some(if is_ceph { Self::Ceph } else { Self::Plain })
    }

    /// The text of metadata that came in a header.
    pub fn metadata(self, text: String) -> String {
        match self {
            Self::Plain => encoded_word::decode(text),
            Self::Ceph => ceph_metadata(&text).unwrap_or(text),
        }
    }

    /// What such a service can do.
    pub const fn capabilities(self) -> &'static Capabilities {
        match self {
            Self::Plain => &PLAIN,
            Self::Ceph => &CEPH,
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
    several_checksums: false,
    lists_checksums: true,
    upload_metadata: false,
    tells_parts: false,
    tells_deleted: false,
    refuses_at_stage: false,
    max_key_bytes: tradewind_core::name::MAX_KEY_BYTES,
    max_object_bytes: 5 << 40,
    lacks: &[],
};

const CEPH: Capabilities = Capabilities {
    // Whoever makes a bucket that is theirs already is told that they made it.
    atomic_buckets: false,
    conditional_writes: false,
    lists_checksums: false,
    lacks: &[
        Lack::Checksums,
        // Headers that it does not know are passed over.
        Lack::Classes,
        // They come back in the order of their keys.
        Lack::OrderOfTags,
        // Its server takes no header of more than some KiB.
        Lack::LargeTags,
        // A PUT that tags get in the way of is answered with success and not carried out.
        Lack::TagsBesideWrites,
        Lack::TimeBesideTags,
        // A bucket's index is many, listed one after the other.
        Lack::Snapshots,
        // They come in the order of their names.
        Lack::OrderOfUploads,
        Lack::EndOfUploads,
        // A part that is not named makes it refuse all.
        Lack::LeavingPartsOut,
        Lack::JoiningCopies,
        Lack::SinglePart,
        // Such a key is answered 400.
        Lack::NulInKeys,
    ],
    ..PLAIN
};

/// radosgw makes one encoded word of a value with control characters, and of no other. It leaves blanks, question marks
/// and underscores in it as they are, which RFC 2047 does not.
fn ceph_metadata(text: &str) -> Option<String> {
    let mut rest = text.strip_prefix("=?UTF-8?Q?")?.strip_suffix("?=")?.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let [first, behind @ ..] = rest {
        rest = match (first, behind) {
            (b'=', [high, low, behind @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                behind
            }
            _ => {
                bytes.push(*first);
                behind
            }
        };
    }
    String::from_utf8(bytes).ok().filter(|text| text.chars().any(|c| c.is_ascii_control()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn metadata_of_radosgw() {
        let read = |text: &str| Dialect::Ceph.metadata(text.to_owned());
        assert_eq!(read("=?UTF-8?Q?a=09b_c?="), "a\tb_c");
        assert_eq!(
            read("=?UTF-8?Q?=3D?UTF-8?Q?=3DC3=3DA9?=3D tab=09\"?="),
            "=?UTF-8?Q?=C3=A9?= tab\t\"",
            "what looked like an encoded word before"
        );
        for plain in ["=?UTF-8?Q?plain?=", "Zo\u{eb}", "", "=?UTF-8?Q?=zz?=", "=?UTF-8?Q?a=0"] {
            assert_eq!(read(plain), plain);
        }
    }

    #[test]
    fn the_name_of_a_request_tells() {
        let of = |name: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-amz-request-id", HeaderValue::from_static(name));
            Dialect::of(&headers)
        };
        assert_eq!(of("tx00000cdc607c7513cb9ba-006b0282a7-101a-default"), Some(Dialect::Ceph));
        assert_eq!(of("tx00000cdc607c7513cb9ba-006b0282a7-101a-eu-west"), Some(Dialect::Ceph));
        assert_eq!(of("tx6f2ab1f7e7b04b0a9b6a0-0065a1b2c3"), Some(Dialect::Plain));
        assert_eq!(of("656c76696e6727732072657175657374"), Some(Dialect::Plain));
        assert_eq!(Dialect::of(&HeaderMap::new()), None);
    }
}
