//! A phase: operating-system threads, each with files of its own, write or read them with blocking calls. All threads
//! start together, and none exits before the CPU time of every thread has been read.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use parking_lot::RwLock;
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_pattern::Content;

use super::access_form::AccessForm;
use super::access_stats::{AccessStats, FileFailure};
use super::buffer::AlignedBuffer;
use super::file_access::{AccessOutcome, FileAccess};
use super::result::Direction;
use super::run_directory::{RunDirectory, RunFile, SyncHandle};
use super::steady_rate::FileSpan;
use crate::cpu_usage::CpuUsage;
use crate::drive::{Progress, StopSignal};

/// The environment of the measurements: directory, contents, clock and stop signal.
#[derive(Debug, Clone)]
pub struct PosixEnv {
    /// The directory in which files are created.
    pub directory: Arc<RunDirectory>,
    /// Generator of file contents.
    pub content: Arc<Content>,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Request to end early.
    pub stop: StopSignal,
}

impl PosixEnv {
    /// File access in the given form and unit, without fsync and without a deadline.
    pub(super) fn file_access(&self, form: AccessForm, call_bytes: u64) -> FileAccess<'_> {
        let Self { directory, content, clock, stop } = self;
        FileAccess {
            directory,
            content,
            clock: &**clock,
            stop,
            form,
            call_bytes,
            fsync: false,
            deadline: Duration::MAX,
        }
    }

    /// Makes all data durable and returns how long that took; `None` if the run was stopped, because the files are then
    /// about to be removed.
    pub(super) fn sync(
        &self,
        sync_handle: &SyncHandle,
    ) -> std::result::Result<Option<Duration>, FileFailure> {
        if self.stop.is_triggered() {
            return Ok(None);
        }
        let started = self.clock.now();
        self.directory.sync(sync_handle)?;
        Ok(Some(self.clock.now().saturating_sub(started)))
    }
}

/// The task of the threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct PhaseTask {
    pub phase: Direction,
    pub form: AccessForm,
    pub call_bytes: u64,
    /// Bytes that a thread generates or compares at once.
    pub buffer_bytes: u64,
    pub fsync: bool,
    /// No file but the first of each thread starts after this time.
    pub max_time: Duration,
    /// No call on one file but its first starts after this time.
    pub max_file_time: Duration,
}

/// The outcome of a phase.
#[derive(Debug)]
pub(super) struct PhaseOutcome {
    /// Start in milliseconds since 1970 UTC.
    pub started_ms: i64,
    /// The common start, since the clock's origin.
    pub start: Duration,
    /// Time until the last thread had finished.
    pub elapsed: Duration,
    pub stats: AccessStats,
    /// The accessed files of each thread.
    pub spans: Vec<Vec<FileSpan>>,
    /// The files accessed successfully, by thread, with their actual sizes.
    pub files: Vec<Vec<RunFile>>,
    pub usage: CpuUsage,
    /// An access ended early because its time limit had passed.
    pub is_truncated: bool,
    pub is_stopped: bool,
}

impl PhaseOutcome {
    /// The share of the threads' time outside of calls, 0 to 1.
    pub fn generator_share(&self) -> f64 {
        let spent: f64 = self.spans.iter().flatten().map(|span| (span.end - span.begin).as_secs_f64()).sum();
        if spent > 0.0 { (1.0 - self.stats.call_time.as_secs_f64() / spent).clamp(0.0, 1.0) } else { 0.0 }
    }

    pub fn cpu_threads(&self) -> BTreeMap<String, f64> {
        let threads = self.usage.by_name().into_iter();
        threads.map(|(name, time)| (name.to_owned(), time.as_secs_f64())).collect()
    }
}

/// The outcome of one thread.
#[derive(Debug, Default)]
struct ThreadOutcome {
    stats: AccessStats,
    spans: Vec<FileSpan>,
    files: Vec<RunFile>,
    is_truncated: bool,
}

