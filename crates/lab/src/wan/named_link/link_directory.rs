//! The persistent state of a named link: a directory with its socket and metadata, and the name of its network
//! namespace.

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

use super::super::namespace::CURRENT_PATH as OWN_NAMESPACE;
use super::super::netem;

/// Parent of the links' directories.
const LINKS_DIR: &str = "/run/tradewind-lab/wan";
/// Held while a link is created or removed.
const LOCK_FILE: &str = "/run/tradewind-lab/lock";
/// The directory of `ip netns`.
const NAMESPACES_DIR: &str = "/run/netns";

/// The name of a link and of its network namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LinkName(String);

impl LinkName {
    /// Parses a name: up to 64 letters, digits, `-`, `_` and `.`, starting with a letter or a digit.
    pub fn parse(text: &str) -> Result<Self, String> {
        let is_inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        if starts_well && text.chars().all(is_inner) && text.len() <= 64 {
            Ok(Self(text.to_owned()))
        } else {
            Err("a name has up to 64 letters, digits, '-', '_' and '.', and starts with a letter or digit"
                .to_owned())
        }
    }
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The names of all links that are up or stale.
pub fn link_names() -> io::Result<Vec<LinkName>> {
    let entries = match fs::read_dir(LINKS_DIR) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry?.file_name().to_str().and_then(|name| LinkName::parse(name).ok()));
    }
    names.sort();
    Ok(names)
}

/// Locks out the creation and removal of links by others until the returned file is closed.
pub(super) fn lock() -> io::Result<File> {
    fs::create_dir_all(LINKS_DIR)?;
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(LOCK_FILE)?;
    lock.lock()?;
    Ok(lock)
}

/// The directory of one link. If created by this value, it is removed on drop.
#[derive(Debug)]
pub(super) struct LinkDirectory {
    name: LinkName,
    directory: PathBuf,
    is_created_here: bool,
}

impl LinkDirectory {
    /// The directory for a name, which may not exist.
    pub fn new(name: &LinkName) -> Self {
        Self { name: name.clone(), directory: Path::new(LINKS_DIR).join(&name.0), is_created_here: false }
    }

    /// Creates the directory of a new link.
    pub fn create(name: &LinkName) -> io::Result<Self> {
        let mut link_directory = Self::new(name);
        if link_directory.namespace_path().exists() {
            let why = format!(
                "a network namespace of that name already exists ({})",
                link_directory.namespace_path().display()
            );
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        fs::create_dir(&link_directory.directory)?;
        link_directory.is_created_here = true;
        Ok(link_directory)
    }

    pub fn exists(&self) -> bool {
        self.directory.exists()
    }

    pub fn socket_path(&self) -> PathBuf {
        self.directory.join("socket")
    }

    pub fn listen(&self) -> io::Result<UnixListener> {
        UnixListener::bind(self.socket_path())
    }

    fn namespace_path(&self) -> PathBuf {
        Path::new(NAMESPACES_DIR).join(&self.name.0)
    }

    /// Names the calling thread's network namespace after the link, and writes the metadata.
    pub fn take_namespace(&mut self, far: Ipv4Addr) -> io::Result<()> {
        let namespace = identity(Path::new(OWN_NAMESPACE))?;
        let number = process::id();
        let about = json!({
            "process": number,
            "started": start_time_ticks(number)?,
            "namespace": [namespace.0, namespace.1],
            "far": far.to_string(),
        });
        // Written before the name exists, so that remains can always be distinguished from others' namespaces.
        fs::write(self.directory.join("about"), about.to_string())?;
        share_namespaces()?;
        let path = self.namespace_path();
        OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path)?;
        Ok(mount_bind(OWN_NAMESPACE, &path)?)
    }

    fn metadata(&self) -> io::Result<Value> {
        Ok(serde_json::from_slice(&fs::read(self.directory.join("about"))?)?)
    }

