//! The admin API of a server, and the commands that use it: who may call it, the status of volumes, eviction and staging.

use std::process::Output;

use serde_json::Value as Json;

use super::support::content::content;
use super::support::s3::{Request, Response, S3};
use super::support::server::{Server, root_key, tradewind};
use super::support::sign::Credentials;
use super::{Scene, TWO_VOLUMES, client, put, read};

const ADMIN_SERVICE: &str = "tradewind-admin";

/// A volume with a cache, which has the bucket `bkt`, and the default volume without one.
const CACHED: &str = "default_volume = \"plain\"\n\
    [store.disk]\ntype = \"local\"\npath = \"disk\"\n\
    [store.other]\ntype = \"local\"\npath = \"other\"\n\
    [volume.plain]\nstack = [\"other\"]\n\
    [volume.\"fast one\"]\n\
    stack = [{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\" } }, \"disk\"]\n\
    [bucket.bkt]\nvolume = \"fast one\"\n\
    [[access_key]]\nid = \"second\"\nsecret = \"secret-of-second\"\n";

pub(super) fn admin(server: &Server, credentials: Credentials) -> S3 {
    S3::new(server.admin, credentials).for_service(ADMIN_SERVICE)
}

pub(super) fn post(client: &mut S3, path: &str, body: &str) -> Response {
    client.send(Request { method: "POST", path, body: body.as_bytes(), ..Request::default() }).unwrap()
}

/// Runs a command with the settings and the address of the server.
pub(super) fn ask(scene: &Scene, server: &Server, arguments: &[&str]) -> Output {
    let root = root_key();
    let mut command = tradewind();
    command.args(arguments).arg("--config").arg(scene.settings());
    command.args(["--admin", &server.admin.to_string()]);
    command.env("TRADEWIND_ACCESS_KEY", root.id).env("TRADEWIND_SECRET_KEY", root.secret);
    command.output().unwrap()
}

