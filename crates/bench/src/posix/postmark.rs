//! The Postmark workload (Katz 1997; Wang 2012, section 5.3): short-lived small files, as on a mail server. One
//! thread accesses them one after another, in the default access form and in calls of 4 KiB like buffered streams.
//! Every read is compared with what was written and appended.

pub mod result;
pub mod steps;

use std::time::Duration;

use tradewind_core::error::{Error, Reason, Result};

use self::result::{Postmark, StepFigures};
use self::steps::{PostmarkStage, PostmarkStep, PostmarkSteps};
use super::access_form::AccessForm;
use super::access_stats::FileFailure;
use super::buffer::AlignedBuffer;
use super::file_access::FileAccess;
use super::phase::PosixEnv;
use super::run_directory::RunFile;
use crate::cpu_usage::CpuUsage;
use crate::drive::Progress;
use crate::record::{new_histogram, record_value};
use crate::result::LatencySummary;
use crate::size_distribution::SizeDistribution;

/// Bytes per call.
const BLOCK_BYTES: u64 = 4096;
/// Share of the time spent on generating and comparing contents above which the generator limits the result.
const MAX_GENERATOR_SHARE: f64 = 0.1;
/// Number of failures reported in full.
const MAX_FAILURE_SAMPLES: usize = 5;

/// Parameters of the workload.
#[derive(Debug, Clone, PartialEq)]
pub struct PostmarkWorkload {
    /// Minimum and maximum file size in bytes.
    pub size_range: (u64, u64),
    /// Files created before the transactions.
    pub pool: u64,
    /// Number of transactions.
    pub transactions: u64,
}

/// The kinds of steps, which are counted separately.
#[derive(Debug, Clone, Copy)]
enum StepKind {
    Create,
    Read,
    Append,
    Delete,
}

/// Statistics of the steps of one kind.
#[derive(Debug)]
struct StepStats {
    /// Steps before or after the transactions.
    alone: u64,
    /// Steps within transactions.
    mixed: u64,
    /// Durations in microseconds.
    times: hdrhistogram::Histogram<u64>,
}

/// Statistics of a run.
#[derive(Debug)]
struct RunStats {
    kinds: [StepStats; 4],
    /// The end of each stage, since the start of the run.
    ends: [Duration; 3],
    transactions: u64,
    call_time: Duration,
    read_bytes: u64,
    written_bytes: u64,
    failures: std::collections::BTreeMap<String, u64>,
    failure_samples: Vec<String>,
}

/// Runs round `round` of the workload. With `fsync`, created and extended files are synced before they are closed.
pub(super) fn run_postmark(
    env: &PosixEnv,
    workload: &PostmarkWorkload,
    fsync: bool,
    (seed, round): (u64, u32),
    progress: &Progress,
) -> Result<Postmark> {
    let to_error = |e: std::io::Error| {
        Error::with_source(Reason::Io, format!("cannot measure the CPU time of the generator: {e}"), e)
    };
    let mut buffer = AlignedBuffer::new(usize::try_from(workload.size_range.1).unwrap_or(usize::MAX).max(1));
    let file_access = FileAccess { fsync, ..env.file_access(AccessForm::Default, BLOCK_BYTES) };
    let sync_handle = env.directory.open_for_sync();
    let files = env.directory.new_files(0, workload.pool + workload.transactions, 0)?;
    let (before, begin, started_ms) =
        (CpuUsage::snapshot().map_err(to_error)?, env.clock.now(), env.clock.wall().millis());
    let no_steps = || StepStats { alone: 0, mixed: 0, times: new_histogram() };
    let mut is_broken = false;
    let mut stats = RunStats {
        kinds: [no_steps(), no_steps(), no_steps(), no_steps()],
        ends: [Duration::ZERO; 3],
        transactions: 0,
        call_time: Duration::ZERO,
        read_bytes: 0,
        written_bytes: 0,
        failures: std::collections::BTreeMap::new(),
        failure_samples: Vec::new(),
    };
    for (stage, step) in PostmarkSteps::new(workload.size_range, workload.pool, workload.transactions, seed) {
        if env.stop.is_triggered() {
            break;
        }
        is_broken = stats.execute(&file_access, (stage, step), &files, &mut buffer, progress);
        let end = env.clock.now().saturating_sub(begin);
        stats.ends.iter_mut().skip(stage as usize).for_each(|stage_end| *stage_end = end);
        if is_broken {
            break;
        }
    }
    let sync_time = env.sync(&sync_handle).unwrap_or_else(|failure| {
        progress.record_failure();
        stats.record_failure(failure);
        None
    });
    let usage = CpuUsage::snapshot().map_err(to_error)?.since(&before);
    let mut postmark =
        stats.result(workload, (round, started_ms), sync_time, &usage, is_broken || env.stop.is_triggered());
    if is_broken {
        let note =
            "ended early, because every further step would fail too: the figures cover the time until then";
        postmark.notes.push(note.to_owned());
    }
    Ok(postmark)
}

