//! Control groups, by which the kernel bounds what processes use: made for one command, and removed with all that the
//! command left running. Both of the kernel's interfaces are served, version 1 with a hierarchy for each controller and
//! version 2 with one for all.
//!
//! A group is held by a lock on its directory. One that nobody holds was left by a process that was killed: whoever
//! makes the next group removes it.

mod hierarchy;
mod leftovers;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, set_parent_process_death_signal};

pub(crate) use self::hierarchy::{Controller, Hierarchy, Version};
use crate::failed::{Failed, failed};
use crate::running::Running;

/// What the names of all groups that are made here begin with.
const PREFIX: &str = "tradewind-lab-";
/// The group within a group in which the processes are, with version 2: one that has processes cannot be divided.
const INNER: &str = "command";

/// A group in each hierarchy that is needed. Dropped, it ends the processes in it and is removed.
#[derive(Debug)]
pub(crate) struct Group {
    rooms: Vec<Room>,
}

/// The group's directory in one hierarchy.
#[derive(Debug)]
struct Room {
    hierarchy: Hierarchy,
    /// Those that it is here for.
    controllers: Vec<Controller>,
    directory: PathBuf,
    /// Says that the group is held.
    _lock: File,
}

impl Group {
    /// Makes one below that of the calling process. Of `wished` controllers those that are not there are left out.
    pub fn make(kind: &str, needed: &[Controller], wished: &[Controller]) -> Result<Self, Failed> {
        let mut group = Self { rooms: Vec::new() };
        for controller in needed {
            group.add(kind, *controller, needed)?;
        }
        for controller in wished {
            let _ = group.add(kind, *controller, &[]);
        }
        Ok(group)
    }

    /// Adds a controller. Where a room is made for it, those of `needed` that are in the same hierarchy will be there, too.
    fn add(&mut self, kind: &str, controller: Controller, needed: &[Controller]) -> Result<(), Failed> {
        if self.room(controller).is_some() {
            return Ok(());
        }
        let hierarchy = Hierarchy::find(controller)?;
        if let Some(room) = self.rooms.iter_mut().find(|room| room.hierarchy.is_same(&hierarchy)) {
            if hierarchy.version == Version::Two {
                let parent = room.directory.parent().unwrap_or(&room.directory);
                room.hierarchy.enable(parent, &[controller])?;
            }
            room.controllers.push(controller);
            return Ok(());
        }
        leftovers::sweep(&hierarchy.mounted);
        let parent = match hierarchy.version {
            Version::One => hierarchy.own.clone(),
            Version::Two => {
                let is_here =
                    |other: &Controller| Hierarchy::find(*other).is_ok_and(|found| found.is_same(&hierarchy));
                let others = needed.iter().copied().filter(is_here);
                hierarchy.divisible(&[controller].into_iter().chain(others).collect::<Vec<_>>())?
            }
        };
        let (directory, lock) = make_and_hold(&parent, kind)?;
        let inner = (hierarchy.version == Version::Two).then(|| directory.join(INNER));
        self.rooms.push(Room { hierarchy, controllers: vec![controller], directory, _lock: lock });
        let Some(inner) = inner else { return Ok(()) };
        fs::create_dir(&inner).map_err(failed(format!("make the control group {}", inner.display())))
    }

    fn room(&self, controller: Controller) -> Option<&Room> {
        self.rooms.iter().find(|room| room.controllers.contains(&controller))
    }

    /// Which interface a controller has here; `None`: it is not there.
    pub fn version(&self, controller: Controller) -> Option<Version> {
        self.room(controller).map(|room| room.hierarchy.version)
    }

    /// The hierarchy of a controller.
    pub fn hierarchy(&self, controller: Controller) -> Option<&Hierarchy> {
        self.room(controller).map(|room| &room.hierarchy)
    }

    /// The group's directory in the hierarchy of a controller.
    pub fn directory(&self, controller: Controller) -> Option<&Path> {
        self.room(controller).map(|room| &*room.directory)
    }

    /// Sets what one of the group's files says.
    pub fn set(&self, controller: Controller, file: &str, value: &str) -> Result<(), Failed> {
        let Some(directory) = self.directory(controller) else {
            return Err(failed(format!("set {file}"))(io::Error::from(io::ErrorKind::NotFound)));
        };
        let path = directory.join(file);
        fs::write(&path, value).map_err(failed(format!("set {} to {value:?}", path.display())))
    }

    /// What one of the group's files says; `None` where it cannot be read, as on older kernels.
    pub fn get(&self, controller: Controller, file: &str) -> Option<String> {
        fs::read_to_string(self.room(controller)?.directory.join(file)).ok()
    }

    /// Starts a command in the group. It is killed when the calling thread ends, however that comes about.
    pub fn start(&self, command: &[OsString]) -> Result<Running, Failed> {
        let mut doors = Vec::new();
        for room in &self.rooms {
            let inner = if room.hierarchy.version == Version::Two { INNER } else { "" };
            let path = room.directory.join(inner).join("cgroup.procs");
            let door = OpenOptions::new().write(true).open(&path);
            doors.push(door.map_err(failed(format!("open {}", path.display())))?);
        }
        let enter = move || {
            for door in &doors {
                // It stands for the writing process.
                rustix::io::write(door, b"0")?;
            }
            set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        };
        Running::start(command, |command| {
            // SAFETY: between fork and exec it makes system calls only; it takes no lock and allocates nothing.
            unsafe { command.pre_exec(enter) };
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for room in &self.rooms {
            leftovers::remove(&room.directory);
        }
    }
}

/// A new directory, and the lock that says that somebody holds it.
fn make_and_hold(parent: &Path, kind: &str) -> Result<(PathBuf, File), Failed> {
    let process = std::process::id();
    for number in 0_u32.. {
        let directory = parent.join(format!("{PREFIX}{kind}-{process}-{number}"));
        let what = || format!("make the control group {}", directory.display());
        match fs::create_dir(&directory) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(failed(what())(e)),
        }
        // Somebody may have taken it for a leftover since, and removed it: then there is another number.
        let Ok(lock) = File::open(&directory) else { continue };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(e)) => return Err(failed(what())(e)),
        }
        let is_there = match (lock.metadata(), fs::metadata(&directory)) {
            (Ok(held), Ok(named)) => held.ino() == named.ino(),
            _ => false,
        };
        if is_there {
            return Ok((directory, lock));
        }
    }
    Err(failed("find a name for a control group")(io::Error::from(io::ErrorKind::AlreadyExists)))
}
