//! The load of this host: I/O pressure and the share of CPU time that waits for I/O, from the kernel's counters.

use serde::{Deserialize, Serialize};

/// Fields of `/proc/stat` that add up to the CPU time: user, nice, system, idle, iowait, irq, softirq, steal. Guest time is
/// contained in user time.
const CPU_FIELDS: usize = 8;
const IOWAIT_FIELD: usize = 4;

/// Counters of a host. What its kernel does not report is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct HostCounters {
    /// Share of the last 10 s in which some task waited for I/O, in percent (PSI).
    pub io_pressure_percent: Option<f64>,
    /// CPU time since the start of the host.
    pub cpu: Option<CpuTimes>,
}

impl HostCounters {
    /// Reads those of this host.
    pub fn read() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        Self {
            io_pressure_percent: read("/proc/pressure/io").and_then(|text| parse_pressure(&text)),
            cpu: read("/proc/stat").and_then(|text| CpuTimes::parse(&text)),
        }
    }
}

/// CPU times of all CPUs, in clock ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuTimes {
    /// Time in which a CPU was idle while a task waited for I/O.
    pub iowait: u64,
    /// All time.
    pub total: u64,
}

impl CpuTimes {
    /// Parses `/proc/stat`.
    fn parse(text: &str) -> Option<Self> {
        let fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(CPU_FIELDS);
        let times: Vec<u64> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
        (times.len() == CPU_FIELDS).then(|| Self { iowait: times[IOWAIT_FIELD], total: times.iter().sum() })
    }

    /// %iowait since an earlier sample. The kernel's counter may go back by a little: that counts as 0.
    pub fn iowait_percent_since(self, earlier: Self) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total).filter(|total| *total > 0)?;
        Some(100.0 * self.iowait.saturating_sub(earlier.iowait) as f64 / total as f64)
    }
}

/// Parses `/proc/pressure/io`: `some avg10=0.12 avg60=…`.
fn parse_pressure(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_that_of_some_tasks_over_ten_seconds() {
        let text =
            "some avg10=1.25 avg60=2.00 avg300=3.00 total=4\nfull avg10=0.50 avg60=0 avg300=0 total=1\n";
        assert_eq!(parse_pressure(text), Some(1.25));
        assert_eq!(parse_pressure("full avg10=0.50\n"), None);
    }

    #[test]
    fn iowait_is_a_share_of_the_cpu_time_without_guests() {
        let earlier = CpuTimes::parse("cpu  100 0 100 700 100 0 0 0 50 0\ncpu0 1\n").unwrap();
        assert_eq!(earlier, CpuTimes { iowait: 100, total: 1000 });
        let later = CpuTimes { iowait: 150, total: 1200 };
        assert_eq!(later.iowait_percent_since(earlier), Some(25.0));
        assert_eq!(CpuTimes { iowait: 90, total: 1200 }.iowait_percent_since(earlier), Some(0.0));
        assert_eq!(
            (earlier.iowait_percent_since(earlier), earlier.iowait_percent_since(later)),
            (None, None)
        );
        for malformed in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3", "cpu  1 2 3 x 5 6 7 8"] {
            assert_eq!(CpuTimes::parse(malformed), None, "{malformed}");
        }
    }
}