pub(super) fn answered(scene: &Scene, server: &Server, arguments: &[&str]) -> String {
    let ended = ask(scene, server, arguments);
    assert!(ended.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}

fn failed(scene: &Scene, server: &Server, arguments: &[&str]) -> String {
    let ended = ask(scene, server, arguments);
    assert_eq!(ended.status.code(), Some(1), "{arguments:?}: {ended:?}");
    String::from_utf8(ended.stderr).unwrap()
}

fn cache_status(client: &mut S3, path: &str) -> String {
    let response = client.get(path).unwrap();
    assert_eq!(response.status, 200, "{path}");
    response.header("cache-status").unwrap_or_default().to_owned()
}

fn is_hit(client: &mut S3, path: &str) -> bool {
    cache_status(client, path).starts_with("tradewind; hit")
}

#[test]
fn admin_api_answers_only_the_root_key() {
    let scene = Scene::new(CACHED);
    let server = scene.start();
    let second = Credentials { id: "second".to_owned(), secret: "secret-of-second".to_owned() };
    let guess = Credentials { secret: "guess".to_owned(), ..root_key() };
    for (what, mut client, code) in [
        ("unsigned", S3::anonymous(server.admin), "AccessDenied"),
        ("signed for S3", S3::new(server.admin, root_key()), "AuthorizationHeaderMalformed"),
        ("another key", admin(&server, second), "AccessDenied"),
        ("wrong secret", admin(&server, guess), "SignatureDoesNotMatch"),
    ] {
        for path in ["v1/volumes", "v1/unknown", "v1"] {
            let response = client.get(path).unwrap();
            let json: Json = serde_json::from_slice(&response.body).unwrap();
            assert_eq!((response.status, &json["error"]["code"]), (403, &code.into()), "{what}: {json}");
        }
        let response = post(&mut client, "v1/volumes/fast one/evict", "{\"bucket\":\"bkt\"}");
        assert_eq!(response.status, 403, "{what}");
    }
    // A signature for the admin API is none for S3.
    let mut confused = S3::new(server.endpoint, root_key()).for_service(ADMIN_SERVICE);
    assert_eq!(confused.get("").unwrap().status, 400);
    let mut root = admin(&server, root_key());
    for (path, status) in [
        ("v1/volumes", 200),
        ("v1/volumes/fast one/status", 200),
        ("v1/classes", 200),
        ("v1/volumes/none/status", 404),
        ("v1/unknown", 404),
        ("v1/volumes/fast one/evict", 405),
    ] {
        let response = root.get(path).unwrap();
        assert_eq!(response.status, status, "{path}: {}", response.text());
    }
    let classes: Json = serde_json::from_slice(&root.get("v1/classes").unwrap().body).unwrap();
    assert_eq!(classes["classes"].as_array().unwrap().len(), 32);
    assert_eq!(classes["classes"][25]["name"], "files");
    for path in ["health/live", "health/ready", "metrics"] {
        assert_eq!(S3::anonymous(server.admin).get(path).unwrap().status, 200, "{path}");
    }
}

#[test]
fn wrong_calls_are_rejected_with_a_reason() {
    let scene = Scene::new(CACHED);
    let server = scene.start();
    put(&mut client(&server), "plain-bucket", &[]);
    put(&mut client(&server), "bkt", &[]);
    let mut root = admin(&server, root_key());
    for (path, body, status, message) in [
        ("v1/volumes/fast one/evict", "", 400, "JSON object"),
        ("v1/volumes/fast one/evict", "{\"bucket\":\"bkt\",\"keys\":[]}", 400, "unknown key"),
        ("v1/volumes/fast one/evict", "{\"bucket\":\"plain-bucket\"}", 400, "is in the volume"),
        ("v1/volumes/plain/stage", "{\"bucket\":\"plain-bucket\"}", 400, "has no cache"),
        ("v1/volumes/none/stage", "{\"bucket\":\"bkt\"}", 404, "no volume"),
    ] {
        let response = post(&mut root, path, body);
        let json: Json = serde_json::from_slice(&response.body).unwrap();
        let reason = json["error"]["message"].as_str().unwrap();
        assert_eq!(response.status, status, "{path} {body}: {json}");
        assert!(reason.contains(message), "{path} {body}: {reason}");
    }
    let request = Request {
        method: "GET",
        path: "v1/volumes",
        query: vec![("a", "b".to_owned())],
        ..Request::default()
    };
    assert_eq!(root.send(request).unwrap().status, 400);
    let large = format!("{{\"bucket\":{:?}}}", "b".repeat(65_000));
    assert_eq!(post(&mut root, "v1/volumes/fast one/evict", &large).status, 400);
}

/// Bodies that no call accepts.
fn bad_bodies() -> Vec<Vec<u8>> {
    let long = "p".repeat(5000);
    let mut bodies: Vec<Vec<u8>> = [
        "null",
        "1",
        "true",
        "\"bkt\"",
        "[]",
        "[{\"bucket\":\"bkt\"}]",
        "{",
        "{\"bucket\":\"bkt\"",
        "{\"bucket\":\"bkt\"} {}",
        "{\"bucket\":\"bkt\",}",
        "{\"bucket\":1}",
        "{\"bucket\":[\"bkt\"]}",
        "{\"bucket\":{\"bucket\":\"bkt\"}}",
        "{\"bucket\":\"\"}",
        "{\"bucket\":\"BKT\"}",
        "{\"bucket\":\"../bkt\"}",
        "{\"bucket\":\"bkt/a\"}",
        "{\"bucket\":\"b\\u0000kt\"}",
        "{\"Bucket\":\"bkt\"}",
        "{\"prefix\":\"a\"}",
        "{\"bucket\":\"bkt\",\"prefix\":1}",
        "{\"bucket\":\"bkt\",\"prefix\":[\"a\"]}",
        "{\"bucket\":\"bkt\",\"prefix\":{}}",
        "{\"bucket\":\"bkt\",\"keys\":[\"a\"]}",
        "<evict><bucket>bkt</bucket></evict>",
        "bucket=bkt",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    bodies.push(b"{\"bucket\":\"b\xff\xfekt\"}".to_vec());
    bodies.push(format!("{{\"bucket\":{:?}}}", "b".repeat(64)).into_bytes());
    bodies.push(format!("{{\"bucket\":\"bkt\",\"prefix\":{long:?},\"more\":{long:?}}}").into_bytes());
    bodies.push("[".repeat(60_000).into_bytes());
    bodies.push("{\"bucket\":".repeat(6000).into_bytes());
    bodies
}

#[test]
fn flood_of_bad_calls_gets_reasons_and_changes_nothing() {
    let scene = Scene::new(CACHED);
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    put(&mut s3, "bkt/a", b"cached");
    read(&mut s3, "bkt/a");
    let mut root = admin(&server, root_key());
    let mut rejected = |method: &str, path: &str, body: &[u8]| {
        let response = root.send(Request { method, path, body, ..Request::default() }).unwrap();
        let shown = String::from_utf8_lossy(&body[..body.len().min(100)]).into_owned();
        let json: Json = serde_json::from_slice(&response.body)
            .unwrap_or_else(|_| panic!("{method} {path} {shown}: {} {}", response.status, response.text()));
        let message = json["error"]["message"].as_str().unwrap_or_default();
        assert!(!message.is_empty() && message.len() < 2000, "{method} {path} {shown}: {json}");
        (response.status, shown)
    };
    for action in ["evict", "stage", "pin", "unpin", "rewrap"] {
        for volume in ["fast one", "plain", "none"] {
            let path = format!("v1/volumes/{volume}/{action}");
            for body in bad_bodies() {
                let (status, shown) = rejected("POST", &path, &body);
                let expected: &[u16] = if volume == "none" { &[400, 404] } else { &[400] };
                assert!(expected.contains(&status), "{path} {shown}: {status}");
            }
        }
        let path = format!("v1/volumes/fast one/{action}");
        for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            assert_eq!(rejected(method, &path, b"").0, 405, "{method} {path}");
        }
        assert_eq!(rejected("POST", &path, b"{\"bucket\":\"plain-bucket\"}").0, 400, "{path}");
    }
    for path in ["v1/classes/25", "v1/reload"] {
        for body in bad_bodies() {
            let (status, shown) = rejected("POST", path, &body);
            assert_eq!(status, 400, "{path} {shown}");
        }
        for method in ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            assert_eq!(rejected(method, path, b"").0, 405, "{method} {path}");
        }
    }
    let long = "v".repeat(3000);
    for path in [
        "v1",
        "v1/",
        "v1/volume",
        "v1/volumes/",
        "v1/volumes//status",
        "v1/volumes/../classes",
        "v1/volumes/plain",
        "v1/volumes/plain/status/more",
        "v1/volumes/plain/Status",
        "v1/classes/25/priority",
        "v1/reload/now",
        "v1/volumes/\u{0}/status",
        &format!("v1/volumes/{long}/status"),
        "v2/volumes",
    ] {
        let response =
            S3::send(&mut admin(&server, root_key()), Request { method: "GET", path, ..Request::default() });
        let response = response.unwrap();
        assert!([400, 404].contains(&response.status), "{path:?}: {} {}", response.status, response.text());
    }
    assert!(is_hit(&mut s3, "bkt/a"), "nothing was evicted");
    let status = answered(&scene, &server, &["volume", "status", "fast one"]);
    assert!(!status.contains("pinned"), "{status}");
}

