//! Overlapping endpoints and empty sources: rejected before anything is copied or removed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{TestStore, names, tree};
use crate::support::command_runner::CommandRunner;

/// A caller with the tree `d` of the example: `d/1`, `d/x/2` and `d/x/y/4`.
fn nested() -> CommandRunner {
    let caller = CommandRunner::new("127.0.0.1:1".parse().unwrap());
    for (name, text) in [("d/1", "1"), ("d/x/2", "2"), ("d/x/y/4", "4")] {
        caller.write(name, text);
    }
    caller
}

/// Runs a command, also as a dry run, that must be rejected and change nothing.
fn is_rejected(caller: &CommandRunner, arguments: &[&str], message: &str) {
    let before = tree(&caller.path("d"));
    for arguments in [arguments.to_vec(), [arguments, &["--dry-run"]].concat()] {
        let ran = caller.run(&arguments);
        assert_eq!(ran.status.code(), Some(1), "{arguments:?}: {ran:?}");
        assert!(ran.err.contains(message) && ran.out.is_empty(), "{arguments:?}: {ran:?}");
        assert!(tree(&caller.path("d")) == before, "{arguments:?} changed something");
    }
}

#[test]
fn nested_directories_are_rejected() {
    let caller = nested();
    symlink("d/x", caller.path("link")).unwrap();
    symlink(caller.path("d"), caller.path("up")).unwrap();
    for (from, to, message) in [
        ("d/x", "d", "d/x lies within d"),
        ("d", "d/x", "d/x lies within d"),
        ("d", "d", "d and d are the same directory"),
        ("d", "d/./x/..", "are the same directory"),
        ("d", "d/copy", "d/copy lies within d"),
        ("d", "d/not/yet/there", "d/not/yet/there lies within d"),
        ("link", "d", "link lies within d"),
        ("d", "link", "link lies within d"),
        ("d", "link/new", "link/new lies within d"),
        ("d", "up", "are the same directory"),
        ("d/x", "up", "d/x lies within up"),
    ] {
        is_rejected(&caller, &["cp", "-r", from, to], message);
        is_rejected(&caller, &["sync", from, to], message);
        is_rejected(&caller, &["sync", "--delete", from, to], message);
    }
    let inside = caller.path("d/x");
    let absolute = inside.to_str().unwrap();
    is_rejected(&caller, &["sync", "--delete", absolute, "d"], "lies within d");
}

#[test]
fn sibling_directories_are_accepted() {
    let caller = nested();
    caller.run_ok(&["sync", "--delete", "d/x", "d/xy"]);
    assert_eq!(names(&caller.path("d/xy")), ["2", "y/4"]);
    caller.run_ok(&["sync", "--delete", "d", "e/f"]);
    caller.run_ok(&["cp", "-r", "d/x", "e/g"]);
    assert_eq!(names(&caller.path("e")), ["f/1", "f/x/2", "f/x/y/4", "f/xy/2", "f/xy/y/4", "g/2", "g/y/4"]);
}

/// A caller with a local store in `data/store`, named `disk`, that holds `disk://bucket/a`.
fn with_local_store() -> CommandRunner {
    let caller = CommandRunner::new("127.0.0.1:1".parse().unwrap());
    let settings = "[store.disk]\ntype = \"local\"\npath = \"data/store\"\n";
    let caller = caller.with_settings(settings);
    caller.run_ok(&["mb", "disk://bucket"]);
    caller.write("a", "a");
    caller.run_ok(&["cp", "a", "disk://bucket/a"]);
    caller
}

/// All names except those in the store's own directory.
fn outside_store(caller: &CommandRunner) -> Vec<String> {
    names(caller.directory_path()).into_iter().filter(|name| !name.starts_with("data/store/")).collect()
}

