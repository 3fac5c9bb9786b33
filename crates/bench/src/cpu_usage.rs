//! CPU usage of the generator: CPU time by thread, and utilization of the machine. It reveals a generator that is
//! itself the bottleneck.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

/// CPU time used so far, or between two snapshots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuUsage {
    /// CPU time of the running threads, by id and name.
    threads: BTreeMap<(u32, String), Duration>,
    /// CPU time of the process, including threads that have exited.
    total: Duration,
    /// Busy and total time of the whole machine, in kernel ticks.
    machine_ticks: (u64, u64),
}

impl CpuUsage {
    /// Takes a snapshot.
    pub fn snapshot() -> io::Result<Self> {
        let mut threads = BTreeMap::new();
        for task in fs::read_dir("/proc/self/task")? {
            let task = task?;
            let number = task.file_name().to_str().and_then(|number| number.parse().ok()).unwrap_or(0);
            // The thread may have exited since the directory was read.
            let Ok(schedstat) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let Ok(name) = fs::read_to_string(task.path().join("comm")) else { continue };
            let nanos = schedstat.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
            threads.insert((number, name.trim().to_owned()), Duration::from_nanos(nanos));
        }
        let total = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let total = Duration::try_from(total).unwrap_or_default();
        Ok(Self { threads, total, machine_ticks: parse_machine_ticks(&fs::read_to_string("/proc/stat")?) })
    }

    /// The usage since an earlier snapshot.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let used = |(thread, used): (&(u32, String), &Duration)| {
            let before = earlier.threads.get(thread).copied().unwrap_or_default();
            (thread.clone(), used.saturating_sub(before))
        };
        let (busy, total_ticks) = earlier.machine_ticks;
        let machine_ticks =
            (self.machine_ticks.0.saturating_sub(busy), self.machine_ticks.1.saturating_sub(total_ticks));
        let total = self.total.saturating_sub(earlier.total);
        Self { threads: self.threads.iter().map(used).collect(), total, machine_ticks }
    }

    /// CPU time of all threads.
    #[must_use]
    pub const fn total(&self) -> Duration {
        self.total
    }

    /// CPU time by thread name. Threads with the same name are summed.
    #[must_use]
    pub fn by_name(&self) -> BTreeMap<&str, Duration> {
        let mut names: BTreeMap<&str, Duration> = BTreeMap::new();
        for ((_, name), spent) in &self.threads {
            *names.entry(name).or_default() += *spent;
        }
        names
    }

    /// The thread that used the most CPU time.
    #[must_use]
    pub fn busiest(&self) -> Option<(&str, Duration)> {
        let busiest = self.threads.iter().max_by_key(|(_, spent)| **spent);
        busiest.map(|((_, name), spent)| (&**name, *spent))
    }

    /// CPU utilization of the whole machine, by all processes: 0 to 1.
    #[must_use]
    pub fn machine_utilization(&self) -> f64 {
        let (busy, total) = self.machine_ticks;
        if total == 0 { 0.0 } else { busy as f64 / total as f64 }
    }
}

/// Total idle time of the machine's CPUs since boot; `None` if unavailable.
pub(crate) fn total_idle_time() -> Option<Duration> {
    let (busy, total) = parse_machine_ticks(&fs::read_to_string("/proc/stat").ok()?);
    let seconds = (total - busy) as f64 / rustix::param::clock_ticks_per_second() as f64;
    (total > 0).then(|| Duration::from_secs_f64(seconds))
}

/// Parses busy and total ticks from the first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq,
/// steal.
fn parse_machine_ticks(stat: &str) -> (u64, u64) {
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.take(8).map(|field| field.parse().unwrap_or(0)).collect();
    let total: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (total - idle, total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_includes_the_cpu_time_of_a_thread() {
        let before = CpuUsage::snapshot().unwrap();
        let (spun, measured) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        let (sender, may_exit) = (spun.0, measured.1);
        let spinning = std::thread::Builder::new().name("spinning".to_owned()).spawn(move || {
            let own = || {
                let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                Duration::try_from(spent).unwrap()
            };
            while own() < Duration::from_millis(50) {
                std::hint::spin_loop();
            }
            sender.send(()).unwrap();
            // The thread must still exist when its usage is read.
            let _ = may_exit.recv();
        });
        spun.1.recv().unwrap();
        let used = CpuUsage::snapshot().unwrap().since(&before);
        drop(measured.0);
        spinning.unwrap().join().unwrap();
        let spun = used.by_name()["spinning"];
        assert!(spun > Duration::from_millis(45) && used.total() >= spun, "{used:?}");
        assert!(used.busiest().is_some_and(|(_, spent)| spent >= spun));
        assert!((0.0..=1.0).contains(&used.machine_utilization()), "{used:?}");
    }

    #[test]
    fn machine_ticks_are_parsed_from_proc_stat() {
        let stat = "cpu  100 5 50 800 40 3 2 0 0 0\ncpu0 1 2 3\n";
        assert_eq!(parse_machine_ticks(stat), (160, 1000));
        assert_eq!(parse_machine_ticks(""), (0, 0));
    }
}
