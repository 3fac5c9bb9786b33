//! Block devices of OSDs on this host: how long their reads take, from the kernel's counters
//! (`/sys/class/block/NAME/stat`, described in the kernel's `Documentation/block/stat.rst`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};

/// Completed reads of a device since it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceCounters {
    /// Completed reads.
    pub reads: u64,
    /// Sum of their times in milliseconds, with the time in the device's queue.
    pub read_millis: u64,
}

impl DeviceCounters {
    /// Reads the counters of a device such as `sda` or `loop3`.
    pub fn read(device: &str) -> Result<Self> {
        let path = Path::new("/sys/class/block").join(device).join("stat");
        let malformed = |message: String| Error::Malformed { command: path.display().to_string(), message };
        let text = std::fs::read_to_string(&path).map_err(|e| malformed(e.to_string()))?;
        Self::parse(&text).ok_or_else(|| malformed(format!("unexpected contents {text:?}")))
    }

    /// The fields are: reads, merged reads, sectors read, milliseconds of reads, then those of writes.
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split_whitespace().map(str::parse);
        let reads = fields.next()?.ok()?;
        let read_millis = fields.nth(2)?.ok()?;
        Some(Self { reads, read_millis })
    }

    /// The mean time of a read in milliseconds since an earlier sample; `None` without reads.
    pub fn await_since(self, earlier: Self) -> Option<f64> {
        let reads = self.reads.checked_sub(earlier.reads).filter(|reads| *reads > 0)?;
        Some(self.read_millis.checked_sub(earlier.read_millis)? as f64 / reads as f64)
    }
}

/// The data devices of OSDs on the host `hostname`, by OSD, from the response to `osd metadata`.
pub fn devices_on(hostname: &str, metadata: &Value) -> BTreeMap<u32, String> {
    let osds = metadata.as_array().into_iter().flatten();
    let local = osds.filter(|osd| osd.get("hostname").and_then(Value::as_str) == Some(hostname));
    let devices = local.filter_map(|osd| {
        let id = u32::try_from(osd.get("id")?.as_u64()?).ok()?;
        Some((id, data_device(osd)?))
    });
    devices.collect()
}

fn data_device(osd: &Value) -> Option<String> {
    let text = |name: &str| osd.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    // The path of the device itself, where the OSD reports it: for a volume of a disk, the kernel counts the volume's reads.
    let path = text("bluestore_bdev_partition_path").map(PathBuf::from);
    let name = path.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.or_else(|| text("bluestore_bdev_devices")?.split(',').next().map(str::to_owned))
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
    use serde_json::json;

    use super::*;

    #[test]
    fn counters_are_the_first_and_fourth_field() {
        let counters = DeviceCounters::parse("  1500 2 3000 45000 7 8 9 10 0 11 12\n").unwrap();
        assert_eq!(counters, DeviceCounters { reads: 1500, read_millis: 45_000 });
        assert_eq!(DeviceCounters::parse("1 2 3"), None);
        let later = DeviceCounters { reads: 1510, read_millis: 47_000 };
        assert_eq!(later.await_since(counters), Some(200.0));
        assert_eq!((later.await_since(later), counters.await_since(later)), (None, None));
    }

    #[test]
    fn devices_are_those_of_this_host() {
        let metadata = json!([
            {"id": 0, "hostname": "here", "bluestore_bdev_partition_path": "/dev/loop3", "bluestore_bdev_devices": "sda"},
            {"id": 1, "hostname": "here", "bluestore_bdev_devices": "sdb,sdc"},
            {"id": 2, "hostname": "there", "bluestore_bdev_devices": "sdd"},
            {"id": 3, "hostname": "here"},
        ]);
        let expected = BTreeMap::from([(0, "loop3".to_owned()), (1, "sdb".to_owned())]);
        assert_eq!(devices_on("here", &metadata), expected);
        assert!(devices_on("here", &json!({})).is_empty());
    }

    #[test]
    fn stand_in_is_zero_for_the_fastest_and_grows_with_the_await() {
        let signals = iowait_stand_in(&[Some(50.0), Some(200.0), None, Some(100.0)]);
        assert_eq!(signals, [0.0, 75.0, 0.0, 50.0]);
        assert_eq!(iowait_stand_in(&[None, None]), [0.0, 0.0]);
    }
}
