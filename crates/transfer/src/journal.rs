//! Journals of large objects in flight, so that a killed transfer resumes. Each object has one file of appended JSON
//! lines, locked while a process uses it.
//!
//! A journal need not be durable: what it records is verified against the destination before it is used. Each line ends
//! with a tab and the CRC-64/NVME of its JSON: a damaged number could look like a range that is stored. Lines of earlier
//! versions have no CRC.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tradewind_core::checksum::crc64nvme;

/// A directory of journals of transfers with one store, or between two.
#[derive(Debug, Clone)]
pub struct JournalDirectory {
    directory: PathBuf,
    /// Identifies the store or stores; part of each journal's identity.
    stores: String,
    /// Names of journals that may exist: those present at the first lookup, and those created by this process since. It
    /// saves the many small objects a lookup on disk.
    known_names: Arc<Mutex<Option<HashSet<OsString>>>>,
}

/// The journal of one object, locked exclusively until it is dropped.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    /// The first line: the stores, the source and the destination.
    identity: String,
    /// The lines of an earlier transfer, without the identity.
    lines: Vec<String>,
    /// If unset when dropped, the file is removed: it has no records.
    keep_on_drop: AtomicBool,
}

impl JournalDirectory {
    /// Journals in a directory that need not exist yet; `stores` identifies the store or stores.
    #[must_use]
    pub fn new(directory: PathBuf, stores: String) -> Self {
        Self { directory, stores, known_names: Arc::default() }
    }

    /// Opens or creates the journal of the copy of `from` to `to`; `None` if another process has it locked.
    pub fn open(&self, from: &str, to: &str) -> io::Result<Option<Journal>> {
        fs::create_dir_all(&self.directory)?;
        self.open_as(from, to, true)
    }

    /// Like [`open`](Self::open), but only if an earlier transfer left a journal. Journals that other processes leave
    /// after the first lookup are not seen.
    pub fn open_existing(&self, from: &str, to: &str) -> io::Result<Option<Journal>> {
        if !self
            .with_known_names(|known_names| known_names.contains(&*Self::name(&self.identity(from, to))))?
        {
            return Ok(None);
        }
        match self.open_as(from, to, false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened,
        }
    }

    /// Opens the journal of a large object; for a small one, only a journal left by an earlier, larger version.
    ///
    /// An I/O error is logged and `None` returned: the transfer works without a journal, but cannot resume.
    pub(crate) fn open_for_transfer(
        &self,
        is_large: bool,
        endpoints: impl FnOnce() -> Option<(String, String)>,
    ) -> Option<Journal> {
        let found = || {
            if !is_large && !self.with_known_names(|known_names| !known_names.is_empty())? {
                return Ok(None);
            }
            let Some((from, to)) = endpoints() else { return Ok(None) };
            if is_large { self.open(&from, &to) } else { self.open_existing(&from, &to) }
        };
        match found() {
            Ok(journal) => journal,
            Err(e) => {
                tracing::warn!(error = %e, "cannot open the journal; an interrupted transfer cannot resume");
                None
            }
        }
    }

    fn identity(&self, from: &str, to: &str) -> String {
        format!("{}\n{from}\n{to}", self.stores)
    }

    /// The file name for an identity. A hash collision is harmless: the identity in the file differs, so it is reset.
    fn name(identity: &str) -> OsString {
        format!("{:016x}.journal", crc64nvme(identity.as_bytes())).into()
    }

    /// Applies `what` to the names of journals that may exist, which are read from disk at the first call.
    fn with_known_names(&self, what: impl FnOnce(&mut HashSet<OsString>) -> bool) -> io::Result<bool> {
        let mut known_names = self.known_names.lock().unwrap_or_else(PoisonError::into_inner);
        if known_names.is_none() {
            let entries = match fs::read_dir(&self.directory) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                entries => Some(entries?),
            };
            let names = entries.into_iter().flatten().map(|entry| Ok(entry?.file_name()));
            *known_names = Some(names.collect::<io::Result<_>>()?);
        }
        Ok(known_names.as_mut().is_some_and(what))
    }

    fn open_as(&self, from: &str, to: &str, create: bool) -> io::Result<Option<Journal>> {
        let identity = self.identity(from, to);
        let name = Self::name(&identity);
        let path = self.directory.join(&name);
        if create {
            self.with_known_names(|known_names| known_names.insert(name))?;
        }
        let mut file = loop {
            let file = OpenOptions::new().read(true).append(true).create(create).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Its previous owner may have removed it before it was locked here.
                Ok(()) if is_same_file(&file, &path)? => break file,
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        };
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // Drop an incomplete last line, so that appended records start on a line of their own.
        let complete_len = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if complete_len < text.len() {
            file.set_len(complete_len as u64)?;
            text.truncate(complete_len);
        }
        // A file that does not start with this identity is not ours and is reset; lines that are not UTF-8 are damaged.
        let mut lines = text.split(|byte| *byte == b'\n').map(|line| String::from_utf8(line.to_owned()));
        let is_ours = lines
            .next()
            .and_then(|line| intact_json(line.ok()?))
            .is_some_and(|line| parse::<String>(&line).as_deref() == Some(&*identity));
        let lines =
            if is_ours { lines.filter_map(|line| intact_json(line.ok()?)).collect() } else { Vec::new() };
        let keep_on_drop = AtomicBool::new(lines.iter().any(|line: &String| !line.is_empty()));
        let journal = Journal { file, path, identity, lines, keep_on_drop };
        if !is_ours {
            journal.file.set_len(0)?;
            journal.write(&journal.identity)?;
        }
        Ok(Some(journal))
    }
}

