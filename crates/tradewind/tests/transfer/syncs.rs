//! `sync`: which items it copies, removes and leaves unchanged, by each criterion, with filters, and in a dry run.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, SystemTime};

use super::{TestStore, names};

/// Sets the modification time of a file to `seconds` from now.
fn set_modified(scene: &TestStore, name: &str, seconds: i64) {
    let (now, span) = (SystemTime::now(), Duration::from_secs(seconds.unsigned_abs()));
    let when = if seconds < 0 { now - span } else { now + span };
    File::options().write(true).open(scene.runner.path(name)).unwrap().set_modified(when).unwrap();
}

/// The actions of a dry run of sync: verb and first name of each line.
fn dry_run(scene: &TestStore, arguments: &[&str]) -> Vec<String> {
    let output = scene.runner.run_ok(&[&["sync", "--dry-run"], arguments].concat());
    let words = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    output.lines().map(words).collect()
}

#[test]
fn sync_copies_by_size_and_time() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for name in ["same", "longer", "touched", "old"] {
        caller.write(format!("here/{name}"), "12345");
    }
    caller.set_old("here");
    let up = ["here", "s3://bucket"];
    let all = ["longer", "old", "same", "touched"].map(|name| format!("copy here/{name}"));
    assert_eq!(dry_run(&scene, &up), all);
    assert_eq!(scene.names(), [""; 0], "a dry run copies nothing");
    caller.run_ok(&[&["sync"], &up[..]].concat());
    assert_eq!(dry_run(&scene, &up), [""; 0], "nothing is left to do");

    caller.write("here/longer", "123456");
    caller.write("here/touched", "54321");
    caller.write("here/old", "54321");
    caller.write("here/new", "new");
    set_modified(&scene, "here/longer", -1000);
    set_modified(&scene, "here/touched", 1000);
    set_modified(&scene, "here/old", -1000);
    assert_eq!(dry_run(&scene, &up), ["copy here/longer", "copy here/new", "copy here/touched"]);
    assert_eq!(
        dry_run(&scene, &["here", "s3://bucket", "--size-only"]),
        ["copy here/longer", "copy here/new"]
    );
    let compared = ["longer", "new", "old", "touched"].map(|name| format!("copy here/{name}"));
    assert_eq!(dry_run(&scene, &["here", "s3://bucket", "--checksum"]), compared);
    caller.run_ok(&[&["sync", "--size-only"], &up[..]].concat());
    assert_eq!((scene.read("touched"), scene.read("longer")), (b"12345".to_vec(), b"123456".to_vec()));
    caller.run_ok(&[&["sync"], &up[..]].concat());
    assert_eq!((scene.read("touched"), scene.read("old")), (b"54321".to_vec(), b"12345".to_vec()));
    caller.run_ok(&[&["sync", "--checksum"], &up[..]].concat());
    assert_eq!(scene.read("old"), b"54321", "only the checksum detects the change");
}

#[test]
fn sync_by_checksum_copies_only_differing_contents() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for name in ["a", "b"] {
        caller.write(format!("here/{name}"), "12345");
    }
    caller.run_ok(&["sync", "here", "s3://bucket"]);
    let written = |key: &str| caller.run_ok(&["stat", "--json", &format!("s3://bucket/{key}")]);
    let before = (written("a"), written("b"));
    // The store reports times in seconds.
    std::thread::sleep(Duration::from_millis(1100));
    caller.write("here/a", "12345");
    caller.write("here/b", "54321");
    caller.run_ok(&["sync", "--checksum", "here", "s3://bucket"]);
    assert_eq!(written("a"), before.0);
    assert_ne!(written("b"), before.1);

    caller.run_ok(&["sync", "--checksum", "s3://bucket", "there"]);
    caller.write("there/a", "xxxxx");
    set_modified(&scene, "there/a", 1000);
    caller.run_ok(&["sync", "s3://bucket", "there"]);
    assert_eq!(fs::read(caller.path("there/a")).unwrap(), b"xxxxx", "the newer destination is kept");
    caller.run_ok(&["sync", "--checksum", "s3://bucket", "there"]);
    assert_eq!(fs::read(caller.path("there/a")).unwrap(), b"12345");

    caller.run_ok(&["mb", "s3://other"]);
    caller.run_ok(&["cp", "-r", "s3://bucket", "s3://other/copy"]);
    caller.write("xxxxx", "xxxxx");
    caller.run_ok(&["cp", "xxxxx", "s3://other/copy/a"]);
    caller.run_ok(&["sync", "--checksum", "here", "s3://other/copy"]);
    assert_eq!(caller.run_ok(&["cat", "s3://other/copy/a"]), "12345");
}

