//! Files below a directory, found on a thread of their own while those found before are carried.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::mpsc;
use tradewind_core::Timestamp;
use tradewind_core::error::{Error, Reason};

use super::failed;
use crate::moves::FOUND_AHEAD;
use crate::names::name_of;
use crate::progress::Progress;
use crate::{FoundItem, Item};

/// Finds every file below `root`, in no order that means anything. What is neither file nor directory is told of as a
/// failure; symbolic links are followed where `follows` says so, to files only, and told of otherwise.
pub fn find(root: PathBuf, follows: bool, progress: Arc<Progress>) -> mpsc::Receiver<FoundItem> {
    let (found, items) = mpsc::channel(FOUND_AHEAD);
    tokio::task::spawn_blocking(move || {
        let walk = Walk { root, follows, found, progress };
        if walk.all().is_ok() {
            walk.progress.found_all();
        }
    });
    items
}

/// Nobody takes what is found any more.
struct Abandoned;

struct Walk {
    root: PathBuf,
    follows: bool,
    found: mpsc::Sender<FoundItem>,
    progress: Arc<Progress>,
}

impl Walk {
    fn all(&self) -> Result<(), Abandoned> {
        let mut directories = vec![self.root.clone()];
        while let Some(directory) = directories.pop() {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(e) => {
                    self.tell(Err((directory.display().to_string(), failed("list", &directory, e))))?;
                    continue;
                }
            };
            for entry in entries {
                match entry {
                    Ok(entry) => self.one(&entry, &mut directories)?,
                    Err(e) => {
                        self.tell(Err((directory.display().to_string(), failed("list", &directory, e))))?;
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn one(&self, entry: &DirEntry, directories: &mut Vec<PathBuf>) -> Result<(), Abandoned> {
        let path = entry.path();
        let kind = match entry.file_type() {
            Ok(kind) => kind,
            Err(e) => return self.fail(&path, failed("look at", &path, e)),
        };
        if kind.is_dir() {
            directories.push(path);
            return Ok(());
        }
        let metadata = if kind.is_symlink() && self.follows { fs::metadata(&path) } else { entry.metadata() };
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(e) => return self.fail(&path, failed("look at", &path, e)),
        };
        if !metadata.is_file() {
            let what = if kind.is_symlink() {
                "is a symbolic link, not followed to what is no file or not asked to be (--follow-symlinks)"
            } else {
                "is neither a file nor a directory"
            };
            return self
                .fail(&path, Error::new(Reason::InvalidRequest, format!("{} {what}", path.display())));
        }
        let below = path.strip_prefix(&self.root).unwrap_or(&path);
        match name_of(below) {
            Ok(name) => {
                self.progress.found(metadata.len());
                let modified = metadata.modified().map(Timestamp::from).unwrap_or_default();
                self.tell(Ok(Item { name, size: metadata.len(), modified }))
            }
            Err(e) => self.fail(&path, e),
        }
    }

    fn fail(&self, path: &Path, error: Error) -> Result<(), Abandoned> {
        self.tell(Err((path.display().to_string(), error)))
    }

    fn tell(&self, found: FoundItem) -> Result<(), Abandoned> {
        self.found.blocking_send(found).map_err(|_| Abandoned)
    }
}
