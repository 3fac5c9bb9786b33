//! Continuous sync of a directory to a store. Changed files are uploaded after a quiet period, and the whole tree is
//! compared periodically; `tradewind_model::debounce` decides when. An event is a hint: the file system decides what is
//! done.
//!
//! Invariants for removals: an object is removed only if its file was looked up and is missing in the original
//! directory. Watching ends if that directory is gone or replaced. Nothing is removed below a point where something
//! was mounted or unmounted since the start.

mod events;
mod failed_locations;
mod mounts;
mod root;
mod worker;

pub use events::{FsEvent, watch};

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::debounce::{DebounceOptions, Debouncer};

use crate::endpoint::Endpoint;
use crate::filter::Filter;
use crate::merge::{Action, Comparison};
use crate::workers::{ActionFeed, NextAction};
use crate::{Copier, NamedError};

use self::failed_locations::FailedLocations;
use self::mounts::Mounts;
use self::root::WatchedRoot;
use self::worker::{NameOutcome, Worker};

/// Maximum number of names whose last reported error is saved.
const MAX_SAVED_ERRORS: usize = 1000;

/// The parameters of watching a directory.
#[derive(Debug)]
pub struct Watch {
    /// Copies from a directory to objects.
    pub copier: Arc<Copier>,
    /// The criterion by which items count as equal.
    pub comparison: Comparison,
    /// Selects the names to sync.
    pub filter: Filter,
    /// If set, objects whose files were removed are removed.
    pub removes: bool,
    /// The failure to report if the directory is empty at the start; `None` if that is allowed.
    pub if_empty: Option<NamedError>,
    /// Quiet period, comparison interval and retry delays.
    pub debounce: DebounceOptions,
    /// Maximum time for transfers in flight to finish after the stop.
    pub grace: Duration,
}

/// A report to the user.
#[derive(Debug)]
pub enum WatchReport<'a> {
    /// Everything was compared and transferred, and no failure is pending. Reported once.
    InSync,
    /// A name was copied; its size in bytes.
    Copied(&'a str, u64),
    /// A name was removed.
    Removed(&'a str),
    /// A name failed, with another message than the last time. It will be retried.
    Failed(&'a str, &'a Error),
}

/// The result of watching.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WatchTotals {
    /// Number of items copied.
    pub copied: u64,
    /// Number of items removed.
    pub removed: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Number of unresolved failures: names, including those cancelled at the end; locations that could not be listed;
    /// and mount points below which removals were withheld.
    pub failing: u64,
    /// True if at least one full comparison completed.
    pub is_compared: bool,
}

/// The name of a finished task, and its result.
type TaskResult = (String, Result<NameOutcome>);

/// The comparison in progress.
struct RunningComparison {
    tree: String,
    actions: ActionFeed,
    /// True while no retryable failure occurred: the tree was listed completely, except for permanent failures.
    is_complete: bool,
}

struct Watcher<T> {
    watch: Watch,
    worker: Arc<Worker>,
    debouncer: Debouncer,
    tasks: JoinSet<TaskResult>,
    comparison: Option<RunningComparison>,
    failed_locations: FailedLocations,
    /// [`WatchReport::InSync`] was reported.
    in_sync_reported: bool,
    /// The last reported error message of each failing name.
    last_errors: HashMap<String, String>,
    totals: WatchTotals,
    report: T,
}

