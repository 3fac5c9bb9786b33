//! The contents of records: the fields of each kind, encoded as tagged fields. Tags are part of the format and are
//! never reused; `docs/format.md` lists them.

mod metadata;
mod part;
mod transformed;

use tradewind_core::checksum::ChecksumScope;
use tradewind_core::error::Result;
use tradewind_core::{Algorithm, Checksum, ETag, Metadata, Timestamp, VersionId, Versioning};

pub(crate) use self::part::{ExtentLocation, ExtentRun, Part, PartSummary};
pub(crate) use self::transformed::TransformedBytes;

use super::fields::{FieldReader, FieldWriter, malformed};
use super::frame::RecordKind;
use super::position::Position;
use super::record::metadata::{put_metadata, read_metadata_field};

/// Number of a bucket; never reused.
pub(crate) type BucketId = u32;
/// Number of an upload: the seq of its creation.
pub(crate) type UploadSeq = u64;

/// The contents of a record, without its payload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    BucketCreated(Bucket),
    BucketDeleted {
        id: BucketId,
    },
    Object(Box<Object>),
    Tombstone(VersionName),
    Extent {
        id: u64,
    },
    UploadCreated(Box<Upload>),
    Part(Box<Part>),
    UploadEnded {
        upload: UploadSeq,
    },
    /// The bytes at this position do not count: torn by a crash, or an accepted end ([`Position::accepted_end`]).
    Void {
        at: Position,
    },
}

/// A version of a key. Among the records of one slot the one with the highest seq counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum VersionSlot {
    /// The version that was written while versioning was off or suspended.
    #[default]
    Null,
    /// The version created by the write with this seq.
    Own(u64),
}

/// A bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub id: BucketId,
    pub name: String,
    pub created: Timestamp,
    pub versioning: Versioning,
}

/// An object, without the bytes of its extents.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Object {
    pub bucket: BucketId,
    pub key: String,
    pub size: u64,
    pub modified: Timestamp,
    pub etag: ETag,
    pub metadata: Metadata,
    pub checksums: Vec<Checksum>,
    pub scope: ChecksumScope,
    pub content: ObjectContent,
    /// The parts of which it was assembled, in order.
    pub parts: Vec<PartSummary>,
    /// The upload that this object completes.
    pub upload: Option<UploadSeq>,
    /// The seq of the object's previous record, whose bytes this record reuses, if only metadata changed.
    pub rewritten_seq: Option<u64>,
    /// True for a version with an id of its own, false for the `null` version.
    pub is_versioned: bool,
    /// The seq of the write that created this version, if this record only rewrites it.
    pub creation_seq: Option<u64>,
    /// True for a delete marker, which has neither bytes nor metadata.
    pub is_delete_marker: bool,
    /// The stored bytes if they were transformed in one write; those of parts are in `parts`.
    pub transformed: Option<TransformedBytes>,
}

/// Location of an object's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectContent {
    /// In the record's own payload.
    Inline,
    /// In extents: runs in order of the bytes.
    Extents {
        runs: Vec<ExtentRun>,
        /// The extents to which this record is the first to refer, and their locations when it was written.
        new_extents: Vec<ExtentLocation>,
    },
}

/// A created upload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Upload {
    pub bucket: BucketId,
    pub key: String,
    pub initiated: Timestamp,
    pub metadata: Metadata,
    pub checksum: Option<(Algorithm, ChecksumScope)>,
}

mod tag {
    pub const ID: u8 = 1;
    pub const NAME: u8 = 2;
    pub const TIME: u8 = 3;
    pub const BUCKET: u8 = 4;
    pub const KEY: u8 = 5;
    pub const SIZE: u8 = 6;
    pub const ETAG_MD5: u8 = 7;
    pub const CHECKSUM: u8 = 8;
    pub const SCOPE: u8 = 9;
    pub const RUNS: u8 = 10;
    pub const NEW_EXTENTS: u8 = 11;
    pub const PARTS: u8 = 12;
    pub const UPLOAD: u8 = 13;
    pub const REWRITES: u8 = 14;
    pub const NUMBER: u8 = 15;
    pub const UPLOAD_CHECKSUM: u8 = 16;
    pub const ETAG_TEXT: u8 = 17;
    pub const LATER_CHECKSUMS: u8 = 18;
    pub const LATER_PART_CHECKSUMS: u8 = 19;
    pub const LATER_UPLOAD_CHECKSUM: u8 = 20;
    pub const OWN_VERSION: u8 = 21;
    pub const CREATION: u8 = 22;
    pub const DELETE_MARKER: u8 = 23;
    pub const VERSIONING: u8 = 24;
    pub const TRANSFORMED: u8 = 25;
    pub const TRANSFORMED_PARTS: u8 = 26;
    // 32 and up: `metadata`.
}

