//! Copies of trees: uploads, downloads and copies within the store preserve all names and contents.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;

use super::{TestStore, content, names, tree};

/// Names that careless code mishandles.
fn odd_names() -> Vec<String> {
    let mut names = [
        "plain",
        "a",
        "a.txt/b",
        "a-b",
        "a b",
        " leading and trailing ",
        "d/a.txt",
        "d/a/b",
        "d/a-b",
        "d/a0",
        "\u{e9}t\u{e9}/\u{65e5}\u{672c}\u{8a9e}",
        "e\u{301}",
        "\u{1f600}",
        "\u{ff5e}",
        "%41",
        "+",
        "a+b=c&d?e#f",
        "*?[x]",
        "quote\"'`",
        "back\\slash",
        "line\nbreak",
        "tab\tand\rreturn",
        "<&>",
        ".hidden",
        "..dots..",
        "-r",
        "~",
        "$(x)",
        "s3:",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("x".repeat(255));
    names.push("\u{65e5}".repeat(85));
    // The longest keys have 1024 bytes.
    names.push(vec!["y".repeat(200); 5].join("/"));
    names
}

fn fill(scene: &TestStore, root: &str) {
    for (id, name) in odd_names().into_iter().enumerate() {
        let size = [0, 1, 1000, 70_000, 300_000][id % 5];
        scene.runner.write(format!("{root}/{name}"), content(id as u64, size));
    }
}

#[test]
fn trees_of_odd_names_round_trip() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    fill(&scene, "here");
    caller.run_ok(&["cp", "-r", "here", "s3://bucket"]);
    let mut expected = odd_names();
    expected.sort_unstable();
    assert_eq!(scene.names(), expected, "keys are the names, in byte order");

    caller.run_ok(&["cp", "-r", "s3://bucket", "there"]);
    assert!(tree(&caller.path("there")) == tree(&caller.path("here")));
    for listed in
        [caller.run_ok(&["sync", "here", "s3://bucket"]), caller.run_ok(&["sync", "s3://bucket", "there"])]
    {
        assert_eq!(listed, "");
    }
    assert_eq!(caller.run_ok(&["sync", "--dry-run", "here", "s3://bucket"]), "", "the trees are equal");

    caller.run_ok(&["cp", "-r", "s3://bucket/d", "s3://bucket/copy/"]);
    caller.run_ok(&["cp", "-r", "s3://bucket/copy", "below"]);
    assert!(tree(&caller.path("below")) == tree(&caller.path("here/d")));
    caller.run_ok(&["rm", "-r", "s3://bucket"]);
    assert_eq!(scene.names(), [""; 0]);
}

#[test]
fn single_objects_of_odd_names_round_trip() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for (id, name) in odd_names().into_iter().enumerate().filter(|(_, name)| !name.contains('/')) {
        let bytes = content(id as u64, 1000);
        caller.write(format!("here/{name}"), &bytes);
        let url = format!("s3://bucket/{name}");
        caller.run_ok(&["cp", &format!("here/{name}"), &url]);
        caller.run_ok(&["cp", &url, "there/"]);
        assert_eq!(fs::read(caller.path("there").join(&name)).unwrap(), bytes, "{name:?}");
        assert_eq!(scene.read(&name), bytes, "{name:?}");
        let metadata = caller.stat(&url);
        assert_eq!((metadata["key"].as_str(), metadata["size"].as_u64()), (Some(&*name), Some(1000)));
        caller.run_ok(&["rm", &url]);
    }
    assert_eq!(scene.names(), [""; 0]);
}

#[test]
fn trees_of_several_listing_pages_round_trip() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    // More than one page, and more than the queue between two tasks holds.
    for n in 0..1050 {
        caller.write(format!("here/{}/{n}", n % 7), n.to_string());
    }
    caller.run_ok(&["cp", "-r", "here", "s3://bucket/deep/er"]);
    caller.run_ok(&["cp", "-r", "s3://bucket/deep", "there"]);
    assert!(tree(&caller.path("there/er")) == tree(&caller.path("here")));
    caller.run_ok(&["rm", "-r", "s3://bucket/deep/", "--exclude", "*/6/*"]);
    assert_eq!(scene.names().len(), 1050 / 7);
    caller.run_ok(&["rm", "-r", "s3://bucket/deep/"]);
    caller.run_ok(&["rb", "s3://bucket"]);
    assert_eq!(caller.run_ok(&["ls"]), "");
}

