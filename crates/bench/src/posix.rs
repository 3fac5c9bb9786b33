//! Benchmark of a mounted file system, local or remote, as an application sees it: operating-system threads make
//! blocking calls, in three access forms (Ou 2015, sections III and IV). There are four parts: one file of 16 MiB
//! accessed in units of several sizes, single files on an otherwise idle link, batches of files from one thread and
//! from many, and Postmark's workload of short-lived small files (Wang 2012, section 5.3).
//!
//! Caches are dropped between writing and reading if permitted. Every byte read is compared with what was written. If a
//! network interface is named, the bytes on the wire per byte of the files are reported.

mod access;
pub mod amplification;
mod batch;
mod buffer;
mod cell;
pub mod compare;
mod counters;
pub mod form;
pub mod mount;
mod phase;
mod place;
pub mod policy;
pub mod postmark;
mod probe;
mod rest;
pub mod result;
mod section;
mod steady;
mod tally;

use std::sync::Arc;
use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::quantity::ByteSize;

use self::amplification::{Fit, Point};
use self::cell::{Bench, Cell};
use self::counters::Counters;
use self::form::Form;
use self::mount::Mount;
pub use self::phase::Site;
use self::phase::Task;
use self::place::File;
pub use self::place::Place;
use self::policy::Policy;
use self::postmark::Workload;
use self::probe::Known;
use self::result::{Access, Amplification, CacheTreatment, Conditions, Measured, Phase, Scope};
use self::section::Step;
pub use self::section::{Part, Section};
use crate::caches::drop_caches;
use crate::drive::Progress;

/// Size of the file that is accessed in units of several sizes, in bytes.
pub const UNIT_FILE: u64 = 16 << 20;
/// Access to one file ends after this multiple of the measurement time, but never in the middle of a call.
const FILE_TIME_FACTOR: u32 = 5;
/// Lowest plausible amplification. Below it a cache responded, or the files are not behind this interface.
const MIN_AMPLIFICATION: f64 = 0.9;
/// How long the idle traffic of the link is sampled before the first measurement.
const IDLE_SAMPLE_TIME: Duration = Duration::from_millis(500);

/// The measurements of a run, and their options.
#[derive(Debug, Clone)]
pub struct Survey {
    /// Measured in this order.
    pub sections: Vec<Section>,
    /// Files are synced before they are closed.
    pub fsync: bool,
    /// Before reading, the kernel is asked to drop the caches of the whole machine.
    pub drops_caches: bool,
    /// The network interface whose bytes are counted.
    pub interface: Option<String>,
    /// Number of rounds.
    pub repeats: u32,
    /// Random seed.
    pub seed: u64,
    /// Measured files are not removed.
    pub keeps: bool,
    /// CPUs that the generator may use.
    pub cores: usize,
}

/// Progress of a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// A measurement starts.
    Begins {
        /// Human-readable description.
        what: String,
        /// Live progress of the measurement.
        gauge: Arc<Progress>,
    },
    /// A measurement has finished.
    Measured(&'a Measured),
}

type Tell<'a> = &'a mut dyn FnMut(Event<'_>);

/// State of a run.
struct SurveyRun<'a> {
    survey: &'a Survey,
    /// The steps of one round.
    steps: Vec<Step>,
    bench: Bench<'a>,
    /// The access forms that the file system supports.
    forms: Vec<Form>,
    /// Finished measurements, for the amplification curves at the end.
    accesses: Vec<Access>,
    tell: Tell<'a>,
}

impl Survey {
    /// Validates the options. The error is a message for the user.
    pub fn check(&self) -> Result<(), String> {
        let steps = section::steps(&self.sections);
        if steps.is_empty() || self.repeats == 0 {
            return Err("there is nothing to measure".to_owned());
        }
        if let Some(Err(e)) = self.interface.as_deref().map(Counters::of) {
            return Err(e.to_string());
        }
        section::conflict(&self.sections)?;
        steps.iter().try_for_each(Step::check)
    }

    /// The maximum number of measurements.
    #[must_use]
    pub fn cells(&self) -> usize {
        let steps = section::steps(&self.sections);
        let cells = steps.iter().map(|step| if matches!(step, Step::Postmark(_)) { 1 } else { 2 });
        cells.sum::<usize>() * self.repeats as usize
    }

    /// Runs all measurements and reports each to `tell`. Blocks. Files are created in the directory of `site` and
    /// remain there only if `keeps` is set or removing them fails. Returns false if it was stopped early.
    pub fn run(&self, site: &Site, tell: Tell<'_>) -> Result<bool> {
        let counters = self.interface.as_deref().map(Counters::of).transpose();
        let counters = counters.map_err(|e| Error::with_source(Reason::InvalidArgument, e.to_string(), e))?;
        let mut run = SurveyRun {
            survey: self,
            steps: section::steps(&self.sections),
            bench: Bench { site, counters, idle: 0.0, cores: self.cores },
            forms: Vec::new(),
            accesses: Vec::new(),
            tell,
        };
        let is_complete = run.all();
        run.curves();
        is_complete
    }
}

