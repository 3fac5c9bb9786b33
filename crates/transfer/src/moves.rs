//! Many items at a time: taken one after the other from where they are found, each carried by one of many workers.
//! What fails is told of at the end; everything else is done.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};

use crate::progress::Progress;
use crate::{FoundItem, Item};

/// Items that were found and wait for a worker, at the most.
pub const FOUND_AHEAD: usize = 1024;
/// Failures that are kept by name; of more only the number.
const MOST_NAMED: usize = 1000;

/// How a transfer ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Names of what failed, and why.
    pub failures: Vec<(String, Error)>,
    /// All that failed, those without a place in `failures` among them.
    pub failed: u64,
    /// Items that are where they belong now.
    pub done: u64,
    /// Bytes in them.
    pub bytes: u64,
}

impl Outcome {
    fn fail(&mut self, name: String, error: Error) {
        self.failed += 1;
        if self.failures.len() < MOST_NAMED {
            self.failures.push((name, error));
        }
    }
}

/// Workers that carry items.
#[derive(Debug)]
pub struct Moves {
    /// Items at a time.
    pub workers: usize,
    /// Where they tell how far they are.
    pub progress: Arc<Progress>,
}

impl Moves {
    /// Carries all items that `found` yields. Dropping the future stops all workers.
    pub async fn run<F, C>(&self, found: mpsc::Receiver<FoundItem>, carry: C) -> Result<Outcome>
    where
        F: Future<Output = Result<u64>> + Send,
        C: Fn(Item) -> F + Clone + Send + Sync + 'static,
    {
        let found = Arc::new(Mutex::new(found));
        let mut workers = JoinSet::new();
        for _ in 0..self.workers.max(1) {
            let (found, carry, progress) = (found.clone(), carry.clone(), self.progress.clone());
            workers.spawn(async move {
                let mut outcome = Outcome::default();
                loop {
                    let next = found.lock().await.recv().await;
                    let Some(next) = next else { return outcome };
                    let ended = match next {
                        Ok(item) => {
                            let name = item.name.clone();
                            carry(item).await.map_err(|e| (name, e))
                        }
                        Err(failed) => Err(failed),
                    };
                    match ended {
                        Ok(bytes) => {
                            outcome.done += 1;
                            outcome.bytes += bytes;
                            progress.done();
                        }
                        Err((name, error)) => {
                            progress.failed();
                            outcome.fail(name, error);
                        }
                    }
                }
            });
        }
        let mut all = Outcome::default();
        while let Some(outcome) = workers.join_next().await {
            let outcome = outcome.map_err(|e| Error::with_source(Reason::Defect, "a worker failed", e))?;
            all.done += outcome.done;
            all.bytes += outcome.bytes;
            all.failed += outcome.failed;
            all.failures.extend(outcome.failures);
        }
        all.failures.sort_by(|(a, _), (b, _)| a.cmp(b));
        all.failures.truncate(MOST_NAMED);
        Ok(all)
    }
}
