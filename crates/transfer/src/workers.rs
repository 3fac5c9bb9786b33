//! Worker tasks that execute the actions of a transfer concurrently.
//!
//! A failed action does not stop the others: failures are collected in [`Outcome`]. Only a failure that would affect
//! every remaining item ends the transfer early.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};

use crate::filter::Filter;
use crate::merge::{Action, Merge};
use crate::progress::Progress;
use crate::{Feed, ItemFeed, NamedError};

/// Maximum number of listed items that wait for a worker.
pub const MAX_QUEUED_ITEMS: usize = 1024;
/// Maximum number of failures that are reported by name; further ones are only counted.
const MAX_REPORTED_FAILURES: usize = 1000;

/// Number of consecutive bucket-wide failures that end a transfer in which something succeeded before.
const MAX_CONSECUTIVE_FATAL: u32 = 16;

/// Circuit breaker that trips when every remaining item would fail for the same reason.
#[derive(Debug, Default)]
struct FatalErrorGate {
    has_succeeded: AtomicBool,
    /// Bucket-wide failures since the last success.
    consecutive: AtomicU32,
    is_tripped: AtomicBool,
}

impl FatalErrorGate {
    /// Records the result of an action. A bucket-wide failure trips the breaker at once if nothing has succeeded yet.
    ///
    /// After a success it may concern a single name: some stores misparse certain keys and reject their signature. The
    /// breaker then trips only after [`MAX_CONSECUTIVE_FATAL`] consecutive failures.
    fn record(&self, result: &Result<ActionResult>) {
        match result {
            Ok(_) => {
                self.has_succeeded.store(true, Ordering::Relaxed);
                self.consecutive.store(0, Ordering::Relaxed);
            }
            Err(e) if e.affects_whole_bucket() => {
                let consecutive = self.consecutive.fetch_add(1, Ordering::Relaxed) + 1;
                if consecutive >= MAX_CONSECUTIVE_FATAL || !self.has_succeeded.load(Ordering::Relaxed) {
                    self.is_tripped.store(true, Ordering::Relaxed);
                }
            }
            Err(_) => {}
        }
    }
}

/// The next action, or the name that cannot be processed and why.
pub type NextAction = Result<Action, (String, Error)>;

/// The actions of a transfer, in order.
pub type ActionFeed = Feed<Action>;

/// The result of a successful action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActionResult {
    /// The item was copied; its size in bytes.
    Copied(u64),
    /// The item was removed.
    Removed,
    /// A folder marker with bytes was left at the destination, although the source does not have it.
    KeptMarker,
    /// Source and destination were equal already.
    Unchanged,
}

/// The result of a transfer.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Names that failed, and why; capped in number.
    pub failures: Vec<(String, Error)>,
    /// Number of failures, including those not listed in `failures`.
    pub failed: u64,
    /// Number of items copied.
    pub copied: u64,
    /// Number of items removed.
    pub removed: u64,
    /// Number of items not removed, because a part of the source could not be listed.
    pub not_removed: u64,
    /// Number of folder markers with bytes, and of delete markers with a version that could not be removed, that were
    /// not removed.
    pub kept_markers: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// True if the remaining items were not tried because each would fail the same way.
    pub stopped_early: bool,
}

impl Outcome {
    /// Adds the result of another part of the transfer.
    pub(crate) fn add(&mut self, other: Self) {
        self.copied += other.copied;
        self.removed += other.removed;
        self.not_removed += other.not_removed;
        self.kept_markers += other.kept_markers;
        self.bytes += other.bytes;
        self.failed += other.failed;
        self.stopped_early |= other.stopped_early;
        self.failures.extend(other.failures);
    }

    /// Sorts the reported failures by name, and caps their number.
    pub(crate) fn sort_failures(&mut self) {
        self.failures.sort_by(|(a, _), (b, _)| a.cmp(b));
        self.failures.truncate(MAX_REPORTED_FAILURES);
    }

