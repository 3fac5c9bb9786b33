//! Checkpoints, in a journal, of uploads whose source is not a local file: an object of another store, or a bundle.
//! They have the version of the source, the upload id and the stored parts, so that a killed copy resumes. Uploads of
//! files use [`FileSource`](crate::files::FileSource).

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::{Algorithm, Checksum, ETag, Timestamp};
use tradewind_parallel::UploadCheckpoint;
use tradewind_parallel::upload_checkpoint::{CheckpointedPart, SourceVersion, UploadState};

use crate::journal::Journal;

/// An upload checkpoint that is saved in a journal.
#[derive(Debug)]
pub(crate) struct JournalCheckpoint {
    journal: Mutex<Option<Journal>>,
}

/// A record of the journal, one JSON line. The serialized names are its file format.
#[derive(Debug, Serialize, Deserialize)]
enum JournalRecord {
    /// An upload whose source has no version, such as a bundle.
    #[serde(rename = "Made")]
    StartedWithoutVersion { upload: String, part_bytes: u64 },
    /// An upload of a version of the source. `modified` is in milliseconds since 1970.
    #[serde(rename = "Begun")]
    Started { etag: String, modified: i64, size: u64, tags: u64, upload: String, part_bytes: u64 },
    /// A stored part.
    Part { number: u16, length: u64, etag: String, algorithm: String, checksum: String },
}

impl JournalCheckpoint {
    pub fn new(journal: Journal) -> Self {
        Self { journal: Mutex::new(Some(journal)) }
    }
}

impl UploadCheckpoint for JournalCheckpoint {
    fn load(&self) -> Option<UploadState> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let mut records = journal.as_ref()?.records::<JournalRecord>().into_iter();
        let (version, upload, part_bytes) = match records.next()? {
            JournalRecord::Started { etag, modified, size, tags, upload, part_bytes } => {
                let (etag, modified) = (ETag::from_tag(&etag), Timestamp::from_millis(modified));
                (Some(SourceVersion { etag, modified, size, tags }), upload, part_bytes)
            }
            JournalRecord::StartedWithoutVersion { upload, part_bytes } => (None, upload, part_bytes),
            JournalRecord::Part { .. } => return None,
        };
        let parts = records.filter_map(|record| match record {
            JournalRecord::Part { number, length, etag, algorithm, checksum } => {
                let algorithm: Algorithm = algorithm.parse().ok()?;
                let checksum = Checksum::from_base64(algorithm, &checksum).ok()?;
                let number = PartNumber::new(number.into()).ok()?;
                Some(CheckpointedPart { number, length, etag: ETag::from_tag(&etag), checksum })
            }
            JournalRecord::Started { .. } | JournalRecord::StartedWithoutVersion { .. } => None,
        });
        Some(UploadState { version, upload: UploadId(upload), part_bytes, parts: parts.collect() })
    }

    fn start(&self, state: &UploadState) -> bool {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(journal) = journal.as_mut() else { return false };
        let UploadState { version, upload, part_bytes, .. } = state;
        let (upload, part_bytes) = (upload.0.clone(), *part_bytes);
        let record = match version {
            Some(version) => JournalRecord::Started {
                etag: version.etag.as_str().to_owned(),
                modified: version.modified.millis(),
                size: version.size,
                tags: version.tags,
                upload,
                part_bytes,
            },
            None => JournalRecord::StartedWithoutVersion { upload, part_bytes },
        };
        let added = journal.reset().and_then(|()| journal.append(&record));
        if let Err(e) = &added {
            tracing::warn!(error = %e, "cannot write the upload journal; if interrupted, this copy cannot resume");
        }
        added.is_ok()
    }

    fn part_stored(&self, part: &CheckpointedPart) {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(journal) = journal.as_ref() else { return };
        let record = JournalRecord::Part {
            number: part.number.get(),
            length: part.length,
            etag: part.etag.as_str().to_owned(),
            algorithm: part.checksum.algorithm().name().to_owned(),
            checksum: part.checksum.to_base64(),
        };
        if let Err(e) = journal.append(&record) {
            tracing::warn!(error = %e, "cannot record a part in the upload journal; a resumed copy repeats it");
        }
    }

    fn clear(&self) {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(e)) = journal.map(Journal::remove) {
            tracing::warn!(error = %e, "cannot remove an upload journal");
        }
    }
}
