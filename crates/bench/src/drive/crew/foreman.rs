//! Has more threads used where one has hardly any time left and the machine has: requests would wait for it, and count as the
//! store's time. Where the processors are busy, more threads would only take them from a server beside this.

use std::time::{Duration, Instant};

use super::Threads;
use crate::usage::idle_so_far;

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(100);
/// A thread that is busy for such a part of the time has too much to do: what is asked waits for half of what it does for one,
/// in the mean.
const BUSY: f64 = 0.5;
/// So many processors have to be idle for more threads to be of use.
const IDLE: f64 = 0.4;

/// Until all threads are used.
pub(super) async fn watch(threads: &Threads) {
    let (mut busy_before, mut idle_before, mut at) = (threads.busy(), idle_so_far(), Instant::now());
    while !threads.are_all_used() {
        tokio::time::sleep(LOOK).await;
        let (used, busy, idle, elapsed) =
            (threads.used(), threads.busy(), idle_so_far(), at.elapsed().as_secs_f64());
        at = Instant::now();
        let part = |now: Duration, before| now.saturating_sub(before).as_secs_f64() / elapsed;
        let busiest =
            busy.iter().zip(busy_before).map(|(now, before)| part(*now, before)).fold(0.0, f64::max);
        let spare = idle.zip(idle_before).map(|(now, before)| part(now, before));
        if is_too_much(busiest, spare) {
            threads.use_more(used);
        }
        (busy_before, idle_before) = (busy, idle);
    }
}

/// Of a thread's time, and of how many processors' time nobody has, where that can be seen.
fn is_too_much(busy: f64, idle: Option<f64>) -> bool {
    busy > BUSY && idle.is_none_or(|idle| idle > IDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_are_used_where_that_helps() {
        assert!(is_too_much(0.7, Some(1.0)) && is_too_much(1.0, Some(0.6)) && is_too_much(1.0, None));
        assert!(!is_too_much(0.4, Some(1.0)) && !is_too_much(1.0, Some(0.3)));
    }
}
