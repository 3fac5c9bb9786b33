//! Checkpoints of multipart uploads whose source cannot be compared with the stored parts: an object of another store,
//! or a stream. An interrupted upload resumes from its checkpoint.

use tradewind_core::checksum::{Hasher, crc64nvme};
use tradewind_core::multipart::{CompletePart, PartInfo, PartNumber, UploadId};
use tradewind_core::object::Committed;
use tradewind_core::{Checksum, ETag, ObjectInfo, Timestamp};
use tradewind_model::plan::split_evenly;

use super::buffer_pool::BUFFER_BYTES;
use super::upload_source::UploadSource;

/// Persistent checkpoint of at most one upload.
pub trait UploadCheckpoint: Send + Sync {
    /// The upload in progress according to the checkpoint, if any.
    fn load(&self) -> Option<UploadState>;

    /// Starts a checkpoint, which replaces any earlier one. Returns true if it was persisted: a resumable failure
    /// ([`Error::is_resumable`](tradewind_core::error::Error::is_resumable)) then leaves the upload in the store, to be
    /// resumed later.
    fn start(&self, state: &UploadState) -> bool;

    /// Adds a part that has been stored.
    fn part_stored(&self, part: &CheckpointedPart);

    /// Removes the checkpoint: the upload was completed or aborted.
    fn clear(&self);
}

/// The state of an upload in progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadState {
    /// The version of the object being copied. `None` for a stream, whose parts are compared with the newly produced
    /// bytes.
    pub version: Option<SourceVersion>,
    /// The multipart upload at the destination.
    pub upload: UploadId,
    /// Part size.
    pub part_bytes: u64,
    /// The stored parts, in the order in which they were recorded. The last one of a number is valid.
    pub parts: Vec<CheckpointedPart>,
}

/// A version of a source object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceVersion {
    /// ETag.
    pub etag: ETag,
    /// Last-modified time: a change of metadata alone may leave the ETag unchanged.
    pub modified: Timestamp,
    /// Size in bytes.
    pub size: u64,
    /// Checksum of its tags, which may change while ETag and last-modified time do not.
    pub tags: u64,
}

impl SourceVersion {
    /// The version that `info` describes.
    #[must_use]
    pub fn from_info(info: &ObjectInfo) -> Self {
        let mut tags = Vec::new();
        for (name, value) in info.metadata.tags.pairs() {
            // Neither contains a zero byte.
            tags.extend_from_slice(format!("{name}\0{value}\0").as_bytes());
        }
        let (etag, tags) = (info.etag.clone(), crc64nvme(&tags));
        Self { etag, modified: info.modified, size: info.size, tags }
    }

    /// Returns true if `info` describes this version, as far as each response to a HEAD shows it. Tags are not compared.
    #[must_use]
    pub fn is_current(&self, info: &ObjectInfo) -> bool {
        (&self.etag, self.modified, self.size) == (&info.etag, info.modified, info.size)
    }
}

/// A finished copy of an object.
#[derive(Debug)]
pub struct FinishedCopy {
    /// The new object.
    pub committed: Committed,
    /// The version of the source that was found first. The copy within a store may have another one if the source was
    /// replaced before it began.
    pub source: SourceVersion,
}

/// A stored part as listed in the completion, and its length.
pub(crate) type StoredPart = (CompletePart, u64);

/// A checkpointed part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointedPart {
    /// Part number.
    pub number: PartNumber,
    /// Length in bytes.
    pub length: u64,
    /// ETag that the destination assigned.
    pub etag: ETag,
    /// Checksum of the bytes sent.
    pub checksum: Checksum,
}

impl CheckpointedPart {
    /// Returns true if the part consists of exactly the first `length` bytes of `source`.
    pub(crate) fn matches_source(&self, source: &impl UploadSource, length: u64) -> bool {
        let mut hasher = Hasher::new(self.checksum.algorithm());
        let mut buffer = vec![0; BUFFER_BYTES];
        self.length == length
            && split_evenly(length, BUFFER_BYTES as u64).all(|(offset, length)| {
                let piece = &mut buffer[..usize::try_from(length).unwrap_or(BUFFER_BYTES)];
                let is_read = source.read_at(offset, piece).is_ok();
                hasher.update(piece);
                is_read
            })
            && hasher.finish() == self.checksum
    }

    /// The part as listed in the completion, and its length.
    pub(crate) fn to_stored(&self) -> StoredPart {
        let Self { number, ref etag, checksum, length } = *self;
        (CompletePart { number, etag: etag.clone(), checksum: Some(checksum) }, length)
    }

    /// Returns true if the destination still has this part. One stored by another transfer has another ETag.
    pub(crate) fn matches_listed(&self, listed: &PartInfo) -> bool {
        let mut same_kind = listed.checksums.iter().filter(|c| c.algorithm() == self.checksum.algorithm());
        (self.number, self.length, &self.etag) == (listed.number, listed.size, &listed.etag)
            && same_kind.all(|checksum| *checksum == self.checksum)
    }
}
