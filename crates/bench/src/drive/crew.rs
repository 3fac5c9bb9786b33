//! Threads that workers run on, each with an event loop of its own, as few of them as can do the work. A worker and its
//! connections stay on one. In a runtime whose threads share their tasks, each answer wakes another thread to look for work:
//! that takes more of the processor than a small request does, and takes it from a server beside it.

mod foreman;
mod seat;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use futures::future::BoxFuture;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use self::seat::Seat;

/// The threads. They end with the last clone; what they carry ends with them, connections that wait in a pool too.
#[derive(Debug, Clone, Default)]
pub struct Crew(Option<Arc<Threads>>);

#[derive(Debug)]
struct Threads {
    all: Vec<Thread>,
    /// The first so many have work.
    used: AtomicUsize,
    /// Loads that are under way.
    loads: AtomicUsize,
}

#[derive(Debug)]
struct Thread {
    runtime: Handle,
    /// As the kernel counts it among those of this process.
    number: u32,
    /// It ends when this is dropped.
    _ends: oneshot::Sender<()>,
}

impl Thread {
    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().thread_name("files").build()?;
        let handle = runtime.handle().clone();
        let ((ends, ended), (tell, told)) = (oneshot::channel::<()>(), std::sync::mpsc::channel());
        thread::Builder::new().name("workers".to_owned()).spawn(move || {
            // Whoever started it waits for that.
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned());
            let _ = runtime.block_on(ended);
        })?;
        let number = told.recv().map_err(io::Error::other)?;
        Ok(Self { runtime: handle, number, _ends: ends })
    }
}

impl Threads {
    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Twice as many as that, as far as there are, unless somebody else has just seen to it.
    fn use_more(&self, than: usize) {
        let more = (2 * than).min(self.all.len());
        // Whether they were so many makes no difference to whoever says it.
        let _ = self.used.compare_exchange(than, more, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Those that are used.
    fn numbers(&self) -> impl Iterator<Item = u32> {
        self.all.iter().take(self.used()).map(|thread| thread.number)
    }

    /// Where the worker of a number is to be.
    fn place(&self, worker: usize) -> usize {
        worker % self.used().max(1)
    }
}

/// A load that is under way.
#[derive(Debug)]
struct Underway(Arc<Threads>);

impl Underway {
    /// The first begins on one thread.
    fn begin(threads: &Arc<Threads>) -> Self {
        if threads.loads.fetch_add(1, Ordering::Relaxed) == 0 {
            threads.used.store(1, Ordering::Relaxed);
        }
        Self(threads.clone())
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.0.loads.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Crew {
    /// So many threads at the most. Without any, workers run where those do that wait for them.
    pub fn hire(threads: usize) -> io::Result<Self> {
        let all: io::Result<Vec<Thread>> = (0..threads.max(1)).map(|_| Thread::start()).collect();
        Ok(Self(Some(Arc::new(Threads { all: all?, used: AtomicUsize::new(1), loads: AtomicUsize::new(0) }))))
    }

    /// Sets workers to their work. Dropping the set breaks it off.
    pub(super) fn set<T: Send + 'static>(&self, workers: Vec<BoxFuture<'static, T>>) -> AtWork<T> {
        let mut set = JoinSet::new();
        let Some(threads) = &self.0 else {
            workers.into_iter().for_each(|worker| drop(set.spawn(worker)));
            return AtWork { set, _apart: None };
        };
        let load = Underway::begin(threads);
        for (number, worker) in workers.into_iter().enumerate() {
            let place = threads.place(number);
            let seat = Seat::new(worker, number, place, threads.clone());
            set.spawn_on(seat, &threads.all[place].runtime);
        }
        let mut foreman = JoinSet::new();
        let watched = threads.clone();
        foreman.spawn(async move { foreman::watch(&watched).await });
        AtWork { set, _apart: Some((load, foreman)) }
    }
}

/// Workers at their work.
#[derive(Debug)]
pub(super) struct AtWork<T> {
    set: JoinSet<T>,
    /// Where they have threads of their own.
    _apart: Option<(Underway, JoinSet<()>)>,
}

impl<T: 'static> AtWork<T> {
    /// What the next came to that is done; `None` where all are.
    pub async fn join_next(&mut self) -> Option<Result<T, tokio::task::JoinError>> {
        self.set.join_next().await
    }
}

#[cfg(test)]
mod tests;
