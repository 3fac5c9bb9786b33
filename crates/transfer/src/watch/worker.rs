//! Actions on one name of a watched directory. The state of the file system at that moment decides, not the event or
//! the comparison that led to the action.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::GetRequest;

use super::mounts::Mounts;
use super::root::{Lookup, WatchedRoot};
use crate::copy::Resolved;
use crate::endpoint::Endpoint;
use crate::files::{Links, file_error, find_below};
use crate::filter::Filter;
use crate::freshness::StoreClock;
use crate::merge::{Action, Comparison, Merge};
use crate::names::key_to_path;
use crate::workers::{ActionFeed, ActionResult, sync_actions};
use crate::{Copier, Feed, Item, ItemFeed};

/// The result for a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NameOutcome {
    Copied(u64),
    Removed,
    /// The file is missing, but its object was not removed: something was mounted or unmounted at this point above it.
    NotRemoved(PathBuf),
    /// Nothing to do.
    Unchanged,
    /// The file changed during the action, and is checked again after a quiet period.
    ChangedMeanwhile,
}

pub(super) struct Worker {
    pub copier: Arc<Copier>,
    pub root: WatchedRoot,
    pub links: Links,
    /// The mounts below the directory; `None` if nothing is removed.
    pub mounts: Option<Mounts>,
}

impl Worker {
    /// Syncs a name that changed: copies an existing file, or removes the object of a missing one.
    pub async fn sync_name(&self, name: &str) -> Result<NameOutcome> {
        match self.version(name)? {
            Some(version) => {
                let item = Item {
                    name: name.to_owned(),
                    size: version.0,
                    modified: Default::default(),
                    changed: None,
                    nanos: Default::default(),
                    version: None,
                };
                let copied = self.copier.copy(&item).await.map(ActionResult::Copied);
                self.outcome(name, version, copied)
            }
            None if self.mounts.is_some() && self.exists_in_store(name).await? => self.remove(name).await,
            None => Ok(NameOutcome::Unchanged),
        }
    }

    /// Executes an action of a comparison if the file system still agrees with it.
    pub async fn act(&self, action: &Action) -> Result<NameOutcome> {
        let name = &action.item().name;
        match (action, self.version(name)?) {
            (Action::Remove(item), None) => match self.copier.resolve_removal(item)? {
                Some(Resolved::Remove(_)) => self.remove(name).await,
                Some(Resolved::KeepMarker(_)) => {
                    tracing::warn!(name, "a folder marker with bytes is not removed");
                    Ok(NameOutcome::Unchanged)
                }
                Some(Resolved::Copy(_)) | None => Ok(NameOutcome::Unchanged),
            },
            (Action::SkipRemoval(_), _) => Ok(NameOutcome::Unchanged),
            (Action::Remove(_), Some(_)) | (_, None) => Ok(NameOutcome::ChangedMeanwhile),
            (_, Some(version)) => {
                let done = self.copier.act(action).await;
                self.outcome(name, version, done)
            }
        }
    }

    fn outcome(&self, name: &str, before: FileVersion, done: Result<ActionResult>) -> Result<NameOutcome> {
        match done {
            Ok(ActionResult::Copied(bytes)) => Ok(NameOutcome::Copied(bytes)),
            Ok(ActionResult::Removed | ActionResult::KeptMarker | ActionResult::Unchanged) => {
                Ok(NameOutcome::Unchanged)
            }
            // The file changed while it was read; the error is a consequence of that.
            Err(_) if self.version(name)? != Some(before) => Ok(NameOutcome::ChangedMeanwhile),
            Err(e) => Err(e),
        }
    }

    async fn remove(&self, name: &str) -> Result<NameOutcome> {
        self.root.check()?;
        if let Some(point) = self.mounts.as_ref().and_then(|mounts| mounts.changed_above(name)) {
            return Ok(NameOutcome::NotRemoved(point));
        }
        self.copier.remove(name).await?;
        Ok(NameOutcome::Removed)
    }

    /// Updates the known mounts, if anything is removed.
    pub fn refresh_mounts(&self) -> Result<()> {
        self.mounts.as_ref().map_or(Ok(()), Mounts::refresh)
    }

