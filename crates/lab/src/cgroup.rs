//! Control groups: created for one command, and removed together with every process that the command left running.
//! Supports both kernel interfaces: version 1 has one hierarchy per controller, version 2 a single one.
//!
//! A live group holds a lock on its directory. An unlocked one was left behind by a killed process; creating the next
//! group removes it.

mod hierarchy;
mod leftovers;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, set_parent_process_death_signal};

pub(crate) use self::hierarchy::{CgroupVersion, Controller, Hierarchy};
use crate::error::{LabError, cannot};
use crate::running_command::RunningCommand;

/// Prefix of the names of all groups created here.
const PREFIX: &str = "tradewind-lab-";
/// The child group that contains the processes under version 2, where a group with processes cannot enable
/// controllers for its children.
const INNER: &str = "command";

/// A group in each required hierarchy. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub(crate) struct Group {
    dirs: Vec<HierarchyDir>,
}

/// The group's directory in one hierarchy.
#[derive(Debug)]
struct HierarchyDir {
    hierarchy: Hierarchy,
    /// The controllers for which it was created.
    controllers: Vec<Controller>,
    directory: PathBuf,
    /// Marks the group as live.
    _lock: File,
}

impl Group {
    /// Creates a group below that of the calling process. Optional controllers that are unavailable are skipped.
    pub fn create(kind: &str, required: &[Controller], optional: &[Controller]) -> Result<Self, LabError> {
        let mut group = Self { dirs: Vec::new() };
        for controller in required {
            group.add(kind, *controller, required)?;
        }
        for controller in optional {
            let _ = group.add(kind, *controller, &[]);
        }
        Ok(group)
    }

    /// Adds a controller. A newly created directory also gets the `required` controllers of the same hierarchy.
    fn add(&mut self, kind: &str, controller: Controller, required: &[Controller]) -> Result<(), LabError> {
        if self.dir(controller).is_some() {
            return Ok(());
        }
        let hierarchy = Hierarchy::find(controller)?;
        if let Some(dir) = self.dirs.iter_mut().find(|dir| dir.hierarchy.shares_groups_with(&hierarchy)) {
            if hierarchy.version == CgroupVersion::V2 {
                let parent = dir.directory.parent().unwrap_or(&dir.directory);
                dir.hierarchy.enable(parent, &[controller])?;
            }
            dir.controllers.push(controller);
            return Ok(());
        }
        leftovers::sweep(&hierarchy.mount_point);
        let parent = match hierarchy.version {
            CgroupVersion::V1 => hierarchy.own_group.clone(),
            CgroupVersion::V2 => {
                let is_here = |other: &Controller| {
                    Hierarchy::find(*other).is_ok_and(|found| found.shares_groups_with(&hierarchy))
                };
                let others = required.iter().copied().filter(is_here);
                hierarchy.enable_nearest(&[controller].into_iter().chain(others).collect::<Vec<_>>())?
            }
        };
        let (directory, lock) = create_and_lock(&parent, kind)?;
        let inner = (hierarchy.version == CgroupVersion::V2).then(|| directory.join(INNER));
        self.dirs.push(HierarchyDir { hierarchy, controllers: vec![controller], directory, _lock: lock });
        let Some(inner) = inner else { return Ok(()) };
        fs::create_dir(&inner).map_err(cannot(format!("create the control group {}", inner.display())))
    }

    fn dir(&self, controller: Controller) -> Option<&HierarchyDir> {
        self.dirs.iter().find(|dir| dir.controllers.contains(&controller))
    }

    /// The interface version of a controller; `None` if the group does not include it.
    pub fn version(&self, controller: Controller) -> Option<CgroupVersion> {
        self.dir(controller).map(|dir| dir.hierarchy.version)
    }

    /// The hierarchy of a controller.
    pub fn hierarchy(&self, controller: Controller) -> Option<&Hierarchy> {
        self.dir(controller).map(|dir| &dir.hierarchy)
    }

    /// The group's directory in a controller's hierarchy.
    pub fn directory(&self, controller: Controller) -> Option<&Path> {
        self.dir(controller).map(|dir| &*dir.directory)
    }

    /// Writes a value to one of the group's files.
    pub fn set(&self, controller: Controller, file: &str, value: &str) -> Result<(), LabError> {
        let Some(directory) = self.directory(controller) else {
            return Err(cannot(format!("set {file}"))(io::Error::from(io::ErrorKind::NotFound)));
        };
        let path = directory.join(file);
        fs::write(&path, value).map_err(cannot(format!("set {} to {value:?}", path.display())))
    }

    /// Reads one of the group's files; `None` if it cannot be read, as on older kernels.
    pub fn get(&self, controller: Controller, file: &str) -> Option<String> {
        fs::read_to_string(self.dir(controller)?.directory.join(file)).ok()
    }

    /// Starts a command in the group. The command is killed when the calling thread ends for any reason.
    pub fn start(&self, command: &[OsString]) -> Result<RunningCommand, LabError> {
        let mut procs_files = Vec::new();
        for dir in &self.dirs {
            let inner = if dir.hierarchy.version == CgroupVersion::V2 { INNER } else { "" };
            let path = dir.directory.join(inner).join("cgroup.procs");
            let procs_file = OpenOptions::new().write(true).open(&path);
            procs_files.push(procs_file.map_err(cannot(format!("open {}", path.display())))?);
        }
        let enter = move || {
            for procs_file in &procs_files {
                // 0 stands for the writing process.
                rustix::io::write(procs_file, b"0")?;
            }
            set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        };
        RunningCommand::start(command, |command| {
            // SAFETY: between fork and exec it makes system calls only; it takes no lock and allocates nothing.
            unsafe { command.pre_exec(enter) };
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for dir in &self.dirs {
            leftovers::remove(&dir.directory);
        }
    }
}

/// Creates a directory and locks it.
fn create_and_lock(parent: &Path, kind: &str) -> Result<(PathBuf, File), LabError> {
    let process = std::process::id();
    for number in 0_u32.. {
        let directory = parent.join(format!("{PREFIX}{kind}-{process}-{number}"));
        let what = || format!("create the control group {}", directory.display());
        match fs::create_dir(&directory) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
            Err(e) => return Err(cannot(what())(e)),
        }
        // Another process may have removed it as a leftover before it was locked: try the next number.
        let Ok(lock) = File::open(&directory) else { continue };
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(e)) => return Err(cannot(what())(e)),
        }
        let is_there = match (lock.metadata(), fs::metadata(&directory)) {
            (Ok(held), Ok(named)) => held.ino() == named.ino(),
            _ => false,
        };
        if is_there {
            return Ok((directory, lock));
        }
    }
    Err(cannot("find a name for a control group")(io::Error::from(io::ErrorKind::AlreadyExists)))
}
