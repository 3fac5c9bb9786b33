//! The hierarchy of a controller: its own (version 1) or the shared one (version 2). Uses an existing mount; if there
//! is none, this process mounts it privately.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsmount, fsopen,
};

use super::PREFIX;
use crate::error::{LabError, cannot};

/// A kernel controller that limits or accounts for a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    /// CPU shares and quotas.
    Cpu,
    /// CPU time used. Version 2 accounts for it in the controller above.
    CpuAccounting,
    /// The set of allowed CPUs.
    CpuSet,
    /// Memory.
    Memory,
    /// Block device I/O.
    BlockIo,
    /// The number of processes: for a group that limits nothing.
    Pids,
}

/// The cgroup interface version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CgroupVersion {
    /// One hierarchy per controller or group of controllers.
    V1,
    /// A single hierarchy.
    V2,
}

/// A mounted hierarchy that has a controller.
#[derive(Debug, Clone)]
pub(crate) struct Hierarchy {
    pub version: CgroupVersion,
    /// The mount point of its root, as visible to this process.
    pub mount_point: PathBuf,
    /// The group of the calling process.
    pub own_group: PathBuf,
    /// Keeps a private mount alive.
    _mount: Option<Arc<OwnedFd>>,
}

impl Controller {
    const fn name(self, version: CgroupVersion) -> &'static str {
        match (self, version) {
            (Self::CpuAccounting, CgroupVersion::V1) => "cpuacct",
            (Self::Cpu | Self::CpuAccounting, _) => "cpu",
            (Self::CpuSet, _) => "cpuset",
            (Self::Memory, _) => "memory",
            (Self::Pids, _) => "pids",
            (Self::BlockIo, CgroupVersion::V1) => "blkio",
            (Self::BlockIo, CgroupVersion::V2) => "io",
        }
    }
}

impl Hierarchy {
    /// Finds the hierarchy of a controller.
    pub fn find(controller: Controller) -> Result<Self, LabError> {
        let read = |path: &str| fs::read_to_string(path).map_err(cannot(format!("read {path}")));
        let (mounts, memberships) =
            (mounts(&read("/proc/thread-self/mountinfo")?), read("/proc/self/cgroup")?);
        let name = controller.name(CgroupVersion::V1);
        if let Some(mount) = mounts.iter().find(|m| m.version == CgroupVersion::V1 && m.has(name)) {
            return Ok(mount.hierarchy(own_path(&memberships, Some(name)), None));
        }
        let is_offered = |path: &Path| {
            let offered = fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
            offered.split_whitespace().any(|offer| offer == controller.name(CgroupVersion::V2))
        };
        if let Some(mount) = mounts.iter().find(|m| m.version == CgroupVersion::V2 && is_offered(&m.point)) {
            return Ok(mount.hierarchy(own_path(&memberships, None), None));
        }
        let kernel_has = read("/proc/cgroups")?;
        let number = kernel_has.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // The last column is 1 if the controller is enabled.
            (words.len() == 4 && words[0] == name && words[3] == "1").then(|| words[1])
        });
        let Some(number) = number else {
            let missing =
                io::Error::other(format!("the kernel has no controller {name} (see /proc/cgroups)"));
            return Err(cannot("create a control group")(missing));
        };
        let what = || format!("mount the {name} cgroup hierarchy, which is not mounted");
        if number == "0" {
            let mount = mount_privately("cgroup2", None).map_err(cannot(what()))?;
            if is_offered(&mount.0.point) {
                return Ok(mount.0.hierarchy(own_path(&memberships, None), Some(mount.1)));
            }
        }
        let mount = mount_privately("cgroup", Some(name)).map_err(cannot(what()))?;
        Ok(mount.0.hierarchy(own_path(&memberships, Some(name)), Some(mount.1)))
    }

    /// Returns true if both have the same groups. There is only one version 2 hierarchy, however often it is mounted.
    pub fn shares_groups_with(&self, other: &Self) -> bool {
        self.version == other.version
            && (self.version == CgroupVersion::V2
                || (&self.mount_point, &self.own_group) == (&other.mount_point, &other.own_group))
    }

    /// Returns true if the visible root is the machine's root group, which contains the kernel threads. Only that
    /// group has these files.
    pub fn is_machine_root(&self) -> bool {
        self.mount_point.join("release_agent").exists()
            || self.mount_point.join("cgroup.sane_behavior").exists()
    }

    /// Version 2: enables the controllers in the nearest group, from this process's own upwards, that accepts them,
    /// and returns it. The search stops at a group created here, so that its limits stay in force.
    pub fn enable_nearest(&self, controllers: &[Controller]) -> Result<PathBuf, LabError> {
        let mut last_error = None;
        for group in self.self_and_ancestors() {
            match self.enable(group, controllers) {
                Ok(()) => return Ok(group.to_owned()),
                Err(e) => last_error = Some(e),
            }
            if is_created_here(group) {
                break;
            }
        }
        Err(last_error
            .unwrap_or_else(|| cannot("create a control group")(io::Error::from(io::ErrorKind::NotFound))))
    }

    /// Reads a file of the nearest group, from this process's own upwards, that has it.
    pub fn read_nearest(&self, file: &str) -> Result<String, LabError> {
        let found = self.self_and_ancestors().map(|group| group.join(file)).find(|path| path.exists());
        let path = found.unwrap_or_else(|| self.own_group.join(file));
        fs::read_to_string(&path).map_err(cannot(format!("read {}", path.display())))
    }

    fn self_and_ancestors(&self) -> impl Iterator<Item = &Path> {
        self.own_group.ancestors().take_while(|group| group.starts_with(&self.mount_point))
    }

    /// Enables controllers for the children of a group (version 2). On failure, those that this call enabled are
    /// disabled again.
    pub fn enable(&self, group: &Path, controllers: &[Controller]) -> Result<(), LabError> {
        let mut enabled = Vec::new();
        let all = controllers.iter().try_for_each(|controller| {
            self.enable_one(group, controller.name(CgroupVersion::V2), &mut enabled)
        });
        if all.is_err() {
            for (path, name) in enabled.iter().rev() {
                // It stays enabled if a child group has enabled it in turn.
                let _ = fs::write(path, format!("-{name}"));
            }
        }
        all
    }

    /// Records its changes in `enabled`.
    fn enable_one(
        &self,
        group: &Path,
        name: &'static str,
        enabled: &mut Vec<(PathBuf, &'static str)>,
    ) -> Result<(), LabError> {
        let what = || format!("enable the {name} controller for the children of {}", group.display());
        let path = group.join("cgroup.subtree_control");
        let has = |file: &Path| {
            fs::read_to_string(file).unwrap_or_default().split_whitespace().any(|has| has == name)
        };
        // The kernel rejects this for some controllers; for others, the child groups could not contain processes.
        if !is_root(group) && has_processes(group) {
            return Err(cannot(what())(io::Error::other("the group contains processes")));
        }
        if has(&path) {
            return Ok(());
        }
        // A group created here has only the controllers required so far; ask its parent first.
        if let Some(above) = group.parent().filter(|above| above.starts_with(&self.mount_point))
            && is_created_here(group)
            && !has(&group.join("cgroup.controllers"))
        {
            self.enable_one(above, name, enabled)?;
        }
        fs::write(&path, format!("+{name}")).map_err(cannot(what()))?;
        enabled.push((path, name));
        Ok(())
    }
}

