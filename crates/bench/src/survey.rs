//! Many measurements of one store: each kind of load with each size and each parallelism (Hou 2017, sections 3 and 4).
//! Repetitions of the whole lie behind each other, so that what changes slowly touches every measurement alike.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use tradewind_core::condition::Precondition;
use tradewind_core::deadline::Deadline;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::listing::ListRequest;
use tradewind_core::{Address, Context};

use crate::drive::{Bed, Ending, Gauge, Stop, drive};
use crate::load::{Load, Pace, Until};
use crate::operation::{Mix, Operation};
use crate::random::mix;
use crate::result::Cell;
use crate::sizes::Sizes;
use crate::stock::Stock;

/// Objects that are made for reading, at the most, and how many bytes they take together.
const MOST_PREPARED: u64 = 10_000;
const MOST_PREPARED_BYTES: f64 = 512e6;
/// Requests at a time that prepare and clean up.
const HANDS: usize = 32;
/// How often it is tried to remove everything, and how long is waited between two times.
const ROUNDS: u32 = 4;
const BETWEEN_ROUNDS: Duration = Duration::from_millis(500);
/// Keys that are removed before the next are listed.
const PAGE: usize = 1000;

/// What is to be measured.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Kinds of load, in their order.
    pub mixes: Vec<Mix>,
    /// Sizes of the objects.
    pub sizes: Vec<Sizes>,
    /// Requests at a time.
    pub parallel: Vec<usize>,
    /// When requests start.
    pub pace: Pace,
    /// When a measurement ends.
    pub until: Until,
    /// So long before anything counts.
    pub warm_up: Duration,
    /// How often all of it is done.
    pub repeats: u32,
    /// Objects that are there to be read; `None` for as many as are usual.
    pub objects: Option<u64>,
    /// What is drawn by chance follows from it.
    pub seed: u64,
    /// Objects stay when they were measured.
    pub keeps: bool,
    /// Processors that the generator may use.
    pub cores: usize,
}

/// What is going on.
#[derive(Debug)]
pub enum Event<'a> {
    /// Objects are made, or a load is driven; what of it is done can be seen meanwhile.
    Begins {
        /// For people.
        what: String,
        /// How long it takes at the most, where that is known.
        time: Option<Duration>,
        /// What has been done so far.
        gauge: Arc<Gauge>,
    },
    /// A measurement is done.
    Measured(&'a Cell),
}

impl Survey {
    /// Refuses what cannot be measured, in words for whoever asked for it.
    pub fn check(&self, most_object_bytes: u64) -> Result<(), String> {
        if self.mixes.is_empty() || self.sizes.is_empty() || self.parallel.is_empty() || self.repeats == 0 {
            return Err("nothing is to be measured".to_owned());
        }
        if let Some(sizes) = self.sizes.iter().find(|sizes| sizes.most() > most_object_bytes) {
            return Err(format!(
                "objects of {sizes} may be larger than {most_object_bytes} bytes, the most that this store takes"
            ));
        }
        let takes_away = |mix: &&Mix| {
            mix.share(Operation::Delete) > mix.share(Operation::Put) && mix.operations().count() > 1
        };
        if let Some(mix) = self.mixes.iter().find(takes_away) {
            return Err(format!("{mix} removes more than it writes: it would run out of objects"));
        }
        Ok(())
    }

    /// How many measurements there are.
    #[must_use]
    pub fn cells(&self) -> usize {
        self.mixes.len() * self.sizes.len() * self.parallel.len() * self.repeats as usize
    }

