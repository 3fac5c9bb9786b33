//! Volumes that compress and encrypt: what clients see is what they would see without.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::process::Signal;
use serde_json::Value as Json;

use super::administered::ask;
use super::support::command_runner::CommandRunner;
use super::support::content::content;
use super::support::eventually;
use super::support::s3::{Request, S3};
use super::support::server::Server;
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

pub(super) fn write_key(path: &Path, mode: u32) {
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
pub(super) fn stored(directory: &Path, needle: &[u8]) -> (u64, bool) {
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
    caller.set_old("here");
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

/// The settings with another key as the current one, and the older one if it is given.
fn rotated(keys: &str) -> String {
    STACK.replace(
        "key = \"main\", keys = { main = \"main.key\" }",
        &format!("key = \"new\", keys = {{ {keys} }}"),
    )
}

const BOTH_KEYS: &str = "new = \"new.key\", main = \"main.key\"";

fn write_new_key(scene: &Scene) {
    let path = scene.path("new.key");
    std::fs::write(&path, "77".repeat(32)).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Runs the command to its end. Returns the counts and the exit status.
fn rewrap(scene: &Scene, server: &Server, objects: &[&str]) -> (Json, Option<i32>) {
    let ended = ask(scene, server, &[&["volume", "rewrap", "--json"], objects].concat());
    let printed = String::from_utf8(ended.stdout).unwrap();
    let last = printed.lines().last().unwrap_or_default();
    let last: Json = serde_json::from_str(last).unwrap_or_else(|_| panic!("{printed:?} {:?}", ended.stderr));
    (last["done"].clone(), ended.status.code())
}

#[test]
fn old_key_can_be_removed_after_a_rewrap() {
    let scene = scene();
    let mut server = scene.start();
    let mut s3 = client(&server);
    let text = SECRET.repeat(100_000);
    for bucket in ["bkt", "second", "plain"] {
        put(&mut s3, bucket, &[]);
    }
    let mails = [("bkt/large", &text[..]), ("bkt/short", SECRET), ("second/mail", SECRET)];
    for (key, body) in mails {
        put_mail(&mut s3, key, body);
    }
    put(&mut s3, "bkt/text", &text);
    let etag = s3.get("bkt/large").unwrap().header("etag").unwrap().to_owned();
    assert!(server.terminate().unwrap().success());

    write_new_key(&scene);
    std::fs::write(scene.settings(), rotated(BOTH_KEYS)).unwrap();
    let mut server = scene.start();
    put_mail(&mut client(&server), "bkt/new", SECRET);
    let status = String::from_utf8(ask(&scene, &server, &["volume", "status", "v"]).stdout).unwrap();
    assert!(status.contains("keys     main, new (current)"), "{status}");
    // Of a prefix, no key is called unneeded.
    let (done, code) = rewrap(&scene, &server, &["bkt/l"]);
    assert_eq!(
        (&done["rewrapped"], &done["unneeded_keys"], code),
        (&1.into(), &serde_json::json!([]), Some(0))
    );
    let (done, code) = rewrap(&scene, &server, &[]);
    assert_eq!((&done["objects"], &done["encrypted"], &done["rewrapped"]), (&5.into(), &4.into(), &2.into()));
    assert_eq!((&done["needed_keys"], code), (&serde_json::json!({ "new": 4 }), Some(0)));
    assert_eq!(done["unneeded_keys"], serde_json::json!(["main"]));
    let (again, _) = rewrap(&scene, &server, &[]);
    assert_eq!((&again["rewrapped"], &again["needed_keys"]), (&0.into(), &done["needed_keys"]));
    // Another volume has no keys.
    let failed = ask(&scene, &server, &["volume", "rewrap", "plain/"]);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("has no layer"), "{failed:?}");
    assert!(server.terminate().unwrap().success());

    std::fs::write(scene.settings(), rotated("new = \"new.key\"")).unwrap();
    std::fs::remove_file(scene.path("main.key")).unwrap();
    std::fs::remove_dir_all(scene.path("ssd")).unwrap();
    let server = scene.start();
    let mut s3 = client(&server);
    for (key, body) in mails {
        assert!(read(&mut s3, key) == body, "{key}");
    }
    assert_eq!(s3.get("bkt/large").unwrap().header("etag"), Some(&*etag));
}

/// The store may have objects of a volume that had the layer before.
#[test]
fn rewrap_calls_no_key_unneeded_while_the_store_has_buckets_of_another_volume() {
    let second_volume = "[volume.w]\nstack = [\"disk\"]\n[bucket.other]\nvolume = \"w\"\n";
    let scene = scene();
    std::fs::write(scene.settings(), format!("{STACK}{second_volume}")).unwrap();
    let mut server = scene.start();
    let mut s3 = client(&server);
    for bucket in ["bkt", "other"] {
        put(&mut s3, bucket, &[]);
    }
    for key in ["bkt/mail", "other/mail"] {
        put_mail(&mut s3, key, SECRET);
    }
    let head = |s3: &mut S3| {
        let response = s3.get("other/mail").unwrap();
        let fields = ["etag", "last-modified"].map(|name| response.header(name).map(str::to_owned));
        (response.status, response.body, fields)
    };
    let other = head(&mut s3);
    assert_eq!((other.0, &other.1[..]), (200, SECRET));
    assert!(server.terminate().unwrap().success());

    write_new_key(&scene);
    std::fs::write(scene.settings(), format!("{}{second_volume}", rotated(BOTH_KEYS))).unwrap();
    let server = scene.start();
    let mut s3 = client(&server);
    let (done, code) = rewrap(&scene, &server, &[]);
    assert_eq!((&done["objects"], &done["rewrapped"], code), (&1.into(), &1.into(), Some(0)), "{done}");
    assert_eq!(done["needed_keys"], serde_json::json!({ "new": 1 }));
    assert_eq!(done["unneeded_keys"], serde_json::json!([]), "the other bucket may need it");
    assert_eq!(head(&mut s3), other);
    assert_eq!(read(&mut s3, "bkt/mail"), SECRET);
    let failed = ask(&scene, &server, &["volume", "rewrap", "other/"]);
    assert!(String::from_utf8_lossy(&failed.stderr).contains("has no layer"), "{failed:?}");
    assert_eq!(head(&mut s3), other);
    // Without that bucket, all objects of the store are known.
    assert_eq!(s3.delete("other/mail").unwrap().status, 204);
    assert_eq!(s3.delete("other").unwrap().status, 204);
    let (done, _) = rewrap(&scene, &server, &[]);
    assert_eq!((&done["objects"], &done["rewrapped"]), (&1.into(), &0.into()), "{done}");
    assert_eq!(done["unneeded_keys"], serde_json::json!(["main"]));
}

#[test]
fn wrong_key_of_a_rewrap_is_reported_and_no_key_is_unneeded() {
    let scene = scene();
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    put_mail(&mut s3, "bkt/mail", SECRET);
    assert!(server.terminate().unwrap().success());
    write_new_key(&scene);
    // The new key under the name of the old one.
    std::fs::write(scene.settings(), rotated("new = \"new.key\", main = \"new.key\", other = \"new.key\""))
        .unwrap();
    let server = scene.start();
    let (done, code) = rewrap(&scene, &server, &[]);
    assert_eq!((&done["failed"], &done["rewrapped"], code), (&1.into(), &0.into(), Some(1)), "{done}");
    assert_eq!(done["needed_keys"], serde_json::json!({ "main": 1 }));
    assert_eq!(done["unneeded_keys"], serde_json::json!([]));
    let ended = ask(&scene, &server, &["volume", "rewrap"]);
    let error = String::from_utf8_lossy(&ended.stderr);
    assert!(error.contains("the key \"main\" is not the one that encrypted it"), "{error}");
}

#[test]
fn rewrap_survives_kills_and_can_be_repeated() {
    const OBJECTS: usize = 300;
    let scene = scene();
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let body = |number: usize| {
        content(number as u64, if number.is_multiple_of(10) { 200_000 } else { 500 + number })
    };
    for number in 0..OBJECTS {
        put_mail(&mut s3, &format!("bkt/{number}"), &body(number));
    }
    assert!(server.terminate().unwrap().success());
    write_new_key(&scene);
    std::fs::write(scene.settings(), rotated(BOTH_KEYS)).unwrap();
    for round in 0..4 {
        let mut server = scene.start();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let mut command = super::support::server::tradewind();
                let root = super::support::server::root_key();
                command.args(["volume", "rewrap", "--config"]).arg(scene.settings());
                command.args(["--admin", &server.admin.to_string()]);
                command.env("TRADEWIND_ACCESS_KEY", root.id).env("TRADEWIND_SECRET_KEY", root.secret);
                command.output().unwrap()
            });
            std::thread::sleep(std::time::Duration::from_millis(30 + 40 * round));
            server.signal(Signal::KILL);
            running.join().unwrap();
        });
        server.wait().unwrap();
    }
    let mut server = scene.start();
    let (done, code) = rewrap(&scene, &server, &[]);
    assert_eq!((&done["objects"], code), (&OBJECTS.into(), Some(0)), "{done}");
    assert_eq!(done["needed_keys"], serde_json::json!({ "new": OBJECTS }));
    assert!(server.terminate().unwrap().success());
    std::fs::write(scene.settings(), rotated("new = \"new.key\"")).unwrap();
    std::fs::remove_dir_all(scene.path("ssd")).unwrap();
    let server = scene.start();
    let mut s3 = client(&server);
    for number in 0..OBJECTS {
        assert!(read(&mut s3, &format!("bkt/{number}")) == body(number), "{number}");
    }
}