impl Record {
    pub const fn kind(&self) -> RecordKind {
        match self {
            Self::BucketCreated(_) => RecordKind::BucketCreated,
            Self::BucketDeleted { .. } => RecordKind::BucketDeleted,
            Self::Object(_) => RecordKind::Object,
            Self::Tombstone(_) => RecordKind::Tombstone,
            Self::Extent { .. } => RecordKind::Extent,
            Self::UploadCreated(_) => RecordKind::UploadCreated,
            Self::Part(_) => RecordKind::Part,
            Self::UploadEnded { .. } => RecordKind::UploadEnded,
            Self::Void { .. } => RecordKind::Void,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        match self {
            Self::BucketCreated(bucket) => {
                out.number(tag::ID, bucket.id.into()).text(tag::NAME, &bucket.name);
                put_time(&mut out, bucket.created);
                if bucket.versioning != Versioning::Off {
                    out.number(tag::VERSIONING, versioning_byte(bucket.versioning).into());
                }
            }
            Self::BucketDeleted { id } => {
                out.number(tag::ID, (*id).into());
            }
            Self::Object(object) => object.encode(&mut out),
            Self::Tombstone(VersionName { bucket, key, slot }) => {
                out.number(tag::BUCKET, (*bucket).into()).text(tag::KEY, key);
                if let VersionSlot::Own(seq) = slot {
                    out.number(tag::OWN_VERSION, 1).number(tag::CREATION, *seq);
                }
            }
            Self::Extent { id } => {
                out.number(tag::ID, *id);
            }
            Self::UploadCreated(upload) => upload.encode(&mut out),
            Self::Part(part) => part.encode(&mut out),
            Self::UploadEnded { upload } => {
                out.number(tag::UPLOAD, *upload);
            }
            Self::Void { at } => {
                out.number(tag::ID, at.pack());
            }
        }
        out.finish()
    }

    pub fn decode(kind: RecordKind, fields: &[u8]) -> Result<Self> {
        let number_field = |wanted_tag: u8| -> Result<u64> {
            let mut reader = FieldReader::new(fields);
            while let Some((tag, mut value)) = reader.next()? {
                if tag == wanted_tag {
                    return value.number();
                }
            }
            Err(malformed("a field is missing"))
        };
        let narrow = |value: u64| u32::try_from(value).map_err(|_| malformed("a bucket id is out of range"));
        Ok(match kind {
            RecordKind::BucketCreated => Self::BucketCreated(Bucket::decode(fields)?),
            RecordKind::BucketDeleted => Self::BucketDeleted { id: narrow(number_field(tag::ID)?)? },
            RecordKind::Object => Self::Object(Box::new(Object::decode(fields)?)),
            RecordKind::Tombstone => Self::Tombstone(VersionName::decode(fields, 0)?),
            RecordKind::Extent => Self::Extent { id: number_field(tag::ID)? },
            RecordKind::UploadCreated => Self::UploadCreated(Box::new(Upload::decode(fields)?)),
            RecordKind::Part => Self::Part(Box::new(Part::decode(fields)?)),
            RecordKind::UploadEnded => Self::UploadEnded { upload: number_field(tag::UPLOAD)? },
            RecordKind::Void => Self::Void { at: Position::unpack(number_field(tag::ID)?) },
        })
    }
}

impl VersionSlot {
    /// The slot of a version id; `None` if no version of a store has this id.
    pub fn from_id(version: &VersionId) -> Option<Self> {
        match version {
            VersionId::Null => Some(Self::Null),
            VersionId::Id(_) => version.number().filter(|seq| (1..1 << 63).contains(seq)).map(Self::Own),
        }
    }

    /// The version id of the slot.
    pub fn id(self) -> VersionId {
        match self {
            Self::Null => VersionId::Null,
            Self::Own(seq) => VersionId::from_number(seq),
        }
    }
}

impl Bucket {
    /// The id of a version as reported: none in a bucket whose versioning was never enabled.
    pub fn version_id(&self, slot: VersionSlot) -> Option<VersionId> {
        (self.versioning != Versioning::Off).then(|| slot.id())
    }

