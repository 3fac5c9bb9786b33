//! How many processors a client has, and which.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A number of processors in thousandths; at least a hundredth of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Processors(u32);

const ONE: u32 = 1000;
const LEAST: u32 = 10;
const MOST: u32 = 4096 * ONE;
/// After so long a part of a processor is free again. The kernel's own choice, 100 ms, lets a client run and stand
/// still in turns that are seen in latencies; at a few milliseconds its ticks make it inexact.
const PERIOD_MICROS: u64 = 20_000;
/// The kernel takes no quota that is less.
const LEAST_QUOTA_MICROS: u64 = 1_000;

impl Processors {
    /// Reads "2", "0.5", "1.25".
    pub fn parse(text: &str) -> Result<Self, String> {
        let read = text.parse::<f64>().ok().map(|number| (number * f64::from(ONE)).round());
        let read = read.filter(|thousandths| (f64::from(LEAST)..=f64::from(MOST)).contains(thousandths));
        // Within bounds that it fits into.
        read.map(|thousandths| Self(thousandths as u32))
            .ok_or_else(|| "write it as 2 or 0.5, from 0.01 on".to_owned())
    }

    /// So many whole ones; one at the least.
    #[must_use]
    pub fn of(count: usize) -> Self {
        Self(u32::try_from(count).unwrap_or(MOST / ONE).clamp(1, MOST / ONE) * ONE)
    }

    /// Those that are used, be it for a part of the time.
    #[must_use]
    pub const fn whole(self) -> usize {
        self.0.div_ceil(ONE) as usize
    }

    /// As a number.
    #[must_use]
    pub fn as_number(self) -> f64 {
        f64::from(self.0) / f64::from(ONE)
    }

    /// A part of it, rounded down, as a client of the same proportions has on a smaller machine.
    #[must_use]
    pub fn times(self, part: f64) -> Self {
        Self(((f64::from(self.0) * part) as u32).clamp(LEAST, MOST))
    }

    /// The quota of time and its period, in microseconds; `None`: those that are used are used wholly.
    pub(super) fn quota_micros(self) -> Option<(u64, u64)> {
        if self.0.is_multiple_of(ONE) {
            return None;
        }
        let (part, one) = (u64::from(self.0), u64::from(ONE));
        let period = PERIOD_MICROS.max((LEAST_QUOTA_MICROS * one).div_ceil(part));
        Some((period * part / one, period))
    }
}

/// Reads a list as the kernel writes it: 0-3,6.
pub(super) fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

pub(super) fn show_list(processors: &[usize]) -> String {
    processors.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Those that fewest others have been given, the last ones first: the first has most of the machine's interrupts.
pub(super) fn choose(allowed: &[usize], taken: &[usize], count: usize) -> Vec<usize> {
    let mut times: BTreeMap<usize, usize> = BTreeMap::new();
    for processor in taken {
        *times.entry(*processor).or_default() += 1;
    }
    let mut order = allowed.to_vec();
    order
        .sort_by_key(|processor| (times.get(processor).copied().unwrap_or_default(), usize::MAX - processor));
    order.truncate(count.max(1));
    order.sort_unstable();
    order
}

/// The processors of clients that run now, each as often as it was given.
pub(super) fn taken(directory: &Path) -> Vec<usize> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let of_group = |entry: fs::DirEntry| {
        let is_client = entry.file_name().to_string_lossy().starts_with("tradewind-lab-client-");
        let given = if is_client {
            fs::read_to_string(entry.path().join("cpuset.cpus")).unwrap_or_default()
        } else {
            String::new()
        };
        let mut list = parse_list(&given);
        list.extend(taken(&entry.path()));
        list
    };
    groups.flat_map(of_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        let parsed = |text| Processors::parse(text).unwrap();
        assert_eq!((parsed("2").whole(), parsed("2").quota_micros()), (2, None));
        assert_eq!((parsed("0.5").whole(), parsed("0.5").quota_micros()), (1, Some((10_000, 20_000))));
        assert_eq!((parsed("1.25").whole(), parsed("1.25").quota_micros()), (2, Some((25_000, 20_000))));
        assert_eq!(parsed("0.01").quota_micros(), Some((1_000, 100_000)));
        assert_eq!(Processors::of(2).times(0.5), Processors::of(1));
        for bad in ["", "0", "-1", "0.001", "two", "NaN", "inf", "1e9"] {
            assert!(Processors::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists() {
        assert_eq!(parse_list("0-2,5\n"), [0, 1, 2, 5]);
        assert!(parse_list("\n").is_empty());
        assert_eq!(show_list(&[0, 1, 5]), "0,1,5");
    }

    #[test]
    fn clients_get_out_of_each_others_way() {
        assert_eq!(choose(&[0, 1, 2, 3], &[], 2), [2, 3]);
        assert_eq!(choose(&[0, 1, 2, 3], &[2, 3, 3], 2), [0, 1]);
        assert_eq!(choose(&[0, 1], &[0, 1, 1], 1), [0]);
        assert_eq!(choose(&[4], &[], 3), [4]);
    }
}
