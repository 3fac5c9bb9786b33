//! Objects below a prefix, found page by page while those of the pages before are carried.

use std::path::Path;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tradewind_core::error::Result;
use tradewind_core::listing::{ListEntry, ListPage, ListRequest, ObjectSummary};
use tradewind_core::{BucketName, ObjectStore};
use tradewind_volume::Carrier;

use crate::moves::FOUND_AHEAD;
use crate::{Found, Item};

/// S3 gives no more on a page.
const PAGE: usize = 1000;
/// Connections that are made before anybody knows how many objects there are, at the most, and for which size of them.
const EXPECTED: usize = 64;
const SMALL: u64 = 64 << 10;
/// Keys that tell that there are many more objects than connections were made for. They come a round trip or more before a page that is
/// not zipped, where keys are not very long.
const BEGINNING: usize = 128;

/// Objects of a bucket whose keys begin with a prefix.
#[derive(Debug, Clone)]
pub struct Objects {
    /// Where.
    pub store: Arc<dyn ObjectStore>,
    /// What people call the store: what stands before `://` in the names of its objects.
    pub scheme: Arc<str>,
    /// The bucket.
    pub bucket: BucketName,
    /// What their keys begin with; names are what follows.
    pub prefix: String,
    /// The directory of a local store.
    pub directory: Option<Arc<Path>>,
}

impl Objects {
    /// A name below the prefix, as people write it.
    #[must_use]
    pub fn describe(&self, name: &str) -> String {
        format!("{}://{}/{}{name}", self.scheme, self.bucket, self.prefix)
    }

    /// Whether both are of one store. Of two handles what they say of themselves decides: one service may go by two
    /// names.
    #[must_use]
    pub fn shares_store(&self, other: &Self) -> bool {
        self.has_handle_of(other) || format!("{:?}", self.store) == format!("{:?}", other.store)
    }

    /// Whether the store can be asked to copy from one to the other: keys that are good for one end may not be for the
    /// other.
    pub(crate) fn has_handle_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store)
    }

    /// One page behind `after`, rolled up at `delimiter`.
    pub async fn page(
        &self,
        carrier: &Carrier,
        delimiter: Option<&str>,
        after: Option<String>,
    ) -> Result<ListPage<ObjectSummary>> {
        carrier.again(|| self.ask(carrier, delimiter, after.clone(), PAGE)).await
    }

    async fn ask(
        &self,
        carrier: &Carrier,
        delimiter: Option<&str>,
        after: Option<String>,
        limit: usize,
    ) -> Result<ListPage<ObjectSummary>> {
        let (prefix, delimiter) = (self.prefix.clone(), delimiter.map(str::to_owned));
        let slot = carrier.slot(0).await?;
        self.store.list(&slot.context, &self.bucket, &ListRequest { prefix, delimiter, after, limit }).await
    }

    /// Finds all of them, in order of their keys. Ends early where nobody takes them any more.
    pub fn find(self, carrier: Arc<Carrier>) -> Found {
        self.search("", carrier, false)
    }

    /// The same of those whose names begin with `below`.
    pub fn find_below(self, below: &str, carrier: Arc<Carrier>) -> Found {
        self.search(below, carrier, false)
    }

    /// The same for whoever fetches all that is found: connections are made meanwhile, where it is known that many are of use.
    pub fn find_to_fetch(self, carrier: Arc<Carrier>) -> Found {
        self.search("", carrier, true)
    }

    /// Makes connections before anybody knows how many objects there are. Where more would be of use, the beginning of the listing
    /// says whether there are many, sooner than a page, until what is answered is dropped.
    fn expect(&self, carrier: &Arc<Carrier>) -> JoinSet<()> {
        let mut look = JoinSet::new();
        if carrier.plan().at_a_time.is_none() {
            return look;
        }
        let of_use = carrier.most_at_first(SMALL);
        self.store.expect_requests(&self.bucket, of_use.min(EXPECTED));
        if of_use > EXPECTED {
            let (objects, carrier) = (self.clone(), carrier.clone());
            look.spawn(async move {
                // Why this fails is told by whoever asks for the page.
                let Ok(page) = objects.ask(&carrier, None, None, BEGINNING).await else { return };
                if page.entries.len() >= BEGINNING {
                    objects.store.expect_requests(&objects.bucket, of_use);
                }
            });
        }
        look
    }

    fn search(mut self, below: &str, carrier: Arc<Carrier>, is_fetched: bool) -> Found {
        let beginning = self.prefix.len();
        self.prefix.push_str(below);
        let (found, items) = mpsc::channel(FOUND_AHEAD);
        let place = self.describe("");
        let task = tokio::spawn(async move {
            let mut look = if is_fetched { self.expect(&carrier) } else { JoinSet::new() };
            let mut after = None;
            loop {
                let page = self.page(&carrier, None, after).await;
                look.abort_all();
                let page = match page {
                    Ok(page) => page,
                    Err(e) => {
                        let place = self.describe("");
                        // Nobody is left to tell where this fails.
                        let _ = found.send(Err((place, e))).await;
                        return;
                    }
                };
                for entry in page.entries {
                    let ListEntry::Key(key, summary) = entry else { continue };
                    let name = key.get(beginning..).unwrap_or(&key).to_owned();
                    let item = Item { name, size: summary.size, modified: summary.modified };
                    if found.send(Ok(item)).await.is_err() {
                        return;
                    }
                }
                after = page.next;
                if after.is_none() {
                    return;
                }
            }
        });
        Found::new(items, place, task)
    }
}

