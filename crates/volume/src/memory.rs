//! What is remembered of a copy between two stores, so that one that was cut off goes on where it was.

use tradewind_core::checksum::crc64nvme;
use tradewind_core::multipart::{PartInfo, PartNumber, UploadId};
use tradewind_core::{Checksum, ETag, ObjectInfo, Timestamp};

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
    /// What is copied.
    pub version: Version,
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
    /// Whether it is what the destination has: of another transfer's part the tag is another.
    pub(crate) fn is(&self, there: &PartInfo) -> bool {
        let mut same_kind = there.checksums.iter().filter(|c| c.algorithm() == self.checksum.algorithm());
        (self.number, self.length, &self.etag) == (there.number, there.size, &there.etag)
            && same_kind.all(|checksum| *checksum == self.checksum)
    }
}