/// Returns true if an open file is the one at `path`.
fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    let file = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((file.dev(), file.ino()) == (there.dev(), there.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// The JSON of a line; `None` if the checksum shows that it is damaged.
fn intact_json(mut line: String) -> Option<String> {
    // In JSON, a tab is escaped.
    let Some((json, checksum)) = line.split_once('\t') else { return Some(line) };
    if checksum != line_checksum(json.as_bytes()) {
        return None;
    }
    line.truncate(json.len());
    Some(line)
}

fn line_checksum(json: &[u8]) -> String {
    format!("{:016x}", crc64nvme(json))
}

fn parse<T: DeserializeOwned>(line: &str) -> Option<T> {
    serde_json::from_str(line).ok()
}

impl Journal {
    /// The records of an earlier transfer; lines that cannot be parsed are skipped.
    #[must_use]
    pub fn records<T: DeserializeOwned>(&self) -> Vec<T> {
        // Each line is independent: one damaged by a power loss does not invalidate the others.
        self.lines.iter().filter_map(|line| parse(line)).collect()
    }

    /// Discards the records of an earlier transfer.
    pub fn reset(&mut self) -> io::Result<()> {
        self.lines.clear();
        self.keep_on_drop.store(false, Ordering::Relaxed);
        self.file.set_len(0)?;
        self.write(&self.identity)
    }

    /// Appends a record with a single write.
    pub fn append<T: Serialize>(&self, what: &T) -> io::Result<()> {
        self.keep_on_drop.store(true, Ordering::Relaxed);
        self.write(what)
    }

    fn write<T: Serialize>(&self, what: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        let checksum = line_checksum(&line);
        line.extend_from_slice(format!("\t{checksum}\n").as_bytes());
        (&self.file).write_all(&line)
    }

    /// Removes the journal of a finished transfer.
    pub fn remove(self) -> io::Result<()> {
        // After the removal, another process may create a file at this path: do not remove it on drop.
        self.keep_on_drop.store(true, Ordering::Relaxed);
        fs::remove_file(&self.path)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if !self.keep_on_drop.load(Ordering::Relaxed)
            && let Err(e) = fs::remove_file(&self.path)
        {
            tracing::warn!(error = %e, path = %self.path.display(), "cannot remove a journal");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reopened_journal_skips_torn_and_damaged_lines() {
        let directory = tempfile::tempdir().unwrap();
        let journals = JournalDirectory::new(directory.path().join("j"), "s".to_owned());
        let journal = journals.open("a", "b").unwrap().unwrap();
        assert_eq!(journal.records::<u64>(), Vec::<u64>::new());
        assert!(journals.open("a", "b").unwrap().is_none(), "the journal is locked");
        journal.append(&1).unwrap();
        journal.append(&2).unwrap();
        let path = journal.path.clone();
        drop(journal);
        let mut text = fs::read(&path).unwrap();
        // The last line is cut within a multibyte character.
        text.extend_from_slice(b"\0\0\0\n\xff\xfe\n{\"to\xc3");
        fs::write(&path, text).unwrap();
        let journal = journals.open("a", "b").unwrap().unwrap();
        assert_eq!(journal.records::<u64>(), [1, 2]);
        journal.append(&4).unwrap();
        drop(journal);
        let mut journal = journals.open("a", "b").unwrap().unwrap();
        assert_eq!(journal.records::<u64>(), [1, 2, 4]);
        journal.reset().unwrap();
        journal.append(&3).unwrap();
        drop(journal);
        let journal = journals.open("a", "b").unwrap().unwrap();
        assert_eq!(journal.records::<u64>(), [3]);
        journal.remove().unwrap();
        assert_eq!(journals.open("a", "b").unwrap().unwrap().records::<u64>(), Vec::<u64>::new());
    }

    #[test]
    fn record_with_a_flipped_bit_is_skipped() {
        let directory = tempfile::tempdir().unwrap();
        let journals = JournalDirectory::new(directory.path().to_owned(), "s".to_owned());
        let journal = journals.open("a", "b").unwrap().unwrap();
        let records = [1_000_000_u64, 2_000_000, 3_000_000];
        records.iter().for_each(|record| journal.append(record).unwrap());
        let path = journal.path.clone();
        drop(journal);
        let intact = fs::read(&path).unwrap();
        for bit in 0..intact.len() * 8 {
            let mut damaged = intact.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, damaged).unwrap();
            let journal = journals.open("a", "b").unwrap().unwrap();
            let found = journal.records::<u64>();
            // A damaged end of a line costs the next one, too.
            let is_rest = found.len() < records.len() && found.iter().all(|record| records.contains(record));
            assert!(is_rest, "bit {bit}: {found:?}");
        }
    }

    #[test]
    fn journal_of_an_earlier_version_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let journals = JournalDirectory::new(directory.path().to_owned(), "s".to_owned());
        let path = journals.open("a", "b").unwrap().unwrap().path.clone();
        fs::write(&path, "\"s\\na\\nb\"\n7\n").unwrap();
        assert_eq!(journals.open("a", "b").unwrap().unwrap().records::<u64>(), [7]);
    }

    #[test]
    fn journal_without_records_is_removed_on_drop() {
        let directory = tempfile::tempdir().unwrap();
        let journals = JournalDirectory::new(directory.path().to_owned(), "s".to_owned());
        let left = || fs::read_dir(directory.path()).unwrap().count();
        drop(journals.open("a", "b").unwrap().unwrap());
        assert_eq!(left(), 0);
        assert!(journals.open_existing("a", "b").unwrap().is_none());
        assert_eq!(left(), 0);
        journals.open("a", "b").unwrap().unwrap().append(&1).unwrap();
        assert_eq!(left(), 1);
        assert_eq!(journals.open_existing("a", "b").unwrap().unwrap().records::<u64>(), [1]);
        journals.open("a", "b").unwrap().unwrap().reset().unwrap();
        assert_eq!(left(), 0);
    }

    #[test]
    fn small_object_finds_the_journal_of_a_larger_version() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j");
        let journals = || JournalDirectory::new(path.clone(), "s".to_owned());
        let endpoints = |to: &str| Some(("a".to_owned(), to.to_owned()));
        let small = |journals: &JournalDirectory, to: &str| {
            journals.open_for_transfer(false, || endpoints(to)).is_some()
        };
        let first = journals();
        assert!(first.open_for_transfer(false, || panic!("no journal exists")).is_none());
        first.open_for_transfer(true, || endpoints("b")).unwrap().append(&1).unwrap();
        assert!(small(&first, "b") && !small(&first, "c"));
        let second = journals();
        assert!(small(&second, "b") && !small(&second, "c"));
        // The instance that created a journal finds it; others see only what existed at their first lookup.
        first.open("a", "c").unwrap().unwrap().append(&1).unwrap();
        assert!(small(&first, "c") && !small(&second, "c") && small(&journals(), "c"));
    }

    /// Journals are removed by path, so an open one must be the file at that path.
    #[test]
    fn opened_journal_is_never_a_removed_file() {
        let directory = tempfile::tempdir().unwrap();
        let journals = JournalDirectory::new(directory.path().to_owned(), "s".to_owned());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let Some(journal) = journals.open("a", "b").unwrap() else { continue };
                        assert!(is_same_file(&journal.file, &journal.path).unwrap());
                        journal.append(&1).unwrap();
                        journal.remove().unwrap();
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn foreign_journal_content_is_discarded() {
        let directory = tempfile::tempdir().unwrap();
        let journals = JournalDirectory::new(directory.path().to_owned(), "s".to_owned());
        let path = journals.open("a", "b").unwrap().unwrap().path.clone();
        for foreign in [&b"\"c\\nd\"\n1\n"[..], b"\xff\xfe", b"", b"\n\n"] {
            fs::write(&path, foreign).unwrap();
            let journal = journals.open("a", "b").unwrap().unwrap();
            assert_eq!(journal.records::<u64>(), Vec::<u64>::new());
            journal.append(&5).unwrap();
            drop(journal);
            assert_eq!(journals.open("a", "b").unwrap().unwrap().records::<u64>(), [5]);
        }
    }
}
