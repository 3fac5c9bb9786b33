//! A workspace for measurements below one prefix: creates the objects to read, runs loads on them, and removes exactly
//! the objects that were created.

mod cleaning;
mod source_files;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};

use self::cleaning::{KnownObjects, remove_all};
pub(crate) use self::source_files::create_source_files;
use crate::drive::request::MAX_PREPARE_ATTEMPTS;
use crate::drive::{BenchEnv, LoadOutcome, Progress, StopSignal, run_load};
use crate::load::{ArrivalMode, Load, StopCondition};
use crate::object_set::ObjectSet;
use crate::operation::{Mix, Operation};
use crate::replay::Replay;
use crate::replay::objects::ReplayObjects;
use crate::test_plan::Step;

/// Minimum concurrency when objects are created.
const MIN_PREPARE_CONCURRENCY: usize = 32;

/// The purpose of an object set. Separate sets keep reads independent of how many objects writes or a mix left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// Only written.
    Written,
    /// Only read or deleted.
    Read,
    /// Read and written by a mix.
    Changed,
}

impl Use {
    fn for_step(step: &Step) -> Self {
        match step.load.mix.share(Operation::Put) {
            none if none <= 0.0 => Self::Read,
            _ if step.writes_only() => Self::Written,
            _ => Self::Changed,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Read => "read",
            Self::Changed => "changed",
        }
    }
}

/// The object sets below one prefix.
#[derive(Debug)]
pub struct Workspace {
    env: BenchEnv,
    prefix: String,
    /// Object sets by purpose and sizes.
    object_sets: BTreeMap<(Use, String), Arc<ObjectSet>>,
    /// Objects of replays.
    replays: Vec<Arc<ReplayObjects>>,
    /// Number of object sets and replays so far. It makes their names unique.
    count: usize,
    /// Requests failed or were cancelled: the store may still carry them out later.
    is_uncertain: bool,
}

impl Workspace {
    /// Creates an empty workspace. No other user may write below `prefix`.
    #[must_use]
    pub const fn new(env: BenchEnv, prefix: String) -> Self {
        Self { env, prefix, object_sets: BTreeMap::new(), replays: Vec::new(), count: 0, is_uncertain: false }
    }

    fn object_set(&mut self, step: &Step) -> Arc<ObjectSet> {
        let purpose = Use::for_step(step);
        let create = || {
            self.count += 1;
            let prefix = format!("{}{}{}/", self.prefix, purpose.name(), self.count);
            Arc::new(ObjectSet::new(prefix, step.sizes.clone()))
        };
        self.object_sets.entry((purpose, step.sizes.to_string())).or_insert_with(create).clone()
    }

    /// The number of objects that must be created before a step can begin.
    pub fn missing_objects(&mut self, step: &Step) -> u64 {
        if step.writes_only() { 0 } else { step.objects.saturating_sub(self.object_set(step).len() as u64) }
    }

    /// Creates the objects that a step reads or deletes, and the files that it uploads. Failed creations are retried a
    /// few times. Returns false if stopped.
    pub async fn prepare(
        &mut self,
        step: &Step,
        stop: &StopSignal,
        progress: &Arc<Progress>,
    ) -> Result<bool> {
        let object_set = self.object_set(step);
        if step.load.mix.share(Operation::Put) > 0.0 {
            create_source_files(&self.env, &object_set, step.objects, stop).await?;
        }
        for attempt in 1.. {
            let missing = self.missing_objects(step);
            if missing == 0 || stop.is_triggered() {
                break;
            }
            let load = Load {
                mix: Mix::single(Operation::Put),
                concurrency: MIN_PREPARE_CONCURRENCY.max(step.load.concurrency),
                arrival_mode: ArrivalMode::Closed,
                stop_condition: StopCondition {
                    max_requests: Some(missing),
                    duration: Duration::MAX / 4,
                    max_ci_fraction: None,
                },
                warm_up: Duration::ZERO,
                seed: step.load.seed,
                phase: 0.0,
            };
            let outcome = run_load(&self.env, &object_set, &load, stop, progress).await?;
            let Some(stats) =
                outcome.record.stats_by_operation().values().find(|stats| stats.failure_count() > 0)
            else {
                continue;
            };
            self.is_uncertain = true;
            if attempt == MAX_PREPARE_ATTEMPTS && !stop.is_triggered() {
                let reason = stats.failure_samples.first().cloned().unwrap_or_default();
                let message =
                    format!("{} of {missing} objects could not be created: {reason}", stats.failure_count());
                return Err(Error::new(Reason::Io, message));
            }
        }
        Ok(!stop.is_triggered())
    }

    /// Runs the load of a prepared step.
    pub async fn measure(
        &mut self,
        step: &Step,
        stop: &StopSignal,
        progress: &Arc<Progress>,
    ) -> Result<LoadOutcome> {
        let object_set = self.object_set(step);
        let outcome = run_load(&self.env, &object_set, &step.load, stop, progress).await;
        self.is_uncertain |= match &outcome {
            Ok(outcome) => {
                outcome.record.stats_by_operation().values().any(|stats| stats.failure_count() > 0)
            }
            Err(_) => true,
        };
        outcome
    }

    /// Removes objects that a step wrote and no other step needs, so that they do not fill the store.
    pub async fn clean_after(&mut self, step: &Step) -> Result<u64> {
        let key = (Use::for_step(step), step.sizes.to_string());
        let Some(object_set) = self.object_sets.get(&key).filter(|_| key.0 != Use::Read) else {
            return Ok(0);
        };
        let known_objects = [KnownObjects::ObjectSet(object_set.clone())];
        let removed =
            remove_all(&self.env, object_set.prefix(), Some(&known_objects), self.is_uncertain).await?;
        self.object_sets.remove(&key);
        Ok(removed)
    }

    /// Removes all objects and returns their number. Failed deletes are retried a few times, after all others.
    pub async fn clean(&mut self) -> Result<u64> {
        // A replay may have cancelled requests that are not counted here.
        let is_uncertain = self.is_uncertain || !self.replays.is_empty();
        let object_sets = self.object_sets.values().cloned().map(KnownObjects::ObjectSet);
        let known_objects: Vec<KnownObjects> =
            object_sets.chain(self.replays.iter().cloned().map(KnownObjects::Replayed)).collect();
        let removed = remove_all(&self.env, &self.prefix, Some(&known_objects), is_uncertain).await?;
        self.object_sets.clear();
        self.replays.clear();
        Ok(removed)
    }

    /// Removes everything below the prefix of a lost agent and returns the number of objects.
    pub async fn clean_prefix(env: &BenchEnv, prefix: &str) -> Result<u64> {
        remove_all(env, prefix, None, true).await
    }

    /// Removes everything below a prefix and returns the number of objects. `names` lists the objects that may exist
    /// there, each with a flag that is true if it was certainly written.
    pub(crate) async fn clean_named(env: &BenchEnv, prefix: &str, names: Vec<(String, bool)>) -> Result<u64> {
        remove_all(env, prefix, Some(&[KnownObjects::Named(names)]), true).await
    }

    /// Registers the objects of a replay. None of them exists yet.
    pub fn add_replay(&mut self, replay: &Replay) -> Arc<ReplayObjects> {
        self.count += 1;
        let prefix = format!("{}{}/", self.prefix, self.count);
        let objects = Arc::new(ReplayObjects::new(prefix, replay.trace_summary()));
        self.replays.push(objects.clone());
        objects
    }

    /// The environment of the workspace.
    #[must_use]
    pub const fn env(&self) -> &BenchEnv {
        &self.env
    }
}

#[cfg(test)]
mod tests;