    fn decode(fields: &[u8]) -> Result<Self> {
        let mut bucket =
            Self { id: 0, name: String::new(), created: Timestamp::default(), versioning: Versioning::Off };
        let mut reader = FieldReader::new(fields);
        while let Some((tag, mut value)) = reader.next()? {
            match tag {
                tag::ID => bucket.id = value.narrow()?,
                tag::NAME => bucket.name = value.rest_as_text()?,
                tag::TIME => bucket.created = read_time(value)?,
                tag::VERSIONING => bucket.versioning = versioning_from_byte(value.byte()?)?,
                _ => {}
            }
        }
        Ok(bucket)
    }
}

impl Default for Object {
    /// An empty object: the defaults of missing fields.
    fn default() -> Self {
        Self {
            bucket: 0,
            key: String::new(),
            size: 0,
            modified: Timestamp::default(),
            etag: ETag::from_text(""),
            metadata: Metadata::default(),
            checksums: Vec::new(),
            scope: ChecksumScope::FullObject,
            content: ObjectContent::Inline,
            parts: Vec::new(),
            upload: None,
            rewritten_seq: None,
            is_versioned: false,
            creation_seq: None,
            is_delete_marker: false,
            transformed: None,
        }
    }
}

impl Object {
    /// The seq of the write that created this version, given the seq of this record.
    pub fn creation(&self, seq: u64) -> u64 {
        self.creation_seq.unwrap_or(seq)
    }

    /// The slot of this version, given the seq of its record.
    pub fn slot(&self, seq: u64) -> VersionSlot {
        if self.is_versioned { VersionSlot::Own(self.creation(seq)) } else { VersionSlot::Null }
    }

    /// Returns true if at least a part of the bytes is transformed.
    pub fn is_transformed(&self) -> bool {
        self.transformed.is_some() || self.parts.iter().any(|part| part.transformed.is_some())
    }

    /// The number of stored bytes, which is not `size` if they are transformed.
    pub fn stored_bytes(&self) -> u64 {
        match &self.transformed {
            Some(transformed) => transformed.size,
            None if self.is_transformed() => self.parts.iter().map(PartSummary::stored_bytes).sum(),
            None => self.size,
        }
    }

    fn encode(&self, out: &mut FieldWriter) {
        out.number(tag::BUCKET, self.bucket.into()).text(tag::KEY, &self.key).number(tag::SIZE, self.size);
        put_time(out, self.modified);
        put_etag(out, &self.etag);
        for checksum in &self.checksums {
            put_checksum(out, checksum);
        }
        if self.scope == ChecksumScope::Composite {
            out.number(tag::SCOPE, 1);
        }
        if let ObjectContent::Extents { runs, new_extents } = &self.content {
            out.bytes(tag::RUNS, &ExtentRun::encode_all(runs));
            if !new_extents.is_empty() {
                out.bytes(tag::NEW_EXTENTS, &ExtentLocation::encode_all(new_extents));
            }
        }
        if !self.parts.is_empty() {
            out.bytes(tag::PARTS, &PartSummary::encode_all(&self.parts));
            let more = PartSummary::encode_more(&self.parts);
            if !more.is_empty() {
                out.bytes(tag::LATER_PART_CHECKSUMS, &more);
            }
            let transformed = TransformedBytes::encode_parts(&self.parts);
            if !transformed.is_empty() {
                out.bytes(tag::TRANSFORMED_PARTS, &transformed);
            }
        }
        if let Some(upload) = self.upload {
            out.number(tag::UPLOAD, upload);
        }
        if let Some(seq) = self.rewritten_seq {
            out.number(tag::REWRITES, seq);
        }
        if self.is_versioned {
            out.number(tag::OWN_VERSION, 1);
        }
        if let Some(seq) = self.creation_seq {
            out.number(tag::CREATION, seq);
        }
        if self.is_delete_marker {
            out.number(tag::DELETE_MARKER, 1);
        }
        if let Some(transformed) = &self.transformed {
            out.bytes(tag::TRANSFORMED, &transformed.encode());
        }
        put_metadata(out, &self.metadata);
    }

