//! Values of the index. All are derived from records and can be rebuilt from the log.

use tradewind_core::checksum::ChecksumScope;
use tradewind_core::error::Result;
use tradewind_core::{Algorithm, ETag, Timestamp, Versioning};

use super::keys;
use crate::local::fields::{Decoder, malformed, put_block, put_varint};
use crate::local::position::Position;
use crate::local::record::{
    Bucket, BucketId, VersionSlot, algorithm_byte, algorithm_from_byte, is_original_algorithm,
    versioning_byte, versioning_from_byte,
};

/// The position and length of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordLocation {
    pub position: Position,
    pub record_bytes: u32,
}

impl RecordLocation {
    /// One past the record's last byte.
    pub const fn end(self) -> u32 {
        self.position.offset.saturating_add(self.record_bytes)
    }

    fn put(self, out: &mut Vec<u8>) {
        put_varint(out, self.position.segment.into());
        put_varint(out, self.position.offset.into());
        put_varint(out, self.record_bytes.into());
    }

    fn read(decoder: &mut Decoder<'_>) -> Result<Self> {
        let position = Position::new(decoder.narrow()?, decoder.narrow()?);
        Ok(Self { position, record_bytes: decoder.narrow()? })
    }

    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12);
        self.put(&mut out);
        out
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        Self::read(&mut Decoder(value))
    }
}

/// A version of an object, or a delete marker: all that a listing returns and a small read needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectEntry {
    pub seq: u64,
    pub location: RecordLocation,
    /// Bytes of the record's head.
    pub head_bytes: u32,
    pub size: u64,
    pub modified: Timestamp,
    pub etag: ETag,
    pub checksum: Option<(Algorithm, ChecksumScope)>,
    /// True if the bytes are in extents, not in the record.
    pub in_extents: bool,
    /// Other records of this version on disk: superseded ones and copies not yet removed.
    pub other_records: u32,
    pub slot: VersionSlot,
    /// The seq of the write that created the version: the newest version of a key is the one with the highest.
    pub creation_seq: u64,
    pub is_delete_marker: bool,
    /// The storage class, if it is not `STANDARD`. `None` in entries of earlier versions, which did not record it.
    pub storage_class: Option<String>,
}

/// Flags of an [`ObjectEntry`].
mod flag {
    pub const IN_EXTENTS: u8 = 1;
    pub const MD5_ETAG: u8 = 2;
    /// Fields of a version follow; without them it is the `null` version, created by `seq`.
    pub const VERSION: u8 = 4;
    pub const OWN_VERSION: u8 = 8;
    pub const DELETE_MARKER: u8 = 16;
    /// The name of a storage class follows.
    pub const STORAGE_CLASS: u8 = 32;
}

