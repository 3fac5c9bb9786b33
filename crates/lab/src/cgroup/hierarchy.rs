//! Where the kernel has a controller: in a hierarchy of its own (version 1) or in the one of all (version 2), mounted
//! somewhere or, if nobody has, by this process for itself.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsmount, fsopen,
};

use super::PREFIX;
use crate::failed::{Failed, failed};

/// A part of the kernel that bounds or counts something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Controller {
    /// Shares and quotas of processor time.
    Processor,
    /// Processor time used. Version 2 counts it with the above.
    ProcessorUse,
    /// Which processors.
    ProcessorSet,
    /// Memory.
    Memory,
    /// What block devices are asked for.
    Devices,
    /// How many processes there are: for a group that is to bound nothing.
    Processes,
}

/// The kernel's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// A hierarchy for each controller, or for some together.
    One,
    /// One hierarchy.
    Two,
}

/// A hierarchy in which a controller is.
#[derive(Debug, Clone)]
pub(crate) struct Hierarchy {
    pub version: Version,
    /// Where its root, as far as it is seen from here, is mounted.
    pub mounted: PathBuf,
    /// The group of the calling process.
    pub own: PathBuf,
    /// Holds a mount that nobody else sees.
    _mount: Option<Arc<OwnedFd>>,
}

impl Controller {
    const fn name(self, version: Version) -> &'static str {
        match (self, version) {
            (Self::ProcessorUse, Version::One) => "cpuacct",
            (Self::Processor | Self::ProcessorUse, _) => "cpu",
            (Self::ProcessorSet, _) => "cpuset",
            (Self::Memory, _) => "memory",
            (Self::Processes, _) => "pids",
            (Self::Devices, Version::One) => "blkio",
            (Self::Devices, Version::Two) => "io",
        }
    }
}

impl Hierarchy {
    /// Finds the one in which a controller is.
    pub fn find(controller: Controller) -> Result<Self, Failed> {
        let read = |path: &str| fs::read_to_string(path).map_err(failed(format!("read {path}")));
        let (mounts, memberships) =
            (mounts(&read("/proc/thread-self/mountinfo")?), read("/proc/self/cgroup")?);
        let name = controller.name(Version::One);
        if let Some(mount) = mounts.iter().find(|m| m.version == Version::One && m.has(name)) {
            return Ok(mount.hierarchy(own_path(&memberships, Some(name)), None));
        }
        let is_offered = |path: &Path| {
            let offered = fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
            offered.split_whitespace().any(|offer| offer == controller.name(Version::Two))
        };
        if let Some(mount) = mounts.iter().find(|m| m.version == Version::Two && is_offered(&m.point)) {
            return Ok(mount.hierarchy(own_path(&memberships, None), None));
        }
        let kernel_has = read("/proc/cgroups")?;
        let number = kernel_has.lines().find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            // The last word says whether it may be used.
            (words.len() == 4 && words[0] == name && words[3] == "1").then(|| words[1])
        });
        let Some(number) = number else {
            let missing =
                io::Error::other(format!("the kernel has no controller {name} (see /proc/cgroups)"));
            return Err(failed("make a control group")(missing));
        };
        let what = || format!("mount the control groups of {name}, which nobody has mounted");
        if number == "0" {
            let mount = mount_for_us("cgroup2", None).map_err(failed(what()))?;
            if is_offered(&mount.0.point) {
                return Ok(mount.0.hierarchy(own_path(&memberships, None), Some(mount.1)));
            }
        }
        let mount = mount_for_us("cgroup", Some(name)).map_err(failed(what()))?;
        Ok(mount.0.hierarchy(own_path(&memberships, Some(name)), Some(mount.1)))
    }

    /// Whether two controllers share their groups. Of version 2 there is one, wherever it is mounted.
    pub fn is_same(&self, other: &Self) -> bool {
        self.version == other.version
            && (self.version == Version::Two || (&self.mounted, &self.own) == (&other.mounted, &other.own))
    }

    /// Whether the root that is seen from here is that of the machine, in which the kernel's own threads are. Only that
    /// one has this file.
    pub fn is_whole(&self) -> bool {
        self.mounted.join("release_agent").exists() || self.mounted.join("cgroup.sane_behavior").exists()
    }

    /// With version 2, the nearest group from our own upwards below which groups can have all of some controllers. A group that
    /// was made here is not left, with its bounds.
    pub fn divisible(&self, controllers: &[Controller]) -> Result<PathBuf, Failed> {
        let mut refused = None;
        for group in self.own_and_above() {
            match self.enable(group, controllers) {
                Ok(()) => return Ok(group.to_owned()),
                Err(e) => refused = Some(e),
            }
            if is_made_here(group) {
                break;
            }
        }
        Err(refused
            .unwrap_or_else(|| failed("make a control group")(io::Error::from(io::ErrorKind::NotFound))))
    }

    /// What a file says of the nearest group from our own upwards that has it.
    pub fn nearest(&self, file: &str) -> Result<String, Failed> {
        let found = self.own_and_above().map(|group| group.join(file)).find(|path| path.exists());
        let path = found.unwrap_or_else(|| self.own.join(file));
        fs::read_to_string(&path).map_err(failed(format!("read {}", path.display())))
    }

    fn own_and_above(&self) -> impl Iterator<Item = &Path> {
        self.own.ancestors().take_while(|group| group.starts_with(&self.mounted))
    }

    /// Lets groups within a group have all of some controllers (version 2), or none that they had not before.
    pub fn enable(&self, group: &Path, controllers: &[Controller]) -> Result<(), Failed> {
        let mut enabled = Vec::new();
        let all = controllers
            .iter()
            .try_for_each(|controller| self.enable_one(group, controller.name(Version::Two), &mut enabled));
        if all.is_err() {
            for (path, name) in enabled.iter().rev() {
                // Where groups within it gave it on meanwhile, it stays.
                let _ = fs::write(path, format!("-{name}"));
            }
        }
        all
    }

    /// Notes in `enabled` what it changed.
    fn enable_one(
        &self,
        group: &Path,
        name: &'static str,
        enabled: &mut Vec<(PathBuf, &'static str)>,
    ) -> Result<(), Failed> {
        let what = || format!("let control groups in {} have {name}", group.display());
        let path = group.join("cgroup.subtree_control");
        let has = |file: &Path| {
            fs::read_to_string(file).unwrap_or_default().split_whitespace().any(|has| has == name)
        };
        // The kernel refuses this for some controllers; of others it makes groups in which nothing can be.
        if !is_root(group) && has_processes(group) {
            return Err(failed(what())(io::Error::other("there are processes in it")));
        }
        if has(&path) {
            return Ok(());
        }
        // A group that was made here has what was needed in it until now.
        if let Some(above) = group.parent().filter(|above| above.starts_with(&self.mounted))
            && is_made_here(group)
            && !has(&group.join("cgroup.controllers"))
        {
            self.enable_one(above, name, enabled)?;
        }
        fs::write(&path, format!("+{name}")).map_err(failed(what()))?;
        enabled.push((path, name));
        Ok(())
    }
}

