//! A directory that is an endpoint of a transfer. As a source it gives its open tree; as a destination it also creates,
//! resumes and removes files, and is created with the first one.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Algorithm, Checksum};

use super::draft::{Draft, PRIVATE_MODE, TempName, supports_unnamed_files};
use super::location::{FileLocation, MAX_ATTEMPTS, check_replaceable, create_directory, create_parent};
use super::new_file::{DownloadRecord, MIN_PREALLOCATE_BYTES, NewFile, ResumeState};
use super::replaced::{ReplacedFile, set_mode};
use super::{Tree, file_error, is_unfinished};
use crate::journal::Journal;
use crate::progress::Progress;

/// A directory that is an endpoint of a transfer. As a destination it need not exist: it is created with the first
/// file.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    /// The open root once it exists; always `None` unless `holds_root` is set.
    tree: Mutex<Option<Tree>>,
    holds_root: bool,
    /// Random number in the names of unfinished files, which distinguishes them from those of other processes.
    random_id: u64,
    count: AtomicU64,
    /// True if the file system supports unnamed files; determined with the first file.
    supports_unnamed: OnceLock<bool>,
}

impl Directory {
    /// Opens the directory if it exists.
    pub fn new(root: PathBuf) -> Result<Self> {
        let random_id = getrandom::u64()
            .map_err(|e| Error::new(Reason::Defect, format!("cannot get random bytes: {e}")))?;
        let tree = match Tree::open(&root) {
            Ok(tree) => Some(tree),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                nearest_ancestor(&root)?;
                None
            }
            Err(e) => return Err(file_error("open the directory", &root, e)),
        };
        Ok(Self {
            root,
            tree: Mutex::new(tree),
            holds_root: true,
            random_id,
            count: AtomicU64::new(0),
            supports_unnamed: OnceLock::new(),
        })
    }

    /// Reopens the directory for each use. A directory held open cannot be unmounted, which matters for a long watch.
    #[must_use]
    pub fn reopening(self) -> Self {
        Self { tree: Mutex::default(), holds_root: false, ..self }
    }

    /// The path of the directory, for messages.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The tree of the directory; an error if it does not exist.
    pub fn tree(&self) -> Result<Tree> {
        self.opened(Tree::open)
    }

    /// The tree of the directory, which is created if it is missing.
    fn create_tree(&self) -> Result<Tree> {
        self.opened(Tree::create)
    }

    fn opened(&self, open: impl FnOnce(&Path) -> io::Result<Tree>) -> Result<Tree> {
        let mut tree = self.tree.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tree) = &*tree {
            return Ok(tree.clone());
        }
        let opened = open(&self.root).map_err(|e| file_error("open the directory", &self.root, e))?;
        if self.holds_root {
            *tree = Some(opened.clone());
        }
        Ok(opened)
    }

    /// The tree of the directory, or of its nearest existing ancestor.
    pub(crate) fn nearest_tree(&self) -> Result<Tree> {
        if let Ok(tree) = self.tree() {
            return Ok(tree);
        }
        nearest_ancestor(&self.root)
    }

    /// Creates a directory at a path relative to this one, which may be empty. Follows no link.
    pub fn create_directory(&self, relative: &Path) -> Result<()> {
        create_directory(&self.create_tree()?, relative).map(drop)
    }

    /// Returns true if a path relative to the directory leads to a directory, through no link.
    #[must_use]
    pub fn has_directory(&self, relative: &Path) -> bool {
        self.tree().is_ok_and(|tree| tree.directory(relative).is_ok())
    }

    /// Returns true if a path relative to the directory leads to a directory, through no link. Fails if that cannot be
    /// determined.
    pub(crate) fn find_directory(&self, relative: &Path) -> Result<bool> {
        let tree = self.tree()?;
        match tree.directory(relative) {
            Ok(_) => Ok(true),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(false),
            Err(_) if tree.first_link(relative).is_some() => Ok(false),
            Err(e) => Err(tree.error("access", relative, e)),
        }
    }

    /// Removes a file below the directory, and its parent directories that become empty. Follows no link.
    pub fn remove(&self, relative: &Path) -> Result<()> {
        self.remove_file(relative)?;
        // The first directory that is not empty ends the removal.
        relative.ancestors().skip(1).take_while(|parent| self.remove_empty(parent)).for_each(drop);
        Ok(())
    }

    /// Removes a file below the directory, but no parent directory. Follows no link.
    pub(crate) fn remove_file(&self, relative: &Path) -> Result<()> {
        let (tree, location) = (self.tree()?, FileLocation::split(relative)?);
        let parent = tree.directory(location.parent).map_err(|e| tree.error("remove", relative, e))?;
        let removed = unlinkat(&parent, location.name, AtFlags::empty());
        removed.map_err(|e| tree.error("remove", relative, e.into()))
    }

    /// Removes a directory below this one if it is empty. Returns true if it was removed.
    pub(crate) fn remove_empty(&self, relative: &Path) -> bool {
        let Ok(FileLocation { parent, name }) = FileLocation::split(relative) else { return false };
        let parent =
            self.tree().and_then(|tree| tree.directory(parent).map_err(|e| tree.error("open", parent, e)));
        parent.is_ok_and(|parent| unlinkat(&parent, name, AtFlags::REMOVEDIR).is_ok())
    }

    /// Returns true if a directory below this one has no entries.
    pub(crate) fn is_empty(&self, relative: &Path) -> bool {
        self.tree().is_ok_and(|tree| super::find::is_empty(&tree, relative).unwrap_or(false))
    }

    /// Starts a file of `size` bytes at a path relative to the directory. A private file is accessible only by its
    /// owner until it is finished, because its final permissions are set only then.
    pub fn create_file(
        &self,
        relative: &Path,
        size: u64,
        progress: Arc<Progress>,
        is_private: bool,
    ) -> Result<NewFile> {
        let options = FileOptions { size, is_private, needs_name: false, has_holes: false };
        self.create_with(relative, progress, &options)
    }

    /// Starts a file at a path relative to the directory.
    pub(crate) fn create_with(
        &self,
        relative: &Path,
        progress: Arc<Progress>,
        options: &FileOptions,
    ) -> Result<NewFile> {
        let tree = self.create_tree()?;
        // A concurrent removal may delete a directory as long as no named file is in it.
        let mut attempt = 1;
        loop {
            match self.try_create(&tree, relative, &progress, options) {
                Err(e) if e.reason() == Reason::NoSuchKey && attempt < MAX_ATTEMPTS => attempt += 1,
                created => return created,
            }
        }
    }

    fn try_create(
        &self,
        tree: &Tree,
        relative: &Path,
        progress: &Arc<Progress>,
        options: &FileOptions,
    ) -> Result<NewFile> {
        let (location, parent) = (FileLocation::split(relative)?, create_parent(tree, relative)?);
        if !options.needs_name && options.size <= MIN_PREALLOCATE_BYTES && self.supports_unnamed(&parent) {
            // A different file system may be mounted below the root; if it cannot, fall back to a named file.
            if let Ok(draft) = Draft::unnamed(&parent) {
                // Its destination is checked when it is published.
                return Ok(self.new_file(tree.clone(), relative, draft, progress.clone(), options));
            }
        }
        check_replaceable(tree, &parent, relative)?;
        let temp_name = self.temp_name().for_file(location.name);
        let is_private = options.is_private || ReplacedFile::find(tree, relative).is_some();
        let options = &FileOptions { is_private, ..*options };
        let draft =
            Draft::named(parent, temp_name, is_private).map_err(|e| tree.error("create", relative, e))?;
        let new = self.new_file(tree.clone(), relative, draft, progress.clone(), options);
        if options.size > MIN_PREALLOCATE_BYTES && !options.has_holes {
            new.preallocate()?;
        }
        Ok(new)
    }

    fn new_file(
        &self,
        tree: Tree,
        relative: &Path,
        draft: Draft,
        progress: Arc<Progress>,
        options: &FileOptions,
    ) -> NewFile {
        NewFile {
            draft,
            tree,
            relative: relative.to_owned(),
            path: self.root.join(relative),
            temp_name: self.temp_name(),
            size: options.size,
            is_private: options.is_private,
            is_published: false,
            progress,
            resume_state: None,
            write_lock: Mutex::default(),
        }
    }

    fn temp_name(&self) -> TempName {
        TempName { random_id: self.random_id, number: self.count.fetch_add(1, Ordering::Relaxed) }
    }

    /// Determined once for the root: nearly all directories below it are on the same file system.
    fn supports_unnamed(&self, parent: &OwnedFd) -> bool {
        *self
            .supports_unnamed
            .get_or_init(|| supports_unnamed_files(parent, &self.temp_name().for_file(OsStr::new("try"))))
    }

    /// Like [`create_file`](Self::create_file), for a version of an object. Resumes the unfinished file that the
    /// journal records, if it is of the same version; otherwise removes it and starts a new one.
    pub fn resume_file(
        &self,
        relative: &Path,
        version: &ObjectVersion<'_>,
        progress: Arc<Progress>,
        journal: Option<Journal>,
        is_private: bool,
    ) -> Result<NewFile> {
        let size = version.size;
        let Some(mut journal) = journal else {
            return self.create_file(relative, size, progress, is_private);
        };
        // Its final permissions are set at its end, in another process perhaps.
        let options = FileOptions { size, is_private: true, needs_name: true, has_holes: false };
        let mut records = journal.records::<DownloadRecord>().into_iter();
        if let Some(DownloadRecord::Started { version: earlier, size: earlier_size, unfinished, id }) =
            records.next()
        {
            let (tree, parent) = self.create_tree_and_parent(relative)?;
            let draft = match (unfinished_name(&unfinished), id) {
                (Some(name), Some(id)) if earlier == version.etag && earlier_size == size => {
                    let reopened = Draft::reopen(parent.try_clone().map_err(descriptor_error)?, name, &id);
                    reopened.map_err(|e| tree.error("open the unfinished file of", relative, e))?
                }
                _ => None,
            };
            if let Some(draft) = draft {
                // A file system without modes cannot set it.
                set_mode(&draft.file, PRIVATE_MODE).map_err(|e| {
                    file_error("change the mode of the unfinished file of", &self.root.join(relative), e)
                })?;
                let mut new = self.new_file(tree, relative, draft, progress, &options);
                new.resume_state = Some(ResumeState { ranges: recorded_ranges(records), journal });
                return Ok(new);
            }
            if let Some(name) = unfinished_name(&unfinished)
                && let Err(e) = unlinkat(&parent, &name, AtFlags::empty())
                && e != Errno::NOENT
            {
                tracing::warn!(error = %e, path = %unfinished.display(), "cannot remove an unfinished file");
            }
        }
        let mut new = self.create_with(relative, progress, &options)?;
        let Some(unfinished) = new.draft.name().map(PathBuf::from) else { return Ok(new) };
        let id = new.draft.id().map_err(|e| file_error("access", &new.path, e))?;
        let record =
            DownloadRecord::Started { version: version.etag.to_owned(), size, unfinished, id: Some(id) };
        match journal.reset().and_then(|()| journal.append(&record)) {
            Ok(()) => new.resume_state = Some(ResumeState { ranges: HashMap::new(), journal }),
            Err(e) => {
                tracing::warn!(error = %e, "cannot write the download journal; if interrupted, this download cannot resume")
            }
        }
        Ok(new)
    }

    fn create_tree_and_parent(&self, relative: &Path) -> Result<(Tree, OwnedFd)> {
        let tree = self.create_tree()?;
        let parent = create_parent(&tree, relative)?;
        Ok((tree, parent))
    }
}

