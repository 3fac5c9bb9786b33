//! Where a standing link is known: a directory with its socket and what it is about, and its network namespace's name.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use super::super::namespace::OWN as OWN_NAMESPACE;
use super::super::netem;

/// Below it each link has a directory.
const LINKS: &str = "/run/tradewind-lab/wan";
/// Whoever makes or removes a link holds it.
const LOCK: &str = "/run/tradewind-lab/lock";
/// Where `ip netns` looks for namespaces.
const NAMESPACES: &str = "/run/netns";

/// The name of a standing link, which is that of its network namespace too.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Reads one: up to 64 letters, digits, `-`, `_` and `.`, the first of which is a letter or a digit.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let begins_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if begins_well && text.chars().all(is_inner) && text.len() <= 64 {
            Ok(Self(text.to_owned()))
        } else {
            Err("a name has up to 64 letters, digits, '-', '_' and '.', and begins with a letter or a digit"
                .to_owned())
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The names of all links that are up, or left something behind.
pub fn names() -> io::Result<Vec<Name>> {
    let entries = match fs::read_dir(LINKS) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().to_str().and_then(|name| Name::parse(name).ok()));
    }
    names.sort();
    Ok(names)
}

/// Lets nobody else make or remove links while what it answers is kept.
pub(super) fn lock() -> io::Result<File> {
    fs::create_dir_all(LINKS)?;
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(LOCK)?;
    lock.lock()?;
    Ok(lock)
}

/// The place of one link. The one that was made is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    name: Name,
    directory: PathBuf,
    is_ours: bool,
}

impl Place {
    /// Where the link of a name is, if there is one.
    pub fn of(name: &Name) -> Self {
        Self { name: name.clone(), directory: Path::new(LINKS).join(&name.0), is_ours: false }
    }

    /// Makes the place of a link that is not there.
    pub fn make(name: &Name) -> io::Result<Self> {
        let mut place = Self::of(name);
        if place.namespace_path().exists() {
            let why = format!(
                "there is a network namespace of that name already ({})",
                place.namespace_path().display()
            );
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        fs::create_dir(&place.directory)?;
        place.is_ours = true;
        Ok(place)
    }

    pub fn exists(&self) -> bool {
        self.directory.exists()
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    pub fn listen(&self) -> io::Result<UnixListener> {
        UnixListener::bind(self.socket())
    }

    fn namespace_path(&self) -> PathBuf {
        Path::new(NAMESPACES).join(&self.name.0)
    }

    /// Gives the calling thread's network namespace the link's name, and notes what others have to know.
    pub fn take_namespace(&mut self, far: Ipv4Addr) -> io::Result<()> {
        let namespace = identity(Path::new(OWN_NAMESPACE))?;
        let number = process::id();
        let about = json!({
            "process": number,
            "started": started(number)?,
            "namespace": [namespace.0, namespace.1],
            "far": far.to_string(),
        });
        // Before there is a name: what is left behind at any moment can be told from what is somebody else's.
        fs::write(self.directory.join("about"), about.to_string())?;
        share_namespaces()?;
        let path = self.namespace_path();
        OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path)?;
        Ok(mount_bind(OWN_NAMESPACE, &path)?)
    }

    fn about(&self) -> io::Result<Value> {
        Ok(serde_json::from_slice(&fs::read(self.directory.join("about"))?)?)
    }

    pub fn far(&self) -> io::Result<Ipv4Addr> {
        let about = self.about()?;
        let far = about["far"].as_str().and_then(|far| far.parse().ok());
        far.ok_or_else(|| io::Error::other("what is noted of it cannot be read"))
    }

    /// The link's namespace; not one that somebody else gave its name.
    pub fn namespace(&self) -> io::Result<File> {
        let file = File::open(self.namespace_path())?;
        let metadata = file.metadata()?;
        if self.is_namespace((metadata.dev(), metadata.ino())) {
            Ok(file)
        } else {
            Err(io::Error::other("its network namespace was replaced by another one"))
        }
    }

    fn is_namespace(&self, found: (u64, u64)) -> bool {
        self.about().is_ok_and(|about| about["namespace"] == json!([found.0, found.1]))
    }

    /// Kills who carries the packets, if that is still the process that noted itself.
    pub fn kill_relay(&self) -> io::Result<()> {
        let about = self.about()?;
        let number =
            about["process"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or_default();
        let Some(pid) = Pid::from_raw(number.cast_signed()) else {
            return Err(io::Error::other("what is noted of it cannot be read"));
        };
        let relay = pidfd_open(pid, PidfdFlags::empty())?;
        // From now on the descriptor means one process; whether it is the right one its start tells.
        if started(number)? != about["started"] {
            return Err(io::Error::other("its relay has ended, and another process has its number"));
        }
        pidfd_send_signal(&relay, Signal::KILL)?;
        let until = Timespec { tv_sec: 5, tv_nsec: 0 };
        poll(&mut [PollFd::new(&relay, PollFlags::IN)], Some(&until))?;
        Ok(())
    }

    /// Removes the namespace's name and the directory. Processes that are in the namespace keep it, cut off.
    pub fn remove(&self) -> io::Result<()> {
        let path = self.namespace_path();
        if let Ok(namespace) = self.namespace() {
            // The kernel carries packets on where somebody is still in the namespace.
            netem::take_down(&namespace)?;
            unmount(&path, UnmountFlags::DETACH)?;
        }
        // Without a namespace on it, it is an empty file that was made for one.
        if self.about().is_ok()
            && fs::metadata(&path)
                .is_ok_and(|file| file.is_file() && file.len() == 0 && !is_namespace_file(&path))
        {
            fs::remove_file(&path)?;
        }
        fs::remove_dir_all(&self.directory)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_ours {
            // What cannot be removed is found as stale.
            let _ = self.remove();
        }
    }
}

/// What tells a namespace from all others.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Whether a namespace is mounted at a path: then it is of the file system that all namespaces are of.
fn is_namespace_file(path: &Path) -> bool {
    let device = |path: &Path| identity(path).map(|(device, _)| device).ok();
    device(path) == device(Path::new(OWN_NAMESPACE))
}

/// When a process was started, in ticks since the machine was: with its number it is a process of this machine's uptime.
fn started(number: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{number}/stat"))?;
    // The name, in parentheses, may hold anything.
    let fields = text.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    let started = fields.and_then(|mut fields| fields.nth(19)?.parse().ok());
    started.ok_or_else(|| io::Error::other("the kernel does not say when a process was started"))
}

/// Has what is mounted where namespaces have their names be seen from other mount namespaces, as `ip netns` does.
fn share_namespaces() -> io::Result<()> {
    fs::create_dir_all(NAMESPACES)?;
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    if mount_change(NAMESPACES, flags).is_err() {
        // It is no mount point yet.
        mount_bind_recursive(NAMESPACES, NAMESPACES)?;
        mount_change(NAMESPACES, flags)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_lead_elsewhere() {
        for good in ["sydney", "a", "50ms-0.1", "A_b"] {
            assert_eq!(Name::parse(good).unwrap().to_string(), good);
        }
        for bad in ["", ".", "..", "a/b", "-x", ".x", "a b", "ä", &"a".repeat(65)] {
            assert!(Name::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_process_was_started_once() {
        let own = started(process::id()).unwrap();
        assert_eq!(started(process::id()).unwrap(), own);
        assert!(started(1).unwrap() < own);
    }
}