impl RunStats {
    /// Executes a step. Returns true if every further step would fail.
    fn execute(
        &mut self,
        file_access: &FileAccess<'_>,
        (stage, step): (PostmarkStage, PostmarkStep),
        files: &[RunFile],
        buffer: &mut AlignedBuffer,
        progress: &Progress,
    ) -> bool {
        let mut on_call = |_| {};
        let file =
            |number: u64, size: u64| RunFile { size, ..files[usize::try_from(number).unwrap_or(usize::MAX)] };
        let (kind, result) = match step {
            PostmarkStep::Create { number, size } => {
                (StepKind::Create, file_access.write(file(number, size), buffer, &mut on_call))
            }
            PostmarkStep::Read { number, size } => {
                (StepKind::Read, file_access.read(file(number, size), buffer, &mut on_call))
            }
            PostmarkStep::Append { number, from, to } => {
                (StepKind::Append, file_access.append(file(number, to), from, buffer, &mut on_call))
            }
            PostmarkStep::Delete { number } => (StepKind::Delete, file_access.remove(file(number, 0))),
        };
        // A transaction ends with a creation or a deletion.
        self.transactions += u64::from(
            stage == PostmarkStage::Transact && matches!(kind, StepKind::Create | StepKind::Delete),
        );
        match result {
            Ok(outcome) => {
                let count = &mut self.kinds[kind as usize];
                *(if stage == PostmarkStage::Transact { &mut count.mixed } else { &mut count.alone }) += 1;
                let call_time = outcome.times.total();
                record_value(
                    &mut count.times,
                    u64::try_from(call_time.as_micros()).unwrap_or(u64::MAX).max(1),
                    1,
                );
                self.call_time += call_time;
                match kind {
                    StepKind::Read => self.read_bytes += outcome.bytes,
                    StepKind::Create | StepKind::Append => self.written_bytes += outcome.bytes,
                    StepKind::Delete => {}
                }
                progress.record_success(outcome.bytes);
                false
            }
            Err(failure) => {
                progress.record_failure();
                self.record_failure(failure)
            }
        }
    }

    /// Counts a failure. Returns true if every further step would fail. A failed step also makes later steps on its
    /// file fail, because they do not find the file as expected.
    fn record_failure(&mut self, failure: FileFailure) -> bool {
        *self.failures.entry(failure.kind).or_default() += 1;
        if self.failure_samples.len() < MAX_FAILURE_SAMPLES {
            self.failure_samples.push(failure.message);
        }
        failure.is_fatal
    }

    fn result(
        &self,
        workload: &PostmarkWorkload,
        (round, started_ms): (u32, i64),
        sync_time: Option<Duration>,
        usage: &CpuUsage,
        partial: bool,
    ) -> Postmark {
        let [filled, transacted, seconds] = self.ends.map(|end| end.as_secs_f64());
        let (transaction_seconds, clearing) = (transacted - filled, seconds - transacted);
        let per = |count: u64, duration: f64| if duration > 0.0 { count as f64 / duration } else { 0.0 };
        let steps = |kind: StepKind, alone_seconds: f64| {
            let count = &self.kinds[kind as usize];
            StepFigures {
                count: count.alone + count.mixed,
                alone_per_second: per(count.alone, alone_seconds),
                in_transactions_per_second: per(count.mixed, transaction_seconds),
                latency_us: LatencySummary::from_histogram(&count.times),
            }
        };
        let generator_share =
            if seconds > 0.0 { (1.0 - self.call_time.as_secs_f64() / seconds).max(0.0) } else { 0.0 };
        let mut notes = Vec::new();
        if generator_share > MAX_GENERATOR_SHARE {
            notes.push(format!(
                "the generator was the bottleneck: it spent {:.0} % of the time generating and comparing contents; the \
                 file system may be faster",
                generator_share * 100.0
            ));
        }
        Postmark {
            sizes: SizeDistribution::Uniform(workload.size_range.0, workload.size_range.1),
            pool: workload.pool,
            transactions: workload.transactions,
            call_bytes: BLOCK_BYTES,
            round,
            started_ms,
            seconds,
            transaction_seconds,
            transactions_per_second: per(self.transactions, transaction_seconds),
            created: steps(StepKind::Create, filled),
            read: steps(StepKind::Read, 0.0),
            appended: steps(StepKind::Append, 0.0),
            deleted: steps(StepKind::Delete, clearing),
            read_bytes: self.read_bytes,
            written_bytes: self.written_bytes,
            read_bytes_per_second: per(self.read_bytes, seconds),
            written_bytes_per_second: per(self.written_bytes, seconds),
            sync_seconds: sync_time.map(|time| time.as_secs_f64()),
            failures: self.failures.clone(),
            failure_samples: self.failure_samples.clone(),
            cpu_seconds: usage.total().as_secs_f64(),
            machine_cpu_utilization: usage.machine_utilization(),
            partial,
            notes,
        }
    }
}
