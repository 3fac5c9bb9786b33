//! Threads that workers run on, each with an event loop of its own, as few of them as can do the work. A worker and its
//! connections are on the same one. In a runtime whose threads share their tasks, each answer wakes another thread to look for
//! work: that takes more of the processor than a small request does, and takes it from a server beside it.

mod foreman;
mod seat;
mod threads;

use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinSet};

use self::seat::Seat;
use self::threads::{Threads, Underway};

/// The threads. They end behind the last clone, when what was dropped on them has cleaned up behind itself; connections that
/// were made on them are of no use then.
#[derive(Debug, Clone, Default)]
pub struct Crew(Option<Arc<Threads>>);

impl Crew {
    /// So many threads at the most, whose end the runtime that this is called in has as a task. Without any, workers run where
    /// those do that wait for them.
    pub fn hire(threads: usize) -> io::Result<Self> {
        let (threads, ended) = Threads::start(threads)?;
        Handle::current().spawn(ended);
        Ok(Self(Some(Arc::new(threads))))
    }

    /// Sets the workers of a load to their work. Dropping the set breaks it off.
    pub(crate) fn set<T: Send + 'static>(&self, workers: Vec<BoxFuture<'static, T>>) -> AtWork<T> {
        let mut set = JoinSet::new();
        let Some(threads) = &self.0 else {
            workers.into_iter().for_each(|worker| drop(set.spawn(worker)));
            return AtWork { set, _apart: None };
        };
        let load = Underway::begin(threads);
        for (number, worker) in workers.into_iter().enumerate() {
            let seat = Seat::new(worker, (load.number(), number), threads);
            let place = seat.place();
            set.spawn_on(seat, threads.runtime(place));
        }
        let mut foreman = JoinSet::new();
        let watched = threads.clone();
        foreman.spawn(async move { foreman::watch(&watched).await });
        AtWork { set, _apart: Some((load, foreman)) }
    }
}

/// Workers at their work.
#[derive(Debug)]
pub(crate) struct AtWork<T> {
    set: JoinSet<T>,
    /// Where they have threads of their own.
    _apart: Option<(Underway, JoinSet<()>)>,
}

impl<T: 'static> AtWork<T> {
    /// What the next came to that is done; `None` where all are.
    pub async fn join_next(&mut self) -> Option<Result<T, JoinError>> {
        self.set.join_next().await
    }
}

#[cfg(test)]
mod tests;
