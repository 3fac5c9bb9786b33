//! A slower disk: throttles what a command does in a directory to the limits of a device.
//!
//! For a directory on a block device, limits are set on that device for the command only. Otherwise, or by choice,
//! the directory becomes a new file system on a loop device, throttled for all its users and removed with the
//! command. Limits are bytes and requests per second; seek times cannot be imposed, so a request rate stands in for
//! them.

mod disk_mount;
mod loop_device;
mod throttle;

use std::ffi::OsString;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use self::disk_mount::{DiskMount, MountVisibility};
use self::throttle::DeviceNumber;
use crate::cgroup::{CgroupVersion, Controller, Group, Hierarchy};
pub use crate::device_model::{DeviceProfile, IoLimits};
use crate::error::{LabError, cannot};
use crate::running_command::RunningCommand;

/// Options of a throttled directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskOptions {
    /// The limits.
    pub limits: IoLimits,
    /// Size in bytes of a new file system mounted at the directory; `None` creates one only if the directory is not
    /// on a block device.
    pub file_system_bytes: Option<u64>,
    /// Maximum dirty bytes of a new file system; `None` for the kernel's default, a fraction of the machine's memory.
    pub max_dirty_bytes: Option<u64>,
}

/// The limits in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedLimits {
    /// The throttled device, such as /dev/loop0 or 254:0.
    pub device: String,
    /// Size in bytes of a new file system; `None` if the existing one is used.
    pub file_system_bytes: Option<u64>,
    /// The limits.
    pub limits: IoLimits,
    /// True if kernel writeback is throttled as well, not only reads and synchronous writes.
    pub limits_writeback: bool,
}

/// A running command with a throttled disk.
#[derive(Debug)]
pub struct Disk {
    // Drop order: the command ends before its limits, which are lifted before the file system is unmounted.
    running: RunningCommand,
    _limits: LimitsGuard,
    _mount: Option<DiskMount>,
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
    fn set(hierarchy: Hierarchy, device: DeviceNumber, rates: IoLimits) -> Result<Self, LabError> {
        let limits_guard = Self { hierarchy, device };
        for directory in limits_guard.directories() {
            throttle::set_v1(directory, device, rates)?;
        }
        Ok(limits_guard)
    }

    fn directories(&self) -> [&Path; 2] {
        [&self.hierarchy.mount_point, &self.hierarchy.own_group]
    }
}

