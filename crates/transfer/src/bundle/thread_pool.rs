//! A small fixed pool of threads for file I/O. The runtime's blocking pool would start many more threads, and the
//! allocator retains freed memory per thread.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Builder;

use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::threads::start_up_to;

type Work = Box<dyn FnOnce() + Send>;

/// The handle of the pool. Its threads exit once it is dropped and all submitted work is done.
#[derive(Debug)]
pub struct ThreadPool {
    work: Sender<Work>,
    /// The reason for which there is no thread.
    failure: Option<String>,
}

impl ThreadPool {
    /// A pool of `threads` threads, or fewer if not all can be started. Without any, all work fails.
    pub fn new(threads: usize) -> Self {
        let (work, queue) = channel::<Work>();
        let queue = Arc::new(Mutex::new(queue));
        let started = start_up_to(threads, |_| {
            let queue = queue.clone();
            let run = move || {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(work) = next else { return };
                    // Its submitter sees a panic, since the result is not sent.
                    let _ = catch_unwind(AssertUnwindSafe(work));
                }
            };
            Builder::new().name("files".to_owned()).spawn(run)
        });
        Self { work, failure: started.err().map(|e| e.to_string()) }
    }

    /// Submits work to be started in order of submission; the future returns its result. A panic of the work is an
    /// error.
    pub fn spawn<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T>> + Send + use<T, W> {
        let (done, result) = oneshot::channel();
        // In the thread, sending fails only if the future was dropped. If submitting fails, `done` is dropped and
        // awaiting the future fails.
        let work = Box::new(move || drop(done.send(work())));
        let _ = self.work.send(work);
        let why = self.failure.clone().unwrap_or_else(|| "a thread failed".to_owned());
        async move { result.await.map_err(|e| Error::with_source(Reason::Defect, why, e)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pool_survives_a_panic_and_reports_it() {
        let crew = ThreadPool::new(2);
        let slow = crew.spawn(|| std::thread::sleep(std::time::Duration::from_millis(20)));
        assert_eq!(crew.spawn(|| 7).await.unwrap(), 7);
        slow.await.unwrap();
        let failed = crew.spawn(|| -> u8 { panic!("this is part of the test") });
        assert_eq!(failed.await.unwrap_err().reason(), Reason::Defect);
        assert_eq!(crew.spawn(|| 8).await.unwrap(), 8);
    }
}
