//! `sync --watch`: what changes in a directory goes up when it has settled, what goes there goes in the bucket where that
//! is asked for, and where the directory itself is gone nothing is removed.

use std::fs::{self, File};
use std::io::Write as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Scene, content};
use crate::support::caller::{Ran, Running};
use crate::support::eventually;

/// Watches `here`, which goes to the whole bucket. Nothing but events leads to anything.
pub fn watch(scene: &Scene, flags: &[&str]) -> Running {
    watch_settling(scene, "300ms", flags)
}

fn watch_settling(scene: &Scene, settle: &str, flags: &[&str]) -> Running {
    let fixed = ["sync", "--watch", "--settle", settle, "--compare-every", "1h", "here", "s3://bucket"];
    let running = scene.caller.begin(&[&fixed[..], flags].concat());
    // Watches are there before the first comparison.
    eventually("the first comparison", || scene.names().contains(&"first".to_owned()));
    running
}

fn scene() -> Scene {
    let scene = Scene::new();
    scene.caller.write("here/first", "1");
    scene
}

fn are(scene: &Scene, what: &str, names: &[&str]) {
    eventually(what, || scene.names() == names);
}

/// Stops it; it must end well.
fn stop(running: Running, signal: Signal) -> Ran {
    running.signal(signal);
    let ran = running.end();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    ran
}

#[test]
fn what_comes_and_changes_goes_up() {
    let scene = scene();
    let running = watch(&scene, &["--json", "--exclude", "*.tmp"]);
    scene.caller.write("here/new", "2");
    scene.caller.write("here/no.tmp", "2");
    are(&scene, "a new file", &["first", "new"]);
    scene.caller.write("here/new", "changed");
    eventually("a changed one", || scene.holds("new", b"changed"));
    scene.caller.write("here/large", content(3, 30 << 20));
    eventually("a large one", || scene.names().contains(&"large".to_owned()));
    assert!(scene.read("large") == content(3, 30 << 20));
    fs::remove_file(scene.caller.path("here/new")).unwrap();
    fs::rename(scene.caller.path("here/large"), scene.caller.path("here/renamed")).unwrap();
    are(&scene, "without --delete nothing goes", &["first", "large", "new", "renamed"]);
    let ran = stop(running, Signal::INT);
    let end: serde_json::Value = serde_json::from_slice(&ran.out).unwrap();
    assert_eq!(
        (&end["copied"], &end["removed"], &end["failed"]),
        (&5.into(), &0.into(), &0.into()),
        "{ran:?}"
    );
    let said: Vec<&str> = ran.err.lines().collect();
    assert_eq!(said[..2], ["copied first", "everything is there; waiting for changes"]);
}

#[test]
fn what_goes_goes_there_too_where_that_is_asked_for() {
    let scene = scene();
    for name in ["a", "b", "dir/x", "dir/deep/y", "dirt"] {
        scene.caller.write(format!("here/{name}"), name);
    }
    scene.store("stray", b"was never here");
    let running = watch(&scene, &["--delete", "-q"]);
    are(&scene, "all of it", &["a", "b", "dir/deep/y", "dir/x", "dirt", "first"]);
    // What somebody else puts there is left alone until everything is compared.
    scene.store("dir/other", b"of somebody else");
    let here = |name: &str| scene.caller.path("here").join(name);
    fs::remove_file(here("a")).unwrap();
    fs::rename(here("b"), here("c")).unwrap();
    are(
        &scene,
        "a file that is gone, and one that has another name",
        &["c", "dir/deep/y", "dir/other", "dir/x", "dirt", "first"],
    );
    fs::remove_file(here("dir/x")).unwrap();
    scene.caller.write("here/dir/x", "again");
    eventually("one that came again", || scene.holds("dir/x", b"again"));
    fs::rename(here("dir/deep"), here("moved")).unwrap();
    are(
        &scene,
        "a directory that has another name",
        &["c", "dir/other", "dir/x", "dirt", "first", "moved/y"],
    );
    fs::remove_dir_all(here("moved")).unwrap();
    fs::rename(here("dirt"), scene.caller.path("away")).unwrap();
    are(&scene, "a directory that is gone", &["c", "dir/other", "dir/x", "first"]);
    let ran = stop(running, Signal::TERM);
    assert_eq!(ran.err, "");
}

#[test]
fn a_file_that_grows_is_sent_when_it_has_settled() {
    let scene = scene();
    let running = watch_settling(&scene, "1s", &[]);
    let mut file = File::create(scene.caller.path("here/growing")).unwrap();
    // Whoever looks may be slow, and must not hold up whoever writes.
    let writing = std::thread::spawn(move || {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            file.write_all(b"more").unwrap();
            std::thread::sleep(Duration::from_millis(50));
        }
        file.metadata().unwrap().len()
    });
    std::thread::sleep(Duration::from_secs(3));
    let names = scene.names();
    assert!(writing.is_finished() || names == ["first"], "it is still being written: {names:?}");
    let length = writing.join().unwrap();
    eventually("it is sent", || scene.keys().contains(&("growing".to_owned(), length)));
    let ran = stop(running, Signal::INT);
    assert_eq!(ran.err.matches("copied growing").count(), 1, "{}", ran.err);
}

