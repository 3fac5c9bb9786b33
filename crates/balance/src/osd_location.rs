//! The host and the data device of each OSD, as `ceph osd metadata --format json` prints them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Where an OSD runs. What the OSD does not report is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct OsdLocation {
    /// Name of its host.
    pub hostname: Option<String>,
    /// Name of its data device, such as `sda`.
    pub device: Option<String>,
}

/// Parses the response to `osd metadata`. An OSD that never ran has no entry, or an empty one.
pub fn parse(metadata: &Value) -> BTreeMap<u32, OsdLocation> {
    let osds = metadata.as_array().into_iter().flatten();
    let locations = osds.filter_map(|osd| {
        let id = u32::try_from(osd.get("id")?.as_u64()?).ok()?;
        let hostname = text(osd, "hostname").map(str::to_owned);
        Some((id, OsdLocation { hostname, device: data_device(osd) }))
    });
    locations.collect()
}

/// The name of this host, as OSDs report theirs.
pub fn this_host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

fn text<'a>(osd: &'a Value, name: &str) -> Option<&'a str> {
    osd.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn data_device(osd: &Value) -> Option<String> {
    // The path of the device itself, where the OSD reports it: for a volume of a disk, the kernel counts the volume's reads.
    let path = text(osd, "bluestore_bdev_partition_path").map(PathBuf::from);
    let name = path.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.or_else(|| text(osd, "bluestore_bdev_devices")?.split(',').next().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn host_and_device_are_those_that_the_osd_reports() {
        let metadata = json!([
            {"id": 0, "hostname": "here", "bluestore_bdev_partition_path": "/dev/loop3", "bluestore_bdev_devices": "sda"},
            {"id": 1, "hostname": "there", "bluestore_bdev_devices": "sdb,sdc"},
            {"id": 3, "hostname": ""},
            {"hostname": "nowhere"},
        ]);
        let location = |hostname: Option<&str>, device: Option<&str>| OsdLocation {
            hostname: hostname.map(str::to_owned),
            device: device.map(str::to_owned),
        };
        let expected = BTreeMap::from([
            (0, location(Some("here"), Some("loop3"))),
            (1, location(Some("there"), Some("sdb"))),
            (3, location(None, None)),
        ]);
        assert_eq!(parse(&metadata), expected);
        assert!(parse(&json!({})).is_empty());
    }
}
