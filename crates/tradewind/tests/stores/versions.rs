//! The commands in buckets with versions.

use std::fs;

use rustix::process::Signal;
use serde_json::Value as Json;
use tradewind_core::VersionId;

use super::content;
use super::support::command_runner::CommandRunner;
use super::support::eventually;
use super::support::server::ServerSetup;

const TWO: &str =
    "[store.disk]\ntype = \"local\"\npath = \"disk\"\n[store.spare]\ntype = \"local\"\npath = \"spare\"\n";

/// A caller with the local stores `disk` and `spare`, and a bucket with versioning in the first.
fn caller() -> CommandRunner {
    let caller = CommandRunner::new("127.0.0.1:1".parse().unwrap()).with_settings(TWO);
    caller.run_ok(&["mb", "--versioning", "disk://bucket"]);
    caller
}

/// A listed version: key, version id, size; `None` for the size of a delete marker.
type Version = (String, String, Option<u64>);

/// The versions below a location, in the order of the listing.
fn versions(caller: &CommandRunner, location: &str) -> Vec<Version> {
    let read = |line: &str| {
        let line: Json = serde_json::from_str(line).unwrap();
        assert_eq!(line["is_delete_marker"].as_bool().unwrap(), line["size"].is_null());
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        (text("key"), text("version_id"), line["size"].as_u64())
    };
    caller.run_ok(&["ls", "-r", "--versions", "--json", location]).lines().map(read).collect()
}

/// Stores an object of this content; returns the id of its version.
fn store(caller: &CommandRunner, location: &str, bytes: &[u8]) -> String {
    caller.write("source", bytes);
    caller.run_ok(&["cp", "source", location]);
    caller.stat(location)["version_id"].as_str().unwrap().to_owned()
}

/// Runs the commands on a bucket with versioning in the store `name`.
fn assert_commands_use_versions(caller: &CommandRunner, name: &str) {
    let (bucket, object) = (format!("{name}://bucket"), format!("{name}://bucket/a"));
    let (bucket, object) = (&*bucket, &*object);
    assert_eq!(caller.run_ok(&["versioning", bucket]), "enabled\n");
    let (old, new) = (store(caller, object, b"old"), store(caller, object, b"newer"));
    let version = |id: &str, size| ("a".to_owned(), id.to_owned(), size);
    assert_eq!(versions(caller, bucket), [version(&new, Some(5)), version(&old, Some(3))]);
    let listed = caller.run_ok(&["ls", "--versions", bucket]);
    let words: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().skip(1).collect()).collect();
    assert_eq!(words, [vec!["5", &new, "latest", "a"], vec!["3", &old, "a"]], "{listed}");

    assert_eq!(caller.read(object), b"newer");
    assert_eq!(caller.run_ok(&["cat", "--version-id", &old, object]), "old");
    caller.run_ok(&["cp", "--version-id", &old, object, "back"]);
    assert_eq!(fs::read(caller.path("back")).unwrap(), b"old");
    assert_eq!(caller.run_ok(&["cp", "--version-id", &old, object, "-"]), "old");
    caller.run_ok(&["cp", "--version-id", &old, object, &format!("{bucket}/copy")]);
    assert_eq!(caller.read(&format!("{bucket}/copy")), b"old");
    let shown = caller.run_ok(&["stat", "--version-id", &old, object]);
    assert!(shown.lines().any(|line| line == format!("version        {old}")), "{shown}");

    let removed = caller.run_ok(&["rm", object]);
    let (marker_key, marker, marker_size) = versions(caller, object).remove(0);
    assert_eq!((&*marker_key, marker_size), ("a", None));
    assert_eq!(removed, format!("{object} has a delete marker now, version {marker}; its versions stay\n"));
    assert_eq!(caller.keys(bucket), ["copy"]);
    assert!(caller.run_ok(&["ls", "--versions", object]).lines().next().unwrap().contains(" DELETED "));
    assert_eq!(caller.run_ok(&["cat", "--version-id", &new, object]), "newer");

    caller.run_ok(&["rm", "--version-id", &marker, object]);
    assert_eq!(caller.read(object), b"newer", "without the marker, the object is back");
    let dry_run = caller.run_ok(&["rm", "--dry-run", "--version-id", &new, object]);
    assert_eq!(dry_run, format!("remove  {object} (version {new})\n"));
    assert_eq!(caller.run_ok(&["rm", "--version-id", &new, object]), "");
    assert_eq!(versions(caller, object), [version(&old, Some(3))]);
    assert_eq!(caller.read(object), b"old");

    assert_eq!(caller.run_ok(&["versioning", "--suspend", bucket]), "suspended\n");
    assert_eq!(store(caller, object, b"null version"), "null");
    assert_eq!(store(caller, object, b"replaced"), "null");
    assert_eq!(versions(caller, object), [version("null", Some(8)), version(&old, Some(3))]);
    assert_eq!(caller.run_ok(&["versioning", "--enable", bucket]), "enabled\n");
}

