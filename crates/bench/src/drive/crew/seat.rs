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
    number: usize,
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
    pub fn new(work: BoxFuture<'static, T>, number: usize, place: usize, threads: Arc<Threads>) -> Self {
        Self { work: Work::Here(work), number, place, threads }
    }
}

impl<T: Send + 'static> Future for Seat<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let place = self.threads.place(self.number);
        if place != self.place
            && let Work::Here(work) = &mut self.work
        {
            let work = std::mem::replace(work, Box::pin(pending()));
            let seat = Self::new(work, self.number, place, self.threads.clone());
            self.work = Work::There(Away(self.threads.all[place].runtime.spawn(seat)));
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
