//! Runs measurements in sequence and reports progress. Steps of one stage run concurrently, each on its own objects:
//! the slowdown they cause each other is interference (Hou 2017, section 4.4).

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};

use crate::caches::{CacheDropper, CacheTreatment};
use crate::drive::{BenchEnv, EndReason, Progress, StopSignal};
use crate::interference::void_stage;
use crate::random::mix;
use crate::replay::Replay;
use crate::result::Measurement;
use crate::samples::SampleFile;
use crate::test_plan::Step;
use crate::workspace::Workspace;

/// A progress event.
#[derive(Debug)]
pub enum RunEvent<'a> {
    /// A phase begins: objects are created or removed, caches are dropped, or loads run.
    PhaseStarted {
        /// Description for users.
        description: String,
        /// Maximum duration, if known.
        max_duration: Option<Duration>,
        /// Live progress of the loads of this phase.
        progress: Vec<Arc<Progress>>,
    },
    /// A measurement is complete.
    Measured(&'a Measurement),
}

/// Measurements that run concurrently; usually a single one.
pub type Stage = Vec<Step>;

/// The runner of a sequence of stages.
#[derive(Debug)]
pub struct Runner {
    /// One for each concurrent step.
    workspaces: Vec<Workspace>,
    /// CPUs that the generator may use.
    cores: usize,
    /// Objects are kept after their measurement.
    keep_objects: bool,
    /// Drops caches before each stage, if set.
    cache_dropper: Option<CacheDropper>,
    /// Destination of per-request samples, if they are recorded.
    samples: Option<SampleFile>,
}

impl Runner {
    /// Creates a runner for stages of at most `concurrent_steps` steps. Objects are created below `prefix`.
    #[must_use]
    pub fn new(
        env: &BenchEnv,
        prefix: &str,
        concurrent_steps: usize,
        (cores, keep_objects): (usize, bool),
    ) -> Self {
        let workspace = |n: usize| match concurrent_steps {
            ..=1 => Workspace::new(env.clone(), prefix.to_owned()),
            _ => Workspace::new(env.clone(), format!("{prefix}{n}/")),
        };
        let workspaces = (0..concurrent_steps.max(1)).map(workspace).collect();
        Self { workspaces, cores, keep_objects, cache_dropper: None, samples: None }
    }

    /// Drops the machine's caches before each stage and each replay, if `cache_dropper` is set.
    #[must_use]
    pub fn with_cache_dropping(self, cache_dropper: Option<CacheDropper>) -> Self {
        Self { cache_dropper, ..self }
    }

    /// Records each request of a measurement individually, if `samples` is set.
    #[must_use]
    pub fn with_samples(self, samples: Option<SampleFile>) -> Self {
        Self { samples, ..self }
    }

    /// Ends the recording of samples. Returns the first error of writing them, if any.
    pub fn finish_samples(&mut self) -> io::Result<()> {
        self.samples.take().map_or(Ok(()), SampleFile::finish)
    }

