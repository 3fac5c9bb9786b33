//! A server that classifies objects by the rules of its settings, and reads the rules again by SIGHUP.

use rustix::process::Signal;

use super::TestDir;
use super::support::eventually;
use super::support::s3::{Request, S3};
use super::support::server::{Server, root_key};
use super::support::sign::Credentials;

const RULES: &str = r#"
    [[access_key]]
    id = "camera"
    secret = "secret-of-camera"

    [[class_rule]]
    class = "large"
    bucket = "photos"
    min_size = "4KiB"

    [[class_rule]]
    class = "pictures"
    prefix = "2026/"
    glob = "*.jpg"

    [[class_rule]]
    class = "music"
    content_type = "audio/*"

    [[class_rule]]
    class = 20
    storage_class = "STANDARD_IA"

    [[class_rule]]
    class = 21
    tag = "project=x"

    [[class_rule]]
    class = "user0"
    access_key = "camera"
"#;

fn class_of(client: &mut S3, path: &str) -> Option<String> {
    let response = client.send(Request { method: "HEAD", path, ..Request::default() }).unwrap();
    assert_eq!(response.status, 200, "{path}");
    response.header("x-dss-object-class").map(str::to_owned)
}

fn put(client: &mut S3, path: &str, size: usize, header: Option<(&'static str, &str)>) {
    let headers = header.map(|(name, value)| (name, value.to_owned())).into_iter().collect();
    let body = vec![7; size];
    let request = Request { method: "PUT", path, headers, body: &body, ..Request::default() };
    let response = client.send(request).unwrap();
    assert_eq!(response.status, 200, "{path}: {}", response.text());
}

fn server_with(dir: &TestDir, settings: &str) -> Server {
    let path = dir.directory.path().join("settings.toml");
    std::fs::write(&path, settings).unwrap();
    dir.start().flag("--config", path).start().unwrap()
}

#[test]
fn rules_of_the_settings_classify_objects_without_a_label() {
    let dir = TestDir::new();
    let server = server_with(&dir, RULES);
    let mut s3 = S3::new(server.endpoint, root_key());
    for bucket in ["photos", "other"] {
        put(&mut s3, bucket, 0, None);
    }
    let class_header = "x-dss-object-class";
    for (path, size, header, expected) in [
        ("photos/2026/a.jpg", 4096, None, Some("31")),
        ("photos/2026/b.jpg", 4095, None, Some("26")),
        ("other/2026/b.jpg", 4096, None, Some("26")),
        ("other/2026/b.jpg", 4096, Some((class_header, "12")), Some("12")),
        ("other/a", 10, Some(("content-type", "Audio/MPEG; x=y")), Some("27")),
        ("other/b", 10, Some(("x-amz-storage-class", "STANDARD_IA")), Some("20")),
        ("other/c", 10, Some(("x-amz-tagging", "project=x&a=b")), Some("21")),
        ("other/d", 10, Some(("x-amz-tagging", "project=y")), None),
        ("other/2025/b.jpg", 10, None, None),
    ] {
        put(&mut s3, path, size, header);
        assert_eq!(class_of(&mut s3, path).as_deref(), expected, "{path} {header:?}");
    }
    let camera = Credentials { id: "camera".to_owned(), secret: "secret-of-camera".to_owned() };
    put(&mut S3::new(server.endpoint, camera), "other/e", 10, None);
    assert_eq!(class_of(&mut s3, "other/e").as_deref(), Some("24"));
}

#[test]
fn sighup_reads_the_rules_again_and_a_broken_file_keeps_them() {
    let dir = TestDir::new();
    let mut server = server_with(&dir, "[[class_rule]]\nclass = 25\n");
    let settings = dir.directory.path().join("settings.toml");
    let mut s3 = S3::new(server.endpoint, root_key());
    put(&mut s3, "bucket", 0, None);
    put(&mut s3, "bucket/a", 1, None);
    assert_eq!(class_of(&mut s3, "bucket/a").as_deref(), Some("25"));

    std::fs::write(&settings, "[[class_rule]]\nclass = 26\n[server]\nlisten = 1\n").unwrap();
    server.signal(Signal::HUP);
    eventually("the broken file is reported", || server.logged().contains("the old ones stay"));
    put(&mut s3, "bucket/b", 1, None);
    assert_eq!(class_of(&mut s3, "bucket/b").as_deref(), Some("25"));

    std::fs::write(&settings, "[[class_rule]]\nclass = 26\n").unwrap();
    server.signal(Signal::HUP);
    eventually("the new rules are in force", || {
        server.logged().contains("policies and rules of classes are reloaded")
    });
    put(&mut s3, "bucket/c", 1, None);
    assert_eq!(class_of(&mut s3, "bucket/c").as_deref(), Some("26"));
    assert!(server.terminate().unwrap().success());
}

#[test]
fn sighup_without_a_settings_file_ends_the_server() {
    let dir = TestDir::new();
    let mut server = dir.start().start().unwrap();
    server.signal(Signal::HUP);
    assert!(server.wait().unwrap().success());
}
