//! Many names at a time: each taken by one of many workers as it is decided what is to be done about it. What fails is
//! told of at the end; everything else is done.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};

use crate::filter::Filter;
use crate::merge::{Action, Merge};
use crate::progress::Progress;
use crate::{Feed, Found, FoundFailure};

/// Items that were found and wait for a worker, at the most.
pub const FOUND_AHEAD: usize = 1024;
/// Failures that are kept by name; of more only the number.
const MOST_NAMED: usize = 1000;

/// Failures that everything else would share, one behind the other: what worked before does not any more.
const MOST_SHARED: u32 = 16;

/// Whether going on is of any use.
#[derive(Debug, Default)]
struct Hope {
    has_succeeded: AtomicBool,
    /// Since the last success.
    shared: AtomicU32,
    is_lost: AtomicBool,
}

impl Hope {
    /// A failure that everything else would share ends it at once where nothing has succeeded so far. Later one may be of
    /// a single name: some stores do not understand every name, and take its signature for wrong.
    fn weigh(&self, ended: &Result<Done>) {
        match ended {
            Ok(_) => {
                self.has_succeeded.store(true, Ordering::Relaxed);
                self.shared.store(0, Ordering::Relaxed);
            }
            Err(e) if e.is_for_all() => {
                let shared = self.shared.fetch_add(1, Ordering::Relaxed) + 1;
                if shared >= MOST_SHARED || !self.has_succeeded.load(Ordering::Relaxed) {
                    self.is_lost.store(true, Ordering::Relaxed);
                }
            }
            Err(_) => {}
        }
    }
}

/// What is to be done next, or why something cannot be.
pub type Next = Result<Action, (String, Error)>;

/// What is to be done, in order.
pub type Decided = Feed<Action>;

/// What became of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// So many bytes were copied.
    Copied(u64),
    /// It was removed.
    Removed,
    /// There was nothing to do.
    Same,
}

/// How a transfer ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Names of what failed, and why.
    pub failures: Vec<(String, Error)>,
    /// All that failed, those without a place in `failures` among them.
    pub failed: u64,
    /// Names that were copied.
    pub copied: u64,
    /// Names that were removed.
    pub removed: u64,
    /// Bytes that were carried.
    pub bytes: u64,
    /// What failed would fail for everything that was left, which was not tried.
    pub gave_up: bool,
}

impl Outcome {
    /// Counts what became of a name.
    pub(crate) fn add(&mut self, name: String, ended: Result<Done>, progress: &Progress) {
        match ended {
            Ok(done) => {
                match done {
                    Done::Copied(bytes) => {
                        self.copied += 1;
                        self.bytes += bytes;
                    }
                    Done::Removed => self.removed += 1,
                    Done::Same => {}
                }
                progress.done();
            }
            Err(error) => {
                progress.failed();
                self.failed += 1;
                if self.failures.len() < MOST_NAMED {
                    self.failures.push((name, error));
                }
            }
        }
    }
}

/// Everything that is found is copied, as far as the filter takes it. Where nothing is found at all, `if_empty` is reported.
#[must_use]
pub fn copy_all(
    mut found: Found,
    filter: Filter,
    progress: Arc<Progress>,
    mut if_empty: Option<FoundFailure>,
) -> Decided {
    let (decided, actions) = mpsc::channel(FOUND_AHEAD);
    let task = tokio::spawn(async move {
        while let Some(next) = found.recv().await {
            if_empty = None;
            let next = match next {
                Ok(item) if !filter.takes(&item.name) => continue,
                Ok(item) => {
                    progress.found(item.size);
                    Ok(Action::Copy(item))
                }
                Err(failed) => Err(failed),
            };
            if decided.send(next).await.is_err() {
                return;
            }
        }
        if let Some(failure) = if_empty {
            // Nobody is left to report to where this fails.
            let _ = decided.send(Err(failure)).await;
        }
        progress.found_all();
    });
    Decided::new(actions, "what is to be done".to_owned(), task)
}

/// What makes one tree like the other; what is only there stays where `removes` does not say otherwise.
#[must_use]
pub fn sync_all(mut merge: Merge, filter: Filter, removes: bool, progress: Arc<Progress>) -> Decided {
    let (decided, actions) = mpsc::channel(FOUND_AHEAD);
    let task = tokio::spawn(async move {
        while let Some(next) = merge.next().await {
            match &next {
                Ok(action) if !filter.takes(&action.item().name) => continue,
                Ok(Action::Remove(_)) if !removes => continue,
                Ok(Action::Remove(_)) => progress.found(0),
                Ok(Action::Copy(item) | Action::Compare(item) | Action::CompareTimes(item)) => {
                    progress.found(item.size)
                }
                Err(_) => {}
            }
            if decided.send(next).await.is_err() {
                return;
            }
        }
        progress.found_all();
    });
    Decided::new(actions, "what is to be done".to_owned(), task)
}