impl ObjectEntry {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_varint(&mut out, self.seq);
        self.location.put(&mut out);
        put_varint(&mut out, self.head_bytes.into());
        put_varint(&mut out, self.size);
        out.extend_from_slice(&self.modified.millis().to_le_bytes());
        put_varint(&mut out, self.other_records.into());
        let checksum_byte = |checksum: Option<(Algorithm, ChecksumScope)>| {
            checksum.map_or(0, |(algorithm, scope)| {
                algorithm_byte(algorithm) | if scope == ChecksumScope::Composite { 0x80 } else { 0 }
            })
        };
        let (original, later): (Option<_>, Option<_>) = match self.checksum {
            Some((algorithm, _)) if !is_original_algorithm(algorithm) => (None, self.checksum),
            original => (original, None),
        };
        out.push(checksum_byte(original));
        let md5 = self.etag.md5().filter(|md5| ETag::from_md5(md5) == self.etag);
        let has_version_fields =
            self.slot != VersionSlot::Null || self.creation_seq != self.seq || self.is_delete_marker;
        let flags = [
            (self.in_extents, flag::IN_EXTENTS),
            (md5.is_some(), flag::MD5_ETAG),
            (has_version_fields, flag::VERSION),
            (self.slot != VersionSlot::Null, flag::OWN_VERSION),
            (self.is_delete_marker, flag::DELETE_MARKER),
            (self.storage_class.is_some(), flag::STORAGE_CLASS),
        ];
        out.push(flags.iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag));
        match md5 {
            Some(md5) => out.extend_from_slice(&md5),
            None => put_block(&mut out, self.etag.as_str().as_bytes()),
        }
        if has_version_fields {
            put_varint(&mut out, self.creation_seq);
        }
        if let Some(class) = &self.storage_class {
            put_block(&mut out, class.as_bytes());
        }
        // A later algorithm is encoded last, where older programs have stopped reading.
        if later.is_some() {
            out.push(checksum_byte(later));
        }
        out
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        let mut decoder = Decoder(value);
        let seq = decoder.number()?;
        let location = RecordLocation::read(&mut decoder)?;
        let head_bytes = decoder.narrow()?;
        let size = decoder.number()?;
        let modified = Timestamp::from_millis(i64::from_le_bytes(decoder.array()?));
        let other_records = decoder.narrow()?;
        let checksum_from_byte = |byte: u8| {
            let scope = if byte & 0x80 == 0 { ChecksumScope::FullObject } else { ChecksumScope::Composite };
            algorithm_from_byte(byte & 0x7f).map(|algorithm| (algorithm, scope))
        };
        let mut checksum = match decoder.byte()? {
            0 => None,
            byte => Some(checksum_from_byte(byte)?),
        };
        let flags = decoder.byte()?;
        let etag = if flags & flag::MD5_ETAG == 0 {
            ETag::from_tag(&decoder.text()?)
        } else {
            ETag::from_md5(&decoder.array()?)
        };
        let creation_seq = if flags & flag::VERSION == 0 { seq } else { decoder.number()? };
        let storage_class = if flags & flag::STORAGE_CLASS == 0 { None } else { Some(decoder.text()?) };
        if !decoder.is_empty() {
            checksum = checksum_from_byte(decoder.byte()?).ok();
        }
        Ok(Self {
            seq,
            location,
            head_bytes,
            size,
            modified,
            etag,
            checksum,
            in_extents: flags & flag::IN_EXTENTS != 0,
            other_records,
            slot: if flags & flag::OWN_VERSION == 0 {
                VersionSlot::Null
            } else {
                VersionSlot::Own(creation_seq)
            },
            creation_seq,
            is_delete_marker: flags & flag::DELETE_MARKER != 0,
            storage_class,
        })
    }
}

/// The tombstone of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeletedEntry {
    pub seq: u64,
    pub location: RecordLocation,
    /// Other records of this version on disk. The tombstone may be removed when there are none.
    pub other_records: u32,
}

impl DeletedEntry {
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        put_varint(&mut out, self.seq);
        self.location.put(&mut out);
        put_varint(&mut out, self.other_records.into());
        out
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        let mut decoder = Decoder(value);
        Ok(Self {
            seq: decoder.number()?,
            location: RecordLocation::read(&mut decoder)?,
            other_records: decoder.narrow()?,
        })
    }
}

/// An upload in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UploadEntry {
    pub bucket: BucketId,
    pub key: String,
    pub location: RecordLocation,
}

impl UploadEntry {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24 + self.key.len());
        put_varint(&mut out, self.bucket.into());
        put_block(&mut out, self.key.as_bytes());
        self.location.put(&mut out);
        out
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        let mut decoder = Decoder(value);
        let (bucket, key) = (decoder.narrow()?, decoder.text()?);
        Ok(Self { bucket, key, location: RecordLocation::read(&mut decoder)? })
    }
}

/// The counts of an upload's records on disk. The upload may be in progress or ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UploadRecords {
    /// Records of its creation and its parts, including superseded ones and copies. The upload's end record may be
    /// removed when this is 0.
    pub count: u32,
    /// The highest seq of a part. Each received part raises it.
    pub newest_part_seq: u64,
}

