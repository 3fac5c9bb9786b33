//! A worker on its thread. Where there are more threads in use than when it sat down, it goes over to the one that is its own
//! now, between two steps of whatever it does.

use std::future::Future;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::{BoxFuture, pending};
use tokio::task::JoinHandle;

use super::Threads;

pub(super) struct Seat<T> {
    work: Work<T>,
    /// Of its load, and among those of that.
    number: (usize, usize),
    place: usize,
    threads: Arc<Threads>,
}

enum Work<T> {
    Here(BoxFuture<'static, T>),
    There(Away<T>),
}

/// A worker that went over. Dropping it breaks its work off.
struct Away<T>(JoinHandle<T>);

impl<T> Drop for Away<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T: Send + 'static> Seat<T> {
    pub fn new(work: BoxFuture<'static, T>, number: (usize, usize), threads: &Arc<Threads>) -> Self {
        Self { work: Work::Here(work), number, place: threads.place(number), threads: threads.clone() }
    }

    /// The thread that it is to be on.
    pub const fn place(&self) -> usize {
        self.place
    }
}

impl<T: Send + 'static> Future for Seat<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if self.threads.place(self.number) != self.place
            && let Work::Here(work) = &mut self.work
        {
            let work = std::mem::replace(work, Box::pin(pending()));
            let seat = Self::new(work, self.number, &self.threads);
            let place = seat.place();
            self.work = Work::There(Away(self.threads.runtime(place).spawn(seat)));
        }
        match &mut self.work {
            Work::Here(work) => work.as_mut().poll(cx),
            Work::There(away) => match ready!(Pin::new(&mut away.0).poll(cx)) {
                Ok(came) => Poll::Ready(came),
                Err(e) if e.is_panic() => resume_unwind(e.into_panic()),
                // Nobody breaks it off but who drops this.
                Err(_) => Poll::Pending,
            },
        }
    }
}
