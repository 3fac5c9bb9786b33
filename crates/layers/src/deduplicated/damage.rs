//! Objects and parts that a collection could not read: their chunks are unknown. While there is one, no chunk is deleted,
//! so that operators must learn which ones they are. Uploads with damaged records are named with them: they keep the chunks
//! of their parts only.

use std::fmt;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::multipart::UploadId;
use tradewind_core::{Address, VersionId, printable};

/// Objects and parts that one collection records. A mark ends at the last one.
const MAX_DAMAGED_OBJECTS: usize = 1_000;

/// An object, a version of one, or a part of an unfinished upload that a collection could not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DamagedObject {
    /// The object, or the destination of the upload. If the upload is not known, the list of chunks in the hidden bucket.
    pub address: Address,
    /// The upload of the part.
    pub upload: Option<UploadId>,
}

/// Formats bucket and key, then the version unless it is `null`, or the upload.
impl fmt::Display for DamagedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { bucket, key, version } = &self.address;
        write!(f, "{}/{}", bucket.as_str(), printable(key.as_str()))?;
        if let Some(version @ VersionId::Id(_)) = version {
            write!(f, " (version {version})")?;
        }
        match &self.upload {
            Some(upload) => write!(f, " (upload {upload})"),
            None => Ok(()),
        }
    }
}

impl DamagedObject {
    /// An object.
    pub(super) fn object(address: Address) -> Self {
        Self { address, upload: None }
    }

    /// Names the object in an error.
    pub(super) fn name(&self, error: Error) -> Error {
        let message = format!("{self}: {}", error.message());
        error.with_message(message)
    }
}

/// The damage that one mark finds.
#[derive(Debug, Default)]
pub(super) struct FoundDamage {
    pub objects: Vec<DamagedObject>,
}

impl FoundDamage {
    /// Records an object. Fails as [`Self::check`] if there are too many.
    pub fn record(&mut self, object: DamagedObject) -> Result<()> {
        self.objects.push(object);
        match self.objects.len() < MAX_DAMAGED_OBJECTS {
            true => Ok(()),
            false => self.check(),
        }
    }

    /// Records an object that ends nothing, once, unless there are too many.
    pub fn record_bounded(&mut self, object: DamagedObject) {
        if self.objects.len() < MAX_DAMAGED_OBJECTS && !self.objects.contains(&object) {
            self.objects.push(object);
        }
    }

    /// Fails with [`CorruptData`](Reason::CorruptData) if there is damage.
    pub fn check(&self) -> Result<()> {
        let Some(first) = self.objects.first() else { return Ok(()) };
        let message = format!(
            "{} objects cannot be read, such as {first}: which chunks they need is unknown, so that none is deleted; \
             restore, overwrite or delete the objects, and abort the uploads",
            self.objects.len()
        );
        Err(Error::new(Reason::CorruptData, message))
    }
}
