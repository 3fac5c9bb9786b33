//! The file `session`: whether the last session of the directory has ended.
//!
//! ```text
//! magic u32 | state u32 (1 open, 2 ended) | cache id u64 | session u64 | CRC-64/NVME of all before it
//! ```
//! The record decides nothing about trust: the number of a session is drawn at random when the directory is opened, and
//! is never taken from a file. It tells a clean end from a crash, and only together with the checkpoint: both name the
//! session that wrote them. A record that was restored alone may look like a clean end only if the later session has written
//! no checkpoint. Then outdated extents count as damaged ones, and are not served either.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use tradewind_core::checksum::crc64nvme;

use super::checkpoint::CheckpointHeader;
use super::directory::replace;
use crate::fields::{FieldReader, FieldWriter};

const MAGIC: u32 = u32::from_le_bytes(*b"TWcs");
const OPEN: u32 = 1;
const ENDED: u32 = 2;
const CRC_BYTES: usize = 8;
/// Bytes of a record.
const RECORD_BYTES: usize = 32;

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    /// It is in progress, or has crashed.
    Open,
    /// It has ended, and its last checkpoint is durable.
    Ended,
}

/// The content of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionRecord {
    pub state: SessionState,
    pub cache_id: u64,
    pub session: u64,
}

impl SessionRecord {
    /// Reads the record; `None` if it is missing, damaged, or of an earlier version of this program.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        match fs::read(path) {
            Ok(bytes) => Ok(Self::decode(&bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Replaces the record durably.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        replace(path, &self.encode())
    }

    /// Returns true if the session that wrote a checkpoint has ended, and no session was opened since.
    pub fn is_end_of(&self, checkpoint: &CheckpointHeader) -> bool {
        let Self { state, cache_id, session } = *self;
        state == SessionState::Ended && CheckpointHeader { cache_id, session } == *checkpoint
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.u32(MAGIC);
        out.u32(match self.state {
            SessionState::Open => OPEN,
            SessionState::Ended => ENDED,
        });
        out.u64(self.cache_id);
        out.u64(self.session);
        let mut bytes = out.finish();
        let checksum = crc64nvme(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let covered = bytes.get(..RECORD_BYTES - CRC_BYTES).filter(|_| bytes.len() == RECORD_BYTES)?;
        let mut fields = FieldReader::new(bytes);
        let (magic, state) = (fields.u32()?, fields.u32()?);
        let state = match state {
            OPEN => SessionState::Open,
            ENDED => SessionState::Ended,
            _ => return None,
        };
        let record = Self { state, cache_id: fields.u64()?, session: fields.u64()? };
        (magic == MAGIC && fields.u64()? == crc64nvme(covered)).then_some(record)
    }
}

/// Returns true if a file begins as a record does.
pub(super) fn begins_as_record(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: SessionRecord = SessionRecord { state: SessionState::Ended, cache_id: 1, session: 2 };

    #[test]
    fn session_record_with_any_damage_is_none() {
        let bytes = RECORD.encode();
        assert_eq!(SessionRecord::decode(&bytes), Some(RECORD));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SessionRecord::decode(&damaged), None, "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert_eq!(SessionRecord::decode(&bytes[..end]), None, "{end} bytes");
        }
        assert_eq!(SessionRecord::decode(b"17\n"), None, "the form of an earlier version");
    }

    #[test]
    fn clean_end_needs_the_checkpoint_of_the_same_session() {
        let checkpoint = |cache_id, session| CheckpointHeader { cache_id, session };
        assert!(RECORD.is_end_of(&checkpoint(1, 2)));
        assert!(!RECORD.is_end_of(&checkpoint(1, 3)), "a later session wrote the checkpoint");
        assert!(!RECORD.is_end_of(&checkpoint(2, 2)), "the record is of another cache");
        let open = SessionRecord { state: SessionState::Open, ..RECORD };
        assert!(!open.is_end_of(&checkpoint(1, 2)));
    }
}
