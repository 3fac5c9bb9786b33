//! Keys of the index. The first byte of a key is a prefix that states the kind of its entry. Keys of objects sort in
//! S3's byte order: by bucket, then by object key. The current version of an object has a key of its own prefix, so that a
//! point lookup finds it and a listing of objects meets neither older versions nor delete markers.

use crate::local::fields::malformed;
use crate::local::position::Position;
use crate::local::record::{BucketId, UploadSeq, VersionName, VersionSlot};
use tradewind_core::error::Result;

/// The first byte of a key: the kind of its entry.
pub(crate) mod prefix {
    pub const BUCKET: u8 = b'b';
    pub const BUCKET_DELETED: u8 = b'g';
    pub const DELETED: u8 = b'd';
    pub const EXTENT: u8 = b'x';
    pub const META: u8 = b'm';
    pub const NUMBERS: u8 = b'n';
    pub const OBJECT: u8 = b'o';
    pub const PART: u8 = b'p';
    pub const RECLAIM: u8 = b'r';
    pub const SEGMENT: u8 = b's';
    pub const UPLOAD: u8 = b'u';
    pub const UPLOAD_ENDED: u8 = b'e';
    pub const UPLOAD_RECORDS: u8 = b'c';
    pub const HAS_VERSIONS: u8 = b'k';
    pub const VERSION: u8 = b'w';
    pub const VOID: u8 = b'v';
}

/// Bytes of a version slot in a key.
const SLOT_BYTES: usize = 8;

/// The end of an object's key, reserved for older versions.
const VERSION_SLOT: u64 = 0;

/// The index's coverage of the log.
pub(crate) const META: [u8; 1] = [prefix::META];

/// The next numbers, in an index under construction that covers nothing yet: a `Coverage` whose `covered_end` is
/// ignored.
pub(crate) const NEXT_NUMBERS: [u8; 1] = [prefix::NUMBERS];

/// An object.
pub(crate) fn object(bucket: BucketId, key: &str) -> Vec<u8> {
    let mut out = name(prefix::OBJECT, bucket, key.as_bytes());
    out.extend_from_slice(&[0, 1]);
    out.extend_from_slice(&VERSION_SLOT.to_be_bytes());
    out
}

/// A version that is not the current object: an older one, or a delete marker. The `null` version sorts before all
/// others of its key, these from the newest to the oldest.
pub(crate) fn version(bucket: BucketId, key: &str, slot: VersionSlot) -> Vec<u8> {
    let mut out = versions(bucket, key);
    out.extend_from_slice(&slot_bytes(slot));
    out
}

/// The common prefix of the entries of a key made by [`version`].
pub(crate) fn versions(bucket: BucketId, key: &str) -> Vec<u8> {
    let mut out = name(prefix::VERSION, bucket, key.as_bytes());
    out.extend_from_slice(&[0, 1]);
    out
}

/// One past the last entry of a key made by [`version`].
pub(crate) fn versions_end_of_key(bucket: BucketId, key: &str) -> Vec<u8> {
    let mut out = name(prefix::VERSION, bucket, key.as_bytes());
    out.extend_from_slice(&[0, 2]);
    out
}

/// A lower bound of the version entries of all keys at or after `key` in a bucket. `key` may end inside a character.
pub(crate) fn versions_from(bucket: BucketId, key: &[u8]) -> Vec<u8> {
    name(prefix::VERSION, bucket, key)
}

/// The mark of a bucket that has, or had, entries made by [`version`].
pub(crate) fn has_versions(bucket: BucketId) -> [u8; 9] {
    numbered(prefix::HAS_VERSIONS, bucket.into())
}

/// `null` is 0, and others descend with their age. No seq is so large that its complement is 0.
fn slot_bytes(slot: VersionSlot) -> [u8; SLOT_BYTES] {
    match slot {
        VersionSlot::Null => [0; SLOT_BYTES],
        VersionSlot::Own(seq) => (!seq).to_be_bytes(),
    }
}

