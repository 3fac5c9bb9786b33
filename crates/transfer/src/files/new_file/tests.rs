//! Files that are written into a directory while others change it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::files::{Directory, ObjectVersion};
use crate::journal::JournalDirectory;

fn directory(root: &Path) -> Directory {
    Directory::new(root.to_owned()).unwrap()
}

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    fs::read(path).unwrap()
}

#[test]
fn private_file_is_owner_only_until_it_is_finished() {
    let root = tempfile::tempdir().unwrap();
    let directory = directory(root.path());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    // The small file is unnamed if the file system supports that, the large one has a temporary name.
    for (name, size) in [("small", 1), ("large", MIN_PREALLOCATE_BYTES + 1)] {
        let mut file = directory.create_file(Path::new(name), size, Arc::default(), true).unwrap();
        if let Some(unfinished) = file.draft.name() {
            assert_eq!(mode(&root.path().join(unfinished)), 0o600);
        }
        // Without a mode it gets the default of new files.
        file.finish(&Attributes::default()).unwrap();
        assert_eq!(mode(&root.path().join(name)), default_file_mode().unwrap());
    }
    let mut file = directory.create_file(Path::new("small"), 1, Arc::default(), true).unwrap();
    file.finish(&Attributes { mode: Some(0o640), ..Attributes::default() }).unwrap();
    assert_eq!(mode(&root.path().join("small")), 0o640);
}

/// `back/d` is replaced by a link to `out` while a file is written, with and without a temporary name.
#[test]
fn directory_replaced_by_a_link_is_not_written_through() {
    for size in [1, MIN_PREALLOCATE_BYTES + 1] {
        let scene = tempfile::tempdir().unwrap();
        let path = |name: &str| scene.path().join(name);
        fs::create_dir_all(path("back/d")).unwrap();
        fs::create_dir_all(path("out")).unwrap();
        let directory = directory(&path("back"));
        let mut file = directory.create_file(Path::new("d/file"), size, Arc::default(), false).unwrap();
        file.write_at(0, b"x").unwrap();
        fs::rename(path("back/d"), path("moved")).unwrap();
        symlink(path("out"), path("back/d")).unwrap();
        let refused = file.finish(&Attributes::default()).unwrap_err();
        assert!(refused.to_string().contains("back/d is a symbolic link"), "{refused}");
        drop(file);
        let created = directory.create_file(Path::new("d/other"), size, Arc::default(), false);
        assert_eq!(created.unwrap_err().reason(), Reason::InvalidKey);
        for empty in ["out", "moved"] {
            assert_eq!(fs::read_dir(path(empty)).unwrap().count(), 0, "{empty}");
        }
        assert_eq!(directory.remove(Path::new("d/file")).unwrap_err().reason(), Reason::InvalidKey);
    }
}

#[test]
fn removal_follows_no_link() {
    let scene = tempfile::tempdir().unwrap();
    let path = |name: &str| scene.path().join(name);
    fs::create_dir_all(path("back/d")).unwrap();
    fs::create_dir_all(path("out")).unwrap();
    fs::write(path("out/victim"), "precious").unwrap();
    symlink(path("out"), path("back/away")).unwrap();
    symlink(path("out/victim"), path("back/d/link")).unwrap();
    let directory = directory(&path("back"));
    assert!(directory.remove(Path::new("away/victim")).is_err());
    directory.remove(Path::new("d/link")).unwrap();
    assert_eq!(read(path("out/victim")), b"precious");
    assert!(!path("back/d").exists(), "empty directories are removed");
}

/// A removal deletes an empty directory while an unnamed file is written into it.
#[test]
fn concurrently_removed_directory_is_created_again() {
    for size in [1, MIN_PREALLOCATE_BYTES + 1] {
        let root = tempfile::tempdir().unwrap();
        let directory = directory(root.path());
        fs::create_dir_all(root.path().join("d/e")).unwrap();
        fs::write(root.path().join("d/e/old"), "old").unwrap();
        let mut file = directory.create_file(Path::new("d/e/new"), size, Arc::default(), false).unwrap();
        file.write_at(0, b"new").unwrap();
        directory.remove(Path::new("d/e/old")).unwrap();
        file.finish(&Attributes::default()).unwrap();
        assert_eq!(read(root.path().join("d/e/new")), b"new");
    }
}

