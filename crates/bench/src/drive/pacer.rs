//! Releases the requests of an open loop at their moments, from a thread that does nothing else: timers of an event loop
//! are late by what the loop is busy with, and round to milliseconds.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::shared::{Shared, micros};
use crate::record::record;

/// It looks up at least so often.
const NAP: Duration = Duration::from_millis(50);
/// What the kernel may be late by, in nanoseconds: as little as there is. Usually it is 50,000.
const SLACK: NonZeroU64 = NonZeroU64::MIN;

/// The thread.
pub(super) struct Pacer {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<Histogram<u64>>>,
}

impl Pacer {
    /// Requests come with the moment at which each is meant to start, from now on, in order. Where there are none left, there
    /// are none to be waited for.
    pub fn start<T: Send + 'static>(
        shared: Arc<Shared<T>>,
        requests: impl Iterator<Item = (Duration, T)> + Send + 'static,
    ) -> io::Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let seen = stopped.clone();
        let pace = move || {
            // It is late by a little more where that is refused.
            let _ = rustix::thread::set_current_timer_slack(Some(SLACK));
            let (origin, mut lag, mut released) = (shared.now(), micros(), 0);
            for (start, request) in requests {
                let intended = origin + start;
                loop {
                    let now = shared.now();
                    let has_ended = shared.has_ended();
                    if seen.load(Ordering::Relaxed) || (has_ended && intended >= shared.window().end) {
                        return lag;
                    }
                    if now < intended {
                        std::thread::sleep((intended - now).min(NAP));
                    } else {
                        let late = u64::try_from((now - intended).as_micros()).unwrap_or(u64::MAX);
                        record(&mut lag, late.max(1), 1);
                        shared.release(intended, request);
                        released += 1;
                        break;
                    }
                }
            }
            shared.at_most(released);
            lag
        };
        let thread = Some(std::thread::Builder::new().name("pacer".to_owned()).spawn(pace)?);
        Ok(Self { stopped, thread })
    }

    /// Waits until everything is released that was meant to start before the end, which has come; `at_once` releases no more.
    /// How late requests were released, in microseconds.
    pub fn stop(mut self, at_once: bool) -> Histogram<u64> {
        if at_once {
            self.stopped.store(true, Ordering::Relaxed);
        }
        let ended = self.thread.take().and_then(|thread| thread.join().ok());
        ended.unwrap_or_else(micros)
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