/// The nearest existing ancestor of a missing directory. The missing part must not contain `..`, because the directory
/// would be compared at one location and created at another.
fn nearest_ancestor(root: &Path) -> Result<Tree> {
    let path = std::path::absolute(root).map_err(|e| file_error("find", root, e))?;
    for ancestor in path.ancestors().skip(1) {
        let Ok(tree) = Tree::open(ancestor) else { continue };
        if path.strip_prefix(ancestor).is_ok_and(|missing| missing.iter().any(|name| name == "..")) {
            let why =
                format!("{} leads through a missing directory and back; write it without ..", root.display());
            return Err(Error::new(Reason::InvalidArgument, why));
        }
        return Ok(tree);
    }
    Err(file_error("find", root, Errno::NOENT))
}

/// A version of an object.
#[derive(Debug, Clone, Copy)]
pub struct ObjectVersion<'a> {
    /// Size in bytes.
    pub size: u64,
    /// Identifies the version.
    pub etag: &'a str,
}

/// The properties of a file to create.
pub(crate) struct FileOptions {
    pub size: u64,
    /// If set, only its owner can access the file until it is finished.
    pub is_private: bool,
    /// If set, the file has a name from the start, so that another transfer can resume it.
    pub needs_name: bool,
    /// If set, no space is reserved.
    pub has_holes: bool,
}

/// The name of a recorded unfinished file, in the directory of its destination. Earlier versions recorded a full path.
fn unfinished_name(recorded: &Path) -> Option<OsString> {
    recorded.file_name().filter(|name| is_unfinished(name.as_encoded_bytes())).map(OsStr::to_owned)
}

fn recorded_ranges(records: impl Iterator<Item = DownloadRecord>) -> HashMap<(u64, u64), Checksum> {
    let range = |record| match record {
        DownloadRecord::Range { offset, length, algorithm, checksum } => {
            let algorithm: Algorithm = algorithm.parse().ok()?;
            Some(((offset, length), Checksum::from_base64(algorithm, &checksum).ok()?))
        }
        DownloadRecord::Started { .. } => None,
    };
    records.filter_map(range).collect()
}

fn descriptor_error(e: io::Error) -> Error {
    Error::with_source(Reason::Defect, format!("cannot open more files: {e}"), e)
}
