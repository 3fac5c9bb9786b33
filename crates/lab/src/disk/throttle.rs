//! Bounds on what a block device is asked for, in a control group: bytes and requests a second, reads and writes apart.
//!
//! Version 1 bounds what a process asks for itself: reads, direct and synchronous writes, and what it flushes. What the
//! kernel writes back later it does in the name of the root group, so that only a bound there holds for it. Groups of
//! version 1 do not add up: a group has its own bounds only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::loop_device;
use crate::device_model::Rates;
use crate::failed::{Failed, failed};

/// A block device, by the numbers that the kernel knows it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

/// The major number of all loop devices.
pub(super) const LOOP_MAJOR: u32 = 7;

const BANDWIDTHS: [&str; 2] = ["read_bps", "write_bps"];
const REQUESTS: [&str; 2] = ["read_iops", "write_iops"];

impl DeviceNumber {
    fn show(self) -> String {
        format!("{}:{}", self.major, self.minor)
    }
}

fn file(what: &str) -> String {
    format!("blkio.throttle.{what}_device")
}

fn each(rates: Rates) -> [(&'static str, Option<u64>); 4] {
    [
        (BANDWIDTHS[0], rates.read_bandwidth),
        (BANDWIDTHS[1], rates.write_bandwidth),
        (REQUESTS[0], rates.read_requests),
        (REQUESTS[1], rates.write_requests),
    ]
}

/// Sets the bounds of version 1 in a group's directory.
pub(super) fn set(directory: &Path, device: DeviceNumber, rates: Rates) -> Result<(), Failed> {
    for (what, rate) in each(rates) {
        // Zero is the kernel's word for none.
        write(directory, what, device, rate.unwrap_or(0))?;
    }
    Ok(())
}

/// The bounds of version 1 that a device has in a group's directory.
pub(super) fn rates(directory: &Path, device: DeviceNumber) -> Rates {
    let rate = |what| bounds(directory, what).into_iter().find(|(of, _)| *of == device).map(|(_, rate)| rate);
    Rates {
        read_bandwidth: rate(BANDWIDTHS[0]),
        write_bandwidth: rate(BANDWIDTHS[1]),
        read_requests: rate(REQUESTS[0]),
        write_requests: rate(REQUESTS[1]),
    }
}

fn write(directory: &Path, what: &str, device: DeviceNumber, rate: u64) -> Result<(), Failed> {
    let path = directory.join(file(what));
    let what = || format!("slow device {} by {}", device.show(), path.display());
    match fs::write(&path, format!("{} {rate}", device.show())) {
        // A kernel without bounds has no bounds to lift.
        Err(e) if rate == 0 && e.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done.map_err(failed(what())),
    }
}

/// The bounds of version 2, in one line.
pub(super) fn line(device: DeviceNumber, rates: Rates) -> String {
    let or_none = |rate: Option<u64>| rate.map_or("max".to_owned(), |rate| rate.to_string());
    format!(
        "{} rbps={} wbps={} riops={} wiops={}",
        device.show(),
        or_none(rates.read_bandwidth),
        or_none(rates.write_bandwidth),
        or_none(rates.read_requests),
        or_none(rates.write_requests)
    )
}

/// Gives a new group of version 1 the bounds of the one that it replaces, since they do not add up by themselves.
pub(super) fn inherit(from: &Path, to: &Path) -> Result<(), Failed> {
    for what in BANDWIDTHS.into_iter().chain(REQUESTS) {
        for (device, rate) in bounds(from, what) {
            write(to, what, device, rate)?;
        }
    }
    Ok(())
}

/// Lifts the bounds of loop devices that have no file: whoever set them was killed.
pub(super) fn lift_leftovers(directory: &Path) {
    for what in BANDWIDTHS.into_iter().chain(REQUESTS) {
        for (device, _) in bounds(directory, what) {
            if device.major == LOOP_MAJOR && !loop_device::is_attached(device.minor) {
                // A bound on what nobody uses harms nobody, so that it may stay.
                let _ = write(directory, what, device, 0);
            }
        }
    }
}

fn bounds(directory: &Path, what: &str) -> Vec<(DeviceNumber, u64)> {
    parse(&fs::read_to_string(directory.join(file(what))).unwrap_or_default())
}

/// Reads lines as "7:0 1048576".
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

/// The device on which a directory lies, the whole one where it is a part of one; `None` where it is on none, as in
/// memory.
pub(super) fn device_of(number: u64) -> Option<DeviceNumber> {
    let device = DeviceNumber { major: libc::major(number), minor: libc::minor(number) };
    let told = PathBuf::from(format!("/sys/dev/block/{}", device.show()));
    if device.major == 0 || !told.exists() {
        return None;
    }
    if !told.join("partition").exists() {
        return Some(device);
    }
    let whole = fs::read_to_string(told.canonicalize().ok()?.parent()?.join("dev")).ok()?;
    let (major, minor) = whole.trim().split_once(':')?;
    Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceNumber = DeviceNumber { major: 7, minor: 3 };

    #[test]
    fn bounds_are_read_and_written_as_the_kernel_does() {
        assert_eq!(parse("7:3 100\n254:0 5\nnonsense\n").len(), 2);
        assert_eq!(parse("7:3 100\n")[0], (DEVICE, 100));
        let rates = Rates { read_bandwidth: Some(5), write_requests: Some(6), ..Rates::default() };
        assert_eq!(line(DEVICE, rates), "7:3 rbps=5 wbps=max riops=max wiops=6");
        assert_eq!(line(DEVICE, Rates::default()), "7:3 rbps=max wbps=max riops=max wiops=max");
    }

    #[test]
    fn what_lies_in_memory_lies_on_no_device() {
        assert_eq!(device_of(libc::makedev(0, 25)), None);
    }
}