#[test]
fn encryption_of_a_class_is_reloaded_and_needs_a_key() {
    let scene = scene();
    // The running layer has no key.
    let keyless = STACK.replace(", encrypt = [25], key = \"main\", keys = { main = \"main.key\" }", "");
    std::fs::write(scene.settings(), keyless + "[class.25]\nname = \"mail\"\n").unwrap();
    let mut server = scene.start();
    let with_key = STACK.replace("encrypt = [25], ", "") + "[class.25]\nencrypt = true\ncompress = false\n";
    std::fs::write(scene.settings(), &with_key).unwrap();
    server.signal(Signal::HUP);
    eventually("the reload is rejected", || server.logged().contains("the settings are not reloaded"));
    assert!(server.logged().contains("there is no key"), "{}", server.logged());
    assert!(server.terminate().unwrap().success());

    let without_class = STACK.replace("encrypt = [25], ", "");
    std::fs::write(scene.settings(), without_class).unwrap();
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let noise = content(3, 100_000);
    put_mail(&mut s3, "bkt/before", &noise);
    std::fs::write(scene.settings(), with_key).unwrap();
    server.signal(Signal::HUP);
    eventually("the reload", || server.logged().contains("rules of classes are reloaded"));
    put_mail(&mut s3, "bkt/after", &noise);
    let (done, _) = rewrap(&scene, &server, &[]);
    assert_eq!((&done["objects"], &done["encrypted"]), (&2.into(), &1.into()), "{done}");
    for key in ["bkt/before", "bkt/after"] {
        assert!(read(&mut s3, key) == noise, "{key}");
    }
    assert!(server.terminate().unwrap().success());
}
