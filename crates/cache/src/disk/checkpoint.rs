//! The index on the SSD: written at close and now and then, aside and renamed. It may be older than what the extents
//! hold, because each extent says what it is: entries that no longer apply are misses.
//!
//! ```text
//! header:  magic u32 | version u32 | cache id u64 | session u64 | CRC-64/NVME
//! chunks:  count u32 | count x (place u64, first block u32, size << 5 | class u8, kind u32)   count 0 ends them
//! trailer: CRC-64/NVME of all before it
//! ```
//! The kind is 0 for a small object, the tag of the content for data, and `1 << 31`, `1 << 30` and the number of data
//! extents for a head without data; the second of these bits says that no extent was found.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use tradewind_core::checksum::{Algorithm, Hasher, crc64nvme};

use super::frames::Space;
use super::index::{ExtentKind, IndexEntry};
use crate::fields::{FieldReader, FieldWriter};

const MAGIC: u32 = u32::from_le_bytes(*b"TWci");
const VERSION: u32 = 3;
const HEADER_BYTES: usize = 32;
const CRC_BYTES: usize = 8;
const ENTRY_BYTES: usize = 17;

/// Entries of a chunk are at most this many.
pub(crate) const MAX_CHUNK_ENTRIES: usize = 1 << 14;

/// The header of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckpointHeader {
    pub cache_id: u64,
    /// The session that wrote it.
    pub session: u64,
}

impl CheckpointHeader {
    fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.u32(MAGIC);
        out.u32(VERSION);
        out.u64(self.cache_id);
        out.u64(self.session);
        let mut bytes = out.finish();
        let checksum = crc64nvme(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let covered = bytes.get(..HEADER_BYTES - CRC_BYTES)?;
        let mut fields = FieldReader::new(bytes);
        if fields.u32()? != MAGIC || fields.u32()? != VERSION {
            return None;
        }
        let header = Self { cache_id: fields.u64()?, session: fields.u64()? };
        (fields.u64()? == crc64nvme(covered)).then_some(header)
    }
}

/// The header of a checkpoint; `None` if there is none that can be used.
pub(crate) fn read_checkpoint_header(path: &Path) -> Option<CheckpointHeader> {
    let mut bytes = [0; HEADER_BYTES];
    File::open(path).and_then(|mut file| file.read_exact(&mut bytes)).ok()?;
    CheckpointHeader::decode(&bytes)
}

/// Returns true if a file begins as a checkpoint does.
pub(crate) fn begins_as_checkpoint(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_le_bytes())
}

/// Writes a checkpoint. Its file gets its name when it is finished.
pub(crate) struct CheckpointWriter {
    path: PathBuf,
    unfinished: PathBuf,
    file: File,
    hasher: Hasher,
}

impl CheckpointWriter {
    pub fn create(path: &Path, header: &CheckpointHeader) -> io::Result<Self> {
        let unfinished = path.with_extension("unfinished");
        let file = super::directory::create(&unfinished)?;
        let hasher = Hasher::new(Algorithm::Crc64Nvme);
        let mut writer = Self { path: path.to_owned(), unfinished, file, hasher };
        writer.write(&header.encode())?;
        Ok(writer)
    }

    /// Writes at most [`MAX_CHUNK_ENTRIES`] entries.
    pub fn chunk(&mut self, entries: &[IndexEntry]) -> io::Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut out = FieldWriter::default();
        out.u32(u32::try_from(entries.len()).unwrap_or(0));
        for entry in entries {
            out.u64(entry.place);
            out.u32(entry.space.block);
            out.u8(entry.space.size << 5 | entry.class & 31);
            out.u32(entry.kind.encode());
        }
        self.write(&out.finish())
    }

    /// Makes the checkpoint durable and replaces the previous one.
    pub fn finish(mut self) -> io::Result<()> {
        self.write(&0_u32.to_le_bytes())?;
        let checksum = self.hasher.finish().crc64_value();
        self.file.write_all(&checksum.to_le_bytes())?;
        self.file.sync_all()?;
        fs::rename(&self.unfinished, &self.path)?;
        match self.path.parent() {
            Some(directory) => File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.file.write_all(bytes)
    }
}

/// Reads all entries into `add`. An error if the checkpoint is damaged; the caller then discards the entries.
pub(crate) fn read_checkpoint(path: &Path, mut add: impl FnMut(IndexEntry)) -> io::Result<CheckpointHeader> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut hasher = Hasher::new(Algorithm::Crc64Nvme);
    let mut buffer = vec![0; HEADER_BYTES];
    file.read_exact(&mut buffer)?;
    hasher.update(&buffer);
    let header = CheckpointHeader::decode(&buffer).ok_or_else(damaged)?;
    loop {
        let mut count = [0; 4];
        file.read_exact(&mut count)?;
        hasher.update(&count);
        let count = usize::try_from(u32::from_le_bytes(count)).unwrap_or(usize::MAX);
        if count == 0 {
            break;
        }
        if count > MAX_CHUNK_ENTRIES {
            return Err(damaged());
        }
        buffer.resize(count * ENTRY_BYTES, 0);
        file.read_exact(&mut buffer)?;
        hasher.update(&buffer);
        for entry in buffer.chunks_exact(ENTRY_BYTES) {
            add(decode_entry(entry).ok_or_else(damaged)?);
        }
    }
    let mut checksum = [0; CRC_BYTES];
    file.read_exact(&mut checksum)?;
    if u64::from_le_bytes(checksum) != hasher.finish().crc64_value() {
        return Err(damaged());
    }
    Ok(header)
}

fn decode_entry(bytes: &[u8]) -> Option<IndexEntry> {
    let mut fields = FieldReader::new(bytes);
    let (place, block, size) = (fields.u64()?, fields.u32()?, fields.u8()?);
    let kind = ExtentKind::decode(fields.u32()?);
    Some(IndexEntry { place, space: Space { block, size: size >> 5 }, class: size & 31, kind })
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the index of the cache is damaged")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: CheckpointHeader = CheckpointHeader { cache_id: 1, session: 2 };

    fn write(path: &Path) -> Vec<IndexEntry> {
        let entry = |n: u32| IndexEntry {
            place: u64::from(n) + 1,
            space: Space { block: n, size: 0 },
            class: (n % 32) as u8,
            kind: ExtentKind::decode((n % 3) << 30 | n),
        };
        let entries: Vec<_> = (0..40).map(entry).collect();
        let mut writer = CheckpointWriter::create(path, &HEADER).unwrap();
        entries.chunks(7).for_each(|chunk| writer.chunk(chunk).unwrap());
        writer.finish().unwrap();
        entries
    }

    #[test]
    fn checkpoint_round_trips() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index");
        let entries = write(&path);
        let mut read = Vec::new();
        assert_eq!(read_checkpoint(&path, |entry| read.push(entry)).unwrap(), HEADER);
        assert_eq!((read, read_checkpoint_header(&path)), (entries, Some(HEADER)));
    }

    #[test]
    fn damaged_checkpoint_is_an_error_wherever_the_damage_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("index");
        write(&path);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            fs::write(&path, &bytes).unwrap();
            assert!(read_checkpoint(&path, |_| ()).is_err(), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(read_checkpoint(&path, |_| ()).is_err(), "{at} bytes");
        }
    }
}