/// The tombstone of a version.
pub(crate) fn deleted(bucket: BucketId, key: &str, slot: VersionSlot) -> Vec<u8> {
    let mut out = name(prefix::DELETED, bucket, key.as_bytes());
    out.extend_from_slice(&[0, 1]);
    if slot != VersionSlot::Null {
        out.extend_from_slice(&slot_bytes(slot));
    }
    out
}

/// A lower bound of the index keys of all object keys at or after `key` in a bucket. `key` may end inside a character.
pub(crate) fn object_from(bucket: BucketId, key: &[u8]) -> Vec<u8> {
    name(prefix::OBJECT, bucket, key)
}

/// One past the last index key of a bucket's objects.
pub(crate) fn bucket_end(bucket: BucketId) -> Vec<u8> {
    end_of_bucket(prefix::OBJECT, bucket)
}

/// One past the last index key of a bucket's versions.
pub(crate) fn versions_end(bucket: BucketId) -> Vec<u8> {
    end_of_bucket(prefix::VERSION, bucket)
}

fn end_of_bucket(prefix: u8, bucket: BucketId) -> Vec<u8> {
    match bucket.checked_add(1) {
        Some(next) => [&[prefix][..], &next.to_be_bytes()].concat(),
        None => vec![prefix + 1],
    }
}

/// The object key in the index key of an object, a version or a tombstone.
pub(crate) fn object_name(index_key: &[u8]) -> Result<String> {
    Ok(unescape(index_key)?.0)
}

/// The name of the version in the index key of a version or a tombstone.
pub(crate) fn version_name(index_key: &[u8]) -> Result<VersionName> {
    let (key, slot) = unescape(index_key)?;
    let slot = match <[u8; SLOT_BYTES]>::try_from(slot) {
        Ok(slot) if slot != [0; SLOT_BYTES] => VersionSlot::Own(!u64::from_be_bytes(slot)),
        _ => VersionSlot::Null,
    };
    Ok(VersionName { bucket: bucket_id(index_key)?, key, slot })
}

/// The bucket in the index key of an object or of a tombstone.
pub(crate) fn bucket_id(index_key: &[u8]) -> Result<BucketId> {
    let bytes = index_key.get(1..5).and_then(|bytes| bytes.try_into().ok());
    bytes.map(BucketId::from_be_bytes).ok_or_else(|| malformed("an index key is too short"))
}

/// The object key behind the bucket, and the bytes behind its terminator.
fn unescape(index_key: &[u8]) -> Result<(String, &[u8])> {
    let body = index_key.get(5..).ok_or_else(|| malformed("an index key is too short"))?;
    let mut bytes = Vec::with_capacity(body.len());
    let mut at = 0;
    loop {
        match (body.get(at), body.get(at + 1)) {
            (Some(0), Some(1)) => break,
            (Some(0), _) => {
                bytes.push(0);
                at += 2;
            }
            (Some(byte), _) => {
                bytes.push(*byte);
                at += 1;
            }
            (None, _) => return Err(malformed("an index key has no end")),
        }
    }
    let key = String::from_utf8(bytes).map_err(|_| malformed("a key is not UTF-8"))?;
    Ok((key, &body[at + 2..]))
}

pub(crate) fn extent(id: u64) -> [u8; 9] {
    numbered(prefix::EXTENT, id)
}

pub(crate) fn upload(upload: UploadSeq) -> [u8; 9] {
    numbered(prefix::UPLOAD, upload)
}

pub(crate) fn upload_ended(upload: UploadSeq) -> [u8; 9] {
    numbered(prefix::UPLOAD_ENDED, upload)
}

pub(crate) fn upload_records(upload: UploadSeq) -> [u8; 9] {
    numbered(prefix::UPLOAD_RECORDS, upload)
}

pub(crate) fn part(upload: UploadSeq, number: u16) -> [u8; 11] {
    let mut out = [0; 11];
    out[..9].copy_from_slice(&numbered(prefix::PART, upload));
    out[9..].copy_from_slice(&number.to_be_bytes());
    out
}

