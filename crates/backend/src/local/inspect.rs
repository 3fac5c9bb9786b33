//! Read-only inspection of a store, which may be on a read-only file system, a snapshot, or the only proof of a loss.
//! The index library writes to an index when it opens one. So this module opens a private copy in a temporary
//! directory. The tables, which are immutable and most of an index, are symbolic links in it. Records that the index
//! does not cover are applied to the copy.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use tempfile::TempDir;
use tradewind_core::error::{Error, Reason, Result};

use super::index::Index;
use super::index::entries::Coverage;
use super::index::trust::IndexTrust;
use super::index_fit::{IndexFit, catch_up, replay_tail};
use super::io_threads::io_error;
use super::layout::{lock_for_reading, read_salt};
use super::loss::{Loss, LossProof};
use super::loss_evidence::MissingRanges;
use super::open::read_buckets;
use super::pending_records::InheritedFacts;
use super::record::BucketId;
use super::recovery::Recovery;
use super::reindex::reindex;
use super::replay::LogSurvey;
use super::segment_files::{OpenPurpose, SegmentFiles};

/// The library's directory of key spaces: `keyspaces/*/tables`.
const KEYSPACES: &str = "keyspaces";
/// Directory of a key space's tables.
const TABLES: &str = "tables";
/// Zero blocks of this size become holes in a copy: journals are preallocated.
const COPY_BLOCK_BYTES: usize = 64 << 10;

/// The state of a store's index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexState {
    /// It belongs to this log and would prove a loss at the log's end.
    Good,
    /// There is no index.
    Missing,
    /// It cannot be read.
    Unreadable(String),
    /// It is an older copy that the log cannot bring up to date.
    Outdated(String),
}

/// A store as it would be served, locked against being opened elsewhere.
pub(super) struct Inspection {
    pub files: SegmentFiles,
    /// The private copy, or one rebuilt from the log. Dropped before its directory.
    pub index: Index,
    pub buckets: BTreeMap<BucketId, String>,
    pub state: IndexState,
    /// Acknowledged changes that are lost.
    pub loss: Option<Loss>,
    /// Lost unless the index is an older copy; the two cases cannot be distinguished.
    pub possible_loss: Option<Loss>,
    _temporary: TempDir,
    _lock: Option<File>,
}

impl Inspection {
    /// Inspects the store in `root`, with a temporary directory inside `temporary`. An error if another process has
    /// the store open.
    pub fn open(root: &Path, temporary: &Path) -> Result<Self> {
        let salt = read_salt(root)?;
        let lock = lock_for_reading(root)?;
        let files = SegmentFiles::open(&root.join("segments"), salt, OpenPurpose::Inspection)?;
        let directory = make_temporary(root, temporary)?;
        let prepared = PreparedIndex::new(root, &files, directory.path());
        let PreparedIndex { index, state, loss, possible_loss } =
            prepared.map_err(|e| explain_full(e, temporary))?;
        let buckets = read_buckets(&index)?.into_values().map(|bucket| (bucket.id, bucket.name)).collect();
        Ok(Self { files, index, buckets, state, loss, possible_loss, _temporary: directory, _lock: lock })
    }
}

fn make_temporary(root: &Path, temporary: &Path) -> Result<TempDir> {
    let failed = |e| {
        let shown = temporary.display();
        io_error(&format!("cannot create a temporary directory in {shown}; specify another one"), e)
    };
    // The inspected store must not change.
    let (inside, outside) =
        (temporary.canonicalize().map_err(failed)?, root.canonicalize().unwrap_or_else(|_| root.to_owned()));
    if inside.starts_with(&outside) {
        let shown = temporary.display();
        let why = format!("{shown} is inside the store; specify another directory for the temporary index");
        return Err(Error::new(Reason::InvalidArgument, why));
    }
    // Private to this user, like the store itself.
    tempfile::Builder::new().prefix("tradewind-index-").tempdir_in(&inside).map_err(failed)
}

fn explain_full(e: Error, temporary: &Path) -> Error {
    if e.reason() != Reason::Full {
        return e;
    }
    let shown = temporary.display();
    let why = format!(
        "{shown} has too little free space for a temporary copy of the index; specify another directory"
    );
    Error::with_source(Reason::Full, why, e)
}

/// An index in a temporary directory that agrees with the log, and the state of the store's own index.
struct PreparedIndex {
    index: Index,
    state: IndexState,
    loss: Option<Loss>,
    possible_loss: Option<Loss>,
}

/// Reasons not to use a store's index. Opening the store would rebuild the index; an inspection rebuilds it elsewhere.
enum UnusableIndex {
    State(IndexState),
    /// Its creation was interrupted.
    Empty(InheritedFacts),
    /// See [`IndexFit::Ambiguous`].
    Ambiguous(Loss),
}

impl From<IndexState> for UnusableIndex {
    fn from(state: IndexState) -> Self {
        Self::State(state)
    }
}

