//! Goes through measurements, one behind the other, and tells of them. Those of one stage run at the same time, each on
//! objects of its own: what each of them loses by the others is interference (Hou 2017, section 4.4).

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};

use crate::caches::{Caches, Kernel};
use crate::drive::{Bed, Ending, Gauge, Stop};
use crate::interference::void_beside;
use crate::random::mix;
use crate::replay::Replay;
use crate::result::Cell;
use crate::samples::Samples;
use crate::site::Site;
use crate::survey::Step;

/// What is going on.
#[derive(Debug)]
pub enum Event<'a> {
    /// Objects are made or removed, caches are dropped, or loads are driven; what of it is done can be seen meanwhile.
    Begins {
        /// For people.
        what: String,
        /// How long it takes at the most, where that is known.
        time: Option<Duration>,
        /// What has been done so far.
        gauges: Vec<Arc<Gauge>>,
    },
    /// A measurement is done.
    Measured(&'a Cell),
}

/// Measurements that run at the same time; most often one alone.
pub type Stage = Vec<Step>;

/// See the module.
#[derive(Debug)]
pub struct Course {
    /// One for each of those that run at the same time.
    sites: Vec<Site>,
    /// Processors that the generator may use.
    cores: usize,
    /// Objects stay when they were measured.
    keeps: bool,
    /// Whoever drops caches before each stage, if anybody does.
    kernel: Option<Kernel>,
    /// Where single requests are kept, if they are.
    samples: Option<Samples>,
}

impl Course {
    /// For stages of so many steps at the most. Objects are made below `prefix`.
    #[must_use]
    pub fn new(bed: &Bed, prefix: &str, together: usize, (cores, keeps): (usize, bool)) -> Self {
        let site = |n: usize| match together {
            ..=1 => Site::new(bed.clone(), prefix.to_owned()),
            _ => Site::new(bed.clone(), format!("{prefix}{n}/")),
        };
        let sites = (0..together.max(1)).map(site).collect();
        Self { sites, cores, keeps, kernel: None, samples: None }
    }

    /// The same with the machine's caches dropped before each stage and each replay, by a kernel that may be asked to.
    #[must_use]
    pub fn dropping_caches(self, kernel: Option<Kernel>) -> Self {
        Self { kernel, ..self }
    }

    /// The same with each request of a measurement kept by itself.
    #[must_use]
    pub fn sampled(self, samples: Option<Samples>) -> Self {
        Self { samples, ..self }
    }

    /// No more are kept. The first error of where they went, if there was any.
    pub fn end_samples(&mut self) -> io::Result<()> {
        self.samples.take().map_or(Ok(()), Samples::end)
    }

