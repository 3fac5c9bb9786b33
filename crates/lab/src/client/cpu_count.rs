//! The number of CPUs of a client, and the choice of CPUs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A number of CPUs in thousandths; at least 0.01.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuCount(u32);

const CPU_MILLIS: u32 = 1000;
const MIN_MILLIS: u32 = 10;
const MAX_MILLIS: u32 = 4096 * CPU_MILLIS;
/// CPU quota period. The kernel's default of 100 ms alternates run and pause phases that are visible in latencies; at
/// a few milliseconds, timer ticks make the quota inexact.
const PERIOD_MICROS: u64 = 20_000;
/// The smallest quota that the kernel accepts.
const MIN_QUOTA_MICROS: u64 = 1_000;

impl CpuCount {
    /// Parses a number such as "2", "0.5" or "1.25".
    pub fn parse(text: &str) -> Result<Self, String> {
        let read = text.parse::<f64>().ok().map(|number| (number * f64::from(CPU_MILLIS)).round());
        let read =
            read.filter(|thousandths| (f64::from(MIN_MILLIS)..=f64::from(MAX_MILLIS)).contains(thousandths));
        // The filter above keeps the value in range.
        read.map(|thousandths| Self(thousandths as u32))
            .ok_or_else(|| "expected a number of at least 0.01, such as 2 or 0.5".to_owned())
    }

    /// A whole number of CPUs, at least one.
    #[must_use]
    pub fn from_whole(count: usize) -> Self {
        let max_count = MAX_MILLIS / CPU_MILLIS;
        Self(u32::try_from(count).unwrap_or(max_count).clamp(1, max_count) * CPU_MILLIS)
    }

    /// The number of CPUs in use, including partly used ones.
    #[must_use]
    pub const fn whole_cpus(self) -> usize {
        self.0.div_ceil(CPU_MILLIS) as usize
    }

    /// The number of CPUs as a floating-point number.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(CPU_MILLIS)
    }

    /// Scales the number, rounding down.
    #[must_use]
    pub fn scaled(self, part: f64) -> Self {
        Self(((f64::from(self.0) * part) as u32).clamp(MIN_MILLIS, MAX_MILLIS))
    }

    /// The quota and its period in microseconds; `None` for whole CPUs.
    pub(super) fn quota_micros(self) -> Option<(u64, u64)> {
        if self.0.is_multiple_of(CPU_MILLIS) {
            return None;
        }
        let (part, one) = (u64::from(self.0), u64::from(CPU_MILLIS));
        let period = PERIOD_MICROS.max((MIN_QUOTA_MICROS * one).div_ceil(part));
        Some((period * part / one, period))
    }
}

/// Parses a kernel CPU list such as `0-3,6`.
pub(super) fn parse_cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

pub(super) fn format_cpu_list(cpus: &[usize]) -> String {
    cpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Chooses the CPUs assigned to the fewest other clients, highest numbers first: CPU 0 handles most interrupts.
pub(super) fn choose_cpus(allowed: &[usize], taken: &[usize], count: usize) -> Vec<usize> {
    let mut times: BTreeMap<usize, usize> = BTreeMap::new();
    for cpu in taken {
        *times.entry(*cpu).or_default() += 1;
    }
    let mut order = allowed.to_vec();
    order.sort_by_key(|cpu| (times.get(cpu).copied().unwrap_or_default(), usize::MAX - cpu));
    order.truncate(count.max(1));
    order.sort_unstable();
    order
}

/// The CPUs of all running clients, once per client that has them.
pub(super) fn assigned_cpus(directory: &Path) -> Vec<usize> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let of_group = |entry: fs::DirEntry| {
        let is_client = entry.file_name().to_string_lossy().starts_with("tradewind-lab-client-");
        let given = if is_client {
            fs::read_to_string(entry.path().join("cpuset.cpus")).unwrap_or_default()
        } else {
            String::new()
        };
        let mut list = parse_cpu_list(&given);
        list.extend(assigned_cpus(&entry.path()));
        list
    };
    groups.flat_map(of_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_counts_parse_and_compute_quotas() {
        let parsed = |text| CpuCount::parse(text).unwrap();
        assert_eq!((parsed("2").whole_cpus(), parsed("2").quota_micros()), (2, None));
        assert_eq!((parsed("0.5").whole_cpus(), parsed("0.5").quota_micros()), (1, Some((10_000, 20_000))));
        assert_eq!((parsed("1.25").whole_cpus(), parsed("1.25").quota_micros()), (2, Some((25_000, 20_000))));
        assert_eq!(parsed("0.01").quota_micros(), Some((1_000, 100_000)));
        assert_eq!(CpuCount::from_whole(2).scaled(0.5), CpuCount::from_whole(1));
        for bad in ["", "0", "-1", "0.001", "two", "NaN", "inf", "1e9"] {
            assert!(CpuCount::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpu_lists_parse_and_format() {
        assert_eq!(parse_cpu_list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(parse_cpu_list("\n").is_empty());
        assert_eq!(format_cpu_list(&[0, 1, 5]), "0,1,5");
    }

    #[test]
    fn choose_prefers_unassigned_cpus() {
        assert_eq!(choose_cpus(&[0, 1, 2, 3], &[], 2), [2, 3]);
        assert_eq!(choose_cpus(&[0, 1, 2, 3], &[2, 3, 3], 2), [0, 1]);
        assert_eq!(choose_cpus(&[0, 1], &[0, 1, 1], 1), [0]);
        assert_eq!(choose_cpus(&[4], &[], 3), [4]);
    }
}
