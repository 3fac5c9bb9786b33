//! `--preserve`: attributes of files round trip, other programs can read them, and an unchanged tree is not copied
//! again in either direction.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value as Json;

use super::{TestStore, content, names};
use crate::support::s3::{Request, S3};
use crate::support::server::root_key;

/// A moment of 2023, to the nanosecond.
const THEN: Duration = Duration::new(1_700_000_000, 123_456_789);

fn write(scene: &TestStore, name: &str, bytes: impl AsRef<[u8]>, mode: u32, time: SystemTime) {
    let path = scene.runner.path(name);
    // A read-only file is replaced.
    let _ = fs::remove_file(&path);
    scene.runner.write(name, bytes);
    File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
}

/// Mode and time of a file.
fn mode_and_time(scene: &TestStore, name: &str) -> (u32, SystemTime) {
    let metadata = fs::metadata(scene.runner.path(name)).unwrap();
    (metadata.mode() & 0o7777, metadata.modified().unwrap())
}

/// The number of items that a sync copied.
fn copied(scene: &TestStore, arguments: &[&str]) -> u64 {
    let output = scene.runner.run_ok(&[&["sync", "--json"], arguments].concat());
    serde_json::from_str::<Json>(&output).unwrap()["copied"].as_u64().unwrap()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

const UP: [&str; 3] = ["--preserve", "here", "s3://bucket/tree"];
const DOWN: [&str; 3] = ["--preserve", "s3://bucket/tree", "there"];
const AGAIN: [&str; 3] = ["--preserve", "there", "s3://bucket/tree"];

fn tree() -> TestStore {
    let scene = TestStore::new();
    let then = UNIX_EPOCH + THEN;
    write(&scene, "here/small", "x", 0o640, then);
    write(&scene, "here/run/it", "#!/bin/sh\n", 0o755, then + Duration::from_nanos(1));
    write(&scene, "here/large", content(1, 25 << 20), 0o400, then + Duration::from_secs(1));
    write(&scene, "here/ranged", content(2, 9 << 20), 0o600, UNIX_EPOCH - Duration::from_millis(1500));
    scene
}

#[test]
fn preserved_tree_round_trips_and_is_copied_once() {
    let scene = tree();
    assert_eq!(copied(&scene, &UP), 4);
    assert_eq!(copied(&scene, &UP), 0, "up again");
    assert_eq!(copied(&scene, &DOWN), 4);
    for name in names(&scene.runner.path("here")) {
        let (here, there) = (format!("here/{name}"), format!("there/{name}"));
        assert_eq!(mode_and_time(&scene, &here), mode_and_time(&scene, &there), "{name}");
        assert!(fs::read(scene.runner.path(here)).unwrap() == fs::read(scene.runner.path(there)).unwrap());
    }
    assert_eq!(copied(&scene, &DOWN), 0, "down again");
    assert_eq!(copied(&scene, &AGAIN), 0, "up from the downloaded tree");
    assert_eq!(copied(&scene, &["s3://bucket/tree", "there"]), 4, "without the flag uploads are newer");
}

#[test]
fn changed_files_are_copied_by_preserved_time() {
    let scene = tree();
    copied(&scene, &UP);
    copied(&scene, &DOWN);
    // Newer than its object, like any file written under a clock that is ahead.
    let ahead = SystemTime::now() + Duration::from_secs(1000);
    write(&scene, "there/small", "y", 0o600, ahead);
    assert_eq!(copied(&scene, &AGAIN), 1);
    assert_eq!(copied(&scene, &AGAIN), 0, "its time equals the one stored with its object");
    assert_eq!(scene.read("tree/small"), b"y");
    assert_eq!(copied(&scene, &["--preserve", "s3://bucket/tree", "here"]), 1);
    assert_eq!(mode_and_time(&scene, "here/small"), mode_and_time(&scene, "there/small"));
    // Of equal size, uploaded later, with an earlier time than the local file.
    write(&scene, "old/small", "z", 0o600, UNIX_EPOCH + THEN - Duration::from_secs(1));
    scene.runner.run_ok(&["cp", "--preserve", "old/small", "s3://bucket/tree/small"]);
    write(&scene, "there/small", "y", 0o600, UNIX_EPOCH + THEN);
    assert_eq!(copied(&scene, &DOWN), 1);
    assert_eq!(fs::read(scene.runner.path("there/small")).unwrap(), b"z");
    assert_eq!(copied(&scene, &DOWN), 0);
}

#[test]
fn attributes_are_stored_only_on_request_in_rclone_format() {
    let scene = tree();
    scene.runner.run_ok(&["cp", "here/small", "s3://bucket/plain"]);
    scene.runner.run_ok(&["cp", "--preserve", "here/small", "s3://bucket/kept"]);
    let metadata = |key: &str| scene.runner.stat(&format!("s3://bucket/{key}"))["metadata"].clone();
    assert_eq!(metadata("plain"), serde_json::json!({}));
    let owner = fs::metadata(scene.runner.path("here/small")).unwrap();
    let expected = serde_json::json!({
        "mtime": "1700000000.123456789", "mode": "100640",
        "uid": owner.uid().to_string(), "gid": owner.gid().to_string(),
    });
    assert_eq!(metadata("kept"), expected);
    // A copy within the store preserves the attributes.
    scene.runner.run_ok(&["cp", "--preserve", "s3://bucket/kept", "s3://bucket/copy"]);
    assert_eq!(metadata("copy"), expected);
    scene.runner.run_ok(&["cp", "s3://bucket/kept", "down"]);
    assert_ne!(
        mode_and_time(&scene, "down").1,
        UNIX_EPOCH + THEN,
        "attributes are not restored without the flag"
    );
}

#[test]
fn foreign_attributes_are_restored_without_set_id_bits() {
    let scene = TestStore::new();
    let put = |key: &str, pairs: &[(&str, &str)]| {
        let headers: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| (format!("x-amz-meta-{name}"), (*value).to_owned())).collect();
        let headers = headers.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        let path = format!("bucket/{key}");
        let request = Request { method: "PUT", path: &path, headers, body: b"x", ..Request::default() };
        let stored = S3::new(scene.runner.endpoint(), root_key()).send(request).unwrap();
        assert_eq!(stored.status, 200, "{}", stored.text());
    };
    put("s3fs", &[("mode", "33200"), ("mtime", "1700000000"), ("uid", "0"), ("gid", "0")]);
    put("evil", &[("mode", "104777"), ("mtime", "-99999999999999999999")]);
    put("odd", &[("mode", "rw"), ("mtime", "yesterday"), ("uid", "root"), ("gid", "-1")]);
    // Files without a preserved time that are downloaded soon after the upload are downloaded twice.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(copied(&scene, &["--preserve", "s3://bucket", "there"]), 3);
    assert_eq!(mode_and_time(&scene, "there/s3fs"), (0o660, UNIX_EPOCH + Duration::from_secs(1_700_000_000)));
    let (mode, time) = mode_and_time(&scene, "there/evil");
    assert_eq!(mode, 0o777, "set-id bits are not restored");
    assert!(time > UNIX_EPOCH + THEN, "an invalid time falls back to the object's");
    assert!(mode_and_time(&scene, "there/odd").1 > UNIX_EPOCH + THEN);
    assert_eq!(copied(&scene, &["--preserve", "s3://bucket", "there"]), 0);
}

#[test]
fn attributes_are_preserved_between_directories() {
    let scene = tree();
    scene.runner.run_ok(&["cp", "-r", "--preserve", "here", "there"]);
    for name in names(&scene.runner.path("here")) {
        assert_eq!(
            mode_and_time(&scene, &format!("here/{name}")),
            mode_and_time(&scene, &format!("there/{name}")),
            "{name}"
        );
    }
    assert_eq!(copied(&scene, &["--preserve", "here", "there"]), 0);
    scene.runner.run_failing(
        &["cp", "--preserve", "-", "s3://bucket/x"],
        &["--preserve applies to files; standard input and output have no attributes to preserve"],
    );
}

#[test]
fn root_restores_the_owners_of_files() {
    if !is_root() {
        crate::support::skip("root_restores_the_owners_of_files", "only root may");
        return;
    }
    let scene = tree();
    std::os::unix::fs::chown(scene.runner.path("here/small"), Some(12_345), Some(23_456)).unwrap();
    copied(&scene, &UP);
    copied(&scene, &DOWN);
    let metadata = fs::metadata(scene.runner.path("there/small")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (12_345, 23_456, 0o640));
}