impl UploadRecords {
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(12);
        put_varint(&mut out, self.count.into());
        put_varint(&mut out, self.newest_part_seq);
        out
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        let mut decoder = Decoder(value);
        Ok(Self { count: decoder.narrow()?, newest_part_seq: decoder.number()? })
    }
}

/// An uploaded part: the location of its record and that record's fields, which completion needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartEntry {
    pub seq: u64,
    pub location: RecordLocation,
    pub fields: Vec<u8>,
}

impl PartEntry {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24 + self.fields.len());
        put_varint(&mut out, self.seq);
        self.location.put(&mut out);
        put_block(&mut out, &self.fields);
        out
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        let mut decoder = Decoder(value);
        Ok(Self {
            seq: decoder.number()?,
            location: RecordLocation::read(&mut decoder)?,
            fields: decoder.block()?.to_vec(),
        })
    }
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BucketEntry {
    pub location: RecordLocation,
    pub created: Timestamp,
    pub name: String,
    /// The seq of its record. 0 in entries of earlier versions, which did not record it.
    pub seq: u64,
    pub versioning: Versioning,
}

impl BucketEntry {
    /// The bucket of this entry, whose number is in its key.
    pub fn into_bucket(self, key: &[u8]) -> Result<Bucket> {
        let id = keys::number(key)?.try_into().map_err(|_| malformed("a bucket id is out of range"))?;
        Ok(Bucket { id, name: self.name, created: self.created, versioning: self.versioning })
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.location.put(&mut out);
        out.extend_from_slice(&self.created.millis().to_le_bytes());
        put_block(&mut out, self.name.as_bytes());
        put_varint(&mut out, self.seq);
        out.push(versioning_byte(self.versioning));
        out
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        let mut decoder = Decoder(value);
        let location = RecordLocation::read(&mut decoder)?;
        let created = Timestamp::from_millis(i64::from_le_bytes(decoder.array()?));
        let name = decoder.text()?;
        let (mut seq, mut versioning) = (0, Versioning::Off);
        if !decoder.is_empty() {
            seq = decoder.number()?;
            versioning = versioning_from_byte(decoder.byte()?)?;
        }
        Ok(Self { location, created, name, seq, versioning })
    }
}

/// The state of a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    /// Bytes of records that are referred to. May be negative during a replay.
    pub live_bytes: i64,
    /// The records before this offset are uncounted (`other_records`, [`UploadRecords::count`]), because compaction is
    /// about to remove the segment.
    pub uncounted_end: u32,
    /// True if the segment has no live data any more. Its file may be removed once the index with this entry is
    /// durable.
    pub is_retired: bool,
    /// The end of the last record that was applied from this segment, or to which the index refers in it. A shorter
    /// file has lost records. 0 in entries of earlier versions, which did not record it.
    pub end: u32,
}

impl SegmentEntry {
    pub fn encode(self) -> Vec<u8> {
        let mut out = self.live_bytes.to_le_bytes().to_vec();
        put_varint(&mut out, self.uncounted_end.into());
        out.push(u8::from(self.is_retired));
        put_varint(&mut out, self.end.into());
        out
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        let mut decoder = Decoder(value);
        let live_bytes = i64::from_le_bytes(decoder.array()?);
        let (uncounted_end, is_retired) = (decoder.narrow()?, decoder.byte()? == 1);
        let end = if decoder.0.is_empty() { 0 } else { decoder.narrow()? };
        Ok(Self { live_bytes, uncounted_end, is_retired, end })
    }
}

/// The part of the log covered by the index, and the next numbers. It changes together with the entries, atomically.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Every log record before this position is in the index.
    pub covered_end: Position,
    /// No seq, extent id or unique ETag at or above this number was ever allocated.
    pub next_id: u64,
    /// No bucket number at or above this one was ever allocated.
    pub next_bucket: BucketId,
    /// No segment number at or above this one was allocated when this was written. Numbers of removed segments are
    /// not reused: a position identifies one record forever.
    pub next_segment: u32,
}

