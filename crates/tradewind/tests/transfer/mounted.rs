//! `sync --watch --delete` where file systems come and go below the directory, or with it: what they take out of sight
//! stays in the bucket.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::Signal;

use super::Scene;
use super::watched;
use crate::support::caller::Running;
use crate::support::{self, eventually};

/// File systems in memory; all that are left are unmounted in the end.
struct Mounted(PathBuf);

impl Mounted {
    /// `None`, with a line that says why, where nothing can be mounted.
    fn at(path: PathBuf, test: &str) -> Option<Self> {
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
        eventually("nobody looks into it", || unmount(&self.0, UnmountFlags::empty()).is_ok());
    }

    /// It is there for as long as something is open, and told of by no event.
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

/// Watches `here`, and compares everything all the time.
fn watch(scene: &Scene) -> Running {
    let flags = ["--settle", "100ms", "--compare-every", "300ms", "-q"];
    scene.caller.begin(&[&["sync", "--watch", "--delete", "here", "s3://bucket"], &flags[..]].concat())
}

/// Comes back when everything was compared, from now on.
fn compared(scene: &Scene) {
    for _ in 0..2 {
        scene.store("z-stray", b"is nowhere here");
        eventually("a comparison", || !scene.names().contains(&"z-stray".to_owned()));
    }
}

fn names_below(root: &Path) -> [PathBuf; 2] {
    [root.join("x"), root.join("dir/y")]
}

#[test]
fn what_a_file_system_took_along_stays() {
    let test = "what_a_file_system_took_along_stays";
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
        let scene = Scene::new();
        for name in ["first", "goes", "disk.txt"] {
            scene.caller.write(format!("here/{name}"), name);
        }
        // In octal where the system tells of it.
        let Some(disk) = Mounted::at(scene.caller.path("here/a disk"), test) else { return };
        for path in names_below(Path::new("here/a disk")) {
            scene.caller.write(path, "of the disk");
        }
        let running = watch(&scene);
        let all = ["a disk/dir/y", "a disk/x", "disk.txt", "first", "goes"];
        eventually(what, || scene.names() == all);
        let open = go(&disk);
        assert!(!disk.0.join("x").exists(), "{what}");
        // All else goes on.
        fs::remove_file(scene.caller.path("here/goes")).unwrap();
        eventually("what is removed goes", || !scene.names().contains(&"goes".to_owned()));
        scene.caller.write("here/a disk/new", "below it");
        eventually("what is there now is sent", || scene.names().contains(&"a disk/new".to_owned()));
        compared(&scene);
        assert_eq!(scene.names(), ["a disk/dir/y", "a disk/new", "a disk/x", "disk.txt", "first"], "{what}");
        running.signal(Signal::TERM);
        let ran = running.end();
        let said = "tradewind: something was mounted or unmounted at here/a disk: what is missing there is not removed; \
                    start the command again if it is to be\n\
                    tradewind: 1 failed and were not made good\n";
        assert_eq!((ran.status.code(), ran.err.as_str()), (Some(1), said), "{what}");
        drop(open);
        // Whoever means it gets it.
        let again = watch(&scene);
        eventually(what, || scene.names() == ["a disk/new", "disk.txt", "first"]);
        again.signal(Signal::TERM);
        assert_eq!(again.end().status.code(), Some(0), "{what}");
    }
}

#[test]
fn what_came_and_went_while_it_was_watched_stays() {
    let scene = Scene::new();
    scene.caller.write("here/first", "1");
    let running = watch(&scene);
    eventually("the first comparison", || scene.names() == ["first"]);
    let Some(disk) =
        Mounted::at(scene.caller.path("here/disk"), "what_came_and_went_while_it_was_watched_stays")
    else {
        return;
    };
    names_below(Path::new("here/disk")).iter().for_each(|path| scene.caller.write(path, "of the disk"));
    let all = ["disk/dir/y", "disk/x", "first"];
    eventually("all of it", || scene.names() == all);
    let _open = disk.unmount_lazily();
    compared(&scene);
    assert_eq!(scene.names(), all);
    running.signal(Signal::TERM);
    let ran = running.end();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(
        ran.err.starts_with("tradewind: something was mounted or unmounted at here/disk: "),
        "{}",
        ran.err
    );
}

/// Events alone lead to all of it.
#[test]
fn what_a_file_system_hid_is_watched_when_it_is_unmounted() {
    let scene = Scene::new();
    scene.caller.write("here/first", "1");
    scene.caller.write("here/disk/dir/hidden", "below the disk");
    let test = "what_a_file_system_hid_is_watched_when_it_is_unmounted";
    let Some(disk) = Mounted::at(scene.caller.path("here/disk"), test) else { return };
    scene.caller.write("here/disk/x", "of the disk");
    let running = watched::watch(&scene, &["--delete", "-q"]);
    eventually("all of it", || scene.names() == ["disk/x", "first"]);
    scene.store("z-stray", b"is nowhere here");
    disk.unmount();
    eventually("a comparison", || scene.names() == ["disk/dir/hidden", "disk/x", "first"]);
    scene.caller.write("here/disk/dir/new", "below it");
    eventually("what is there now is sent", || scene.names().contains(&"disk/dir/new".to_owned()));
    running.signal(Signal::TERM);
    let ran = running.end();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
}

/// Removals within a file system that stays are no different from others.
#[test]
fn what_is_removed_on_a_file_system_that_stays_goes() {
    let scene = Scene::new();
    let test = "what_is_removed_on_a_file_system_that_stays_goes";
    let Some(disk) = Mounted::at(scene.caller.path("here/disk"), test) else { return };
    names_below(Path::new("here/disk")).iter().for_each(|path| scene.caller.write(path, "of the disk"));
    let running = watch(&scene);
    eventually("all of it", || scene.names() == ["disk/dir/y", "disk/x"]);
    fs::remove_file(disk.0.join("x")).unwrap();
    eventually("one is gone", || scene.names() == ["disk/dir/y"]);
    running.signal(Signal::TERM);
    let ran = running.end();
    assert_eq!((ran.status.code(), ran.err.as_str()), (Some(0), ""));
}

#[test]
fn where_the_directory_itself_is_unmounted_nothing_is_removed() {
    let test = "where_the_directory_itself_is_unmounted_nothing_is_removed";
    for is_lazy in [false, true] {
        let scene = Scene::new();
        let Some(root) = Mounted::at(scene.caller.path("here"), test) else { return };
        names_below(Path::new("here")).iter().for_each(|path| scene.caller.write(path, "of the disk"));
        let running = watch(&scene);
        eventually("all of it", || scene.names() == ["dir/y", "x"]);
        let open = is_lazy.then(|| root.unmount_lazily());
        if open.is_none() {
            root.unmount();
        }
        let ran = running.end();
        drop(open);
        let why = "tradewind: here is no longer the directory that it was; nothing more is carried or removed for it\n";
        assert_eq!((ran.status.code(), ran.err.as_str()), (Some(1), why), "lazily: {is_lazy}");
        assert_eq!(scene.names(), ["dir/y", "x"], "lazily: {is_lazy}");
    }
}
