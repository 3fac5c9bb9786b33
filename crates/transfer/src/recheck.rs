//! Checks about a copy that another program may have made obsolete: the destination may have changed while an action
//! waited, and the source may have been replaced during the copy.
//!
//! An object has the time of its commit. So an object that was copied while its source was replaced is newer than its
//! source, and no later comparison by times finds the difference.

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Address, Timestamp};
use tradewind_parallel::upload_checkpoint::SourceVersion;

use crate::copy::{Copier, head};
use crate::endpoint::Endpoint;
use crate::freshness::{Freshness, StoreClock, compare_times, is_close};
use crate::names::key_to_path;
use crate::objects::Objects;
use crate::preserve::FileTimes;
use crate::{FileNanos, Item};

/// The number of copies of an item whose source is replaced during each of them.
const MAX_COPIES: u32 = 3;

/// Counts the copies of an item.
#[derive(Debug, Default)]
pub(crate) struct CopyAttempts(u32);

impl CopyAttempts {
    /// Counts a copy whose source was replaced. Fails if the copy is not to be repeated.
    pub(crate) fn count_replaced(&mut self, source: &Address) -> Result<()> {
        self.0 += 1;
        if self.0 < MAX_COPIES {
            return Ok(());
        }
        let why = format!("{:?} was replaced during each of {MAX_COPIES} copies", source.key.as_str());
        Err(Error::new(Reason::Conflict, why))
    }
}

/// A download: the version that was fetched, and when.
#[derive(Debug)]
pub(crate) struct FetchedVersion {
    pub version: SourceVersion,
    /// Time by this machine's clock before the first request.
    pub opened: Timestamp,
}

impl Copier {
    /// Returns true unless the destination has changed since `listed` in such a way that the item need not be copied.
    pub(crate) async fn is_due(&self, item: &Item, listed: &Item) -> Result<bool> {
        let Some(found) = self.find_at_destination(&item.name).await? else { return Ok(true) };
        let is_unchanged = found.size == listed.size
            && match found.changed {
                Some(_) => {
                    (found.modified_time(), found.changed_time())
                        == (listed.modified_time(), listed.changed_time())
                }
                // The time of a HEAD response is in whole seconds.
                None => found.modified.seconds() == listed.modified.seconds(),
            };
        if is_unchanged || found.size != item.size {
            return Ok(true);
        }
        let clock = StoreClock::new(&self.from, &self.to).object_clock();
        Ok(compare_times(item, &found, clock) != Freshness::Current)
    }

    /// The current item of a name at the destination.
    async fn find_at_destination(&self, name: &str) -> Result<Option<Item>> {
        let item = |size, modified| Item {
            name: name.to_owned(),
            size,
            modified,
            changed: None,
            nanos: FileNanos::default(),
            version: None,
        };
        match &self.to {
            Endpoint::Files(directory, links) => {
                let (tree, path) = (directory.tree()?, key_to_path(name)?);
                match tree.stat(&path, *links) {
                    Ok(stat) => {
                        let size = u64::try_from(stat.st_size).unwrap_or(0);
                        Ok(Some(item(size, Timestamp::default()).with_times(FileTimes::from_stat(&stat))))
                    }
                    Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
                    Err(e) => Err(tree.error("access", &path, e)),
                }
            }
            Endpoint::Objects(objects) => {
                match head(&self.transfers, objects, &objects.address(name)?).await {
                    Ok(info) => Ok(Some(item(info.size, info.modified))),
                    Err(e) if is_missing(&e) => Ok(None),
                    Err(e) => Err(e),
                }
            }
        }
    }

    /// Returns true if an object still is the version that was copied, or was removed.
    pub(crate) async fn is_source_current(
        &self,
        from: &Objects,
        source: &Address,
        copied: &SourceVersion,
    ) -> Result<bool> {
        if source.version.is_some() {
            return Ok(true);
        }
        match head(&self.transfers, from, source).await {
            Ok(info) => Ok(copied.is_current(&info)),
            Err(e) if is_missing(&e) => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Like [`is_source_current`](Self::is_source_current), for a file that has the time of its object. Asks only if the
    /// object could be replaced within the second of its time and the file no longer shows that.
    pub(crate) async fn is_download_current(
        &self,
        from: &Objects,
        source: &Address,
        fetched: &FetchedVersion,
    ) -> Result<bool> {
        let (clock, written) = (from.store.object_clock(&from.bucket), fetched.version.modified);
        let ended = self.transfers.clock().wall();
        if !is_close(fetched.opened, written, clock) || is_close(ended, written, clock) {
            return Ok(true);
        }
        self.is_source_current(from, source, &fetched.version).await
    }
}

fn is_missing(error: &Error) -> bool {
    matches!(error.reason(), Reason::NoSuchKey | Reason::DeleteMarker)
}

#[cfg(test)]
mod tests;
