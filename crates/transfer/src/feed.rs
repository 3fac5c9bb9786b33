//! What a task finds or decides, in order. A task that dies is a failure at the end of what it sent, never an early end: what was not
//! found would count as absent, and be removed elsewhere.

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tradewind_core::error::{Error, Reason};

use crate::FoundFailure;

/// The receiving side.
#[derive(Debug)]
pub struct Feed<T> {
    items: mpsc::Receiver<Result<T, FoundFailure>>,
    /// What the task is about, and the task, until it is known how it ended.
    source: Option<Source>,
}

#[derive(Debug)]
struct Source {
    place: String,
    task: JoinHandle<()>,
}

impl<T> Feed<T> {
    /// What `task`, which is about a place, sends through the channel of `items`.
    pub(crate) fn new(
        items: mpsc::Receiver<Result<T, FoundFailure>>,
        place: String,
        task: JoinHandle<()>,
    ) -> Self {
        Self { items, source: Some(Source { place, task }) }
    }

    /// Nothing at all.
    #[must_use]
    pub fn empty() -> Self {
        mpsc::channel(1).1.into()
    }

    /// A single failure.
    pub(crate) fn failed(place: String, error: Error) -> Self {
        let (sender, items) = mpsc::channel(1);
        // It has room for one, and the receiver is here.
        let _ = sender.try_send(Err((place, error)));
        items.into()
    }

    /// The next item, or why there is none; `None` at the end. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Result<T, FoundFailure>> {
        if let Some(item) = self.items.recv().await {
            return Some(item);
        }
        let ended = (&mut self.source.as_mut()?.task).await;
        let Source { place, .. } = self.source.take()?;
        let died = |e| Error::with_source(Reason::Defect, "it could not be looked at to its end", e);
        ended.err().map(|e| Err((place, died(e))))
    }

    /// The next item if it is there already. Does not tell an end from a delay.
    pub fn try_recv(&mut self) -> Option<Result<T, FoundFailure>> {
        self.items.try_recv().ok()
    }
}

/// For senders that are not tasks: their end is the end.
impl<T> From<mpsc::Receiver<Result<T, FoundFailure>>> for Feed<T> {
    fn from(items: mpsc::Receiver<Result<T, FoundFailure>>) -> Self {
        Self { items, source: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_dies_is_a_failure_at_the_end() {
        let (sender, items) = mpsc::channel(4);
        let task = tokio::spawn(async move {
            sender.send(Ok(1)).await.unwrap();
            panic!("a defect");
        });
        let mut feed = Feed::new(items, "place".to_owned(), task);
        assert_eq!(feed.recv().await.unwrap().unwrap(), 1);
        let (place, error) = feed.recv().await.unwrap().unwrap_err();
        assert_eq!((&*place, error.reason()), ("place", Reason::Defect));
        assert!(feed.recv().await.is_none());
    }

    #[tokio::test]
    async fn a_task_that_ends_is_an_end() {
        let (sender, items) = mpsc::channel(4);
        let task = tokio::spawn(async move { sender.send(Ok(1)).await.unwrap() });
        let mut feed = Feed::new(items, "place".to_owned(), task);
        assert_eq!(feed.recv().await.unwrap().unwrap(), 1);
        assert!(feed.recv().await.is_none());
        assert!(feed.recv().await.is_none());
        assert!(Feed::<u8>::empty().recv().await.is_none());
    }
}
