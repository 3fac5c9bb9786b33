//! Copies of single objects, and the commands `ls`, `stat` and `rm`.

use std::fs;

use super::support::s3::Request;
use super::{TestStore, names};
use crate::support::s3::S3;
use crate::support::server::root_key;

#[test]
fn copy_destination_follows_the_form_of_the_target() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("photo.jpg", "photo");
    fs::create_dir(caller.path("dir")).unwrap();
    for (to, key) in [
        ("s3://bucket", "photo.jpg"),
        ("s3://bucket/2026/", "2026/photo.jpg"),
        ("s3://bucket/2026", "2026"),
        ("s3://bucket//", "/photo.jpg"),
    ] {
        caller.run_ok(&["cp", "photo.jpg", to]);
        assert_eq!(scene.read(key), b"photo");
        assert_eq!(scene.names(), [key], "{to}");
        caller.run_ok(&["rm", &format!("s3://bucket/{key}")]);
    }
    caller.run_ok(&["cp", "./photo.jpg", "s3://bucket/a/b"]);
    for (to, path) in [("dir", "dir/b"), ("new/", "new/b"), ("new/x/y", "new/x/y"), ("z", "z")] {
        caller.run_ok(&["cp", "s3://bucket/a/b", to]);
        assert_eq!(fs::read(caller.path(path)).unwrap(), b"photo", "{to}");
    }
    caller.run_ok(&["cp", "s3://bucket/a/b", "s3://bucket/c/"]);
    caller.run_ok(&["cp", "s3://bucket/a/b", "s3://bucket/d"]);
    assert_eq!(scene.names(), ["a/b", "c/b", "d"]);
    caller.run_ok(&["cp", "photo.jpg", "dir/copy"]);
    assert_eq!(names(&caller.path("dir")), ["b", "copy"]);
}

#[test]
fn json_summary_of_a_copy_includes_store_statistics() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("photo.jpg", "photo");
    let end = |from: &str, to: &str| -> serde_json::Value {
        serde_json::from_str(&caller.run_ok(&["cp", "--json", from, to])).unwrap()
    };
    let sent = end("photo.jpg", "s3://bucket/a");
    let [store] = &sent["stores"].as_array().unwrap()[..] else { panic!("{sent}") };
    assert_eq!((&sent["copied"], &store["kind"], &store["failed"]), (&1.into(), &"s3".into(), &0.into()));
    assert!(store["requests"].as_u64().unwrap() >= 1 && store["first_byte_seconds"].is_null(), "{sent}");
    let fetched = end("s3://bucket/a", "back");
    assert!(fetched["stores"][0]["first_byte_seconds"].as_f64().unwrap() > 0.0, "{fetched}");
}

#[test]
fn copy_preserves_object_metadata_and_time() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.write("page.html", "<html>");
    caller.run_ok(&["cp", "page.html", "s3://bucket/a.html"]);
    caller.run_ok(&["cp", "s3://bucket/a.html", "s3://bucket/b"]);
    let metadata = |key: &str| caller.stat(&format!("s3://bucket/{key}"));
    let (one, other) = (metadata("a.html"), metadata("b"));
    assert_eq!(one["content_type"], "text/html");
    for field in ["size", "etag", "content_type", "checksums", "checksum_type"] {
        assert_eq!(one[field], other[field], "{field}");
    }
    let shown = caller.run_ok(&["stat", "s3://bucket/b"]);
    for line in ["object         s3://bucket/b", "size           6", "content-type   text/html"] {
        assert!(shown.lines().any(|shown| shown == line), "{shown}");
    }
    caller.run_ok(&["cp", "s3://bucket/b", "came"]);
    let modified = fs::metadata(caller.path("came")).unwrap().modified().unwrap();
    let seconds = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(now - seconds < 60, "the file gets the object's time");
    assert!(shown.contains("modified"), "{shown}");
}

