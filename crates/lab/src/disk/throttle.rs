//! Limits on a block device in a control group: bytes and requests per second, for reads and writes separately.
//!
//! Version 1 limits the I/O that a process itself issues: reads, direct and synchronous writes, and flushes. The
//! kernel writes back dirty pages on behalf of the root group, so only a limit there applies to them. Limits of
//! version 1 are not hierarchical: each group has only its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::loop_device;
use crate::device_model::IoLimits;
use crate::error::{LabError, cannot};

/// A block device's major and minor number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

/// Major number of all loop devices.
pub(super) const LOOP_MAJOR: u32 = 7;

const BANDWIDTHS: [&str; 2] = ["read_bps", "write_bps"];
const REQUESTS: [&str; 2] = ["read_iops", "write_iops"];

impl DeviceNumber {
    fn format(self) -> String {
        format!("{}:{}", self.major, self.minor)
    }
}

fn limit_file(what: &str) -> String {
    format!("blkio.throttle.{what}_device")
}

fn named_limits(rates: IoLimits) -> [(&'static str, Option<u64>); 4] {
    [
        (BANDWIDTHS[0], rates.read_bytes_per_second),
        (BANDWIDTHS[1], rates.write_bytes_per_second),
        (REQUESTS[0], rates.read_iops),
        (REQUESTS[1], rates.write_iops),
    ]
}

/// Sets the version 1 limits in a group's directory.
pub(super) fn set_v1(directory: &Path, device: DeviceNumber, rates: IoLimits) -> Result<(), LabError> {
    for (what, rate) in named_limits(rates) {
        // Zero removes a limit.
        write(directory, what, device, rate.unwrap_or(0))?;
    }
    Ok(())
}

/// The version 1 limits of a device in a group's directory.
pub(super) fn read_v1(directory: &Path, device: DeviceNumber) -> IoLimits {
    let rate =
        |what| read_limits(directory, what).into_iter().find(|(of, _)| *of == device).map(|(_, rate)| rate);
    IoLimits {
        read_bytes_per_second: rate(BANDWIDTHS[0]),
        write_bytes_per_second: rate(BANDWIDTHS[1]),
        read_iops: rate(REQUESTS[0]),
        write_iops: rate(REQUESTS[1]),
    }
}

fn write(directory: &Path, what: &str, device: DeviceNumber, rate: u64) -> Result<(), LabError> {
    let path = directory.join(limit_file(what));
    let what = || format!("throttle device {} by {}", device.format(), path.display());
    match fs::write(&path, format!("{} {rate}", device.format())) {
        // A kernel without throttling has no limits to remove.
        Err(e) if rate == 0 && e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(cannot(what())),
    }
}

/// The limits of a device as a version 2 `io.max` line.
pub(super) fn io_max_line(device: DeviceNumber, rates: IoLimits) -> String {
    let or_none = |rate: Option<u64>| rate.map_or("max".to_owned(), |rate| rate.to_string());
    format!(
        "{} rbps={} wbps={} riops={} wiops={}",
        device.format(),
        or_none(rates.read_bytes_per_second),
        or_none(rates.write_bytes_per_second),
        or_none(rates.read_iops),
        or_none(rates.write_iops)
    )
}

/// Copies the limits of the parent group to a new version 1 group, because they are not inherited.
pub(super) fn inherit_v1(from: &Path, to: &Path) -> Result<(), LabError> {
    for what in BANDWIDTHS.into_iter().chain(REQUESTS) {
        for (device, rate) in read_limits(from, what) {
            write(to, what, device, rate)?;
        }
    }
    Ok(())
}

/// Removes limits of detached loop devices, left by processes that were killed.
pub(super) fn lift_stale_limits(directory: &Path) {
    for what in BANDWIDTHS.into_iter().chain(REQUESTS) {
        for (device, _) in read_limits(directory, what) {
            if device.major == LOOP_MAJOR && !loop_device::is_attached(device.minor) {
                // A limit on an unused device is harmless and may stay.
                let _ = write(directory, what, device, 0);
            }
        }
    }
}

fn read_limits(directory: &Path, what: &str) -> Vec<(DeviceNumber, u64)> {
    parse(&fs::read_to_string(directory.join(limit_file(what))).unwrap_or_default())
}

/// Parses lines such as "7:0 1048576".
fn parse(text: &str) -> Vec<(DeviceNumber, u64)> {
    let bound = |line: &str| {
        let (device, rate) = line.split_once(' ')?;
        let (major, minor) = device.split_once(':')?;
        Some((
            DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? },
            rate.trim().parse().ok()?,
        ))
    };
    text.lines().filter_map(bound).collect()
}

/// The whole disk on which a directory is stored, even if on a partition; `None` if it is not on a block device, such
/// as tmpfs.
pub(super) fn block_device(number: u64) -> Option<DeviceNumber> {
    let device = DeviceNumber { major: libc::major(number), minor: libc::minor(number) };
    let sys_path = PathBuf::from(format!("/sys/dev/block/{}", device.format()));
    if device.major == 0 || !sys_path.exists() {
        return None;
    }
    if !sys_path.join("partition").exists() {
        return Some(device);
    }
    let whole = fs::read_to_string(sys_path.canonicalize().ok()?.parent()?.join("dev")).ok()?;
    let (major, minor) = whole.trim().split_once(':')?;
    Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceNumber = DeviceNumber { major: 7, minor: 3 };

    #[test]
    fn limits_match_the_kernels_format() {
        assert_eq!(parse("7:3 100\n254:0 5\nnonsense\n").len(), 2);
        assert_eq!(parse("7:3 100\n")[0], (DEVICE, 100));
        let rates = IoLimits { read_bytes_per_second: Some(5), write_iops: Some(6), ..IoLimits::default() };
        assert_eq!(io_max_line(DEVICE, rates), "7:3 rbps=5 wbps=max riops=max wiops=6");
        assert_eq!(io_max_line(DEVICE, IoLimits::default()), "7:3 rbps=max wbps=max riops=max wiops=max");
    }

    #[test]
    fn device_of_tmpfs_is_none() {
        assert_eq!(block_device(libc::makedev(0, 25)), None);
    }
}
