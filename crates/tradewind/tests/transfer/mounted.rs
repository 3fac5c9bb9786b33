//! `sync --watch --delete` while file systems are mounted and unmounted at or below the directory: files that they hide
//! stay in the bucket.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;

use super::TestStore;
use super::watched;
use crate::support::command_runner::RunningCommand;
use crate::support::{self, eventually};

/// Mount point of in-memory file systems. Dropping it unmounts all that remain.
struct Mounted(PathBuf);

impl Mounted {
    /// Mounts a file system. Returns `None` and reports the test as skipped if that is not possible.
    fn new(path: PathBuf, test: &str) -> Option<Self> {
        fs::create_dir_all(&path).unwrap();
        let mounted = Self(path);
        match mounted.mount() {
            Ok(()) => Some(mounted),
            Err(e) => {
                support::skip(test, &format!("cannot mount a file system: {e}"));
                None
            }
        }
    }

    fn mount(&self) -> rustix::io::Result<()> {
        mount("tmpfs", &self.0, "tmpfs", MountFlags::empty(), c"size=1m")
    }

    fn unmount(&self) {
        eventually("the mount point is not in use", || unmount(&self.0, UnmountFlags::empty()).is_ok());
    }

    /// Detaches the file system, which lives until the returned file is closed. No event reports that.
    fn unmount_lazily(&self) -> File {
        let open = File::open(self.0.join("x")).unwrap();
        unmount(&self.0, UnmountFlags::DETACH).unwrap();
        open
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        while unmount(&self.0, UnmountFlags::DETACH).is_ok() {}
    }
}

/// Watches `here` with frequent full comparisons.
fn watch(scene: &TestStore) -> RunningCommand {
    let flags = ["--debounce", "100ms", "--compare-every", "300ms", "-q"];
    scene.runner.spawn(&[&["sync", "--watch", "--delete", "here", "s3://bucket"], &flags[..]].concat())
}

/// Waits for a full comparison that starts after the call.
fn wait_for_comparison(scene: &TestStore) {
    for _ in 0..2 {
        scene.store("z-stray", b"is nowhere here");
        eventually("a comparison", || !scene.names().contains(&"z-stray".to_owned()));
    }
}

fn names_below(root: &Path) -> [PathBuf; 2] {
    [root.join("x"), root.join("dir/y")]
}

#[test]
fn files_hidden_by_a_mount_or_unmount_are_not_removed() {
    let test = "files_hidden_by_a_mount_or_unmount_are_not_removed";
    let unmounted: fn(&Mounted) -> Option<File> = |disk| {
        disk.unmount();
        None
    };
    let lazily: fn(&Mounted) -> Option<File> = |disk| Some(disk.unmount_lazily());
    let covered: fn(&Mounted) -> Option<File> = |disk| {
        disk.mount().unwrap();
        None
    };
    for (what, go) in [("unmounted", unmounted), ("lazily", lazily), ("covered", covered)] {
        let scene = TestStore::new();
        for name in ["first", "goes", "disk.txt"] {
            scene.runner.write(format!("here/{name}"), name);
        }
        // The mount table escapes the space in octal.
        let Some(disk) = Mounted::new(scene.runner.path("here/a disk"), test) else { return };
        for path in names_below(Path::new("here/a disk")) {
            scene.runner.write(path, "of the disk");
        }
        let running = watch(&scene);
        let all = ["a disk/dir/y", "a disk/x", "disk.txt", "first", "goes"];
        eventually(what, || scene.names() == all);
        let open = go(&disk);
        assert!(!disk.0.join("x").exists(), "{what}");
        // Everything else is still synced.
        fs::remove_file(scene.runner.path("here/goes")).unwrap();
        eventually("removal of the object", || !scene.names().contains(&"goes".to_owned()));
        scene.runner.write("here/a disk/new", "below it");
        eventually("upload of the new file", || scene.names().contains(&"a disk/new".to_owned()));
        wait_for_comparison(&scene);
        assert_eq!(scene.names(), ["a disk/dir/y", "a disk/new", "a disk/x", "disk.txt", "first"], "{what}");
        running.signal(Signal::TERM);
        let ran = running.wait_for_output();
        let expected = "tradewind: something was mounted or unmounted at here/a disk: files missing there are not removed \
                    from the destination; restart the command to remove them\n\
                    tradewind: 1 failed, and no retry succeeded\n";
        assert_eq!((ran.status.code(), ran.err.as_str()), (Some(1), expected), "{what}");
        drop(open);
        // A restarted command removes them.
        let again = watch(&scene);
        eventually(what, || scene.names() == ["a disk/new", "disk.txt", "first"]);
        again.signal(Signal::TERM);
        assert_eq!(again.wait_for_output().status.code(), Some(0), "{what}");
    }
}

