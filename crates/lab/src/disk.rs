//! A slower disk: throttles what a command does in a directory to the limits of a device.
//!
//! For a directory on a block device, limits are set on that device for the command only. Otherwise, or by choice,
//! the directory becomes a new file system on a loop device, throttled for all its users and removed with the
//! command. Limits are bytes and requests per second; seek times cannot be imposed, so a request rate stands in for
//! them.

mod loop_device;
mod place;
mod throttle;

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use self::place::{Place, Seen};
use self::throttle::DeviceNumber;
use crate::cgroup::{Controller, Group, Hierarchy, Version};
pub use crate::device_model::{Profile, Rates};
use crate::failed::{Failed, failed};
use crate::running::Running;

/// Options of a throttled directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskOptions {
    /// The limits.
    pub rates: Rates,
    /// Size in bytes of a new file system mounted at the directory; `None` creates one only if the directory is not
    /// on a block device.
    pub file_system: Option<u64>,
    /// Maximum dirty bytes of a new file system; `None` for the kernel's default, a fraction of the machine's memory.
    pub write_behind: Option<u64>,
}

/// The limits in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// The throttled device, such as /dev/loop0 or 254:0.
    pub device: String,
    /// Size in bytes of a new file system; `None` if the existing one is used.
    pub file_system: Option<u64>,
    /// The limits.
    pub rates: Rates,
    /// True if kernel writeback is throttled as well, not only reads and synchronous writes.
    pub later_writes: bool,
}

/// A running command with a throttled disk.
#[derive(Debug)]
pub struct Disk {
    // Drop order: the command ends before its limits, which are lifted before the file system is unmounted.
    running: Running,
    _limits: LimitsGuard,
    _place: Option<Place>,
}

/// Lifts the limits when dropped, after killing the command's processes.
#[derive(Debug)]
struct LimitsGuard {
    _group: Group,
    _v1_limits: Option<V1Limits>,
}

/// Limits in groups that this module did not create (version 1): the root group, which contains the kernel threads,
/// and the group of this process.
#[derive(Debug)]
struct V1Limits {
    hierarchy: Hierarchy,
    device: DeviceNumber,
}

impl V1Limits {
    fn bound(hierarchy: Hierarchy, device: DeviceNumber, rates: Rates) -> Result<Self, Failed> {
        let bounds = Self { hierarchy, device };
        for directory in bounds.directories() {
            throttle::set(directory, device, rates)?;
        }
        Ok(bounds)
    }

    fn directories(&self) -> [&Path; 2] {
        [&self.hierarchy.mounted, &self.hierarchy.own]
    }
}

impl Drop for V1Limits {
    fn drop(&mut self) {
        for directory in self.directories() {
            // Nothing can be done about a failure, and the device is about to be removed.
            let _ = throttle::set(directory, self.device, Rates::default());
        }
    }
}

impl Disk {
    /// Starts a command with a throttled directory. If a file system is created, the calling thread moves to a mount
    /// namespace of its own, which the command shares. The command is killed when the value is dropped or the calling
    /// thread ends. `on_ready` receives the limits in force before the command starts.
    pub fn start(
        options: DiskOptions,
        directory: &Path,
        command: &[OsString],
        on_ready: &mut dyn FnMut(&InForce),
    ) -> Result<Self, Failed> {
        lift_leftovers();
        let device = device_of(directory)?;
        let (Some(device), None) = (device, options.file_system) else {
            return Self::start_on_new(options, directory, command, on_ready);
        };
        if options.write_behind.is_some() {
            let why = "the device is shared with other processes; use a new file system (--loop)";
            return Err(failed("limit write-behind")(std::io::Error::other(why)));
        }
        let group = limited_group(device, options.rates)?;
        let later_writes = group.version(Controller::Devices) == Some(Version::Two);
        let device = format!("{}:{}", device.major, device.minor);
        on_ready(&InForce { device, file_system: None, rates: options.rates, later_writes });
        let running = group.start(command)?;
        let bounds = LimitsGuard { _group: group, _v1_limits: None };
        Ok(Self { running, _limits: bounds, _place: None })
    }

