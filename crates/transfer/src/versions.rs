//! Listing and removal of the versions and delete markers of the objects below a prefix.
//!
//! Invariant: a delete marker is removed only once all versions of its key that have bytes are removed. An interrupted
//! removal would otherwise bring a deleted object back.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;
use tradewind_core::error::Result;
use tradewind_core::listing::ListEntry;
use tradewind_core::version::{ListVersions, VersionPosition, VersionsPage};
use tradewind_parallel::TransferContext;

use crate::filter::Filter;
use crate::merge::Action;
use crate::objects::{MAX_PAGE_KEYS, Objects};
use crate::progress::Progress;
use crate::workers::{MAX_QUEUED_ITEMS, Outcome, run_actions};
use crate::{Feed, Item, NamedError};

/// Number of listed versions that are removed before the delete markers listed with them.
const MAX_BATCH_VERSIONS: usize = 8192;

/// A version or a delete marker of an object that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionItem {
    /// Its name and version. The size of a delete marker is 0.
    pub item: Item,
    /// True for a delete marker.
    pub is_delete_marker: bool,
}

/// The versions of a listing: in key order, and from the newest to the oldest of a key.
pub type VersionFeed = Feed<VersionItem>;

/// Listed versions to remove.
#[derive(Debug, Default)]
struct Batch {
    /// Versions with bytes.
    versions: Vec<Item>,
    /// Delete markers of keys that are listed completely, and of the key listed last.
    markers: Vec<Item>,
    last_name: Option<String>,
}

impl Batch {
    fn push(&mut self, VersionItem { item, is_delete_marker }: VersionItem) {
        if self.last_name.as_ref() != Some(&item.name) {
            self.last_name = Some(item.name.clone());
        }
        if is_delete_marker { self.markers.push(item) } else { self.versions.push(item) }
    }

    /// Takes the delete markers of the keys before the one listed last, which may have further versions. They are in
    /// reverse order, the oldest of a key first: a store then finds the newest remaining one at once.
    fn take_complete_markers(&mut self) -> Vec<Item> {
        let last = self.last_name.as_ref();
        let (open, mut complete): (_, Vec<_>) =
            self.markers.drain(..).partition(|item| Some(&item.name) == last);
        self.markers = open;
        complete.reverse();
        complete
    }
}

impl Objects {
    /// One page of the versions after a position, with common prefixes rolled up at `delimiter`. In a store without
    /// versions, each object is its `null` version.
    pub async fn list_versions_page(
        &self,
        transfers: &TransferContext,
        delimiter: Option<&str>,
        after: Option<VersionPosition>,
    ) -> Result<VersionsPage> {
        let (prefix, delimiter) = (self.prefix.clone(), delimiter.map(str::to_owned));
        let request = &ListVersions { prefix, delimiter, after, limit: MAX_PAGE_KEYS };
        transfers
            .retry(|| async move {
                let permits = transfers.acquire_request_permits(0).await?;
                self.store.list_versions(&permits.context, &self.bucket, request).await
            })
            .await
    }

    /// Lists every version and every delete marker. The listing stops when the feed is dropped.
    ///
    /// A caller that removes versions while they are listed may get some of them again, but misses none.
    pub fn find_versions(self, transfers: Arc<TransferContext>) -> VersionFeed {
        let (sender, items) = mpsc::channel(MAX_QUEUED_ITEMS);
        let location = self.describe("");
        let task = tokio::spawn(async move {
            let mut after = None;
            loop {
                let page = match self.list_versions_page(&transfers, None, after).await {
                    Ok(page) => page,
                    Err(e) => {
                        // Sending fails only if the receiver was dropped.
                        let _ = sender.send(Err((self.describe(""), e))).await;
                        return;
                    }
                };
                for entry in page.entries {
                    let ListEntry::Key(key, listed) = entry else { continue };
                    let is_delete_marker = listed.object.is_none();
                    let item = Item {
                        name: key.get(self.prefix.len()..).unwrap_or(&key).to_owned(),
                        size: listed.object.map_or(0, |object| object.size),
                        modified: listed.modified,
                        changed: None,
                        nanos: Default::default(),
                        version: Some(listed.version),
                    };
                    if sender.send(Ok(VersionItem { item, is_delete_marker })).await.is_err() {
                        return;
                    }
                }
                after = page.next;
                if after.is_none() {
                    return;
                }
            }
        });
        VersionFeed::new(items, location, task)
    }