#[test]
fn volume_status_shows_what_the_cache_holds() {
    let scene = Scene::new(CACHED);
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let large = content(1, 1 << 20);
    put(&mut s3, "bkt/large", &large);
    for _ in 0..2 {
        assert_eq!(read(&mut s3, "bkt/large"), large);
    }
    let status = || -> Json {
        serde_json::from_str(&answered(&scene, &server, &["volume", "status", "fast one", "--json"])).unwrap()
    };
    super::eventually("the object is on the SSD", || {
        status()["caches"][0]["ssd"]["used_bytes"].as_u64() >= Some(1 << 20)
    });
    let json = status();
    let cache = &json["caches"][0];
    assert_eq!((&json["name"], &json["buckets"][0]), (&"fast one".into(), &"bkt".into()));
    assert_eq!(cache["ssd"]["size_bytes"], 64 << 20);
    assert_eq!((&cache["counters"]["ram_hits"], &cache["counters"]["misses"]), (&1.into(), &1.into()));
    assert!(cache["memory"]["used_bytes"].as_u64() >= Some(1 << 20), "{cache}");
    let text = answered(&scene, &server, &["volume", "status"]);
    for line in [
        "volume   plain (default)",
        "store    disk (local)",
        "reads    1 from memory, 0 from the ssd, 0 in part, 1 from the store",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
    }
    let all: Json =
        serde_json::from_str(&answered(&scene, &server, &["volume", "status", "--json"])).unwrap();
    assert_eq!(all["volumes"].as_array().unwrap().len(), 2);
    let unknown = failed(&scene, &server, &["volume", "status", "slow"]);
    assert!(unknown.contains("there is no volume \"slow\""), "{unknown}");
}

