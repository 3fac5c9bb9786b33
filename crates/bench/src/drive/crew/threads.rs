//! The threads of a crew, how many of them are used, and by which loads.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// What was dropped on a thread has so long to clean up behind itself: an upload is given up at the store.
const LAST_WORDS: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Threads {
    all: Vec<Thread>,
    /// The first so many have work. One more than there are: loads share them.
    used: AtomicUsize,
    /// Loads that began since there was none.
    begun: AtomicUsize,
    /// Of which so many are under way.
    under_way: Mutex<usize>,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// It ends when this is dropped.
    _ends: oneshot::Sender<()>,
}

impl Thread {
    /// The thread, and what ends behind it.
    fn start() -> io::Result<(Self, oneshot::Receiver<()>)> {
        let runtime = Builder::new_current_thread().enable_all().thread_name("files").build()?;
        let handle = runtime.handle().clone();
        let ((ends, ending), (alive, gone)) = (oneshot::channel::<()>(), oneshot::channel());
        thread::Builder::new().name("workers".to_owned()).spawn(move || {
            let _alive = alive;
            runtime.block_on(async {
                // Nobody says it but who goes away.
                let _ = ending.await;
                // What takes longer is broken off.
                let _ = tokio::time::timeout(LAST_WORDS, none_alive()).await;
            });
        })?;
        Ok((Self { runtime: handle, _ends: ends }, gone))
    }
}

/// Until nothing is left to be done on this thread.
async fn none_alive() {
    let runtime = Handle::current();
    while runtime.metrics().num_alive_tasks() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

impl Threads {
    /// So many, and what is done when all have ended.
    pub fn start(count: usize) -> io::Result<(Self, impl Future<Output = ()> + Send + 'static)> {
        let started: io::Result<Vec<_>> = (0..count.max(1)).map(|_| Thread::start()).collect();
        let (all, gone): (Vec<_>, Vec<_>) = started?.into_iter().unzip();
        let ended = async {
            for each in gone {
                // Nothing is sent.
                let _ = each.await;
            }
        };
        let (used, begun, under_way) = (AtomicUsize::new(1), AtomicUsize::new(0), Mutex::new(0));
        Ok((Self { all, used, begun, under_way }, ended))
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether there are no more to be used.
    pub fn are_all_used(&self) -> bool {
        self.used() > self.all.len()
    }

    /// Twice as many as that, as far as there are, unless somebody else has just seen to it.
    pub fn use_more(&self, than: usize) {
        let more = if than < self.all.len() { (2 * than).min(self.all.len()) } else { self.all.len() + 1 };
        // Whether they were so many makes no difference to whoever says it.
        let _ = self.used.compare_exchange(than, more, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Where the worker of a load is to be. Loads have threads of their own as long as those can do the work: what one asks
    /// would wait for the other here, and not in the store.
    pub fn place(&self, (load, worker): (usize, usize)) -> usize {
        let (used, all) = (self.used(), self.all.len());
        let stride = if used > all { 1 } else { self.begun.load(Ordering::Relaxed).max(1) };
        (load + stride * worker) % used.min(all)
    }

    pub fn runtime(&self, place: usize) -> &Handle {
        &self.all[place].runtime
    }

    /// How long each has been busy up to now, by the clock: also with what the kernel makes it wait for.
    pub fn busy(&self) -> Vec<Duration> {
        self.all.iter().map(|thread| thread.runtime.metrics().worker_total_busy_duration(0)).collect()
    }
}

/// A load that is under way.
#[derive(Debug)]
pub(super) struct Underway {
    threads: Arc<Threads>,
    number: usize,
}

impl Underway {
    /// The first begins on one thread, the next on another where there is one.
    pub fn begin(threads: &Arc<Threads>) -> Self {
        let mut under_way = threads.under_way.lock();
        if *under_way == 0 {
            threads.used.store(1, Ordering::Relaxed);
            threads.begun.store(0, Ordering::Relaxed);
        }
        *under_way += 1;
        let number = threads.begun.fetch_add(1, Ordering::Relaxed);
        threads.used.fetch_max((number + 1).min(threads.all.len()), Ordering::Relaxed);
        drop(under_way);
        Self { threads: threads.clone(), number }
    }

    pub const fn number(&self) -> usize {
        self.number
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        *self.threads.under_way.lock() -= 1;
    }
}
