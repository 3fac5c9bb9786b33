//! Small file systems, for what becomes of those who fill them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::caller::Caller;
use super::skip;

/// A small file system in the caller's directory, gone when dropped.
pub struct Disk(PathBuf);

impl Disk {
    /// In memory.
    pub fn tmpfs(caller: &Caller, mebibytes: u32) -> Option<Self> {
        Self::mount(caller, &["-t", "tmpfs", "-o", &format!("size={mebibytes}m"), "tmpfs"])
    }

    /// In a file.
    pub fn ext4(caller: &Caller, mebibytes: u64) -> Option<Self> {
        let image = caller.path("image");
        fs::File::create(&image).unwrap().set_len(mebibytes << 20).unwrap();
        match Command::new("mkfs.ext4").arg("-q").arg(&image).output() {
            Ok(made) if made.status.success() => {
                Self::mount(caller, &["-o", "loop", image.to_str().unwrap()])
            }
            made => {
                skip("disk", &format!("no ext4 can be made: {made:?}"));
                None
            }
        }
    }

    /// `None`, with a line that says why, where nothing can be mounted.
    pub fn mount(caller: &Caller, what: &[&str]) -> Option<Self> {
        let place = caller.path("disk");
        fs::create_dir(&place).unwrap();
        let why = match Command::new("mount").args(what).arg(&place).output() {
            Ok(output) if output.status.success() => return Some(Self(place)),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(e) => e.to_string(),
        };
        skip("disk", &format!("{what:?} cannot be mounted: {why}"));
        None
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}
