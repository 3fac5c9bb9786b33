//! The transfer commands with every kind of store, and between two stores: other servers and directories from a
//! settings file, and Swift.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

#[path = "stores/between.rs"]
mod between;
#[path = "stores/faults.rs"]
mod faults;
#[path = "stores/keystone.rs"]
mod keystone;
#[path = "stores/local.rs"]
mod local;
#[path = "stores/named.rs"]
mod named;
#[path = "stores/swift.rs"]
mod swift;
#[path = "stores/versions.rs"]
mod versions;

use std::net::SocketAddr;

use support::command_runner::CommandRunner;
use support::content::content;
use support::server::{Server, ServerSetup};

/// Two servers, configured as `s3` and `other`, with a bucket in each.
struct TestStore {
    one: Server,
    other: Server,
    caller: CommandRunner,
    _data: tempfile::TempDir,
}

impl TestStore {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        let start = |name: &str| {
            let start = ServerSetup::new(&data.path().join(name), &data.path().join(format!("{name}.log")));
            start.start().unwrap()
        };
        let (one, other) = (start("one"), start("other"));
        let caller = with_other(CommandRunner::new(one.endpoint), other.endpoint);
        caller.run_ok(&["mb", "s3://bucket"]);
        caller.run_ok(&["mb", "other://bucket"]);
        Self { one, other, caller, _data: data }
    }
}

/// Adds the store at an address to the caller's settings as `other`.
fn with_other(caller: CommandRunner, other: SocketAddr) -> CommandRunner {
    caller.with_settings(&format!("[store.other]\ntype = \"s3\"\nendpoint = \"http://{other}\"\n"))
}

/// Runs all commands with the store of this name. It has no bucket before and after.
fn all_is_done_with(caller: &CommandRunner, name: &str) {
    let at = |rest: &str| format!("{name}://{rest}");
    caller.run_ok(&["mb", &at("bucket")]);
    assert!(caller.run_ok(&["ls", &at("")]).ends_with(&format!("  {}\n", at("bucket"))));
    let sizes = [
        ("a.txt", 5),
        ("a/b", 0),
        ("a/c d+e&f", 1000),
        ("z/large", 9 << 20),
        ("\u{e9}/\u{65e5}.jpg", 300_000),
    ];
    for (id, (file, size)) in sizes.iter().enumerate() {
        caller.write(format!("{name}.tree/{file}"), content(id as u64, *size));
    }
    let (tree, back) = (format!("{name}.tree"), format!("{name}.back"));
    caller.set_old(&tree);
    caller.run_ok(&["cp", "-r", &tree, &at("bucket/tree")]);
    assert_eq!(caller.keys(&at("bucket/tree/")), sizes.map(|(file, _)| format!("tree/{file}")));
    caller.run_ok(&["cp", "-r", &at("bucket/tree"), &back]);
    for (file, _) in &sizes {
        let bytes = |root: &str| std::fs::read(caller.path(root).join(file)).unwrap();
        assert!(bytes(&tree) == bytes(&back), "{file}");
    }
    assert_eq!(caller.run_ok(&["sync", "--dry-run", "--delete", &tree, &at("bucket/tree")]), "");
    std::fs::remove_file(caller.path(&tree).join("a/b")).unwrap();
    caller.write(format!("{tree}/a.txt"), "longer, with a needle");
    caller.run_ok(&["sync", "--delete", &tree, &at("bucket/tree")]);
    assert_eq!(caller.read(&at("bucket/tree/a.txt")), b"longer, with a needle");
    let found = format!("{}:1:longer, with a needle\n", at("bucket/tree/a.txt"));
    assert_eq!(caller.run_ok(&["grep", "--sort", "needle", &at("bucket/tree"), "--exclude", "z/*"]), found);

    // In parts: from a file, from a pipe, and within the store.
    let large = content(9, (16 << 20) + 3);
    caller.write("large", &large);
    let parts = ["--chunk-size", "5MiB"];
    caller.run_ok(&[&["cp", "large", &at("bucket/large")], &parts[..]].concat());
    assert_eq!(caller.stat(&at("bucket/large"))["parts"], 4);
    caller.run_ok(&[&["cp", &at("bucket/large"), "large.back"], &parts[..]].concat());
    assert!(std::fs::read(caller.path("large.back")).unwrap() == large);
    let piped = caller
        .spawn(&[&["cp", "-", &at("bucket/piped")], &parts[..]].concat())
        .with_stdin(&large)
        .wait_for_output();
    assert!(piped.status.success(), "{}", piped.err);
    assert!(caller.read(&at("bucket/piped")) == large);
    caller.run_ok(&["cp", &at("bucket/large"), &at("bucket/copied/")]);
    assert!(caller.read(&at("bucket/copied/large")) == large);

    // A bundle, and a member of it.
    let (bundle, unpacked) = (at("bucket/all.tar"), format!("{name}.unpacked"));
    caller.run_ok(&[&["cp", "--bundle", &tree, &bundle], &parts[..]].concat());
    caller.run_ok(&["cp", "--bundle", &bundle, &unpacked]);
    let listed = caller.run_ok(&["ls", "--bundle", "--json", &bundle]);
    assert_eq!((listed.lines().count(), listed.matches(&format!("\"{bundle}\"")).count()), (4, 4));
    for (file, _) in sizes.iter().filter(|(file, _)| *file != "a/b") {
        let bytes = |root: &str| std::fs::read(caller.path(root).join(file)).unwrap();
        assert!(bytes(&tree) == bytes(&unpacked), "{file}");
        let ran = caller.run(&["cat", &bundle, "--member", file]);
        assert!(ran.out == bytes(&tree), "{file}: {}", ran.err);
    }
    caller.run_failing(
        &["cat", &bundle, "--member", "b"],
        &[&format!("{bundle} has no member \"b\"; ls --bundle lists them")],
    );

    caller.run_ok(&["rm", &at("bucket/piped")]);
    assert_eq!(caller.run(&["cat", &at("bucket/piped")]).status.code(), Some(1));
    assert_eq!(caller.run(&["rb", &at("bucket")]).status.code(), Some(1), "it is not empty");
    caller.run_ok(&["rm", "-r", &at("bucket")]);
    caller.run_ok(&["rb", &at("bucket")]);
    assert_eq!(caller.run_ok(&["ls", &at("")]), "");
}

