//! Blocking file work off the async workers: a read is tried inline if the page cache can serve it; everything that
//! may wait for a device runs on a few dedicated threads.

use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};

type Job = Box<dyn FnOnce() + Send>;

/// A few threads for blocking work. Dropping it finishes what is queued and joins them.
pub(crate) struct IoThreads {
    shared: Arc<IoShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Support for non-blocking reads: 0 unknown, 1 yes, 2 no (tmpfs, where a read never waits).
    nowait: AtomicU8,
    read_bytes: AtomicU64,
}

struct IoShared {
    queue: Mutex<JobQueue>,
    ready: Condvar,
}

struct JobQueue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl IoThreads {
    pub fn start(count: usize) -> Result<Arc<Self>> {
        let shared = Arc::new(IoShared {
            queue: Mutex::new(JobQueue { jobs: VecDeque::new(), closed: false }),
            ready: Condvar::new(),
        });
        let mut threads = Vec::with_capacity(count);
        for number in 0..count {
            let shared = shared.clone();
            let thread =
                std::thread::Builder::new().name(format!("local-io-{number}")).spawn(move || shared.work());
            threads.push(thread.map_err(|e| io_error("a thread could not be started", e))?);
        }
        Ok(Arc::new(Self {
            shared,
            threads: Mutex::new(threads),
            nowait: AtomicU8::new(0),
            read_bytes: AtomicU64::new(0),
        }))
    }

    /// Runs `work` on one of the threads. Dropping the future does not stop work that has begun.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        // If the threads are closed, so is the channel.
        let _is_accepted = self.spawn(move || {
            let result = std::panic::catch_unwind(AssertUnwindSafe(work));
            let _ =
                answer.send(result.unwrap_or_else(|_| Err(Error::new(Reason::Defect, "file work panicked"))));
        });
        answered.await.unwrap_or_else(|_| Err(Error::new(Reason::ShuttingDown, "the store is closed")))
    }

    /// Counts bytes that a request reads.
    pub fn count_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes read by requests so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Runs `work` on one of the threads without waiting for it; `false` if they are closed.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut queue = self.shared.queue.lock();
        if queue.closed {
            return false;
        }
        queue.jobs.push_back(Box::new(work));
        self.shared.ready.notify_one();
        true
    }

    /// Reads exactly `buffer.len()` bytes if that does not block; `None` if it would.
    pub fn read_nowait(&self, file: &File, buffer: &mut [u8], offset: u64) -> Option<Result<()>> {
        if self.nowait.load(Ordering::Relaxed) == 2 {
            return Some(
                file.read_exact_at(buffer, offset).map_err(|e| io_error("a segment could not be read", e)),
            );
        }
        let wanted = buffer.len();
        match rustix::io::preadv2(file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == wanted => {
                self.nowait.store(1, Ordering::Relaxed);
                Some(Ok(()))
            }
            Ok(0) => Some(Err(Error::new(Reason::CorruptData, "a segment ends too early"))),
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                self.nowait.store(2, Ordering::Relaxed);
                self.read_nowait(file, buffer, offset)
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
            Err(e) => Some(Err(io_error("a segment could not be read", e.into()))),
        }
    }

    pub fn close(&self) {
        {
            let mut queue = self.shared.queue.lock();
            queue.closed = true;
            self.shared.ready.notify_all();
        }
        let this = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            // The last handle may be dropped by a job on one of these threads.
            if thread.thread().id() != this && thread.join().is_err() {
                tracing::error!("a file thread panicked");
            }
        }
    }
}

impl Drop for IoThreads {
    fn drop(&mut self) {
        self.close();
    }
}

impl IoShared {
    fn work(&self) {
        loop {
            let job = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(job) = queue.jobs.pop_front() {
                        break job;
                    }
                    if queue.closed {
                        return;
                    }
                    self.ready.wait(&mut queue);
                }
            };
            job();
        }
    }
}

/// Converts an I/O error to the port's error.
pub(crate) fn io_error(what: &str, e: std::io::Error) -> Error {
    if e.kind() == std::io::ErrorKind::StorageFull || e.raw_os_error() == Some(Errno::DQUOT.raw_os_error()) {
        return Error::with_source(
            Reason::Full,
            "the store's device is full; delete objects or add space",
            e,
        );
    }
    if e.kind() == std::io::ErrorKind::UnexpectedEof {
        return Error::with_source(Reason::CorruptData, what.to_owned(), e);
    }
    Error::with_source(Reason::Io, what.to_owned(), e)
}