    /// The version of a file now; `None` if no file of that name would be transferred. Fails in the cases that a
    /// listing reports as failures: a file that cannot be accessed was not removed.
    fn version(&self, name: &str) -> Result<Option<FileVersion>> {
        // Objects may have names that lead out of the directory; no file can correspond to them.
        let Ok(below) = key_to_path(name) else { return Ok(None) };
        let path = self.root.path().join(&below);
        let found = self.root.lookup(&below)?;
        // After the lookup, so that a mount that hid or revealed the file is known before the result is used.
        self.refresh_mounts()?;
        match found {
            Lookup::Entry(found) if found.is_symlink() && self.links == Links::Follow => {
                let target = fs::metadata(&path).map_err(|e| file_error("access", &path, e))?;
                if target.is_file() { Ok(Some(version(&target))) } else { Err(skipped_link(&path, &target)) }
            }
            Lookup::Entry(found) => Ok(found.is_file().then(|| version(&found))),
            Lookup::Missing => Ok(None),
            Lookup::ThroughLink(link) => self.check_link(&link).map(|()| None),
        }
    }

    /// Fails for a link to a directory like a listing does; succeeds if links are skipped.
    fn check_link(&self, link: &Path) -> Result<()> {
        match self.links {
            Links::Skip => Ok(()),
            Links::Follow => fs::metadata(link)
                .map_err(|e| file_error("access", link, e))
                .and_then(|target| Err(skipped_link(link, &target))),
        }
    }

    /// Lists the files below a tree, without leaving the directory through a link.
    fn list_source(&self, tree: &str, filter: &Filter) -> ItemFeed {
        // The root's identity is checked by the caller.
        let below = Path::new(tree.trim_end_matches('/'));
        let checked = match self.root.lookup(below) {
            Ok(Lookup::Entry(at)) if at.is_dir() || tree.is_empty() => {
                return self.list_below(&self.copier.from, below, filter);
            }
            Ok(Lookup::Entry(at)) if at.is_symlink() => self.check_link(&self.root.path().join(below)),
            // A directory that is gone is an empty listing.
            Ok(Lookup::Entry(_) | Lookup::Missing) => Ok(()),
            Ok(Lookup::ThroughLink(link)) => self.check_link(&link),
            Err(e) => Err(e),
        };
        match checked {
            Ok(()) => Feed::empty(),
            Err(e) => Feed::with_error(self.root.path().join(below).display().to_string(), e),
        }
    }

    /// Lists the files below a directory of a file endpoint.
    fn list_below(&self, end: &Endpoint, below: &Path, filter: &Filter) -> ItemFeed {
        let Endpoint::Files(directory, links) = end else { return Feed::empty() };
        match directory.tree() {
            Ok(tree) => find_below(tree, below, *links, filter),
            Err(e) => Feed::with_error(directory.root().display().to_string(), e),
        }
    }

    /// Returns true if the store has an object of that name. A file that existed only briefly may never have been
    /// uploaded.
    async fn exists_in_store(&self, name: &str) -> Result<bool> {
        let Endpoint::Objects(objects) = &self.copier.to else { return Ok(true) };
        let (transfers, address) = (&self.copier.transfers, &objects.address(name)?);
        let found = transfers.retry(|| async move {
            let slot = transfers.acquire_request_permits(0).await?;
            objects.store.head(&slot.context, address, GetRequest::default()).await
        });
        match found.await {
            Ok(_) => Ok(true),
            Err(e) if e.reason() == Reason::NoSuchKey => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns the actions that make the objects of a tree match its files.
    pub fn compare(&self, tree: &str, comparison: Comparison, filter: Filter) -> ActionFeed {
        if !tree.is_empty() && filter.excludes_all_below(tree.trim_end_matches('/')) {
            return Feed::empty();
        }
        let source = self.list_source(tree, &filter);
        let destination = match &self.copier.to {
            Endpoint::Objects(objects) => {
                objects.clone().find_in_byte_order(tree, self.copier.transfers.clone())
            }
            files => self.list_below(files, Path::new(tree), &filter),
        };
        let clock = StoreClock::new(&self.copier.from, &self.copier.to);
        let merge = Merge::new(source, destination, comparison).with_clock(clock);
        sync_actions(merge, filter, self.mounts.is_some(), self.copier.progress.clone())
    }
}

/// The version of a file: size and modification time.
type FileVersion = (u64, Option<SystemTime>);

/// The error for a link whose target is not transferred.
fn skipped_link(link: &Path, target: &Metadata) -> Error {
    let what =
        if target.is_dir() { "a directory" } else { "something that is neither a file nor a directory" };
    Error::new(Reason::InvalidRequest, format!("{} is a link to {what}: skipped", link.display()))
}

fn version(found: &Metadata) -> FileVersion {
    (found.len(), found.modified().ok())
}