#[test]
fn commands_use_versions_of_a_directory() {
    assert_commands_use_versions(&caller(), "disk");
}

#[test]
fn commands_use_versions_of_a_server() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerSetup::new(&data.path().join("data"), &data.path().join("log")).start().unwrap();
    let caller = CommandRunner::new(server.endpoint);
    caller.run_ok(&["mb", "--versioning", "s3://bucket"]);
    assert_commands_use_versions(&caller, "s3");
}

#[test]
fn large_version_is_read_and_copied_in_ranges() {
    let caller = caller();
    caller.run_ok(&["mb", "spare://bucket"]);
    let (old, new) = (content(1, 9 << 20), content(2, 9 << 20));
    let id = store(&caller, "disk://bucket/a", &old);
    store(&caller, "disk://bucket/a", &new);
    for to in ["back", "spare://bucket/a"] {
        caller.run_ok(&["cp", "--chunk-size", "5MiB", "--version-id", &id, "disk://bucket/a", to]);
    }
    assert!(fs::read(caller.path("back")).unwrap() == old);
    assert!(caller.read("spare://bucket/a") == old);
    let streamed = caller.run(&["cat", "--chunk-size", "1MiB", "--version-id", &id, "disk://bucket/a"]);
    assert!(streamed.status.success() && streamed.out == old);
    assert!(caller.read("disk://bucket/a") == new);
}

/// The journals of unfinished transfers, each as its text.
fn journals(caller: &CommandRunner) -> Vec<String> {
    let Ok(entries) = fs::read_dir(caller.path("home/.cache/tradewind")) else { return Vec::new() };
    entries.filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok()).collect()
}

#[test]
fn interrupted_download_is_not_resumed_with_another_version() {
    let data = tempfile::tempdir().unwrap();
    let server = ServerSetup::new(&data.path().join("data"), &data.path().join("log")).start().unwrap();
    let caller = CommandRunner::new(server.endpoint);
    let object = "s3://bucket/a";
    caller.run_ok(&["mb", "--versioning", "s3://bucket"]);
    let (old, new) = (content(1, 12 << 20), content(2, 12 << 20));
    let (old_id, new_id) = (store(&caller, object, &old), store(&caller, object, &new));
    let download = |id| ["cp", "--chunk-size", "1MiB", "--version-id", id, object, "back"];
    let slow = ["--max-bandwidth", "3MiB", "--concurrency", "1"];
    let running = caller.spawn(&[&download(&old_id)[..], &slow].concat());
    eventually("two ranges are recorded", || {
        journals(&caller).iter().any(|text| text.matches("{\"Chunk\":").count() >= 2)
    });
    running.signal(Signal::KILL);
    running.wait_for_output();
    caller.run_ok(&download(&new_id));
    assert!(fs::read(caller.path("back")).unwrap() == new);
    assert_eq!(journals(&caller).len(), 1, "the old version's transfer can still resume");
    caller.run_ok(&download(&old_id));
    assert!(fs::read(caller.path("back")).unwrap() == old);
    assert_eq!(journals(&caller).len(), 0);
}

#[test]
fn sync_and_recursive_commands_see_current_versions_only() {
    let caller = caller();
    for (key, bytes) in [("a", "1"), ("a", "22"), ("gone", "333"), ("d/x", "4")] {
        store(&caller, &format!("disk://bucket/{key}"), bytes.as_bytes());
    }
    caller.run_ok(&["rm", "--quiet", "disk://bucket/gone"]);
    caller.run_ok(&["sync", "disk://bucket", "there"]);
    assert_eq!(fs::read(caller.path("there/a")).unwrap(), b"22");
    assert!(caller.path("there/d/x").exists() && !caller.path("there/gone").exists());
    assert_eq!(
        caller.run_ok(&["sync", "--delete", "--size-only", "--dry-run", "there", "disk://bucket"]),
        ""
    );
    let current = "remove  disk://bucket/a\nremove  disk://bucket/d/x\n";
    assert_eq!(caller.run_ok(&["rm", "-r", "--dry-run", "disk://bucket"]), current);

    let before = versions(&caller, "disk://bucket");
    caller.run_ok(&["rm", "-r", "disk://bucket"]);
    assert_eq!(caller.keys("disk://bucket"), [""; 0]);
    let after = versions(&caller, "disk://bucket");
    assert_eq!(after.len(), before.len() + 2, "each removed object has a delete marker: {after:?}");
    assert!(before.iter().all(|version| after.contains(version)), "every version stays: {after:?}");
    assert_eq!(caller.run(&["rb", "disk://bucket"]).status.code(), Some(1), "the bucket is not empty");
}