    /// Measures everything, and tells of it. Objects are made below `prefix`; those that were read stay there, see
    /// [`clean`]. Whether all was measured: not where it was stopped.
    pub async fn run(
        &self,
        bed: &Bed,
        prefix: &str,
        stop: &Stop,
        mut tell: impl FnMut(Event<'_>),
    ) -> Result<bool> {
        let stocks = |what: &str| -> Vec<Arc<Stock>> {
            let stock =
                |(n, sizes): (usize, &Sizes)| Stock::new(format!("{prefix}{what}{n}/"), sizes.clone());
            self.sizes.iter().enumerate().map(|each| Arc::new(stock(each))).collect()
        };
        // What is read does not depend on how fast was written.
        let (written, read) = (stocks("written"), stocks("read"));
        for repeat in 1..=self.repeats {
            for ((sizes, written), read) in self.sizes.iter().zip(&written).zip(&read) {
                for shares in &self.mixes {
                    let stock = if writes_only(shares) { written } else { read };
                    for parallel in &self.parallel {
                        if stop.is_asked() {
                            return Ok(false);
                        }
                        if !self.prepare(bed, (shares, sizes), stock, stop, &mut tell).await? {
                            return Ok(false);
                        }
                        let load = self.load(shares, *parallel, repeat);
                        let what = format!("{shares} {sizes} x {parallel}");
                        let gauge = Arc::new(Gauge::default());
                        let time = Some(load.warm_up + load.until.time);
                        tell(Event::Begins { what, time, gauge: gauge.clone() });
                        let outcome = drive(bed, stock, &load, stop, &gauge).await?;
                        let cell = Cell::of(&load, sizes, repeat, &outcome, self.cores);
                        tell(Event::Measured(&cell));
                        if outcome.ending == Ending::Stopped {
                            return Ok(false);
                        }
                        if writes_only(shares) && !self.keeps {
                            // No measurement needs them, and a fast store would be full of them at the end.
                            tell(Event::Begins {
                                what: "cleaning".to_owned(),
                                time: None,
                                gauge: Arc::default(),
                            });
                            clean(bed, stock.prefix()).await?;
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    fn load(&self, shares: &Mix, parallel: usize, repeat: u32) -> Load {
        let seed = mix(self.seed ^ mix(u64::from(repeat)));
        let (mix, pace, until) = (shares.clone(), self.pace, self.until);
        // What was removed before it counts cannot be removed again.
        let is_consuming = mix.operations().all(|operation| operation == Operation::Delete);
        let warm_up = if is_consuming { Duration::ZERO } else { self.warm_up };
        Load { mix, parallel, pace, until, warm_up, seed }
    }

    /// Makes the objects that a load reads or removes. Whether it was not stopped.
    async fn prepare(
        &self,
        bed: &Bed,
        (shares, sizes): (&Mix, &Sizes),
        stock: &Arc<Stock>,
        stop: &Stop,
        tell: &mut impl FnMut(Event<'_>),
    ) -> Result<bool> {
        if writes_only(shares) {
            return Ok(true);
        }
        let usual = (MOST_PREPARED_BYTES / sizes.mean().max(1.0)) as u64;
        // Of what reads so often, no more are read.
        let usual = usual.min(self.until.requests.unwrap_or(u64::MAX));
        let most = self.parallel.iter().copied().max().unwrap_or(1) as u64;
        let wanted = self.objects.unwrap_or_else(|| usual.clamp(1, MOST_PREPARED)).max(most);
        let missing = wanted.saturating_sub(stock.len() as u64);
        if missing == 0 {
            return Ok(true);
        }
        let gauge = Arc::new(Gauge::default());
        let what = format!("making {missing} objects of {sizes}");
        tell(Event::Begins { what, time: None, gauge: gauge.clone() });
        let until = Until { requests: Some(missing), time: Duration::MAX / 4, stable: None };
        let load = Load {
            mix: Mix::only(Operation::Put),
            parallel: HANDS.max(usize::try_from(most).unwrap_or(HANDS)),
            pace: Pace::Closed,
            until,
            warm_up: Duration::ZERO,
            seed: self.seed,
        };
        let outcome = drive(bed, stock, &load, stop, &gauge).await?;
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
}

fn writes_only(shares: &Mix) -> bool {
    shares.operations().all(|operation| operation == Operation::Put)
}

/// Removes all objects below a prefix; how many there were. What cannot be removed is tried again, a few times, after
/// everything else.
pub async fn clean(bed: &Bed, prefix: &str) -> Result<u64> {
    let deadline = Deadline::none(bed.clock.clone());
    let window = bed.budget.admit(0, &deadline).await?;
    let context = Context::new(deadline, window);
    let (mut removed, mut round) = (0, 1);
    loop {
        match remove_all(bed, &context, prefix, &mut removed).await {
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
async fn remove_all(bed: &Bed, context: &Context, prefix: &str, removed: &mut u64) -> Result<()> {
    let (mut after, mut failed) = (None, Ok(()));
    loop {
        let request = ListRequest { prefix: prefix.to_owned(), delimiter: None, after, limit: PAGE };
        let page = bed.store.list(context, &bed.bucket, &request).await?;
        let removing = page.entries.iter().map(|entry| async {
            let address = Address::parse(bed.bucket.as_str(), entry.name())?;
            bed.store.delete(context, &address, Precondition::None).await
        });
        let mut removing = futures::stream::iter(removing).buffer_unordered(HANDS);
        while let Some(done) = removing.next().await {
            match done {
                Ok(_) => *removed += 1,
                Err(e) => failed = Err(e),
            }
        }
        drop(removing);
        after = page.next;
        if after.is_none() {
            return failed;
        }
    }
}

#[cfg(test)]
mod tests;