    fn decode(fields: &[u8]) -> Result<Self> {
        let mut object = Self::default();
        let mut runs = None;
        let mut new_extents = Vec::new();
        let mut reader = FieldReader::new(fields);
        while let Some((tag, mut value)) = reader.next()? {
            match tag {
                tag::BUCKET => object.bucket = value.narrow()?,
                tag::KEY => object.key = value.rest_as_text()?,
                tag::SIZE => object.size = value.number()?,
                tag::TIME => object.modified = read_time(value)?,
                tag::ETAG_MD5 => object.etag = ETag::from_md5(&value.array()?),
                tag::ETAG_TEXT => object.etag = ETag::from_tag(&value.rest_as_text()?),
                tag::CHECKSUM | tag::LATER_CHECKSUMS => object.checksums.extend(read_checksum(tag, value)?),
                tag::SCOPE => object.scope = ChecksumScope::Composite,
                tag::RUNS => runs = Some(ExtentRun::decode_all(value)?),
                tag::NEW_EXTENTS => new_extents = ExtentLocation::decode_all(value)?,
                tag::PARTS => object.parts = PartSummary::decode_all(value)?,
                tag::LATER_PART_CHECKSUMS => PartSummary::decode_more(&mut object.parts, value)?,
                tag::UPLOAD => object.upload = Some(value.number()?),
                tag::REWRITES => object.rewritten_seq = Some(value.number()?),
                tag::OWN_VERSION => object.is_versioned = true,
                tag::CREATION => object.creation_seq = Some(value.number()?),
                tag::DELETE_MARKER => object.is_delete_marker = true,
                tag::TRANSFORMED => object.transformed = Some(TransformedBytes::decode(value)?),
                tag::TRANSFORMED_PARTS => TransformedBytes::decode_parts(&mut object.parts, value)?,
                other => read_metadata_field(&mut object.metadata, other, value)?,
            }
        }
        if let Some(runs) = runs {
            object.content = ObjectContent::Extents { runs, new_extents };
        }
        Ok(object)
    }
}

impl Upload {
    fn encode(&self, out: &mut FieldWriter) {
        out.number(tag::BUCKET, self.bucket.into()).text(tag::KEY, &self.key);
        put_time(out, self.initiated);
        if let Some((algorithm, scope)) = self.checksum {
            let value = [algorithm_byte(algorithm), u8::from(scope == ChecksumScope::Composite)];
            let tag = if is_original_algorithm(algorithm) {
                tag::UPLOAD_CHECKSUM
            } else {
                tag::LATER_UPLOAD_CHECKSUM
            };
            out.bytes(tag, &value);
        }
        put_metadata(out, &self.metadata);
    }

    fn decode(fields: &[u8]) -> Result<Self> {
        let mut upload = Self {
            bucket: 0,
            key: String::new(),
            initiated: Timestamp::default(),
            metadata: Metadata::default(),
            checksum: None,
        };
        let mut reader = FieldReader::new(fields);
        while let Some((tag, mut value)) = reader.next()? {
            match tag {
                tag::BUCKET => upload.bucket = value.narrow()?,
                tag::KEY => upload.key = value.rest_as_text()?,
                tag::TIME => upload.initiated = read_time(value)?,
                tag::UPLOAD_CHECKSUM | tag::LATER_UPLOAD_CHECKSUM => {
                    let algorithm = algorithm_from_byte(value.byte()?);
                    let composite = value.byte()? == 1;
                    let scope = if composite { ChecksumScope::Composite } else { ChecksumScope::FullObject };
                    upload.checksum = known_algorithm(tag, algorithm)?.map(|algorithm| (algorithm, scope));
                }
                other => read_metadata_field(&mut upload.metadata, other, value)?,
            }
        }
        Ok(upload)
    }
}

/// The version that an object or tombstone record is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VersionName {
    pub bucket: BucketId,
    pub key: String,
    pub slot: VersionSlot,
}

impl VersionName {
    /// `bucket/key`, and the id of a version other than `null`.
    pub fn describe(&self, bucket: &str) -> String {
        match self.slot {
            VersionSlot::Null => format!("{bucket}/{}", self.key),
            slot @ VersionSlot::Own(_) => format!("{bucket}/{} (version {})", self.key, slot.id()),
        }
    }

    /// Decodes the name from the fields of a record with this seq.
    pub fn decode(fields: &[u8], seq: u64) -> Result<Self> {
        let (bucket, key) = decode_bucket_and_key(fields)?;
        let (mut is_versioned, mut creation_seq) = (false, None);
        let mut reader = FieldReader::new(fields);
        while let Some((tag, mut value)) = reader.next()? {
            match tag {
                tag::OWN_VERSION => is_versioned = true,
                tag::CREATION => creation_seq = Some(value.number()?),
                _ => {}
            }
        }
        let slot =
            if is_versioned { VersionSlot::Own(creation_seq.unwrap_or(seq)) } else { VersionSlot::Null };
        Ok(Self { bucket, key, slot })
    }
}

/// The number of a versioning state, never reused. 0 is off.
pub(crate) const fn versioning_byte(versioning: Versioning) -> u8 {
    match versioning {
        Versioning::Off => 0,
        Versioning::Enabled => 1,
        Versioning::Suspended => 2,
    }
}

