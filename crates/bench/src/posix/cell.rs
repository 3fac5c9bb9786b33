//! One measurement: writes or reads files and turns the times into a result line. The measured time ends when the
//! application's last call returns; the time until all data is durable is measured separately.

use std::time::Duration;

use tradewind_core::error::Result;

use super::counters::{Carried, Counters};
use super::phase::{Outcome, Site, Task, run};
use super::place::File;
use super::result::{Access, CacheTreatment, Phase, Scope, Wire};
use super::steady::Steady;
use crate::drive::Progress;
use crate::result::Rate;

/// Longest wait for the link to become quiet.
const MAX_QUIET_WAIT: Duration = Duration::from_secs(2);
/// Share of the threads' time spent on generating and comparing contents above which the generator limits the result.
const MAX_GENERATOR_SHARE: f64 = 0.1;
/// CPU utilization above which the generator or the machine limits the result.
const BUSY_UTILIZATION: f64 = 0.9;
/// Idle traffic, as a fraction of the measured traffic, above which amplification is unreliable.
const MAX_IDLE_FRACTION: f64 = 0.05;

/// State shared by all measurements of a run.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    pub site: &'a Site,
    pub counters: Option<Counters>,
    /// Idle traffic of the link in both directions, in bytes per second.
    pub idle: f64,
    pub cores: usize,
}

/// Parameters of one measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub scope: Scope,
    pub task: Task,
    pub size: u64,
    pub repeat: u32,
    /// How caches were dropped before reading.
    pub caches: CacheTreatment,
}

impl Bench<'_> {
    fn read(&self) -> Carried {
        self.counters.as_ref().map(Counters::read).unwrap_or_default()
    }

    /// Waits until the link is quiet, so that earlier traffic does not count. Returns at once if the run was stopped.
    pub fn settle(&self) -> Carried {
        if self.site.stop.is_triggered() {
            return self.read();
        }
        self.counters.as_ref().map(|counters| counters.settled(MAX_QUIET_WAIT, self.idle)).unwrap_or_default()
    }

    /// Runs one measurement. Returns its result and the files that were accessed successfully, by thread.
    pub fn measure(
        &self,
        cell: &Cell,
        files: &[Vec<File>],
        gauge: &Progress,
    ) -> Result<(Access, Vec<Vec<File>>)> {
        let behind = self.site.place.behind();
        // Data left by the previous measurement must not count here. A loss of it is reported here, as by no other
        // call.
        let left = self.site.sync(&behind);
        let before = self.settle();
        let mut outcome = run(self.site, &cell.task, files, gauge)?;
        let after = self.read().since(before);
        let synced = self.site.sync(&behind);
        let settled = self.settle().since(before);
        let wire = self.counters.as_ref().map(|counters| Wire {
            sent: after.sent,
            received: after.received,
            total: counters.total(after),
            settled: counters.total(settled),
        });
        for lost in [&left, &synced].into_iter().filter_map(|done| done.as_ref().err()) {
            gauge.record_failure();
            outcome.tally.failure(lost);
        }
        let sync_time = synced.ok().flatten().filter(|_| cell.task.phase == Phase::Write);
        let access = self.access(cell, &outcome, sync_time, wire);
        Ok((access, outcome.files))
    }

    fn access(&self, cell: &Cell, outcome: &Outcome, sync: Option<Duration>, wire: Option<Wire>) -> Access {
        let tally = &outcome.tally;
        let steady = match cell.scope {
            Scope::Batch => Steady::of(outcome.begin, &outcome.spans),
            Scope::Unit | Scope::Single => single_file_rate(tally.calls, tally.bytes, tally.files),
        };
        let mut access = Access {
            scope: cell.scope,
            phase: cell.task.phase,
            form: cell.task.form,
            size: cell.size,
            unit: cell.task.unit.min(cell.size),
            threads: outcome.spans.len(),
            repeat: cell.repeat,
            began: outcome.began,
            files: tally.files,
            bytes: tally.bytes,
            seconds: steady.seconds,
            bytes_per_second: steady.bytes_per_second,
            files_per_second: steady.files_per_second,
            sync_seconds: sync.map(|time| time.as_secs_f64()),
            latency: tally.latencies(),
            wire,
            failures: tally.failures.clone(),
            samples: tally.samples.clone(),
            cpu_seconds: outcome.usage.total().as_secs_f64(),
            cpu_threads: outcome.cpu_threads(),
            machine_busy: outcome.usage.machine(),
            own_share: outcome.own_share(),
            partial: outcome.is_stopped,
            notes: Vec::new(),
        };
        access.notes = self.notes(cell, &access, outcome);
        access
    }

    /// Caveats that a reader of the figures must know.
    fn notes(&self, cell: &Cell, access: &Access, outcome: &Outcome) -> Vec<String> {
        let mut notes = Vec::new();
        let time = outcome.time.as_secs_f64().max(f64::MIN_POSITIVE);
        let used = access.cpu_seconds / time;
        if access.scope == Scope::Batch && access.own_share > MAX_GENERATOR_SHARE {
            notes.push(format!(
                "the generator was the bottleneck: its threads spent {:.0} % of their time generating and comparing \
                 contents; the file system may be faster",
                access.own_share * 100.0
            ));
        } else if access.scope == Scope::Batch && used > BUSY_UTILIZATION * self.cores as f64 {
            notes.push(format!(
                "the CPU of this machine was the bottleneck: this process used {used:.2} of {} CPUs",
                self.cores
            ));
        } else if access.machine_busy > BUSY_UTILIZATION && time > 0.1 {
            notes.push(format!("this machine was busy ({:.0} %)", access.machine_busy * 100.0));
        }
        if access.files == 0 && !access.partial {
            notes.push("nothing was measured: no file was accessed successfully".to_owned());
        }
        if outcome.is_cut && !access.partial {
            notes.push(format!(
                "stopped by the time limit after {time:.1} s, with {} of {} bytes of the file",
                access.bytes, cell.size
            ));
        }
        let is_short =
            access.phase == Phase::Read && access.scope != Scope::Batch && access.bytes < cell.size;
        if is_short && !outcome.is_cut && access.files > 0 {
            notes.push(format!(
                "only {} of {} bytes were read: writing had been stopped early, so this is the throughput of a smaller file",
                access.bytes, cell.size
            ));
        }
        if access.scope == Scope::Batch && access.seconds < 0.5 * time && access.seconds > 0.0 {
            notes.push(format!(
                "the first thread finished after {:.2} s of {time:.2} s: only the time until then counts",
                access.seconds
            ));
        }
        if access.sync_seconds.is_some_and(|sync| sync > access.seconds.max(0.01)) {
            let sync = access.sync_seconds.unwrap_or_default();
            notes.push(format!("write-back: it took {sync:.2} s more until all data was durable"));
        }
        if access.phase == Phase::Read && cell.caches == CacheTreatment::NotDropped {
            notes.push("caches could not be dropped: reads may have been served from them".to_owned());
        }
        let idle = self.idle * time;
        if access.wire.is_some_and(|wire| idle > MAX_IDLE_FRACTION * wire.settled as f64) {
            notes.push("the link was not idle before: some of the counted bytes are other traffic".to_owned());
        }
        notes
    }
}

/// The rates of a single file, over the time of its calls.
fn single_file_rate(calls: Duration, bytes: u64, files: u64) -> Steady {
    let seconds = calls.as_secs_f64();
    let rate =
        |amount: u64| Rate { mean: if seconds > 0.0 { amount as f64 / seconds } else { 0.0 }, ci95_half_width: None };
    Steady { seconds, bytes_per_second: rate(bytes), files_per_second: rate(files) }
}
