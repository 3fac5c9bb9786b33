//! Replays an object trace: what somebody asked of a store is asked of another, at the same moments or as fast as possible.
//! Keys of the trace lie below the prefix of the run; what it reads before it writes is made first. Every answer is judged by
//! what could be there while it was under way ([`history`]), since requests to one key may overlap as they did not in the
//! trace. The trace is read twice: once to find out what it needs and what is wrong with it, once to be driven.

pub mod history;
pub mod objects;
pub mod order;
pub mod plan;
mod player;
mod source;
pub mod trace;

use std::fmt;
use std::io::{self, BufRead};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Address, Context};

use self::objects::Objects;
use self::order::Order;
use self::plan::Plan;
use self::player::{Came, Player, Turns};
use self::source::Source;
use self::trace::{Broken, Trace};
use crate::arrivals::Spacing;
use crate::drive::request::{AFTER_FAILURE, Failed, TRIES, put};
use crate::drive::shared::Shared;
use crate::drive::{Bed, DRAIN_STOPPED, Gauge, Outcome, Stop, conduct, context};
use crate::load::{Load, Pace, Until};

/// Objects at a time that are made first.
const HANDS: usize = 32;
/// Requests that are read from a trace before others have ended, where it is driven as fast as possible; for each worker, and
/// at the least.
const AHEAD: usize = 4;
const LEAST_AHEAD: usize = 4096;
/// The shortest time that a rate is told of.
const LEAST_SPAN: Duration = Duration::from_millis(1);

/// Opens a trace from its beginning.
pub type Open = dyn Fn() -> io::Result<Box<dyn BufRead + Send>> + Send + Sync;

/// A trace that was read once.
pub struct Replay {
    name: String,
    open: Arc<Open>,
    most_key_bytes: usize,
    plan: Plan,
    /// Requests at a time, at the most.
    parallel: usize,
    /// So many times as fast as it was; `None` for as fast as possible.
    speed: Option<f64>,
}

/// What was replayed, as it is kept with a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Traced {
    /// What the trace is called.
    pub name: String,
    /// Its requests.
    pub requests: u64,
    /// Lines that were passed over, since they are broken.
    pub broken: u64,
    /// So many times as fast as it was; `None` for as fast as possible.
    pub speed: Option<f64>,
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Replay of {}", self.name)
    }
}

impl Replay {
    /// Reads a trace for the first time, whose keys may have so many bytes. The inner error says why it is none.
    pub fn plan(
        name: &str,
        open: Arc<Open>,
        most_key_bytes: usize,
        (parallel, speed): (usize, Option<f64>),
    ) -> io::Result<std::result::Result<Self, Broken>> {
        let trace = match Trace::open(open()?, most_key_bytes)? {
            Ok(trace) => trace,
            Err(broken) => return Ok(Err(broken)),
        };
        let plan = Plan::of(trace)?;
        Ok(Ok(Self { name: name.to_owned(), open, most_key_bytes, plan, parallel, speed }))
    }

    /// What it comes to.
    #[must_use]
    pub const fn planned(&self) -> &Plan {
        &self.plan
    }

    /// How it is told of in a result.
    #[must_use]
    pub fn traced(&self) -> Traced {
        let (requests, broken) = (self.plan.count(), self.plan.broken);
        Traced { name: self.name.clone(), requests, broken, speed: self.speed }
    }

    /// Requests at a time, at the most.
    #[must_use]
    pub const fn parallel(&self) -> usize {
        self.parallel
    }

    /// How long it takes where the store keeps up; `None` where that is not known.
    #[must_use]
    pub fn time(&self) -> Option<Duration> {
        self.speed.map(|speed| self.plan.span.div_f64(speed))
    }

    /// The load that it is on the whole: at its own pace an open loop of its mean rate.
    #[must_use]
    pub fn load(&self) -> Load {
        let requests = self.plan.count();
        let pace = self.time().map_or(Pace::Closed, |time| Pace::Open {
            per_second: requests as f64 / time.max(LEAST_SPAN).as_secs_f64(),
            spacing: Spacing::Fixed,
        });
        let until = Until { requests: Some(requests), time: Duration::MAX / 4, stable: None };
        let (mix, warm_up) = (self.plan.mix(), Duration::ZERO);
        Load { mix, parallel: self.parallel, pace, until, warm_up, seed: 0, phase: 0.0 }
    }

    /// Makes what has to be there before it begins, where it is driven from: connections are there then. Whether it was not
    /// stopped: what is under way then is waited for a moment, and broken off. What cannot be made is tried again, a few times.
    pub async fn prepare(
        &self,
        bed: &Bed,
        objects: &Arc<Objects>,
        stop: &Stop,
        gauge: &Arc<Gauge>,
    ) -> Result<bool> {
        let what = (bed.clone(), objects.clone(), stop.clone(), gauge.clone());
        let mut making = bed.crew.set(vec![make(what, HANDS.max(self.parallel)).boxed()]);
        let made = tokio::select! {
            made = making.join_next() => made,
            () = stop.patience(DRAIN_STOPPED) => None,
        };
        let Some(made) = made else { return Ok(false) };
        let made = made.map_err(|e| Error::with_source(Reason::Defect, "who makes objects failed", e))?;
        made.map_err(|failed| {
            let (count, _) = self.plan.needed();
            let what = failed.what;
            Error::new(
                Reason::Io,
                format!("one of {count} objects that the trace reads could not be made: {what}"),
            )
        })?;
        Ok(!stop.is_asked())
    }

