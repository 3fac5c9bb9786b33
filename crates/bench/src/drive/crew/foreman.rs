//! Has more threads used where one has hardly any time left and the machine has: requests would wait for it, and count as the
//! store's time. Where all processors are busy, more threads would only take them from a server beside this.

use std::time::{Duration, Instant};

use super::Threads;
use crate::usage::Usage;

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(100);
/// A thread that is busy for such a part of the time has too much to do.
const BUSY: f64 = 0.6;
/// So many processors have to be idle for others to be of use.
const IDLE: f64 = 0.5;

/// Until all threads are used.
pub(super) async fn watch(threads: &Threads) {
    let (mut before, mut at) = (Usage::now(), Instant::now());
    loop {
        let used = threads.used();
        if used >= threads.all.len() {
            break;
        }
        tokio::time::sleep(LOOK).await;
        let (now, elapsed) = (Usage::now(), at.elapsed().as_secs_f64());
        at = Instant::now();
        // Whoever measures is told that nothing can be seen of the machine; here it is enough to be one of few.
        if let (Ok(before), Ok(now)) = (&before, &now) {
            let spent = now.since(before);
            let of_thread = |number| spent.of_thread(number).as_secs_f64();
            let busiest = threads.numbers().map(of_thread).fold(0.0, f64::max);
            if is_too_much(busiest / elapsed, spent.idle().as_secs_f64() / elapsed) {
                threads.use_more(used);
            }
        }
        before = now;
    }
}

/// Of a thread's time, and of how many processors' time nobody has.
fn is_too_much(busy: f64, idle: f64) -> bool {
    busy > BUSY && idle > IDLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_are_used_where_that_helps() {
        assert!(is_too_much(0.7, 1.0) && is_too_much(1.0, 0.6));
        assert!(!is_too_much(0.5, 1.0) && !is_too_much(1.0, 0.3));
    }
}
