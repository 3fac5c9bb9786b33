//! Compensation of wake-up latency.
//!
//! A thread resumes some time after the end of its sleep: tens of microseconds, or more in a virtual machine. That
//! time would add to a round trip four times. It is estimated from sleeps with a known end; later sleeps are
//! shortened accordingly.

use std::fmt;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::relay_threads;

/// Longer delays are outliers and not compensated.
const MAX_LATENESS: Duration = Duration::from_micros(200);
/// Assumed latency before the first sample.
const INITIAL_LATENESS: Duration = Duration::from_micros(50);
/// Number of sleeps in the moving average.
const AVERAGED_SLEEPS: u32 = 16;

/// Moving average of the wake-up latency.
#[derive(Debug, Clone, Copy)]
pub(super) struct WakeupLatency(Duration);

impl WakeupLatency {
    pub const fn new() -> Self {
        Self(INITIAL_LATENESS)
    }

    /// Records a sleep that should have ended at `meant` and ended at `woken`.
    pub fn record(&mut self, meant: Duration, woken: Duration) {
        let late = woken.saturating_sub(meant).min(MAX_LATENESS);
        self.0 = (self.0 * (AVERAGED_SLEEPS - 1) + late) / AVERAGED_SLEEPS;
    }

    /// The time to sleep in order to be awake at `until`: the caller spins for the rest.
    pub fn sleep_duration(self, now: Duration, until: Duration) -> Duration {
        until.saturating_sub(now + self.0)
    }

    /// Estimated time of the event that ended a sleep.
    pub fn event_time(self, asleep: Duration, woken: Duration) -> Duration {
        woken.saturating_sub(self.0).max(asleep)
    }
}

/// A reason why packets may be late.
#[derive(Debug)]
pub enum TimingWarning {
    /// The forwarding thread has no real-time priority.
    NoRealtimePriority(io::Error),
    /// The forwarding thread has real-time priority, but the kernel throttles it.
    RealtimeThrottled,
}

impl fmt::Display for TimingWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRealtimePriority(error) => write!(
                f,
                "packets may be late on a busy machine, because real-time priority is unavailable: {error}"
            ),
            Self::RealtimeThrottled => f.write_str(
                "above about 200 Mbit/s this kernel delays packets for up to 50 ms each \
                 second: use Linux 6.12 or `sysctl kernel.sched_rt_runtime_us=-1`",
            ),
        }
    }
}

/// Gives the calling thread real-time priority, so that it runs without delay once it is ready.
pub(super) fn raise_priority() -> Result<(), TimingWarning> {
    set_realtime_priority().map_err(TimingWarning::NoRealtimePriority)?;
    relay_threads::mark_current().map_err(TimingWarning::NoRealtimePriority)?;
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    if is_throttled(&read("osrelease"), &read("sched_rt_runtime_us")) {
        Err(TimingWarning::RealtimeThrottled)
    } else {
        Ok(())
    }
}

/// Returns true if the kernel throttles a real-time thread that never sleeps, once per second for the time above its
/// budget. Later kernels do so only if other threads want to run.
fn is_throttled(release: &str, max_runtime_micros: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // A kernel without the setting does not throttle.
    version < (6, 12) && max_runtime_micros.trim().parse::<i64>().is_ok_and(|runtime| runtime != -1)
}

fn set_realtime_priority() -> io::Result<()> {
    // Even without the priority, sleeps are no longer than requested.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let priority = libc::sched_param { sched_priority: 5 };
    // SAFETY: the parameter outlives the call, which affects only the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn sleep_is_shortened_by_measured_lateness() {
        let mut lateness = WakeupLatency::new();
        for _ in 0..200 {
            lateness.record(micros(1000), micros(1080));
        }
        let sleep = lateness.sleep_duration(micros(1000), micros(3000));
        assert!((micros(1919)..micros(1922)).contains(&sleep), "{sleep:?}");
        assert_eq!(lateness.sleep_duration(micros(1000), micros(1050)), Duration::ZERO);
        let happened = lateness.event_time(micros(1000), micros(3000));
        assert!((micros(2919)..micros(2922)).contains(&happened), "{happened:?}");
        assert_eq!(lateness.event_time(micros(2990), micros(3000)), micros(2990));
    }

    #[test]
    fn is_throttled_depends_on_release_and_setting() {
        for (release, runtime, does) in [
            ("6.1.0-28-amd64\n", "950000\n", true),
            ("6.11.9", "950000\n", true),
            ("5.15.0", "1000000\n", true),
            ("6.1.0", "-1\n", false),
            ("6.12.0-rc1", "950000\n", false),
            ("6.18.44-fc", "950000\n", false),
            ("7.0.0", "950000\n", false),
            ("6.1.0", "", false),
        ] {
            assert_eq!(is_throttled(release, runtime), does, "{release} {runtime}");
        }
    }

    #[test]
    fn lateness_outliers_are_capped() {
        let mut lateness = WakeupLatency::new();
        lateness.record(micros(0), Duration::from_secs(1));
        assert!(lateness.sleep_duration(micros(0), micros(1000)) > micros(930));
    }
}
