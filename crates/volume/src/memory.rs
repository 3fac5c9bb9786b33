//! What is remembered of an upload whose source cannot be asked which of its bytes are there: an object of another
//! store, or one that is stored while it is made. One that was cut off goes on where it was.

use tradewind_core::checksum::{Hasher, crc64nvme};
use tradewind_core::multipart::{CompletePart, PartInfo, PartNumber, UploadId};
use tradewind_core::{Checksum, ETag, ObjectInfo, Timestamp};
use tradewind_model::plan::Plan;

use super::buffers::BUFFER_BYTES;
use super::source::Source;

/// Remembers one copy at a time.
pub trait Memory: Send + Sync {
    /// The copy that was begun before.
    fn earlier(&self) -> Option<Begun>;

    /// One begins, in place of any before it. True where it is remembered: then what fails for now is left at the
    /// destination, for it to go on another time.
    fn begun(&self, begun: &Begun) -> bool;

    /// A part of it is at the destination.
    fn stored(&self, part: &CopiedPart);

    /// Nobody goes on with it: it is done, or was given up.
    fn over(&self);
}

/// A copy under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// What is copied. `None`: it is made, and each of its parts is compared with what was made before.
    pub version: Option<Version>,
    /// What becomes of it at the destination.
    pub upload: UploadId,
    /// The size of its parts.
    pub part_bytes: u64,
    /// Those that were stored.
    pub parts: Vec<CopiedPart>,
}

/// A version of the source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Its tag.
    pub etag: ETag,
    /// When it was written: other metadata may have the same tag.
    pub modified: Timestamp,
    /// Bytes.
    pub size: u64,
    /// Of its tags, which can be changed without making it another version.
    pub tags: u64,
}

impl Version {
    /// The one that is described.
    pub(crate) fn of(info: &ObjectInfo) -> Self {
        let mut tags = Vec::new();
        for (name, value) in info.metadata.tags.pairs() {
            // Neither holds a zero byte.
            tags.extend_from_slice(format!("{name}\0{value}\0").as_bytes());
        }
        let (etag, tags) = (info.etag.clone(), crc64nvme(&tags));
        Self { etag, modified: info.modified, size: info.size, tags }
    }
}

/// A part that is stored: what completes the upload, and its length.
pub(crate) type StoredPart = (CompletePart, u64);

/// A part that was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedPart {
    /// Its number.
    pub number: PartNumber,
    /// Bytes.
    pub length: u64,
    /// The tag that the destination gave it.
    pub etag: ETag,
    /// Of the bytes that passed.
    pub checksum: Checksum,
}

impl CopiedPart {
    /// Whether it is of these bytes, all of them.
    pub(crate) fn is_of(&self, source: &impl Source, length: u64) -> bool {
        let mut hasher = Hasher::new(self.checksum.algorithm());
        let mut buffer = vec![0; BUFFER_BYTES];
        self.length == length
            && Plan::chunks(length, BUFFER_BYTES as u64).all(|(offset, length)| {
                let piece = &mut buffer[..usize::try_from(length).unwrap_or(BUFFER_BYTES)];
                let is_read = source.read_at(offset, piece).is_ok();
                hasher.update(piece);
                is_read
            })
            && hasher.finish() == self.checksum
    }

    /// What completes the upload with it, and its length.
    pub(crate) fn stored(&self) -> StoredPart {
        let Self { number, ref etag, checksum, length } = *self;
        (CompletePart { number, etag: etag.clone(), checksum: Some(checksum) }, length)
    }

    /// Whether it is what the destination has: of another transfer's part the tag is another.
    pub(crate) fn is(&self, there: &PartInfo) -> bool {
        let mut same_kind = there.checksums.iter().filter(|c| c.algorithm() == self.checksum.algorithm());
        (self.number, self.length, &self.etag) == (there.number, there.size, &there.etag)
            && same_kind.all(|checksum| *checksum == self.checksum)
    }
}