impl Watch {
    /// Compares everything, then follows `events` until `stop`. Transfers in flight then finish or are cancelled after
    /// `grace`. Fails if the directory is gone, or the bucket does not exist at the start.
    pub async fn run(
        self,
        mut events: mpsc::Receiver<FsEvent>,
        stop: impl Future<Output = ()>,
        report: impl FnMut(&WatchReport<'_>),
    ) -> Result<WatchTotals> {
        let Endpoint::Files(directory, links) = &self.copier.from else {
            return Err(Error::new(Reason::InvalidArgument, "only a directory can be watched"));
        };
        let root = WatchedRoot::open(directory.root())?;
        let mounts = if self.removes { Some(Mounts::below(directory.root())?) } else { None };
        // Only after the directory's identity and its mounts are recorded, so that a change during the check is
        // noticed.
        if let Some((_, why)) = &self.if_empty
            && self.copier.from.find(&self.copier.transfers, &Filter::accept_all()).recv().await.is_none()
        {
            return Err(Error::new(why.reason(), why.to_string()));
        }
        let worker = Arc::new(Worker { copier: self.copier.clone(), root, links: *links, mounts });
        let clock = self.copier.transfers.clock().clone();
        let max_tasks = self.copier.transfers.plan().initial_concurrency.max(1);
        let mut watcher = Watcher {
            debouncer: Debouncer::new(self.debounce, clock.now()),
            watch: self,
            worker,
            tasks: JoinSet::new(),
            comparison: None,
            failed_locations: FailedLocations::default(),
            in_sync_reported: false,
            last_errors: HashMap::new(),
            totals: WatchTotals::default(),
            report,
        };
        tokio::pin!(stop);
        loop {
            watcher.worker.root.check()?;
            watcher.start_due(clock.now(), max_tasks);
            let has_capacity = watcher.tasks.len() < max_tasks;
            let due = watcher.debouncer.next_due().filter(|_| has_capacity);
            let wait = async {
                match due {
                    Some(due) => clock.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut stop => break,
                Some(ended) = watcher.tasks.join_next() => watcher.handle_finished_task(ended, clock.now())?,
                event = events.recv() => match event {
                    Some(event) => watcher.handle_event(event, clock.now())?,
                    None => return Err(Error::new(Reason::Defect, "the watcher thread ended")),
                },
                next = next_action(&mut watcher.comparison), if has_capacity => watcher.handle_action(next, clock.now())?,
                () = wait => {}
            }
        }
        watcher.finish().await
    }
}

/// The next action of the comparison; pending forever if there is none.
async fn next_action(comparison: &mut Option<RunningComparison>) -> Option<NextAction> {
    match comparison {
        Some(comparison) => comparison.actions.recv().await,
        None => std::future::pending().await,
    }
}

impl<T: FnMut(&WatchReport<'_>)> Watcher<T> {
    fn start_due(&mut self, now: Duration, max_tasks: usize) {
        while self.tasks.len() < max_tasks
            && let Some(name) = self.debouncer.take_due_name(now)
        {
            let worker = self.worker.clone();
            self.tasks.spawn(async move {
                let outcome = worker.sync_name(&name).await;
                (name, outcome)
            });
        }
        if self.comparison.is_none()
            && let Some(tree) = self.debouncer.take_due_tree(now)
        {
            let actions = self.worker.compare(&tree, self.watch.comparison, self.watch.filter.clone());
            self.failed_locations.start_comparison();
            self.comparison = Some(RunningComparison { tree, actions, is_complete: true });
        }
    }

    fn handle_event(&mut self, event: FsEvent, now: Duration) -> Result<()> {
        match event {
            FsEvent::Touched(name) if self.watch.filter.accepts(&name) => {
                self.debouncer.name_changed(&name, now)
            }
            FsEvent::Touched(_) => {}
            FsEvent::TreeTouched(tree) => self.debouncer.tree_changed(&tree, now),
            FsEvent::Failed(name, error) => {
                self.failed_locations.add(&name, "");
                self.report_failure(&name, &error);
            }
            FsEvent::RootGone(error) => return Err(error),
        }
        Ok(())
    }

    /// Handles an action of the comparison, or its end.
    fn handle_action(&mut self, next: Option<NextAction>, now: Duration) -> Result<()> {
        match next {
            // The failure that forbids the removal is reported and retried.
            Some(Ok(Action::SkipRemoval(_))) => {}
            Some(Ok(action)) => self.start_action(action),
            Some(Err((name, error))) => {
                let is_retryable = error.kind().is_retryable();
                let Some(comparison) = &mut self.comparison else { return Ok(()) };
                // The bucket itself fails permanently from the start: the user has to correct the command.
                if !self.totals.is_compared
                    && !is_retryable
                    && name == self.watch.copier.to.describe(&comparison.tree)
                {
                    return Err(error);
                }
                comparison.is_complete &= !is_retryable;
                self.failed_locations.add(&name, &comparison.tree);
                self.report_failure(&name, &error);
            }
            None => {
                if let Some(RunningComparison { tree, is_complete, .. }) = self.comparison.take() {
                    // Files of a new mount may be equal to their objects, so that no worker checks the mounts for them.
                    self.worker.refresh_mounts()?;
                    self.debouncer.tree_compared(is_complete, now);
                    if is_complete {
                        self.failed_locations.resolve(&tree, &self.worker.root.path().join(&tree));
                        self.totals.is_compared |= tree.is_empty();
                    }
                    self.check_in_sync();
                }
            }
        }
        Ok(())
    }

    fn start_action(&mut self, action: Action) {
        let name = action.item().name.clone();
        if self.debouncer.try_start(&name) {
            let worker = self.worker.clone();
            self.tasks.spawn(async move {
                let outcome = worker.act(&action).await;
                (name, outcome)
            });
        }
    }

    fn handle_finished_task(
        &mut self,
        ended: Result<TaskResult, tokio::task::JoinError>,
        now: Duration,
    ) -> Result<()> {
        let failed = |e| Error::with_source(Reason::Defect, "a task failed", e);
        let (name, outcome) = ended.map_err(failed)?;
        match outcome {
            Ok(NameOutcome::ChangedMeanwhile) => {
                self.debouncer.name_changed(&name, now);
                self.debouncer.succeeded(&name);
            }
            Ok(outcome) => {
                self.debouncer.succeeded(&name);
                self.last_errors.remove(&name);
                match outcome {
                    NameOutcome::Copied(bytes) => {
                        self.totals.copied += 1;
                        self.totals.bytes += bytes;
                        (self.report)(&WatchReport::Copied(&name, bytes));
                    }
                    NameOutcome::Removed => {
                        self.totals.removed += 1;
                        (self.report)(&WatchReport::Removed(&name));
                    }
                    NameOutcome::NotRemoved(point) => self.report_not_removed(&point),
                    NameOutcome::Unchanged | NameOutcome::ChangedMeanwhile => {}
                }
            }
            Err(error) => {
                if self.debouncer.failed(&name, now) {
                    self.report_failure(&name, &error);
                }
            }
        }
        self.check_in_sync();
        Ok(())
    }

    /// Reports a mount point below which an object was not removed. Each point is reported once.
    fn report_not_removed(&mut self, point: &Path) {
        let path = self.worker.root.path().join(point);
        let name = path.display().to_string();
        self.failed_locations.add(&name, "");
        self.report_failure(&name, &mounts::not_removed_error(&path));
    }

    /// Reports [`WatchReport::InSync`] once everything compared is transferred.
    fn check_in_sync(&mut self) {
        let is_idle = self.comparison.is_none() && self.tasks.is_empty();
        if !self.in_sync_reported && self.totals.is_compared && is_idle && self.failing() == 0 {
            self.in_sync_reported = true;
            (self.report)(&WatchReport::InSync);
        }
    }

    fn failing(&self) -> u64 {
        self.debouncer.failing_count() as u64 + self.failed_locations.count()
    }

    /// Reports a failure, unless its message equals the last one of that name.
    fn report_failure(&mut self, name: &str, error: &Error) {
        let message = error.to_string();
        if self.last_errors.get(name) == Some(&message) {
            return;
        }
        (self.report)(&WatchReport::Failed(name, error));
        if self.last_errors.len() >= MAX_SAVED_ERRORS {
            self.last_errors.clear();
        }
        self.last_errors.insert(name.to_owned(), message);
    }

    /// Starts nothing new, and lets tasks in flight finish within the grace period.
    async fn finish(mut self) -> Result<WatchTotals> {
        self.comparison = None;
        let clock = self.watch.copier.transfers.clock().clone();
        let mut grace = clock.sleep_until(clock.now() + self.watch.grace);
        loop {
            tokio::select! {
                () = &mut grace => break,
                ended = self.tasks.join_next() => match ended {
                    Some(ended) => self.handle_finished_task(ended, clock.now())?,
                    None => break,
                },
            }
        }
        self.tasks.shutdown().await;
        self.totals.failing = self.failing();
        Ok(self.totals)
    }
}

#[cfg(test)]
mod tests;