#[test]
fn files_that_cannot_be_keys_are_reported_and_skipped() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("here/good", "good");
    caller.write("here/z/good", "good");
    let raw = std::ffi::OsStr::from_bytes(b"here/caf\xe9");
    caller.write(std::path::Path::new(raw), "not UTF-8");
    let _socket = std::os::unix::net::UnixListener::bind(caller.path("here/socket")).unwrap();
    std::os::unix::fs::symlink("good", caller.path("here/link")).unwrap();
    std::os::unix::fs::symlink(".", caller.path("here/circle")).unwrap();
    let long = vec!["y".repeat(250); 5].join("/");
    caller.write(format!("here/{long}"), "too long");
    let bad_utf8 = "here/caf\u{fffd}: its name is not UTF-8, as keys must be; rename it";
    let socket = "here/socket is neither a file nor a directory: skipped";
    let key = format!("{long}: the key has 1254 bytes; at most 1024 are allowed");
    caller.run_failing(&["cp", "-r", "here", "s3://bucket"], &[bad_utf8, socket, &key]);
    assert_eq!(scene.names(), ["good", "z/good"]);

    let circle = "here/circle is a link to a directory: skipped";
    let complaints = [bad_utf8, circle, socket, &key];
    caller.run_failing(&["cp", "-r", "--follow-symlinks", "here", "s3://bucket"], &complaints);
    assert_eq!(scene.names(), ["good", "link", "z/good"]);
    assert_eq!(scene.read("link"), b"good");
    // These names fail, and nothing is removed for them.
    let kept = "1 item was not removed: the source may have what could not be listed";
    let unfit = [bad_utf8, socket, &key, kept];
    caller.run_failing(&["sync", "here", "s3://bucket", "--delete"], &unfit);
    assert_eq!(scene.names(), ["good", "link", "z/good"], "an incomplete listing removes nothing");
}

#[test]
fn keys_that_cannot_be_paths_are_reported_and_skipped() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    let long = "x".repeat(256);
    let unfit = ["../x", "a//b", "dir/", "/etc/x", "b/../../x", "./c", &long];
    for key in unfit.into_iter().chain(["good", "z/good"]) {
        scene.store(key, b"bytes");
    }
    let because = |key: &str, why: &str| format!("{key:?} cannot be a file's name: {why}");
    let slash = "it begins or ends with a slash, or has two in a row";
    let dots = "it has a component that is `.` or `..`";
    let complaints = [
        because("../x", dots),
        because("./c", dots),
        because("/etc/x", slash),
        because("a//b", slash),
        because("b/../../x", dots),
        because("dir/", slash),
        because(&long, "a component of it is longer than 255 bytes"),
    ];
    let complaints: Vec<&str> = complaints.iter().map(String::as_str).collect();
    for command in [["cp", "-r"].as_slice(), &["sync"], &["sync", "--delete"]] {
        let arguments = [command, &["s3://bucket", "in/there"]].concat();
        caller.run_failing(&arguments, &complaints);
        assert_eq!(
            names(caller.directory_path()),
            ["in/there/good", "in/there/z/good"],
            "nothing is written elsewhere"
        );
    }
    let (dots, slash) = (format!("up/..: {}", because("..", dots)), because("dir/", slash));
    scene.store("up/..", b"bytes");
    caller.run_failing(&["cp", "s3://bucket/up/..", "in/"], &[&dots]);
    caller.run_failing(&["cp", "s3://bucket/dir/", "in/"], &[&slash]);
    // A key of any name can be copied to a name given by the user.
    caller.run_ok(&["cp", "s3://bucket/../x", "in/x"]);
    caller.run_ok(&["cp", "s3://bucket/dir/", "in/y"]);
    for name in ["in/x", "in/y"] {
        assert_eq!(fs::read(caller.path(name)).unwrap(), b"bytes", "{name}");
    }
}

