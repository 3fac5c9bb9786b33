//! When a changed name is looked at: not while it goes on changing, not twice at a time, again later where that failed.
//! Where names were missed, whole trees are compared, one at a time, and everything now and then.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Names that are remembered at the most; of more changes it is only known that there were some.
const MOST_NAMES: usize = 1 << 16;

/// How long things wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettleOptions {
    /// A name is looked at when nothing was heard of it for so long.
    pub quiet: Duration,
    /// Everything is compared so long after it was compared last.
    pub every: Duration,
    /// What failed is tried again after so long, and then twice as long each time.
    pub first_retry: Duration,
    /// No retry waits longer.
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

/// Names and trees that wait for their time. The tree of everything has the empty name, any other one ends with a slash.
#[derive(Debug)]
pub struct Settling {
    options: SettleOptions,
    names: HashMap<String, Name>,
    /// Those of them that wait.
    waiting: BTreeSet<(Duration, String)>,
    trees: BTreeMap<String, Duration>,
    /// The tree that is being compared.
    tree: Option<String>,
    /// How often in turn a tree could not be compared.
    tree_failures: u32,
}

#[derive(Debug)]
struct Name {
    state: State,
    failures: u32,
}

#[derive(Debug)]
enum State {
    /// Until this moment.
    Waits(Duration),
    /// Somebody works on it; if it changed meanwhile, it waits until this moment afterwards.
    UnderWay(Option<Duration>),
}

impl Settling {
    /// Everything is to be compared at once.
    #[must_use]
    pub fn new(options: SettleOptions, now: Duration) -> Self {
        let trees = BTreeMap::from([(String::new(), now)]);
        let (names, waiting) = (HashMap::new(), BTreeSet::new());
        Self { options, names, waiting, trees, tree: None, tree_failures: 0 }
    }

    /// A name changed, appeared or went.
    pub fn touched(&mut self, name: &str, now: Duration) {
        let due = now + self.options.quiet;
        if let Some(known) = self.names.get_mut(name) {
            known.failures = 0;
            match &mut known.state {
                State::UnderWay(again) => *again = Some(due),
                State::Waits(until) => {
                    self.waiting.remove(&(*until, name.to_owned()));
                    *until = due;
                    self.waiting.insert((due, name.to_owned()));
                }
            }
            return;
        }
        if self.names.len() >= MOST_NAMES {
            self.names.retain(|_, known| matches!(known.state, State::UnderWay(_)));
            self.waiting.clear();
            self.tree_touched("", now);
            return;
        }
        self.wait(name.to_owned(), due, 0);
    }

    /// Anything below a tree may have changed. It does not wait for longer where more does.
    pub fn tree_touched(&mut self, tree: &str, now: Duration) {
        let due = now + self.options.quiet;
        let until = self.trees.entry(tree.to_owned()).or_insert(due);
        *until = due.min(*until);
    }

    /// When something is due next; `None` while that depends on what is under way.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        let tree = self.trees.values().min().filter(|_| self.tree.is_none());
        self.waiting.first().map(|(due, _)| due).into_iter().chain(tree).min().copied()
    }

    /// A name whose time has come. It is under way from then on.
    pub fn take(&mut self, now: Duration) -> Option<String> {
        let (_, name) = self.waiting.first().filter(|(due, _)| *due <= now)?.clone();
        self.waiting.pop_first();
        self.names.get_mut(&name)?.state = State::UnderWay(None);
        Some(name)
    }

    /// A tree whose time has come, while no other one is compared.
    pub fn take_tree(&mut self, now: Duration) -> Option<String> {
        if self.tree.is_some() {
            return None;
        }
        let (tree, _) = self.trees.iter().find(|(_, due)| **due <= now)?;
        let tree = tree.clone();
        if tree.is_empty() {
            // The others are within it.
            self.trees.clear();
        }
        self.trees.remove(&tree);
        self.tree = Some(tree.clone());
        Some(tree)
    }

    /// Begins with a name that a comparison came upon; `false` where it is under way, or waits for its own time.
    pub fn begin(&mut self, name: &str) -> bool {
        if self.names.contains_key(name) {
            return false;
        }
        self.names.insert(name.to_owned(), Name { state: State::UnderWay(None), failures: 0 });
        true
    }

    /// A name that was under way is as it should be.
    pub fn done(&mut self, name: &str) {
        if let Some(Name { state: State::UnderWay(Some(due)), .. }) = self.names.remove(name) {
            self.wait(name.to_owned(), due, 0);
        }
    }

    /// A name that was under way is not. `false` where nobody need be told, since it changed meanwhile.
    pub fn failed(&mut self, name: &str, now: Duration) -> bool {
        match self.names.remove(name) {
            Some(Name { state: State::UnderWay(Some(due)), .. }) => {
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

    /// All of the tree was looked at, or not.
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

    /// How many names are not known to be as they should be: those that failed and wait for another try, and those that
    /// are under way, which were given up where nobody works on them any more.
    #[must_use]
    pub fn failing(&self) -> usize {
        let is_failing = |known: &&Name| known.failures > 0 || matches!(known.state, State::UnderWay(_));
        self.names.values().filter(is_failing).count()
    }

    fn retry(&self, failures: u32) -> Duration {
        let doubled = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.options.first_retry.saturating_mul(doubled).min(self.options.most_retry)
    }

    fn wait(&mut self, name: String, due: Duration, failures: u32) {
        self.waiting.insert((due, name.clone()));
        self.names.insert(name, Name { state: State::Waits(due), failures });
    }
}

#[cfg(test)]
mod tests;
