//! A volume that writes back: what a client sees of it, across a kill, a lost backing store and a lost journal.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::support::content::content;
use super::support::s3::S3;
use super::support::server::{ServerSetup, root_key, run};
use super::{Scene, client, eventually, metrics, put, read};

/// A local store that is written back.
const WRITE_BACK: &str = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n\
    [volume.v]\nstack = [{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\", write = \"back\" } }, \"disk\"]\n";

/// That store without the cache.
const PLAIN: &str = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n[volume.v]\nstack = [\"disk\"]\n";

/// Settings of write-back in front of a service.
pub(super) fn before_service(endpoint: &str) -> String {
    format!(
        "[store.far]\ntype = \"s3\"\nendpoint = \"http://{endpoint}\"\nregion = \"us-east-1\"\n[volume.v]\nstack = [{{ \
         cached = {{ disk = \"ssd\", size = \"64MiB\", memory = \"8MiB\", write = \"back\" }} }}, \"far\"]\n"
    )
}

pub(super) fn dirty_objects(text: &str) -> Option<u64> {
    let line =
        text.lines().find(|line| line.starts_with("tradewind_write_back_dirty_objects{volume=\"v\"}"))?;
    line.split_whitespace().last()?.parse().ok()
}

#[test]
fn acknowledged_writes_survive_a_kill_and_reach_the_store() {
    let scene = Scene::new(WRITE_BACK);
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    let (small, large) = (content(1, 4096), content(2, 3 << 20));
    put(&mut s3, "bkt/small", &small);
    put(&mut s3, "bkt/large", &large);
    put(&mut s3, "bkt/gone", &small);
    assert_eq!(s3.delete("bkt/gone").unwrap().status, 204);
    let before = s3.get("bkt/small").unwrap();
    server.kill();
    let mut server = scene.start();
    let mut s3 = client(&server);
    assert_eq!((read(&mut s3, "bkt/small"), read(&mut s3, "bkt/large")), (small.clone(), large.clone()));
    assert_eq!(s3.get("bkt/gone").unwrap().status, 404);
    eventually("all is written back", || dirty_objects(&metrics(&server)) == Some(0));
    let after = s3.get("bkt/small").unwrap();
    for header in ["last-modified", "etag"] {
        assert_eq!(after.header(header), before.header(header), "{header}");
    }
    assert!(server.terminate().unwrap().success());
    // The store has everything, and no marker after a clean shutdown.
    std::fs::write(scene.settings(), PLAIN).unwrap();
    let server = scene.start();
    let mut s3 = client(&server);
    assert_eq!((read(&mut s3, "bkt/small"), read(&mut s3, "bkt/large")), (small, large));
    assert_eq!(s3.get("bkt/.tradewind-write-back").unwrap().status, 404);
}

#[test]
fn a_shutdown_writes_all_back() {
    let scene = Scene::new(WRITE_BACK);
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    for key in 0..20_u64 {
        put(&mut s3, &format!("bkt/{key}"), &content(key, 10_000));
    }
    assert!(server.terminate().unwrap().success());
    std::fs::write(scene.settings(), PLAIN).unwrap();
    let server = scene.start();
    let mut s3 = client(&server);
    for key in 0..20_u64 {
        assert_eq!(read(&mut s3, &format!("bkt/{key}")), content(key, 10_000));
    }
}

#[test]
fn writes_go_on_while_the_service_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let far = || ServerSetup::new(&directory.path().join("data"), &directory.path().join("log"));
    let away = far().start().unwrap();
    let endpoint = away.endpoint;
    let scene = Scene::new(&before_service(&endpoint.to_string()));
    let server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    put(&mut s3, "bkt/first", b"first");
    drop(away);
    put(&mut s3, "bkt/second", b"second");
    assert_eq!(read(&mut s3, "bkt/second"), b"second");
    assert_eq!(s3.delete("bkt/second").unwrap().status, 204);
    assert_eq!(s3.get("bkt/second").unwrap().status, 404);
}

#[test]
fn a_second_signal_ends_a_shutdown_that_waits_for_a_service() {
    let directory = tempfile::tempdir().unwrap();
    let mut far = ServerSetup::new(&directory.path().join("data"), &directory.path().join("log"));
    let away = far.start().unwrap();
    let endpoint = away.endpoint.to_string();
    let scene = Scene::new(&before_service(&endpoint));
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    put(&mut s3, "bkt/first", b"first");
    drop(away);
    put(&mut s3, "bkt/dirty", b"dirty");
    server.signal(Signal::TERM);
    eventually("the shutdown begins", || server.logged().contains("finishing requests in flight"));
    // Then the journal is written back.
    eventually("the listener closes", || TcpStream::connect(server.endpoint).is_err());
    std::thread::sleep(Duration::from_millis(300));
    let signalled = Instant::now();
    server.signal(Signal::TERM);
    assert!(!server.wait().unwrap().success());
    assert!(signalled.elapsed() < Duration::from_secs(8), "it took {:?}", signalled.elapsed());
    far.flags = ["--listen", &endpoint, "--admin", "127.0.0.1:0"].map(Into::into).to_vec();
    let _back = far.start().unwrap();
    let server = scene.start();
    assert_eq!(read(&mut client(&server), "bkt/dirty"), b"dirty");
}

#[test]
fn a_lost_journal_serves_nothing_stale() {
    let scene = Scene::new(WRITE_BACK);
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    put(&mut s3, "bkt/key", b"acknowledged");
    server.kill();
    std::fs::rename(scene.path("ssd-journal"), scene.path("elsewhere")).unwrap();
    let mut server = scene.start();
    let response = client(&server).get("bkt/key").unwrap();
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(client(&server).put("bkt/key", b"other").unwrap().status, 503);
    server.kill();
    std::fs::remove_dir_all(scene.path("ssd-journal")).unwrap();
    std::fs::rename(scene.path("elsewhere"), scene.path("ssd-journal")).unwrap();
    let server = scene.start();
    assert_eq!(read(&mut client(&server), "bkt/key"), b"acknowledged");
}

#[test]
fn a_volume_that_writes_through_again_drains_its_journal() {
    let scene = Scene::new(WRITE_BACK);
    let mut server = scene.start();
    let mut s3 = client(&server);
    put(&mut s3, "bkt", &[]);
    put(&mut s3, "bkt/key", b"acknowledged");
    server.kill();
    std::fs::write(scene.settings(), WRITE_BACK.replace("\"back\"", "\"through\"")).unwrap();
    let server = scene.start();
    let mut s3 = client(&server);
    assert_eq!(read(&mut s3, "bkt/key"), b"acknowledged");
    put(&mut s3, "bkt/key", b"newer");
    assert_eq!(read(&mut s3, "bkt/key"), b"newer");
    eventually("all is written back", || dirty_objects(&metrics(&server)) == Some(0));
}

/// Without the journal, the server would serve older data and not say so.
#[test]
fn a_configured_journal_that_is_absent_prevents_the_start() {
    let through = WRITE_BACK.replace("\"back\"", "\"through\", journal = \"mount/journal\"");
    let scene = Scene::new(&through);
    let error = scene.setup().start().unwrap_err().to_string();
    assert!(error.contains("mount/journal") && error.contains("remove the setting `journal`"), "{error}");
    // A file is in the place of the directory above the journal: whether there is one is not known.
    std::fs::write(scene.path("ssd-journal"), b"").unwrap();
    std::fs::write(scene.settings(), through.replace("mount/journal", "ssd-journal/journal")).unwrap();
    assert!(scene.setup().start().is_err());
    std::fs::remove_file(scene.path("ssd-journal")).unwrap();
    std::fs::write(scene.settings(), WRITE_BACK.replace("\"back\"", "\"through\"")).unwrap();
    scene.start();
}

/// The second server would serve what the first one replaces.
#[test]
fn a_bucket_that_a_second_server_reads_is_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let far =
        ServerSetup::new(&directory.path().join("data"), &directory.path().join("log")).start().unwrap();
    let scenes = [(); 2].map(|()| Scene::new(&before_service(&far.endpoint.to_string())));
    let servers = [scenes[0].start(), scenes[1].start()];
    let mut s3 = S3::new(far.endpoint, root_key());
    put(&mut s3, "bkt", &[]);
    put(&mut s3, "bkt/key", b"old");
    assert_eq!(read(&mut client(&servers[1]), "bkt/key"), b"old");
    let refused = client(&servers[0]).put("bkt/key", b"new").unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text());
}

