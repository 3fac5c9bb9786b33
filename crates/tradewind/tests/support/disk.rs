//! Small file systems, for tests of full disks.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::command_runner::CommandRunner;
use super::skip;

/// A small file system in the caller's directory, unmounted when dropped.
pub struct Disk(PathBuf);

impl Disk {
    /// A file system in memory.
    pub fn tmpfs(caller: &CommandRunner, mebibytes: u32) -> Option<Self> {
        Self::mount(caller, &["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
    }

    /// An ext4 in a file.
    pub fn ext4(caller: &CommandRunner, mebibytes: u64) -> Option<Self> {
        let image = caller.path("image");
        fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        match Command::new("mkfs.ext4").arg("-q").arg(&image).output() {
            Ok(output) if output.status.success() => {
                Self::mount(caller, &["-o", "loop", image.to_str().unwrap()])
            }
            failed => {
                skip("disk", &format!("cannot create an ext4: {failed:?}"));
                None
            }
        }
    }

    /// Mounts a file system; `None`, with the reason reported, if it cannot be mounted.
    pub fn mount(caller: &CommandRunner, what: &[&str]) -> Option<Self> {
        let path = caller.path("disk");
        fs::create_dir(&path).unwrap();
        let why = match Command::new("mount").args(what).arg(&path).output() {
            Ok(output) if output.status.success() => return Some(Self(path)),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(e) => e.to_string(),
        };
        skip("disk", &format!("cannot mount {what:?}: {why}"));
        None
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}
