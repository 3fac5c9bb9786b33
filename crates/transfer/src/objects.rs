//! Objects below a prefix, found page by page while those of the pages before are carried.

use std::sync::Arc;

use tokio::sync::mpsc;
use tradewind_core::error::Result;
use tradewind_core::listing::{ListEntry, ListPage, ListRequest, ObjectSummary};
use tradewind_core::{BucketName, ObjectStore};
use tradewind_volume::Carrier;

use crate::moves::FOUND_AHEAD;
use crate::{FoundItem, Item};

/// S3 gives no more on a page.
const PAGE: usize = 1000;
/// Connections that are made before anybody knows how many objects there are, at the most, and for which size of them.
const EXPECTED: usize = 64;
const SMALL: u64 = 64 << 10;

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

    /// All that will be found are going to be fetched: connections are made while they are listed, where it is known that many are of
    /// use.
    pub fn expect(&self, carrier: &Carrier) {
        if carrier.plan().at_a_time.is_some() {
            self.store.expect_requests(&self.bucket, carrier.plan().parallel_at_first(SMALL).min(EXPECTED));
        }
    }

    /// One page behind `after`, rolled up at `delimiter`.
    pub async fn page(
        &self,
        carrier: &Carrier,
        delimiter: Option<&str>,
        after: Option<String>,
    ) -> Result<ListPage<ObjectSummary>> {
        let request = ListRequest {
            prefix: self.prefix.clone(),
            delimiter: delimiter.map(str::to_owned),
            after,
            limit: PAGE,
        };
        let request = &request;
        carrier
            .again(|| async move {
                let slot = carrier.slot(0).await?;
                self.store.list(&slot.context, &self.bucket, request).await
            })
            .await
    }

    /// Finds all of them, in order of their keys. Ends early where nobody takes them any more.
    pub fn find(self, carrier: Arc<Carrier>) -> mpsc::Receiver<FoundItem> {
        self.find_below(String::new(), carrier)
    }

    /// The same of those whose names begin with `below`.
    pub fn find_below(mut self, below: String, carrier: Arc<Carrier>) -> mpsc::Receiver<FoundItem> {
        let beginning = self.prefix.len();
        self.prefix.push_str(&below);
        let (found, items) = mpsc::channel(FOUND_AHEAD);
        tokio::spawn(async move {
            let mut after = None;
            loop {
                let page = match self.page(&carrier, None, after).await {
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
        items
    }
}