/// Runs a task on the files of each thread, one thread per element of `files`.
pub(super) fn run_phase(
    env: &PosixEnv,
    task: &PhaseTask,
    files: &[Vec<RunFile>],
    progress: &Progress,
) -> Result<PhaseOutcome> {
    let failed = |e: io::Error| Error::with_source(Reason::Io, format!("cannot start threads: {e}"), e);
    let (start_gate, exit_gate) = (RwLock::new(()), RwLock::new(()));
    let abort = StopSignal::default();
    std::thread::scope(|scope| {
        let (start_guard, exit_guard) = (start_gate.write(), exit_gate.write());
        let (ready, all_ready) = mpsc::channel::<()>();
        let (done, all_done) = mpsc::channel::<()>();
        let threads = files.iter().map(|files| {
            let (ready, done) = (ready.clone(), done.clone());
            let (start_gate, exit_gate, abort) = (&start_gate, &exit_gate, &abort);
            let work = move || {
                let mut buffer = AlignedBuffer::new(usize::try_from(task.buffer_bytes).unwrap_or(usize::MAX));
                drop(ready);
                drop(start_gate.read());
                let outcome = run_thread(env, task, files, &mut buffer, (progress, abort));
                drop::<Sender<()>>(done);
                // The CPU time of a thread can be read only while the thread exists.
                drop(exit_gate.read());
                outcome
            };
            std::thread::Builder::new().name("posix".to_owned()).spawn_scoped(scope, work)
        });
        let threads: Vec<_> = threads.collect::<io::Result<_>>().map_err(|e| {
            abort.trigger();
            failed(e)
        })?;
        drop((ready, done));
        // Each thread drops its `ready` sender when it is ready and its `done` sender when it has finished.
        let _ = all_ready.recv();
        let before = CpuUsage::snapshot().map_err(failed)?;
        let (start, started_ms) = (env.clock.now(), env.clock.wall().millis());
        drop(start_guard);
        let _ = all_done.recv();
        let elapsed = env.clock.now().saturating_sub(start);
        let usage = CpuUsage::snapshot().map_err(failed)?.since(&before);
        drop(exit_guard);
        let mut outcome = PhaseOutcome {
            started_ms,
            start,
            elapsed,
            stats: AccessStats::default(),
            spans: Vec::new(),
            files: Vec::new(),
            usage,
            is_truncated: false,
            is_stopped: env.stop.is_triggered(),
        };
        for thread in threads {
            let thread_outcome =
                thread.join().map_err(|_| Error::new(Reason::Defect, "a thread panicked"))?;
            outcome.stats.merge(&thread_outcome.stats);
            outcome.spans.push(thread_outcome.spans);
            outcome.files.push(thread_outcome.files);
            outcome.is_truncated |= thread_outcome.is_truncated;
        }
        Ok(outcome)
    })
}

/// Accesses the files of one thread.
fn run_thread(
    env: &PosixEnv,
    task: &PhaseTask,
    files: &[RunFile],
    buffer: &mut AlignedBuffer,
    (progress, abort): (&Progress, &StopSignal),
) -> ThreadOutcome {
    let mut outcome = ThreadOutcome::default();
    let started = env.clock.now();
    for (n, file) in files.iter().enumerate() {
        let begin = env.clock.now();
        let is_over = n > 0 && begin.saturating_sub(started) >= task.max_time;
        if is_over || env.stop.is_triggered() || abort.is_triggered() {
            break;
        }
        let deadline = begin.saturating_add(task.max_file_time);
        let file_access =
            FileAccess { fsync: task.fsync, deadline, ..env.file_access(task.form, task.call_bytes) };
        let mut on_call = |duration| outcome.stats.record_call(duration);
        let result = match task.phase {
            Direction::Write => file_access.write(*file, buffer, &mut on_call),
            Direction::Read => file_access.read(*file, buffer, &mut on_call),
        };
        outcome.record(*file, begin, env.clock.now(), result, (progress, abort));
    }
    outcome
}

impl ThreadOutcome {
    fn record(
        &mut self,
        file: RunFile,
        begin: Duration,
        end: Duration,
        result: std::result::Result<AccessOutcome, FileFailure>,
        (progress, abort): (&Progress, &StopSignal),
    ) {
        match result {
            Ok(AccessOutcome { times, bytes, is_truncated }) => {
                self.is_truncated |= is_truncated;
                if is_truncated && bytes == 0 {
                    return;
                }
                self.stats.file(&times, bytes);
                self.spans.push(FileSpan { begin, end, bytes });
                self.files.push(RunFile { size: bytes, ..file });
                progress.record_success(bytes);
            }
            Err(failure) => {
                progress.record_failure();
                self.stats.record_failure(&failure);
                if failure.is_fatal {
                    abort.trigger();
                }
            }
        }
    }
}