    /// Counts the result of one action.
    pub(crate) fn record(&mut self, name: String, result: Result<ActionResult>, progress: &Progress) {
        match result {
            Ok(action_result) => {
                match action_result {
                    ActionResult::Copied(bytes) => {
                        self.copied += 1;
                        self.bytes += bytes;
                    }
                    ActionResult::Removed => self.removed += 1,
                    ActionResult::KeptMarker => self.kept_markers += 1,
                    ActionResult::Unchanged => {}
                }
                progress.add_done();
            }
            Err(error) => {
                progress.add_failed();
                self.failed += 1;
                if self.failures.len() < MAX_REPORTED_FAILURES {
                    self.failures.push((name, error));
                }
            }
        }
    }
}

/// Returns a copy action for every item that the filter accepts. Reports `if_empty` if the listing is empty.
#[must_use]
pub fn copy_actions(
    mut items: ItemFeed,
    filter: Filter,
    progress: Arc<Progress>,
    mut if_empty: Option<NamedError>,
) -> ActionFeed {
    let (sender, actions) = mpsc::channel(MAX_QUEUED_ITEMS);
    let task = tokio::spawn(async move {
        while let Some(next) = items.recv().await {
            if_empty = None;
            let next = match next {
                Ok(item) if !filter.accepts(&item.name) => continue,
                Ok(item) => {
                    progress.add_found(item.size);
                    Ok(Action::Copy(item))
                }
                Err(part) if part.is_excluded => continue,
                Err(part) => Err(part.into_named_error()),
            };
            if sender.send(next).await.is_err() {
                return;
            }
        }
        if let Some(failure) = if_empty {
            // Sending fails only if the receiver has stopped.
            let _ = sender.send(Err(failure)).await;
        }
        progress.complete_listing();
    });
    ActionFeed::new(actions, "list of actions".to_owned(), task)
}

/// Returns the actions that make the destination match the source. Items that exist only at the destination are removed
/// if `removes` is set.
#[must_use]
pub fn sync_actions(mut merge: Merge, filter: Filter, removes: bool, progress: Arc<Progress>) -> ActionFeed {
    let (sender, actions) = mpsc::channel(MAX_QUEUED_ITEMS);
    let task = tokio::spawn(async move {
        while let Some(next) = merge.next().await {
            match &next {
                Ok(action) if !filter.accepts(&action.item().name) => continue,
                Ok(Action::Remove(_) | Action::SkipRemoval(_)) if !removes => continue,
                Ok(Action::Remove(_)) => progress.add_found(0),
                Ok(
                    Action::Copy(item)
                    | Action::CopyAgain { item, .. }
                    | Action::CompareContents(item)
                    | Action::CompareTimes(item),
                ) => progress.add_found(item.size),
                Ok(Action::SkipRemoval(_)) | Err(_) => {}
            }
            if sender.send(next).await.is_err() {
                return;
            }
        }
        progress.complete_listing();
    });
    ActionFeed::new(actions, "list of actions".to_owned(), task)
}

