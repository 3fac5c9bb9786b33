//! Objects whose stored bytes are not the bytes that clients see: a layer compressed or encrypted them.
//!
//! The layer writes the transformed bytes and declares the [`PlainAttributes`] at the commit ([`Reported`]). The store
//! reports these in responses and listings, evaluates conditions on them, and keeps the layer's description of the
//! transformation. Needs [`Capabilities::reported_attributes`](crate::store::Capabilities::reported_attributes).

use std::sync::Arc;

use crate::checksum::Checksum;
use crate::error::{Error, Reason, Result};
use crate::multipart::PartNumber;
use crate::object::ETag;

/// The longest description of a transformation.
pub const MAX_DESCRIPTION_BYTES: usize = 1024;

/// Attributes of an object or part that clients see: those of the bytes before a transformation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainAttributes {
    /// Number of bytes.
    pub size: u64,
    /// Entity tag.
    pub etag: ETag,
    /// Checksums of the bytes, in the order in which they are reported.
    pub checksums: Vec<Checksum>,
}

/// The declaration of a layer at the commit of transformed bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The attributes to report.
    pub plain: PlainAttributes,
    /// The parameters of the transformation: 1 to [`MAX_DESCRIPTION_BYTES`] bytes that mean nothing to the store.
    pub description: Vec<u8>,
}

impl Reported {
    /// Fails with [`Defect`](Reason::Defect) if the description has an illegal length.
    pub fn check(&self) -> Result<()> {
        check_description(&self.description)
    }
}

fn check_description(description: &[u8]) -> Result<()> {
    match description.len() {
        1..=MAX_DESCRIPTION_BYTES => Ok(()),
        bytes => Err(Error::new(
            Reason::Defect,
            format!(
                "the description of a transformation has {bytes} bytes, not 1 to {MAX_DESCRIPTION_BYTES}"
            ),
        )),
    }
}

/// The stored bytes of an object of which at least a part is transformed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredForm {
    /// The segments, in the order of their bytes.
    pub segments: Arc<[StoredSegment]>,
}

impl StoredForm {
    /// The number of stored bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.segments.iter().map(|segment| segment.stored_bytes).sum()
    }
}

/// A run of bytes that were transformed in one write: an object, or one part of a multipart upload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSegment {
    /// The part; `None` for an object that was written at once.
    pub part: Option<PartNumber>,
    /// Number of bytes before the transformation.
    pub plain_bytes: u64,
    /// Number of bytes stored.
    pub stored_bytes: u64,
    /// [`Reported::description`]; empty if the bytes were not transformed.
    pub description: Vec<u8>,
}

/// A change of descriptions by the layer that wrote them, see [`ObjectStore::redescribe`](crate::ObjectStore::redescribe).
pub trait DescriptionChange: Send + Sync {
    /// The new description of a transformed segment: 1 to [`MAX_DESCRIPTION_BYTES`]. `None` keeps the old one. It is asked
    /// again if the object changes meanwhile.
    fn new_description(&self, segment: &StoredSegment) -> Option<Vec<u8>>;
}

/// The result of a change of descriptions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Redescribed {
    /// The segments after the change, with those that are not transformed. Empty if none is.
    pub segments: Vec<StoredSegment>,
    /// Segments whose description was changed.
    pub changed: usize,
}

impl Redescribed {
    /// Applies a change to segments. Fails with [`Defect`](Reason::Defect) if a new description has an illegal length.
    pub fn apply(mut segments: Vec<StoredSegment>, change: &dyn DescriptionChange) -> Result<Self> {
        let mut changed = 0;
        for segment in segments.iter_mut().filter(|segment| !segment.description.is_empty()) {
            let Some(description) = change.new_description(segment) else { continue };
            check_description(&description)?;
            if description != segment.description {
                segment.description = description;
                changed += 1;
            }
        }
        Ok(Self { segments, changed })
    }
}

/// The error of a read of transformed bytes without the layer that transformed them.
#[must_use]
pub fn needs_layer(key: &str) -> Error {
    Error::new(
        Reason::Unsupported,
        format!(
            "object {key:?} is stored compressed, encrypted or deduplicated; to read it, add the layer \"transformed\" or \
             \"deduplicated\" to its volume, whichever wrote it"
        ),
    )
}
