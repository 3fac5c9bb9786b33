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

    /// Whether two controllers share their groups.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.version, &self.mounted, &self.own) == (other.version, &other.mounted, &other.own)
    }

    /// Whether the root that is seen from here is that of the machine, in which the kernel's own threads are. Only that
    /// one has this file.
    pub fn is_whole(&self) -> bool {
        self.mounted.join("release_agent").exists() || self.mounted.join("cgroup.sane_behavior").exists()
    }

    /// With version 2, the nearest group from our own upwards below which groups can have a controller.
    pub fn divisible(&self, controller: Controller) -> Result<PathBuf, Failed> {
        let mut refused = None;
        for group in self.own.ancestors().take_while(|group| group.starts_with(&self.mounted)) {
            match enable(group, controller) {
                Ok(()) => return Ok(group.to_owned()),
                Err(e) => refused = Some(e),
            }
        }
        Err(refused
            .unwrap_or_else(|| failed("make a control group")(io::Error::from(io::ErrorKind::NotFound))))
    }
}

/// Lets groups within a group have a controller (version 2).
pub(super) fn enable(group: &Path, controller: Controller) -> Result<(), Failed> {
    let (path, name) = (group.join("cgroup.subtree_control"), controller.name(Version::Two));
    let enabled = fs::read_to_string(&path).unwrap_or_default();
    if enabled.split_whitespace().any(|enabled| enabled == name) {
        return Ok(());
    }
    fs::write(&path, format!("+{name}"))
        .map_err(failed(format!("let groups in {} have {name}", group.display())))
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
mod tests {
    use super::*;

    const MOUNTS: &str = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
        32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
        41 31 0:38 /docker/7 /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn mounted_hierarchies_are_found() {
        let found = mounts(MOUNTS);
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].version, found[0].has("cpuacct"), found[0].has("memory")),
            (Version::One, true, false)
        );
        assert_eq!((found[1].version, found[1].root.to_str()), (Version::Two, Some("/docker/7")));
        assert_eq!(found[1].point, Path::new("/sys/fs/cgroup/unified"));
    }

    #[test]
    fn the_own_group_is_found() {
        let text = "4:memory:/a/b\n2:cpu,cpuacct:/\n0::/user.slice/x:y\n";
        assert_eq!(own_path(text, Some("memory")), Some("/a/b".into()));
        assert_eq!(own_path(text, Some("cpuacct")), Some("/".into()));
        assert_eq!(own_path(text, Some("blkio")), None);
        assert_eq!(own_path(text, None), Some("/user.slice/x:y".into()));
    }

    #[test]
    fn a_group_that_is_not_seen_is_the_root() {
        let here = std::env::temp_dir();
        let mounted =
            Mounted { version: Version::One, root: "/c".into(), point: here.clone(), options: Vec::new() };
        for own in [Some("/elsewhere".into()), Some("/c/not-there".into()), Some("/c".into()), None] {
            assert_eq!(mounted.hierarchy(own, None).own, here);
        }
    }
}
