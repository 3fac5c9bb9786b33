//! One measurement: files are written or read, and what that took becomes a line of the result. What an application calls
//! done is what counts; what comes after it until all is durable is timed apart.

use std::time::Duration;

use tradewind_core::error::Result;

use super::counters::{Carried, Counters};
use super::phase::{Outcome, Site, Task, run};
use super::place::File;
use super::result::{Access, Caches, Phase, Scope, Wire};
use super::steady::Steady;
use crate::drive::Gauge;
use crate::result::Rate;

/// The wire is waited for so long at the most.
const SETTLES: Duration = Duration::from_secs(2);
/// More of the threads' time in making and comparing contents than this makes the file system seem slower than it is.
const OWN: f64 = 0.1;
/// The same of processors that were busy.
const BUSY: f64 = 0.9;
/// Of a link that carries so much without being asked, ratios say little.
const IDLE: f64 = 0.05;

/// What all measurements of a run share.
#[derive(Debug)]
pub(super) struct Bench<'a> {
    pub site: &'a Site,
    pub counters: Option<Counters>,
    /// Bytes a second that the wire carries when nothing is measured, both ways.
    pub idle: f64,
    pub cores: usize,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub scope: Scope,
    pub task: Task,
    pub size: u64,
    pub repeat: u32,
    /// Before reading.
    pub caches: Caches,
}

impl Bench<'_> {
    fn read(&self) -> Carried {
        self.counters.as_ref().map(Counters::read).unwrap_or_default()
    }

    /// Waits until nothing of what was before is still under way; not where it was stopped.
    pub fn settle(&self) -> Carried {
        if self.site.stop.is_asked() {
            return self.read();
        }
        self.counters.as_ref().map(|counters| counters.settled(SETTLES, self.idle)).unwrap_or_default()
    }

    /// Measures; the files that are whole afterwards, by thread.
    pub fn measure(
        &self,
        cell: &Cell,
        files: &[Vec<File>],
        gauge: &Gauge,
    ) -> Result<(Access, Vec<Vec<File>>)> {
        let behind = self.site.place.behind();
        // What is left of the measurement before this one is not this one's. What is lost of it nobody else is told.
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
            gauge.failure();
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
            Scope::Unit | Scope::Single => alone(tally.calls, tally.bytes, tally.files),
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

    /// What makes the figures say something else than they seem to.
    fn notes(&self, cell: &Cell, access: &Access, outcome: &Outcome) -> Vec<String> {
        let mut notes = Vec::new();
        let time = outcome.time.as_secs_f64().max(f64::MIN_POSITIVE);
        let used = access.cpu_seconds / time;
        if access.scope == Scope::Batch && access.own_share > OWN {
            notes.push(format!(
                "the generator was the bottleneck: {:.0} % of its threads' time went into making and comparing contents; the \
                 file system may be faster",
                access.own_share * 100.0
            ));
        } else if access.scope == Scope::Batch && used > BUSY * self.cores as f64 {
            notes.push(format!(
                "this process used {used:.2} of {} processors: they were the bottleneck",
                self.cores
            ));
        } else if access.machine_busy > BUSY && time > 0.1 {
            notes.push(format!("this machine was busy ({:.0} %)", access.machine_busy * 100.0));
        }
        if access.files == 0 && !access.partial {
            notes.push("nothing was measured: no file was accessed without a failure".to_owned());
        }
        if outcome.is_cut && !access.partial {
            notes.push(format!(
                "it was ended after {time:.1} s, with {} of {} bytes of the file",
                access.bytes, cell.size
            ));
        }
        let is_short =
            access.phase == Phase::Read && access.scope != Scope::Batch && access.bytes < cell.size;
        if is_short && !outcome.is_cut && access.files > 0 {
            notes.push(format!(
                "only {} of {} bytes were there: writing was ended before, and this is the speed of a smaller file",
                access.bytes, cell.size
            ));
        }
        if access.scope == Scope::Batch && access.seconds < 0.5 * time && access.seconds > 0.0 {
            notes.push(format!(
                "the first thread was done after {:.2} s of {time:.2} s: what came later does not count",
                access.seconds
            ));
        }
        if access.sync_seconds.is_some_and(|sync| sync > access.seconds.max(0.01)) {
            let sync = access.sync_seconds.unwrap_or_default();
            notes.push(format!("written behind: it took {sync:.2} s more until all was durable"));
        }
        if access.phase == Phase::Read && cell.caches == Caches::Kept {
            notes.push("caches could not be dropped: what is read may come from them".to_owned());
        }
        let idle = self.idle * time;
        if access.wire.is_some_and(|wire| idle > IDLE * wire.settled as f64) {
            notes.push("the link was not idle before: some of what it carried is of others".to_owned());
        }
        notes
    }
}

/// Of one file, the time that its calls took.
fn alone(calls: Duration, bytes: u64, files: u64) -> Steady {
    let seconds = calls.as_secs_f64();
    let rate =
        |amount: u64| Rate { mean: if seconds > 0.0 { amount as f64 / seconds } else { 0.0 }, within: None };
    Steady { seconds, bytes_per_second: rate(bytes), files_per_second: rate(files) }
}