#[test]
fn link_to_an_open_descriptor_is_not_replaced() {
    use std::os::fd::AsRawFd as _;
    let scene = tempfile::tempdir().unwrap();
    let path = |name: &str| scene.path().join(name);
    fs::write(path("target"), "kept").unwrap();
    let open = fs::File::open(path("target")).unwrap();
    symlink(format!("/proc/self/fd/{}", open.as_raw_fd()), path("descriptor")).unwrap();
    symlink("descriptor", path("twice")).unwrap();
    symlink("/dev/null", path("device")).unwrap();
    symlink("target", path("plain")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    symlink("circle", path("circle")).unwrap();
    let directory = directory(scene.path());
    for size in [1, MIN_PREALLOCATE_BYTES + 1] {
        let end = |name: &str| {
            let mut file = directory.create_file(Path::new(name), size, Arc::default(), false)?;
            file.finish(&Attributes::default())
        };
        for name in ["descriptor", "twice"] {
            let refused = end(name).unwrap_err().to_string();
            assert!(refused.contains("leads to an open file of a process"), "{refused}");
        }
        assert!(end("device").unwrap_err().to_string().contains("is a link to something that is not a file"));
        assert!(fs::symlink_metadata(path("descriptor")).unwrap().is_symlink());
        for name in ["plain", "dangling", "circle"] {
            end(name).unwrap();
            assert!(fs::symlink_metadata(path(name)).unwrap().is_file(), "{name} is replaced");
        }
        assert_eq!(read(path("target")), b"kept");
    }
}

/// An unfinished file is resumed only if it is the one that the journal records.
#[test]
fn planted_unfinished_file_is_not_written_to() {
    type Plant = fn(&Path, &Path);
    let plants: [(&str, Plant); 3] = [
        ("a symlink", |victim, at| symlink(victim, at).unwrap()),
        ("a hard link", |victim, at| fs::hard_link(victim, at).unwrap()),
        ("another file", |_, at| fs::write(at, "planted").unwrap()),
    ];
    for (what, plant) in plants {
        let scene = tempfile::tempdir().unwrap();
        let victim = scene.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        let journal = JournalDirectory::new(scene.path().join("journals"), "store".to_owned());
        let begin = |directory: &Directory| {
            let (entry, version) =
                (journal.open("from", "to").unwrap(), ObjectVersion { size: 3, etag: "one" });
            directory.resume_file(Path::new("file"), &version, Arc::default(), entry, false).unwrap()
        };
        let directory = directory(&scene.path().join("back"));
        let first = begin(&directory);
        first.write_at(0, b"abc").unwrap();
        let unfinished = scene.path().join("back").join(first.draft.name().unwrap());
        drop(first);
        assert_eq!(read(&unfinished), b"abc", "a recorded file is not removed on drop");
        let again = begin(&directory);
        assert_eq!(again.draft.name(), unfinished.file_name(), "the recorded file is resumed");
        drop(again);
        fs::remove_file(&unfinished).unwrap();
        plant(&victim, &unfinished);
        let mut file = begin(&directory);
        file.write_at(0, b"xyz").unwrap();
        file.finish(&Attributes::default()).unwrap();
        assert_eq!(read(&victim), b"precious", "{what}");
        let made = scene.path().join("back/file");
        assert!(fs::symlink_metadata(&made).unwrap().is_file() && read(&made) == b"xyz", "{what}");
        assert_eq!(fs::read_dir(scene.path().join("back")).unwrap().count(), 1, "{what} is gone");
    }
}

#[test]
fn file_larger_than_the_disk_reserves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let free = || free_bytes(&fstatfs(fs::File::open(root.path()).unwrap()).unwrap());
    let refused =
        directory(root.path()).create_file(Path::new("file"), free() * 2, Arc::default(), false).unwrap_err();
    assert_eq!(refused.reason(), Reason::Full);
    assert!(refused.to_string().contains("its disk has"), "reported before anything is reserved: {refused}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

/// Removals delete directories as soon as they are empty, while creations need them. Neither may fail.
#[test]
fn concurrent_writes_and_removals_do_not_fail() {
    let root = tempfile::tempdir().unwrap();
    let directory = directory(root.path());
    for round in 0..200 {
        for old in ["d/e/f/old", "d/e/older"] {
            fs::create_dir_all(root.path().join(old).parent().unwrap()).unwrap();
            fs::write(root.path().join(old), "old").unwrap();
        }
        let write = |name: &str, size| {
            let mut file = directory.create_file(Path::new(name), size, Arc::default(), false)?;
            file.write_at(0, b"new")?;
            file.finish(&Attributes::default())
        };
        std::thread::scope(|scope| {
            let tasks = [
                scope.spawn(|| directory.remove(Path::new("d/e/f/old"))),
                scope.spawn(|| directory.remove(Path::new("d/e/older"))),
                scope.spawn(|| write("d/e/f/new", 3)),
                scope.spawn(|| write("d/e/g/h/new", MIN_PREALLOCATE_BYTES + 1)),
            ];
            for task in tasks {
                task.join().unwrap().unwrap_or_else(|e| panic!("round {round}: {e}"));
            }
        });
        for name in ["d/e/f/new", "d/e/g/h/new"] {
            assert_eq!(read(root.path().join(name)), b"new");
            directory.remove(Path::new(name)).unwrap();
        }
        assert!(!root.path().join("d").exists());
    }
}

#[test]
fn concurrent_transfers_to_one_name_all_succeed() {
    let root = tempfile::tempdir().unwrap();
    let directory = directory(root.path());
    std::thread::scope(|scope| {
        for n in 0..8_u8 {
            let directory = &directory;
            scope.spawn(move || {
                for _ in 0..50 {
                    let size = MIN_PREALLOCATE_BYTES + 1;
                    let mut file =
                        directory.create_file(Path::new("file"), size, Arc::default(), false).unwrap();
                    file.write_at(0, &[n]).unwrap();
                    file.finish(&Attributes::default()).unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
}

#[test]
fn missing_directory_with_dot_dot_is_rejected() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("there")).unwrap();
    for bad in ["new/..", "new/../there/sub", "there/new/../../x", "new/a/../b"] {
        let refused = Directory::new(root.path().join(bad)).unwrap_err();
        assert!(refused.to_string().contains("write it without .."), "{refused}");
    }
    for valid in ["there/..", "there/../new", "new/a/b"] {
        Directory::new(root.path().join(valid)).unwrap();
    }
}