impl Drop for V1Limits {
    fn drop(&mut self) {
        for directory in self.directories() {
            // Nothing can be done about a failure, and the device is about to be removed.
            let _ = throttle::set_v1(directory, self.device, IoLimits::default());
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
        on_ready: &mut dyn FnMut(&AppliedLimits),
    ) -> Result<Self, LabError> {
        clear_leftovers();
        let device = find_block_device(directory)?;
        let (Some(device), None) = (device, options.file_system_bytes) else {
            return Self::start_on_new(options, directory, command, on_ready);
        };
        if options.max_dirty_bytes.is_some() {
            let why = "the device is shared with other processes; use a new file system (--loop)";
            return Err(cannot("limit write-behind")(std::io::Error::other(why)));
        }
        let group = limited_group(device, options.limits)?;
        let limits_writeback = group.version(Controller::BlockIo) == Some(CgroupVersion::V2);
        let device = format!("{}:{}", device.major, device.minor);
        on_ready(&AppliedLimits {
            device,
            file_system_bytes: None,
            limits: options.limits,
            limits_writeback,
        });
        let running = group.start(command)?;
        let limits_guard = LimitsGuard { _group: group, _v1_limits: None };
        Ok(Self { running, _limits: limits_guard, _mount: None })
    }

    fn start_on_new(
        options: DiskOptions,
        directory: &Path,
        command: &[OsString],
        on_ready: &mut dyn FnMut(&AppliedLimits),
    ) -> Result<Self, LabError> {
        let mount = DiskMount::create(directory, options.file_system_bytes, MountVisibility::ThisThread)?;
        let device = mount.device();
        let mut applied_limits = mount.applied_limits(options.limits);
        mount.prepare(options)?;
        let hierarchy = Hierarchy::find(Controller::BlockIo)?;
        let (group, v1_limits) = if hierarchy.version == CgroupVersion::V2 {
            (limited_group(device, options.limits)?, None)
        } else {
            applied_limits.limits_writeback = hierarchy.is_machine_root();
            let v1_limits = V1Limits::set(hierarchy, device, options.limits)?;
            // This group limits nothing; it tracks the command's processes.
            (Group::create("disk", &[], &[Controller::Pids])?, Some(v1_limits))
        };
        on_ready(&applied_limits);
        let running = group.start(command)?;
        let limits_guard = LimitsGuard { _group: group, _v1_limits: v1_limits };
        Ok(Self { running, _limits: limits_guard, _mount: Some(mount) })
    }

    /// A pidfd of the command's process. It never refers to a process that reused the PID.
    pub fn pidfd(&self) -> Result<OwnedFd, LabError> {
        self.running.process()
    }

    /// The command's PID.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Waits for the command to exit. A file system created for it is removed.
    pub fn wait(mut self) -> Result<ExitStatus, LabError> {
        self.running.wait()
    }
}

/// Throttles a directory for all processes until [`down`].
pub fn up(options: DiskOptions, directory: &Path) -> Result<AppliedLimits, LabError> {
    clear_leftovers();
    let hierarchy = Hierarchy::find(Controller::BlockIo)?;
    if hierarchy.version == CgroupVersion::V2 {
        let why = "cgroup v2 cannot limit a device for all processes; pass a command to run";
        return Err(cannot("throttle a directory for all processes")(std::io::Error::other(why)));
    }
    let mount = DiskMount::create(directory, options.file_system_bytes, MountVisibility::AllProcesses)?;
    let mut applied_limits = mount.applied_limits(options.limits);
    applied_limits.limits_writeback = hierarchy.is_machine_root();
    mount.prepare(options)?;
    let limits_guard = V1Limits::set(hierarchy, mount.device(), options.limits)?;
    // The limits outlive this process.
    std::mem::forget(limits_guard);
    mount.keep_mounted();
    Ok(applied_limits)
}

/// Removes the file system that [`up`] created at a directory, with everything written there.
pub fn down(directory: &Path) -> Result<(), LabError> {
    let number = disk_mount::find_mounted(directory)?;
    let device = DeviceNumber { major: throttle::LOOP_MAJOR, minor: number };
    disk_mount::wait_until_unused(directory)?;
    let groups: Vec<PathBuf> = Hierarchy::find(Controller::BlockIo)
        .map(|found| vec![found.mount_point, found.own_group])
        .unwrap_or_default();
    let previous: Vec<IoLimits> = groups.iter().map(|group| throttle::read_v1(group, device)).collect();
    // Otherwise the unmount would write back dirty pages at the limited rate.
    let lift_limits = |group: &PathBuf| throttle::set_v1(group, device, IoLimits::default());
    let lifted: Vec<Result<(), LabError>> = groups.iter().map(lift_limits).collect();
    if let Err(why) = disk_mount::unmount(directory, number) {
        // A file system that remains mounted keeps its limits.
        groups.iter().zip(previous).try_for_each(|(group, rates)| throttle::set_v1(group, device, rates))?;
        return Err(why);
    }
    // A remaining limit would apply to the next user of the device.
    lifted.into_iter().collect()
}

/// A group with limits on a device.
fn limited_group(device: DeviceNumber, rates: IoLimits) -> Result<Group, LabError> {
    if Hierarchy::find(Controller::BlockIo)?.version == CgroupVersion::V2 {
        // Writeback is charged to the group that owns the dirty pages, which needs the memory controller.
        let group = Group::create("disk", &[Controller::BlockIo, Controller::Memory], &[])?;
        group.set(Controller::BlockIo, "io.max", &throttle::io_max_line(device, rates))?;
        return Ok(group);
    }
    let group = Group::create("disk", &[Controller::BlockIo], &[])?;
    if let (Some(hierarchy), Some(directory)) =
        (group.hierarchy(Controller::BlockIo), group.directory(Controller::BlockIo))
    {
        throttle::inherit_v1(&hierarchy.own_group, directory)?;
        throttle::set_v1(directory, device, rates)?;
    }
    Ok(group)
}

fn clear_leftovers() {
    disk_mount::reset_leftovers();
    if let Ok(hierarchy) = Hierarchy::find(Controller::BlockIo) {
        throttle::lift_stale_limits(&hierarchy.mount_point);
        throttle::lift_stale_limits(&hierarchy.own_group);
    }
}

fn find_block_device(directory: &Path) -> Result<Option<DeviceNumber>, LabError> {
    let metadata = fs::metadata(directory).map_err(cannot(format!("find {}", directory.display())))?;
    Ok(throttle::block_device(metadata.dev()))
}
