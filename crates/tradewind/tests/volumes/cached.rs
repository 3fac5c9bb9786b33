//! A volume with a cache: what a client sees of it, across changes, a kill and a lost backing store.

use std::path::Path;

use super::support::command_runner::CommandRunner;
use super::support::content::content;
use super::support::s3::{Request, Response, S3};
use super::support::server::{ServerSetup, root_key, run};
use super::{Scene, client, metrics, put, read};

/// A local store with a cache.
const CACHED: &str = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n\
    [volume.v]\nstack = [{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\" } }, \"disk\"]\n";

#[test]
fn benchmarks_print_the_hits_of_the_cache() {
    let scene = Scene::new(CACHED);
    let server = scene.start();
    put(&mut client(&server), "bkt", &[]);
    let caller = CommandRunner::new(server.endpoint);
    let load = ["bench", "object", "s3://bkt", "--mix", "get", "--size", "4KiB", "--concurrency", "1"];
    let ran = caller.run(&[&load[..], &["--objects", "8", "--count", "400"]].concat());
    let printed = String::from_utf8_lossy(&ran.out);
    let line = printed.lines().find(|line| line.contains("were hits, by Cache-Status"));
    let share: f64 = line.and_then(|line| line.split(' ').nth(3)).expect(&printed).parse().unwrap();
    assert!((95.0..=100.0).contains(&share), "{printed}");
}

/// Settings of a cache in front of a service.
fn cached_service(endpoint: &str, validate: &str) -> String {
    format!(
        "[store.far]\ntype = \"s3\"\nendpoint = \"http://{endpoint}\"\nregion = \"us-east-1\"\n[volume.v]\nstack = [{{ \
         cached = {{ disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\", validate = \"{validate}\" }} }}, \"far\"]\n"
    )
}

fn get(client: &mut S3, path: &str) -> Response {
    let response = client.get(path).unwrap();
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response
}

fn cache_status(response: &Response) -> String {
    response.header("cache-status").unwrap_or_default().to_owned()
}

fn get_range(client: &mut S3, path: &str, range: &str) -> Response {
    let headers = vec![("range", range.to_owned())];
    client.send(Request { method: "GET", path, headers, ..Request::default() }).unwrap()
}

#[test]
fn second_read_is_a_hit_and_a_changed_object_is_served() {
    let scene = Scene::new(CACHED);
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    for (key, size) in [("bkt/small", 4096), ("bkt/large", 5 << 20)] {
        let (first, second) = (content(1, size), content(2, size));
        put(&mut s3, key, &first);
        let cold = get(&mut s3, key);
        assert_eq!(cold.body, first);
        let warm = get(&mut s3, key);
        assert!(cache_status(&warm).starts_with("tradewind; hit"), "{key}: {}", cache_status(&warm));
        assert_eq!(warm.body, first);
        assert_eq!(warm.header("etag"), cold.header("etag"));
        let range = get_range(&mut s3, key, "bytes=100-199");
        assert_eq!((range.status, &range.body[..]), (206, &first[100..200]));
        put(&mut s3, key, &second);
        assert_eq!(read(&mut s3, key), second);
        assert_eq!(s3.delete(key).unwrap().status, 204);
        assert_eq!(s3.get(key).unwrap().status, 404);
    }
    let metrics = metrics(&server);
    assert!(metrics.contains("tradewind_cache_reads_total{volume=\"v\",result=\"ram\"}"), "{metrics}");
}

#[test]
fn cache_survives_a_kill_and_serves_nothing_stale() {
    let scene = Scene::new(CACHED);
    let mut server = scene.start();
    let contents: Vec<Vec<u8>> = (0..8).map(|seed| content(seed, 300_000)).collect();
    put(&mut client(&server), "bkt", &[]);
    for round in 0..3_usize {
        let mut s3 = client(&server);
        for key in 0..8 {
            let expected = &contents[(key + round) % 8];
            put(&mut s3, &format!("bkt/{key}"), expected);
            assert_eq!(read(&mut s3, &format!("bkt/{key}")), *expected);
        }
        server.kill();
        server = scene.start();
        let mut s3 = client(&server);
        for key in 0..8 {
            assert_eq!(read(&mut s3, &format!("bkt/{key}")), contents[(key + round) % 8], "round {round}");
        }
    }
}

#[test]
fn cache_over_a_service_validates_at_its_interval() {
    let directory = tempfile::tempdir().unwrap();
    let far =
        ServerSetup::new(&directory.path().join("data"), &directory.path().join("log")).start().unwrap();
    let mut behind = S3::new(far.endpoint, root_key());
    put(&mut behind, "bkt", &[]);
    for (validate, is_seen) in [("always", true), ("1h", false)] {
        let scene = Scene::new(&cached_service(&far.endpoint.to_string(), validate));
        let server = scene.start();
        let mut s3 = client(&server);
        put(&mut s3, "bkt/key", b"one");
        read(&mut s3, "bkt/key");
        let warm = get(&mut s3, "bkt/key");
        assert_eq!(warm.body, b"one");
        assert!(cache_status(&warm).starts_with("tradewind; hit"), "{validate}: {}", cache_status(&warm));
        put(&mut behind, "bkt/key", b"two");
        let seen = read(&mut s3, "bkt/key");
        assert_eq!(seen == b"two", is_seen, "{validate}: {seen:?}");
    }
}

#[test]
fn cached_data_is_served_while_the_service_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let far =
        ServerSetup::new(&directory.path().join("data"), &directory.path().join("log")).start().unwrap();
    let scene = Scene::new(&cached_service(&far.endpoint.to_string(), "1h"));
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    put(&mut s3, "bkt/key", b"kept");
    read(&mut s3, "bkt/key");
    drop(far);
    assert_eq!(read(&mut s3, "bkt/key"), b"kept");
    assert!(s3.get("bkt/other").unwrap().status >= 500);
}

#[test]
fn directory_of_another_volume_is_rejected_by_name() {
    let scene = Scene::new(CACHED);
    drop(scene.start());
    std::fs::write(scene.settings(), CACHED.replace("volume.v", "volume.w")).unwrap();
    let (settings, data) = (scene.settings(), scene.path("data"));
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data"];
    let ended = run(&[&arguments[..], &[text(&data), "--config", text(&settings)]].concat());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot open the cache in") && said.contains("\"v\""), "{said}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
