//! Where objects of measurements lie: makes those that are read, drives loads on them, and removes all of them again, and
//! nothing else.

mod cleaning;
mod sources;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};

use self::cleaning::{Made, clean};
pub(crate) use self::sources::make_files;
use crate::drive::request::TRIES;
use crate::drive::{Bed, Gauge, Outcome, Stop, drive};
use crate::load::{Load, Pace, Until};
use crate::operation::{Mix, Operation};
use crate::replay::Replay;
use crate::replay::objects::Objects;
use crate::stock::Stock;
use crate::survey::Step;

/// Requests at a time that prepare.
const HANDS: usize = 32;

/// What objects are for. What is read depends neither on how fast was written nor on what a mix has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Use {
    /// To be written, and nothing else.
    Written,
    /// To be read, or to be removed.
    Read,
    /// To be read while others are written.
    Changed,
}

impl Use {
    fn of(step: &Step) -> Self {
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

/// Objects below one prefix, by what they are for.
#[derive(Debug)]
pub struct Site {
    bed: Bed,
    prefix: String,
    /// By what they are for and their sizes.
    stocks: BTreeMap<(Use, String), Arc<Stock>>,
    /// Those of replays.
    replayed: Vec<Arc<Objects>>,
    /// How many stocks and replays there have been: each has names of its own.
    count: usize,
    /// Requests failed or were given up: what they asked for may be done a moment later.
    is_doubtful: bool,
}

impl Site {
    /// Nothing is there yet. `prefix` is nobody else's.
    #[must_use]
    pub const fn new(bed: Bed, prefix: String) -> Self {
        Self { bed, prefix, stocks: BTreeMap::new(), replayed: Vec::new(), count: 0, is_doubtful: false }
    }

    fn stock(&mut self, step: &Step) -> Arc<Stock> {
        let of = Use::of(step);
        let made = || {
            self.count += 1;
            Arc::new(Stock::new(format!("{}{}{}/", self.prefix, of.name(), self.count), step.sizes.clone()))
        };
        self.stocks.entry((of, step.sizes.to_string())).or_insert_with(made).clone()
    }

    /// How many objects are to be made before a step can begin.
    pub fn missing(&mut self, step: &Step) -> u64 {
        if step.writes_only() { 0 } else { step.objects.saturating_sub(self.stock(step).len() as u64) }
    }

    /// Makes the objects that a step reads or removes, and the files that it uploads. Whether it was not stopped. What could not
    /// be made is tried again, a few times.
    pub async fn prepare(&mut self, step: &Step, stop: &Stop, gauge: &Arc<Gauge>) -> Result<bool> {
        let stock = self.stock(step);
        if step.load.mix.share(Operation::Put) > 0.0 {
            make_files(&self.bed, &stock, step.objects, stop).await?;
        }
        for tries in 1.. {
            let missing = self.missing(step);
            if missing == 0 || stop.is_asked() {
                break;
            }
            let load = Load {
                mix: Mix::only(Operation::Put),
                parallel: HANDS.max(step.load.parallel),
                pace: Pace::Closed,
                until: Until { requests: Some(missing), time: Duration::MAX / 4, stable: None },
                warm_up: Duration::ZERO,
                seed: step.load.seed,
                phase: 0.0,
            };
            let outcome = drive(&self.bed, &stock, &load, stop, gauge).await?;
            let Some(tally) = outcome.record.tallies().values().find(|tally| tally.failed() > 0) else {
                continue;
            };
            self.is_doubtful = true;
            if tries == TRIES && !stop.is_asked() {
                let why = tally.samples.first().cloned().unwrap_or_default();
                let what = format!("{} of {missing} objects could not be made: {why}", tally.failed());
                return Err(Error::new(Reason::Io, what));
            }
        }
        Ok(!stop.is_asked())
    }

    /// Drives the load of a step that was prepared.
    pub async fn measure(&mut self, step: &Step, stop: &Stop, gauge: &Arc<Gauge>) -> Result<Outcome> {
        let stock = self.stock(step);
        let outcome = drive(&self.bed, &stock, &step.load, stop, gauge).await;
        self.is_doubtful |= match &outcome {
            Ok(outcome) => outcome.record.tallies().values().any(|tally| tally.failed() > 0),
            Err(_) => true,
        };
        outcome
    }

    /// Removes what a step wrote and no other step needs: a fast store would be full of it at the end.
    pub async fn clean_after(&mut self, step: &Step) -> Result<u64> {
        let of = (Use::of(step), step.sizes.to_string());
        let Some(stock) = self.stocks.get(&of).filter(|_| of.0 != Use::Read) else { return Ok(0) };
        let made = [Made::Stock(stock.clone())];
        let removed = clean(&self.bed, stock.prefix(), Some(&made), self.is_doubtful).await?;
        self.stocks.remove(&of);
        Ok(removed)
    }

    /// Removes everything; how many objects there were. What cannot be removed is tried again, a few times, after everything
    /// else.
    pub async fn clean(&mut self) -> Result<u64> {
        // A replay may have given up requests that nobody counted here.
        let is_doubtful = self.is_doubtful || !self.replayed.is_empty();
        let stocks = self.stocks.values().cloned().map(Made::Stock);
        let made: Vec<Made> = stocks.chain(self.replayed.iter().cloned().map(Made::Replayed)).collect();
        let removed = clean(&self.bed, &self.prefix, Some(&made), is_doubtful).await?;
        self.stocks.clear();
        self.replayed.clear();
        Ok(removed)
    }

    /// Removes what somebody else made below a prefix of a bed, who is lost; how many objects there were.
    pub async fn clean_others(bed: &Bed, prefix: &str) -> Result<u64> {
        clean(bed, prefix, None, true).await
    }

    /// Removes what was made below a prefix of a bed by these names, and by each of them for certain or not; how many objects there were.
    pub(crate) async fn clean_named(bed: &Bed, prefix: &str, names: Vec<(String, bool)>) -> Result<u64> {
        clean(bed, prefix, Some(&[Made::Named(names)]), true).await
    }

    /// Objects of a replay, as it needs them. None of them is there yet.
    pub fn replayed(&mut self, replay: &Replay) -> Arc<Objects> {
        self.count += 1;
        let prefix = format!("{}{}/", self.prefix, self.count);
        let objects = Arc::new(Objects::new(prefix, replay.planned()));
        self.replayed.push(objects.clone());
        objects
    }

    /// Where it is.
    #[must_use]
    pub const fn bed(&self) -> &Bed {
        &self.bed
    }
}

#[cfg(test)]
mod tests;
