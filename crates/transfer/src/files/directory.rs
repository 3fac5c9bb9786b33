//! A directory that files are written into: where each goes, what becomes of the directories above it, and what an earlier
//! transfer left of it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{AtFlags, Mode, fchmod, unlinkat};
use rustix::io::Errno;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Checksum};

use super::draft::{Draft, SpareName, can_do_without_name};
use super::new::{Line, NewFile, Resumable, WORTH_PREALLOCATING};
use super::place::{FilePlace, MAX_ATTEMPTS, check_replaceable, make_parent};
use super::{Tree, failed, is_unfinished};
use crate::journal::Entry;
use crate::progress::Progress;

/// A directory that files are written into. It need not exist: it is made with the first file.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    /// Held open once it exists, unless it is looked up again with each use.
    tree: Mutex<Option<Tree>>,
    is_held: bool,
    /// Tells the unfinished files of one process and moment from those of others.
    mark: u64,
    count: AtomicU64,
    /// Whether files need no name while they are written; found out with the first.
    needs_no_name: OnceLock<bool>,
}

impl Directory {
    /// Opens the directory where it exists.
    pub fn new(root: PathBuf) -> Result<Self> {
        let mark = getrandom::u64()
            .map_err(|e| Error::new(Reason::Defect, format!("the system gives no random bytes: {e}")))?;
        let tree = match Tree::open(&root) {
            Ok(tree) => Some(tree),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                nearest(&root)?;
                None
            }
            Err(e) => return Err(failed("open the directory", &root, e)),
        };
        Ok(Self {
            root,
            tree: Mutex::new(tree),
            is_held: true,
            mark,
            count: AtomicU64::new(0),
            needs_no_name: OnceLock::new(),
        })
    }

    /// The same directory, looked up again with each use: one that is held open cannot be unmounted, and a watch goes on for
    /// long.
    #[must_use]
    pub fn released(self) -> Self {
        Self { tree: Mutex::default(), is_held: false, ..self }
    }

    /// Its path, for messages.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The tree below it; an error where it does not exist.
    pub fn tree(&self) -> Result<Tree> {
        self.opened(Tree::open)
    }

    /// The tree below it, made where it is missing.
    fn made_tree(&self) -> Result<Tree> {
        self.opened(Tree::make)
    }

    fn opened(&self, open: impl FnOnce(&Path) -> io::Result<Tree>) -> Result<Tree> {
        let mut tree = self.tree.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tree) = &*tree {
            return Ok(tree.clone());
        }
        let opened = open(&self.root).map_err(|e| failed("open the directory", &self.root, e))?;
        if self.is_held {
            *tree = Some(opened.clone());
        }
        Ok(opened)
    }

    /// The tree of the directory, or of the nearest existing one above it.
    pub(crate) fn nearest_tree(&self) -> Result<Tree> {
        if let Ok(tree) = self.tree() {
            return Ok(tree);
        }
        nearest(&self.root)
    }

    /// Removes a file below the directory, and the directories above it that are empty then. No link is followed.
    pub fn remove(&self, below: &Path) -> Result<()> {
        let (tree, place) = (self.tree()?, FilePlace::of(below)?);
        let parent = tree.directory(place.parent).map_err(|e| tree.failed("remove", below, e))?;
        let removed = unlinkat(&parent, place.name, AtFlags::empty());
        removed.map_err(|e| tree.failed("remove", below, e.into()))?;
        let mut emptied = place.parent;
        while let Ok(FilePlace { parent, name }) = FilePlace::of(emptied) {
            // A directory that is not empty stays, and so do those above it.
            let removed = tree
                .directory(parent)
                .and_then(|directory| Ok(unlinkat(&directory, name, AtFlags::REMOVEDIR)?));
            if removed.is_err() {
                break;
            }
            emptied = parent;
        }
        Ok(())
    }

    /// Begins a file of `size` bytes at a path below the directory. A private one nobody else can open before it is
    /// finished: what it will allow others is not known to them yet.
    pub fn begin(
        &self,
        below: &Path,
        size: u64,
        progress: Arc<Progress>,
        is_private: bool,
    ) -> Result<NewFile> {
        self.begin_as(below, progress, &Shape { size, is_private, is_named: false })
    }

    fn begin_as(&self, below: &Path, progress: Arc<Progress>, shape: &Shape) -> Result<NewFile> {
        let tree = self.made_tree()?;
        // A removal may take a directory that is empty, until something in it has a name.
        let mut attempt = 1;
        loop {
            match self.try_to_begin(&tree, below, &progress, shape) {
                Err(e) if e.reason() == Reason::NoSuchKey && attempt < MAX_ATTEMPTS => attempt += 1,
                begun => return begun,
            }
        }
    }

    fn try_to_begin(
        &self,
        tree: &Tree,
        below: &Path,
        progress: &Arc<Progress>,
        shape: &Shape,
    ) -> Result<NewFile> {
        let (place, parent) = (FilePlace::of(below)?, make_parent(tree, below)?);
        if !shape.is_named && shape.size <= WORTH_PREALLOCATING && self.needs_no_name(&parent) {
            // Another file system may begin below the root: what it cannot do is done with a name.
            if let Ok(draft) = Draft::unnamed(&parent) {
                // Its place is checked when it gets its name.
                return Ok(self.file(tree.clone(), below, draft, progress.clone(), shape));
            }
        }
        check_replaceable(tree, &parent, below)?;
        let spare = self.spare_name().beside(place.name);
        let draft =
            Draft::named(parent, spare, shape.is_private).map_err(|e| tree.failed("make", below, e))?;
        let new = self.file(tree.clone(), below, draft, progress.clone(), shape);
        if shape.size > WORTH_PREALLOCATING {
            new.preallocate()?;
        }
        Ok(new)
    }

    fn file(
        &self,
        tree: Tree,
        below: &Path,
        draft: Draft,
        progress: Arc<Progress>,
        shape: &Shape,
    ) -> NewFile {
        let (path, below, spare) = (self.root.join(below), below.to_owned(), self.spare_name());
        let &Shape { size, is_private, .. } = shape;
        let (is_kept, resumable, turn) = (false, None, Mutex::default());
        NewFile { draft, tree, below, path, spare, size, is_private, is_kept, progress, resumable, turn }
    }

    fn spare_name(&self) -> SpareName {
        SpareName { mark: self.mark, number: self.count.fetch_add(1, Ordering::Relaxed) }
    }

    /// Below one root nearly always the same.
    fn needs_no_name(&self, parent: &OwnedFd) -> bool {
        let spare = || self.spare_name().beside(OsStr::new("try"));
        *self.needs_no_name.get_or_init(|| can_do_without_name(parent, &spare()))
    }

    /// The same for a version of an object, going on with what an earlier transfer left of it.
    pub fn resume(
        &self,
        below: &Path,
        version: &Version<'_>,
        progress: Arc<Progress>,
        journal: Option<Entry>,
        is_private: bool,
    ) -> Result<NewFile> {
        let size = version.size;
        let Some(mut journal) = journal else { return self.begin(below, size, progress, is_private) };
        let shape = Shape { size, is_private, is_named: true };
        let mut lines = journal.earlier::<Line>().into_iter();
        if let Some(Line::Begun { version: earlier, size: earlier_size, unfinished, id }) = lines.next() {
            let (tree, parent) = self.parent_of(below)?;
            let draft = match (unfinished_name(&unfinished), id) {
                (Some(name), Some(id)) if earlier == version.etag && earlier_size == size => {
                    let reopened = Draft::reopen(parent.try_clone().map_err(no_descriptor)?, name, &id);
                    reopened.map_err(|e| tree.failed("open what is unfinished of", below, e))?
                }
                _ => None,
            };
            if let Some(draft) = draft {
                if is_private {
                    fchmod(&draft.file, Mode::RUSR | Mode::WUSR).map_err(|e| {
                        failed("change the mode of what is unfinished of", &self.root.join(below), e)
                    })?;
                }
                let mut new = self.file(tree, below, draft, progress, &shape);
                new.resumable = Some(Resumable { chunks: chunks_of(lines), journal });
                return Ok(new);
            }
            if let Some(name) = unfinished_name(&unfinished)
                && let Err(e) = unlinkat(&parent, &name, AtFlags::empty())
                && e != Errno::NOENT
            {
                tracing::warn!(error = %e, path = %unfinished.display(), "an unfinished file is left");
            }
        }
        let mut new = self.begin_as(below, progress, &shape)?;
        let Some(unfinished) = new.draft.name().map(PathBuf::from) else { return Ok(new) };
        let id = new.draft.id().map_err(|e| failed("look at", &new.path, e))?;
        let begun = Line::Begun { version: version.etag.to_owned(), size, unfinished, id: Some(id) };
        match journal.begin_anew().and_then(|()| journal.add(&begun)) {
            Ok(()) => new.resumable = Some(Resumable { chunks: HashMap::new(), journal }),
            Err(e) => tracing::warn!(error = %e, "a download is not remembered: killed, it would begin anew"),
        }
        Ok(new)
    }

    fn parent_of(&self, below: &Path) -> Result<(Tree, OwnedFd)> {
        let tree = self.made_tree()?;
        let parent = make_parent(&tree, below)?;
        Ok((tree, parent))
    }
}