#[test]
fn recursive_removal_of_all_versions_empties_the_bucket() {
    let caller = caller();
    for round in 0..3 {
        for key in ["a", "d/x", "d/y"] {
            store(&caller, &format!("disk://bucket/{key}"), format!("{round}").as_bytes());
        }
    }
    caller.run_ok(&["rm", "--quiet", "disk://bucket/d/x"]);
    let dry_run =
        caller.run_ok(&["rm", "-r", "--all-versions", "--dry-run", "disk://bucket/d", "--exclude", "*y"]);
    assert_eq!(dry_run.lines().count(), 4, "{dry_run}");
    assert!(
        dry_run.lines().all(|line| line.starts_with("remove  disk://bucket/d/x (version v")),
        "{dry_run}"
    );
    caller.run_ok(&["rm", "-r", "--all-versions", "disk://bucket/d"]);
    assert_eq!(versions(&caller, "disk://bucket").len(), 3, "only what is below d/ is removed");
    caller.run_ok(&["rm", "-r", "--all-versions", "disk://bucket"]);
    caller.run_ok(&["rb", "disk://bucket"]);
}

#[test]
fn objects_without_versioning_are_the_null_version() {
    let caller = caller();
    caller.run_ok(&["mb", "disk://plain"]);
    assert_eq!(caller.run_ok(&["versioning", "disk://plain"]), "off\n");
    caller.write("file", "12345");
    caller.run_ok(&["cp", "file", "disk://plain/d/x"]);
    assert!(caller.stat("disk://plain/d/x")["version_id"].is_null());
    assert!(!caller.run_ok(&["stat", "disk://plain/d/x"]).contains("\nversion "));
    let null = ("d/x".to_owned(), "null".to_owned(), Some(5));
    assert_eq!(versions(&caller, "disk://plain"), [null]);
    let rolled_up = caller.run_ok(&["ls", "--versions", "disk://plain"]);
    assert_eq!(rolled_up.split_whitespace().collect::<Vec<_>>(), ["DIR", "d/"]);
    assert_eq!(caller.run_ok(&["rm", "disk://plain/d/x"]), "");
    assert_eq!(versions(&caller, "disk://plain"), []);
}

#[test]
fn version_id_is_rejected_where_it_names_nothing() {
    let caller = caller();
    caller.write("file", "content");
    let to = "disk://bucket/a";
    for (arguments, complaint) in [
        (&["cp", "--version-id", "v1", "file", to][..], "the source file is not in a store"),
        (&["cp", "--version-id", "v1", "-", to], "the source - is not in a store"),
        (&["cp", "-r", "--version-id", "v1", to, "back"], "cannot be used with"),
        (&["rm", "-r", "--version-id", "v1", to], "cannot be used with"),
        (&["rm", "--all-versions", to], "--recursive"),
        (&["cat", "--version-id", "v1", to, to], "write one location"),
        (&["ls", "--versions", "disk://"], "--versions lists objects"),
        (&["cat", "--version-id", "", to], "Invalid version id"),
    ] {
        let ran = caller.run(arguments);
        assert_eq!(ran.status.code(), Some(2), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(complaint), "{arguments:?}: {}", ran.err);
    }
    caller.run_ok(&["cp", "file", to]);
    let missing = caller.run(&["cat", "--version-id", "v1", to]);
    assert_eq!(missing.status.code(), Some(1), "{missing:?}");
    let complaint = "\"v1\" is not a version id of this store";
    assert!(missing.err.contains(complaint), "{}", missing.err);
    caller.run_failing(&["rm", "--version-id", "v1", to], &[complaint]);
    let absent = VersionId::from_number(1 << 40).to_string();
    let missing = caller.run(&["cat", "--version-id", &absent, to]);
    assert!(missing.err.contains(&format!("has no version {absent}")), "{}", missing.err);
    let complaint = format!("disk://bucket/a has no version {absent}: nothing was removed");
    caller.run_failing(&["rm", "--version-id", &absent, to], &[&complaint]);
    assert_eq!(versions(&caller, to).len(), 1);
}