/// A copy into its own source would list and copy its own output.
#[test]
fn overlapping_prefixes_are_rejected() {
    let scene = TestStore::new();
    scene.runner.write("here/a", "a");
    scene.runner.run_ok(&["cp", "-r", "here", "s3://bucket/d"]);
    let why = "the source and destination prefixes overlap; choose disjoint prefixes";
    for (from, to) in [("s3://bucket", "s3://bucket/d"), ("s3://bucket/d", "s3://bucket")] {
        scene.runner.run_failing(&["cp", "-r", from, to], &[why]);
        scene.runner.run_failing(&["sync", "--delete", from, to], &[why]);
    }
    assert_eq!(scene.names(), ["d/a"]);
}

#[test]
fn delete_removes_only_items_missing_in_the_source() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for name in ["keep", "gone", "d/gone", "d/e/gone", "f/keep", "f/gone"] {
        caller.write(format!("here/{name}"), name);
    }
    caller.set_old("here");
    caller.run_ok(&["sync", "here", "s3://bucket"]);
    caller.run_ok(&["sync", "s3://bucket", "there"]);
    for name in ["gone", "f/gone"] {
        fs::remove_file(caller.path("here").join(name)).unwrap();
    }
    fs::remove_dir_all(caller.path("here/d")).unwrap();

    assert_eq!(dry_run(&scene, &["here", "s3://bucket"]), [""; 0]);
    caller.run_ok(&["sync", "here", "s3://bucket"]);
    assert_eq!(scene.names().len(), 6, "nothing is removed without --delete");
    let removed = ["d/e/gone", "d/gone", "f/gone", "gone"].map(|name| format!("remove s3://bucket/{name}"));
    assert_eq!(dry_run(&scene, &["here", "s3://bucket", "--delete"]), removed);
    caller.run_ok(&["sync", "here", "s3://bucket", "--delete"]);
    assert_eq!(scene.names(), ["f/keep", "keep"]);
    caller.run_ok(&["sync", "s3://bucket", "there", "--delete"]);
    assert_eq!(names(&caller.path("there")), ["f/keep", "keep"]);
    assert!(!caller.path("there/d").exists(), "empty directories are removed");
}

/// A listing of files has no folder markers, so each is only at the destination.
#[test]
fn markers_of_existing_directories_are_not_removed() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("here/a", "a");
    fs::create_dir_all(caller.path("here/p/q")).unwrap();
    for (key, bytes) in [("", &b""[..]), ("gone/", b""), ("full/", b"bytes"), ("p/", b""), ("p/q/", b"")] {
        scene.store(&format!("d/{key}"), bytes);
    }
    let delete = ["sync", "--delete", "here", "s3://bucket/d/"];
    let dry_run = caller.run(&[&delete[..], &["--dry-run"]].concat());
    let planned = "copy    here/a to s3://bucket/d/a\nremove  s3://bucket/d/gone/\n";
    assert_eq!(String::from_utf8(dry_run.out).unwrap(), planned);
    let ran = caller.run(&delete);
    assert!(ran.status.success(), "{ran:?}");
    for err in [ran.err, dry_run.err] {
        assert!(err.contains("1 marker was not removed: "), "{err}");
    }
    assert_eq!(scene.names(), ["d/", "d/a", "d/full/", "d/p/", "d/p/q/"]);
}