#[test]
fn files_of_a_temporary_mount_are_not_removed() {
    let scene = TestStore::new();
    scene.runner.write("here/first", "1");
    let running = watch(&scene);
    eventually("the first comparison", || scene.names() == ["first"]);
    let Some(disk) =
        Mounted::new(scene.runner.path("here/disk"), "files_of_a_temporary_mount_are_not_removed")
    else {
        return;
    };
    names_below(Path::new("here/disk")).iter().for_each(|path| scene.runner.write(path, "of the disk"));
    let all = ["disk/dir/y", "disk/x", "first"];
    eventually("upload of all files", || scene.names() == all);
    let _open = disk.unmount_lazily();
    wait_for_comparison(&scene);
    assert_eq!(scene.names(), all);
    running.signal(Signal::TERM);
    let ran = running.wait_for_output();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(
        ran.err.starts_with("tradewind: something was mounted or unmounted at here/disk: "),
        "{}",
        ran.err
    );
}

/// Only events trigger the actions of this test.
#[test]
fn files_revealed_by_an_unmount_are_watched() {
    let scene = TestStore::new();
    scene.runner.write("here/first", "1");
    scene.runner.write("here/disk/dir/hidden", "below the disk");
    let test = "files_revealed_by_an_unmount_are_watched";
    let Some(disk) = Mounted::new(scene.runner.path("here/disk"), test) else { return };
    scene.runner.write("here/disk/x", "of the disk");
    let running = watched::watch(&scene, &["--delete", "-q"]);
    eventually("upload of all files", || scene.names() == ["disk/x", "first"]);
    scene.store("z-stray", b"is nowhere here");
    disk.unmount();
    eventually("a full comparison", || scene.names() == ["disk/dir/hidden", "disk/x", "first"]);
    scene.runner.write("here/disk/dir/new", "below it");
    eventually("upload of the new file", || scene.names().contains(&"disk/dir/new".to_owned()));
    running.signal(Signal::TERM);
    let ran = running.wait_for_output();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
}

/// Removals on a file system that stays mounted are mirrored as usual.
#[test]
fn removals_on_a_mounted_file_system_are_mirrored() {
    let scene = TestStore::new();
    let test = "removals_on_a_mounted_file_system_are_mirrored";
    let Some(disk) = Mounted::new(scene.runner.path("here/disk"), test) else { return };
    names_below(Path::new("here/disk")).iter().for_each(|path| scene.runner.write(path, "of the disk"));
    let running = watch(&scene);
    eventually("upload of all files", || scene.names() == ["disk/dir/y", "disk/x"]);
    fs::remove_file(disk.0.join("x")).unwrap();
    eventually("removal of one object", || scene.names() == ["disk/dir/y"]);
    running.signal(Signal::TERM);
    let ran = running.wait_for_output();
    assert_eq!((ran.status.code(), ran.err.as_str()), (Some(0), ""));
}

#[test]
fn unmount_of_the_watched_directory_removes_nothing() {
    let test = "unmount_of_the_watched_directory_removes_nothing";
    for is_lazy in [false, true] {
        let scene = TestStore::new();
        let Some(root) = Mounted::new(scene.runner.path("here"), test) else { return };
        names_below(Path::new("here")).iter().for_each(|path| scene.runner.write(path, "of the disk"));
        let running = watch(&scene);
        eventually("upload of all files", || scene.names() == ["dir/y", "x"]);
        let open = is_lazy.then(|| root.unmount_lazily());
        if open.is_none() {
            root.unmount();
        }
        let ran = running.wait_for_output();
        drop(open);
        let why = "tradewind: here is no longer the directory that was watched; nothing more is copied or removed\n";
        assert_eq!((ran.status.code(), ran.err.as_str()), (Some(1), why), "lazily: {is_lazy}");
        assert_eq!(scene.names(), ["dir/y", "x"], "lazily: {is_lazy}");
    }
}