    fn start_on_new(
        options: DiskOptions,
        directory: &Path,
        command: &[OsString],
        on_ready: &mut dyn FnMut(&InForce),
    ) -> Result<Self, Failed> {
        let place = Place::make(directory, options.file_system, Seen::ByThisThread)?;
        let device = place.device();
        let mut in_force = place.in_force(options.rates);
        place.prepare(options)?;
        let hierarchy = Hierarchy::find(Controller::Devices)?;
        let (group, v1_limits) = if hierarchy.version == Version::Two {
            (limited_group(device, options.rates)?, None)
        } else {
            in_force.later_writes = hierarchy.is_whole();
            let v1_limits = V1Limits::bound(hierarchy, device, options.rates)?;
            // This group limits nothing; it tracks the command's processes.
            (Group::make("disk", &[], &[Controller::Processes])?, Some(v1_limits))
        };
        on_ready(&in_force);
        let running = group.start(command)?;
        let bounds = LimitsGuard { _group: group, _v1_limits: v1_limits };
        Ok(Self { running, _limits: bounds, _place: Some(place) })
    }

    /// A pidfd of the command's process. It never refers to a process that reused the PID.
    pub fn process(&self) -> Result<OwnedFd, Failed> {
        self.running.process()
    }

    /// The command's PID.
    #[must_use]
    pub fn process_number(&self) -> u32 {
        self.running.number()
    }

    /// Waits for the command to exit. A file system created for it is removed.
    pub fn wait(mut self) -> Result<ExitStatus, Failed> {
        self.running.wait()
    }
}

/// Throttles a directory for all processes until [`down`].
pub fn up(options: DiskOptions, directory: &Path) -> Result<InForce, Failed> {
    lift_leftovers();
    let hierarchy = Hierarchy::find(Controller::Devices)?;
    if hierarchy.version == Version::Two {
        let why = "cgroup v2 cannot limit a device for all processes; pass a command to run";
        return Err(failed("throttle a directory for all processes")(std::io::Error::other(why)));
    }
    let place = Place::make(directory, options.file_system, Seen::ByAll)?;
    let mut in_force = place.in_force(options.rates);
    in_force.later_writes = hierarchy.is_whole();
    place.prepare(options)?;
    let bounds = V1Limits::bound(hierarchy, place.device(), options.rates)?;
    // The limits outlive this process.
    std::mem::forget(bounds);
    place.leave();
    Ok(in_force)
}

/// Removes the file system that [`up`] created at a directory, with everything written there.
pub fn down(directory: &Path) -> Result<(), Failed> {
    let number = place::made_at(directory)?;
    let device = DeviceNumber { major: throttle::LOOP_MAJOR, minor: number };
    place::wait_until_unused(directory)?;
    let groups: Vec<PathBuf> =
        Hierarchy::find(Controller::Devices).map(|found| vec![found.mounted, found.own]).unwrap_or_default();
    let previous: Vec<Rates> = groups.iter().map(|group| throttle::rates(group, device)).collect();
    // Otherwise the unmount would write back dirty pages at the limited rate.
    let lift_limits = |group: &PathBuf| throttle::set(group, device, Rates::default());
    let lifted: Vec<Result<(), Failed>> = groups.iter().map(lift_limits).collect();
    if let Err(why) = place::unmount(directory, number) {
        // A file system that remains mounted keeps its limits.
        groups.iter().zip(previous).try_for_each(|(group, rates)| throttle::set(group, device, rates))?;
        return Err(why);
    }
    // A remaining limit would apply to the next user of the device.
    lifted.into_iter().collect()
}

/// A group with limits on a device.
fn limited_group(device: DeviceNumber, rates: Rates) -> Result<Group, Failed> {
    if Hierarchy::find(Controller::Devices)?.version == Version::Two {
        // Writeback is charged to the group that owns the dirty pages, which needs the memory controller.
        let group = Group::make("disk", &[Controller::Devices, Controller::Memory], &[])?;
        group.set(Controller::Devices, "io.max", &throttle::line(device, rates))?;
        return Ok(group);
    }
    let group = Group::make("disk", &[Controller::Devices], &[])?;
    if let (Some(hierarchy), Some(directory)) =
        (group.hierarchy(Controller::Devices), group.directory(Controller::Devices))
    {
        throttle::inherit(&hierarchy.own, directory)?;
        throttle::set(directory, device, rates)?;
    }
    Ok(group)
}

fn lift_leftovers() {
    place::lift_leftovers();
    if let Ok(hierarchy) = Hierarchy::find(Controller::Devices) {
        throttle::lift_leftovers(&hierarchy.mounted);
        throttle::lift_leftovers(&hierarchy.own);
    }
}

fn device_of(directory: &Path) -> Result<Option<DeviceNumber>, Failed> {
    let metadata = fs::metadata(directory).map_err(failed(format!("find {}", directory.display())))?;
    Ok(throttle::device_of(metadata.dev()))
}
