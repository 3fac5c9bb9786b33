//! `sync` of files and objects that were written in one second: no change is missed, and what does not change is copied
//! twice at most. Objects are listed with times in seconds.

use std::fs::{self, File};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::Value as Json;

use super::TestStore;
use super::watched::watch;
use crate::support::eventually;

/// The result of a sync: the items that it copied, and the requests that it sent.
#[derive(Debug, PartialEq, Eq)]
struct Synced {
    copied: u64,
    requests: u64,
}

fn sync(scene: &TestStore, arguments: &[&str]) -> Synced {
    let output = scene.runner.run_ok(&[&["sync", "--json"], arguments].concat());
    let summary: Json = serde_json::from_str(&output).unwrap();
    let stores = summary["stores"].as_array().unwrap();
    Synced {
        copied: summary["copied"].as_u64().unwrap(),
        requests: stores.iter().map(|store| store["requests"].as_u64().unwrap()).sum(),
    }
}

/// The second of a file's last change.
fn second(scene: &TestStore, name: &str) -> u64 {
    let modified = fs::metadata(scene.runner.path(name)).unwrap().modified().unwrap();
    modified.duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// Writes a file of one size, soon after the start of a second.
fn write_early(scene: &TestStore, name: &str, bytes: &[u8]) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    // The clock of file systems may be a tick behind.
    std::thread::sleep(Duration::from_nanos(1_020_000_000 - u64::from(since.subsec_nanos())));
    scene.runner.write(name, bytes);
}

#[test]
fn change_in_the_second_of_its_copy_is_not_missed() {
    for arguments in [
        &["here", "s3://bucket/up"][..],
        &["--preserve", "here", "s3://bucket/preserved"],
        &["here", "there"],
        &["--preserve", "here", "preserved"],
    ] {
        let scene = TestStore::new();
        let destination = format!("{}/a", arguments[arguments.len() - 1]);
        let mut attempts = 0;
        loop {
            attempts += 1;
            assert!(attempts < 20, "this machine is too slow: no copy within a second");
            write_early(&scene, "here/a", b"11111");
            sync(&scene, arguments);
            let before = second(&scene, "here/a");
            scene.runner.write("here/a", b"22222");
            if second(&scene, "here/a") == before {
                break;
            }
        }
        sync(&scene, arguments);
        let found = match destination.starts_with("s3:") {
            true => scene.runner.read(&destination),
            false => fs::read(scene.runner.path(&destination)).unwrap(),
        };
        assert_eq!(found, b"22222", "{arguments:?}");
    }
}

/// Tools set times of full seconds, and some file systems have no others.
#[test]
fn change_of_a_file_with_a_full_second_is_not_missed() {
    for flags in [&[][..], &["--preserve"]] {
        let scene = TestStore::new();
        let write = |bytes: &[u8], time: SystemTime| {
            scene.runner.write("here/a", bytes);
            File::options()
                .write(true)
                .open(scene.runner.path("here/a"))
                .unwrap()
                .set_modified(time)
                .unwrap();
        };
        let up = [flags, &["here", "s3://bucket"]].concat();
        let mut attempts = 0;
        loop {
            attempts += 1;
            assert!(attempts < 20, "this machine is too slow: no upload within a second");
            write_early(&scene, "here/a", b"11111");
            let full = UNIX_EPOCH + Duration::from_secs(second(&scene, "here/a"));
            write(b"11111", full);
            sync(&scene, &up);
            let is_within = SystemTime::now().duration_since(full).unwrap() < Duration::from_secs(1);
            write(b"22222", full);
            if is_within {
                break;
            }
        }
        assert_eq!(sync(&scene, &up).copied, 1, "{flags:?}");
        assert_eq!(scene.read("a"), b"22222", "{flags:?}");
        assert_eq!(sync(&scene, &up).copied, 0, "{flags:?}");
    }
}

#[test]
fn racy_tree_is_copied_twice_at_most() {
    for (from, to) in [("here", "s3://bucket/d"), ("s3://bucket/from", "there"), ("here", "there")] {
        for flags in [&[][..], &["--preserve"]] {
            let scene = TestStore::new();
            let arguments = [flags, &[from, to]].concat();
            for name in ["a", "b", "c"] {
                scene.runner.write(format!("here/{name}"), name);
                scene.store(&format!("from/{name}"), name.as_bytes());
            }
            let copied: Vec<u64> = (0..4).map(|_| sync(&scene, &arguments).copied).collect();
            assert!(copied[0] == 3 && copied[1] <= 3, "{arguments:?}: {copied:?}");
            assert_eq!(copied[2..], [0, 0], "{arguments:?}");
        }
    }
}

#[test]
fn racy_objects_of_a_store_are_copied_twice_at_most() {
    let scene = TestStore::new();
    for name in ["a", "b", "c"] {
        scene.store(&format!("from/{name}"), name.as_bytes());
    }
    let arguments = ["s3://bucket/from", "s3://bucket/to"];
    let copied: Vec<u64> = (0..4).map(|_| sync(&scene, &arguments).copied).collect();
    assert!(copied[0] == 3 && copied[1] <= 3, "{copied:?}");
    assert_eq!(copied[2..], [0, 0]);
}

#[test]
fn unchanged_tree_is_copied_in_neither_direction() {
    let scene = TestStore::new();
    for name in 0..20 {
        scene.store(&format!("d/{name}"), b"x");
    }
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(sync(&scene, &["s3://bucket/d", "there"]).copied, 20);
    let unchanged = Synced { copied: 0, requests: 1 };
    assert_eq!(sync(&scene, &["there", "s3://bucket/d"]), unchanged);
    assert_eq!(sync(&scene, &["s3://bucket/d", "there"]), unchanged);
}

#[test]
fn sync_by_size_copies_no_racy_file() {
    let scene = TestStore::new();
    scene.runner.write("here/a", "11111");
    let up = ["--size-only", "here", "s3://bucket"];
    assert_eq!(sync(&scene, &up).copied, 1);
    scene.runner.write("here/a", "22222");
    assert_eq!(sync(&scene, &up), Synced { copied: 0, requests: 1 });
}

#[test]
fn restarted_watch_finds_a_change_in_the_second_of_its_upload() {
    let scene = TestStore::new();
    let watch_until_it_holds = |bytes: &[u8]| {
        let running = watch(&scene, &["-q"]);
        eventually("the file is uploaded", || scene.holds("first", bytes));
        running.signal(Signal::INT);
        assert!(running.wait_for_output().status.success());
    };
    scene.runner.write("here/first", b"1");
    watch_until_it_holds(b"1");
    // A downloaded file has the time of its object.
    scene.runner.run_ok(&["cp", "s3://bucket/first", "back"]);
    scene.runner.write("here/first", b"2");
    let changed = UNIX_EPOCH + Duration::from_secs(second(&scene, "back")) + Duration::from_millis(999);
    File::options().write(true).open(scene.runner.path("here/first")).unwrap().set_modified(changed).unwrap();
    watch_until_it_holds(b"2");
}
