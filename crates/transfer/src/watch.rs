//! A directory whose changes go up as they settle. What is to be looked at is said by events, and now and then everything
//! is compared; when, the model decides. What is found then is what counts: an event is a hint, never a fact.
//!
//! Nothing is removed in the store but names that are looked for here and not found, in the directory that was there at
//! the beginning: where it is gone, or another one is in its place, watching ends; and below points where nothing was
//! mounted or unmounted since then.

mod events;
mod mounts;
mod root;
mod unseen;
mod work;

pub use events::{Event, watch};

use std::collections::HashMap;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_model::settle::{SettleOptions, Settling};

use crate::ends::End;
use crate::filter::Filter;
use crate::merge::{Action, Comparison};
use crate::moves::{Decided, Next};
use crate::{Copier, FoundFailure};

use self::mounts::Mounts;
use self::root::Root;
use self::unseen::Unseen;
use self::work::{Became, Worker};

/// Failures whose last words are remembered.
const MOST_TOLD: usize = 1000;

/// What is watched, and what is done about it.
#[derive(Debug)]
pub struct Watch {
    /// From a directory to objects.
    pub copier: Arc<Copier>,
    /// How trees are compared.
    pub comparison: Comparison,
    /// Which names are meant.
    pub filter: Filter,
    /// Whether what went here goes there.
    pub removes: bool,
    /// What is reported of a directory that is empty at the beginning; `None` where that is allowed.
    pub if_empty: Option<FoundFailure>,
    /// How long things wait.
    pub settle: SettleOptions,
    /// What is under way at the end may take so long.
    pub grace: Duration,
}

/// What happened.
#[derive(Debug)]
pub enum News<'a> {
    /// Everything was compared and carried, and nothing failed that was not made good; told once.
    InStep,
    /// A name was copied: so many bytes.
    Copied(&'a str, u64),
    /// A name was removed.
    Removed(&'a str),
    /// Something failed, in other words than the last time. It is tried again.
    Failed(&'a str, &'a Error),
}

/// How it ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Names that were copied.
    pub copied: u64,
    /// Names that were removed.
    pub removed: u64,
    /// Bytes that were carried.
    pub bytes: u64,
    /// What failed and was not made good: names, those that were given up at the end among them, places that could not
    /// be looked at, and points below which something is missing that was not removed.
    pub failing: u64,
    /// Whether everything was compared once.
    pub compared: bool,
}

/// What a task was about, and what became of it.
type Ended = (String, Result<Became>);

/// A comparison.
struct Walk {
    tree: String,
    decided: Decided,
    /// Whether all of its tree could be looked at so far, but for what stays as it is.
    is_whole: bool,
}

struct Watching<T> {
    watch: Watch,
    worker: Arc<Worker>,
    settling: Settling,
    tasks: JoinSet<Ended>,
    /// The comparison that is under way.
    walk: Option<Walk>,
    unseen: Unseen,
    /// It was told that everything is there.
    is_in_step: bool,
    /// What was said last of names that fail.
    told: HashMap<String, String>,
    totals: Totals,
    tell: T,
}

