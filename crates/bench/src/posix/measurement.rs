//! One measurement: writes or reads files and turns the times into a result line. The measured time ends when the
//! application's last call returns; the time until all data is durable is measured separately.

use std::time::Duration;

use tradewind_core::error::Result;

use super::counters::{ByteCounts, InterfaceCounters};
use super::phase::{PhaseOutcome, PhaseTask, PosixEnv, run_phase};
use super::result::{AccessResult, AccessScope, CacheTreatment, Direction, WireBytes};
use super::run_directory::RunFile;
use super::steady_rate::SteadyRates;
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
pub(super) struct MeasureEnv<'a> {
    pub posix: &'a PosixEnv,
    pub counters: Option<InterfaceCounters>,
    /// Idle traffic of the link in both directions, in bytes per second.
    pub idle_bytes_per_second: f64,
    pub cores: usize,
}

/// Parameters of one measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct MeasureSpec {
    pub scope: AccessScope,
    pub task: PhaseTask,
    pub size: u64,
    pub round: u32,
    /// Treatment of caches before reading.
    pub caches: CacheTreatment,
}

impl MeasureEnv<'_> {
    fn read(&self) -> ByteCounts {
        self.counters.as_ref().map(InterfaceCounters::read).unwrap_or_default()
    }

    /// Waits until the link is quiet, so that earlier traffic does not count. Returns at once if the run was stopped.
    pub fn wait_for_quiet_link(&self) -> ByteCounts {
        if self.posix.stop.is_triggered() {
            return self.read();
        }
        self.counters
            .as_ref()
            .map(|counters| counters.read_when_quiet(MAX_QUIET_WAIT, self.idle_bytes_per_second))
            .unwrap_or_default()
    }

    /// Runs one measurement. Returns its result and the files that were accessed successfully, by thread.
    pub fn measure(
        &self,
        spec: &MeasureSpec,
        files: &[Vec<RunFile>],
        progress: &Progress,
    ) -> Result<(AccessResult, Vec<Vec<RunFile>>)> {
        let sync_handle = self.posix.directory.open_for_sync();
        // Data left by the previous measurement must not count here. A loss of it is reported here, as by no other
        // call.
        let previous_sync = self.posix.sync(&sync_handle);
        let before = self.wait_for_quiet_link();
        let mut outcome = run_phase(self.posix, &spec.task, files, progress)?;
        let after = self.read().since(before);
        let synced = self.posix.sync(&sync_handle);
        let after_sync = self.wait_for_quiet_link().since(before);
        let wire = self.counters.as_ref().map(|counters| WireBytes {
            sent: after.sent,
            received: after.received,
            total: counters.total(after),
            total_until_durable: counters.total(after_sync),
        });
        for failure in [&previous_sync, &synced].into_iter().filter_map(|done| done.as_ref().err()) {
            progress.record_failure();
            outcome.stats.record_failure(failure);
        }
        let sync_time = synced.ok().flatten().filter(|_| spec.task.phase == Direction::Write);
        let access = self.access_result(spec, &outcome, sync_time, wire);
        Ok((access, outcome.files))
    }

    fn access_result(
        &self,
        spec: &MeasureSpec,
        outcome: &PhaseOutcome,
        sync_time: Option<Duration>,
        wire: Option<WireBytes>,
    ) -> AccessResult {
        let stats = &outcome.stats;
        let steady = match spec.scope {
            AccessScope::Batch => SteadyRates::from_spans(outcome.start, &outcome.spans),
            AccessScope::Unit | AccessScope::Single => {
                single_file_rate(stats.call_time, stats.bytes, stats.files)
            }
        };
        let mut access = AccessResult {
            scope: spec.scope,
            phase: spec.task.phase,
            form: spec.task.form,
            size: spec.size,
            call_bytes: spec.task.call_bytes.min(spec.size),
            threads: outcome.spans.len(),
            round: spec.round,
            started_ms: outcome.started_ms,
            files: stats.files,
            bytes: stats.bytes,
            seconds: steady.seconds,
            bytes_per_second: steady.bytes_per_second,
            files_per_second: steady.files_per_second,
            sync_seconds: sync_time.map(|time| time.as_secs_f64()),
            latency: stats.latencies(),
            wire,
            failures: stats.failures.clone(),
            failure_samples: stats.failure_samples.clone(),
            cpu_seconds: outcome.usage.total().as_secs_f64(),
            cpu_threads: outcome.cpu_threads(),
            machine_cpu_utilization: outcome.usage.machine_utilization(),
            generator_share: outcome.generator_share(),
            partial: outcome.is_stopped,
            notes: Vec::new(),
        };
        access.notes = self.notes(spec, &access, outcome);
        access
    }

    /// Caveats that a reader of the figures must know.
    fn notes(&self, spec: &MeasureSpec, access: &AccessResult, outcome: &PhaseOutcome) -> Vec<String> {
        let mut notes = Vec::new();
        let time = outcome.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        let used = access.cpu_seconds / time;
        if access.scope == AccessScope::Batch && access.generator_share > MAX_GENERATOR_SHARE {
            notes.push(format!(
                "the generator was the bottleneck: its threads spent {:.0} % of their time generating and comparing \
                 contents; the file system may be faster",
                access.generator_share * 100.0
            ));
        } else if access.scope == AccessScope::Batch && used > BUSY_UTILIZATION * self.cores as f64 {
            notes.push(format!(
                "the CPU of this machine was the bottleneck: this process used {used:.2} of {} CPUs",
                self.cores
            ));
        } else if access.machine_cpu_utilization > BUSY_UTILIZATION && time > 0.1 {
            notes.push(format!("this machine was busy ({:.0} %)", access.machine_cpu_utilization * 100.0));
        }
        if access.files == 0 && !access.partial {
            notes.push("nothing was measured: no file was accessed successfully".to_owned());
        }
        if outcome.is_truncated && !access.partial {
            notes.push(format!(
                "stopped by the time limit after {time:.1} s, with {} of {} bytes of the file",
                access.bytes, spec.size
            ));
        }
        let is_short =
            access.phase == Direction::Read && access.scope != AccessScope::Batch && access.bytes < spec.size;
        if is_short && !outcome.is_truncated && access.files > 0 {
            notes.push(format!(
                "only {} of {} bytes were read: writing had been stopped early, so this is the throughput of a smaller file",
                access.bytes, spec.size
            ));
        }
        if access.scope == AccessScope::Batch && access.seconds < 0.5 * time && access.seconds > 0.0 {
            notes.push(format!(
                "the first thread finished after {:.2} s of {time:.2} s: only the time until then counts",
                access.seconds
            ));
        }
        if access.sync_seconds.is_some_and(|sync| sync > access.seconds.max(0.01)) {
            let sync = access.sync_seconds.unwrap_or_default();
            notes.push(format!("write-back: it took {sync:.2} s more until all data was durable"));
        }
        if access.phase == Direction::Read && spec.caches == CacheTreatment::NotDropped {
            notes.push("caches could not be dropped: reads may have been served from them".to_owned());
        }
        let idle = self.idle_bytes_per_second * time;
        if access.wire.is_some_and(|wire| idle > MAX_IDLE_FRACTION * wire.total_until_durable as f64) {
            notes
                .push("the link was not idle before: some of the counted bytes are other traffic".to_owned());
        }
        notes
    }
}

/// The rates of a single file, over the time of its calls.
fn single_file_rate(calls: Duration, bytes: u64, files: u64) -> SteadyRates {
    let seconds = calls.as_secs_f64();
    let rate = |amount: u64| Rate {
        mean: if seconds > 0.0 { amount as f64 / seconds } else { 0.0 },
        ci95_half_width: None,
    };
    SteadyRates { seconds, bytes_per_second: rate(bytes), files_per_second: rate(files) }
}