#[test]
fn a_second_server_on_the_same_service_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let far =
        ServerSetup::new(&directory.path().join("data"), &directory.path().join("log")).start().unwrap();
    let scenes = [(); 2].map(|()| Scene::new(&before_service(&far.endpoint.to_string())));
    let servers = [scenes[0].start(), scenes[1].start()];
    put(&mut S3::new(far.endpoint, root_key()), "bkt", &[]);
    put(&mut client(&servers[0]), "bkt/key", b"mine");
    let refused = client(&servers[1]).put("bkt/key", b"other").unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(client(&servers[1]).get("bkt/key").unwrap().status, 503);
    assert_eq!(read(&mut client(&servers[0]), "bkt/key"), b"mine");
}

#[test]
fn write_back_without_its_guards_is_rejected_by_the_check() {
    let swift = "[store.far]\ntype = \"swift\"\nopenrc = \"rc\"\n[volume.v]\nstack = [{ cached = { disk = \"ssd\", \
                 size = \"64MiB\", write = \"back\" } }, \"far\"]\n";
    let shared = format!("{WRITE_BACK}[volume.w]\nstack = [\"disk\"]\n[bucket.old]\nvolume = \"w\"\n");
    for (settings, expected) in [
        (swift.to_owned(), "has no conditional writes"),
        (format!("default_volume = \"v\"\n{shared}"), "which the volume \"w\" uses too"),
        (WRITE_BACK.replace("\"back\"", "\"back\", validate = \"60s\""), "nothing else writes the store"),
        (
            WRITE_BACK.replace("\"back\"", "\"back\", max_dirty = \"1MiB\""),
            "max_dirty must be at least 64MiB",
        ),
        (WRITE_BACK.replace("\"back\"", "\"back\", journal = \"disk\""), "belongs to the store \"disk\""),
    ] {
        let scene = Scene::new(&settings);
        let path = scene.settings();
        let ended = run(&["settings", "check", "--config", path.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
        assert!(!ended.status.success() && said.contains(expected), "{expected}: {said}");
    }
    let confirmed = Scene::new(&swift.replace("\"back\"", "\"back\", sole_writer = true"));
    std::fs::write(
        confirmed.path("rc"),
        "export ST_AUTH=http://127.0.0.1:1/a\nexport ST_USER=a:b\nexport ST_KEY=c\n",
    )
    .unwrap();
    confirmed.output(&["settings", "check"]);
}
