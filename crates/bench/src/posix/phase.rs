//! A phase: threads of the system, each with files of its own, write or read them with blocking calls. All begin at once, and
//! all are still there when it is looked at what they took.

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
use crate::drive::{Gauge, Stop};
use crate::usage::Usage;

/// Where files are, and what everything is measured with.
#[derive(Debug, Clone)]
pub struct Site {
    /// The directory.
    pub place: Arc<Place>,
    /// What files hold.
    pub content: Arc<Content>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// A wish to end early.
    pub stop: Stop,
}

impl Site {
    /// A way of accessing the files here: not made durable, and without an end.
    pub(super) fn manner(&self, form: Form, unit: u64) -> Manner<'_> {
        let Self { place, content, clock, stop } = self;
        Manner { place, content, clock: &**clock, stop, form, unit, fsync: false, until: Duration::MAX }
    }

    /// Makes everything durable, and says how long that took; `None` where it was stopped: whoever does that wants to go, and
    /// what was made is removed.
    pub(super) fn sync(&self, behind: &Behind) -> std::result::Result<Option<Duration>, Failed> {
        if self.stop.is_asked() {
            return Ok(None);
        }
        let begun = self.clock.now();
        self.place.sync(behind)?;
        Ok(Some(self.clock.now().saturating_sub(begun)))
    }
}

/// What is done with the files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Task {
    pub phase: Phase,
    pub form: Form,
    pub unit: u64,
    /// Bytes that a thread makes or compares at once.
    pub buffer: u64,
    pub fsync: bool,
    /// No file is begun after so long, but the first of each thread.
    pub time: Duration,
    /// No access of one file is begun after so long.
    pub file_time: Duration,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Outcome {
    pub began: i64,
    /// When all began, since the clock's origin.
    pub begin: Duration,
    /// Until the last thread was done.
    pub time: Duration,
    pub tally: Tally,
    /// What each thread did.
    pub spans: Vec<Vec<Span>>,
    /// Files that are whole, by thread, as long as they are.
    pub files: Vec<Vec<File>>,
    pub usage: Usage,
    /// A file ended early because its time was over.
    pub is_cut: bool,
    pub is_stopped: bool,
}

impl Outcome {
    /// The part of the threads' time that was not in calls.
    pub fn own_share(&self) -> f64 {
        let spent: f64 = self.spans.iter().flatten().map(|span| (span.end - span.begin).as_secs_f64()).sum();
        if spent > 0.0 { (1.0 - self.tally.calls.as_secs_f64() / spent).clamp(0.0, 1.0) } else { 0.0 }
    }

    pub fn cpu_threads(&self) -> BTreeMap<String, f64> {
        let threads = self.usage.by_name().into_iter();
        threads.map(|(name, time)| (name.to_owned(), time.as_secs_f64())).collect()
    }
}

/// What one thread saw.
#[derive(Debug, Default)]
struct Seen {
    tally: Tally,
    spans: Vec<Span>,
    files: Vec<File>,
    is_cut: bool,
}

/// Runs a task over the files of each thread.
pub(super) fn run(site: &Site, task: &Task, files: &[Vec<File>], gauge: &Gauge) -> Result<Outcome> {
    let failed = |e: io::Error| Error::with_source(Reason::Io, format!("threads cannot be started: {e}"), e);
    let (start, leave) = (RwLock::new(()), RwLock::new(()));
    let give_up = Stop::default();
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
                let seen = each(site, task, files, &mut buffer, (gauge, give_up));
                drop::<Sender<()>>(done);
                // Its processor time can be seen as long as it is there.
                drop(leave.read());
                seen
            };
            std::thread::Builder::new().name("posix".to_owned()).spawn_scoped(scope, work)
        });
        let threads: Vec<_> = threads.collect::<io::Result<_>>().map_err(|e| {
            give_up.ask();
            failed(e)
        })?;
        drop((ready, done));
        // Each gives its end of the channel up when it is ready, and again when it is done.
        let _ = readied.recv();
        let before = Usage::now().map_err(failed)?;
        let (begin, began) = (site.clock.now(), site.clock.wall().millis());
        drop(started);
        let _ = ended.recv();
        let time = site.clock.now().saturating_sub(begin);
        let usage = Usage::now().map_err(failed)?.since(&before);
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
            is_stopped: site.stop.is_asked(),
        };
        for thread in threads {
            let seen = thread.join().map_err(|_| Error::new(Reason::Defect, "a thread failed"))?;
            outcome.tally.add(&seen.tally);
            outcome.spans.push(seen.spans);
            outcome.files.push(seen.files);
            outcome.is_cut |= seen.is_cut;
        }
        Ok(outcome)
    })
}

/// One thread's part.
fn each(
    site: &Site,
    task: &Task,
    files: &[File],
    buffer: &mut Buffer,
    (gauge, give_up): (&Gauge, &Stop),
) -> Seen {
    let mut seen = Seen::default();
    let begun = site.clock.now();
    for (n, file) in files.iter().enumerate() {
        let begin = site.clock.now();
        let is_over = n > 0 && begin.saturating_sub(begun) >= task.time;
        if is_over || site.stop.is_asked() || give_up.is_asked() {
            break;
        }
        let until = begin.saturating_add(task.file_time);
        let manner = Manner { fsync: task.fsync, until, ..site.manner(task.form, task.unit) };
        let mut access = |took| seen.tally.access(took);
        let done = match task.phase {
            Phase::Write => manner.write(*file, buffer, &mut access),
            Phase::Read => manner.read(*file, buffer, &mut access),
        };
        seen.take(*file, begin, site.clock.now(), done, (gauge, give_up));
    }
    seen
}

impl Seen {
    fn take(
        &mut self,
        file: File,
        begin: Duration,
        end: Duration,
        done: std::result::Result<Accessed, Failed>,
        (gauge, give_up): (&Gauge, &Stop),
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
                gauge.success(bytes);
            }
            Err(failed) => {
                gauge.failure();
                self.tally.failure(&failed);
                if failed.is_for_all {
                    give_up.ask();
                }
            }
        }
    }
}
