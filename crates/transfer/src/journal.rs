//! What is remembered of a large object that is under way, so that a transfer that was killed goes on where it was: one
//! file for each, of lines that are appended. It need not be durable: what it says is compared with what is there.

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
pub struct Journal {
    directory: PathBuf,
    /// Tells them from others.
    stores: String,
    /// Names that may be there: those that were when it was first asked, and those that were made here since. What is
    /// small, of which there is much, then costs no look at the disk.
    known: Arc<Mutex<Option<HashSet<OsString>>>>,
}

/// The journal of one object. Nobody else has it meanwhile.
#[derive(Debug)]
pub struct Entry {
    file: File,
    path: PathBuf,
    /// Its first line: what is copied where.
    identity: String,
    /// What an earlier transfer left.
    lines: Vec<String>,
    /// It says something. Dropped without, it is removed.
    is_kept: AtomicBool,
}

impl Journal {
    /// In a directory that need not be there; `stores` tells the store or stores from others.
    #[must_use]
    pub fn new(directory: PathBuf, stores: String) -> Self {
        Self { directory, stores, known: Arc::default() }
    }

    /// The journal of what `from` becomes at `to`; `None` where another process writes it.
    pub fn open(&self, from: &str, to: &str) -> io::Result<Option<Entry>> {
        fs::create_dir_all(&self.directory)?;
        self.open_as(from, to, true)
    }

    /// The same where an earlier transfer left one. Of what other processes leave behind the first call nothing is known.
    pub fn find(&self, from: &str, to: &str) -> io::Result<Option<Entry>> {
        if !self.knows(|known| known.contains(&*Self::name(&self.identity(from, to))))? {
            return Ok(None);
        }
        match self.open_as(from, to, false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened,
        }
    }

    /// The journal of what may be large, else that of what was large before; without one a transfer does as well, until
    /// it is killed.
    pub(crate) fn remember(
        &self,
        is_large: bool,
        between: impl FnOnce() -> Option<(String, String)>,
    ) -> Option<Entry> {
        let found = || {
            if !is_large && !self.knows(|known| !known.is_empty())? {
                return Ok(None);
            }
            let Some((from, to)) = between() else { return Ok(None) };
            if is_large { self.open(&from, &to) } else { self.find(&from, &to) }
        };
        match found() {
            Ok(entry) => entry,
            Err(e) => {
                tracing::warn!(error = %e, "transfers are not remembered: killed, they would begin anew");
                None
            }
        }
    }

    fn identity(&self, from: &str, to: &str) -> String {
        format!("{}\n{from}\n{to}", self.stores)
    }

    /// Two of them with one name would each find that what is there is not theirs, and begin anew.
    fn name(identity: &str) -> OsString {
        format!("{:016x}.journal", crc64nvme(identity.as_bytes())).into()
    }

    /// Asks of the names that may be there.
    fn knows(&self, what: impl FnOnce(&mut HashSet<OsString>) -> bool) -> io::Result<bool> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_none() {
            let entries = match fs::read_dir(&self.directory) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => None,
                entries => Some(entries?),
            };
            let names = entries.into_iter().flatten().map(|entry| Ok(entry?.file_name()));
            *known = Some(names.collect::<io::Result<_>>()?);
        }
        Ok(known.as_mut().is_some_and(what))
    }

    fn open_as(&self, from: &str, to: &str, makes: bool) -> io::Result<Option<Entry>> {
        let identity = self.identity(from, to);
        let name = Self::name(&identity);
        let path = self.directory.join(&name);
        if makes {
            self.knows(|known| known.insert(name))?;
        }
        let mut file = loop {
            let file = OpenOptions::new().read(true).append(true).create(makes).open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Whoever had it may have removed it before it was locked here.
                Ok(()) if is_at(&file, &path)? => break file,
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(e) => return Err(e.into()),
            }
        };
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // What follows begins a line, not behind half of one.
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64)?;
            text.truncate(whole);
        }
        // What is no text was not written by us: as good as nothing.
        let mut lines = text.split(|byte| *byte == b'\n').map(|line| String::from_utf8(line.to_owned()));
        let is_ours = lines
            .next()
            .is_some_and(|line| line.is_ok_and(|line| parse::<String>(&line).as_deref() == Some(&*identity)));
        let lines = if is_ours { lines.filter_map(Result::ok).collect() } else { Vec::new() };
        let is_kept = AtomicBool::new(lines.iter().any(|line: &String| !line.is_empty()));
        let entry = Entry { file, path, identity, lines, is_kept };
        if !is_ours {
            entry.file.set_len(0)?;
            entry.write(&entry.identity)?;
        }
        Ok(Some(entry))
    }
}

/// Whether a file is the one that has a path.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let file = file.metadata()?;
    match fs::metadata(path) {
        Ok(there) => Ok((file.dev(), file.ino()) == (there.dev(), there.ino())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
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
        self.lines.clear();
        self.is_kept.store(false, Ordering::Relaxed);
        self.file.set_len(0)?;
        self.write(&self.identity)
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
        text.extend_from_slice(b"\0\0\0\n\xff\xfe\n{\"to\xc3");
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
        assert!(journal.find("a", "b").unwrap().is_none());
        assert_eq!(left(), 0);
        journal.open("a", "b").unwrap().unwrap().add(&1).unwrap();
        assert_eq!(left(), 1);
        assert_eq!(journal.find("a", "b").unwrap().unwrap().earlier::<u64>(), [1]);
        journal.open("a", "b").unwrap().unwrap().begin_anew().unwrap();
        assert_eq!(left(), 0);
    }

    #[test]
    fn what_is_small_finds_what_was_left_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("j");
        let journal = || Journal::new(path.clone(), "s".to_owned());
        let between = |to: &str| Some(("a".to_owned(), to.to_owned()));
        let small = |journal: &Journal, to: &str| journal.remember(false, || between(to)).is_some();
        let first = journal();
        assert!(first.remember(false, || panic!("nothing is there to look for")).is_none());
        first.remember(true, || between("b")).unwrap().add(&1).unwrap();
        assert!(small(&first, "b") && !small(&first, "c"));
        let second = journal();
        assert!(small(&second, "b") && !small(&second, "c"));
        // Whoever made it knows of it, others no more than was there when they looked.
        first.open("a", "c").unwrap().unwrap().add(&1).unwrap();
        assert!(small(&first, "c") && !small(&second, "c") && small(&journal(), "c"));
    }

    /// One is removed by its path: it must be the one that is there.
    #[test]
    fn nobody_has_one_that_was_removed() {
        let directory = tempfile::tempdir().unwrap();
        let journal = Journal::new(directory.path().to_owned(), "s".to_owned());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let Some(entry) = journal.open("a", "b").unwrap() else { continue };
                        assert!(is_at(&entry.file, &entry.path).unwrap());
                        entry.add(&1).unwrap();
                        entry.remove().unwrap();
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
        });
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