pub(crate) fn versioning_from_byte(byte: u8) -> Result<Versioning> {
    match byte {
        0 => Ok(Versioning::Off),
        1 => Ok(Versioning::Enabled),
        2 => Ok(Versioning::Suspended),
        _ => Err(malformed("a bucket's versioning is unknown")),
    }
}

/// The bucket and the key of an object, tombstone or upload record.
pub(crate) fn decode_bucket_and_key(fields: &[u8]) -> Result<(BucketId, String)> {
    let (mut bucket, mut key) = (None, None);
    let mut reader = FieldReader::new(fields);
    while let Some((tag, mut value)) = reader.next()? {
        match tag {
            tag::BUCKET => bucket = Some(value.narrow()?),
            tag::KEY => key = Some(value.rest_as_text()?),
            _ => {}
        }
        if bucket.is_some() && key.is_some() {
            break;
        }
    }
    bucket.zip(key).ok_or_else(|| malformed("bucket or key is missing"))
}

fn put_time(out: &mut FieldWriter, time: Timestamp) {
    out.bytes(tag::TIME, &time.millis().to_le_bytes());
}

fn read_time(mut value: super::fields::Decoder<'_>) -> Result<Timestamp> {
    Ok(Timestamp::from_millis(i64::from_le_bytes(value.array()?)))
}

/// An MD5 tag takes 16 bytes; any other is text under a tag of its own.
fn put_etag(out: &mut FieldWriter, etag: &ETag) {
    match etag.md5() {
        Some(md5) if ETag::from_md5(&md5) == *etag => out.bytes(tag::ETAG_MD5, &md5),
        _ => out.text(tag::ETAG_TEXT, etag.as_str()),
    };
}

/// Later algorithms have a tag of their own, which older readers skip.
fn put_checksum(out: &mut FieldWriter, checksum: &Checksum) {
    let algorithm = checksum.algorithm();
    let tag = if is_original_algorithm(algorithm) { tag::CHECKSUM } else { tag::LATER_CHECKSUMS };
    out.bytes(tag, &[&[algorithm_byte(algorithm)], checksum.bytes()].concat());
}

/// A checksum; `None` for an unknown algorithm of a later program.
fn read_checksum(tag: u8, mut value: super::fields::Decoder<'_>) -> Result<Option<Checksum>> {
    let algorithm = known_algorithm(tag, algorithm_from_byte(value.byte()?))?;
    algorithm.map(|algorithm| checksum_of(algorithm, value.0)).transpose()
}

fn checksum_of(algorithm: Algorithm, value: &[u8]) -> Result<Checksum> {
    Checksum::new(algorithm, value).map_err(|_| malformed("a checksum has the wrong length"))
}

/// Checks that a field may hold an algorithm: each tag is either for the original algorithms or for later ones. `None`
/// for an unknown later algorithm, or an original one under a tag for later ones; both are skipped.
fn known_algorithm(tag: u8, algorithm: Result<Algorithm>) -> Result<Option<Algorithm>> {
    match tag {
        tag::LATER_CHECKSUMS | tag::LATER_PART_CHECKSUMS | tag::LATER_UPLOAD_CHECKSUM => {
            Ok(algorithm.ok().filter(|algorithm| !is_original_algorithm(*algorithm)))
        }
        _ => match algorithm? {
            algorithm if is_original_algorithm(algorithm) => Ok(Some(algorithm)),
            _ => Err(malformed("a field of the original checksum algorithms has a later one")),
        },
    }
}

/// The number of an algorithm, never reused. 0 means none; 0x80 and above are not used.
pub(crate) const fn algorithm_byte(algorithm: Algorithm) -> u8 {
    match algorithm {
        Algorithm::Crc32 => 1,
        Algorithm::Crc32c => 2,
        Algorithm::Crc64Nvme => 3,
        Algorithm::Sha1 => 4,
        Algorithm::Sha256 => 5,
        Algorithm::Sha512 => 6,
        Algorithm::Md5 => 7,
        Algorithm::XxHash64 => 8,
        Algorithm::XxHash3 => 9,
        Algorithm::XxHash128 => 10,
    }
}

/// Returns true for the algorithms of the first version of the format, which every program knows. The tags of that
/// version hold only these.
pub(crate) const fn is_original_algorithm(algorithm: Algorithm) -> bool {
    algorithm_byte(algorithm) <= 5
}

pub(crate) fn algorithm_from_byte(byte: u8) -> Result<Algorithm> {
    Algorithm::ALL
        .into_iter()
        .find(|a| algorithm_byte(*a) == byte)
        .ok_or_else(|| malformed("a checksum algorithm is unknown"))
}

#[cfg(test)]
mod tests;
