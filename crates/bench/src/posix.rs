//! Benchmark of a mounted file system, local or remote, as an application sees it: operating-system threads make
//! blocking calls, in three access forms (Ou 2015, sections III and IV). There are four parts: one file of 16 MiB
//! accessed in units of several sizes, single files on an otherwise idle link, batches of files from one thread and
//! from many, and Postmark's workload of short-lived small files (Wang 2012, section 5.3).
//!
//! Caches are dropped between writing and reading if permitted. Every byte read is compared with what was written. If a
//! network interface is named, the bytes on the wire per byte of the files are reported.

pub mod access_form;
mod access_stats;
pub mod amplification;
mod batch_size;
mod buffer;
pub mod cache_policy;
pub mod compare;
mod completion;
mod counters;
mod file_access;
mod measurement;
pub mod mount;
mod phase;
pub mod postmark;
mod probe;
pub mod result;
mod run_directory;
mod section;
mod steady_rate;

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::quantity::ByteSize;

use self::access_form::AccessForm;
use self::amplification::{AmplificationFit, RatioPoint};
use self::cache_policy::CachePolicy;
use self::counters::InterfaceCounters;
use self::measurement::{MeasureEnv, MeasureSpec};
use self::mount::Mount;
use self::phase::PhaseTask;
pub use self::phase::PosixEnv;
use self::postmark::PostmarkWorkload;
use self::probe::MemoryCallTimes;
use self::result::{
    AccessResult, AccessScope, AmplificationCurve, CacheTreatment, Direction, IdleTraffic, PosixConditions,
    PosixRecord, SkippedForm,
};
pub use self::run_directory::RunDirectory;
use self::run_directory::RunFile;
use self::section::PosixStep;
pub use self::section::{PosixPart, PosixSection};
use crate::caches::drop_caches;
use crate::drive::Progress;

/// Size of the file that is accessed in units of several sizes, in bytes.
pub const UNIT_FILE_BYTES: u64 = 16 << 20;
/// Access to one file ends after this multiple of the measurement time, but never in the middle of a call.
const FILE_TIME_FACTOR: u32 = 5;
/// Lowest plausible amplification. Below it a cache responded, or the files are not behind this interface.
const MIN_AMPLIFICATION: f64 = 0.9;
/// Duration for which the idle traffic of the link is sampled before the first measurement.
const IDLE_SAMPLE_TIME: Duration = Duration::from_millis(500);

/// The measurements of a run, and their options.
#[derive(Debug, Clone)]
pub struct PosixPlan {
    /// Measured in this order.
    pub sections: Vec<PosixSection>,
    /// Files are synced before they are closed.
    pub fsync: bool,
    /// Before reading, the kernel is asked to drop the caches of the whole machine.
    pub drop_caches: bool,
    /// The network interface whose bytes are counted.
    pub interface: Option<String>,
    /// Number of rounds.
    pub rounds: u32,
    /// Random seed.
    pub seed: u64,
    /// Measured files are not removed.
    pub keep_files: bool,
    /// CPUs that the generator may use.
    pub cores: usize,
}

/// Progress of a run.
#[derive(Debug)]
pub enum PosixEvent<'a> {
    /// A measurement starts.
    Started {
        /// Human-readable description.
        description: String,
        /// Live progress of the measurement.
        progress: Arc<Progress>,
    },
    /// A measurement has finished.
    Measured(&'a PosixRecord),
}

type OnEvent<'a> = &'a mut dyn FnMut(PosixEvent<'_>);

/// State of a run.
struct PosixRun<'a> {
    plan: &'a PosixPlan,
    /// The steps of one round.
    steps: Vec<PosixStep>,
    env: MeasureEnv<'a>,
    /// The access forms that the file system supports.
    forms: Vec<AccessForm>,
    /// Finished measurements, for the amplification curves at the end.
    accesses: Vec<AccessResult>,
    on_event: OnEvent<'a>,
}