/// Copies between two stores with all metadata. Both have a bucket.
fn assert_all_is_copied_between(caller: &CommandRunner, from: &str, to: &str) {
    let (here, there) =
        (|key: &str| format!("{from}://bucket/{key}"), |key: &str| format!("{to}://bucket/{key}"));
    let sizes = [
        ("x/empty", 0),
        ("x/one", 1),
        ("x/small", 200_000),
        ("x/some", 3_000_000),
        ("x/large", (16 << 20) + 3),
    ];
    let parts = ["--chunk-size", "5MiB"];
    for (id, (key, size)) in sizes.iter().enumerate() {
        caller.write(format!("there/{key}.html"), content(id as u64, *size));
    }
    caller.run_ok(&[&["cp", "-r", "there/x", &here("x")], &parts[..]].concat());
    // Swift rounds times up to the second and S3 down: written within one second, the source would look newer.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    caller.run_ok(&[&["cp", "-r", &here("x"), &there("y")], &parts[..]].concat());
    assert_eq!(
        caller.keys(&there("y/")),
        ["empty", "large", "one", "small", "some"].map(|key| format!("y/{key}.html"))
    );
    for (id, (key, size)) in sizes.iter().enumerate() {
        let copy = format!("y/{}.html", key.trim_start_matches("x/"));
        assert!(caller.read(&there(&copy)) == content(id as u64, *size), "{copy}");
        let (one, other) = (caller.stat(&here(&format!("{key}.html"))), caller.stat(&there(&copy)));
        assert_eq!(other["content_type"], "text/html");
        for field in ["size", "checksums", "checksum_type", "parts"] {
            assert_eq!(one[field], other[field], "{field} of {copy}");
        }
    }
    // Nothing is left to do, by time and by checksum; an object that differs by one byte is copied.
    let sync = |more: &[&str]| {
        caller.run_ok(&[&["sync", "--delete", &here("x"), &there("y")], more, &parts].concat())
    };
    let would = |more: &[&str]| {
        caller.run_ok(&[&["sync", "--delete", "--dry-run", &here("x"), &there("y")], more].concat())
    };
    // Objects that were copied within a second are copied again.
    sync(&[]);
    assert_eq!(would(&[]), "");
    caller.write("one", "!");
    caller.run_ok(&["cp", "one", &there("y/one.html")]);
    caller.run_ok(&["cp", "one", &there("y/zzz")]);
    assert_eq!(would(&[]), format!("remove  {}\n", there("y/zzz")));
    let before = caller.stat(&there("y/large.html"));
    sync(&["--checksum"]);
    assert_eq!(caller.read(&there("y/one.html")), content(1, 1), "size and time hide the difference");
    assert_eq!(caller.stat(&there("y/large.html")), before, "an equal object is not copied again");
    assert_eq!(caller.keys(&there("y/")).len(), sizes.len());
    // One object, to another key, and to a prefix.
    caller.run_ok(&["cp", &here("x/small.html"), &there("z/other")]);
    caller.run_ok(&["cp", &here("x/small.html"), &there("z/")]);
    assert_eq!(caller.keys(&there("z/")), ["z/other", "z/small.html"]);
}
