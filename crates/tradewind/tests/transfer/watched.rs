//! `sync --watch`: changes of a directory are uploaded after a quiet period, removals are mirrored with `--delete`, and
//! nothing is removed if the directory itself is gone.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{TestStore, content};
use crate::support::command_runner::{CommandOutput, RunningCommand};
use crate::support::eventually;

/// Watches `here` as the source of the whole bucket. After the first comparison only events trigger actions.
pub fn watch(scene: &TestStore, flags: &[&str]) -> RunningCommand {
    watch_settling(scene, "300ms", flags)
}

fn watch_settling(scene: &TestStore, settle: &str, flags: &[&str]) -> RunningCommand {
    let fixed = ["sync", "--watch", "--debounce", settle, "--compare-every", "1h", "here", "s3://bucket"];
    let running = scene.runner.spawn(&[&fixed[..], flags].concat());
    // Inotify watches exist before the first comparison.
    eventually("the first comparison", || scene.names().contains(&"first".to_owned()));
    running
}

fn scene() -> TestStore {
    let scene = TestStore::new();
    scene.runner.write("here/first", "1");
    scene
}

fn are(scene: &TestStore, what: &str, names: &[&str]) {
    eventually(what, || scene.names() == names);
}

/// Stops the command, which must succeed.
fn stop(running: RunningCommand, signal: Signal) -> CommandOutput {
    running.signal(signal);
    let ran = running.wait_for_output();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    ran
}

#[test]
fn created_and_changed_files_are_uploaded() {
    let scene = scene();
    let running = watch(&scene, &["--json", "--exclude", "*.tmp"]);
    scene.runner.write("here/new", "2");
    scene.runner.write("here/no.tmp", "2");
    are(&scene, "a new file", &["first", "new"]);
    scene.runner.write("here/new", "changed");
    eventually("the changed file is uploaded", || scene.holds("new", b"changed"));
    scene.runner.write("here/large", content(3, 30 << 20));
    eventually("the large file is uploaded", || scene.names().contains(&"large".to_owned()));
    assert!(scene.read("large") == content(3, 30 << 20));
    fs::remove_file(scene.runner.path("here/new")).unwrap();
    fs::rename(scene.runner.path("here/large"), scene.runner.path("here/renamed")).unwrap();
    are(&scene, "nothing is removed without --delete", &["first", "large", "new", "renamed"]);
    let ran = stop(running, Signal::INT);
    let end: serde_json::Value = serde_json::from_slice(&ran.out).unwrap();
    assert_eq!(
        (&end["copied"], &end["removed"], &end["failed"]),
        (&5.into(), &0.into(), &0.into()),
        "{ran:?}"
    );
    let lines: Vec<&str> = ran.err.lines().collect();
    assert_eq!(lines[..2], ["copied first", "in sync; waiting for changes"]);
}

#[test]
fn removals_and_renames_are_mirrored_with_delete() {
    let scene = scene();
    for name in ["a", "b", "dir/x", "dir/deep/y", "dirt"] {
        scene.runner.write(format!("here/{name}"), name);
    }
    scene.store("stray", b"was never here");
    let running = watch(&scene, &["--delete", "-q"]);
    are(&scene, "upload of all files", &["a", "b", "dir/deep/y", "dir/x", "dirt", "first"]);
    // An object of another client is removed only by a full comparison.
    scene.store("dir/other", b"of somebody else");
    let here = |name: &str| scene.runner.path("here").join(name);
    fs::remove_file(here("a")).unwrap();
    fs::rename(here("b"), here("c")).unwrap();
    are(&scene, "removal and renaming of files", &["c", "dir/deep/y", "dir/other", "dir/x", "dirt", "first"]);
    fs::remove_file(here("dir/x")).unwrap();
    scene.runner.write("here/dir/x", "again");
    eventually("the recreated file is uploaded", || scene.holds("dir/x", b"again"));
    fs::rename(here("dir/deep"), here("moved")).unwrap();
    are(&scene, "renaming of a directory", &["c", "dir/other", "dir/x", "dirt", "first", "moved/y"]);
    fs::remove_dir_all(here("moved")).unwrap();
    fs::rename(here("dirt"), scene.runner.path("away")).unwrap();
    are(&scene, "removal of directories", &["c", "dir/other", "dir/x", "first"]);
    let ran = stop(running, Signal::TERM);
    assert_eq!(ran.err, "");
}