impl PosixPlan {
    /// Validates the options. The error is a message for the user.
    pub fn validate(&self) -> Result<(), String> {
        let steps = section::steps(&self.sections);
        if steps.is_empty() || self.rounds == 0 {
            return Err("there is nothing to measure".to_owned());
        }
        if let Some(Err(e)) = self.interface.as_deref().map(InterfaceCounters::for_interface) {
            return Err(e.to_string());
        }
        section::check_conflicts(&self.sections)?;
        steps.iter().try_for_each(PosixStep::validate)
    }

    /// The maximum number of measurements.
    #[must_use]
    pub fn max_measurements(&self) -> usize {
        let steps = section::steps(&self.sections);
        let specs = steps.iter().map(|step| if matches!(step, PosixStep::Postmark(_)) { 1 } else { 2 });
        specs.sum::<usize>() * self.rounds as usize
    }

    /// Runs all measurements and reports each to `on_event`. Blocks. Files are created in the directory of `posix` and
    /// remain there only if `keep_files` is set or removing them fails. Returns false if it was stopped early.
    pub fn run(&self, posix: &PosixEnv, on_event: OnEvent<'_>) -> Result<bool> {
        let counters = self.interface.as_deref().map(InterfaceCounters::for_interface).transpose();
        let counters = counters.map_err(|e| Error::with_source(Reason::InvalidArgument, e.to_string(), e))?;
        let mut run = PosixRun {
            plan: self,
            steps: section::steps(&self.sections),
            env: MeasureEnv { posix, counters, idle_bytes_per_second: 0.0, cores: self.cores },
            forms: Vec::new(),
            accesses: Vec::new(),
            on_event,
        };
        let is_complete = run.run_all();
        run.fit_curves();
        is_complete
    }
}