/// Whether a group of version 2 is the machine's root, which may have both processes and groups: only that one does without
/// this file.
fn is_root(group: &Path) -> bool {
    !group.join("cgroup.events").exists()
}

/// Whether processes are in a group itself (version 2). In one with threads of processes that are elsewhere, they cannot be listed.
fn has_processes(group: &Path) -> bool {
    fs::read_to_string(group.join("cgroup.procs")).map_or(true, |listed| !listed.trim().is_empty())
}

fn is_made_here(group: &Path) -> bool {
    group.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

/// A hierarchy that is mounted.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    version: Version,
    /// Which of its groups is at the point where it is mounted.
    root: PathBuf,
    point: PathBuf,
    /// Version 1: what it is for.
    options: Vec<String>,
}

impl Mounted {
    fn has(&self, name: &str) -> bool {
        self.options.iter().any(|option| option == name)
    }

    fn hierarchy(&self, own: Option<PathBuf>, mount: Option<OwnedFd>) -> Hierarchy {
        let below = own.as_deref().and_then(|own| own.strip_prefix(&self.root).ok());
        // In a container the path may be one of the machine's, which is not seen: the root stands for it there.
        let own = below.map(|below| self.point.join(below)).filter(|own| own.exists());
        Hierarchy {
            version: self.version,
            mounted: self.point.clone(),
            own: own.unwrap_or_else(|| self.point.clone()),
            _mount: mount.map(Arc::new),
        }
    }
}

/// Reads /proc/thread-self/mountinfo: see proc(5).
fn mounts(text: &str) -> Vec<Mounted> {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let place: Vec<&str> = place.split(' ').collect();
        let kind: Vec<&str> = kind.split(' ').collect();
        let version = match *kind.first()? {
            "cgroup" => Version::One,
            "cgroup2" => Version::Two,
            _ => return None,
        };
        let options = kind.get(2)?.split(',').map(str::to_owned).collect();
        Some(Mounted { version, root: place.get(3)?.into(), point: place.get(4)?.into(), options })
    };
    text.lines().filter_map(mount).collect()
}

/// Reads /proc/self/cgroup: the group of this process in the hierarchy of a controller, or in that of version 2.
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

/// Mounts a hierarchy where nobody else sees it, for as long as the descriptor is open.
fn mount_for_us(kind: &str, controller: Option<&str>) -> io::Result<(Mounted, OwnedFd)> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    if let Some(controller) = controller {
        fsconfig_set_flag(&context, controller)?;
    }
    fsconfig_create(&context)?;
    let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let version = if controller.is_some() { Version::One } else { Version::Two };
    let point = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
    Ok((Mounted { version, root: "/".into(), point, options: Vec::new() }, mount))
}

#[cfg(test)]
mod tests;
