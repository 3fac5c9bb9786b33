//! Where objects of measurements lie: makes those that are read, drives loads on them, and removes all of them again, and
//! nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tradewind_core::condition::Precondition;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, ErrorKind, Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::{Address, Context};

use crate::drive::{Bed, Gauge, Outcome, Stop, drive};
use crate::load::{Load, Pace, Until};
use crate::operation::{Mix, Operation};
use crate::replay::Replay;
use crate::replay::objects::Objects;
use crate::stock::Stock;
use crate::survey::Step;

/// Requests at a time that prepare and clean up.
const HANDS: usize = 32;
/// How often it is tried to remove everything, and how long is waited between two times.
const ROUNDS: u32 = 4;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(500);
/// Keys that are removed before the next are listed.
const PAGE: usize = 1000;

/// Objects below one prefix, by what they are for.
#[derive(Debug)]
pub struct Site {
    bed: Bed,
    prefix: String,
    /// What is read does not depend on how fast was written, and so they are apart; by their sizes.
    written: BTreeMap<String, Arc<Stock>>,
    read: BTreeMap<String, Arc<Stock>>,
    /// Those of replays.
    replayed: Vec<Arc<Objects>>,
    /// How many stocks and replays there have been: each has names of its own.
    stocks: usize,
}

impl Site {
    /// Nothing is there yet. `prefix` is nobody else's.
    #[must_use]
    pub const fn new(bed: Bed, prefix: String) -> Self {
        Self { bed, prefix, written: BTreeMap::new(), read: BTreeMap::new(), replayed: Vec::new(), stocks: 0 }
    }

    fn stock(&mut self, step: &Step) -> Arc<Stock> {
        let (stocks, what) =
            if step.writes_only() { (&mut self.written, "written") } else { (&mut self.read, "read") };
        let number = &mut self.stocks;
        let made = || {
            *number += 1;
            Arc::new(Stock::new(format!("{}{what}{number}/", self.prefix), step.sizes.clone()))
        };
        stocks.entry(step.sizes.to_string()).or_insert_with(made).clone()
    }

    /// How many objects are to be made before a step can begin.
    pub fn missing(&mut self, step: &Step) -> u64 {
        if step.writes_only() { 0 } else { step.objects.saturating_sub(self.stock(step).len() as u64) }
    }

    /// Makes the objects that a step reads or removes. Whether it was not stopped.
    pub async fn prepare(&mut self, step: &Step, stop: &Stop, gauge: &Arc<Gauge>) -> Result<bool> {
        if step.load.mix.share(Operation::Put) > 0.0 {
            let stock = self.stock(step);
            stock.make_files(&self.bed, step.objects).await?;
        }
        let missing = self.missing(step);
        if missing == 0 {
            return Ok(!stop.is_asked());
        }
        let load = Load {
            mix: Mix::only(Operation::Put),
            parallel: HANDS.max(step.load.parallel),
            pace: Pace::Closed,
            until: Until { requests: Some(missing), time: Duration::MAX / 4, stable: None },
            warm_up: Duration::ZERO,
            seed: step.load.seed,
        };
        let stock = self.stock(step);
        let outcome = drive(&self.bed, &stock, &load, stop, gauge).await?;
        if stop.is_asked() {
            return Ok(false);
        }
        let failed = outcome.record.tallies().values().find(|tally| tally.failed() > 0);
        if let Some(tally) = failed {
            let why = tally.samples.first().cloned().unwrap_or_default();
            let what = format!("{} of {missing} objects could not be made: {why}", tally.failed());
            return Err(Error::new(Reason::Io, what));
        }
        Ok(true)
    }

    /// Drives the load of a step that was prepared.
    pub async fn measure(&mut self, step: &Step, stop: &Stop, gauge: &Arc<Gauge>) -> Result<Outcome> {
        let stock = self.stock(step);
        drive(&self.bed, &stock, &step.load, stop, gauge).await
    }

    /// Removes what a step wrote and no other step needs: a fast store would be full of it at the end.
    pub async fn clean_after(&mut self, step: &Step) -> Result<u64> {
        if !step.writes_only() {
            return Ok(0);
        }
        let Some(stock) = self.written.remove(&step.sizes.to_string()) else { return Ok(0) };
        clean(&self.bed, stock.prefix(), || stock.names()).await
    }

    /// Removes everything; how many objects there were. What cannot be removed is tried again, a few times, after everything
    /// else.
    pub async fn clean(&mut self) -> Result<u64> {
        let names = || {
            let stocks = self.written.values().chain(self.read.values()).flat_map(|stock| stock.names());
            stocks.chain(self.replayed.iter().flat_map(|objects| objects.names()))
        };
        let removed = clean(&self.bed, &self.prefix, names).await?;
        self.written.clear();
        self.read.clear();
        self.replayed.clear();
        Ok(removed)
    }

    /// Objects of a replay, as it needs them. None of them is there yet.
    pub fn replayed(&mut self, replay: &Replay) -> Arc<Objects> {
        self.stocks += 1;
        let prefix = format!("{}{}/", self.prefix, self.stocks);
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

/// Removes what is listed below a prefix; where that is denied, what has one of the names.
async fn clean<N: Iterator<Item = String>>(bed: &Bed, prefix: &str, names: impl Fn() -> N) -> Result<u64> {
    let deadline = Deadline::none(bed.clock.clone());
    let window = bed.budget.admit(0, &deadline).await?;
    let context = Context::new(deadline, window);
    let (mut removed, mut round) = (0, 1);
    loop {
        let done = match remove_listed(bed, &context, prefix, &mut removed).await {
            // Who may not list knows what was made nevertheless.
            Err(e) if e.kind() == ErrorKind::Denied => {
                tracing::debug!(error = %e, "objects cannot be listed: they are removed by their names");
                remove(bed, &context, names(), &mut removed).await
            }
            done => done,
        };
        match done {
            Ok(()) => return Ok(removed),
            Err(e) if round == ROUNDS => return Err(e),
            Err(e) => {
                tracing::debug!(error = %e, round, "objects could not be removed");
                round += 1;
                tokio::time::sleep(BETWEEN_ROUNDS).await;
            }
        }
    }
}

/// Goes through all objects once, past those that cannot be removed; the error says why one could not.
async fn remove_listed(bed: &Bed, context: &Context, prefix: &str, removed: &mut u64) -> Result<()> {
    let (mut after, mut failed) = (None, Ok(()));
    loop {
        let request = ListRequest { prefix: prefix.to_owned(), delimiter: None, after, limit: PAGE };
        let page = bed.store.list(context, &bed.bucket, &request).await?;
        // Names that were only borrowed would keep this from going to another thread.
        let names: Vec<String> = page.entries.iter().map(|entry| entry.name().to_owned()).collect();
        if let Err(e) = remove(bed, context, names.into_iter(), removed).await {
            failed = Err(e);
        }
        after = page.next;
        if after.is_none() {
            return failed;
        }
    }
}

async fn remove(
    bed: &Bed,
    context: &Context,
    names: impl Iterator<Item = String>,
    removed: &mut u64,
) -> Result<()> {
    let mut failed = Ok(());
    let removing = names.map(|name| async move {
        let address = Address::parse(bed.bucket.as_str(), &name)?;
        bed.store.delete(context, &address, Precondition::None).await
    });
    let mut removing = futures::stream::iter(removing).buffer_unordered(HANDS);
    while let Some(done) = removing.next().await {
        match done {
            Ok(_) => *removed += 1,
            Err(e) => failed = Err(e),
        }
    }
    failed
}

#[cfg(test)]
mod tests;