    /// Measures everything, and tells of it. Whether all was measured: not where it was stopped.
    pub async fn run(
        &mut self,
        stages: impl IntoIterator<Item = Stage>,
        stop: &Stop,
        mut tell: impl FnMut(Event<'_>),
    ) -> Result<bool> {
        for stage in stages {
            if !self.prepare(&stage, stop, &mut tell).await? || !self.measure(&stage, stop, &mut tell).await?
            {
                return Ok(false);
            }
            self.clean_after(&stage, &mut tell).await?;
        }
        Ok(true)
    }

    /// Makes the objects of a stage, for one step behind the other: it would not be faster for one beside another. Then
    /// drops caches, where they are to be. Whether all is ready: not where it was stopped.
    pub async fn prepare(
        &mut self,
        stage: &[Step],
        stop: &Stop,
        tell: &mut impl FnMut(Event<'_>),
    ) -> Result<bool> {
        for (site, step) in self.sites.iter_mut().zip(stage) {
            let missing = site.missing(step);
            let gauge = Arc::new(Gauge::default());
            if missing > 0 {
                let what = format!("making {missing} objects of {}", step.sizes);
                tell(Event::Begins { what, time: None, gauges: vec![gauge.clone()] });
            }
            if !site.prepare(step, stop, &gauge).await? {
                return Ok(false);
            }
        }
        self.drop_caches(stop, tell).await?;
        Ok(!stop.is_asked())
    }

    /// Asks the kernel for it, if anybody is to. It cannot be called back: what is stopped goes on without it.
    async fn drop_caches(&self, stop: &Stop, tell: &mut impl FnMut(Event<'_>)) -> Result<()> {
        let Some(kernel) = self.kernel.clone() else { return Ok(()) };
        tell(Event::Begins { what: "dropping caches".to_owned(), time: None, gauges: Vec::new() });
        let (told, dropped) = oneshot::channel();
        // A thread that nobody waits for: the kernel first writes all that anybody has not had written yet.
        let work = move || drop(told.send(kernel.write_and_drop_all()));
        let started = std::thread::Builder::new().name("caches".to_owned()).spawn(work);
        started.map_err(|e| Error::with_source(Reason::Io, format!("a thread cannot be started: {e}"), e))?;
        let dropped = tokio::select! {
            biased;
            dropped = dropped => dropped,
            () = stop.asked() => return Ok(()),
        };
        let dropped = dropped.map_err(|e| Error::with_source(Reason::Defect, "dropping caches failed", e))?;
        dropped.map_err(|why| Error::new(Reason::Io, format!("caches cannot be dropped: {why}")))
    }

    /// How they were.
    const fn caches(&self) -> Caches {
        if self.kernel.is_some() { Caches::Dropped } else { Caches::Kept }
    }

    fn gauge(&self, repeat: u32) -> Arc<Gauge> {
        let samples = self.samples.as_ref().map(|samples| samples.next_cell(repeat));
        Arc::new(samples.map_or_else(Gauge::default, Gauge::with_samples))
    }

    /// Measures a stage that was prepared, from this moment on, and tells of it. Whether it was not stopped.
    pub async fn measure(
        &mut self,
        stage: &[Step],
        stop: &Stop,
        tell: &mut impl FnMut(Event<'_>),
    ) -> Result<bool> {
        let gauges: Vec<Arc<Gauge>> = stage.iter().map(|step| self.gauge(step.repeat)).collect();
        let what = stage.iter().fold(String::new(), |mut said, step| {
            let beside = if said.is_empty() { "" } else { " beside " };
            // It is a string that is written to.
            let _ = write!(said, "{beside}{step}");
            said
        });
        let time = stage.iter().map(|step| step.load.warm_up + step.load.until.time).max();
        tell(Event::Begins { what, time, gauges: gauges.clone() });
        // Of one seed all would start their requests at the same moments.
        let mut drawn = stage.to_vec();
        drawn
            .iter_mut()
            .enumerate()
            .skip(1)
            .for_each(|(n, step)| step.load.seed = mix(step.load.seed ^ n as u64));
        let driven = (self.sites.iter_mut().zip(&drawn).zip(&gauges))
            .map(|((site, step), gauge)| site.measure(step, stop, gauge));
        // Each of them is waited for, whatever became of the others.
        let outcomes = join_all(driven).await;
        let mut cells = Vec::with_capacity(stage.len());
        for (n, (step, outcome)) in stage.iter().zip(outcomes).enumerate() {
            let others = stage.iter().enumerate().filter(|(other, _)| *other != n);
            let beside = others.map(|(_, other)| other.to_string()).collect();
            cells.push(Cell::of(step, beside, &outcome?, self.cores));
        }
        void_beside(&mut cells);
        let is_whole = cells.iter().all(|cell| cell.ending != Ending::Stopped);
        for (cell, gauge) in cells.into_iter().zip(&gauges) {
            tell(Event::Measured(&cell.under(self.caches(), gauge.sampled().await)));
        }
        Ok(is_whole)
    }

    /// Replays a trace so often, and tells of it. Whether all of it was replayed.
    pub async fn replay(
        &mut self,
        replay: &Replay,
        rounds: u32,
        stop: &Stop,
        mut tell: impl FnMut(Event<'_>),
    ) -> Result<bool> {
        for round in 1..=rounds {
            let Some(site) = self.sites.first_mut() else { break };
            if round > 1 && !self.keeps {
                tell(Event::Begins { what: "cleaning".to_owned(), time: None, gauges: Vec::new() });
                site.clean().await?;
            }
            let objects = site.replayed(replay);
            let gauge = Arc::new(Gauge::default());
            let (count, bytes) = replay.planned().needed();
            if count > 0 {
                let what = format!("making {count} objects, {} MB", bytes.div_ceil(1_000_000));
                tell(Event::Begins { what, time: None, gauges: vec![gauge.clone()] });
            }
            if !replay.prepare(site.bed(), &objects, stop, &gauge).await? {
                return Ok(false);
            }
            self.drop_caches(stop, &mut tell).await?;
            if stop.is_asked() {
                return Ok(false);
            }
            let (what, gauge) = (replay.traced().name(replay.parallel()), self.gauge(round));
            tell(Event::Begins { what, time: replay.time(), gauges: vec![gauge.clone()] });
            let Some(site) = self.sites.first() else { break };
            let (outcome, notes) = replay.drive(site.bed(), &objects, stop, &gauge).await?;
            let cell = Cell::of_replay(replay, round, (&outcome, notes), self.cores);
            tell(Event::Measured(&cell.under(self.caches(), gauge.sampled().await)));
            if outcome.ending == Ending::Stopped {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes what a stage wrote and no other needs.
    pub async fn clean_after(&mut self, stage: &[Step], tell: &mut impl FnMut(Event<'_>)) -> Result<()> {
        if !self.keeps && stage.iter().any(Step::writes_only) {
            tell(Event::Begins { what: "cleaning".to_owned(), time: None, gauges: Vec::new() });
            let cleaning = self.sites.iter_mut().zip(stage).map(|(site, step)| site.clean_after(step));
            try_join_all(cleaning).await?;
        }
        Ok(())
    }

    /// Removes everything that was made; how many objects there were.
    pub async fn clean(&mut self) -> Result<u64> {
        let removed = join_all(self.sites.iter_mut().map(Site::clean)).await;
        removed.into_iter().try_fold(0, |sum, removed| Ok(sum + removed?))
    }
}

#[cfg(test)]
mod tests;