    /// Removes every version and every delete marker whose name the filter accepts. The delete markers of a key are
    /// removed last, and only if all its other versions were.
    pub async fn remove_versions(
        self,
        transfers: Arc<TransferContext>,
        filter: Filter,
        progress: &Arc<Progress>,
    ) -> Result<Outcome> {
        let mut found = self.clone().find_versions(transfers.clone());
        let removal = VersionRemoval {
            objects: self,
            transfers,
            progress: progress.clone(),
            failed_names: Arc::default(),
        };
        let (mut all, mut batch) = (Outcome::default(), Batch::default());
        loop {
            let mut failure: Option<NamedError> = None;
            let (mut is_complete, mut listed) = (false, 0);
            while listed < MAX_BATCH_VERSIONS && !is_complete && failure.is_none() {
                listed += 1;
                match found.recv().await {
                    Some(Ok(version)) if !filter.accepts(&version.item.name) => {}
                    Some(Ok(version)) => {
                        progress.add_found(version.item.size);
                        batch.push(version);
                    }
                    Some(Err(error)) => failure = Some(error),
                    None => is_complete = true,
                }
            }
            if is_complete {
                progress.complete_listing();
            }
            all.add(removal.remove(std::mem::take(&mut batch.versions)).await?);
            if !all.stopped_early {
                if is_complete {
                    batch.last_name = None;
                }
                let (removable, kept) = removal.split_markers(batch.take_complete_markers());
                all.kept_markers += kept;
                all.add(removal.remove(removable).await?);
            }
            let has_failed = failure.is_some();
            if let Some((name, error)) = failure {
                all.record(name, Err(error), progress);
            }
            if is_complete || has_failed || all.stopped_early {
                all.kept_markers += batch.markers.len() as u64;
                all.sort_failures();
                return Ok(all);
            }
        }
    }
}

/// The removal of versions.
struct VersionRemoval {
    objects: Objects,
    transfers: Arc<TransferContext>,
    progress: Arc<Progress>,
    /// Names with a version that was not removed.
    failed_names: Arc<Mutex<HashSet<String>>>,
}

impl VersionRemoval {
    /// Removes the items concurrently, and records the names that failed.
    async fn remove(&self, items: Vec<Item>) -> Result<Outcome> {
        if items.is_empty() {
            return Ok(Outcome::default());
        }
        let (sender, actions) = mpsc::channel(items.len());
        for item in items {
            // Cannot fail: the channel has room for all, and its receiver exists.
            let _ = sender.try_send(Ok(Action::Remove(item)));
        }
        drop(sender);
        let (objects, transfers) = (self.objects.clone(), self.transfers.clone());
        let failed_names = self.failed_names.clone();
        let workers = transfers.max_concurrency();
        run_actions(workers, actions, &self.progress, move |action: Action| {
            let (objects, transfers) = (objects.clone(), transfers.clone());
            let failed_names = failed_names.clone();
            async move {
                let removed = objects.remove_item(&transfers, action.item()).await;
                if removed.is_err() {
                    let mut failed_names = failed_names.lock().unwrap_or_else(PoisonError::into_inner);
                    failed_names.insert(action.item().name.clone());
                }
                removed
            }
        })
        .await
    }