#[test]
fn emptied_directory_stays_if_the_source_has_its_marker() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    scene.store("a", b"a");
    scene.store("d/p/", b"");
    for name in ["d/p/old", "d/p/q/old", "e/old"] {
        caller.write(format!("there/{name}"), name);
    }
    caller.run_ok(&["sync", "--delete", "s3://bucket", "there"]);
    assert_eq!(names(&caller.path("there")), ["a"]);
    let exists = ["d/p", "d/p/q", "e"].map(|name| caller.path("there").join(name).is_dir());
    assert_eq!(exists, [true, false, false]);
}

#[test]
fn filter_applies_to_source_and_destination() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for name in ["a.jpg", "a.raw", "d/b.jpg", "d/b.raw", "d/c.txt"] {
        caller.write(format!("here/{name}"), name);
    }
    let copied = |rules: &[&str]| -> Vec<String> {
        let output = dry_run(&scene, &[&["here", "s3://bucket"], rules].concat());
        output.iter().map(|line| line.trim_start_matches("copy here/").to_owned()).collect()
    };
    assert_eq!(copied(&["--exclude", "*", "--include", "*.jpg"]), ["a.jpg", "d/b.jpg"]);
    assert_eq!(copied(&["--include", "*.jpg", "--exclude", "*"]), [""; 0]);
    assert_eq!(
        copied(&["--exclude", "*.raw", "--include", "d/*", "--exclude", "*.txt"]),
        ["a.jpg", "d/b.jpg", "d/b.raw"]
    );
    assert_eq!(copied(&["--exclude=d/*"]), ["a.jpg", "a.raw"]);
    assert_eq!(copied(&["--exclude", "?.raw"]), ["a.jpg", "d/b.jpg", "d/b.raw", "d/c.txt"]);

    caller.run_ok(&["sync", "here", "s3://bucket"]);
    fs::remove_dir_all(caller.path("here/d")).unwrap();
    caller.run_ok(&["sync", "here", "s3://bucket", "--delete", "--exclude", "*.raw"]);
    assert_eq!(scene.names(), ["a.jpg", "a.raw", "d/b.raw"], "excluded objects are not removed");
    caller.run_failing(
        &["sync", "here", "s3://bucket", "--exclude", "a["],
        &["invalid pattern \"a[\": error parsing glob 'a[': unclosed character class; missing ']'"],
    );
}

/// An odd entry at the destination puts only names at or below it in doubt.
#[test]
fn odd_destination_entries_stop_only_names_at_or_below_them() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for name in ["a", "b/pipe", "b/pipe/x", "b/pipe.txt", "z"] {
        scene.store(name, b"new");
    }
    caller.write("there/b/gone", "gone");
    caller.write("there/y", "gone");
    let raw = std::ffi::OsStr::from_bytes(b"there/caf\xe9");
    caller.write(std::path::Path::new(raw), "not UTF-8");
    let _pipe = std::os::unix::net::UnixListener::bind(caller.path("there/b/pipe")).unwrap();
    let odd = [
        "there/b/pipe is neither a file nor a directory: skipped",
        "there/caf\u{fffd}: its name is not UTF-8, as keys must be; rename it",
    ];
    caller.run_failing(&["sync", "--delete", "s3://bucket", "there"], &odd);
    let found = |name: &str| fs::read(caller.path("there").join(name)).is_ok_and(|bytes| bytes == b"new");
    assert_eq!(["a", "b/pipe.txt", "z"].map(found), [true; 3]);
    assert!(!caller.path("there/b/gone").exists() && !caller.path("there/y").exists());
    assert!(fs::symlink_metadata(caller.path("there/b/pipe")).is_ok() && caller.path(raw).exists());
    // Excluded names are neither reported nor touched.
    let excluded = ["sync", "--delete", "s3://bucket", "there", "--exclude", "b/pipe*", "--exclude", "caf*"];
    caller.run_ok(&excluded);
}

