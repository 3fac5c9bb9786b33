//! Copies between two servers: bytes, metadata, trees, and sync.

use super::support::s3::{Request, S3};
use super::support::server::root_key;
use super::{TestStore, all_is_done_with, assert_all_is_copied_between, content};

#[test]
fn named_service_supports_all_commands() {
    let scene = TestStore::new();
    scene.caller.run_ok(&["rb", "other://bucket"]);
    all_is_done_with(&scene.caller, "other");
    assert!(scene.caller.run_ok(&["ls"]).ends_with("  s3://bucket\n"), "the other store is untouched");
}

#[test]
fn trees_are_copied_in_both_directions() {
    let scene = TestStore::new();
    assert_all_is_copied_between(&scene.caller, "s3", "other");
    scene.caller.run_ok(&["rm", "-r", "s3://bucket"]);
    scene.caller.run_ok(&["rm", "-r", "other://bucket"]);
    assert_all_is_copied_between(&scene.caller, "other", "s3");
}

/// In one request, and in parts.
#[test]
fn copy_preserves_metadata() {
    let scene = TestStore::new();
    let caller = &scene.caller;
    let headers = [
        ("content-type", "text/x-own"),
        ("content-language", "de"),
        ("cache-control", "no-store"),
        ("x-amz-meta-colour", "green"),
        ("x-amz-tagging", "k=v&l=w"),
        ("x-dss-object-class", "7"),
    ];
    let headers = headers.map(|(name, value)| (name, value.to_owned())).to_vec();
    for size in [1000, 16 << 20] {
        let body = content(1, size);
        let put = Request {
            method: "PUT",
            path: "bucket/k",
            headers: headers.clone(),
            body: &body,
            ..Request::default()
        };
        let stored = S3::new(scene.one.endpoint, root_key()).send(put).unwrap();
        assert_eq!(stored.status, 200, "{}", stored.text());
        caller.run_ok(&["cp", "s3://bucket/k", "other://bucket/k", "--chunk-size", "5MiB"]);
        let (one, mut other) = (caller.stat("s3://bucket/k"), caller.stat("other://bucket/k"));
        let parts = (size > 15 << 20).then_some(4);
        assert_eq!(other["parts"].as_u64(), parts);
        assert_eq!(other["class"], 7);
        for own in ["modified", "etag", "parts"] {
            other[own] = one[own].clone();
        }
        assert_eq!(one, other);
        let got = S3::new(scene.other.endpoint, root_key()).get("bucket/k").unwrap();
        assert!(got.body == body);
        for (name, value) in
            [("content-language", "de"), ("cache-control", "no-store"), ("x-amz-tagging-count", "2")]
        {
            assert_eq!(got.header(name), Some(value), "{name}");
        }
    }
}

/// The copy keeps the checksum algorithm of the source.
#[test]
fn checksums_of_other_algorithms_are_compared() {
    let scene = TestStore::new();
    let caller = &scene.caller;
    for algorithm in ["SHA256", "CRC32"] {
        let (name, value) = match algorithm {
            "SHA256" => ("x-amz-checksum-sha256", "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="),
            _ => ("x-amz-checksum-crc32", "NhCmhg=="),
        };
        let put = Request {
            method: "PUT",
            path: "bucket/d/k",
            headers: vec![(name, value.to_owned())],
            body: b"hello",
            ..Request::default()
        };
        let stored = S3::new(scene.one.endpoint, root_key()).send(put).unwrap();
        assert_eq!(stored.status, 200, "{}", stored.text());
        caller.run_ok(&["sync", "--checksum", "s3://bucket/d", "other://bucket/d"]);
        let copied = caller.stat("other://bucket/d/k");
        assert_eq!(copied["checksums"][algorithm], value, "{copied}");
        // Written again, it would have a later time.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        caller.run_ok(&["sync", "--checksum", "s3://bucket/d", "other://bucket/d"]);
        assert_eq!(caller.stat("other://bucket/d/k"), copied);
    }
}

#[test]
fn copy_works_with_little_memory_and_one_request() {
    let scene = TestStore::new();
    let caller = &scene.caller;
    let bytes = content(1, 16 << 20);
    caller.write("here", &bytes);
    let little = ["--max-memory", "4MiB", "--concurrency", "1", "--chunk-size", "5MiB"];
    caller.run_ok(&["cp", "here", "s3://bucket/x"]);
    caller.run_ok(&[&["cp", "s3://bucket/x", "other://bucket/x"], &little[..]].concat());
    assert!(caller.read("other://bucket/x") == bytes);
}

/// One service with two names: copied objects would be listed as sources again.
#[test]
fn copy_into_itself_is_rejected() {
    let scene = TestStore::new();
    let caller = &scene.caller;
    caller.write("a", "a");
    caller.run_ok(&["cp", "a", "s3://bucket/d/a"]);
    let endpoint = format!("http://{}", scene.one.endpoint);
    let flags = ["--endpoint-url", &endpoint];
    let twice = format!("[store.again]\ntype = \"s3\"\nendpoint = \"{endpoint}\"\n");
    caller.write("settings.toml", twice);
    let why = "the source and destination prefixes overlap; choose disjoint prefixes";
    caller.run_failing(&["cp", "-r", "s3://bucket", "again://bucket/d"], &[why]);
    caller.run_failing(&[&["sync", "again://bucket/d", "s3://bucket"], &flags[..]].concat(), &[why]);
    assert_eq!(caller.keys("again://bucket"), ["d/a"]);
    caller.run_ok(&["cp", "-r", "s3://bucket/d", "again://bucket/e"]);
    assert_eq!(caller.keys("s3://bucket"), ["d/a", "e/a"]);
}

#[test]
fn dry_run_prints_what_would_be_done() {
    let scene = TestStore::new();
    let caller = &scene.caller;
    caller.write("a", "a");
    caller.run_ok(&["cp", "a", "s3://bucket/d/a"]);
    assert_eq!(
        caller.run_ok(&["sync", "--dry-run", "s3://bucket/d", "other://bucket/e"]),
        "copy    s3://bucket/d/a to other://bucket/e/a\n"
    );
    assert_eq!(
        caller.run_ok(&["cp", "--dry-run", "s3://bucket/d/a", "other://bucket/e"]),
        "copy    s3://bucket/d/a to other://bucket/e\n"
    );
    assert_eq!(caller.run_ok(&["rm", "--dry-run", "-r", "s3://bucket"]), "remove  s3://bucket/d/a\n");
    assert_eq!(caller.keys("other://bucket"), [""; 0]);
}