/// Files that are put into a directory before anybody can have watched it.
#[test]
fn new_directories_are_watched_and_nothing_in_them_is_missed() {
    let scene = scene();
    let running = watch(&scene, &["-q"]);
    let mut expected = vec!["first".to_owned()];
    for n in 0..40 {
        let name = format!("tree/{n}/{n}/{n}/file");
        scene.caller.write(format!("here/{name}"), "x");
        expected.push(name);
    }
    scene.caller.write("outside/one/file", "x");
    scene.caller.write("outside/file", "x");
    fs::rename(scene.caller.path("outside"), scene.caller.path("here/inside")).unwrap();
    expected.extend(["inside/one/file", "inside/file"].map(str::to_owned));
    expected.sort();
    eventually("all of them", || scene.names() == expected);
    scene.caller.write("here/tree/7/7/7/later", "x");
    scene.caller.write("here/inside/one/later", "x");
    eventually("what comes later", || scene.names().len() == expected.len() + 2);
    // One that went somewhere else is followed there.
    fs::rename(scene.caller.path("here/inside/one"), scene.caller.path("here/tree/two")).unwrap();
    eventually("under its new name", || scene.names().contains(&"tree/two/later".to_owned()));
    scene.caller.write("here/tree/two/latest", "x");
    eventually("what comes there", || scene.names().contains(&"tree/two/latest".to_owned()));
    stop(running, Signal::INT);
}

#[test]
fn where_the_directory_is_gone_nothing_is_removed() {
    let away: fn(&Scene) = |scene| fs::rename(scene.caller.path("here"), scene.caller.path("away")).unwrap();
    let removed: fn(&Scene) = |scene| fs::remove_dir_all(scene.caller.path("here")).unwrap();
    let replaced: fn(&Scene) = |scene| {
        fs::rename(scene.caller.path("here"), scene.caller.path("away")).unwrap();
        fs::create_dir(scene.caller.path("here")).unwrap();
    };
    for (what, go) in [("away", away), ("removed", removed), ("replaced", replaced)] {
        let scene = scene();
        scene.caller.write("here/dir/a", "a");
        let running = watch(&scene, &["--delete", "-q"]);
        are(&scene, "all of it", &["dir/a", "first"]);
        go(&scene);
        let ran = running.end();
        let why = "tradewind: here is no longer the directory that it was; nothing more is carried or removed for it\n";
        assert_eq!((ran.status.code(), ran.err.as_str()), (Some(1), why), "{what}");
        assert_eq!(scene.names(), ["dir/a", "first"], "{what}");
    }
}

/// What is not there must not end as if it were.
#[test]
fn what_could_not_be_looked_at_is_said_at_the_end() {
    use std::os::unix::ffi::OsStrExt as _;
    let scene = scene();
    let strange = scene.caller.path("here").join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::write(strange, "x").unwrap();
    let running = watch(&scene, &[]);
    scene.caller.write("here/new", "2");
    are(&scene, "everything else", &["first", "new"]);
    running.signal(Signal::TERM);
    let ran = running.end();
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(ran.err.ends_with("tradewind: 1 failed and were not made good\n"), "{}", ran.err);
    assert!(!ran.err.contains("everything is there"), "{}", ran.err);
}

#[test]
fn attributes_are_followed_where_they_are_kept() {
    use std::os::unix::fs::PermissionsExt as _;
    let scene = scene();
    let running = watch(&scene, &["--preserve", "-q"]);
    fs::set_permissions(scene.caller.path("here/first"), fs::Permissions::from_mode(0o741)).unwrap();
    let stat = || scene.caller.done(&["stat", "--json", "s3://bucket/first"]);
    eventually("its mode", || stat().contains("\"mode\":\"100741\""));
    stop(running, Signal::INT);
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let scene = scene();
    scene.caller.fails(
        &["sync", "--watch", "s3://bucket", "here"],
        &["--watch watches a directory, and the source is a bucket; run sync from time to time instead"],
    );
    scene.caller.fails(
        &["sync", "--watch", "here", "there"],
        &["--watch sends what changes in a directory to a bucket, and the destination is a directory"],
    );
    scene.caller.fails(&["sync", "--watch", "absent", "s3://bucket"], &["absent is not a directory"]);
    let ran = scene.caller.run(&["sync", "--watch", "here", "s3://no-such-bucket"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
    for wrong in [&["--settle", "1s"][..], &["--watch", "--settle", "1"], &["--watch", "--dry-run"]] {
        let ran = scene.caller.run(&[&["sync", "here", "s3://bucket"], wrong].concat());
        assert_eq!(ran.status.code(), Some(2), "{wrong:?}");
    }
}