#[test]
fn local_store_and_overlapping_directory_are_rejected() {
    let caller = with_local_store();
    let before = outside_store(&caller);
    symlink("data/store", caller.path("alias")).unwrap();
    for directory in [".", "data", "data/store", "data/store/segments", "alias", "alias/new"] {
        for arguments in [
            &["cp", "-r", "disk://bucket", directory][..],
            &["sync", "disk://bucket", directory],
            &["sync", "--delete", "disk://bucket", directory],
            &["cp", "--bundle", "disk://bucket/a", directory],
            &["cp", "-r", directory, "disk://bucket/copy/"],
            &["sync", directory, "disk://bucket/copy/"],
            &["sync", "--delete", directory, "disk://bucket/copy/"],
            &["sync", "--watch", directory, "disk://bucket/copy/"],
            &["cp", "--bundle", directory, "disk://bucket/copy.tar"],
        ] {
            let from_absent = directory == "alias/new" && arguments[arguments.len() - 2] == directory;
            let ran = caller.run(arguments);
            assert_eq!(ran.status.code(), Some(1), "{arguments:?}: {ran:?}");
            let message = if from_absent { "not a directory" } else { "(directory of the store disk://)" };
            assert!(ran.err.contains(message), "{arguments:?}: {ran:?}");
        }
    }
    fs::remove_file(caller.path("alias")).unwrap();
    assert_eq!(caller.keys("disk://bucket"), ["a"]);
    assert_eq!(outside_store(&caller), before);
    caller.run_ok(&["cp", "-r", "disk://bucket", "data/beside"]);
    assert_eq!(names(&caller.path("data/beside")), ["a"]);
}

#[test]
fn empty_prefix_is_rejected_as_a_source() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("keep/one", "1");
    scene.store("key", b"object");
    scene.store("copy/one", b"1");
    let copy = |directory: &str| format!("nothing at {directory}: to copy a single object, leave out -r");
    let check = |directory: &str| format!("nothing at {directory}: check its spelling");
    for (arguments, message) in [
        (&["cp", "-r", "s3://bucket/typo/", "keep"][..], copy("s3://bucket/typo/")),
        (&["cp", "-r", "s3://bucket/typo", "keep"], copy("s3://bucket/typo/")),
        (&["cp", "-r", "s3://bucket/key", "keep"], copy("s3://bucket/key/")),
        (&["cp", "-r", "s3://bucket/typo/", "s3://bucket/copy/"], copy("s3://bucket/typo/")),
        (&["cp", "-r", "--dry-run", "s3://bucket/typo/", "keep"], copy("s3://bucket/typo/")),
        (&["sync", "s3://bucket/typo/", "keep"], check("s3://bucket/typo/")),
        (&["sync", "s3://bucket/key", "keep"], check("s3://bucket/key/")),
    ] {
        caller.run_failing(arguments, &[&message]);
    }
    assert_eq!(
        (names(&caller.path("keep")), scene.names()),
        (vec!["one".to_owned()], vec!["copy/one".to_owned(), "key".to_owned()])
    );
}