impl Watch {
    /// Compares everything, then follows `events` until `stop`: then what is under way ends, or is given up after a
    /// while. An error where the directory is gone, or the bucket was never there.
    pub async fn run(
        self,
        mut events: mpsc::Receiver<Event>,
        stop: impl Future<Output = ()>,
        tell: impl FnMut(&News<'_>),
    ) -> Result<Totals> {
        let End::Files(directory, links) = &self.copier.from else {
            return Err(Error::new(Reason::InvalidArgument, "only a directory can be watched"));
        };
        let root = Root::of(directory.root())?;
        let mounts = if self.removes { Some(Mounts::below(directory.root())?) } else { None };
        // After it is known which directory this is, and what is mounted there.
        if let Some((_, why)) = &self.if_empty
            && self.copier.from.find(&self.copier.carrier).recv().await.is_none()
        {
            return Err(Error::new(why.reason(), why.to_string()));
        }
        let worker = Arc::new(Worker { copier: self.copier.clone(), root, links: *links, mounts });
        let clock = self.copier.carrier.clock().clone();
        let most = self.copier.carrier.plan().requests.max(1);
        let mut watching = Watching {
            settling: Settling::new(self.settle, clock.now()),
            watch: self,
            worker,
            tasks: JoinSet::new(),
            walk: None,
            unseen: Unseen::default(),
            is_in_step: false,
            told: HashMap::new(),
            totals: Totals::default(),
            tell,
        };
        tokio::pin!(stop);
        loop {
            watching.worker.root.check()?;
            watching.begin_due(clock.now(), most);
            let has_room = watching.tasks.len() < most;
            let due = watching.settling.next_due().filter(|_| has_room);
            let wait = async {
                match due {
                    Some(due) => clock.sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut stop => break,
                Some(ended) = watching.tasks.join_next() => watching.ended(ended, clock.now())?,
                event = events.recv() => match event {
                    Some(event) => watching.heard(event, clock.now())?,
                    None => return Err(Error::new(Reason::Defect, "nobody watches the directory any more")),
                },
                next = next_of(&mut watching.walk), if has_room => watching.decided(next, clock.now())?,
                () = wait => {}
            }
        }
        watching.finish().await
    }
}

/// What a comparison decides next; never, where there is none.
async fn next_of(walk: &mut Option<Walk>) -> Option<Next> {
    match walk {
        Some(walk) => walk.decided.recv().await,
        None => std::future::pending().await,
    }
}

impl<T: FnMut(&News<'_>)> Watching<T> {
    fn begin_due(&mut self, now: Duration, most: usize) {
        while self.tasks.len() < most
            && let Some(name) = self.settling.take(now)
        {
            let worker = self.worker.clone();
            self.tasks.spawn(async move {
                let became = worker.look(&name).await;
                (name, became)
            });
        }
        if self.walk.is_none()
            && let Some(tree) = self.settling.take_tree(now)
        {
            let decided = self.worker.compare(&tree, self.watch.comparison, self.watch.filter.clone());
            self.unseen.begin();
            self.walk = Some(Walk { tree, decided, is_whole: true });
        }
    }

    fn heard(&mut self, event: Event, now: Duration) -> Result<()> {
        match event {
            Event::Touched(name) if self.watch.filter.takes(&name) => self.settling.touched(&name, now),
            Event::Touched(_) => {}
            Event::Tree(tree) => self.settling.tree_touched(&tree, now),
            Event::Failed(name, error) => {
                self.unseen.failed(&name, "");
                self.complain(&name, &error);
            }
            Event::Gone(error) => return Err(error),
        }
        Ok(())
    }

    /// A comparison decided something, or is at its end.
    fn decided(&mut self, next: Option<Next>, now: Duration) -> Result<()> {
        match next {
            Some(Ok(action)) => self.begin(action),
            Some(Err((name, error))) => {
                let is_passing = error.kind().is_retryable();
                let Some(walk) = &mut self.walk else { return Ok(()) };
                // What is wrong with the bucket from the beginning is for whoever named it to put right.
                if !self.totals.compared && !is_passing && name == self.watch.copier.to.describe(&walk.tree) {
                    return Err(error);
                }
                walk.is_whole &= !is_passing;
                self.unseen.failed(&name, &walk.tree);
                self.complain(&name, &error);
            }
            None => {
                if let Some(Walk { tree, is_whole, .. }) = self.walk.take() {
                    // Files that came with a mount may have been there already, and nobody looked at them.
                    self.worker.look_at_mounts()?;
                    self.settling.tree_ended(is_whole, now);
                    if is_whole {
                        self.unseen.looked_at(&tree, &self.worker.root.path().join(&tree));
                        self.totals.compared |= tree.is_empty();
                    }
                    self.check_step();
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, action: Action) {
        let name = action.item().name.clone();
        if self.settling.begin(&name) {
            let worker = self.worker.clone();
            self.tasks.spawn(async move {
                let became = worker.act(&action).await;
                (name, became)
            });
        }
    }

    fn ended(&mut self, ended: Result<Ended, tokio::task::JoinError>, now: Duration) -> Result<()> {
        let lost = |e| Error::with_source(Reason::Defect, "a task failed", e);
        let (name, became) = ended.map_err(lost)?;
        match became {
            Ok(Became::Changed) => {
                self.settling.touched(&name, now);
                self.settling.done(&name);
            }
            Ok(became) => {
                self.settling.done(&name);
                self.told.remove(&name);
                match became {
                    Became::Copied(bytes) => {
                        self.totals.copied += 1;
                        self.totals.bytes += bytes;
                        (self.tell)(&News::Copied(&name, bytes));
                    }
                    Became::Removed => {
                        self.totals.removed += 1;
                        (self.tell)(&News::Removed(&name));
                    }
                    Became::Kept(point) => self.kept(&point),
                    Became::Same | Became::Changed => {}
                }
            }
            Err(error) => {
                if self.settling.failed(&name, now) {
                    self.complain(&name, &error);
                }
            }
        }
        self.check_step();
        Ok(())
    }

    /// Something is missing here and stays there. The point is named once, however much is missing below it.
    fn kept(&mut self, point: &Path) {
        let place = self.worker.root.path().join(point);
        let name = place.display().to_string();
        self.unseen.failed(&name, "");
        self.complain(&name, &mounts::changed(&place));
    }

    /// Whether everything that was compared is there.
    fn check_step(&mut self) {
        let is_idle = self.walk.is_none() && self.tasks.is_empty();
        if !self.is_in_step && self.totals.compared && is_idle && self.failing() == 0 {
            self.is_in_step = true;
            (self.tell)(&News::InStep);
        }
    }

    fn failing(&self) -> u64 {
        self.settling.failing() as u64 + self.unseen.count()
    }

    /// Tells of a failure, unless the same was told of before.
    fn complain(&mut self, name: &str, error: &Error) {
        let words = error.to_string();
        if self.told.get(name) == Some(&words) {
            return;
        }
        (self.tell)(&News::Failed(name, error));
        if self.told.len() >= MOST_TOLD {
            self.told.clear();
        }
        self.told.insert(name.to_owned(), words);
    }

    /// Nothing new is begun; what is under way has its grace.
    async fn finish(mut self) -> Result<Totals> {
        self.walk = None;
        let clock = self.watch.copier.carrier.clock().clone();
        let mut grace = clock.sleep_until(clock.now() + self.watch.grace);
        loop {
            tokio::select! {
                () = &mut grace => break,
                ended = self.tasks.join_next() => match ended {
                    Some(ended) => self.ended(ended, clock.now())?,
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
