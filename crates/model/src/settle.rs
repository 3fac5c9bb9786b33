//! Schedules the synchronisation of changed names: a name is processed once it has been quiet for a while, never
//! concurrently with itself, and again later after a failure. If changes were missed, whole trees are compared, one
//! after another, and everything is compared periodically.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Maximum number of names kept. Beyond it the waiting names are dropped and everything is compared instead.
const MAX_NAMES: usize = 1 << 16;

/// Delays of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettleOptions {
    /// A name is processed after this long without changes.
    pub quiet: Duration,
    /// Everything is compared again this long after the last comparison.
    pub every: Duration,
    /// Delay of the first retry after a failure. It doubles with each further one.
    pub first_retry: Duration,
    /// Maximum delay of a retry.
    pub most_retry: Duration,
}

impl Default for SettleOptions {
    fn default() -> Self {
        Self {
            quiet: Duration::from_secs(2),
            every: Duration::from_secs(600),
            first_retry: Duration::from_secs(5),
            most_retry: Duration::from_secs(300),
        }
    }
}

/// Names and trees with the time at which they are due. The tree of everything has the empty name; every other tree
/// ends with a slash.
#[derive(Debug)]
pub struct Settling {
    options: SettleOptions,
    names: HashMap<String, Name>,
    /// The waiting names, by due time.
    waiting: BTreeSet<(Duration, String)>,
    trees: BTreeMap<String, Duration>,
    /// The tree being compared.
    tree: Option<String>,
    /// Consecutive failed comparisons of a tree.
    tree_failures: u32,
}

#[derive(Debug)]
struct Name {
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

impl Settling {
    /// A scheduler for which the comparison of everything is due at once.
    #[must_use]
    pub fn new(options: SettleOptions, now: Duration) -> Self {
        let trees = BTreeMap::from([(String::new(), now)]);
        let (names, waiting) = (HashMap::new(), BTreeSet::new());
        Self { options, names, waiting, trees, tree: None, tree_failures: 0 }
    }

    /// Records that a name was created, changed or deleted.
    pub fn touched(&mut self, name: &str, now: Duration) {
        let due = now + self.options.quiet;
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
            self.tree_touched("", now);
            return;
        }
        self.wait(name.to_owned(), due, 0);
    }

    /// Records that anything below a tree may have changed. Further changes do not postpone its comparison.
    pub fn tree_touched(&mut self, tree: &str, now: Duration) {
        let due = now + self.options.quiet;
        let until = self.trees.entry(tree.to_owned()).or_insert(due);
        *until = due.min(*until);
    }

    /// The next due time; `None` if it depends on work in progress.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        let tree = self.trees.values().min().filter(|_| self.tree.is_none());
        self.waiting.first().map(|(due, _)| due).into_iter().chain(tree).min().copied()
    }

    /// Takes a name that is due. It is in progress from then on.
    pub fn take(&mut self, now: Duration) -> Option<String> {
        let (_, name) = self.waiting.first().filter(|(due, _)| *due <= now)?.clone();
        self.waiting.pop_first();
        self.names.get_mut(&name)?.state = NameState::InProgress(None);
        Some(name)
    }

    /// Takes a tree that is due, unless one is being compared.
    pub fn take_tree(&mut self, now: Duration) -> Option<String> {
        if self.tree.is_some() {
            return None;
        }
        let (tree, _) = self.trees.iter().find(|(_, due)| **due <= now)?;
        let tree = tree.clone();
        if tree.is_empty() {
            // It contains all others.
            self.trees.clear();
        }
        self.trees.remove(&tree);
        self.tree = Some(tree.clone());
        Some(tree)
    }

    /// Starts to process a name found by a comparison. Returns false if it is in progress or waits for its own due
    /// time.
    pub fn begin(&mut self, name: &str) -> bool {
        if self.names.contains_key(name) {
            return false;
        }
        self.names.insert(name.to_owned(), Name { state: NameState::InProgress(None), failures: 0 });
        true
    }

    /// Ends the processing of a name with success.
    pub fn done(&mut self, name: &str) {
        if let Some(Name { state: NameState::InProgress(Some(due)), .. }) = self.names.remove(name) {
            self.wait(name.to_owned(), due, 0);
        }
    }

    /// Ends the processing of a name with a failure. Returns false if it changed since, so that the failure need not be
    /// reported.
    pub fn failed(&mut self, name: &str, now: Duration) -> bool {
        match self.names.remove(name) {
            Some(Name { state: NameState::InProgress(Some(due)), .. }) => {
                self.wait(name.to_owned(), due, 0);
                false
            }
            known => {
                let failures = known.map_or(0, |known| known.failures) + 1;
                self.wait(name.to_owned(), now + self.retry(failures), failures);
                true
            }
        }
    }

    /// Ends the comparison of a tree; `is_whole` is true if all of it was compared.
    pub fn tree_ended(&mut self, is_whole: bool, now: Duration) {
        let Some(tree) = self.tree.take() else { return };
        self.tree_failures = if is_whole { 0 } else { self.tree_failures + 1 };
        let due = match (is_whole, tree.is_empty()) {
            (true, true) => now + self.options.every,
            (true, false) => return,
            (false, _) => now + self.retry(self.tree_failures),
        };
        let until = self.trees.entry(tree).or_insert(due);
        *until = due.min(*until);
    }

    /// Number of names that are not known to be in sync: those that failed and wait for a retry, and those in progress,
    /// which were abandoned if no task works on them any more.
    #[must_use]
    pub fn failing(&self) -> usize {
        let is_failing =
            |known: &&Name| known.failures > 0 || matches!(known.state, NameState::InProgress(_));
        self.names.values().filter(is_failing).count()
    }

    fn retry(&self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.options.first_retry.saturating_mul(doubled).min(self.options.most_retry)
    }

    fn wait(&mut self, name: String, due: Duration, failures: u32) {
        self.waiting.insert((due, name.clone()));
        self.names.insert(name, Name { state: NameState::Waiting(due), failures });
    }
}

#[cfg(test)]
mod tests;
