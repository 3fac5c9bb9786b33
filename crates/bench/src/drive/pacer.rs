//! Releases open-loop requests at their scheduled times from a dedicated thread. Timers of an event loop are delayed by
//! its other work and have millisecond resolution.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::load_state::{LoadState, latency_histogram};
use crate::record::record_value;

/// Longest sleep before the stop flag is checked again.
const MAX_SLEEP: Duration = Duration::from_millis(50);
/// Timer slack of the thread, in nanoseconds: the minimum. The kernel's default is 50,000.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::MIN;

/// The pacer thread. Dropping it stops the thread without waiting.
pub(super) struct Pacer {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<Histogram<u64>>>,
}

impl Pacer {
    /// Starts the thread. `requests` are in order, each with its scheduled start relative to now. When they run out,
    /// the load's request limit is set to their number.
    pub fn start<T: Send + 'static>(
        shared: Arc<LoadState<T>>,
        requests: impl Iterator<Item = (Duration, T)> + Send + 'static,
    ) -> io::Result<Self> {
        let stopped = Arc::new(AtomicBool::new(false));
        let stop_flag = stopped.clone();
        let release_all = move || {
            // Optional: with the default slack, releases are slightly later.
            let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK));
            let (origin, mut schedule_lag, mut released) = (shared.now(), latency_histogram(), 0);
            for (start, request) in requests {
                let scheduled = origin + start;
                loop {
                    let now = shared.now();
                    let has_ended = shared.is_window_closed();
                    if stop_flag.load(Ordering::Relaxed) || (has_ended && scheduled >= shared.window().end) {
                        return schedule_lag;
                    }
                    if now < scheduled {
                        std::thread::sleep((scheduled - now).min(MAX_SLEEP));
                    } else {
                        let late = u64::try_from((now - scheduled).as_micros()).unwrap_or(u64::MAX);
                        record_value(&mut schedule_lag, late.max(1), 1);
                        shared.release(scheduled, request);
                        released += 1;
                        break;
                    }
                }
            }
            shared.limit_requests(released);
            schedule_lag
        };
        let thread = Some(std::thread::Builder::new().name("pacer".to_owned()).spawn(release_all)?);
        Ok(Self { stopped, thread })
    }

    /// Waits until every request scheduled before the end of the window, which has passed, is released. With
    /// `immediately`, no further request is released. Returns the delays between scheduled and actual release, in
    /// microseconds.
    pub fn finish(mut self, immediately: bool) -> Histogram<u64> {
        if immediately {
            self.stopped.store(true, Ordering::Relaxed);
        }
        let ended = self.thread.take().and_then(|thread| thread.join().ok());
        ended.unwrap_or_else(latency_histogram)
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}