#[test]
fn evicted_objects_are_read_from_the_store_again() {
    let scene = Scene::new(CACHED);
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let sizes = [("a/small", 4096), ("a/large", 1 << 20), ("b/small", 4096), ("b/large", 1 << 20)];
    for (key, size) in sizes {
        let path = format!("bkt/{key}");
        put(&mut s3, &path, &content(1, size));
        read(&mut s3, &path);
        assert!(is_hit(&mut s3, &path), "{key}");
    }
    assert_eq!(answered(&scene, &server, &["volume", "evict", "bkt/a/"]), "evicted 2 of 2 objects\n");
    for (key, size) in sizes {
        let path = format!("bkt/{key}");
        assert_eq!(is_hit(&mut s3, &path), key.starts_with("b/"), "{key}");
        assert_eq!(read(&mut s3, &path), content(1, size), "{key}");
    }
    let lines = answered(&scene, &server, &["volume", "evict", "s3://bkt", "--json"]);
    let last: Json = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!(last, serde_json::json!({ "done": { "objects": 4, "evicted": 4 } }));
    let missing = failed(&scene, &server, &["volume", "evict", "no-such-bucket"]);
    assert!(missing.contains("has no cache"), "its volume is the default one: {missing}");
}

#[test]
fn pinned_prefixes_are_listed_and_survive_a_restart() {
    let scene = Scene::new(CACHED);
    let mut server = scene.start();
    put(&mut client(&server), "bkt", &[]);
    let pinned = answered(&scene, &server, &["volume", "pin", "bkt/a/"]);
    assert_eq!(pinned, "pinned   bkt/a/\n");
    answered(&scene, &server, &["volume", "pin", "bkt"]);
    server.kill();
    server = scene.start();
    let status = answered(&scene, &server, &["volume", "status", "fast one"]);
    assert!(status.contains("pinned   bkt/a/\n") && status.contains("pinned   bkt/\n"), "{status}");
    assert_eq!(answered(&scene, &server, &["volume", "unpin", "bkt"]), "pinned   bkt/a/\n");
    assert_eq!(
        answered(&scene, &server, &["volume", "unpin", "bkt/a/", "--json"]).trim(),
        "{\n  \"pins\": []\n}"
    );
    let other = failed(&scene, &server, &["volume", "pin", "no-such-bucket"]);
    assert!(other.contains("has no cache"), "its volume is the default one: {other}");
}