/// The nearest existing directory above one that is missing. What is still to be made must not lead back up: it would be
/// compared as one directory and made as another.
fn nearest(root: &Path) -> Result<Tree> {
    let path = std::path::absolute(root).map_err(|e| failed("find", root, e))?;
    for above in path.ancestors().skip(1) {
        let Ok(tree) = Tree::open(above) else { continue };
        if path.strip_prefix(above).is_ok_and(|missing| missing.iter().any(|part| part == "..")) {
            let why =
                format!("{} leads through a missing directory and back; write it without ..", root.display());
            return Err(Error::new(Reason::InvalidArgument, why));
        }
        return Ok(tree);
    }
    Err(failed("find", root, Errno::NOENT))
}

/// A version of an object.
#[derive(Debug, Clone, Copy)]
pub struct Version<'a> {
    /// In bytes.
    pub size: u64,
    /// What tells it from other versions.
    pub etag: &'a str,
}

/// How a file is to be made.
struct Shape {
    size: u64,
    is_private: bool,
    /// It needs a name from the beginning: another transfer may go on with it.
    is_named: bool,
}

/// The name of an unfinished file beside its destination. Earlier versions recorded its path.
fn unfinished_name(recorded: &Path) -> Option<OsString> {
    recorded.file_name().filter(|name| is_unfinished(name.as_encoded_bytes())).map(OsStr::to_owned)
}

fn chunks_of(lines: impl Iterator<Item = Line>) -> HashMap<(u64, u64), Checksum> {
    let chunk = |line| match line {
        Line::Chunk { offset, length, algorithm, checksum } => {
            let algorithm: Algorithm = algorithm.parse().ok()?;
            Some(((offset, length), Checksum::from_base64(algorithm, &checksum).ok()?))
        }
        Line::Begun { .. } => None,
    };
    lines.filter_map(chunk).collect()
}

fn no_descriptor(e: io::Error) -> Error {
    Error::with_source(Reason::Defect, format!("no more files can be opened: {e}"), e)
}
