//! A worker future bound to a thread. When the number of threads in use grows, it migrates to its new thread between
//! two polls.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::{BoxFuture, pending};
use tokio::task::JoinHandle;

use super::WorkerThreads;

pub(super) struct MigratingWorker<T> {
    work: Work<T>,
    /// Load number, and the worker's number within the load.
    number: (usize, usize),
    thread: usize,
    threads: Arc<WorkerThreads>,
}

enum Work<T> {
    Local(BoxFuture<'static, T>),
    Migrated(AbortOnDrop<T>),
}

/// A migrated worker. Dropping the handle cancels it.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T: Send + 'static> MigratingWorker<T> {
    pub fn new(work: BoxFuture<'static, T>, number: (usize, usize), threads: &Arc<WorkerThreads>) -> Self {
        Self { work: Work::Local(work), number, thread: threads.thread_for(number), threads: threads.clone() }
    }

    /// The index of the thread that it must run on.
    pub const fn thread(&self) -> usize {
        self.thread
    }
}

impl<T: Send + 'static> Future for MigratingWorker<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if self.threads.thread_for(self.number) != self.thread
            && let Work::Local(work) = &mut self.work
        {
            let work = std::mem::replace(work, Box::pin(pending()));
            let slot = Self::new(work, self.number, &self.threads);
            let thread = slot.thread();
            self.work = Work::Migrated(AbortOnDrop(self.threads.runtime(thread).spawn(slot)));
        }
        match &mut self.work {
            Work::Local(work) => work.as_mut().poll(cx),
            Work::Migrated(handle) => match ready!(Pin::new(&mut handle.0).poll(cx)) {
                Ok(output) => Poll::Ready(output),
                Err(e) if e.is_panic() => resume_unwind(e.into_panic()),
                // Only dropping this future cancels it.
                Err(_) => Poll::Pending,
            },
        }
    }
}
