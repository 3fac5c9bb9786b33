//! What is done about a name of a watched directory: what is found at that moment decides, whatever was said of it.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::mpsc;
use tradewind_core::error::{Reason, Result};
use tradewind_core::store::GetRequest;

use super::root::Root;
use crate::Copier;
use crate::ends::End;
use crate::files::{Links, failed, find_below};
use crate::filter::Filter;
use crate::merge::{Action, Comparison, Merge};
use crate::moves::{Done, Next, sync_all};
use crate::names::path_of;

/// What became of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Became {
    Copied(u64),
    Removed,
    /// There was nothing to do.
    Same,
    /// It changed meanwhile, and is to be looked at again when it is quiet.
    Changed,
}

pub(super) struct Worker {
    pub copier: Arc<Copier>,
    pub root: Root,
    pub links: Links,
    pub removes: bool,
}

impl Worker {
    /// Looks at a name that changed: what is there is copied, what is not is removed.
    pub async fn look(&self, name: &str) -> Result<Became> {
        match self.seen(name)? {
            Some(seen) => {
                let copied = self.copier.copy_as(name, Some(seen.0), name).await.map(Done::Copied);
                self.became(name, seen, copied)
            }
            None if self.removes && self.is_there(name).await? => self.remove(name).await,
            None => Ok(Became::Same),
        }
    }

    /// Does what a comparison decided, as far as it still holds.
    pub async fn act(&self, action: &Action) -> Result<Became> {
        let name = &action.item().name;
        match (action, self.seen(name)?) {
            (Action::Remove(_), None) => self.remove(name).await,
            (Action::Remove(_), Some(_)) | (_, None) => Ok(Became::Changed),
            (_, Some(seen)) => {
                let done = self.copier.act(action).await;
                self.became(name, seen, done)
            }
        }
    }

    fn became(&self, name: &str, before: Seen, done: Result<Done>) -> Result<Became> {
        match done {
            Ok(Done::Copied(bytes)) => Ok(Became::Copied(bytes)),
            Ok(Done::Removed | Done::Same) => Ok(Became::Same),
            // Half of it was one file and half another.
            Err(_) if self.seen(name)? != Some(before) => Ok(Became::Changed),
            Err(e) => Err(e),
        }
    }

    async fn remove(&self, name: &str) -> Result<Became> {
        self.root.check()?;
        self.copier.remove(name).await?;
        Ok(Became::Removed)
    }

    /// A file as it is now; `None` where there is none that a transfer would take.
    fn seen(&self, name: &str) -> Result<Option<Seen>> {
        // Anybody may give an object a name that leads out of the directory: no file here has it.
        let Ok(below) = path_of(name) else { return Ok(None) };
        let path = self.root.path().join(below);
        let looked = fs::symlink_metadata(&path).and_then(|found| {
            let is_followed = found.is_symlink() && self.links == Links::Follow;
            if is_followed { fs::metadata(&path) } else { Ok(found) }
        });
        match looked {
            Ok(found) => Ok(found.is_file().then(|| seen(&found))),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(failed("look at", &path, e)),
        }
    }

    /// Whether the store has a name: of what came and went within a moment it knows nothing.
    async fn is_there(&self, name: &str) -> Result<bool> {
        let End::Objects(objects) = &self.copier.to else { return Ok(true) };
        let (carrier, address) = (&self.copier.carrier, &objects.address(name)?);
        let found = carrier.again(|| async move {
            let slot = carrier.slot(0).await?;
            objects.store.head(&slot.context, address, GetRequest::default()).await
        });
        match found.await {
            Ok(_) => Ok(true),
            Err(e) if e.reason() == Reason::NoSuchKey => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// What makes the objects of a tree like its files.
    pub fn compare(&self, tree: &str, comparison: Comparison, filter: Filter) -> mpsc::Receiver<Next> {
        let directory = self.root.path().join(tree);
        let is_there = fs::symlink_metadata(&directory).is_ok_and(|found| found.is_dir());
        // Below a directory that is gone nothing is found; the root was looked at before.
        let here = if is_there || tree.is_empty() {
            find_below(self.root.path().to_owned(), Path::new(tree), self.links)
        } else {
            mpsc::channel(1).1
        };
        let there = match &self.copier.to {
            End::Objects(objects) => objects.clone().find_below(tree.to_owned(), self.copier.carrier.clone()),
            End::Files(directory, links) => {
                find_below(directory.root().to_owned(), &PathBuf::from(tree), *links)
            }
        };
        let merge = Merge::new(here, there, comparison);
        sync_all(merge, filter, self.removes, self.copier.progress.clone())
    }
}

/// What tells a file from what it was a moment ago: its size, and when it was written.
type Seen = (u64, Option<SystemTime>);

fn seen(found: &Metadata) -> Seen {
    (found.len(), found.modified().ok())
}