#[test]
fn staged_objects_are_hits_also_after_a_restart() {
    let scene = Scene::new(CACHED);
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let size = |number: u64| [0, 4096, 60_000, 3 << 20][number as usize % 4];
    let objects: Vec<String> = (0..12).map(|number| format!("bkt/a/{number}")).collect();
    for (number, path) in (0..).zip(&objects) {
        put(&mut s3, path, &content(number, size(number)));
    }
    put(&mut s3, "bkt/b", b"other");
    put(&mut s3, "bkt/a/too-large", &vec![7; 65 << 20]);
    let staged = answered(&scene, &server, &["volume", "stage", "bkt/a/"]);
    assert!(staged.starts_with("staged 12 of 13 objects, "), "{staged}");
    assert!(staged.ends_with("; 0 were cached; 1 larger than the cache\n"), "{staged}");
    for (number, path) in (0..).zip(&objects) {
        assert!(is_hit(&mut s3, path), "{path}");
        assert_eq!(read(&mut s3, path), content(number, size(number)), "{path}");
    }
    let again = answered(&scene, &server, &["volume", "stage", "bkt/a/"]);
    assert_eq!(again, "staged 0 of 13 objects, 0; 12 were cached; 1 larger than the cache\n");
    assert!(server.terminate().unwrap().success());
    let server = scene.start();
    let again = answered(&scene, &server, &["volume", "stage", "bkt/a/", "--json"]);
    let last: Json = serde_json::from_str(again.lines().last().unwrap()).unwrap();
    assert_eq!(last["done"]["already_cached"], 12, "{last}");
    let mut s3 = client(&server);
    assert!(objects.iter().all(|path| is_hit(&mut s3, path)));
    let missing = failed(&scene, &server, &["volume", "stage", "bktt"]);
    assert!(missing.contains("has no cache"), "{missing}");
}

#[test]
fn commands_say_why_they_cannot_ask_a_server() {
    let scene = Scene::new(TWO_VOLUMES);
    let server = scene.start();
    let admin = server.admin.to_string();
    let settings = scene.settings();
    let settings = settings.to_str().unwrap();
    let run = |key: Option<Credentials>, arguments: &[&str]| {
        let mut command = tradewind();
        command.args(["volume", "status"]).args(arguments).current_dir(scene.directory.path());
        if let Some(Credentials { id, secret }) = key {
            command.env("TRADEWIND_ACCESS_KEY", id).env("TRADEWIND_SECRET_KEY", secret);
        }
        let ended = command.output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let wrong = Credentials { secret: "guess-guess-guess".to_owned(), ..root_key() };
    let (status, said) = run(Some(wrong), &["--config", settings, "--admin", &admin]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("rejects the root key from TRADEWIND_ACCESS_KEY"), "{said}");
    let (status, said) = run(None, &["--config", settings, "--admin", &admin, "--data", "nowhere"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("there is no root key in nowhere/root-key"), "{said}");
    // The S3 listener is none of the admin API.
    let s3 = server.endpoint.to_string();
    let (status, said) = run(Some(root_key()), &["--admin", &s3]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("has no admin API"), "{said}");
    drop(server);
    let (status, said) = run(Some(root_key()), &["--admin", &admin]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("no server has its admin listener at"), "{said}");
    let (status, said) = run(Some(root_key()), &["--admin", "127.0.0.1:0"]);
    assert_eq!(status, Some(2), "{said}");
}

#[test]
fn commands_find_address_and_generated_key_by_the_settings() {
    let scene = Scene::new(TWO_VOLUMES);
    let mut setup = scene.setup();
    setup.environment.retain(|(name, _)| !name.starts_with("TRADEWIND_"));
    let server = setup.start().unwrap();
    let text = format!("{TWO_VOLUMES}[server]\nadmin = \"{}\"\n", server.admin);
    std::fs::write(scene.settings(), text).unwrap();
    let data = scene.path("data");
    let shown = scene.output(&["volume", "status", "hot", "--data", data.to_str().unwrap()]);
    assert!(shown.starts_with("volume   hot (default)\n"), "{shown}");
}
