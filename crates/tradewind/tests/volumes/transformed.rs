//! Volumes that compress and encrypt: what clients see is what they would see without.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::support::command_runner::CommandRunner;
use super::support::content::content;
use super::support::s3::{Request, S3};
use super::{Scene, client, copy, put, read};

/// A cache over encryption by class and compression over a local store, and the store of a plain volume.
const STACK: &str = "default_volume = \"v\"\n\
    [store.disk]\ntype = \"local\"\npath = \"disk\"\n\
    [store.plain]\ntype = \"local\"\npath = \"plain\"\n\
    [volume.plain]\nstack = [\"plain\"]\n[bucket.plain]\nvolume = \"plain\"\n\
    [volume.v]\nstack = [{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\" } }, \
    { transformed = { compress = true, encrypt = [25], key = \"main\", keys = { main = \"main.key\" } } }, \"disk\"]\n";

const SECRET: &[u8] = b"the secret of the mail; ";

fn scene() -> Scene {
    let scene = Scene::new(STACK);
    write_key(&scene.path("main.key"), 0o600);
    scene
}

fn write_key(path: &Path, mode: u32) {
    std::fs::write(path, "42".repeat(32)).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn put_mail(client: &mut S3, path: &str, body: &[u8]) {
    let headers = vec![("x-dss-object-class", "25".to_owned())];
    let request = Request { method: "PUT", path, headers, body, ..Request::default() };
    let response = client.send(request).unwrap();
    assert_eq!(response.status, 200, "{path}: {}", response.text());
}

/// Bytes of all files below a directory, and whether one of them contains `needle`.
fn stored(directory: &Path, needle: &[u8]) -> (u64, bool) {
    let (mut bytes, mut is_found) = (0, false);
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let content = std::fs::read(&path).unwrap();
        bytes += content.len() as u64;
        is_found |= content.windows(needle.len()).any(|window| window == needle);
    }
    (bytes, is_found)
}

#[test]
fn second_sync_copies_nothing() {
    let scene = scene();
    let server = scene.start();
    let caller = CommandRunner::new(server.endpoint);
    for bucket in ["bucket", "plain"] {
        put(&mut client(&server), bucket, &[]);
    }
    caller.write("here/text", SECRET.repeat(100_000));
    caller.write("here/noise", content(1, 3 << 20));
    caller.write("here/large", [SECRET.repeat(900_000), content(2, 1 << 20)].concat());
    caller.write("here/small", "x");
    caller.write("here/empty", "");
    for (sync, to) in [(&["sync"][..], "s3://bucket"), (&["sync", "--class", "25"][..], "s3://bucket/mail/")]
    {
        let run = |more: &[&str]| caller.run_ok(&[sync, more, &["here", to]].concat());
        run(&[]);
        for criterion in [&[][..], &["--checksum"], &["--size-only"]] {
            let dry = run(&[criterion, &["--dry-run"]].concat());
            assert_eq!(dry.lines().filter(|line| line.contains("here/")).count(), 0, "{criterion:?}: {dry}");
        }
    }
    caller.run_ok(&["sync", "s3://bucket/mail/", "there"]);
    for name in ["text", "noise", "large", "small", "empty"] {
        let [here, there] =
            ["here", "there"].map(|side| std::fs::read(caller.path(side).join(name)).unwrap());
        assert!(here == there, "{name}");
    }
    // A plain volume reports the same.
    caller.run_ok(&["sync", "here", "s3://plain"]);
    for name in ["text", "noise", "large", "small", "empty"] {
        let [here, plain] = ["bucket", "plain"].map(|bucket| caller.stat(&format!("s3://{bucket}/{name}")));
        for field in ["size", "etag", "checksums"] {
            assert!(!plain[field].is_null());
            assert_eq!(here[field], plain[field], "{name}: {field}");
        }
    }
}

#[test]
fn mail_is_encrypted_and_text_compressed_on_disk() {
    let scene = scene();
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let text = SECRET.repeat(100_000);
    put_mail(&mut s3, "bkt/mail", &text);
    put_mail(&mut s3, "bkt/short", SECRET);
    put(&mut s3, "bkt/text", &text);
    assert_eq!(copy(&mut s3, "bkt/mail", "bkt/copy").status, 200);
    assert!(server.terminate().unwrap().success());
    // Zstandard stores the first occurrence of a repeated text unchanged.
    let segments = scene.path("disk").join("segments");
    let (bytes, _) = stored(&segments, SECRET);
    assert!(bytes < 200_000, "{bytes} bytes for four objects of {} or less", text.len());

    let mut server = scene.start();
    let mut s3 = client(&server);
    for key in ["bkt/mail", "bkt/copy", "bkt/text"] {
        assert!(read(&mut s3, key) == text, "{key}");
        let headers = vec![("range", "bytes=1000001-1000100".to_owned())];
        let range = s3.send(Request { method: "GET", path: key, headers, ..Request::default() }).unwrap();
        assert_eq!((range.status, &range.body[..]), (206, &text[1_000_001..1_000_101]), "{key}");
    }
    assert_eq!(read(&mut s3, "bkt/short"), SECRET);
    assert_eq!(s3.delete("bkt/text").unwrap().status, 204);
    assert!(server.terminate().unwrap().success());
}

#[test]
fn text_of_an_encrypted_class_is_not_on_disk() {
    let scene = scene();
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    for (key, body) in [("bkt/mail", SECRET.repeat(100_000)), ("bkt/short", SECRET.to_vec())] {
        put_mail(&mut s3, key, &body);
    }
    assert_eq!(copy(&mut s3, "bkt/mail", "bkt/copy").status, 200);
    assert!(server.terminate().unwrap().success());
    let segments = scene.path("disk").join("segments");
    assert!(!stored(&segments, b"secret").1, "the text is readable on disk");
    // The instrument finds what is not encrypted.
    let server = scene.start();
    put(&mut client(&server), "bkt/plain", SECRET);
    drop(server);
    assert!(stored(&segments, b"secret").1);
}

#[test]
fn objects_whose_key_is_missing_fail_alone() {
    let scene = scene();
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    put_mail(&mut s3, "bkt/mail", SECRET);
    put(&mut s3, "bkt/other", b"other");
    assert!(server.terminate().unwrap().success());
    let without_key = STACK.replace("encrypt = [25], key = \"main\", keys = { main", "keys = { other");
    std::fs::write(scene.settings(), without_key).unwrap();
    let server = scene.start();
    let mut s3 = client(&server);
    assert_eq!(s3.get("bkt/mail").unwrap().status, 403);
    assert!(server.logged().contains("encrypted with the key"), "{}", server.logged());
    assert_eq!(read(&mut s3, "bkt/other"), b"other");
    // Without the layer, the stored bytes are not served either.
    drop(server);
    let without_layer = STACK.split("{ transformed").next().unwrap().to_owned() + "\"disk\"]\n";
    std::fs::write(scene.settings(), without_layer).unwrap();
    let server = scene.start();
    let mut s3 = client(&server);
    assert_eq!(s3.get("bkt/mail").unwrap().status, 501);
    assert_eq!(read(&mut s3, "bkt/other"), b"other");
}

#[test]
fn key_file_of_others_prevents_the_start() {
    let scene = scene();
    write_key(&scene.path("main.key"), 0o644);
    let error = scene.setup().start().unwrap_err().to_string();
    assert!(error.contains("can be read by other users (mode 644)"), "{error}");
}