/// Does everything that is decided, so much at a time; `act` answers what it did. Nothing more is begun after a failure
/// that everything else would share, of which one is told. Dropping the future stops all workers.
pub async fn run<F, C>(
    workers: usize,
    decided: impl Into<Decided>,
    progress: &Arc<Progress>,
    act: C,
) -> Result<Outcome>
where
    F: Future<Output = Result<Done>> + Send,
    C: Fn(Action) -> F + Clone + Send + Sync + 'static,
{
    let decided = Arc::new(Mutex::new(decided.into()));
    let hope = Arc::new(Hope::default());
    let mut tasks = JoinSet::new();
    for _ in 0..workers.max(1) {
        let (decided, act, progress) = (decided.clone(), act.clone(), progress.clone());
        let hope = hope.clone();
        tasks.spawn(async move {
            let mut outcome = Outcome::default();
            loop {
                let next = decided.lock().await.recv().await;
                if hope.is_lost.load(Ordering::Relaxed) {
                    outcome.gave_up = next.is_some();
                    return outcome;
                }
                match next {
                    None => return outcome,
                    Some(Ok(action)) => {
                        let name = action.item().name.clone();
                        let ended = act(action).await;
                        hope.weigh(&ended);
                        outcome.add(name, ended, &progress);
                    }
                    Some(Err((name, error))) => outcome.add(name, Err(error), &progress),
                }
            }
        });
    }
    let mut all = Outcome::default();
    while let Some(outcome) = tasks.join_next().await {
        let outcome = outcome.map_err(|e| Error::with_source(Reason::Defect, "a worker failed", e))?;
        all.copied += outcome.copied;
        all.removed += outcome.removed;
        all.bytes += outcome.bytes;
        all.failed += outcome.failed;
        all.gave_up |= outcome.gave_up;
        all.failures.extend(outcome.failures);
    }
    if hope.is_lost.load(Ordering::Relaxed) {
        // They are one failure.
        let mut is_told = false;
        all.failures.retain(|(_, e)| !e.is_for_all() || !std::mem::replace(&mut is_told, true));
    }
    all.failures.sort_by(|(a, _), (b, _)| a.cmp(b));
    all.failures.truncate(MOST_NAMED);
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Item;
    use std::sync::atomic::AtomicU64;
    use tradewind_core::Timestamp;

    async fn fail_all(failure: fn() -> Error) -> (Outcome, u64) {
        let (decide, decided) = mpsc::channel(8);
        tokio::spawn(async move {
            for n in 0..1000 {
                let item = Item { name: n.to_string(), size: 0, modified: Timestamp::default() };
                if decide.send(Ok(Action::Copy(item))).await.is_err() {
                    break;
                }
            }
        });
        let tried = Arc::new(AtomicU64::new(0));
        let counted = tried.clone();
        let progress = Arc::default();
        let outcome = run(4, decided, &progress, move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move {
                tokio::task::yield_now().await;
                Err(failure())
            }
        });
        (outcome.await.unwrap(), tried.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn what_would_fail_for_all_is_told_once() {
        let (outcome, tried) = fail_all(|| Error::new(Reason::AccessDenied, "no such key").for_all()).await;
        assert_eq!((outcome.failures.len(), outcome.failed, outcome.gave_up), (1, tried, true));
        assert!(tried <= 8, "{tried} were tried");
    }

    #[test]
    fn a_name_that_a_store_misunderstands_ends_nothing() {
        let hope = Hope::default();
        let fail = || hope.weigh(&Err(Error::new(Reason::AccessDenied, "a signature").for_all()));
        let is_lost = || hope.is_lost.load(Ordering::Relaxed);
        hope.weigh(&Ok(Done::Copied(1)));
        for _ in 0..100 {
            (1..MOST_SHARED).for_each(|_| fail());
            hope.weigh(&Ok(Done::Same));
        }
        assert!(!is_lost());
        (0..MOST_SHARED).for_each(|_| fail());
        assert!(is_lost());
    }

    #[tokio::test]
    async fn nothing_is_left_of_one() {
        let (decide, decided) = mpsc::channel(1);
        let item = Item { name: "x".to_owned(), size: 0, modified: Timestamp::default() };
        decide.send(Ok(Action::Copy(item))).await.unwrap();
        drop(decide);
        let progress = Arc::default();
        let fail = |_| std::future::ready(Err(Error::new(Reason::NoSuchBucket, "no such bucket")));
        let outcome = run(4, decided, &progress, fail).await.unwrap();
        assert_eq!((outcome.failed, outcome.gave_up), (1, false));
    }

    #[tokio::test]
    async fn what_fails_for_itself_keeps_nothing_else_from_being_tried() {
        let (outcome, tried) = fail_all(|| Error::new(Reason::AccessDenied, "not this one")).await;
        assert_eq!((outcome.failures.len(), outcome.failed, outcome.gave_up), (1000, 1000, false));
        assert_eq!(tried, 1000);
    }
}