/// The stored `next_id` is this much higher than the next one to be allocated. So the ids of uncommitted writes are not
/// allocated again after a crash.
pub(crate) const ID_MARGIN: u64 = 1 << 32;

const COVERAGE_VERSION: u8 = 2;

impl Coverage {
    /// The coverage of an empty index.
    pub const EMPTY: Self =
        Self { covered_end: Position::new(0, 0), next_id: 1, next_bucket: 1, next_segment: 0 };

    /// Raises the next numbers to those of another coverage where they are higher.
    pub fn raise_numbers(&mut self, other: Self) {
        self.next_id = self.next_id.max(other.next_id);
        self.next_bucket = self.next_bucket.max(other.next_bucket);
        self.next_segment = self.next_segment.max(other.next_segment);
    }

    pub fn encode(self) -> Vec<u8> {
        let mut out = vec![COVERAGE_VERSION];
        put_varint(&mut out, self.covered_end.pack());
        put_varint(&mut out, self.next_id);
        put_varint(&mut out, self.next_bucket.into());
        put_varint(&mut out, self.next_segment.into());
        out
    }

    pub fn decode(value: &[u8]) -> Result<Self> {
        let mut decoder = Decoder(value);
        if decoder.byte()? != COVERAGE_VERSION {
            return Err(malformed("the index has another version"));
        }
        Ok(Self {
            covered_end: Position::unpack(decoder.number()?),
            next_id: decoder.number()?,
            next_bucket: decoder.narrow()?,
            next_segment: decoder.narrow()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(checksum: Option<(Algorithm, ChecksumScope)>, etag: ETag) -> ObjectEntry {
        ObjectEntry {
            seq: 7,
            location: RecordLocation { position: Position::new(1, 64), record_bytes: 4096 },
            head_bytes: 100,
            size: 1 << 40,
            modified: Timestamp::from_millis(-5),
            etag,
            checksum,
            in_extents: true,
            other_records: 2,
            slot: VersionSlot::Null,
            creation_seq: 7,
            is_delete_marker: false,
            storage_class: None,
        }
    }

    #[test]
    fn entries_round_trip_with_every_algorithm() {
        let scopes = [ChecksumScope::FullObject, ChecksumScope::Composite];
        let all =
            Algorithm::ALL.into_iter().flat_map(|algorithm| scopes.map(|scope| Some((algorithm, scope))));
        for checksum in all.chain([None]) {
            for etag in [ETag::from_md5(&[7; 16]), ETag::from_tag("any-3")] {
                let entry = entry(checksum, etag);
                for (slot, creation_seq, is_delete_marker) in [
                    (VersionSlot::Null, 7, false),
                    (VersionSlot::Null, 5, false),
                    (VersionSlot::Null, 7, true),
                    (VersionSlot::Own(5), 5, false),
                    (VersionSlot::Own(7), 7, true),
                ] {
                    for storage_class in [None, Some("STANDARD_IA".to_owned())] {
                        let version = ObjectEntry { slot, creation_seq, is_delete_marker, ..entry.clone() };
                        let entry = ObjectEntry { storage_class, ..version };
                        assert_eq!(ObjectEntry::decode(&entry.encode()).unwrap(), entry);
                    }
                }
            }
        }
    }

    /// A program that knows only five algorithms reads up to the entity tag.
    #[test]
    fn later_algorithms_are_encoded_last() {
        let without = entry(None, ETag::from_md5(&[7; 16])).encode();
        let later = Some((Algorithm::XxHash64, ChecksumScope::Composite));
        let with = entry(later, ETag::from_md5(&[7; 16])).encode();
        assert_eq!(with[..without.len()], without);
        assert_eq!(with[without.len()..], [0x88]);
        let unknown = [&without[..], &[99]].concat();
        assert_eq!(ObjectEntry::decode(&unknown).unwrap().checksum, None);
    }
}
