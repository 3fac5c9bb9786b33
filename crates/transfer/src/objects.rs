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

/// Objects of a bucket whose keys begin with a prefix.
#[derive(Debug, Clone)]
pub struct Objects {
    /// Where.
    pub store: Arc<dyn ObjectStore>,
    /// The bucket.
    pub bucket: BucketName,
    /// What their keys begin with; names are what follows.
    pub prefix: String,
}

impl Objects {
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
                        let place = format!("s3://{}/{}", self.bucket, self.prefix);
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
