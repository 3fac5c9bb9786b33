//! How punctual a thread wakes, and what is done about it.
//!
//! Between the end of a sleep and the thread's next step lies time of the machine's, tens of microseconds and more in a virtual
//! one: four times a round trip. It is learned from sleeps that were to end at a known time, and the next ones end as much
//! earlier.

use std::fmt;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::time::Duration;

use crate::relays;

/// More is an accident, which is not worth being early for.
const MOST: Duration = Duration::from_micros(200);
/// What is assumed before anything was learned.
const FIRST: Duration = Duration::from_micros(50);
/// How many sleeps it is learned from.
const MEMORY: u32 = 16;

/// How late sleeps end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lateness(Duration);

impl Lateness {
    pub const fn new() -> Self {
        Self(FIRST)
    }

    /// Learns from a sleep that was to end at one time and ended at another.
    pub fn learn(&mut self, meant: Duration, woken: Duration) {
        let late = woken.saturating_sub(meant).min(MOST);
        self.0 = (self.0 * (MEMORY - 1) + late) / MEMORY;
    }

    /// How long to sleep so as to be there at a time: the rest of it has to be awaited awake.
    pub fn sleep(self, now: Duration, until: Duration) -> Duration {
        until.saturating_sub(now + self.0)
    }

    /// When what ended a sleep happened, as far as is known.
    pub fn happened(self, asleep: Duration, woken: Duration) -> Duration {
        woken.saturating_sub(self.0).max(asleep)
    }
}

/// Why packets may be late.
#[derive(Debug)]
pub enum Unsteady {
    /// Whoever carries them runs when others do not.
    NoPriority(io::Error),
    /// Whoever carries them runs before others, but the kernel makes it pause where it does not by itself.
    Pauses,
}

impl fmt::Display for Unsteady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPriority(error) => write!(
                f,
                "packets may be late on a busy machine, since no priority is given to them: {error}"
            ),
            Self::Pauses => f.write_str(
                "where packets follow closely, as above some 200 Mbit/s, this kernel keeps them back for up to 50 ms each \
                 second: it needs Linux 6.12 or `sysctl kernel.sched_rt_runtime_us=-1`",
            ),
        }
    }
}

/// Has the calling thread run as soon as it wants to, whatever else there is to do.
pub(super) fn before_others() -> Result<(), Unsteady> {
    raise_priority().map_err(Unsteady::NoPriority)?;
    relays::mark_current().map_err(Unsteady::NoPriority)?;
    let read = |name: &str| fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
    if pauses(&read("osrelease"), &read("sched_rt_runtime_us")) { Err(Unsteady::Pauses) } else { Ok(()) }
}

/// Whether a kernel of a release has a thread with our priority pause that never sleeps: each second, for what is missing in it of the
/// time that such threads may run for. Later ones do that only where others want to run.
fn pauses(release: &str, most_micros: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    // Where the kernel has no such setting, it has no such bound.
    version < (6, 12) && most_micros.trim().parse::<i64>().is_ok_and(|most| most != -1)
}

fn raise_priority() -> io::Result<()> {
    // Without the priority, sleep is at least no longer than it was asked for.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let priority = libc::sched_param { sched_priority: 5 };
    // SAFETY: the parameter lives for the call, which concerns the calling thread only.
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
    fn sleeps_end_earlier_by_what_they_were_late() {
        let mut lateness = Lateness::new();
        for _ in 0..200 {
            lateness.learn(micros(1000), micros(1080));
        }
        let sleep = lateness.sleep(micros(1000), micros(3000));
        assert!((micros(1919)..micros(1922)).contains(&sleep), "{sleep:?}");
        assert_eq!(lateness.sleep(micros(1000), micros(1050)), Duration::ZERO);
        let happened = lateness.happened(micros(1000), micros(3000));
        assert!((micros(2919)..micros(2922)).contains(&happened), "{happened:?}");
        assert_eq!(lateness.happened(micros(2990), micros(3000)), micros(2990));
    }

    #[test]
    fn kernels_that_pause_are_known() {
        for (release, most, does) in [
            ("6.1.0-28-amd64\n", "950000\n", true),
            ("6.11.9", "950000\n", true),
            ("5.15.0", "1000000\n", true),
            ("6.1.0", "-1\n", false),
            ("6.12.0-rc1", "950000\n", false),
            ("6.18.44-fc", "950000\n", false),
            ("7.0.0", "950000\n", false),
            ("6.1.0", "", false),
        ] {
            assert_eq!(pauses(release, most), does, "{release} {most}");
        }
    }

    #[test]
    fn an_accident_is_not_learned_from_for_long() {
        let mut lateness = Lateness::new();
        lateness.learn(micros(0), Duration::from_secs(1));
        assert!(lateness.sleep(micros(0), micros(1000)) > micros(930));
    }
}
