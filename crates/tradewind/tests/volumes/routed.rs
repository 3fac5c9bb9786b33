//! A volume whose objects are in the store of their class: what clients see of it, and where the bytes are.

use serde_json::Value as Json;

use super::support::content::content;
use super::support::eventually;
use super::support::s3::{Request, S3};
use super::support::server::run;
use super::{Scene, client, copy, put, read};

const STORES: &str =
    "[store.ssd]\ntype = \"local\"\npath = \"ssd\"\n[store.disk]\ntype = \"local\"\npath = \"disk\"\n";

fn settings(classes: &str) -> String {
    format!(
        "{STORES}[volume.v]\nstack = [{{ routed = {{ tiers = [\"ssd\"], classes = {{ ssd = {classes} }} }} }}, \"disk\"]\n"
    )
}

/// Small files and mail on the SSD.
const BY_CLASS: &str = "[\"11-14\", \"files\"]";

fn put_class(client: &mut S3, path: &str, body: &[u8], class: u8) {
    let headers = vec![("x-dss-object-class", class.to_string())];
    let response = client.send(Request { method: "PUT", path, headers, body, ..Request::default() }).unwrap();
    assert_eq!(response.status, 200, "{path}: {}", response.text());
}

/// Objects and their bytes in a store whose server has stopped.
fn stored(scene: &Scene, store: &str) -> (u64, u64) {
    let directory = scene.path(store);
    let ended = run(&["store", "stats", directory.to_str().unwrap(), "--json"]);
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let json: Json = serde_json::from_slice(&ended.stdout).unwrap();
    (json["objects"].as_u64().unwrap(), json["object_bytes"].as_u64().unwrap())
}

#[test]
fn objects_are_in_the_store_of_their_class() {
    let scene = Scene::new(&settings(BY_CLASS));
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let (mail, small, large) = (content(1, 400_000), content(2, 1000), content(3, 2_000_000));
    put_class(&mut s3, "bkt/mail", &mail, 25);
    put(&mut s3, "bkt/small", &small);
    put(&mut s3, "bkt/large", &large);
    put_class(&mut s3, "bkt/video", &small, 28);
    assert_eq!(copy(&mut s3, "bkt/large", "bkt/copy").status, 200);
    for (key, expected) in [("mail", &mail), ("small", &small), ("large", &large), ("copy", &large)] {
        assert_eq!(read(&mut s3, &format!("bkt/{key}")), *expected, "{key}");
    }
    let listed = s3.get("bkt").unwrap().text();
    let keys = ["copy", "large", "mail", "small", "video"].map(|key| format!("<Key>{key}</Key>"));
    assert!(keys.iter().all(|key| listed.matches(key).count() == 1), "{listed}");
    server.terminate().unwrap();
    assert_eq!(stored(&scene, "ssd"), (2, 401_000));
    assert_eq!(stored(&scene, "disk"), (3, 4_001_000));
}

#[test]
fn objects_move_after_the_policy_has_changed() {
    let scene = Scene::new(&settings(BY_CLASS));
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let (mail, video) = (content(1, 400_000), content(2, 300_000));
    put_class(&mut s3, "bkt/mail", &mail, 25);
    put_class(&mut s3, "bkt/video", &video, 28);
    let before = s3.send(Request { method: "HEAD", path: "bkt/mail", ..Request::default() }).unwrap();
    server.terminate().unwrap();
    std::fs::write(scene.settings(), settings("[\"video\"]")).unwrap();
    let mut server = scene.start();
    let moved = "moved objects to the tiers of their classes";
    eventually("both objects are moved", || server.logged().contains(moved));
    let mut s3 = client(&server);
    let after = s3.send(Request { method: "HEAD", path: "bkt/mail", ..Request::default() }).unwrap();
    for header in ["etag", "last-modified", "x-dss-object-class"] {
        assert_eq!(after.header(header), before.header(header), "{header}");
    }
    assert_eq!((read(&mut s3, "bkt/mail"), read(&mut s3, "bkt/video")), (mail, video));
    server.terminate().unwrap();
    let mut server = scene.start();
    let in_place = "all objects are in the tiers of their classes";
    eventually("the next pass finds nothing to move", || server.logged().contains(in_place));
    server.terminate().unwrap();
    assert_eq!((stored(&scene, "ssd"), stored(&scene, "disk")), ((1, 300_000), (1, 400_000)));
}

#[test]
fn buckets_of_another_volume_stay_in_a_shared_base() {
    let settings =
        settings(BY_CLASS) + "[volume.plain]\nstack = [\"disk\"]\n[bucket.logs]\nvolume = \"plain\"\n";
    let scene = Scene::new(&format!("default_volume = \"v\"\n{settings}"));
    let (old, new) = (content(1, 1000), content(2, 1000));
    for bytes in [&old, &new] {
        let mut server = scene.start();
        let mut s3 = client(&server);
        if s3.get("logs").unwrap().status == 404 {
            put(&mut s3, "logs", &[]);
        }
        put(&mut s3, "logs/k", bytes);
        server.terminate().unwrap();
        let mut server = scene.start();
        let passed = "all objects are in the tiers of their classes";
        eventually("a pass ends", || server.logged().contains(passed));
        assert_eq!(read(&mut client(&server), "logs/k"), *bytes);
        server.terminate().unwrap();
    }
    assert_eq!((stored(&scene, "ssd"), stored(&scene, "disk")), ((0, 0), (1, 1000)));
}

#[test]
fn a_cache_above_tiers_serves_what_they_have() {
    let routed = settings(BY_CLASS).replace(
        "stack = [",
        "stack = [{ cached = { disk = \"cache\", size = \"64MiB\", memory = \"8MiB\" } }, ",
    );
    let scene = Scene::new(&routed);
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let (one, two) = (content(1, 300_000), content(2, 300_000));
    for (class, body) in [(25, &one), (28, &two), (25, &one)] {
        put_class(&mut s3, "bkt/key", body, class);
        for _ in 0..2 {
            assert_eq!(read(&mut s3, "bkt/key"), *body, "class {class}");
        }
    }
    let warm = s3.get("bkt/key").unwrap();
    assert!(warm.header("cache-status").unwrap_or_default().starts_with("tradewind; hit"));
    assert_eq!(s3.delete("bkt/key").unwrap().status, 204);
    assert_eq!(s3.get("bkt/key").unwrap().status, 404);
}

#[test]
fn volume_show_prints_the_tiers() {
    let scene = Scene::new(&settings(BY_CLASS));
    let text = scene.output(&["volume", "show", "v"]);
    assert!(
        text.contains("\nstore    disk (local)\n") && text.contains("\ntier     ssd (local)\n"),
        "{text}"
    );
    let json: Json = serde_json::from_str(&scene.output(&["volume", "show", "v", "--json"])).unwrap();
    assert_eq!(json["tiers"][0]["name"], "ssd");
}