#[test]
fn key_that_is_also_a_prefix_conflicts_as_a_file() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for key in ["a", "a/b", "b", "c/d", "c/d/e", "f"] {
        scene.store(key, key.as_bytes());
    }
    // With concurrency 1 the order is deterministic.
    let complaints = [
        "a/b: cannot create the directory there/a: the key \"a\" took its place as a file; copy one of the two under \
         another name",
        "c/d/e: cannot create the directory there/c/d: the key \"c/d\" took its place as a file; copy one of the two \
         under another name",
    ];
    caller.run_failing(&["cp", "-r", "--concurrency", "1", "s3://bucket", "there"], &complaints);
    assert_eq!(names(&caller.path("there")), ["a", "b", "c/d", "f"], "all other items are copied");

    fs::create_dir_all(caller.path("other/a")).unwrap();
    fs::create_dir_all(caller.path("other/f/g")).unwrap();
    let complaints = [
        "other/a exists and is a directory, so that the key \"a\" cannot be a file there; copy one of the two under \
         another name",
        "c/d/e: cannot create the directory other/c/d: the key \"c/d\" took its place as a file; copy one of the two \
         under another name",
        "other/f exists and is a directory, so that the key \"f\" cannot be a file there; copy one of the two under \
         another name",
    ];
    caller.run_failing(&["cp", "-r", "--concurrency", "1", "s3://bucket", "other"], &complaints);
    assert_eq!(names(&caller.path("other")), ["a/b", "b", "c/d"]);

    let ran = caller.run(&["cp", "-r", "s3://bucket", "many"]);
    assert_eq!((ran.status.code(), ran.err.lines().count()), (Some(1), 2), "{ran:?}");
    assert!(ran.err.lines().all(|line| line.contains("; copy one of the two under another name")), "{ran:?}");
    let came = tree(&caller.path("many"));
    assert_eq!(came.len(), 4, "{came:?}");
    assert!(came.iter().all(|(name, bytes)| name.as_bytes() == bytes), "{came:?}");
}

/// Links below the destination are not followed, and anything but a file is not replaced.
#[test]
fn destination_links_and_sockets_are_not_written_through() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("here/d/a", "a");
    caller.write("here/e", "e");
    caller.run_ok(&["cp", "-r", "here", "s3://bucket"]);
    fs::create_dir_all(caller.path("elsewhere")).unwrap();
    fs::create_dir_all(caller.path("there")).unwrap();
    std::os::unix::fs::symlink("../elsewhere", caller.path("there/d")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(caller.path("there/e")).unwrap();
    let ran = caller.run(&["cp", "-r", "s3://bucket", "there"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(ran.err.contains("there/d is a symbolic link"), "{}", ran.err);
    assert!(ran.err.contains("there/e exists and is not a file"), "{}", ran.err);
    fs::remove_file(caller.path("there/e")).unwrap();
    let ran = caller.run(&["sync", "s3://bucket", "there"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(ran.err.contains("there/d is a symbolic link"), "{}", ran.err);
    assert_eq!(fs::read(caller.path("there/e")).unwrap(), b"e");
    assert_eq!(fs::read_dir(caller.path("elsewhere")).unwrap().count(), 0);
}

/// Web consoles create an empty object per folder.
#[test]
fn empty_folder_markers_become_directories() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for marker in ["photos/", "photos/2026/", "photos/empty/", "photos/empty/er/"] {
        scene.store(marker, b"");
    }
    scene.store("photos/2026/a", b"a");
    for command in [&["cp", "-r"][..], &["sync"], &["sync", "--delete", "--checksum"]] {
        for (from, to) in [("s3://bucket", "all"), ("s3://bucket/photos/", "all/photos")] {
            caller.run_ok(&[command, &[from, to]].concat());
            assert_eq!(names(&caller.path("all")), ["photos/2026/a"]);
            assert!(caller.path("all/photos/empty/er").is_dir());
        }
    }
    assert_eq!(caller.run_ok(&["sync", "--dry-run", "--delete", "s3://bucket", "all"]), "");
    let made = "copy    s3://bucket/photos/empty/er/ to all/photos/empty/er/\n";
    fs::remove_dir(caller.path("all/photos/empty/er")).unwrap();
    assert_eq!(caller.run_ok(&["sync", "--dry-run", "s3://bucket", "all"]), made);
    // A file in the way is an error, and is not replaced.
    caller.write("all/photos/empty/er", "file");
    let ran = caller.run(&["cp", "-r", "s3://bucket", "all"]);
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    assert!(ran.err.contains("took its place as a file"), "{}", ran.err);
    assert_eq!(fs::read(caller.path("all/photos/empty/er")).unwrap(), b"file");
}

#[test]
fn dry_run_of_cp_copies_nothing() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("here", "new");
    assert_eq!(
        caller.run_ok(&["cp", "--dry-run", "here", "s3://bucket/x"]),
        "copy    here to s3://bucket/x\n"
    );
    assert_eq!(scene.names(), [""; 0]);
}
