//! A few threads for work on files. Those of the runtime come and go with the work, and what each has asked for and freed
//! stays with it: of many that adds up.

use std::future::Future;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;
use tradewind_core::error::{Error, Reason, Result};

type Work = Box<dyn FnOnce() + Send>;

/// The threads. They end when it is dropped and what was begun is done.
#[derive(Debug)]
pub struct Crew(Sender<Work>);

impl Crew {
    /// So many of them.
    pub fn new(threads: usize) -> Self {
        let (work, waiting) = channel::<Work>();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..threads {
            let waiting = waiting.clone();
            tokio::task::spawn_blocking(move || {
                loop {
                    let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(work) = next else { return };
                    work();
                }
            });
        }
        Self(work)
    }

    /// Begins work, in the order in which it is asked for; the future answers what came of it.
    pub fn begin<T: Send + 'static, W: FnOnce() -> T + Send + 'static>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T>> + Send + use<T, W> {
        let (done, ended) = oneshot::channel();
        // Nobody waits where this fails in the thread; where it fails here, so does waiting for it.
        let work = Box::new(move || drop(done.send(work())));
        let _ = self.0.send(work);
        async move { ended.await.map_err(|e| Error::with_source(Reason::Defect, "a thread failed", e)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_is_done_and_what_panics_is_told() {
        let crew = Crew::new(2);
        let slow = crew.begin(|| std::thread::sleep(std::time::Duration::from_millis(20)));
        assert_eq!(crew.begin(|| 7).await.unwrap(), 7);
        slow.await.unwrap();
        let lost = crew.begin(|| -> u8 { panic!("this is part of the test") });
        assert_eq!(lost.await.unwrap_err().reason(), Reason::Defect);
        assert_eq!(crew.begin(|| 8).await.unwrap(), 8);
    }
}