#[cfg(test)]
mod tests {
    use tradewind_core::clock::SystemClock;
    use tradewind_core::object::Expected;
    use tradewind_core::store::StageRequest;
    use tradewind_core::testing::{MemoryStore, Passthrough, context};
    use tradewind_core::{Address, Budget};
    use tradewind_model::plan::Plan;
    use tradewind_model::retry::RetryOptions;
    use tradewind_model::tune::{Belief, Cell, Sample, Surface};

    use super::*;

    /// So many objects behind so long a line of 1 Gbit/s.
    async fn laid(
        round_trip: Option<f64>,
        objects: usize,
    ) -> (Arc<Passthrough<MemoryStore>>, Arc<Carrier>, Objects) {
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
            let sample = |(bytes, parallel): (u64, usize)| {
                let cell = Cell { bytes, parallel };
                let latency = (round_trip + 1e-3).max(cell.in_flight() / 118e6);
                Sample { cell, latency, error: 0.02, tail: None, is_seen: false }
            };
            let cells = [(4 << 10, 1), (64 << 10, 1), (64 << 10, 256), (1 << 20, 64)];
            let belief = Belief::default().with_round_trip(round_trip);
            Plan::default().tuned(&[Surface::new(belief, cells.map(sample).to_vec())])
        });
        let carrier = Arc::new(Carrier::new(
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
        (store, carrier, objects)
    }

    /// Requests that the store is told to expect of whoever fetches them.
    async fn expected(round_trip: Option<f64>, objects: usize) -> usize {
        let (store, carrier, objects) = laid(round_trip, objects).await;
        objects.expect(&carrier).join_all().await;
        store.expected()
    }

    #[tokio::test]
    async fn only_for_who_fetches_are_connections_made() {
        let (store, carrier, objects) = laid(Some(0.176), 5).await;
        let count = async |mut found: Found| {
            let mut count = 0;
            while found.recv().await.is_some_and(|item| item.is_ok()) {
                count += 1;
            }
            count
        };
        assert_eq!(count(objects.clone().find(carrier.clone())).await, 5);
        assert_eq!(count(objects.clone().find_below("00", carrier.clone())).await, 5);
        assert_eq!(store.expected(), 0);
        assert_eq!(count(objects.find_to_fetch(carrier)).await, 5);
        assert_eq!(store.expected(), EXPECTED);
    }

    #[tokio::test]
    async fn many_are_expected_once_it_is_known_that_there_are_many() {
        assert_eq!(expected(None, 100).await, 0, "nothing is known of the store");
        assert!(expected(Some(0.01), 100).await < EXPECTED, "more would be in each other's way");
        assert_eq!(expected(Some(0.176), 5).await, EXPECTED);
        assert_eq!(expected(Some(0.176), BEGINNING - 1).await, EXPECTED);
        let many = expected(Some(0.176), BEGINNING + 1).await;
        assert!(many > 256, "{many}");
    }
}