#[test]
fn growing_file_is_uploaded_once_after_the_quiet_period() {
    let scene = scene();
    let running = watch_settling(&scene, "1s", &[]);
    let mut file = File::create(scene.runner.path("here/growing")).unwrap();
    // A slow check must not delay the writer, so it has a thread of its own.
    let writing = std::thread::spawn(move || {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(4) {
            file.write_all(b"more").unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        file.metadata().unwrap().len()
    });
    std::thread::sleep(Duration::from_secs(3));
    let names = scene.names();
    assert!(writing.is_finished() || names == ["first"], "the file is still being written: {names:?}");
    let length = writing.join().unwrap();
    eventually("the file is uploaded", || scene.keys().contains(&("growing".to_owned(), length)));
    let ran = stop(running, Signal::INT);
    assert_eq!(ran.err.matches("copied growing").count(), 1, "{}", ran.err);
}

/// Files created in a new directory before it can be watched.
#[test]
fn new_directories_are_watched_without_missing_files() {
    let scene = scene();
    let running = watch(&scene, &["-q"]);
    let mut expected = vec!["first".to_owned()];
    for n in 0..40 {
        let name = format!("tree/{n}/{n}/{n}/file");
        scene.runner.write(format!("here/{name}"), "x");
        expected.push(name);
    }
    scene.runner.write("outside/one/file", "x");
    scene.runner.write("outside/file", "x");
    fs::rename(scene.runner.path("outside"), scene.runner.path("here/inside")).unwrap();
    expected.extend(["inside/one/file", "inside/file"].map(str::to_owned));
    expected.sort();
    eventually("all files are uploaded", || scene.names() == expected);
    scene.runner.write("here/tree/7/7/7/later", "x");
    scene.runner.write("here/inside/one/later", "x");
    eventually("later files are uploaded", || scene.names().len() == expected.len() + 2);
    // A moved directory is watched under its new path.
    fs::rename(scene.runner.path("here/inside/one"), scene.runner.path("here/tree/two")).unwrap();
    eventually("upload under the new name", || scene.names().contains(&"tree/two/later".to_owned()));
    scene.runner.write("here/tree/two/latest", "x");
    eventually("later file in the moved directory", || scene.names().contains(&"tree/two/latest".to_owned()));
    stop(running, Signal::INT);
}

#[test]
fn missing_watched_directory_ends_without_removals() {
    let away: fn(&TestStore) =
        |scene| fs::rename(scene.runner.path("here"), scene.runner.path("away")).unwrap();
    let removed: fn(&TestStore) = |scene| fs::remove_dir_all(scene.runner.path("here")).unwrap();
    let replaced: fn(&TestStore) = |scene| {
        fs::rename(scene.runner.path("here"), scene.runner.path("away")).unwrap();
        fs::create_dir(scene.runner.path("here")).unwrap();
    };
    for (what, go) in [("away", away), ("removed", removed), ("replaced", replaced)] {
        let scene = scene();
        scene.runner.write("here/dir/a", "a");
        let running = watch(&scene, &["--delete", "-q"]);
        are(&scene, "upload of all files", &["dir/a", "first"]);
        go(&scene);
        let ran = running.wait_for_output();
        let why = "tradewind: here is no longer the directory that was watched; nothing more is copied or removed\n";
        assert_eq!((ran.status.code(), ran.err.as_str()), (Some(1), why), "{what}");
        assert_eq!(scene.names(), ["dir/a", "first"], "{what}");
    }
}

/// Files that were not uploaded must make the command fail.
#[test]
fn unlisted_files_make_the_watch_fail_at_the_end() {
    use std::os::unix::ffi::OsStrExt as _;
    let scene = scene();
    let strange = scene.runner.path("here").join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::write(strange, "x").unwrap();
    let running = watch(&scene, &[]);
    scene.runner.write("here/new", "2");
    are(&scene, "upload of the other files", &["first", "new"]);
    running.signal(Signal::TERM);
    let ran = running.wait_for_output();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(ran.err.ends_with("tradewind: 1 failed, and no retry succeeded\n"), "{}", ran.err);
    assert!(!ran.err.contains("in sync"), "{}", ran.err);
}

#[test]
fn attribute_changes_are_uploaded_with_preserve() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = scene();
    let running = watch(&scene, &["--preserve", "-q"]);
    fs::set_permissions(scene.runner.path("here/first"), fs::Permissions::from_mode(0o741)).unwrap();
    let stat = || scene.runner.run_ok(&["stat", "--json", "s3://bucket/first"]);
    eventually("its mode", || stat().contains("\"mode\":\"100741\""));
    stop(running, Signal::INT);
}

#[test]
fn invalid_watch_arguments_are_rejected() {
    let scene = scene();
    scene.runner.run_failing(
        &["sync", "--watch", "s3://bucket", "here"],
        &["--watch needs a directory as the source, not a bucket; run sync periodically instead"],
    );
    scene.runner.run_failing(
        &["sync", "--watch", "here", "there"],
        &["--watch needs a bucket as the destination, not a directory"],
    );
    scene.runner.run_failing(&["sync", "--watch", "absent", "s3://bucket"], &["absent is not a directory"]);
    let ran = scene.runner.run(&["sync", "--watch", "here", "s3://no-such-bucket"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    for wrong in [&["--debounce", "1s"][..], &["--watch", "--debounce", "1"], &["--watch", "--dry-run"]] {
        let ran = scene.runner.run(&[&["sync", "here", "s3://bucket"], wrong].concat());
        assert_eq!(ran.status.code(), Some(2), "{wrong:?}");
    }
}
