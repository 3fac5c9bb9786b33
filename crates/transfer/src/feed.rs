//! An ordered stream of results that a task produces.
//!
//! Invariant: a task that panics yields a failure after its last item, never an early end. Otherwise items it did not
//! list would count as absent, and sync would remove them at the destination.

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tradewind_core::error::{Error, Reason};

use crate::NamedError;

/// The receiving end of the stream.
#[derive(Debug)]
pub struct Feed<T, E = NamedError> {
    items: mpsc::Receiver<Result<T, E>>,
    /// The producing task; `None` once its result was taken, or if the sender is not a task.
    producer: Option<ProducerTask>,
}

#[derive(Debug)]
struct ProducerTask {
    location: String,
    task: JoinHandle<()>,
}

impl<T, E: From<NamedError>> Feed<T, E> {
    /// A feed of what `task` sends to `items`; a panic of the task is reported for `location`.
    pub(crate) fn new(items: mpsc::Receiver<Result<T, E>>, location: String, task: JoinHandle<()>) -> Self {
        Self { items, producer: Some(ProducerTask { location, task }) }
    }

    /// A feed without items.
    #[must_use]
    pub fn empty() -> Self {
        mpsc::channel(1).1.into()
    }

    /// A feed that yields a single failure.
    pub(crate) fn with_error(location: String, error: Error) -> Self {
        let (sender, items) = mpsc::channel(1);
        // Cannot fail: the channel has capacity 1 and its receiver exists.
        let _ = sender.try_send(Err((location, error).into()));
        items.into()
    }

    /// The next item or failure; `None` at the end. Cancel-safe.
    pub async fn recv(&mut self) -> Option<Result<T, E>> {
        if let Some(item) = self.items.recv().await {
            return Some(item);
        }
        let ended = (&mut self.producer.as_mut()?.task).await;
        let ProducerTask { location, .. } = self.producer.take()?;
        let failed = |e| Error::with_source(Reason::Defect, "incomplete: the task that lists it failed", e);
        ended.err().map(|e| Err((location, failed(e)).into()))
    }

    /// The next item if one is ready; `None` both if none is ready and at the end.
    pub fn try_recv(&mut self) -> Option<Result<T, E>> {
        self.items.try_recv().ok()
    }
}

/// A feed whose sender is not a task: it ends when the channel closes.
impl<T, E> From<mpsc::Receiver<Result<T, E>>> for Feed<T, E> {
    fn from(items: mpsc::Receiver<Result<T, E>>) -> Self {
        Self { items, producer: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panicking_task_yields_a_failure_after_its_items() {
        let (sender, items) = mpsc::channel(4);
        let task = tokio::spawn(async move {
            sender.send(Ok(1)).await.unwrap();
            panic!("a defect");
        });
        let mut feed: Feed<i32> = Feed::new(items, "location".to_owned(), task);
        assert_eq!(feed.recv().await.unwrap().unwrap(), 1);
        let (location, error) = feed.recv().await.unwrap().unwrap_err();
        assert_eq!((&*location, error.reason()), ("location", Reason::Defect));
        assert!(feed.recv().await.is_none());
    }

    #[tokio::test]
    async fn finished_task_ends_the_feed() {
        let (sender, items) = mpsc::channel(4);
        let task = tokio::spawn(async move { sender.send(Ok(1)).await.unwrap() });
        let mut feed: Feed<i32> = Feed::new(items, "location".to_owned(), task);
        assert_eq!(feed.recv().await.unwrap().unwrap(), 1);
        assert!(feed.recv().await.is_none());
        assert!(feed.recv().await.is_none());
        assert!(Feed::<u8>::empty().recv().await.is_none());
    }
}
