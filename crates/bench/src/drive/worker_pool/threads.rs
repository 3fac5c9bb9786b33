//! The worker threads, how many of them are in use, and how loads are assigned to them.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Time for cancelled tasks to clean up, for example to abort a multipart upload, before a thread exits.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct WorkerThreads {
    threads: Vec<Thread>,
    /// Number of threads in use, counted from the first. One more than there are means that loads share them.
    used_count: AtomicUsize,
    /// Loads that started since no load was active.
    started_loads: AtomicUsize,
    /// Number of active loads.
    active_loads: Mutex<usize>,
}

#[derive(Debug)]
struct Thread {
    handle: Handle,
    /// Dropping it ends the thread.
    _shutdown: oneshot::Sender<()>,
}

impl Thread {
    /// Starts a thread. The receiver completes when it has exited.
    fn start() -> io::Result<(Self, oneshot::Receiver<()>)> {
        let runtime = Builder::new_current_thread().enable_all().thread_name("files").build()?;
        let handle = runtime.handle().clone();
        let ((shutdown, shutting_down), (alive, exited)) = (oneshot::channel::<()>(), oneshot::channel());
        thread::Builder::new().name("workers".to_owned()).spawn(move || {
            let _alive = alive;
            runtime.block_on(async {
                // Nothing is sent: it completes when the sender is dropped.
                let _ = shutting_down.await;
                // Tasks that take longer are cancelled.
                let _ = tokio::time::timeout(CLEANUP_TIMEOUT, all_tasks_done()).await;
            });
        })?;
        Ok((Self { handle, _shutdown: shutdown }, exited))
    }
}

/// Waits until no task is left on this thread.
async fn all_tasks_done() {
    let runtime = Handle::current();
    while runtime.metrics().num_alive_tasks() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl WorkerThreads {
    /// Starts `count` threads. The returned future completes when all have exited.
    pub fn start(count: usize) -> io::Result<(Self, impl Future<Output = ()> + Send + 'static)> {
        let started: io::Result<Vec<_>> = (0..count.max(1)).map(|_| Thread::start()).collect();
        let (threads, exits): (Vec<_>, Vec<_>) = started?.into_iter().unzip();
        let all_exited = async {
            for exited in exits {
                // Nothing is sent: it completes when the sender is dropped.
                let _ = exited.await;
            }
        };
        let (used_count, started_loads, active_loads) =
            (AtomicUsize::new(1), AtomicUsize::new(0), Mutex::new(0));
        Ok((Self { threads, used_count, started_loads, active_loads }, all_exited))
    }

    pub fn used(&self) -> usize {
        self.used_count.load(Ordering::Relaxed)
    }

    /// Returns true if all threads are in use and shared.
    pub fn is_fully_used(&self) -> bool {
        self.used() > self.threads.len()
    }

    /// Doubles the number of threads in use, up to all of them, if it is still `used_count`.
    pub fn scale_up(&self, used_count: usize) {
        let new_count = if used_count < self.threads.len() {
            (2 * used_count).min(self.threads.len())
        } else {
            self.threads.len() + 1
        };
        // On failure, another caller has already changed the number.
        let _ = self.used_count.compare_exchange(used_count, new_count, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The index of the thread for a worker of a load. Loads use separate threads as long as these suffice: otherwise
    /// their requests would wait for each other in the generator and not in the store.
    pub fn thread_for(&self, (load, worker): (usize, usize)) -> usize {
        let (used, thread_count) = (self.used(), self.threads.len());
        let stride = if used > thread_count { 1 } else { self.started_loads.load(Ordering::Relaxed).max(1) };
        (load + stride * worker) % used.min(thread_count)
    }

    pub fn runtime(&self, thread: usize) -> &Handle {
        &self.threads[thread].handle
    }

    /// Wall-clock time that each thread has been busy so far, including time blocked in the kernel.
    pub fn busy_times(&self) -> Vec<Duration> {
        self.threads.iter().map(|thread| thread.handle.metrics().worker_total_busy_duration(0)).collect()
    }
}

/// A registered active load. Dropping it unregisters the load.
#[derive(Debug)]
pub(super) struct ActiveLoad {
    threads: Arc<WorkerThreads>,
    number: usize,
}

impl ActiveLoad {
    /// Registers a load. The first starts on one thread; each further one adds a thread, if there is one left.
    pub fn register(threads: &Arc<WorkerThreads>) -> Self {
        let mut active_loads = threads.active_loads.lock();
        if *active_loads == 0 {
            threads.used_count.store(1, Ordering::Relaxed);
            threads.started_loads.store(0, Ordering::Relaxed);
        }
        *active_loads += 1;
        let number = threads.started_loads.fetch_add(1, Ordering::Relaxed);
        threads.used_count.fetch_max((number + 1).min(threads.threads.len()), Ordering::Relaxed);
        drop(active_loads);
        Self { threads: threads.clone(), number }
    }

    pub const fn number(&self) -> usize {
        self.number
    }
}

impl Drop for ActiveLoad {
    fn drop(&mut self) {
        *self.threads.active_loads.lock() -= 1;
    }
}