/// Returns true for the machine's root group of version 2, which may contain both processes and groups. Only that
/// group lacks this file.
fn is_root(group: &Path) -> bool {
    !group.join("cgroup.events").exists()
}

/// Returns true if a version 2 group contains processes itself. The processes of a threaded group cannot be listed.
fn has_processes(group: &Path) -> bool {
    fs::read_to_string(group.join("cgroup.procs")).map_or(true, |listed| !listed.trim().is_empty())
}

fn is_created_here(group: &Path) -> bool {
    group.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

/// A mounted hierarchy, as listed by the kernel.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    version: CgroupVersion,
    /// The group at the mount point.
    root: PathBuf,
    point: PathBuf,
    /// Version 1: its controllers.
    options: Vec<String>,
}

impl Mounted {
    fn has(&self, name: &str) -> bool {
        self.options.iter().any(|option| option == name)
    }

    fn hierarchy(&self, own: Option<PathBuf>, mount: Option<OwnedFd>) -> Hierarchy {
        let below = own.as_deref().and_then(|own| own.strip_prefix(&self.root).ok());
        // In a container the path may be the host's and not visible here; use the root instead.
        let own = below.map(|below| self.point.join(below)).filter(|own| own.exists());
        Hierarchy {
            version: self.version,
            mount_point: self.point.clone(),
            own_group: own.unwrap_or_else(|| self.point.clone()),
            _mount: mount.map(Arc::new),
        }
    }
}

/// Parses /proc/thread-self/mountinfo (proc(5)).
fn mounts(text: &str) -> Vec<Mounted> {
    let mount = |line: &str| {
        let (location, file_system) = line.split_once(" - ")?;
        let location: Vec<&str> = location.split(' ').collect();
        let file_system: Vec<&str> = file_system.split(' ').collect();
        let version = match *file_system.first()? {
            "cgroup" => CgroupVersion::V1,
            "cgroup2" => CgroupVersion::V2,
            _ => return None,
        };
        let options = file_system.get(2)?.split(',').map(str::to_owned).collect();
        Some(Mounted { version, root: location.get(3)?.into(), point: location.get(4)?.into(), options })
    };
    text.lines().filter_map(mount).collect()
}

/// Parses /proc/self/cgroup: the group of this process in a controller's hierarchy, or in the version 2 hierarchy.
fn own_path(text: &str, controller: Option<&str>) -> Option<PathBuf> {
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (number, names, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = match controller {
            Some(controller) => names.split(',').any(|name| name == controller),
            None => number == "0" && names.is_empty(),
        };
        is_it.then(|| path.into())
    })
}

/// Mounts a hierarchy privately, for as long as the descriptor is open.
fn mount_privately(kind: &str, controller: Option<&str>) -> io::Result<(Mounted, OwnedFd)> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    if let Some(controller) = controller {
        fsconfig_set_flag(&context, controller)?;
    }
    fsconfig_create(&context)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let version = if controller.is_some() { CgroupVersion::V1 } else { CgroupVersion::V2 };
    let point = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
    Ok((Mounted { version, root: "/".into(), point, options: Vec::new() }, mount))
}

#[cfg(test)]
mod tests;
