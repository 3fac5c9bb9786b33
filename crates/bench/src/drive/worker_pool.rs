//! Worker threads, each with its own single-threaded runtime. As few of them as possible are used. A worker and its
//! connections stay on one thread: in a work-stealing runtime, each response wakes another thread to look for work,
//! which costs more CPU than a small request and takes it from a server on the same machine.

mod autoscaler;
mod migrating_worker;
mod threads;

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};

use self::migrating_worker::MigratingWorker;
use self::threads::{ActiveLoad, WorkerThreads};

/// The worker threads. They exit after the last clone is dropped and the tasks dropped on them have cleaned up.
/// Connections opened on them are unusable afterwards.
#[derive(Debug, Clone, Default)]
pub struct WorkerPool(Option<Arc<WorkerThreads>>);

impl WorkerPool {
    /// Starts at most `threads` threads. The calling runtime gets a task that waits for their exit. The default value
    /// has no threads: workers then run on the runtime of the caller.
    pub fn start(threads: usize) -> io::Result<Self> {
        let (threads, ended) = WorkerThreads::start(threads)?;
        Handle::current().spawn(ended);
        Ok(Self(Some(Arc::new(threads))))
    }

    /// Spawns the workers of a load. Dropping the returned set cancels them.
    pub(crate) fn spawn<T: Send + 'static>(&self, workers: Vec<BoxFuture<'static, T>>) -> RunningWorkers<T> {
        let mut set = JoinSet::new();
        let Some(threads) = &self.0 else {
            workers.into_iter().for_each(|worker| drop(set.spawn(worker)));
            return RunningWorkers { set, _on_threads: None };
        };
        let load = ActiveLoad::register(threads);
        for (number, worker) in workers.into_iter().enumerate() {
            let slot = MigratingWorker::new(worker, (load.number(), number), threads);
            let thread = slot.thread();
            set.spawn_on(slot, threads.runtime(thread));
        }
        let mut autoscaler = JoinSet::new();
        let watched = threads.clone();
        autoscaler.spawn(async move { autoscaler::scale_up_on_demand(&watched).await });
        RunningWorkers { set, _on_threads: Some((load, autoscaler)) }
    }
}

/// The running workers of a load.
#[derive(Debug)]
pub(crate) struct RunningWorkers<T> {
    set: JoinSet<T>,
    /// The registered load and the autoscaler task, if workers run on separate threads.
    _on_threads: Option<(ActiveLoad, JoinSet<()>)>,
}

impl<T: 'static> RunningWorkers<T> {
    /// Waits for the next worker to finish and returns its result; `None` if all have finished.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.set.join_next().await
    }
}

#[cfg(test)]
mod tests;
