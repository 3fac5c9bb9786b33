//! Listing of the objects below a prefix. Pages are requested while the items of earlier pages are transferred.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tradewind_core::error::Result;
use tradewind_core::listing::{ListEntry, ListPage, ListPosition, ListRequest, ObjectSummary};
use tradewind_core::store::Feature;
use tradewind_core::{BucketName, ObjectStore};
use tradewind_parallel::TransferContext;

use crate::byte_order::in_byte_order;
use crate::workers::MAX_QUEUED_ITEMS;
use crate::{Item, ItemFeed};

/// Maximum number of keys that S3 returns in a page.
pub(crate) const MAX_PAGE_KEYS: usize = 1000;
/// Maximum number of connections opened before the number of objects is known.
const MAX_EARLY_CONNECTIONS: usize = 64;
/// Object size for which connections are opened in advance.
const EARLY_OBJECT_BYTES: u64 = 64 << 10;
/// Page size of the early listing, which shows whether there are many objects. In slow start its response needs at
/// least one round trip less than a full page without gzip, unless keys are very long.
const EARLY_LISTING_KEYS: usize = 128;

/// The parameters of a listing.
#[derive(Debug, Clone, Copy)]
struct Listing<'a> {
    /// Only names that begin with this.
    name_prefix: &'a str,
    /// The caller fetches everything listed.
    will_fetch: bool,
    order: Order,
}

/// The order that a caller needs.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// Any.
    OfStore,
    /// The order of bytes: the listing fails in any other.
    OfBytes,
}

/// Objects of a bucket whose keys begin with a prefix.
#[derive(Debug, Clone)]
pub struct Objects {
    /// The store.
    pub store: Arc<dyn ObjectStore>,
    /// The URL scheme of the store: the part of its object URLs before `://`.
    pub scheme: Arc<str>,
    /// The bucket.
    pub bucket: BucketName,
    /// The key prefix; names are relative to it.
    pub prefix: String,
    /// The directory of a local store; `None` for a remote store.
    pub directory: Option<Arc<Path>>,
}

impl Objects {
    /// The URL of a name below the prefix, for display.
    #[must_use]
    pub fn describe(&self, name: &str) -> String {
        format!("{}://{}/{}{name}", self.scheme, self.bucket, self.prefix)
    }

    /// Returns true if both belong to one store. Different handles are compared by their debug output, because one
    /// service may be configured under two names.
    #[must_use]
    pub fn shares_store(&self, other: &Self) -> bool {
        self.has_same_handle(other) || format!("{:?}", self.store) == format!("{:?}", other.store)
    }

