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

use super::access::{Accessed, Manner};
use super::buffer::Buffer;
use super::form::Form;
use super::place::{Behind, File, Place};
use super::result::Phase;
use super::steady::Span;
use super::tally::{Failed, Tally};
use crate::drive::{Progress, StopSignal};
use crate::cpu_usage::CpuUsage;

/// The environment of the measurements: directory, contents, clock and stop signal.
#[derive(Debug, Clone)]
pub struct Site {
    /// The directory in which files are created.
    pub place: Arc<Place>,
    /// Generator of file contents.
    pub content: Arc<Content>,
    /// Source of time.
    pub clock: Arc<dyn Clock>,
    /// Request to end early.
    pub stop: StopSignal,
}

impl Site {
    /// File access in the given form and unit, without fsync and without a deadline.
    pub(super) fn manner(&self, form: Form, unit: u64) -> Manner<'_> {
        let Self { place, content, clock, stop } = self;
        Manner { place, content, clock: &**clock, stop, form, unit, fsync: false, until: Duration::MAX }
    }

    /// Makes all data durable and returns how long that took; `None` if the run was stopped, because the files are then
    /// about to be removed.
    pub(super) fn sync(&self, behind: &Behind) -> std::result::Result<Option<Duration>, Failed> {
        if self.stop.is_triggered() {
            return Ok(None);
        }
        let begun = self.clock.now();
        self.place.sync(behind)?;
        Ok(Some(self.clock.now().saturating_sub(begun)))
    }
}

/// What the threads do with the files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub phase: Phase,
    pub form: Form,
    pub unit: u64,
    /// Bytes that a thread generates or compares at once.
    pub buffer: u64,
    pub fsync: bool,
    /// No file but the first of each thread starts after this time.
    pub time: Duration,
    /// No call on one file but its first starts after this time.
    pub file_time: Duration,
}

/// The outcome of a phase.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Start in milliseconds since 1970 UTC.
    pub began: i64,
    /// The common start, since the clock's origin.
    pub begin: Duration,
    /// Time until the last thread had finished.
    pub time: Duration,
    pub tally: Tally,
    /// The accessed files of each thread.
    pub spans: Vec<Vec<Span>>,
    /// The files accessed successfully, by thread, with their actual sizes.
    pub files: Vec<Vec<File>>,
    pub usage: CpuUsage,
    /// An access ended early because its time limit had passed.
    pub is_cut: bool,
    pub is_stopped: bool,
}

impl Outcome {
    /// The share of the threads' time outside of calls, 0 to 1.
    pub fn own_share(&self) -> f64 {
        let spent: f64 = self.spans.iter().flatten().map(|span| (span.end - span.begin).as_secs_f64()).sum();
        if spent > 0.0 { (1.0 - self.tally.calls.as_secs_f64() / spent).clamp(0.0, 1.0) } else { 0.0 }
    }

    pub fn cpu_threads(&self) -> BTreeMap<String, f64> {
        let threads = self.usage.by_name().into_iter();
        threads.map(|(name, time)| (name.to_owned(), time.as_secs_f64())).collect()
    }
}

/// The outcome of one thread.
#[derive(Debug, Default)]
struct ThreadOutcome {
    tally: Tally,
    spans: Vec<Span>,
    files: Vec<File>,
    is_cut: bool,
}

/// Runs a task on the files of each thread, one thread per element of `files`.
pub(super) fn run(site: &Site, task: &Task, files: &[Vec<File>], gauge: &Progress) -> Result<Outcome> {
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
                let mut buffer = Buffer::new(usize::try_from(task.buffer).unwrap_or(usize::MAX));
                drop(ready);
                drop(start.read());
                let outcome = run_thread(site, task, files, &mut buffer, (gauge, give_up));
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
        let (begin, began) = (site.clock.now(), site.clock.wall().millis());
        drop(started);
        let _ = ended.recv();
        let time = site.clock.now().saturating_sub(begin);
        let usage = CpuUsage::snapshot().map_err(failed)?.since(&before);
        drop(leaving);
        let mut outcome = Outcome {
            began,
            begin,
            time,
            tally: Tally::default(),
            spans: Vec::new(),
            files: Vec::new(),
            usage,
            is_cut: false,
            is_stopped: site.stop.is_triggered(),
        };
        for thread in threads {
            let of_thread = thread.join().map_err(|_| Error::new(Reason::Defect, "a thread panicked"))?;
            outcome.tally.add(&of_thread.tally);
            outcome.spans.push(of_thread.spans);
            outcome.files.push(of_thread.files);
            outcome.is_cut |= of_thread.is_cut;
        }
        Ok(outcome)
    })
}

/// Accesses the files of one thread.
fn run_thread(
    site: &Site,
    task: &Task,
    files: &[File],
    buffer: &mut Buffer,
    (gauge, give_up): (&Progress, &StopSignal),
) -> ThreadOutcome {
    let mut outcome = ThreadOutcome::default();
    let begun = site.clock.now();
    for (n, file) in files.iter().enumerate() {
        let begin = site.clock.now();
        let is_over = n > 0 && begin.saturating_sub(begun) >= task.time;
        if is_over || site.stop.is_triggered() || give_up.is_triggered() {
            break;
        }
        let until = begin.saturating_add(task.file_time);
        let manner = Manner { fsync: task.fsync, until, ..site.manner(task.form, task.unit) };
        let mut access = |took| outcome.tally.access(took);
        let done = match task.phase {
            Phase::Write => manner.write(*file, buffer, &mut access),
            Phase::Read => manner.read(*file, buffer, &mut access),
        };
        outcome.record(*file, begin, site.clock.now(), done, (gauge, give_up));
    }
    outcome
}

impl ThreadOutcome {
    fn record(
        &mut self,
        file: File,
        begin: Duration,
        end: Duration,
        done: std::result::Result<Accessed, Failed>,
        (gauge, give_up): (&Progress, &StopSignal),
    ) {
        match done {
            Ok(Accessed { took, bytes, is_cut }) => {
                self.is_cut |= is_cut;
                if is_cut && bytes == 0 {
                    return;
                }
                self.tally.file(&took, bytes);
                self.spans.push(Span { begin, end, bytes });
                self.files.push(File { size: bytes, ..file });
                gauge.record_success(bytes);
            }
            Err(failed) => {
                gauge.record_failure();
                self.tally.failure(&failed);
                if failed.is_for_all {
                    give_up.trigger();
                }
            }
        }
    }
}
