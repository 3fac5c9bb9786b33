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
use super::buffer::AlignedBuffer;
use super::file_access::{AccessOutcome, FileAccess};
use super::result::Direction;
use super::run_directory::{RunDirectory, RunFile, SyncHandle};
use super::steady_rate::FileSpan;
use super::tally::{AccessStats, FileFailure};
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
    pub(super) fn file_access(&self, form: AccessForm, unit: u64) -> FileAccess<'_> {
        let Self { directory, content, clock, stop } = self;
        FileAccess {
            directory,
            content,
            clock: &**clock,
            stop,
            form,
            call_bytes: unit,
            fsync: false,
            deadline: Duration::MAX,
        }
    }

    /// Makes all data durable and returns how long that took; `None` if the run was stopped, because the files are then
    /// about to be removed.
    pub(super) fn sync(&self, behind: &SyncHandle) -> std::result::Result<Option<Duration>, FileFailure> {
        if self.stop.is_triggered() {
            return Ok(None);
        }
        let started = self.clock.now();
        self.directory.sync(behind)?;
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
    pub started_unix_ms: i64,
    /// The common start, since the clock's origin.
    pub start: Duration,
    /// Time until the last thread had finished.
    pub time: Duration,
    pub tally: AccessStats,
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
        if spent > 0.0 { (1.0 - self.tally.call_time.as_secs_f64() / spent).clamp(0.0, 1.0) } else { 0.0 }
    }

    pub fn cpu_threads(&self) -> BTreeMap<String, f64> {
        let threads = self.usage.by_name().into_iter();
        threads.map(|(name, time)| (name.to_owned(), time.as_secs_f64())).collect()
    }
}

/// The outcome of one thread.
#[derive(Debug, Default)]
struct ThreadOutcome {
    tally: AccessStats,
    spans: Vec<FileSpan>,
    files: Vec<RunFile>,
    is_cut: bool,
}

/// Runs a task on the files of each thread, one thread per element of `files`.
pub(super) fn run_phase(
    env: &PosixEnv,
    task: &PhaseTask,
    files: &[Vec<RunFile>],
    gauge: &Progress,
) -> Result<PhaseOutcome> {
    let failed = |e: io::Error| Error::with_source(Reason::Io, format!("cannot start threads: {e}"), e);
    let (start, leave) = (RwLock::new(()), RwLock::new(()));
    let give_up = StopSignal::default();
    std::thread::scope(|scope| {
        let (started, leaving) = (start.write(), leave.write());
        let (ready, readied) = mpsc::channel::<()>();
        let (done, ended) = mpsc::channel::<()>();
        let threads = files.iter().map(|files| {
            let (ready, done) = (ready.clone(), done.clone());
            let (start, leave, give_up) = (&start, &leave, &give_up);
            let work = move || {
                let mut buffer = AlignedBuffer::new(usize::try_from(task.buffer_bytes).unwrap_or(usize::MAX));
                drop(ready);
                drop(start.read());
                let outcome = run_thread(env, task, files, &mut buffer, (gauge, give_up));
                drop::<Sender<()>>(done);
                // The CPU time of a thread can be read only while the thread exists.
                drop(leave.read());
                outcome
            };
            std::thread::Builder::new().name("posix".to_owned()).spawn_scoped(scope, work)
        });
        let threads: Vec<_> = threads.collect::<io::Result<_>>().map_err(|e| {
            give_up.trigger();
            failed(e)
        })?;
        drop((ready, done));
        // Each thread drops its `ready` sender when it is ready and its `done` sender when it has finished.
        let _ = readied.recv();
        let before = CpuUsage::snapshot().map_err(failed)?;
        let (begin, began) = (env.clock.now(), env.clock.wall().millis());
        drop(started);
        let _ = ended.recv();
        let time = env.clock.now().saturating_sub(begin);
        let usage = CpuUsage::snapshot().map_err(failed)?.since(&before);
        drop(leaving);
        let mut outcome = PhaseOutcome {
            started_unix_ms: began,
            start: begin,
            time,
            tally: AccessStats::default(),
            spans: Vec::new(),
            files: Vec::new(),
            usage,
            is_truncated: false,
            is_stopped: env.stop.is_triggered(),
        };
        for thread in threads {
            let of_thread = thread.join().map_err(|_| Error::new(Reason::Defect, "a thread panicked"))?;
            outcome.tally.merge(&of_thread.tally);
            outcome.spans.push(of_thread.spans);
            outcome.files.push(of_thread.files);
            outcome.is_truncated |= of_thread.is_cut;
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
    (gauge, give_up): (&Progress, &StopSignal),
) -> ThreadOutcome {
    let mut outcome = ThreadOutcome::default();
    let started = env.clock.now();
    for (n, file) in files.iter().enumerate() {
        let begin = env.clock.now();
        let is_over = n > 0 && begin.saturating_sub(started) >= task.max_time;
        if is_over || env.stop.is_triggered() || give_up.is_triggered() {
            break;
        }
        let until = begin.saturating_add(task.max_file_time);
        let manner =
            FileAccess { fsync: task.fsync, deadline: until, ..env.file_access(task.form, task.call_bytes) };
        let mut access = |took| outcome.tally.access(took);
        let done = match task.phase {
            Direction::Write => manner.write(*file, buffer, &mut access),
            Direction::Read => manner.read(*file, buffer, &mut access),
        };
        outcome.record(*file, begin, env.clock.now(), done, (gauge, give_up));
    }
    outcome
}

impl ThreadOutcome {
    fn record(
        &mut self,
        file: RunFile,
        begin: Duration,
        end: Duration,
        done: std::result::Result<AccessOutcome, FileFailure>,
        (gauge, give_up): (&Progress, &StopSignal),
    ) {
        match done {
            Ok(AccessOutcome { times: took, bytes, is_truncated: is_cut }) => {
                self.is_cut |= is_cut;
                if is_cut && bytes == 0 {
                    return;
                }
                self.tally.file(&took, bytes);
                self.spans.push(FileSpan { begin, end, bytes });
                self.files.push(RunFile { size: bytes, ..file });
                gauge.record_success(bytes);
            }
            Err(failed) => {
                gauge.record_failure();
                self.tally.record_failure(&failed);
                if failed.is_fatal {
                    give_up.trigger();
                }
            }
        }
    }
}