    /// Returns true if both use the same store handle, and a server-side copy is possible. With different handles, the
    /// credentials of one may not be valid for the other.
    pub(crate) fn has_same_handle(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store)
    }

    /// One page of the listing after the position `after`, with common prefixes rolled up at `delimiter`.
    pub async fn list_page(
        &self,
        transfers: &TransferContext,
        delimiter: Option<&str>,
        after: Option<ListPosition>,
    ) -> Result<ListPage<ObjectSummary>> {
        transfers.retry(|| self.request_page(transfers, delimiter, after.clone(), MAX_PAGE_KEYS)).await
    }

    async fn request_page(
        &self,
        transfers: &TransferContext,
        delimiter: Option<&str>,
        after: Option<ListPosition>,
        limit: usize,
    ) -> Result<ListPage<ObjectSummary>> {
        let (prefix, delimiter) = (self.prefix.clone(), delimiter.map(str::to_owned));
        let permits = transfers.acquire_request_permits(0).await?;
        self.store
            .list(&permits.context, &self.bucket, &ListRequest { prefix, delimiter, after, limit })
            .await
    }

    /// Lists all objects in the order of the store. The listing stops when the feed is dropped.
    pub fn find(self, transfers: Arc<TransferContext>) -> ItemFeed {
        self.find_with_prefix("", transfers)
    }

    /// Like [`find`](Self::find), but only for names that begin with `name_prefix`.
    pub fn find_with_prefix(self, name_prefix: &str, transfers: Arc<TransferContext>) -> ItemFeed {
        self.spawn_listing(Listing { name_prefix, will_fetch: false, order: Order::OfStore }, transfers)
    }

    /// Like [`find_with_prefix`](Self::find_with_prefix), in byte order of the names. If the store may list in another order,
    /// objects follow when all are listed.
    pub fn find_in_byte_order(self, name_prefix: &str, transfers: Arc<TransferContext>) -> ItemFeed {
        if self.store.capabilities().supports(Feature::ByteOrder) {
            return self
                .spawn_listing(Listing { name_prefix, will_fetch: false, order: Order::OfBytes }, transfers);
        }
        let location = self.describe(name_prefix);
        in_byte_order(self.find_with_prefix(name_prefix, transfers), location)
    }

    /// Like [`find`](Self::find), for a caller that fetches everything listed. Opens connections concurrently if the
    /// store's profile says that many are useful.
    pub fn find_and_prewarm(self, transfers: Arc<TransferContext>) -> ItemFeed {
        let listing = Listing { name_prefix: "", will_fetch: true, order: Order::OfStore };
        self.spawn_listing(listing, transfers)
    }

    /// Opens connections before the number of objects is known.
    ///
    /// If more than [`MAX_EARLY_CONNECTIONS`] would be useful, an early listing requests the first keys. The rest of
    /// the connections is opened if there are many objects. Dropping the returned set cancels the early listing.
    fn prewarm(&self, transfers: &Arc<TransferContext>) -> JoinSet<()> {
        let mut early_listing = JoinSet::new();
        if transfers.plan().concurrency_by_size.is_none() {
            return early_listing;
        }
        let useful = transfers.concurrency_on_new_connections_for(EARLY_OBJECT_BYTES);
        self.store.prewarm(&self.bucket, useful.min(MAX_EARLY_CONNECTIONS));
        if useful > MAX_EARLY_CONNECTIONS {
            let (objects, transfers) = (self.clone(), transfers.clone());
            early_listing.spawn(async move {
                // The request for the full page reports the error.
                let Ok(page) = objects.request_page(&transfers, None, None, EARLY_LISTING_KEYS).await else {
                    return;
                };
                if page.entries.len() >= EARLY_LISTING_KEYS {
                    objects.store.prewarm(&objects.bucket, useful);
                }
            });
        }
        early_listing
    }

    fn spawn_listing(mut self, listing: Listing<'_>, transfers: Arc<TransferContext>) -> ItemFeed {
        let Listing { name_prefix, will_fetch, order } = listing;
        let prefix_len = self.prefix.len();
        self.prefix.push_str(name_prefix);
        let (sender, items) = mpsc::channel(MAX_QUEUED_ITEMS);
        let location = self.describe("");
        let task = tokio::spawn(async move {
            let mut early_listing = if will_fetch { self.prewarm(&transfers) } else { JoinSet::new() };
            let mut after = None;
            loop {
                let page = self.list_page(&transfers, None, after.clone()).await;
                early_listing.abort_all();
                let page = page.and_then(|page| match order {
                    Order::OfBytes => page.check_order(after.as_ref()).map(|()| page),
                    Order::OfStore => Ok(page),
                });
                let page = match page {
                    Ok(page) => page,
                    Err(e) => {
                        let location = self.describe("");
                        // Sending fails only if the receiver was dropped.
                        let _ = sender.send(Err((location, e).into())).await;
                        return;
                    }
                };
                for entry in page.entries {
                    let ListEntry::Key(key, summary) = entry else { continue };
                    let name = key.get(prefix_len..).unwrap_or(&key).to_owned();
                    let item = Item {
                        name,
                        size: summary.size,
                        modified: summary.modified,
                        changed: None,
                        nanos: Default::default(),
                        version: None,
                    };
                    if sender.send(Ok(item)).await.is_err() {
                        return;
                    }
                }
                after = page.next;
                if after.is_none() {
                    return;
                }
            }
        });
        ItemFeed::new(items, location, task)
    }
}

#[cfg(test)]
mod tests {
    use tradewind_core::clock::SystemClock;
    use tradewind_core::object::Expected;
    use tradewind_core::store::StageRequest;
    use tradewind_core::testing::{
        Fault, FaultPlan, FaultSchedule, Faulty, MemoryStore, Operation, Passthrough, context,
    };
    use tradewind_core::{Address, Budget};
    use tradewind_model::plan::Plan;
    use tradewind_model::retry::RetryOptions;
    use tradewind_model::tune::{OperatingPoint, Prior, Sample, Surface};

    use super::*;

