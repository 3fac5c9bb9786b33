//! A slower disk: what a command does to a directory is bounded as a device would bound it.
//!
//! A directory on a block device is slowed by bounds on that device, for the command only. Any other, and any by choice,
//! becomes a new file system on a loop device of its own, which is bounded for whoever uses it and goes with the
//! command. Bounds are bytes and requests a second: the time of a seek cannot be imposed, a number of requests a second
//! stands for it.

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

/// How a directory is slowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskOptions {
    /// What the disk does at the most.
    pub rates: Rates,
    /// A new file system of so many bytes takes the directory's place; `None`: only where it lies on no device.
    pub file_system: Option<u64>,
    /// How many bytes may wait in memory to be written to a new file system; `None`: what the kernel allows, which is a
    /// part of the machine's memory.
    pub write_behind: Option<u64>,
}

/// What is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InForce {
    /// The device that is slowed, as /dev/loop0 or 254:0.
    pub device: String,
    /// A new file system's bytes; `None`: it is that which was there.
    pub file_system: Option<u64>,
    /// What the disk does at the most.
    pub rates: Rates,
    /// Whether what the kernel writes back later is slowed too, beside reads and writes that somebody waits for.
    pub later_writes: bool,
}

/// A command with a slower disk, while it runs.
#[derive(Debug)]
pub struct Disk {
    // In this order: a command ends before its bounds, they before the file system.
    running: Running,
    _bounds: Bounds,
    _place: Option<Place>,
}

/// What is lifted when this is dropped: first the command's processes end.
#[derive(Debug)]
struct Bounds {
    _group: Group,
    _elsewhere: Option<Elsewhere>,
}

/// Bounds in groups that are not ours (version 1): in the root group, in which the kernel's own threads are, and in that
/// of this process.
#[derive(Debug)]
struct Elsewhere {
    hierarchy: Hierarchy,
    device: DeviceNumber,
}

impl Elsewhere {
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

impl Drop for Elsewhere {
    fn drop(&mut self) {
        for directory in self.directories() {
            // Nothing can be done about it, and the device is about to go.
            let _ = throttle::set(directory, self.device, Rates::default());
        }
    }
}

impl Disk {
    /// Starts a command whose disk is slower in a directory. Where a file system has to be made, the calling thread has
    /// a mount namespace of its own from then on, which the command shares. Dropped, the command is killed; it is
    /// killed when the calling thread ends, too. `on_ready` hears what is in force before the command starts.
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
            let why = "the device is not this command's alone; have a new file system made (--loop)";
            return Err(failed("bound what waits to be written")(std::io::Error::other(why)));
        }
        let group = bounded_group(device, options.rates)?;
        let later_writes = group.version(Controller::Devices) == Some(Version::Two);
        let device = format!("{}:{}", device.major, device.minor);
        on_ready(&InForce { device, file_system: None, rates: options.rates, later_writes });
        let running = group.start(command)?;
        let bounds = Bounds { _group: group, _elsewhere: None };
        Ok(Self { running, _bounds: bounds, _place: None })
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
        let (group, elsewhere) = if hierarchy.version == Version::Two {
            (bounded_group(device, options.rates)?, None)
        } else {
            in_force.later_writes = hierarchy.is_whole();
            let elsewhere = Elsewhere::bound(hierarchy, device, options.rates)?;
            // It bounds nothing, but says which processes are the command's.
            (Group::make("disk", &[], &[Controller::Processes])?, Some(elsewhere))
        };
        on_ready(&in_force);
        let running = group.start(command)?;
        let bounds = Bounds { _group: group, _elsewhere: elsewhere };
        Ok(Self { running, _bounds: bounds, _place: Some(place) })
    }

    /// The command's process, to send signals to. It never means another process that was given the same number.
    pub fn process(&self) -> Result<OwnedFd, Failed> {
        self.running.process()
    }

    /// The number of the command's process.
    #[must_use]
    pub fn process_number(&self) -> u32 {
        self.running.number()
    }

    /// Waits until the command has ended. A file system that was made for it goes with it.
    pub fn wait(mut self) -> Result<ExitStatus, Failed> {
        self.running.wait()
    }
}

/// Makes a slower disk in a directory for everybody, until [`down`].
pub fn up(options: DiskOptions, directory: &Path) -> Result<InForce, Failed> {
    lift_leftovers();
    let hierarchy = Hierarchy::find(Controller::Devices)?;
    if hierarchy.version == Version::Two {
        let why = "control groups of version 2 have no bounds for everybody; give it a command to run";
        return Err(failed("slow a directory for everybody")(std::io::Error::other(why)));
    }
    let place = Place::make(directory, options.file_system, Seen::ByAll)?;
    let mut in_force = place.in_force(options.rates);
    in_force.later_writes = hierarchy.is_whole();
    place.prepare(options)?;
    let bounds = Elsewhere::bound(hierarchy, place.device(), options.rates)?;
    // They stay when this process ends.
    std::mem::forget(bounds);
    place.leave();
    Ok(in_force)
}

/// Ends what [`up`] made in a directory, with all that was written there.
pub fn down(directory: &Path) -> Result<(), Failed> {
    let number = place::made_at(directory)?;
    let device = DeviceNumber { major: throttle::LOOP_MAJOR, minor: number };
    place::wait_until_unused(directory)?;
    let groups: Vec<PathBuf> =
        Hierarchy::find(Controller::Devices).map(|found| vec![found.mounted, found.own]).unwrap_or_default();
    let kept: Vec<Rates> = groups.iter().map(|group| throttle::rates(group, device)).collect();
    // What is still to be written would be slow otherwise.
    let lift = |group: &PathBuf| throttle::set(group, device, Rates::default());
    let lifted: Vec<Result<(), Failed>> = groups.iter().map(lift).collect();
    if let Err(why) = place::unmount(directory, number) {
        // One that stays keeps its bounds.
        groups.iter().zip(kept).try_for_each(|(group, rates)| throttle::set(group, device, rates))?;
        return Err(why);
    }
    // A bound that stays would be that of whoever has the device next.
    lifted.into_iter().collect()
}

/// A group with bounds on a device.
fn bounded_group(device: DeviceNumber, rates: Rates) -> Result<Group, Failed> {
    if Hierarchy::find(Controller::Devices)?.version == Version::Two {
        // What the kernel writes back later is counted by whose memory it was in.
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
    let told = fs::metadata(directory).map_err(failed(format!("find {}", directory.display())))?;
    Ok(throttle::device_of(told.dev()))
}
