//! Autoscaler of the worker threads: doubles the threads in use when one of them is saturated and the machine has idle
//! CPUs. On a saturated thread, requests wait for the generator and that time counts as the store's. On a busy machine,
//! more threads would only take CPU from a server that runs there too.

use std::time::{Duration, Instant};

use super::WorkerThreads;
use crate::cpu_usage::total_idle_time;

/// Interval between two checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Utilization above which a thread is saturated: a request then waits on average half the CPU time of one request.
const MAX_THREAD_UTILIZATION: f64 = 0.5;
/// Minimum number of idle CPUs for more threads to help.
const MIN_IDLE_CPUS: f64 = 0.4;
/// Idle CPUs summed over consecutive checks that justify more threads. One short idle moment is not enough.
const MIN_IDLE_SUM: f64 = 1.2;

/// Scales up until all threads are in use. If idle time is not available, the machine is assumed to be idle.
pub(super) async fn scale_up_on_demand(threads: &WorkerThreads) {
    let (mut busy_before, mut idle_before, mut at) =
        (threads.busy_times(), total_idle_time(), Instant::now());
    let mut evidence = ScaleUpEvidence::default();
    while !threads.is_fully_used() {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let (used, busy, idle, elapsed) =
            (threads.used(), threads.busy_times(), total_idle_time(), at.elapsed().as_secs_f64());
        at = Instant::now();
        let part = |now: Duration, before| now.saturating_sub(before).as_secs_f64() / elapsed;
        let busiest =
            busy.iter().zip(busy_before).map(|(now, before)| part(*now, before)).fold(0.0, f64::max);
        if evidence.add(busiest, idle.zip(idle_before).map(|(now, before)| part(now, before))) {
            threads.scale_up(used);
        }
        (busy_before, idle_before) = (busy, idle);
    }
}

/// Evidence for more threads: idle CPUs, summed over consecutive checks at which a thread was saturated.
#[derive(Default)]
struct ScaleUpEvidence {
    idle_sum: f64,
}

impl ScaleUpEvidence {
    /// Adds a check: the utilization of the busiest thread and the number of idle CPUs, if available. Returns true if
    /// the evidence suffices; it then starts again from zero.
    fn add(&mut self, busiest: f64, idle: Option<f64>) -> bool {
        let idle = idle.unwrap_or(f64::INFINITY);
        let is_useful = busiest > MAX_THREAD_UTILIZATION && idle > MIN_IDLE_CPUS;
        self.idle_sum = if is_useful { self.idle_sum + idle } else { 0.0 };
        let is_enough = self.idle_sum > MIN_IDLE_SUM;
        if is_enough {
            self.idle_sum = 0.0;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of checks after which more threads were requested.
    fn scale_ups(checks: &[(f64, Option<f64>)]) -> usize {
        let mut evidence = ScaleUpEvidence::default();
        checks.iter().filter(|(busiest, idle)| evidence.add(*busiest, *idle)).count()
    }

    #[test]
    fn saturated_thread_and_idle_cpus_add_threads() {
        assert_eq!(1, scale_ups(&[(0.9, Some(1.3))]), "more than one CPU is idle");
        assert_eq!(1, scale_ups(&[(0.9, None)]), "idle time is not available");
        assert_eq!(1, scale_ups(&[(0.9, Some(0.45)); 3]), "a little is idle repeatedly");
        assert_eq!(2, scale_ups(&[(0.9, Some(0.7)); 4]), "twice the required sum");
    }

    #[test]
    fn brief_idleness_or_unsaturated_threads_add_no_threads() {
        let moment = [(0.9, Some(0.1)), (0.9, Some(0.49)), (0.9, Some(0.1))];
        assert_eq!(0, scale_ups(&moment.repeat(10)));
        assert_eq!(0, scale_ups(&[(0.4, Some(2.0)); 10]), "no request waits for a thread");
        assert_eq!(0, scale_ups(&[(1.0, Some(0.3)); 10]), "the CPUs are busy");
        let every_other_check = [(0.9, Some(0.7)), (0.4, Some(0.7))];
        assert_eq!(0, scale_ups(&every_other_check.repeat(10)));
    }
}
