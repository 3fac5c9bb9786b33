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
/// And so many altogether, of looks behind each other: that one is nearly idle for a moment says nothing.
const ENOUGH: f64 = 1.2;

/// Until all threads are used. Where nothing can be seen of the machine, it is taken for idle.
pub(super) async fn watch(threads: &Threads) {
    let (mut busy_before, mut idle_before, mut at) = (threads.busy(), idle_so_far(), Instant::now());
    let mut case = Case::default();
    while !threads.are_all_used() {
        tokio::time::sleep(LOOK).await;
        let (used, busy, idle, elapsed) =
            (threads.used(), threads.busy(), idle_so_far(), at.elapsed().as_secs_f64());
        at = Instant::now();
        let part = |now: Duration, before| now.saturating_sub(before).as_secs_f64() / elapsed;
        let busiest =
            busy.iter().zip(busy_before).map(|(now, before)| part(*now, before)).fold(0.0, f64::max);
        if case.is_made_by(busiest, idle.zip(idle_before).map(|(now, before)| part(now, before))) {
            threads.use_more(used);
        }
        (busy_before, idle_before) = (busy, idle);
    }
}

/// What speaks for more threads: processors idle, added up over the looks at which one thread had too much to do.
#[derive(Default)]
struct Case {
    idle: f64,
}

impl Case {
    /// With one more look: the busiest thread's part of the time, and how many processors were idle, where that can be seen.
    /// Once made, a case begins anew.
    fn is_made_by(&mut self, busiest: f64, idle: Option<f64>) -> bool {
        let idle = idle.unwrap_or(f64::INFINITY);
        self.idle = if busiest > BUSY && idle > IDLE { self.idle + idle } else { 0.0 };
        let made = self.idle > ENOUGH;
        if made {
            self.idle = 0.0;
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of these looks made a case.
    fn made_by(looks: &[(f64, Option<f64>)]) -> usize {
        let mut case = Case::default();
        looks.iter().filter(|(busiest, idle)| case.is_made_by(*busiest, *idle)).count()
    }

    #[test]
    fn more_are_used_where_that_helps_and_is_certain() {
        assert_eq!(1, made_by(&[(0.9, Some(1.3))]), "a processor is idle, and more");
        assert_eq!(1, made_by(&[(0.9, None)]), "nothing can be seen");
        assert_eq!(1, made_by(&[(0.9, Some(0.45)); 3]), "little is idle, again and again");
        assert_eq!(2, made_by(&[(0.9, Some(0.7)); 4]), "and twice over");
    }

    #[test]
    fn none_are_used_for_a_moment_of_idleness_or_for_threads_with_time_left() {
        let moment = [(0.9, Some(0.1)), (0.9, Some(0.49)), (0.9, Some(0.1))];
        assert_eq!(0, made_by(&moment.repeat(10)));
        assert_eq!(0, made_by(&[(0.4, Some(2.0)); 10]), "nobody waits for a thread");
        assert_eq!(0, made_by(&[(1.0, Some(0.3)); 10]), "the processors are busy");
        let one_look_apart = [(0.9, Some(0.7)), (0.4, Some(0.7))];
        assert_eq!(0, made_by(&one_look_apart.repeat(10)));
    }
}
