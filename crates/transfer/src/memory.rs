//! The journal of a copy between two stores: which version of the source, what it becomes, and which parts of that are
//! there.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tradewind_core::multipart::{PartNumber, UploadId};
use tradewind_core::{Algorithm, Checksum, ETag, Timestamp};
use tradewind_volume::Memory;
use tradewind_volume::memory::{Begun, CopiedPart, Version};

use crate::journal::Entry;

/// Remembers a copy in a journal.
#[derive(Debug)]
pub(crate) struct CopyMemory {
    journal: Mutex<Option<Entry>>,
}

/// What the journal says.
#[derive(Debug, Serialize, Deserialize)]
enum Line {
    /// Something that is made, and what it becomes.
    Made { upload: String, part_bytes: u64 },
    /// Of which version of the source, and what it becomes. `modified` is in milliseconds since 1970.
    Begun { etag: String, modified: i64, size: u64, tags: u64, upload: String, part_bytes: u64 },
    /// A part is there.
    Part { number: u16, length: u64, etag: String, algorithm: String, checksum: String },
}

impl CopyMemory {
    pub fn new(journal: Entry) -> Self {
        Self { journal: Mutex::new(Some(journal)) }
    }
}

impl Memory for CopyMemory {
    fn earlier(&self) -> Option<Begun> {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let mut lines = journal.as_ref()?.earlier::<Line>().into_iter();
        let (version, upload, part_bytes) = match lines.next()? {
            Line::Begun { etag, modified, size, tags, upload, part_bytes } => {
                let (etag, modified) = (ETag::from_tag(&etag), Timestamp::from_millis(modified));
                (Some(Version { etag, modified, size, tags }), upload, part_bytes)
            }
            Line::Made { upload, part_bytes } => (None, upload, part_bytes),
            Line::Part { .. } => return None,
        };
        let parts = lines.filter_map(|line| match line {
            Line::Part { number, length, etag, algorithm, checksum } => {
                let algorithm: Algorithm = algorithm.parse().ok()?;
                let checksum = Checksum::from_base64(algorithm, &checksum).ok()?;
                let number = PartNumber::new(number.into()).ok()?;
                Some(CopiedPart { number, length, etag: ETag::from_tag(&etag), checksum })
            }
            Line::Begun { .. } | Line::Made { .. } => None,
        });
        Some(Begun { version, upload: UploadId(upload), part_bytes, parts: parts.collect() })
    }

    fn begun(&self, begun: &Begun) -> bool {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = journal.as_mut() else { return false };
        let Begun { version, upload, part_bytes, .. } = begun;
        let (upload, part_bytes) = (upload.0.clone(), *part_bytes);
        let line = match version {
            Some(version) => Line::Begun {
                etag: version.etag.as_str().to_owned(),
                modified: version.modified.millis(),
                size: version.size,
                tags: version.tags,
                upload,
                part_bytes,
            },
            None => Line::Made { upload, part_bytes },
        };
        let added = entry.begin_anew().and_then(|()| entry.add(&line));
        if let Err(e) = &added {
            tracing::warn!(error = %e, "a copy is not remembered: killed, it would begin anew");
        }
        added.is_ok()
    }

    fn stored(&self, part: &CopiedPart) {
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = journal.as_ref() else { return };
        let line = Line::Part {
            number: part.number.get(),
            length: part.length,
            etag: part.etag.as_str().to_owned(),
            algorithm: part.checksum.algorithm().name().to_owned(),
            checksum: part.checksum.to_base64(),
        };
        if let Err(e) = entry.add(&line) {
            tracing::warn!(error = %e, "a part is not remembered: killed, it would be copied again");
        }
    }

    fn over(&self) {
        let entry = self.journal.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(e)) = entry.map(Entry::remove) {
            tracing::warn!(error = %e, "a journal is left");
        }
    }
}