#[test]
fn ls_and_rm_respect_prefixes_and_filters() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for key in ["2025-old/x", "2025/a.jpg", "2025/b.raw", "2025/c/d.jpg", "2026", "e"] {
        scene.store(key, b"12345");
    }
    let entries = |arguments: &[&str]| -> Vec<String> {
        let listed = caller.run_ok(arguments);
        listed.lines().map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")).collect()
    };
    assert_eq!(entries(&["ls"]), ["s3://bucket"]);
    let top = ["5 2026", "5 e"];
    let listed = entries(&["ls", "s3://bucket"]);
    assert_eq!(listed[2..], top, "{listed:?}");
    assert_eq!(listed[..2], ["2025-old/", "2025/"]);
    assert_eq!(entries(&["ls", "s3://bucket/2025/"]), ["5 2025/a.jpg", "5 2025/b.raw", "2025/c/"]);
    assert_eq!(entries(&["ls", "-r", "s3://bucket/2025/c"]), ["5 2025/c/d.jpg"]);
    let prefix = r#"{"prefix":"2025/c/"}"#;
    assert!(caller.run_ok(&["ls", "--json", "s3://bucket/2025/"]).lines().any(|line| line == prefix));

    let dry_run = caller.run_ok(&["rm", "-r", "--dry-run", "s3://bucket/2025", "--exclude", "*.raw"]);
    assert_eq!(dry_run, "remove  s3://bucket/2025/a.jpg\nremove  s3://bucket/2025/c/d.jpg\n");
    assert_eq!(caller.run_ok(&["rm", "--dry-run", "s3://bucket/e"]), "remove  s3://bucket/e\n");
    assert_eq!(scene.names().len(), 6, "a dry run removes nothing");
    caller.run_ok(&["rm", "-r", "s3://bucket/2025", "--exclude", "*.raw"]);
    let left = ["2025-old/x", "2025/b.raw", "2026", "e"];
    assert_eq!(scene.names(), left, "only objects below 2025/ are removed");
    caller.run_ok(&["rm", "s3://bucket/e"]);
    caller.run_ok(&["rm", "s3://bucket/e"]);
    assert_eq!(scene.names(), ["2025-old/x", "2025/b.raw", "2026"]);
}

/// A key that ends in a slash names a prefix and may name an object, too.
#[test]
fn single_key_ending_in_a_slash_is_copied_fetched_and_removed() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    scene.store("d/empty/", b"");
    scene.store("d/full/", b"bytes");
    scene.store("d/full/below", b"below");
    caller.run_ok(&["cp", "s3://bucket/d/full/", "file"]);
    assert_eq!(fs::read(caller.path("file")).unwrap(), b"bytes");
    assert_eq!(caller.run_ok(&["cat", "s3://bucket/d/full/"]), "bytes");
    caller.run_ok(&["cp", "s3://bucket/d/empty/", "there/"]);
    assert!(caller.path("there/empty").is_dir());
    caller.run_ok(&["cp", "s3://bucket/d/full/", "s3://bucket/e/"]);
    caller.run_ok(&["cp", "s3://bucket/d/empty/", "s3://bucket/f"]);
    assert_eq!((scene.read("e/full/"), scene.read("f")), (b"bytes".to_vec(), Vec::new()));
    assert_eq!(caller.run_ok(&["rm", "--dry-run", "s3://bucket/d/full/"]), "remove  s3://bucket/d/full/\n");
    for key in ["d/full/", "d/empty/"] {
        caller.run_ok(&["rm", &format!("s3://bucket/{key}")]);
    }
    assert_eq!(scene.names(), ["d/full/below", "e/full/", "f"], "nothing below the key is removed");
    let missing = "s3://bucket/d/full/ is not one object; remove everything below it with -r";
    caller.run_failing(&["rm", "s3://bucket/d/full/"], &[missing]);
    caller.run_failing(&["rm", "--dry-run", "s3://bucket/d/full/"], &[missing]);
    let missing = "s3://bucket/d/full/ is not one object; copy everything below it with -r";
    caller.run_failing(&["cp", "s3://bucket/d/full/", "x"], &[missing]);
    caller.run_failing(&["cp", "s3://bucket/d/full/", "s3://bucket/x"], &[missing]);
}

#[test]
fn removal_of_a_delete_marker_restores_a_key_ending_in_a_slash() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    caller.run_ok(&["versioning", "--enable", "s3://bucket"]);
    scene.store("p/", b"");
    caller.run_ok(&["rm", "s3://bucket/p/"]);
    assert_eq!(scene.names(), [""; 0]);
    let listed = caller.run_ok(&["ls", "-r", "--versions", "--json", "s3://bucket"]);
    let newest: serde_json::Value = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
    assert_eq!(newest["is_delete_marker"], true, "{listed}");
    caller.run_ok(&["rm", "--version-id", newest["version_id"].as_str().unwrap(), "s3://bucket/p/"]);
    assert_eq!(scene.names(), ["p/"]);
}

/// The tags of an object are requested while its response is open. With one connection, that must not deadlock.
#[test]
fn tagged_objects_download_with_one_connection() {
    let scene = TestStore::new();
    let caller = &scene.runner;
    for n in 0..40 {
        let (path, headers) = (format!("bucket/d/{n}"), vec![("x-amz-tagging", "k=v".to_owned())]);
        let put = Request { method: "PUT", path: &path, headers, body: b"bytes", ..Request::default() };
        let tagged = S3::new(caller.endpoint(), root_key()).send(put).unwrap();
        assert_eq!(tagged.status, 200, "{}", tagged.text());
    }
    for concurrency in ["1", "32"] {
        caller.run_ok(&[
            "cp",
            "-r",
            "--concurrency",
            concurrency,
            "s3://bucket/d",
            &format!("there-{concurrency}"),
        ]);
        assert_eq!(fs::read_dir(caller.path(format!("there-{concurrency}"))).unwrap().count(), 40);
    }
}