impl PosixRun<'_> {
    fn is_stopped(&self) -> bool {
        self.env.posix.stop.is_triggered()
    }

    fn report(&mut self, measured: &PosixRecord) {
        (self.on_event)(PosixEvent::Measured(measured));
    }

    fn report_start(&mut self, description: String) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        (self.on_event)(PosixEvent::Started { description, progress: progress.clone() });
        progress
    }

    fn run_all(&mut self) -> Result<bool> {
        self.report_conditions()?;
        if !self.forms.is_empty() {
            self.probe_policies()?;
        }
        for round in 1..=self.plan.rounds {
            for step in self.steps.clone() {
                if self.is_stopped() {
                    return Ok(false);
                }
                match &step {
                    PosixStep::Postmark(workload) => self.run_postmark(workload, round)?,
                    // Unsupported forms were reported with the conditions.
                    _ if step.access().is_some_and(|(form, ..)| !self.forms.contains(&form)) => {}
                    PosixStep::File { scope, form, size, unit, time } => {
                        self.measure_file(*scope, *form, (*size, *unit), *time, round)?;
                    }
                    PosixStep::Batch { form, size, threads, time, files } => {
                        self.measure_batch(*form, (*size, *threads), (*time, *files), round)?;
                    }
                }
            }
        }
        Ok(!self.is_stopped())
    }

    /// Determines and reports the conditions: supported access forms, how caches are dropped, idle traffic.
    fn report_conditions(&mut self) -> Result<()> {
        let (plan, posix) = (self.plan, self.env.posix);
        // A write-back error of earlier writers is reported to the first sync after it. It does not belong to this run.
        let _ = posix.sync(&posix.directory.open_for_sync());
        let mut skipped = Vec::new();
        for form in section::forms(&self.steps) {
            match self::batch_size::unsupported_reason(posix, form)? {
                None => {
                    self.forms.push(form);
                    skipped.extend(
                        section::unsupported_sizes(&self.steps, form)
                            .map(|reason| SkippedForm { form, reason }),
                    );
                }
                Some(reason) => skipped.push(SkippedForm { form, reason }),
            }
        }
        let (caches, caches_reason) = drop_caches(std::iter::empty::<&str>(), plan.drop_caches);
        let idle = self.env.counters.as_ref().map(|counters| {
            let before = counters.read();
            std::thread::sleep(IDLE_SAMPLE_TIME);
            let traffic = counters.read().since(before);
            let per_second = |bytes: u64| bytes as f64 / IDLE_SAMPLE_TIME.as_secs_f64();
            (per_second(traffic.sent), per_second(traffic.received), per_second(counters.total(traffic)))
        });
        self.env.idle_bytes_per_second = idle.map_or(0.0, |(.., both)| both);
        let counted = if plan.fsync { "open, writes, fsync, close" } else { "open, writes, close" };
        let conditions = PosixConditions {
            mount: Mount::containing(posix.directory.path()),
            timed_calls: counted.to_owned(),
            caches,
            caches_reason,
            skipped,
            interface: self.env.counters.as_ref().map(|counters| counters.name().to_owned()),
            idle_bytes_per_second: idle.map(|(sent, received, _)| IdleTraffic { sent, received }),
        };
        self.report(&PosixRecord::Conditions(Box::new(conditions)));
        Ok(())
    }

    fn probe_policies(&mut self) -> Result<()> {
        let mut memory_call_times = MemoryCallTimes::default();
        let mut forms = self.forms.clone();
        // Buffered forms come first: the others are compared with their in-memory call times.
        forms.sort();
        let mut policies = Vec::new();
        for form in forms.into_iter().rev() {
            if self.is_stopped() {
                return Ok(());
            }
            let _ = self.report_start(format!("probing the caching policy of {form} access"));
            match memory_call_times.probe(&self.env, form, self.plan.drop_caches) {
                Ok(policy) => policies.push(policy),
                Err(_) if self.is_stopped() => return self.remove_files(),
                Err(e) => {
                    let failed = Some(e.to_string());
                    policies.push(CachePolicy { form, write: None, read: None, reread: None, failed });
                }
            }
        }
        policies.into_iter().rev().for_each(|policy| self.report(&PosixRecord::Policy(Box::new(policy))));
        self.remove_files()
    }

    /// Measures one file, accessed in units of the given size.
    fn measure_file(
        &mut self,
        scope: AccessScope,
        form: AccessForm,
        (size, unit): (u64, u64),
        time: Duration,
        round: u32,
    ) -> Result<()> {
        if !form.supports(size, unit) {
            return Ok(());
        }
        let task = PhaseTask {
            phase: Direction::Write,
            form,
            call_bytes: unit.min(batch_size::MAX_BUFFER_BYTES),
            // Large enough that no contents are generated or compared between two calls.
            buffer_bytes: size.min(batch_size::MAX_BUFFER_BYTES),
            fsync: self.plan.fsync,
            max_time: Duration::MAX,
            max_file_time: time.saturating_mul(FILE_TIME_FACTOR),
        };
        let files = vec![vec![self.env.posix.directory.new_file(size)?]];
        self.write_and_read(
            MeasureSpec { scope, task, size, round, caches: CacheTreatment::NotDropped },
            files,
        )
    }

    /// Measures a batch of files of one size, limited by time or by count.
    fn measure_batch(
        &mut self,
        form: AccessForm,
        (size, threads): (u64, usize),
        (time, count): (Duration, Option<u64>),
        round: u32,
    ) -> Result<()> {
        if !form.supports(size, size) {
            return Ok(());
        }
        let call_bytes = batch_size::call_bytes(size, threads);
        let task = PhaseTask {
            phase: Direction::Write,
            form,
            call_bytes,
            buffer_bytes: call_bytes,
            fsync: self.plan.fsync,
            max_time: if count.is_some() { Duration::MAX } else { time },
            max_file_time: Duration::MAX,
        };
        let count = batch_size::files_per_thread(size, threads, count);
        let directory = &self.env.posix.directory;
        let files = (0..threads).map(|thread| directory.new_files(thread, count, size));
        let files = files.collect::<Result<Vec<_>>>()?;
        self.write_and_read(
            MeasureSpec { scope: AccessScope::Batch, task, size, round, caches: CacheTreatment::NotDropped },
            files,
        )
    }

    /// Writes files, drops caches, and reads the files back.
    fn write_and_read(&mut self, mut spec: MeasureSpec, mut files: Vec<Vec<RunFile>>) -> Result<()> {
        for phase in [Direction::Write, Direction::Read] {
            if self.is_stopped() {
                break;
            }
            spec.task.phase = phase;
            if phase == Direction::Read {
                if files.iter().all(Vec::is_empty) {
                    break;
                }
                let directory = &self.env.posix.directory;
                let paths = files.iter().flatten().map(|file| directory.file_path(*file));
                (spec.caches, _) = drop_caches(paths, self.plan.drop_caches);
            }
            let description = format!("{phase} {} {} x {}", spec.task.form, ByteSize(spec.size), files.len());
            let progress = self.report_start(description);
            let (access, accessed) = self.env.measure(&spec, &files, &progress)?;
            files = if phase == Direction::Write && !self.is_stopped() {
                completion::complete_files(self.env.posix, accessed, spec.size)
            } else {
                accessed
            };
            self.accesses.push(access.clone());
            self.report(&PosixRecord::Access(Box::new(access)));
        }
        self.remove_files()
    }

    fn run_postmark(&mut self, workload: &PostmarkWorkload, round: u32) -> Result<()> {
        let (min, max) = (ByteSize(workload.size_range.0), ByteSize(workload.size_range.1));
        let progress = self.report_start(format!("postmark {min}-{max}"));
        let seed = crate::random::mix(self.plan.seed ^ u64::from(round));
        let postmark = self::postmark::run_postmark(
            self.env.posix,
            workload,
            self.plan.fsync,
            (seed, round),
            &progress,
        )?;
        self.report(&PosixRecord::Postmark(Box::new(postmark)));
        self.remove_files()
    }

    /// Removes the measured files unless they are kept.
    fn remove_files(&self) -> Result<()> {
        if self.plan.keep_files { Ok(()) } else { self.env.posix.directory.remove_files() }
    }

    /// Fits and reports amplification curves for single files, for batches of one thread, and for batches of all thread
    /// counts.
    fn fit_curves(&mut self) {
        for scope in [AccessScope::Single, AccessScope::Batch] {
            for phase in [Direction::Write, Direction::Read] {
                for form in self.forms.clone() {
                    let matching = self.accesses.iter().filter(|access| {
                        (access.scope, access.phase, access.form) == (scope, phase, form) && !access.partial
                    });
                    let points = |is_included: &dyn Fn(&AccessResult) -> bool| -> Vec<RatioPoint> {
                        let included = matching.clone().filter(|access| is_included(access));
                        let point = |access: &AccessResult| {
                            let kib = access.threads as f64 * access.size as f64 / 1024.0;
                            let ratio = access.amplification().filter(|ratio| *ratio >= MIN_AMPLIFICATION)?;
                            Some(RatioPoint { kib, ratio })
                        };
                        included.filter_map(point).collect()
                    };
                    let (one, all) = (points(&|access| access.threads == 1), points(&|_| true));
                    let curves: Vec<(&str, &[RatioPoint], Option<AmplificationFit>)> =
                        if scope == AccessScope::Single {
                            vec![
                                ("(a + s) / s", &one, amplification::fit(&one)),
                                ("c + a / s", &one, amplification::fit_with_cost_per_byte(&one)),
                            ]
                        } else {
                            vec![
                                ("(j + m + s) / s, one thread", &one, amplification::fit(&one)),
                                ("(j + m + n s) / (n s), n threads", &all, amplification::fit(&all)),
                            ]
                        };
                    for (model, points, fit) in curves {
                        let Some(fit) = fit else { continue };
                        let (model, points) = (model.to_owned(), points.len());
                        let curve = AmplificationCurve { scope, phase, form, model, fit, points };
                        (self.on_event)(PosixEvent::Measured(&PosixRecord::Amplification(curve)));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
