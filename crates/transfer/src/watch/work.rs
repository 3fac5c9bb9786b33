//! What is done about a name of a watched directory: what is found at that moment decides, whatever was said of it.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::GetRequest;

use super::mounts::Mounts;
use super::root::{Found, Root};
use crate::ends::End;
use crate::files::{Links, failed, find_below};
use crate::filter::Filter;
use crate::merge::{Action, Comparison, Merge};
use crate::moves::{Decided, Done, sync_all};
use crate::names::path_of;
use crate::{Copier, Feed, Item};

/// What became of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Became {
    Copied(u64),
    Removed,
    /// It is missing, and was not removed: something was mounted or unmounted at this point above it.
    Kept(PathBuf),
    /// There was nothing to do.
    Same,
    /// It changed meanwhile, and is to be looked at again when it is quiet.
    Changed,
}

pub(super) struct Worker {
    pub copier: Arc<Copier>,
    pub root: Root,
    pub links: Links,
    /// What is mounted here, where what went here goes there.
    pub mounts: Option<Mounts>,
}

impl Worker {
    /// Looks at a name that changed: what is there is copied, what is not is removed.
    pub async fn look(&self, name: &str) -> Result<Became> {
        match self.seen(name)? {
            Some(seen) => {
                let copied = self.copier.copy_as(name, Some(seen.0), name).await.map(Done::Copied);
                self.became(name, seen, copied)
            }
            None if self.mounts.is_some() && self.is_there(name).await? => self.remove(name).await,
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
        if let Some(point) = self.mounts.as_ref().and_then(|mounts| mounts.changed_above(name)) {
            return Ok(Became::Kept(point));
        }
        self.copier.remove(name).await?;
        Ok(Became::Removed)
    }

    /// Remembers what is mounted now, where that matters.
    pub fn look_at_mounts(&self) -> Result<()> {
        self.mounts.as_ref().map_or(Ok(()), Mounts::look)
    }

    /// A file as it is now; `None` where there is none that a transfer would take. An error where a walk would tell of
    /// one: what cannot be looked at was not removed.
    fn seen(&self, name: &str) -> Result<Option<Seen>> {
        // Anybody may give an object a name that leads out of the directory: no file here has it.
        let Ok(below) = path_of(name) else { return Ok(None) };
        let path = self.root.path().join(&below);
        let found = self.root.look(&below)?;
        // After that: what took a file out of sight is known when it is missed, and what brought it when it is sent.
        self.look_at_mounts()?;
        match found {
            Found::Itself(found) if found.is_symlink() && self.links == Links::Follow => {
                let target = fs::metadata(&path).map_err(|e| failed("look at", &path, e))?;
                if target.is_file() { Ok(Some(seen(&target))) } else { Err(left_out(&path, &target)) }
            }
            Found::Itself(found) => Ok(found.is_file().then(|| seen(&found))),
            Found::Nothing => Ok(None),
            Found::BehindLink(link) => self.behind(&link).map(|()| None),
        }
    }

    /// What a walk says of a link to a directory: nothing where it passes links over.
    fn behind(&self, link: &Path) -> Result<()> {
        match self.links {
            Links::Skip => Ok(()),
            Links::Follow => fs::metadata(link)
                .map_err(|e| failed("look at", link, e))
                .and_then(|target| Err(left_out(link, &target))),
        }
    }

    /// What is found below a tree, without leaving the directory by a link.
    fn find_here(&self, tree: &str) -> Feed<Item> {
        // The root was looked at before.
        let below = Path::new(tree.trim_end_matches('/'));
        let looked = match self.root.look(below) {
            Ok(Found::Itself(at)) if at.is_dir() || tree.is_empty() => {
                return self.find_in(&self.copier.from, below);
            }
            Ok(Found::Itself(at)) if at.is_symlink() => self.behind(&self.root.path().join(below)),
            // Below a directory that is gone nothing is found.
            Ok(Found::Itself(_) | Found::Nothing) => Ok(()),
            Ok(Found::BehindLink(link)) => self.behind(&link),
            Err(e) => Err(e),
        };
        match looked {
            Ok(()) => Feed::empty(),
            Err(e) => Feed::failed(self.root.path().join(below).display().to_string(), e),
        }
    }

    /// What is found below a directory of an end that holds files.
    fn find_in(&self, end: &End, below: &Path) -> Feed<Item> {
        let End::Files(directory, links) = end else { return Feed::empty() };
        match directory.tree() {
            Ok(tree) => find_below(tree, below, *links),
            Err(e) => Feed::failed(directory.root().display().to_string(), e),
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
    pub fn compare(&self, tree: &str, comparison: Comparison, filter: Filter) -> Decided {
        let here = self.find_here(tree);
        let there = match &self.copier.to {
            End::Objects(objects) => objects.clone().find_below(tree, self.copier.carrier.clone()),
            files => self.find_in(files, Path::new(tree)),
        };
        let merge = Merge::new(here, there, comparison);
        sync_all(merge, filter, self.mounts.is_some(), self.copier.progress.clone())
    }
}

/// What tells a file from what it was a moment ago: its size, and when it was written.
type Seen = (u64, Option<SystemTime>);

/// A link to what a transfer does not take.
fn left_out(link: &Path, target: &Metadata) -> Error {
    let what = if target.is_dir() { "a directory" } else { "what is neither a file nor a directory" };
    Error::new(Reason::InvalidRequest, format!("{} is a link to {what}: it is left out", link.display()))
}

fn seen(found: &Metadata) -> Seen {
    (found.len(), found.modified().ok())
}