    /// A store with `objects` objects and, if `round_trip` is given, a profile of a 1 Gbit/s link with that RTT in
    /// seconds.
    async fn store_with_profile(
        round_trip: Option<f64>,
        objects: usize,
    ) -> (Arc<Passthrough<MemoryStore>>, Arc<TransferContext>, Objects) {
        let store = Passthrough::new(MemoryStore::new(SystemClock::shared()));
        let all = context();
        let bucket = BucketName::new("bucket").unwrap();
        store.create_bucket(&all, &bucket).await.unwrap();
        for number in 0..objects {
            let address = Address::parse("bucket", &format!("a/{number:03}")).unwrap();
            let staged = store.stage(&all, &address, StageRequest::default()).await.unwrap();
            staged.commit(Expected::default()).await.unwrap();
        }
        let plan = round_trip.map_or_else(Plan::default, |round_trip| {
            let sample = |(bytes, concurrency): (u64, usize)| {
                let point = OperatingPoint { bytes, concurrency };
                let latency = (round_trip + 1e-3).max(point.bytes_in_flight() / 118e6);
                Sample { point, latency, relative_error: 0.02, tail: None, from_transfer: false }
            };
            let points = [(4 << 10, 1), (64 << 10, 1), (64 << 10, 256), (1 << 20, 64)];
            let prior = Prior::default().with_rtt(round_trip);
            Plan::default().tuned(&[Surface::new(prior, points.map(sample).to_vec())])
        });
        let transfers = Arc::new(TransferContext::new(
            plan,
            Budget::new(64 << 20),
            SystemClock::shared(),
            RetryOptions::default(),
        ));
        let objects = Objects {
            store: store.clone(),
            scheme: "s3".into(),
            bucket,
            prefix: "a/".to_owned(),
            directory: None,
        };
        (store, transfers, objects)
    }

    /// The number of connections that the store is asked to open for a caller that fetches the objects.
    async fn early_connections(round_trip: Option<f64>, objects: usize) -> usize {
        let (store, transfers, objects) = store_with_profile(round_trip, objects).await;
        objects.prewarm(&transfers).join_all().await;
        store.max_prewarm_hint()
    }

    #[tokio::test]
    async fn only_find_to_fetch_opens_connections_early() {
        let (store, transfers, objects) = store_with_profile(Some(0.176), 5).await;
        let count = async |mut items: ItemFeed| {
            let mut count = 0;
            while items.recv().await.is_some_and(|item| item.is_ok()) {
                count += 1;
            }
            count
        };
        assert_eq!(count(objects.clone().find(transfers.clone())).await, 5);
        assert_eq!(count(objects.clone().find_with_prefix("00", transfers.clone())).await, 5);
        assert_eq!(store.max_prewarm_hint(), 0);
        assert_eq!(count(objects.find_and_prewarm(transfers)).await, 5);
        assert_eq!(store.max_prewarm_hint(), MAX_EARLY_CONNECTIONS);
    }

    #[tokio::test]
    async fn early_listing_of_many_objects_opens_more_connections() {
        assert_eq!(early_connections(None, 100).await, 0, "the store has no profile");
        assert!(early_connections(Some(0.01), 100).await < MAX_EARLY_CONNECTIONS, "more would be useless");
        assert_eq!(early_connections(Some(0.176), 5).await, MAX_EARLY_CONNECTIONS);
        assert_eq!(early_connections(Some(0.176), EARLY_LISTING_KEYS - 1).await, MAX_EARLY_CONNECTIONS);
        let many = early_connections(Some(0.176), EARLY_LISTING_KEYS + 1).await;
        assert!(many > 256, "{many}");
    }

    /// The names, and the reasons of failures, of a listing of a store that has been given another order.
    async fn names_of_unordered_store(
        find: impl FnOnce(Objects, Arc<TransferContext>) -> ItemFeed,
    ) -> Vec<String> {
        let (store, transfers, mut objects) = store_with_profile(None, 3).await;
        let unordered =
            FaultPlan::none().with_fault(Operation::List, FaultSchedule::Always, Fault::UnorderedListing);
        objects.store = Faulty::new(store, unordered);
        let mut items = find(objects, transfers);
        let mut found = Vec::new();
        while let Some(item) = items.recv().await {
            found.push(item.map_or_else(|failure| format!("{:?}", failure.error.reason()), |item| item.name));
        }
        found
    }

    #[tokio::test]
    async fn listing_in_another_order_fails_only_where_order_is_needed() {
        let in_any_order = names_of_unordered_store(|objects, transfers| objects.find(transfers)).await;
        assert_eq!(in_any_order, ["002", "001", "000"]);
        // The store says that it lists in byte order.
        let in_order = |objects: Objects, transfers| objects.find_in_byte_order("", transfers);
        assert_eq!(names_of_unordered_store(in_order).await, ["Unsupported"]);
    }
}
