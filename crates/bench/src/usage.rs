//! What the generator itself took: processor time by thread, and how busy the machine was. A generator that is the
//! bottleneck measures itself.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

/// Processor time that was used up to a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// By number and name of the threads that are there.
    threads: BTreeMap<(u32, String), Duration>,
    /// Of all threads, those that have ended among them.
    total: Duration,
    /// Of the whole machine, busy and in all, in ticks of the kernel.
    machine: (u64, u64),
}

impl Usage {
    /// Up to now.
    pub fn now() -> io::Result<Self> {
        let mut threads = BTreeMap::new();
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?;
            let number = task.file_name().to_str().and_then(|number| number.parse().ok()).unwrap_or(0);
            // One that has just ended is not there any more.
            let Ok(spent) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
            let nanos = spent.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
            threads.insert((number, name.trim().to_owned()), Duration::from_nanos(nanos));
        }
        let total = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let total = Duration::try_from(total).unwrap_or_default();
        Ok(Self { threads, total, machine: machine(&fs::read_to_string("/proc/stat")?) })
    }

    /// What was used since an earlier moment.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let spent = |(thread, spent): (&(u32, String), &Duration)| {
            let before = earlier.threads.get(thread).copied().unwrap_or_default();
            (thread.clone(), spent.saturating_sub(before))
        };
        let (busy, all) = earlier.machine;
        let machine = (self.machine.0.saturating_sub(busy), self.machine.1.saturating_sub(all));
        let total = self.total.saturating_sub(earlier.total);
        Self { threads: self.threads.iter().map(spent).collect(), total, machine }
    }

    /// Of all threads.
    #[must_use]
    pub const fn total(&self) -> Duration {
        self.total
    }

    /// By name of the threads; those of one name together.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<&str, Duration> {
        let mut names: BTreeMap<&str, Duration> = BTreeMap::new();
        for ((_, name), spent) in &self.threads {
            *names.entry(name).or_default() += *spent;
        }
        names
    }

    /// The one thread that took the most.
    #[must_use]
    pub fn busiest(&self) -> Option<(&str, Duration)> {
        let most = self.threads.iter().max_by_key(|(_, spent)| **spent);
        most.map(|((_, name), spent)| (&**name, *spent))
    }

    /// How much of the machine's processors was busy, by whomever: 0 to 1.
    #[must_use]
    pub fn machine(&self) -> f64 {
        let (busy, all) = self.machine;
        if all == 0 { 0.0 } else { busy as f64 / all as f64 }
    }
}

/// Time of the machine's processors that nobody had up to now; `None` where that cannot be seen.
pub(crate) fn idle_so_far() -> Option<Duration> {
    let (busy, all) = machine(&fs::read_to_string("/proc/stat").ok()?);
    let seconds = (all - busy) as f64 / rustix::param::clock_ticks_per_second() as f64;
    (all > 0).then(|| Duration::from_secs_f64(seconds))
}

/// Busy ticks and all of them, from the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
fn machine(stat: &str) -> (u64, u64) {
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.take(8).map(|field| field.parse().unwrap_or(0)).collect();
    let all: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_takes_is_seen() {
        let before = Usage::now().unwrap();
        let (spun, seen) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        let (tell, ended) = (spun.0, seen.1);
        let spinning = std::thread::Builder::new().name("spinning".to_owned()).spawn(move || {
            let own = || {
                let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                Duration::try_from(spent).unwrap()
            };
            while own() < Duration::from_millis(50) {
                std::hint::spin_loop();
            }
            tell.send(()).unwrap();
            // It is there when it is looked at.
            let _ = ended.recv();
        });
        spun.1.recv().unwrap();
        let used = Usage::now().unwrap().since(&before);
        drop(seen.0);
        spinning.unwrap().join().unwrap();
        let spun = used.by_name()["spinning"];
        assert!(spun > Duration::from_millis(45) && used.total() >= spun, "{used:?}");
        assert!(used.busiest().is_some_and(|(_, spent)| spent >= spun));
        assert!((0.0..=1.0).contains(&used.machine()), "{used:?}");
    }

    #[test]
    fn the_machines_time() {
        let stat = "cpu  100 5 50 800 40 3 2 0 0 0\ncpu0 1 2 3\n";
        assert_eq!(machine(stat), (160, 1000));
        assert_eq!(machine(""), (0, 0));
    }
}
