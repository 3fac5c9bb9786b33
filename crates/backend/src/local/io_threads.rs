//! I/O threads: a few dedicated threads for the work of requests that may wait for a device, so that it does not block
//! the threads of the async runtime. A read that the page cache can serve runs on the calling task.

use std::collections::VecDeque;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::threads::start_up_to;

type Job = Box<dyn FnOnce() + Send>;

/// The I/O threads of a store. Dropping them finishes the queued jobs and joins the threads.
pub(crate) struct IoThreads {
    queue: Arc<JobQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// True once the file system rejected a non-blocking read (tmpfs, some network file systems). Then every read
    /// blocks the calling task.
    lacks_nowait: AtomicBool,
    /// Bytes that requests have read.
    read_bytes: AtomicU64,
}

struct JobQueue {
    state: Mutex<JobQueueState>,
    ready: Condvar,
}

struct JobQueueState {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl IoThreads {
    /// Starts `count` threads, or fewer if not all can be started.
    pub fn start(count: usize) -> Result<Arc<Self>> {
        let queue = Arc::new(JobQueue {
            state: Mutex::new(JobQueueState { jobs: VecDeque::new(), closed: false }),
            ready: Condvar::new(),
        });
        let threads = start_up_to(count, |number| {
            let queue = queue.clone();
            std::thread::Builder::new().name(format!("local-io-{number}")).spawn(move || queue.run_jobs())
        })?;
        Ok(Arc::new(Self {
            queue,
            threads: Mutex::new(threads),
            lacks_nowait: AtomicBool::new(false),
            read_bytes: AtomicU64::new(0),
        }))
    }

    /// Runs `work` on an I/O thread. Dropping the future does not cancel it.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (result_sender, result_receiver) = oneshot::channel();
        // If the threads are closed, the sender is dropped and the receiver returns an error.
        let _is_accepted = self.spawn(move || {
            let result = std::panic::catch_unwind(AssertUnwindSafe(work));
            let _ = result_sender.send(
                result.unwrap_or_else(|_| Err(Error::new(Reason::Defect, "a job of an I/O thread panicked"))),
            );
        });
        result_receiver.await.unwrap_or_else(|_| Err(Error::new(Reason::ShuttingDown, "the store is closed")))
    }

    /// Counts bytes that a request reads.
    pub fn count_read(&self, bytes: usize) {
        self.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Bytes read by requests so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Runs `work` on an I/O thread without waiting for it. Returns false if the threads are closed.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.queue.state.lock();
        if state.closed {
            return false;
        }
        state.jobs.push_back(Box::new(work));
        self.queue.ready.notify_one();
        true
    }

    /// Fills `buffer` without waiting for the device; `None` if that needs an I/O thread. On a file system without
    /// non-blocking reads (tmpfs, some network file systems) it blocks.
    pub fn read_nowait(&self, file: &File, buffer: &mut [u8], offset: u64) -> Option<Result<()>> {
        if self.lacks_nowait.load(Ordering::Relaxed) {
            return Some(
                file.read_exact_at(buffer, offset).map_err(|e| io_error("a segment could not be read", e)),
            );
        }
        let wanted_bytes = buffer.len();
        match rustix::io::preadv2(file, &mut [IoSliceMut::new(buffer)], offset, ReadWriteFlags::NOWAIT) {
            Ok(read) if read == wanted_bytes => Some(Ok(())),
            Ok(0) => Some(Err(Error::new(Reason::CorruptData, "a segment ends too early"))),
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                self.lacks_nowait.store(true, Ordering::Relaxed);
                self.read_nowait(file, buffer, offset)
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
            Err(e) => Some(Err(io_error("a segment could not be read", e.into()))),
        }
    }

    pub fn close(&self) {
        {
            let mut state = self.queue.state.lock();
            state.closed = true;
            self.queue.ready.notify_all();
        }
        let this = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            // The last handle may be dropped by a job on one of these threads.
            if thread.thread().id() != this && thread.join().is_err() {
                tracing::error!("an I/O thread panicked");
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
                    if let Some(job) = state.jobs.pop_front() {
                        break job;
                    }
                    if state.closed {
                        return;
                    }
                    self.ready.wait(&mut state);
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