/// After a failure of the source nothing is removed; excluded names do not fail.
#[test]
fn skipped_removals_are_reported_and_counted() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("here/keep", "keep");
    let _socket = std::os::unix::net::UnixListener::bind(caller.path("here/d")).unwrap();
    for name in ["d/x", "e", "f.tmp", "keep"] {
        scene.store(name, b"keep");
    }
    let socket = "here/d is neither a file nor a directory: skipped";
    let kept = "2 items were not removed: the source may have what could not be listed";
    let sync = ["sync", "--delete", "--exclude", "*.tmp", "here", "s3://bucket"];
    caller.run_failing(&sync, &[socket, kept]);
    caller.run_failing(&[&sync[..], &["--dry-run"]].concat(), &[socket, kept]);
    let ran = caller.run(&[&sync[..], &["--json"]].concat());
    let summary: serde_json::Value = serde_json::from_slice(&ran.out).unwrap();
    assert_eq!((&summary["not_removed"], &summary["failed"]), (&2.into(), &1.into()), "{summary}");
    assert_eq!(scene.names(), ["d/x", "e", "f.tmp", "keep"]);
    caller.run_failing(&["sync", "here", "s3://bucket"], &[socket]);
    caller.run_ok(&[&sync[..], &["--exclude", "d"]].concat());
    assert_eq!(scene.names(), ["f.tmp", "keep"]);
    // For cp -r, too.
    caller.run_ok(&["cp", "-r", "here", "s3://bucket/copy", "--exclude", "d"]);
    caller.run_ok(&["cp", "--bundle", "here", "s3://bucket/x.tar", "--exclude", "d"]);
}

/// An excluded directory is not entered, but a source that has only such directories is not empty.
#[test]
fn excluded_directories_count_as_existing() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("here/cache/e/x", "x");
    scene.store("old", b"x");
    let sync = ["sync", "--delete", "here", "s3://bucket", "--exclude", "cache/*"];
    fs::remove_file(caller.path("here/cache/e/x")).unwrap();
    let ran = caller.run(&sync);
    assert!(ran.status.code() == Some(1) && ran.err.contains("nothing at here"), "{ran:?}");
    assert_eq!(scene.names(), ["old"], "an empty directory removes nothing");
    caller.write("here/cache/e/x", "x");
    caller.run_ok(&sync);
    assert_eq!(scene.names(), [""; 0]);
}

#[test]
fn dry_run_of_sync_changes_nothing() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    scene.store("a", b"a");
    caller.write("there/b", "b");
    assert_eq!(dry_run(&scene, &["s3://bucket", "absent"]), ["copy s3://bucket/a"]);
    assert!(!caller.path("absent").exists(), "the directory is not created either");
    let done = ["copy s3://bucket/a", "remove there/b"];
    assert_eq!(dry_run(&scene, &["s3://bucket", "there", "--delete"]), done);
    assert_eq!(names(&caller.path("there")), ["b"]);
    assert_eq!(
        caller.run_ok(&["cp", "-r", "--dry-run", "s3://bucket", "absent"]),
        "copy    s3://bucket/a to absent/a\n"
    );
    assert!(!caller.path("absent").exists());
    assert_eq!(scene.names(), ["a"]);
}

#[test]
fn missing_source_or_destination_is_reported() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("file", "x");
    for delete in [&[][..], &["--delete"]] {
        caller.run_failing(
            &[&["sync", "absent", "s3://bucket"], delete].concat(),
            &["absent is not a directory"],
        );
        caller
            .run_failing(&[&["sync", "s3://bucket", "file"], delete].concat(), &["file is not a directory"]);
    }
    scene.store("a", b"a");
    caller.write("there/b", "b");
    // A bucket that cannot be listed does not count as empty.
    caller.run_failing(&["sync", "s3://nowhere", "there", "--delete"], &[super::failures::NO_BUCKET_LISTED]);
    assert_eq!(names(&caller.path("there")), ["b"]);
    let nothing = "nothing at s3://bucket/none/: check its spelling";
    caller.run_failing(&["sync", "s3://bucket/none", "there"], &[nothing]);
    assert_eq!(names(&caller.path("there")), ["b"]);
}
