//! Schedules the synchronisation of changed names: a name is processed once it has been quiet for a while, never
//! concurrently with itself, and again later after a failure. If changes were missed, whole trees are compared, one
//! after another, and everything is compared periodically.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Maximum number of names kept. Beyond it the waiting names are dropped and everything is compared instead.
const MAX_NAMES: usize = 1 << 16;

/// Delays of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebounceOptions {
    /// A name is processed after this long without changes.
    pub quiet_period: Duration,
    /// Everything is compared again this long after the last comparison.
    pub full_comparison_interval: Duration,
    /// Delay of the first retry after a failure. It doubles with each further one.
    pub first_retry_delay: Duration,
    /// Maximum delay of a retry.
    pub max_retry_delay: Duration,
}

impl Default for DebounceOptions {
    fn default() -> Self {
        Self {
            quiet_period: Duration::from_secs(2),
            full_comparison_interval: Duration::from_secs(600),
            first_retry_delay: Duration::from_secs(5),
            max_retry_delay: Duration::from_secs(300),
        }
    }
}

/// Names and trees with the time at which they are due. The tree of everything has the empty name; every other tree
/// ends with a slash.
#[derive(Debug)]
pub struct Debouncer {
    options: DebounceOptions,
    names: HashMap<String, TrackedName>,
    /// The waiting names, by due time.
    waiting: BTreeSet<(Duration, String)>,
    trees: BTreeMap<String, Duration>,
    /// The tree being compared.
    tree_in_progress: Option<String>,
    /// Consecutive failed comparisons of a tree.
    tree_failures: u32,
}

#[derive(Debug)]
struct TrackedName {
    state: NameState,
    failures: u32,
}

#[derive(Debug)]
enum NameState {
    /// Waiting until it is due.
    Waiting(Duration),
    /// Being processed; the due time of the next round if it changed since.
    InProgress(Option<Duration>),
}

impl Debouncer {
    /// A scheduler for which the comparison of everything is due at once.
    #[must_use]
    pub fn new(options: DebounceOptions, now: Duration) -> Self {
        let trees = BTreeMap::from([(String::new(), now)]);
        let (names, waiting) = (HashMap::new(), BTreeSet::new());
        Self { options, names, waiting, trees, tree_in_progress: None, tree_failures: 0 }
    }

    /// Records that a name was created, changed or deleted.
    pub fn name_changed(&mut self, name: &str, now: Duration) {
        let due = now + self.options.quiet_period;
        if let Some(known) = self.names.get_mut(name) {
            known.failures = 0;
            match &mut known.state {
                NameState::InProgress(again) => *again = Some(due),
                NameState::Waiting(until) => {
                    self.waiting.remove(&(*until, name.to_owned()));
                    *until = due;
                    self.waiting.insert((due, name.to_owned()));
                }
            }
            return;
        }
        if self.names.len() >= MAX_NAMES {
            self.names.retain(|_, known| matches!(known.state, NameState::InProgress(_)));
            self.waiting.clear();
            self.tree_changed("", now);
            return;
        }
        self.schedule(name.to_owned(), due, 0);
    }

    /// Records that anything below a tree may have changed. Further changes do not postpone its comparison.
    pub fn tree_changed(&mut self, tree: &str, now: Duration) {
        let due = now + self.options.quiet_period;
        let until = self.trees.entry(tree.to_owned()).or_insert(due);
        *until = due.min(*until);
    }

    /// The next due time; `None` if it depends on work in progress.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        let tree = self.trees.values().min().filter(|_| self.tree_in_progress.is_none());
        self.waiting.first().map(|(due, _)| due).into_iter().chain(tree).min().copied()
    }

    /// Takes a name that is due. It is in progress from then on.
    pub fn take_due_name(&mut self, now: Duration) -> Option<String> {
        let (_, name) = self.waiting.first().filter(|(due, _)| *due <= now)?.clone();
        self.waiting.pop_first();
        self.names.get_mut(&name)?.state = NameState::InProgress(None);
        Some(name)
    }

    /// Takes a tree that is due, unless one is being compared.
    pub fn take_due_tree(&mut self, now: Duration) -> Option<String> {
        if self.tree_in_progress.is_some() {
            return None;
        }
        let (tree, _) = self.trees.iter().find(|(_, due)| **due <= now)?;
        let tree = tree.clone();
        if tree.is_empty() {
            // It contains all others.
            self.trees.clear();
        }
        self.trees.remove(&tree);
        self.tree_in_progress = Some(tree.clone());
        Some(tree)
    }

    /// Starts to process a name found by a comparison. Returns false if it is in progress or waits for its own due
    /// time.
    pub fn try_start(&mut self, name: &str) -> bool {
        if self.names.contains_key(name) {
            return false;
        }
        self.names.insert(name.to_owned(), TrackedName { state: NameState::InProgress(None), failures: 0 });
        true
    }

    /// Ends the processing of a name with success.
    pub fn succeeded(&mut self, name: &str) {
        if let Some(TrackedName { state: NameState::InProgress(Some(due)), .. }) = self.names.remove(name) {
            self.schedule(name.to_owned(), due, 0);
        }
    }

    /// Ends the processing of a name with a failure. Returns false if it changed since, so that the failure need not be
    /// reported.
    pub fn failed(&mut self, name: &str, now: Duration) -> bool {
        match self.names.remove(name) {
            Some(TrackedName { state: NameState::InProgress(Some(due)), .. }) => {
                self.schedule(name.to_owned(), due, 0);
                false
            }
            known => {
                let failures = known.map_or(0, |known| known.failures) + 1;
                self.schedule(name.to_owned(), now + self.retry_delay(failures), failures);
                true
            }
        }
    }

    /// Ends the comparison of a tree; `is_complete` is true if all of it was compared.
    pub fn tree_compared(&mut self, is_complete: bool, now: Duration) {
        let Some(tree) = self.tree_in_progress.take() else { return };
        self.tree_failures = if is_complete { 0 } else { self.tree_failures + 1 };
        let due = match (is_complete, tree.is_empty()) {
            (true, true) => now + self.options.full_comparison_interval,
            (true, false) => return,
            (false, _) => now + self.retry_delay(self.tree_failures),
        };
        let until = self.trees.entry(tree).or_insert(due);
        *until = due.min(*until);
    }

    /// Number of names that are not known to be in sync: those that failed and wait for a retry, and those in progress,
    /// which were abandoned if no task works on them any more.
    #[must_use]
    pub fn failing_count(&self) -> usize {
        let is_failing =
            |known: &&TrackedName| known.failures > 0 || matches!(known.state, NameState::InProgress(_));
        self.names.values().filter(is_failing).count()
    }

    fn retry_delay(&self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.options.first_retry_delay.saturating_mul(doubled).min(self.options.max_retry_delay)
    }

    fn schedule(&mut self, name: String, due: Duration, failures: u32) {
        self.waiting.insert((due, name.clone()));
        self.names.insert(name, TrackedName { state: NameState::Waiting(due), failures });
    }
}

#[cfg(test)]
mod tests;
