//! `[class.N]` in a server: a policy acts, SIGHUP replaces it, and a broken file does not.

use super::support::content::content;
use super::support::s3::{Request, Response, S3};
use super::transformed::{stored, write_key};
use super::write_back::dirty_objects;
use super::{Scene, client, metrics, put, read};
use crate::support::eventually;
use rustix::process::Signal;

pub(super) const CACHED: &str = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n\
    [volume.v]\nstack = [{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\" } }, \"disk\"]\n";

fn settings(classes: &str) -> String {
    format!("{CACHED}{classes}")
}

pub(super) fn put_of_class(s3: &mut S3, path: &str, class: &str, body: &[u8]) {
    let headers = vec![("x-dss-object-class", class.to_owned())];
    let response = s3.send(Request { method: "PUT", path, headers, body, ..Request::default() }).unwrap();
    assert_eq!(response.status, 200, "{path}: {}", response.text());
}

pub(super) fn cache_status(s3: &mut S3, path: &str) -> String {
    let response: Response = s3.get(path).unwrap();
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response.header("cache-status").unwrap_or_default().to_owned()
}

#[test]
fn class_policies_are_reloaded_and_a_broken_file_keeps_the_old_ones() {
    let scene = Scene::new(&settings("[class.25]\nname = \"mail\"\npriority = 2\n"));
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    put_of_class(&mut s3, "bkt/mail", "25", &content(1, 4096));
    put(&mut s3, "bkt/other", &content(2, 4096));
    cache_status(&mut s3, "bkt/mail");
    let status = cache_status(&mut s3, "bkt/mail");
    assert_eq!(status, "tradewind; hit; detail=\"ram, class 25, priority 2\"");
    cache_status(&mut s3, "bkt/other");
    assert_eq!(cache_status(&mut s3, "bkt/other"), "tradewind; hit; detail=\"ram, class 11, by reuse\"");
    let text = metrics(&server);
    assert!(text.contains("tradewind_cache_class_bytes{volume=\"v\",class=\"25\",tier=\"ram\"}"), "{text}");

    std::fs::write(scene.settings(), settings("[class.25]\npriority = 99\n")).unwrap();
    server.signal(Signal::HUP);
    eventually("the broken file is reported", || server.logged().contains("the settings are not reloaded"));
    assert!(cache_status(&mut s3, "bkt/mail").contains("priority 2"));

    std::fs::write(scene.settings(), settings("[class.25]\npriority = 7\n")).unwrap();
    server.signal(Signal::HUP);
    eventually("the new priority", || cache_status(&mut s3, "bkt/mail").contains("class 25, priority 7"));
    let log = server.logged();
    assert!(log.contains("the policies and rules of classes are reloaded"), "{log}");
    assert!(!log.contains("they take effect at a restart"), "{log}");

    let changed = settings("[class.25]\npriority = 7\n[uploads]\nexpire_after = \"1d\"\n");
    std::fs::write(scene.settings(), changed).unwrap();
    server.signal(Signal::HUP);
    let has_warned = || server.logged().contains("they take effect at a restart");
    eventually("a warning", has_warned);
}

#[test]
fn occupancy_of_the_settings_limits_a_class() {
    let scene = Scene::new(&settings("[class.26]\noccupancy = \"10%\"\n"));
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    for number in 0..10 {
        let path = format!("bkt/{number}");
        put_of_class(&mut s3, &path, "26", &content(number, 1 << 20));
        cache_status(&mut s3, &path);
    }
    let name = "tradewind_cache_class_bytes{volume=\"v\",class=\"26\",tier=\"ram\"} ";
    let text = metrics(&server);
    let bytes: u64 = text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap();
    assert!(bytes > 0 && bytes <= (8 << 20) / 10, "{bytes}");
}

#[test]
fn names_of_the_settings_are_classes_for_commands() {
    let text = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n[class.25]\nname = \"mail\"\npriority = 2\n";
    let scene = Scene::new(text);
    let file = scene.path("file");
    std::fs::write(&file, b"text").unwrap();
    scene.output(&["mb", "disk://bkt"]);
    scene.output(&["cp", "--class", "mail", file.to_str().unwrap(), "disk://bkt/file"]);
    let shown = scene.output(&["class", "show", "disk://bkt/file"]);
    assert_eq!(shown, "object    25 (mail), priority 2\n");
    scene.output(&["class", "set", "--class", "pictures", "disk://bkt/file"]);
    scene.output(&["class", "set", "--class", "mail", "disk://bkt/file"]);
    assert_eq!(scene.output(&["class", "show", "disk://bkt/file"]), shown);
    let rejected = scene.run(&["cp", "--class", "mial", file.to_str().unwrap(), "disk://bkt/file"]);
    let message = String::from_utf8(rejected.stderr).unwrap();
    assert_eq!(rejected.status.code(), Some(2), "{message}");
    assert!(message.contains("did you mean \"mail\"?"), "{message}");
}

/// Write-back over a layer that encrypts what the policies of classes name.
const WRITE_BACK: &str = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n\
    [volume.v]\nstack = [{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\", write = \"back\" } }, \
    { transformed = { key = \"main\", keys = { main = \"main.key\" } } }, \"disk\"]\n";

/// The policies that a start finds must hold for the data that it finds in the journal.
#[test]
fn journal_of_an_earlier_run_is_drained_by_the_policies_of_the_start() {
    const OBJECTS: usize = 100;
    const TEXT: &[u8] = b"the text of a mail that must not be on the disk; ";
    let scene = Scene::new(WRITE_BACK);
    write_key(&scene.path("main.key"), 0o600);
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    for number in 0..OBJECTS {
        put_of_class(&mut s3, &format!("bkt/{number}"), "25", TEXT);
    }
    server.kill();
    let segments = scene.path("disk").join("segments");
    assert!(!stored(&segments, TEXT).1, "the first run has written nothing back yet");
    assert!(stored(&scene.path("ssd-journal").join("segments"), TEXT).1, "the instrument finds plain text");

    let policies = "[class.25]\nencrypt = true\nwrite = \"through\"\n";
    std::fs::write(scene.settings(), format!("{WRITE_BACK}{policies}")).unwrap();
    let server = scene.start();
    let mut s3 = client(&server);
    put_of_class(&mut s3, "bkt/0", "25", &TEXT.repeat(2));
    eventually("all is written back", || dirty_objects(&metrics(&server)) == Some(0));
    let count = "tradewind_write_back_writes_total{volume=\"v\",place=\"backing\"} ";
    let text = metrics(&server);
    assert!(text.lines().any(|line| line.strip_prefix(count) == Some("1")), "{text}");
    for number in 1..OBJECTS {
        assert_eq!(read(&mut s3, &format!("bkt/{number}")), TEXT, "{number}");
    }
    assert_eq!(read(&mut s3, "bkt/0"), TEXT.repeat(2));
    assert!(!stored(&segments, TEXT).1, "the text is readable on the disk");
}
