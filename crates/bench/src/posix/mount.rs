//! The file system that a directory is on, according to the kernel's mount table.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A mounted file system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// File system type: `ext4`, `nfs4`, `fuse.rclone`.
    pub fs_type: String,
    /// The device, or the server and its export.
    pub source: String,
    /// The mount point.
    pub mount_point: String,
    /// Mount options, followed by those of the file system.
    pub options: String,
}

impl Mount {
    /// The mount that contains `directory`; all fields are empty if it cannot be determined.
    #[must_use]
    pub fn containing(directory: &Path) -> Self {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        fs::canonicalize(directory).ok().and_then(|path| find(&table, &path)).unwrap_or_default()
    }
}

/// The deepest mount that contains `path`. Of several at the same depth, the last one covers the others.
fn find(table: &str, path: &Path) -> Option<Mount> {
    let mounts = table.lines().filter_map(|line| {
        let (head, tail) = line.split_once(" - ")?;
        let head: Vec<&str> = head.split(' ').collect();
        let mut tail = tail.split(' ');
        let mount_point = PathBuf::from(unescaped(head.get(4)?));
        let (fs_type, source) = (tail.next()?.to_owned(), unescaped(tail.next()?));
        let options = format!("{},{}", head.get(5)?, tail.next().unwrap_or_default());
        path.starts_with(&mount_point).then(|| {
            (
                mount_point.components().count(),
                Mount { fs_type, source, mount_point: mount_point.display().to_string(), options },
            )
        })
    });
    mounts.max_by_key(|(depth, _)| *depth).map(|(_, mount)| mount)
}

/// Decodes the octal escapes of spaces, tabs, line feeds and backslashes.
fn unescaped(field: &str) -> String {
    let mut text = field.to_owned();
    for (code, letter) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
        text = text.replace(code, letter);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn find_returns_the_deepest_and_last_mount() {
        let table = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n\
             30 22 0:5 / /mnt/a\\040b rw - tmpfs tmpfs rw,size=10k\n\
             31 30 0:6 / /mnt/a\\040b rw,sync master:3 - nfs4 server:/x rw,vers=4.2\n\
             32 22 0:7 / /mnt/a rw - ext4 /dev/sdb rw\n";
        let nfs = find(table, Path::new("/mnt/a b/c")).unwrap();
        assert_eq!((&*nfs.fs_type, &*nfs.source, &*nfs.mount_point), ("nfs4", "server:/x", "/mnt/a b"));
        assert_eq!(nfs.options, "rw,sync,rw,vers=4.2");
        assert_eq!(find(table, Path::new("/mnt/ab")).unwrap().mount_point, "/");
        assert_eq!(find("", Path::new("/")), None);
    }

    #[test]
    fn mount_of_proc_has_a_file_system_type() {
        assert!(!Mount::containing(Path::new("/proc")).fs_type.is_empty());
    }
}