    /// Runs all stages and reports their events. Returns true if everything was measured, false if stopped.
    pub async fn run(
        &mut self,
        stages: impl IntoIterator<Item = Stage>,
        stop: &StopSignal,
        mut on_event: impl FnMut(RunEvent<'_>),
    ) -> Result<bool> {
        for stage in stages {
            if !self.prepare(&stage, stop, &mut on_event).await?
                || !self.measure(&stage, stop, &mut on_event).await?
            {
                return Ok(false);
            }
            self.clean_after(&stage, &mut on_event).await?;
        }
        Ok(true)
    }

    /// Creates the objects of a stage, one step after another: concurrent preparation would not be faster. Then drops
    /// caches if configured. Returns false if stopped.
    pub async fn prepare(
        &mut self,
        stage: &[Step],
        stop: &StopSignal,
        on_event: &mut impl FnMut(RunEvent<'_>),
    ) -> Result<bool> {
        for (workspace, step) in self.workspaces.iter_mut().zip(stage) {
            let missing = workspace.missing_objects(step);
            let progress = Arc::new(Progress::default());
            if missing > 0 {
                let description = format!("creating {missing} objects of {}", step.sizes);
                on_event(RunEvent::PhaseStarted {
                    description,
                    max_duration: None,
                    progress: vec![progress.clone()],
                });
            }
            if !workspace.prepare(step, stop, &progress).await? {
                return Ok(false);
            }
        }
        self.drop_caches(stop, on_event).await?;
        Ok(!stop.is_triggered())
    }

    /// Drops the machine's caches, if configured. The kernel cannot be interrupted: after a stop, this returns while it
    /// continues.
    async fn drop_caches(&self, stop: &StopSignal, on_event: &mut impl FnMut(RunEvent<'_>)) -> Result<()> {
        let Some(cache_dropper) = self.cache_dropper.clone() else { return Ok(()) };
        on_event(RunEvent::PhaseStarted {
            description: "dropping caches".to_owned(),
            max_duration: None,
            progress: Vec::new(),
        });
        let (sender, dropped) = oneshot::channel();
        // A detached thread: the kernel first writes back the dirty pages of the whole machine, which may take long.
        let work = move || drop(sender.send(cache_dropper.sync_and_drop_all()));
        let started = std::thread::Builder::new().name("caches".to_owned()).spawn(work);
        started.map_err(|e| Error::with_source(Reason::Io, format!("cannot start a thread: {e}"), e))?;
        let dropped = tokio::select! {
            biased;
            dropped = dropped => dropped,
            () = stop.triggered() => return Ok(()),
        };
        let dropped = dropped.map_err(|e| Error::with_source(Reason::Defect, "dropping caches failed", e))?;
        dropped.map_err(|reason| Error::new(Reason::Io, format!("cannot drop caches: {reason}")))
    }

    /// The cache treatment of the measurements.
    const fn caches(&self) -> CacheTreatment {
        if self.cache_dropper.is_some() { CacheTreatment::Dropped } else { CacheTreatment::NotDropped }
    }

    fn new_progress(&self, round: u32) -> Arc<Progress> {
        let samples = self.samples.as_ref().map(|samples| samples.next_measurement(round));
        Arc::new(samples.map_or_else(Progress::default, Progress::with_samples))
    }

    /// Measures a prepared stage, starting now, and reports the measurements. Returns false if stopped.
    pub async fn measure(
        &mut self,
        stage: &[Step],
        stop: &StopSignal,
        on_event: &mut impl FnMut(RunEvent<'_>),
    ) -> Result<bool> {
        let progress: Vec<Arc<Progress>> = stage.iter().map(|step| self.new_progress(step.round)).collect();
        let description = stage.iter().fold(String::new(), |mut text, step| {
            let separator = if text.is_empty() { "" } else { " with " };
            // Writing to a string cannot fail.
            let _ = write!(text, "{separator}{step}");
            text
        });
        let max_duration =
            stage.iter().map(|step| step.load.warm_up + step.load.stop_condition.duration).max();
        on_event(RunEvent::PhaseStarted { description, max_duration, progress: progress.clone() });
        // With equal seeds, all steps would start their requests at the same times.
        let mut drawn = stage.to_vec();
        drawn
            .iter_mut()
            .enumerate()
            .skip(1)
            .for_each(|(n, step)| step.load.seed = mix(step.load.seed ^ n as u64));
        let driven = (self.workspaces.iter_mut().zip(&drawn).zip(&progress))
            .map(|((workspace, step), progress)| workspace.measure(step, stop, progress));
        // All steps are joined, even if one of them fails.
        let outcomes = join_all(driven).await;
        let mut measurements = Vec::with_capacity(stage.len());
        for (n, (step, outcome)) in stage.iter().zip(outcomes).enumerate() {
            let others = stage.iter().enumerate().filter(|(other, _)| *other != n);
            let concurrent_with = others.map(|(_, other)| other.to_string()).collect();
            measurements.push(Measurement::new(step, concurrent_with, &outcome?, self.cores));
        }
        void_stage(&mut measurements);
        let is_whole = measurements.iter().all(|measurement| measurement.end_reason != EndReason::Stopped);
        for (measurement, progress) in measurements.into_iter().zip(&progress) {
            on_event(RunEvent::Measured(
                &measurement.with_context(self.caches(), progress.finish_samples().await),
            ));
        }
        Ok(is_whole)
    }

    /// Replays a trace `rounds` times and reports the measurements. Returns false if stopped.
    pub async fn replay(
        &mut self,
        replay: &Replay,
        rounds: u32,
        stop: &StopSignal,
        mut on_event: impl FnMut(RunEvent<'_>),
    ) -> Result<bool> {
        for round in 1..=rounds {
            let Some(workspace) = self.workspaces.first_mut() else { break };
            if round > 1 && !self.keep_objects {
                on_event(RunEvent::PhaseStarted {
                    description: "cleaning".to_owned(),
                    max_duration: None,
                    progress: Vec::new(),
                });
                workspace.clean().await?;
            }
            let objects = workspace.add_replay(replay);
            let progress = Arc::new(Progress::default());
            let (count, bytes) = replay.trace_summary().initial_objects();
            if count > 0 {
                let description = format!("creating {count} objects, {} MB", bytes.div_ceil(1_000_000));
                on_event(RunEvent::PhaseStarted {
                    description,
                    max_duration: None,
                    progress: vec![progress.clone()],
                });
            }
            if !replay.prepare(workspace.env(), &objects, stop, &progress).await? {
                return Ok(false);
            }
            self.drop_caches(stop, &mut on_event).await?;
            if stop.is_triggered() {
                return Ok(false);
            }
            let (description, progress) =
                (replay.trace_info().name(replay.concurrency()), self.new_progress(round));
            on_event(RunEvent::PhaseStarted {
                description,
                max_duration: replay.duration(),
                progress: vec![progress.clone()],
            });
            let Some(workspace) = self.workspaces.first() else { break };
            let (outcome, notes) = replay.run(workspace.env(), &objects, stop, &progress).await?;
            let measurement = Measurement::from_replay(replay, round, (&outcome, notes), self.cores);
            on_event(RunEvent::Measured(
                &measurement.with_context(self.caches(), progress.finish_samples().await),
            ));
            if outcome.end_reason == EndReason::Stopped {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes objects that a stage wrote and no other stage needs.
    pub async fn clean_after(
        &mut self,
        stage: &[Step],
        on_event: &mut impl FnMut(RunEvent<'_>),
    ) -> Result<()> {
        if !self.keep_objects && stage.iter().any(Step::writes_only) {
            on_event(RunEvent::PhaseStarted {
                description: "cleaning".to_owned(),
                max_duration: None,
                progress: Vec::new(),
            });
            let cleaning =
                self.workspaces.iter_mut().zip(stage).map(|(workspace, step)| workspace.clean_after(step));
            try_join_all(cleaning).await?;
        }
        Ok(())
    }

    /// Removes all objects that were created and returns their number.
    pub async fn clean(&mut self) -> Result<u64> {
        let removed = join_all(self.workspaces.iter_mut().map(Workspace::clean)).await;
        removed.into_iter().try_fold(0, |sum, removed| Ok(sum + removed?))
    }
}

#[cfg(test)]
mod tests;