    /// Drives it once, on objects that were prepared for that: to its end, or until it is stopped. What is to be known of the
    /// figures beside what the outcome says.
    pub async fn drive(
        &self,
        bed: &Bed,
        objects: &Arc<Objects>,
        stop: &Stop,
        gauge: &Arc<Gauge>,
    ) -> Result<(Outcome, Vec<String>)> {
        let workers = (self.parallel, Some(self.plan.count()));
        let shared = Arc::new(Shared::new(bed.clock.clone(), workers, gauge.clone(), objects.clone()));
        let room = LEAST_AHEAD.max(AHEAD * self.parallel);
        let turns = self
            .speed
            .is_none()
            .then(|| Arc::new(Turns { order: Mutex::new(Order::default()), room: Semaphore::new(room) }));
        let mut workers = Vec::with_capacity(self.parallel + 1);
        for n in 0..self.parallel {
            let player = Player {
                bed: bed.clone(),
                objects: objects.clone(),
                shared: shared.clone(),
                turns: turns.clone(),
                context: context(bed).await?,
                came: Came::default(),
                samples: shared.sampler(Some(n)),
            };
            workers.push(player.run().boxed());
        }
        let (source, requests) = Source::start(self, objects.clone())?;
        let starts = match (self.speed, turns) {
            (Some(speed), _) => Some(requests.starts(speed)),
            (None, Some(turns)) => {
                workers.push(requests.feed(shared.clone(), turns).boxed());
                None
            }
            (None, None) => None,
        };
        let subject = |_, request: player::Request| request.subject(objects);
        let driven = conduct(bed, &shared, (starts, workers), &self.load(), stop, subject).await;
        source.end()?;
        let (outcome, came) = driven?;
        let notes = self.notes(&came);
        Ok((outcome, notes))
    }

    fn notes(&self, came: &[Came]) -> Vec<String> {
        let mut notes = Vec::new();
        let waited: u64 = came.iter().map(|came| came.waited).sum();
        if waited > 0 {
            notes.push(format!(
                "{waited} requests waited for one of {} at a time: the store, or so many at a time, cannot keep up with the \
                 trace; their latencies have that in them",
                self.parallel
            ));
        }
        let absent: u64 = came.iter().map(|came| came.absent).sum();
        if absent > 0 {
            notes.push(format!(
                "{absent} requests rightly found nothing: the trace had removed what they were about, or reads behind its end"
            ));
        }
        if self.plan.broken > 0 {
            notes.push(format!("{} broken lines of the trace were passed over", self.plan.broken));
        }
        notes
    }
}

/// Makes objects that a trace needs, so many at a time, until it is to stop.
async fn make(
    (bed, objects, stop, gauge): (Bed, Arc<Objects>, Stop, Arc<Gauge>),
    hands: usize,
) -> std::result::Result<(), Failed> {
    let (bed, objects, context, gauge, stop) = (&bed, &objects, &context(&bed).await?, &gauge, &stop);
    let making = objects.needed().take_while(|_| !stop.is_asked()).map(|needed| async move {
        if make_one((bed, context), objects, needed, stop).await? {
            gauge.success(needed.1);
        }
        Ok::<(), Failed>(())
    });
    let mut making = futures::stream::iter(making).buffer_unordered(hands);
    while let Some(made) = making.next().await {
        made?;
    }
    Ok(())
}

/// Makes an object of a size, and tries it again where it fails. Whether it is there: it may not be where all was stopped.
async fn make_one(
    (bed, context): (&Bed, &Context),
    objects: &Objects,
    (object, size): (usize, u64),
    stop: &Stop,
) -> std::result::Result<bool, Failed> {
    let address = Address::parse(bed.bucket.as_str(), &objects.name(object))?;
    let content = Objects::content(address.key.as_str(), 0, size);
    let mut tries = 1;
    loop {
        match put(bed, context, &address, (content, size), None).await {
            Ok(()) => return Ok(true),
            Err(_) if stop.is_asked() => return Ok(false),
            Err(failed) if tries == TRIES => return Err(failed),
            Err(_) => {
                objects.doubt(object);
                tries += 1;
                tokio::time::sleep(AFTER_FAILURE).await;
            }
        }
    }
}

impl Traced {
    /// How it is told from others: what it is, how fast, and how many requests at a time.
    #[must_use]
    pub fn name(&self, parallel: usize) -> String {
        match self.speed {
            None => format!("{} x {parallel}", self.name),
            Some(1.0) => format!("{} x {parallel} at its own pace", self.name),
            Some(speed) => format!("{} x {parallel} at {speed} times its own pace", self.name),
        }
    }
}

#[cfg(test)]
mod tests;