impl SurveyRun<'_> {
    fn is_stopped(&self) -> bool {
        self.bench.site.stop.is_triggered()
    }

    fn measured(&mut self, measured: &Measured) {
        (self.tell)(Event::Measured(measured));
    }

    fn begins(&mut self, what: String) -> Arc<Progress> {
        let gauge = Arc::new(Progress::default());
        (self.tell)(Event::Begins { what, gauge: gauge.clone() });
        gauge
    }

    fn all(&mut self) -> Result<bool> {
        self.conditions()?;
        if !self.forms.is_empty() {
            self.policies()?;
        }
        for repeat in 1..=self.survey.repeats {
            for step in self.steps.clone() {
                if self.is_stopped() {
                    return Ok(false);
                }
                match &step {
                    Step::Postmark(workload) => self.postmark(workload, repeat)?,
                    // Unsupported forms were reported with the conditions.
                    _ if step.access().is_some_and(|(form, ..)| !self.forms.contains(&form)) => {}
                    Step::File { scope, form, size, unit, time } => {
                        self.file(*scope, *form, (*size, *unit), *time, repeat)?;
                    }
                    Step::Batch { form, size, threads, time, files } => {
                        self.batch(*form, (*size, *threads), (*time, *files), repeat)?;
                    }
                }
            }
        }
        Ok(!self.is_stopped())
    }

    /// Determines and reports the conditions: supported access forms, how caches are dropped, idle traffic.
    fn conditions(&mut self) -> Result<()> {
        let (survey, site) = (self.survey, self.bench.site);
        // A write-back error of earlier writers is reported to the first sync after it. It does not belong to this run.
        let _ = site.sync(&site.place.behind());
        let mut skipped = Vec::new();
        for form in section::forms(&self.steps) {
            match self::batch::try_form(site, form)? {
                None => {
                    self.forms.push(form);
                    skipped.extend(section::left_out(&self.steps, form).map(|why| (form, why)));
                }
                Some(why) => skipped.push((form, why)),
            }
        }
        let (caches, caches_why) = drop_caches(std::iter::empty::<&str>(), survey.drops_caches);
        let idle = self.bench.counters.as_ref().map(|counters| {
            let before = counters.read();
            std::thread::sleep(IDLE_SAMPLE_TIME);
            let traffic = counters.read().since(before);
            let per_second = |bytes: u64| bytes as f64 / IDLE_SAMPLE_TIME.as_secs_f64();
            (per_second(traffic.sent), per_second(traffic.received), per_second(counters.total(traffic)))
        });
        self.bench.idle = idle.map_or(0.0, |(.., both)| both);
        let counted = if survey.fsync { "open, writes, fsync, close" } else { "open, writes, close" };
        let conditions = Conditions {
            mount: Mount::of(site.place.directory()),
            counted: counted.to_owned(),
            caches,
            caches_why,
            skipped,
            interface: self.bench.counters.as_ref().map(|counters| counters.name().to_owned()),
            idle: idle.map(|(sent, received, _)| (sent, received)),
        };
        self.measured(&Measured::Conditions(Box::new(conditions)));
        Ok(())
    }

    fn policies(&mut self) -> Result<()> {
        let mut known = Known::default();
        let mut forms = self.forms.clone();
        // Buffered forms come first: the others are compared with their in-memory call times.
        forms.sort();
        let mut found = Vec::new();
        for form in forms.into_iter().rev() {
            if self.is_stopped() {
                return Ok(());
            }
            let _ = self.begins(format!("probing the caching policy of {form} access"));
            match known.probe(&self.bench, form, self.survey.drops_caches) {
                Ok(policy) => found.push(policy),
                Err(_) if self.is_stopped() => return self.empty(),
                Err(e) => {
                    let failed = Some(e.to_string());
                    found.push(Policy { form, write: None, read: None, again: None, failed });
                }
            }
        }
        found.into_iter().rev().for_each(|policy| self.measured(&Measured::Policy(Box::new(policy))));
        self.empty()
    }

    /// Measures one file, accessed in units of the given size.
    fn file(
        &mut self,
        scope: Scope,
        form: Form,
        (size, unit): (u64, u64),
        time: Duration,
        repeat: u32,
    ) -> Result<()> {
        if !form.takes(size, unit) {
            return Ok(());
        }
        let task = Task {
            phase: Phase::Write,
            form,
            unit: unit.min(batch::MOST_BUFFERS),
            // Large enough that no contents are generated or compared between two calls.
            buffer: size.min(batch::MOST_BUFFERS),
            fsync: self.survey.fsync,
            time: Duration::MAX,
            file_time: time.saturating_mul(FILE_TIME_FACTOR),
        };
        let files = vec![vec![self.bench.site.place.file(size)?]];
        self.write_and_read(Cell { scope, task, size, repeat, caches: CacheTreatment::NotDropped }, files)
    }

    /// Measures a batch of files of one size, limited by time or by count.
    fn batch(
        &mut self,
        form: Form,
        (size, threads): (u64, usize),
        (time, count): (Duration, Option<u64>),
        repeat: u32,
    ) -> Result<()> {
        if !form.takes(size, size) {
            return Ok(());
        }
        let unit = batch::unit(size, threads);
        let task = Task {
            phase: Phase::Write,
            form,
            unit,
            buffer: unit,
            fsync: self.survey.fsync,
            time: if count.is_some() { Duration::MAX } else { time },
            file_time: Duration::MAX,
        };
        let count = batch::files_of_thread(size, threads, count);
        let place = &self.bench.site.place;
        let files = (0..threads).map(|thread| place.files(thread, count, size));
        let files = files.collect::<Result<Vec<_>>>()?;
        self.write_and_read(Cell { scope: Scope::Batch, task, size, repeat, caches: CacheTreatment::NotDropped }, files)
    }

    /// Writes files, drops caches, and reads the files back.
    fn write_and_read(&mut self, mut cell: Cell, mut files: Vec<Vec<File>>) -> Result<()> {
        for phase in [Phase::Write, Phase::Read] {
            if self.is_stopped() {
                break;
            }
            cell.task.phase = phase;
            if phase == Phase::Read {
                if files.iter().all(Vec::is_empty) {
                    break;
                }
                let place = &self.bench.site.place;
                let paths = files.iter().flatten().map(|file| place.path(*file));
                (cell.caches, _) = drop_caches(paths, self.survey.drops_caches);
            }
            let what = format!("{phase} {} {} x {}", cell.task.form, ByteSize(cell.size), files.len());
            let gauge = self.begins(what);
            let (access, accessed) = self.bench.measure(&cell, &files, &gauge)?;
            files = if phase == Phase::Write && !self.is_stopped() {
                rest::complete(self.bench.site, accessed, cell.size)
            } else {
                accessed
            };
            self.accesses.push(access.clone());
            self.measured(&Measured::Access(Box::new(access)));
        }
        self.empty()
    }

    fn postmark(&mut self, workload: &Workload, repeat: u32) -> Result<()> {
        let (min, max) = (ByteSize(workload.range.0), ByteSize(workload.range.1));
        let gauge = self.begins(format!("postmark {min}-{max}"));
        let seed = crate::random::mix(self.survey.seed ^ u64::from(repeat));
        let postmark =
            self::postmark::run(self.bench.site, workload, self.survey.fsync, (seed, repeat), &gauge)?;
        self.measured(&Measured::Postmark(Box::new(postmark)));
        self.empty()
    }

    /// Removes the measured files unless they are kept.
    fn empty(&self) -> Result<()> {
        if self.survey.keeps { Ok(()) } else { self.bench.site.place.empty() }
    }

    /// Fits and reports amplification curves for single files, for batches of one thread, and for batches of all thread
    /// counts.
    fn curves(&mut self) {
        for scope in [Scope::Single, Scope::Batch] {
            for phase in [Phase::Write, Phase::Read] {
                for form in self.forms.clone() {
                    let matching = self.accesses.iter().filter(|access| {
                        (access.scope, access.phase, access.form) == (scope, phase, form) && !access.partial
                    });
                    let points = |is_wanted: &dyn Fn(&Access) -> bool| -> Vec<Point> {
                        let wanted = matching.clone().filter(|access| is_wanted(access));
                        let point = |access: &Access| {
                            let kib = access.threads as f64 * access.size as f64 / 1024.0;
                            let ratio = access.amplification().filter(|ratio| *ratio >= MIN_AMPLIFICATION)?;
                            Some(Point { kib, ratio })
                        };
                        wanted.filter_map(point).collect()
                    };
                    let (one, all) = (points(&|access| access.threads == 1), points(&|_| true));
                    let curves: Vec<(&str, &[Point], Option<Fit>)> = if scope == Scope::Single {
                        vec![
                            ("(a + s) / s", &one, amplification::fit(&one)),
                            ("c + a / s", &one, amplification::fit_with_cost_of_bytes(&one)),
                        ]
                    } else {
                        vec![
                            ("(j + m + s) / s, one thread", &one, amplification::fit(&one)),
                            ("(j + m + n s) / (n s), n threads", &all, amplification::fit(&all)),
                        ]
                    };
                    for (curve, points, fit) in curves {
                        let Some(fit) = fit else { continue };
                        let (curve, points) = (curve.to_owned(), points.len());
                        let fitted = Amplification { scope, phase, form, curve, fit, points };
                        (self.tell)(Event::Measured(&Measured::Amplification(fitted)));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