/// Executes the actions with `act`, with concurrency `workers`, and returns their combined outcome.
///
/// After failures that affect the whole bucket no further action is started, and only one of them is reported.
/// Dropping the future stops all workers.
pub async fn run_actions<F, C>(
    workers: usize,
    actions: impl Into<ActionFeed>,
    progress: &Arc<Progress>,
    act: C,
) -> Result<Outcome>
where
    F: Future<Output = Result<ActionResult>> + Send,
    C: Fn(Action) -> F + Clone + Send + Sync + 'static,
{
    let actions = Arc::new(Mutex::new(actions.into()));
    let fatal_gate = Arc::new(FatalErrorGate::default());
    let mut tasks = JoinSet::new();
    for _ in 0..workers.max(1) {
        let (actions, act, progress) = (actions.clone(), act.clone(), progress.clone());
        let fatal_gate = fatal_gate.clone();
        tasks.spawn(async move {
            let mut outcome = Outcome::default();
            loop {
                let next = actions.lock().await.recv().await;
                if fatal_gate.is_tripped.load(Ordering::Relaxed) {
                    outcome.stopped_early = next.is_some();
                    return outcome;
                }
                match next {
                    None => return outcome,
                    Some(Ok(Action::SkipRemoval(_))) => outcome.not_removed += 1,
                    Some(Ok(action)) => {
                        let name = action.item().name.clone();
                        let result = act(action).await;
                        fatal_gate.record(&result);
                        outcome.record(name, result, &progress);
                    }
                    Some(Err((name, error))) => outcome.record(name, Err(error), &progress),
                }
            }
        });
    }
    let mut all = Outcome::default();
    while let Some(outcome) = tasks.join_next().await {
        all.add(outcome.map_err(|e| Error::with_source(Reason::Defect, "a worker failed", e))?);
    }
    if fatal_gate.is_tripped.load(Ordering::Relaxed) {
        // They share one cause, so one report suffices.
        let mut is_reported = false;
        all.failures.retain(|(_, e)| !e.affects_whole_bucket() || !std::mem::replace(&mut is_reported, true));
    }
    all.sort_failures();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Item;
    use std::sync::atomic::AtomicU64;
    use tradewind_core::Timestamp;

    async fn fail_all(failure: fn() -> Error) -> (Outcome, u64) {
        let (sender, actions) = mpsc::channel(8);
        tokio::spawn(async move {
            for n in 0..1000 {
                let item = Item {
                    name: n.to_string(),
                    size: 0,
                    modified: Timestamp::default(),
                    changed: None,
                    nanos: Default::default(),
                    version: None,
                };
                if sender.send(Ok(Action::Copy(item))).await.is_err() {
                    break;
                }
            }
        });
        let tried = Arc::new(AtomicU64::new(0));
        let counted = tried.clone();
        let progress = Arc::default();
        let outcome = run_actions(4, actions, &progress, move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
            async move {
                tokio::task::yield_now().await;
                Err(failure())
            }
        });
        (outcome.await.unwrap(), tried.load(Ordering::Relaxed))
    }

    #[tokio::test]
    async fn bucket_wide_failure_is_reported_once() {
        let (outcome, tried) =
            fail_all(|| Error::new(Reason::AccessDenied, "no such key").affecting_whole_bucket()).await;
        assert_eq!((outcome.failures.len(), outcome.failed, outcome.stopped_early), (1, tried, true));
        assert!(tried <= 8, "{tried} were tried");
    }

    #[test]
    fn repeated_single_name_failures_do_not_stop_a_transfer() {
        let fatal_gate = FatalErrorGate::default();
        let fail = || {
            fatal_gate.record(&Err(Error::new(Reason::AccessDenied, "a signature").affecting_whole_bucket()))
        };
        let is_tripped = || fatal_gate.is_tripped.load(Ordering::Relaxed);
        fatal_gate.record(&Ok(ActionResult::Copied(1)));
        for _ in 0..100 {
            (1..MAX_CONSECUTIVE_FATAL).for_each(|_| fail());
            fatal_gate.record(&Ok(ActionResult::Unchanged));
        }
        assert!(!is_tripped());
        (0..MAX_CONSECUTIVE_FATAL).for_each(|_| fail());
        assert!(is_tripped());
    }

    #[tokio::test]
    async fn failure_of_the_only_item_is_no_early_stop() {
        let (sender, actions) = mpsc::channel(1);
        let item = Item {
            name: "x".to_owned(),
            size: 0,
            modified: Timestamp::default(),
            changed: None,
            nanos: Default::default(),
            version: None,
        };
        sender.send(Ok(Action::Copy(item))).await.unwrap();
        drop(sender);
        let progress = Arc::default();
        let fail = |_| std::future::ready(Err(Error::new(Reason::NoSuchBucket, "no such bucket")));
        let outcome = run_actions(4, actions, &progress, fail).await.unwrap();
        assert_eq!((outcome.failed, outcome.stopped_early), (1, false));
    }

    #[tokio::test]
    async fn item_failures_do_not_stop_the_others() {
        let (outcome, tried) = fail_all(|| Error::new(Reason::AccessDenied, "not this one")).await;
        assert_eq!((outcome.failures.len(), outcome.failed, outcome.stopped_early), (1000, 1000, false));
        assert_eq!(tried, 1000);
    }
}