/// The common prefix of the parts of an upload.
pub(crate) fn parts(upload: UploadSeq) -> [u8; 9] {
    numbered(prefix::PART, upload)
}

pub(crate) fn bucket(id: BucketId) -> [u8; 9] {
    numbered(prefix::BUCKET, id.into())
}

pub(crate) fn bucket_deleted(id: BucketId) -> [u8; 9] {
    numbered(prefix::BUCKET_DELETED, id.into())
}

pub(crate) fn segment(number: u32) -> [u8; 9] {
    numbered(prefix::SEGMENT, number.into())
}

/// A superseded record whose extents are still to be freed; `seq` makes it unique.
pub(crate) fn reclaim(seq: u64) -> [u8; 9] {
    numbered(prefix::RECLAIM, seq)
}

pub(crate) fn void(at: Position) -> [u8; 9] {
    numbered(prefix::VOID, at.pack())
}

/// The number in a key that consists of a prefix and a number, possibly followed by more.
pub(crate) fn number(index_key: &[u8]) -> Result<u64> {
    let bytes = index_key.get(1..9).and_then(|b| b.try_into().ok());
    bytes.map(u64::from_be_bytes).ok_or_else(|| malformed("an index key is too short"))
}

fn numbered(prefix: u8, number: u64) -> [u8; 9] {
    let mut out = [prefix; 9];
    out[1..].copy_from_slice(&number.to_be_bytes());
    out
}

/// Prefix, bucket and key, without the terminator. Zero bytes of the key are escaped as `0 255`, so that the terminator
/// `0 1` sorts before every continuation of the key.
fn name(prefix: u8, bucket: BucketId, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(5 + key.len() + 12);
    out.push(prefix);
    out.extend_from_slice(&bucket.to_be_bytes());
    if key.contains(&0) {
        for byte in key {
            out.push(*byte);
            if *byte == 0 {
                out.push(255);
            }
        }
    } else {
        out.extend_from_slice(key);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn object_keys_preserve_order_and_name(a in "[\\x00\\x01ab\\x7fé]{1,8}", b in "[\\x00\\x01ab\\x7fé]{1,8}") {
            let (x, y) = (object(7, &a), object(7, &b));
            prop_assert_eq!(a.as_bytes().cmp(b.as_bytes()), x.cmp(&y));
            prop_assert_eq!(object_name(&x).unwrap(), a.clone());
            for slot in [VersionSlot::Null, VersionSlot::Own(5)] {
                let name = VersionName { bucket: 7, key: a.clone(), slot };
                prop_assert_eq!(version_name(&deleted(7, &a, slot)).unwrap(), name.clone());
                prop_assert_eq!(version_name(&version(7, &a, slot)).unwrap(), name);
                prop_assert!(versions_from(7, a.as_bytes()) <= version(7, &a, slot));
                prop_assert!(version(7, &a, slot) < versions_end(7));
            }
            prop_assert_eq!(a.as_bytes().cmp(b.as_bytes()), versions(7, &a).cmp(&versions(7, &b)));
            prop_assert!(version(7, &a, VersionSlot::Null) < version(7, &a, VersionSlot::Own(6)));
            prop_assert!(version(7, &a, VersionSlot::Own(6)) < version(7, &a, VersionSlot::Own(5)));
            prop_assert_eq!(bucket_id(&x).unwrap(), 7);
            prop_assert!(object_from(7, a.as_bytes()) <= x);
            prop_assert!(x < bucket_end(7) && bucket_end(7) <= object_from(8, b""));
        }

        #[test]
        fn seek_finds_keys_at_or_after(a in "[\\x00\\x01ab]{1,6}", b in "[\\x00\\x01ab]{1,6}") {
            // A seek to the bytes of `b` must find `a` exactly if `a` is at or after `b`.
            prop_assert_eq!(a.as_bytes() >= b.as_bytes(), object(1, &a) >= object_from(1, b.as_bytes()));
        }
    }
}