impl PreparedIndex {
    fn new(root: &Path, files: &SegmentFiles, directory: &Path) -> Result<Self> {
        let (mut possible_loss, mut inherited) = (None, InheritedFacts::default());
        let existing = catch_unwind(AssertUnwindSafe(|| Self::from_index(root, files, directory)))
            .unwrap_or_else(|_| Err(Error::new(Reason::CorruptData, "the index cannot be read")));
        let state = match existing {
            Ok(Ok(prepared)) => return Ok(prepared),
            Ok(Err(UnusableIndex::State(state))) => state,
            Ok(Err(UnusableIndex::Empty(facts))) => {
                inherited = facts;
                IndexState::Unreadable("it does not record its coverage".to_owned())
            }
            Ok(Err(UnusableIndex::Ambiguous(loss))) => {
                possible_loss = Some(loss);
                IndexState::Outdated("it is an older copy, or parts of the log are lost".to_owned())
            }
            Err(e) if e.reason() == Reason::CorruptData => IndexState::Unreadable(e.message().to_owned()),
            Err(e) => return Err(e),
        };
        let index = Index::open(&directory.join("rebuilt"))?;
        let survey = LogSurvey::scan(files, Coverage::EMPTY)?;
        let is_voided = |at| survey.is_voided(at) || inherited.has_accepted(at);
        let missing = MissingRanges::find_in_log(files, survey.durable_ends(), is_voided);
        let loss = (!missing.is_empty()).then(|| missing.to_loss(LossProof::Log));
        inherited.write_to(&index, survey.coverage)?;
        reindex(files, &index, &survey, &mut Recovery::default())?;
        Ok(Self { index, state, loss, possible_loss })
    }

    /// Opens a copy of the store's index; the inner error is the reason why it is unusable.
    fn from_index(
        root: &Path,
        files: &SegmentFiles,
        directory: &Path,
    ) -> Result<Result<Self, UnusableIndex>> {
        let (original, copy) = (root.join("index"), directory.join("index"));
        if !original.exists() {
            return Ok(Err(IndexState::Missing.into()));
        }
        if IndexTrust::must_rebuild(&original) {
            let why = "it broke in use, or crashed the process";
            return Ok(Err(IndexState::Unreadable(why.to_owned()).into()));
        }
        let failed = |e| io_error("the index could not be copied", e);
        copy_index(&original.canonicalize().map_err(failed)?, &copy).map_err(failed)?;
        let index = Index::open(&copy)?;
        let mut recovery = Recovery::default();
        let loss = match catch_up(&index, files, &mut recovery)? {
            IndexFit::Current(_) => None,
            IndexFit::Empty if InheritedFacts::is_interrupted_rebuild(&index)? => {
                return Ok(Err(UnusableIndex::Empty(InheritedFacts::read_from(&index, files)?)));
            }
            IndexFit::Empty => {
                return Ok(Err(IndexState::Unreadable("it does not record its coverage".to_owned()).into()));
            }
            IndexFit::Outdated(why) => return Ok(Err(IndexState::Outdated(why).into())),
            IndexFit::Lost(loss) => Some(loss),
            IndexFit::Ambiguous(possible_loss) => return Ok(Err(UnusableIndex::Ambiguous(possible_loss))),
        };
        if loss.is_some()
            && let Some(coverage) = index.coverage()?
        {
            // The remaining data is verified as it would be served once the loss is accepted.
            replay_tail(&index, coverage, files, &mut recovery)?;
        }
        Ok(Ok(Self { index, state: IndexState::Good, loss, possible_loss: None }))
    }
}

/// Copies an index so that the copy can be opened and changed while the original stays unchanged.
fn copy_index(from: &Path, to: &Path) -> std::io::Result<()> {
    copy_directory(from, to, Path::new(""))
}

/// Copies a directory of an index. `inside` is its path relative to the index's directory.
fn copy_directory(from: &Path, to: &Path, inside: &Path) -> std::io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        // Follows a symbolic link.
        if std::fs::metadata(&source)?.is_dir() {
            copy_directory(&source, &target, &inside.join(entry.file_name()))?;
        } else if holds_tables(inside) {
            std::os::unix::fs::symlink(&source, &target)?;
        } else {
            copy_sparse(&source, &target)?;
        }
    }
    Ok(())
}

/// Returns true for a directory of tables inside an index: `keyspaces/*/tables`, or one below.
fn holds_tables(inside: &Path) -> bool {
    let mut names = inside.iter();
    names.next().is_some_and(|name| name == KEYSPACES)
        && names.next().is_some()
        && names.next().is_some_and(|name| name == TABLES)
}

fn copy_sparse(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut source = File::open(from)?;
    let mut target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)?;
    let mut block = vec![0; COPY_BLOCK_BYTES];
    let mut length = 0;
    loop {
        let read = match source.read(&mut block) {
            Ok(0) => return target.set_len(length),
            Ok(read) => read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        length += read as u64;
        if block[..read].iter().all(|byte| *byte == 0) {
            target.seek(SeekFrom::Start(length))?;
        } else {
            target.write_all(&block[..read])?;
        }
    }
}

/// Bytes on disk of all files below a directory; 0 if the directory is missing.
pub(super) fn disk_bytes(directory: &Path) -> std::io::Result<u64> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e),
    };
    let mut bytes = 0;
    for entry in entries {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { disk_bytes(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(bytes)
}