    pub fn far_address(&self) -> io::Result<Ipv4Addr> {
        let about = self.metadata()?;
        let far = about["far"].as_str().and_then(|far| far.parse().ok());
        far.ok_or_else(|| io::Error::other("its metadata cannot be parsed"))
    }

    /// The link's namespace; an error if its name now refers to another one.
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
        self.metadata().is_ok_and(|about| about["namespace"] == json!([found.0, found.1]))
    }

    /// Kills the process that forwards the packets, if it is still the recorded one.
    pub fn kill_relay(&self) -> io::Result<()> {
        let about = self.metadata()?;
        let number =
            about["process"].as_u64().and_then(|number| u32::try_from(number).ok()).unwrap_or_default();
        let Some(pid) = Pid::from_raw(number.cast_signed()) else {
            return Err(io::Error::other("its metadata cannot be parsed"));
        };
        let relay = pidfd_open(pid, PidfdFlags::empty())?;
        // The pidfd now refers to one process; its start time shows whether it is the right one.
        if start_time_ticks(number)? != about["started"] {
            return Err(io::Error::other("its relay has exited, and its PID was reused"));
        }
        pidfd_send_signal(&relay, Signal::KILL)?;
        let until = Timespec { tv_sec: 5, tv_nsec: 0 };
        poll(&mut [PollFd::new(&relay, PollFlags::IN)], Some(&until))?;
        Ok(())
    }

    /// Removes the namespace's name and the directory. Processes in the namespace keep it, without connectivity.
    pub fn remove(&self) -> io::Result<()> {
        let path = self.namespace_path();
        if let Ok(namespace) = self.namespace() {
            // A kernel link keeps forwarding while a process is in the namespace.
            netem::take_down(&namespace)?;
            unmount(&path, UnmountFlags::DETACH)?;
        }
        // Without a mounted namespace, the name is an empty file created for it.
        if self.metadata().is_ok()
            && fs::metadata(&path)
                .is_ok_and(|file| file.is_file() && file.len() == 0 && !is_namespace_file(&path))
        {
            fs::remove_file(&path)?;
        }
        fs::remove_dir_all(&self.directory)
    }
}

impl Drop for LinkDirectory {
    fn drop(&mut self) {
        if self.is_created_here {
            // A directory that cannot be removed is found as stale.
            let _ = self.remove();
        }
    }
}

/// The identity of a namespace.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Returns true if a namespace is mounted at a path, that is, if it is on the namespace file system.
fn is_namespace_file(path: &Path) -> bool {
    let device = |path: &Path| identity(path).map(|(device, _)| device).ok();
    device(path) == device(Path::new(OWN_NAMESPACE))
}

/// The start time of a process, in ticks since boot: with the PID, it identifies a process during one boot.
fn start_time_ticks(number: u32) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/{number}/stat"))?;
    // The process name, in parentheses, may contain any character.
    let fields = text.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    let started = fields.and_then(|mut fields| fields.nth(19)?.parse().ok());
    started.ok_or_else(|| io::Error::other("/proc/PID/stat has no start time"))
}

/// Makes mounts of namespace names visible in other mount namespaces, like `ip netns`.
fn share_namespaces() -> io::Result<()> {
    fs::create_dir_all(NAMESPACES_DIR)?;
    let flags = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    if mount_change(NAMESPACES_DIR, flags).is_err() {
        // It is not a mount point yet.
        mount_bind_recursive(NAMESPACES_DIR, NAMESPACES_DIR)?;
        mount_change(NAMESPACES_DIR, flags)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_parse_rejects_path_components() {
        for valid in ["sydney", "a", "50ms-0.1", "A_b"] {
            assert_eq!(LinkName::parse(valid).unwrap().to_string(), valid);
        }
        for bad in ["", ".", "..", "a/b", "-x", ".x", "a b", "ä", &"a".repeat(65)] {
            assert!(LinkName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn started_is_stable_per_process() {
        let own = start_time_ticks(process::id()).unwrap();
        assert_eq!(start_time_ticks(process::id()).unwrap(), own);
        assert!(start_time_ticks(1).unwrap() < own);
    }
}