    /// The delete markers that may be removed, and the number of the others.
    fn split_markers(&self, markers: Vec<Item>) -> (Vec<Item>, u64) {
        let failed_names = self.failed_names.lock().unwrap_or_else(PoisonError::into_inner);
        let (kept, removable): (Vec<_>, Vec<_>) =
            markers.into_iter().partition(|item| failed_names.contains(&item.name));
        (removable, kept.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tradewind_core::clock::SystemClock;
    use tradewind_core::object::Expected;
    use tradewind_core::store::StageRequest;
    use tradewind_core::testing::{MemoryStore, context};
    use tradewind_core::{Address, BucketName, Budget, ObjectStore, Precondition, VersionId, Versioning};
    use tradewind_model::plan::Plan;
    use tradewind_model::retry::RetryOptions;

    use super::*;
    use crate::copy::journal_key;

    async fn put(store: &dyn ObjectStore, address: &Address, bytes: &'static [u8]) -> VersionId {
        let mut staged = store.stage(&context(), address, StageRequest::default()).await.unwrap();
        staged.write(Bytes::from_static(bytes)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap().0.version.unwrap()
    }

    #[tokio::test]
    async fn find_versions_lists_every_version_and_find_the_current_ones() {
        let store = MemoryStore::new(SystemClock::shared());
        let (all, bucket) = (context(), BucketName::new("bucket").unwrap());
        store.create_bucket(&all, &bucket).await.unwrap();
        store.set_versioning(&all, &bucket, Versioning::Enabled).await.unwrap();
        let address = |key: &str| Address::parse("bucket", key).unwrap();
        put(&*store, &address("other"), b"x").await;
        let (old, new) =
            (put(&*store, &address("a/x"), b"1").await, put(&*store, &address("a/x"), b"22").await);
        let gone = put(&*store, &address("a/y"), b"333").await;
        let marker = store.delete(&all, &address("a/y"), Precondition::None).await.unwrap().version.unwrap();
        let transfers = Arc::new(TransferContext::new(
            Plan::default(),
            Budget::new(64 << 20),
            SystemClock::shared(),
            RetryOptions::default(),
        ));
        let prefix = "a/".to_owned();
        let objects = Objects { store, scheme: "s3".into(), bucket, prefix, directory: None };
        let collect = async |mut feed: crate::ItemFeed| {
            let mut found = Vec::new();
            while let Some(item) = feed.recv().await {
                let Item { name, size, version, .. } = item.unwrap();
                found.push((name, size, version));
            }
            found
        };
        let entry = |name: &str, size, version: &VersionId| (name.to_owned(), size, Some(version.clone()));
        let versions =
            [entry("x", 2, &new), entry("x", 1, &old), entry("y", 0, &marker), entry("y", 3, &gone)];
        let mut feed = objects.clone().find_versions(transfers.clone());
        let mut found = Vec::new();
        while let Some(version) = feed.recv().await {
            let VersionItem { item, is_delete_marker } = version.unwrap();
            assert_eq!(is_delete_marker, item.version.as_ref() == Some(&marker));
            found.push((item.name, item.size, item.version));
        }
        assert_eq!(found, versions);
        assert_eq!(collect(objects.clone().find(transfers)).await, [("x".to_owned(), 2, None)]);
    }

    #[test]
    fn markers_of_the_key_listed_last_wait_for_its_versions() {
        let version = |name: &str, is_delete_marker| {
            let item = Item {
                name: name.to_owned(),
                size: 0,
                modified: Default::default(),
                changed: None,
                nanos: Default::default(),
                version: None,
            };
            VersionItem { item, is_delete_marker }
        };
        let mut batch = Batch::default();
        for (name, is_marker) in
            [("a", true), ("a", false), ("b", true), ("c", false), ("c", true), ("c", true)]
        {
            batch.push(version(name, is_marker));
        }
        let names = |items: &[Item]| items.iter().map(|item| item.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&batch.versions), ["a", "c"]);
        assert_eq!(names(&batch.take_complete_markers()), ["b", "a"]);
        assert_eq!(names(&batch.markers), ["c", "c"]);
        batch.push(version("d", false));
        assert_eq!(names(&batch.take_complete_markers()), ["c", "c"]);
    }

    #[test]
    fn journal_distinguishes_versions_of_one_key() {
        let current = Address::parse("bucket", "a").unwrap();
        let version = |id: &str| current.clone().with_version(Some(VersionId::parse(id).unwrap()));
        let names = [current.clone(), version("null"), version("v1"), version("v2")].map(|a| journal_key(&a));
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        assert_eq!(names[0], "s3://bucket/a", "journals of earlier releases are found");
    }
}
