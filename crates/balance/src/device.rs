//! Block devices of OSDs on this host: how long their reads take and how busy they are, from the kernel's counters
//! (`/sys/class/block/NAME/stat`, described in the kernel's `Documentation/block/stat.rst`).

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Maximum length of a device's name in bytes: that of a file name in `/sys`.
const MAX_NAME_BYTES: usize = 255;

/// Counters of a device since it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Completed reads.
    pub reads: u64,
    /// Sum of their times in milliseconds, with the time in the device's queue.
    pub read_millis: u64,
    /// Milliseconds with a request in flight.
    pub busy_millis: u64,
}

impl DeviceCounters {
    /// Reads the counters of a device such as `sda` or `loop3`. The name may come from another host: one that could lead
    /// out of the directory is rejected.
    pub fn read(device: &str) -> Result<Self> {
        let path = Path::new("/sys/class/block").join(device).join("stat");
        let malformed = |message: String| Error::Malformed { command: path.display().to_string(), message };
        if !is_device_name(device) {
            return Err(malformed("not the name of a block device".to_owned()));
        }
        let text = std::fs::read_to_string(&path).map_err(|e| malformed(e.to_string()))?;
        Self::parse(&text).ok_or_else(|| malformed(format!("unexpected contents {text:?}")))
    }

    /// The fields are: reads, merged reads, sectors read, milliseconds of reads, the same of writes, requests in flight,
    /// milliseconds with requests in flight. Others follow.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_whitespace().map(str::parse);
        let reads = fields.next()?.ok()?;
        let read_millis = fields.nth(2)?.ok()?;
        let busy_millis = fields.nth(5)?.ok()?;
        Some(Self { reads, read_millis, busy_millis })
    }

    /// The mean time of a read in milliseconds since an earlier sample; `None` without reads.
    pub fn await_since(self, earlier: Self) -> Option<f64> {
        let reads = self.reads.checked_sub(earlier.reads).filter(|reads| *reads > 0)?;
        Some(self.read_millis.checked_sub(earlier.read_millis)? as f64 / reads as f64)
    }

    /// The share of the time since an earlier sample in which requests were in flight, from 0 to 1.
    pub fn busy_since(self, earlier: Self, elapsed: Duration) -> Option<f64> {
        let busy = self.busy_millis.checked_sub(earlier.busy_millis)?;
        // The counter has a resolution of a few milliseconds.
        (!elapsed.is_zero()).then(|| (busy as f64 / 1e3 / elapsed.as_secs_f64()).min(1.0))
    }
}

/// Returns true for a name that is one component of a path.
fn is_device_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.!:".contains(c);
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.starts_with('.') && name.chars().all(is_plain)
}

/// Stand-in for %iowait: 100 × (1 - lowest await of all / own await), from 0 for the fastest device towards 100. OSDs without
/// reads get 0.
///
/// %iowait is a property of a host. Where several OSDs share one, or where it reads 0, it cannot tell them apart.
pub fn iowait_stand_in(awaits: &[Option<f64>]) -> Vec<f64> {
    let lowest = awaits.iter().flatten().copied().filter(|wait| *wait > 0.0).fold(f64::INFINITY, f64::min);
    let signal = |wait: &Option<f64>| {
        wait.filter(|wait| *wait > 0.0).map_or(0.0, |wait| 100.0 * (1.0 - lowest / wait))
    };
    awaits.iter().map(signal).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_those_of_reads_and_of_busy_time() {
        let counters = DeviceCounters::parse("  1500 2 3000 45000 7 8 9 10 0 1100 12\n").unwrap();
        assert_eq!(counters, DeviceCounters { reads: 1500, read_millis: 45_000, busy_millis: 1100 });
        assert_eq!(DeviceCounters::parse("1 2 3 4 5 6 7 8 9"), None);
        let later = DeviceCounters { reads: 1510, read_millis: 47_000, busy_millis: 1600 };
        assert_eq!(later.await_since(counters), Some(200.0));
        assert_eq!((later.await_since(later), counters.await_since(later)), (None, None));
        assert_eq!(later.busy_since(counters, Duration::from_secs(2)), Some(0.25));
        assert_eq!(later.busy_since(counters, Duration::from_millis(490)), Some(1.0));
        assert_eq!(counters.busy_since(later, Duration::from_secs(2)), None);
        assert_eq!(later.busy_since(counters, Duration::ZERO), None);
    }

    #[test]
    fn name_that_leads_out_of_the_directory_is_rejected() {
        for name in ["", ".", "..", "../../block/sda", "a/b", ".hidden", "a\0b", &"a".repeat(300)] {
            let error = DeviceCounters::read(name).unwrap_err();
            assert!(error.to_string().contains("not the name of a block device"), "{name}: {error}");
        }
        assert!(["sda", "loop3", "dm-0", "nvme0n1p2", "cciss!c0d0"].into_iter().all(is_device_name));
    }

    #[test]
    fn stand_in_is_zero_for_the_fastest_and_grows_with_the_await() {
        let signals = iowait_stand_in(&[Some(50.0), Some(200.0), None, Some(100.0)]);
        assert_eq!(signals, [0.0, 75.0, 0.0, 50.0]);
        assert_eq!(iowait_stand_in(&[None, None]), [0.0, 0.0]);
    }
}
