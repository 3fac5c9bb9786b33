//! I/O threads: dedicated threads for the reads and writes of the SSD, so that a slow device blocks no thread of the
//! async runtime. Reads precede writes: a reader waits for them.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tradewind_core::threads::start_up_to;

type Job = Box<dyn FnOnce() + Send>;

/// The urgency of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// A request waits for it.
    Foreground,
    /// No request waits for it.
    Background,
}

/// A few threads and their queue. Dropping it finishes the queued jobs and joins the threads.
pub(crate) struct IoThreads {
    queue: Arc<JobQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct JobQueue {
    state: Mutex<JobQueueState>,
    ready: Condvar,
}

#[derive(Default)]
struct JobQueueState {
    foreground: VecDeque<Job>,
    background: VecDeque<Job>,
    /// Jobs that a thread runs.
    running: usize,
    /// Jobs that have ended.
    finished: u64,
    is_closed: bool,
}

impl IoThreads {
    /// Starts `count` threads, or fewer if not all can be started.
    pub fn start(count: usize) -> std::io::Result<Self> {
        let queue = Arc::new(JobQueue::default());
        let threads = start_up_to(count, |number| {
            let queue = queue.clone();
            let builder = std::thread::Builder::new().name(format!("cache-io-{number}"));
            builder.spawn(move || queue.run_jobs())
        });
        let threads = threads.map_err(std::io::Error::other)?;
        Ok(Self { queue, threads: Mutex::new(threads) })
    }

    /// Queues a job. Returns false if the threads are closed. The caller bounds the number of jobs.
    pub fn spawn(&self, urgency: Urgency, job: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.queue.state.lock();
        if state.is_closed {
            return false;
        }
        match urgency {
            Urgency::Foreground => state.foreground.push_back(Box::new(job)),
            Urgency::Background => state.background.push_back(Box::new(job)),
        }
        self.queue.ready.notify_one();
        true
    }

    /// Returns true if a job runs or waits.
    pub fn is_busy(&self) -> bool {
        let state = self.queue.state.lock();
        state.running > 0 || !state.foreground.is_empty() || !state.background.is_empty()
    }

    /// Number of jobs that have ended.
    pub fn finished_jobs(&self) -> u64 {
        self.queue.state.lock().finished
    }

    /// Number of jobs that wait for a thread.
    #[cfg(test)]
    pub fn queued_jobs(&self) -> usize {
        let state = self.queue.state.lock();
        state.foreground.len() + state.background.len()
    }

    /// Finishes the queued jobs and joins the threads. Later jobs are rejected.
    pub fn close(&self) {
        {
            let mut state = self.queue.state.lock();
            state.is_closed = true;
            self.queue.ready.notify_all();
        }
        let this = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            // The last handle may be dropped by a job on one of these threads.
            if thread.thread().id() != this && thread.join().is_err() {
                tracing::error!("an I/O thread of the cache panicked");
            }
        }
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.close();
    }
}

impl JobQueue {
    fn run_jobs(&self) {
        loop {
            let job = {
                let mut state = self.state.lock();
                loop {
                    let next = state.foreground.pop_front();
                    if let Some(job) = next.or_else(|| state.background.pop_front()) {
                        state.running += 1;
                        break job;
                    }
                    if state.is_closed {
                        return;
                    }
                    self.ready.wait(&mut state);
                }
            };
            if std::panic::catch_unwind(AssertUnwindSafe(job)).is_err() {
                tracing::error!("a job of an I/O thread of the cache panicked");
            }
            let mut state = self.state.lock();
            state.running -= 1;
            state.finished += 1;
        }
    }
}