#[test]
fn delete_from_an_empty_source_needs_a_flag() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.run_ok(&["mb", "s3://empty"]);
    fs::create_dir_all(caller.path("nothing/but/directories")).unwrap();
    caller.write("keep/one", "1");
    scene.store("copy/one", b"1");
    let advice = "if that is meant, add --allow-empty-source";
    for (from, from_shown, to, to_shown) in [
        ("s3://bucket/typo/", "s3://bucket/typo/", "keep", "keep/"),
        ("s3://bucket/typo", "s3://bucket/typo/", "s3://bucket/copy", "s3://bucket/copy/"),
        ("s3://empty", "s3://empty/", "keep", "keep/"),
        ("nothing", "nothing/", "keep", "keep/"),
        ("nothing", "nothing/", "s3://bucket/copy", "s3://bucket/copy/"),
    ] {
        let message =
            format!("nothing at {from_shown}: --delete would remove everything at {to_shown}; {advice}");
        caller.run_failing(&["sync", "--delete", from, to], &[&message]);
        caller.run_failing(&["sync", "--delete", "--dry-run", from, to], &[&message]);
    }
    let message =
        format!("nothing at nothing/: --delete would remove everything at s3://bucket/copy/; {advice}");
    caller.run_failing(&["sync", "--watch", "--delete", "nothing", "s3://bucket/copy"], &[&message]);
    // A bucket that cannot be listed is not an empty source, with or without the flag.
    let ran = caller.run(&["sync", "--delete", "--allow-empty-source", "s3://not-there/x/", "keep"]);
    assert!(ran.status.code() == Some(1) && ran.err.contains("does not exist (NoSuchBucket)"), "{ran:?}");
    assert_eq!(
        (names(&caller.path("keep")), scene.names()),
        (vec!["one".to_owned()], vec!["copy/one".to_owned()])
    );

    caller.run_ok(&["sync", "--delete", "--allow-empty-source", "s3://bucket/typo/", "keep"]);
    caller.run_ok(&["sync", "--delete", "--allow-empty-source", "nothing", "s3://bucket/copy"]);
    assert_eq!((names(&caller.path("keep")).len(), scene.names().len()), (0, 0));
    // Without --delete, an empty bucket or directory is a valid source.
    caller.run_ok(&["cp", "-r", "s3://empty", "keep"]);
    caller.run_ok(&["sync", "s3://empty", "keep"]);
    caller.run_ok(&["sync", "nothing", "s3://bucket"]);
}

/// A filter that excludes everything does not make the source empty: excluded objects are not removed either.
#[test]
fn filter_that_excludes_everything_removes_nothing() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("here/a.jpg", "1");
    scene.store("b.png", b"1");
    caller.run_ok(&["sync", "--delete", "here", "s3://bucket", "--exclude", "*"]);
    assert_eq!(scene.names(), ["b.png"]);
}

#[test]
fn destination_link_to_a_descriptor_is_rejected() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    scene.store("key", b"object");
    let out = Path::new("/proc/self/fd/1");
    symlink(out, caller.path("out")).unwrap();
    symlink("out", caller.path("twice")).unwrap();
    fs::create_dir(caller.path("there")).unwrap();
    symlink(out, caller.path("there/key")).unwrap();
    for arguments in [
        &["cp", "s3://bucket/key", "out"][..],
        &["cp", "s3://bucket/key", "twice"],
        &["cp", "s3://bucket/key", "there"],
        &["cp", "-r", "s3://bucket", "there"],
        &["sync", "s3://bucket", "there"],
    ] {
        let ran = caller.run(arguments);
        assert_eq!(ran.status.code(), Some(1), "{arguments:?}: {ran:?}");
        assert!(ran.err.contains("leads to an open file of a process"), "{arguments:?}: {ran:?}");
    }
    for link in ["out", "twice", "there/key"] {
        assert!(fs::symlink_metadata(caller.path(link)).unwrap().is_symlink(), "{link}");
    }
}

/// Web consoles create an empty object per folder. A source of only such markers removes nothing.
#[test]
fn source_of_only_folder_markers_removes_nothing() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for marker in ["dir/", "dir/a/", "dir/m/n/"] {
        scene.store(marker, b"");
    }
    scene.store("copy/one", b"1");
    caller.write("keep/b", "1");
    for to in ["keep", "s3://bucket/copy"] {
        for dry_run in [&["--dry-run"][..], &[]] {
            let ran = caller.run(&[&["sync", "--delete", "s3://bucket/dir/", to], dry_run].concat());
            assert!(
                ran.status.code() == Some(1) && ran.err.contains("nothing at s3://bucket/dir/"),
                "{ran:?}"
            );
            assert!(!String::from_utf8(ran.out).unwrap().contains("remove"));
        }
    }
    assert_eq!(names(&caller.path("keep")), ["b"]);
    assert!(scene.names().contains(&"copy/one".to_owned()));
}
