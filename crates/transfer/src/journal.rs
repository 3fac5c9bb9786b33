//! What is remembered of a large object that is under way, so that a transfer that was killed goes on where it was: one
//! file for each, of lines that are appended. It need not be durable: what it says is compared with what is there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tradewind_core::checksum::crc64nvme;

/// A directory of journals of transfers with one store, or between two.
#[derive(Debug, Clone)]
pub struct Journal {
    directory: PathBuf,
    /// Tells them from others.
    stores: String,
}

/// The journal of one object. Nobody else has it meanwhile.
#[derive(Debug)]
pub struct Entry {
    file: File,
    path: PathBuf,
    /// What an earlier transfer left.
    lines: Vec<String>,
    /// It says something. Dropped without, it is removed.
    is_kept: AtomicBool,
}

impl Journal {
    /// In a directory that need not be there; `stores` tells the store or stores from others.
    #[must_use]
    pub const fn new(directory: PathBuf, stores: String) -> Self {
        Self { directory, stores }
    }

    /// The journal of what `from` becomes at `to`; `None` where another process writes it.
    pub fn open(&self, from: &str, to: &str) -> io::Result<Option<Entry>> {
        fs::create_dir_all(&self.directory)?;
        let identity = format!("{}\n{from}\n{to}", self.stores);
        // Two of them with one name would each find that what is there is not theirs, and begin anew.
        let path = self.directory.join(format!("{:016x}.journal", crc64nvme(identity.as_bytes())));
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(e) => return Err(e.into()),
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // What follows begins a line, not behind half of one.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64)?;
            text.truncate(whole);
        }
        // What is no text was not written by us: as good as nothing.
        let text = String::from_utf8(text).unwrap_or_default();
        let mut lines = text.lines().map(str::to_owned);
        let is_ours = lines.next().is_some_and(|line| parse::<String>(&line).as_deref() == Some(&*identity));
        let lines = if is_ours { lines.collect() } else { Vec::new() };
        let is_kept = AtomicBool::new(!lines.is_empty());
        let entry = Entry { file, path, lines, is_kept };
        if !is_ours {
            entry.file.set_len(0)?;
            entry.write(&identity)?;
        }
        Ok(Some(entry))
    }
}

fn parse<T: DeserializeOwned>(line: &str) -> Option<T> {
    serde_json::from_str(line).ok()
}

impl Entry {
    /// What an earlier transfer left, as far as it can be read.
    #[must_use]
    pub fn earlier<T: DeserializeOwned>(&self) -> Vec<T> {
        // Each line stands for itself: one that a loss of power damaged takes no other with it.
        self.lines.iter().filter_map(|line| parse(line)).collect()
    }

    /// Forgets what an earlier transfer left.
    pub fn begin_anew(&mut self) -> io::Result<()> {
        let first = fs::read_to_string(&self.path)?;
        let first = first.lines().next().unwrap_or_default().to_owned();
        self.lines.clear();
        self.is_kept.store(false, Ordering::Relaxed);
        self.file.set_len(0)?;
        self.file.write_all(format!("{first}\n").as_bytes())
    }

    /// Adds a line, in one piece.
    pub fn add<T: Serialize>(&self, what: &T) -> io::Result<()> {
        self.is_kept.store(true, Ordering::Relaxed);
        self.write(what)
    }

    fn write<T: Serialize>(&self, what: &T) -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        (&self.file).write_all(&line)
    }

    /// It is done: nothing is to be remembered.
    pub fn remove(self) -> io::Result<()> {
        // What has the path from now on is somebody else's.
        self.is_kept.store(true, Ordering::Relaxed);
        fs::remove_file(&self.path)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.is_kept.load(Ordering::Relaxed)
            && let Err(e) = fs::remove_file(&self.path)
        {
            tracing::warn!(error = %e, path = %self.path.display(), "a journal is left");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_again_unless_they_are_torn() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path().join("j"), "s".to_owned());
        let entry = journal.open("a", "b").unwrap().unwrap();
        assert_eq!(entry.earlier::<u64>(), Vec::<u64>::new());
        assert!(journal.open("a", "b").unwrap().is_none(), "one at a time");
        entry.add(&1).unwrap();
        entry.add(&2).unwrap();
        let path = entry.path.clone();
        drop(entry);
        let mut text = fs::read(&path).unwrap();
        // In the middle of a letter, too.
        text.extend_from_slice(b"\0\0\0\n{\"to\xc3");
        fs::write(&path, text).unwrap();
        let entry = journal.open("a", "b").unwrap().unwrap();
        assert_eq!(entry.earlier::<u64>(), [1, 2]);
        entry.add(&4).unwrap();
        drop(entry);
        let mut entry = journal.open("a", "b").unwrap().unwrap();
        assert_eq!(entry.earlier::<u64>(), [1, 2, 4]);
        entry.begin_anew().unwrap();
        entry.add(&3).unwrap();
        drop(entry);
        let entry = journal.open("a", "b").unwrap().unwrap();
        assert_eq!(entry.earlier::<u64>(), [3]);
        entry.remove().unwrap();
        assert_eq!(journal.open("a", "b").unwrap().unwrap().earlier::<u64>(), Vec::<u64>::new());
    }

    #[test]
    fn one_that_says_nothing_is_not_left() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path().to_owned(), "s".to_owned());
        let left = || fs::read_dir(directory.path()).unwrap().count();
        drop(journal.open("a", "b").unwrap().unwrap());
        assert_eq!(left(), 0);
        journal.open("a", "b").unwrap().unwrap().add(&1).unwrap();
        assert_eq!(left(), 1);
        journal.open("a", "b").unwrap().unwrap().begin_anew().unwrap();
        assert_eq!(left(), 0);
    }

    #[test]
    fn what_is_not_ours_is_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path().to_owned(), "s".to_owned());
        let path = journal.open("a", "b").unwrap().unwrap().path.clone();
        for foreign in [&b"\"c\\nd\"\n1\n"[..], b"\xff\xfe", b"", b"\n\n"] {
            fs::write(&path, foreign).unwrap();
            let entry = journal.open("a", "b").unwrap().unwrap();
            assert_eq!(entry.earlier::<u64>(), Vec::<u64>::new());
            entry.add(&5).unwrap();
            drop(entry);
            assert_eq!(journal.open("a", "b").unwrap().unwrap().earlier::<u64>(), [5]);
        }
    }
}
