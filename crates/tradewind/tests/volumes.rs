//! A server with several volumes, with clients that access the buckets of each, copy between them, and lose the store of
//! one; and the commands that print volumes.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "volumes/administered.rs"]
mod administered;
#[path = "volumes/cached.rs"]
mod cached;
#[path = "volumes/class_calls.rs"]
mod class_calls;
#[path = "volumes/class_policies.rs"]
mod class_policies;
#[path = "volumes/dirty_limit.rs"]
mod dirty_limit;
#[path = "volumes/routed.rs"]
mod routed;
mod support;
#[path = "volumes/transformed.rs"]
mod transformed;
#[path = "volumes/write_back.rs"]
mod write_back;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value as Json;
use support::command_runner::CommandRunner;
use support::content::Content;
use support::s3::{Request, Response, S3};
use support::server::{Server, ServerSetup, root_key, run};
use support::{eventually, skip};

/// Two local stores, each with a volume. The bucket `old` is in the second volume.
const TWO_VOLUMES: &str = "default_volume = \"hot\"\n\
    [store.ssd]\ntype = \"local\"\npath = \"ssd\"\n\
    [store.disk]\ntype = \"local\"\npath = \"disk\"\n\
    [volume.archive]\nstack = [\"disk\"]\n\
    [volume.hot]\nstack = [\"ssd\"]\n\
    [bucket.old]\nvolume = \"archive\"\n";

struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    fn new(settings: &str) -> Self {
        let scene = Self { directory: tempfile::tempdir().unwrap() };
        std::fs::write(scene.settings(), settings).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn settings(&self) -> PathBuf {
        self.path("settings.toml")
    }

    fn setup(&self) -> ServerSetup {
        let mut setup =
            ServerSetup::new(&self.path("data"), &self.path("log")).flag("--config", self.settings());
        let root = root_key();
        // Keys of a remote store, which is a server of the same tests.
        setup.environment.extend([
            ("AWS_ACCESS_KEY_ID".to_owned(), root.id),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), root.secret),
            ("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()),
            ("XDG_DATA_HOME".to_owned(), self.path("share").display().to_string()),
        ]);
        setup
    }

    fn start(&self) -> Server {
        self.setup().start().unwrap()
    }

    /// Runs a command with the settings.
    fn run(&self, arguments: &[&str]) -> std::process::Output {
        let settings = self.settings();
        run(&[arguments, &["--config", settings.to_str().unwrap()]].concat())
    }

    fn output(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert!(ended.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8(ended.stdout).unwrap()
    }
}

fn client(server: &Server) -> S3 {
    S3::new(server.endpoint, root_key())
}

fn put(client: &mut S3, path: &str, body: &[u8]) {
    let response = client.put(path, body).unwrap();
    assert_eq!(response.status, 200, "{path}: {}", response.text());
}

fn read(client: &mut S3, path: &str) -> Vec<u8> {
    let response = client.get(path).unwrap();
    assert_eq!(response.status, 200, "{path}: {}", response.text());
    response.body
}

fn copy(client: &mut S3, from: &str, to: &str) -> Response {
    let headers = vec![("x-amz-copy-source", format!("/{from}"))];
    client.send(Request { method: "PUT", path: to, headers, ..Request::default() }).unwrap()
}

fn metrics(server: &Server) -> String {
    S3::anonymous(server.admin).get("metrics").unwrap().text()
}

#[test]
fn buckets_stay_in_their_volumes_across_copies_and_a_restart() {
    let scene = Scene::new(TWO_VOLUMES);
    let mut server = scene.start();
    let printed = server.printed().join("\n");
    assert!(printed.contains("volume      hot = [\"ssd\"] (default)"), "{printed}");
    assert!(printed.contains("volume      archive = [\"disk\"]"), "{printed}");
    let mut s3 = client(&server);
    for bucket in ["photos", "old"] {
        put(&mut s3, bucket, &[]);
    }
    let large = Content { id: 1, size: 3 << 20 }.bytes();
    put(&mut s3, "photos/large", &large);
    put(&mut s3, "old/small", b"small");
    for (from, to) in
        [("photos/large", "old/large"), ("old/small", "photos/small"), ("old/large", "photos/back")]
    {
        let response = copy(&mut s3, from, to);
        assert_eq!(response.status, 200, "{from} to {to}: {}", response.text());
    }
    let caller = CommandRunner::new(server.endpoint);
    caller.run_ok(&["cp", "s3://old/large", "s3://photos/by-command"]);
    for store in ["ssd", "disk"] {
        for family in
            ["tradewind_store_bytes_total", "tradewind_store_free_bytes", "tradewind_store_read_only"]
        {
            let line = format!("{family}{{store=\"{store}\"");
            let metrics = metrics(&server);
            assert!(metrics.lines().any(|text| text.starts_with(&line)), "{line} in {metrics}");
        }
    }
    assert!(server.terminate().unwrap().success());

    let server = scene.start();
    let mut s3 = client(&server);
    for key in ["photos/large", "photos/back", "photos/by-command", "old/large"] {
        assert!(read(&mut s3, key) == large, "{key}");
    }
    assert_eq!(read(&mut s3, "photos/small"), b"small");
    let listed = read(&mut s3, "");
    let listed = String::from_utf8(listed).unwrap();
    let (old, photos) = (listed.find("<Name>old</Name>"), listed.find("<Name>photos</Name>"));
    assert!(old.is_some() && old < photos, "{listed}");
    drop(server);

    // The stores by themselves.
    let listed = |location: &str| scene.output(&["ls", location]);
    let (ssd, disk) = (listed("ssd://"), listed("disk://"));
    assert!(ssd.contains("photos") && !ssd.contains("old"), "{ssd}");
    assert!(disk.contains("old") && !disk.contains("photos"), "{disk}");
}

#[test]
fn third_party_clients_copy_between_volumes() {
    let has_boto3 = Command::new("python3").args(["-c", "import boto3"]).stderr(Stdio::null()).status();
    if !has_boto3.is_ok_and(|status| status.success()) {
        return skip("copies between volumes", "python3 has no boto3");
    }
    let scene = Scene::new(TWO_VOLUMES);
    let server = scene.start();
    let mut s3 = client(&server);
    for bucket in ["photos", "old"] {
        put(&mut s3, bucket, &[]);
    }
    let root = root_key();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/volumes/clients.py");
    let ended = Command::new("python3")
        .arg(script)
        .args([&format!("http://{}", server.endpoint), "photos", "old"])
        .env("AWS_ACCESS_KEY_ID", root.id)
        .env("AWS_SECRET_ACCESS_KEY", root.secret)
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{errors}\nthe server's log:\n{}", server.logged());
}

#[test]
fn a_volume_whose_service_is_away_fails_alone() {
    let scene = Scene::new("");
    let data = scene.path("service");
    let mut setup = ServerSetup::new(&data, &scene.path("service-log"));
    let mut service = setup.start().unwrap();
    // The service returns at the same address.
    setup.flags =
        vec!["--listen".into(), service.endpoint.to_string().into(), "--admin".into(), "127.0.0.1:0".into()];
    let settings = format!(
        "default_volume = \"near\"\n[store.disk]\ntype = \"local\"\npath = \"disk\"\n\
         [store.far]\ntype = \"s3\"\nendpoint = \"http://{}\"\nregion = \"us-east-1\"\n\
         [volume.near]\nstack = [\"disk\"]\n[volume.far]\nstack = [\"far\"]\n[bucket.old]\nvolume = \"far\"\n",
        service.endpoint
    );
    std::fs::write(scene.settings(), settings).unwrap();
    let mut server = scene.start();
    let mut s3 = client(&server);
    for bucket in ["photos", "old"] {
        put(&mut s3, bucket, &[]);
    }
    let large = Content { id: 2, size: 9 << 20 }.bytes();
    put(&mut s3, "photos/large", &large);
    assert_eq!(copy(&mut s3, "photos/large", "old/large").status, 200);
    assert_eq!(copy(&mut s3, "old/large", "photos/back").status, 200);
    assert!(read(&mut s3, "photos/back") == large);
    put(&mut s3, "photos/small", b"small");

    service.kill();
    for restarts in [false, true] {
        if restarts {
            assert!(server.terminate().unwrap().success());
            server = scene.start();
            s3 = client(&server);
        }
        for path in ["old/large", "old", ""] {
            let response = s3.get(path).unwrap();
            assert_eq!(response.status, 503, "{path:?}: {}", response.text());
            assert!(response.text().contains("<Message>"), "{path:?}: {}", response.text());
        }
        assert_eq!(copy(&mut s3, "photos/small", "old/small").status, 503);
        assert_eq!(read(&mut s3, "photos/small"), b"small");
        put(&mut s3, "photos/more", b"more");
        assert_eq!(S3::anonymous(server.admin).get("health/ready").unwrap().status, 200);
    }
    assert!(
        server.logged().contains("volume \\\"far\\\": "),
        "the log names the volume: {}",
        server.logged()
    );

    let _service = setup.start().unwrap();
    assert!(read(&mut s3, "old/large") == large, "the volume is back");
    assert_eq!(s3.get("").unwrap().status, 200);
}

#[test]
fn misplaced_buckets_are_reported_at_start() {
    let scene = Scene::new(TWO_VOLUMES);
    scene.output(&["mb", "disk://lost"]);
    let server = scene.start();
    let said = "a bucket exists in a volume that is not its own";
    eventually("the bucket is reported", || {
        server
            .logged()
            .lines()
            .any(|line| line.contains(said) && line.contains("lost") && line.contains("archive"))
    });
    let mut s3 = client(&server);
    assert_eq!(s3.get("lost").unwrap().status, 404);
    assert!(!s3.get("").unwrap().text().contains("lost"));
}

#[test]
fn stale_uploads_of_every_volume_expire() {
    let scene = Scene::new(&format!("{TWO_VOLUMES}[uploads]\nexpire_after = \"1s\"\n"));
    let server = scene.start();
    let mut s3 = client(&server);
    for bucket in ["photos", "old"] {
        put(&mut s3, bucket, &[]);
        let path = format!("{bucket}/key");
        let query = vec![("uploads", String::new())];
        let created = s3.send(Request { method: "POST", path: &path, query, ..Request::default() }).unwrap();
        assert_eq!(created.status, 200, "{}", created.text());
    }
    for bucket in ["photos", "old"] {
        eventually(&format!("the upload in {bucket} expires"), || {
            let query = vec![("uploads", String::new())];
            let listed =
                s3.send(Request { method: "GET", path: bucket, query, ..Request::default() }).unwrap();
            listed.status == 200 && !listed.text().contains("<UploadId>")
        });
    }
}

#[test]
fn volume_list_prints_stacks_buckets_and_free_space() {
    let remote =
        "[store.far]\ntype = \"s3\"\nendpoint = \"http://127.0.0.1:1\"\n[volume.far]\nstack = [\"far\"]\n";
    let scene = Scene::new(&format!("{TWO_VOLUMES}{remote}"));
    let listed = scene.output(&["volume", "list"]);
    let words: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["volume", "stack", "free", "buckets"]);
    assert_eq!((words[1][0], words[1][1], &words[1][3..]), ("hot", "[\"ssd\"]", &["all", "others"][..]));
    assert_eq!((words[2][0], words[2][1], &words[2][3..]), ("archive", "[\"disk\"]", &["old"][..]));
    assert!(words[1][2].ends_with('B'), "{listed}");
    assert_eq!(words[3], ["far", "[\"far\"]", "-", "none"]);
    assert!(!scene.path("ssd").exists(), "nothing is created");
    let checked = scene.output(&["settings", "check"]);
    let columns_without_free = |text: &str| -> Vec<String> {
        let columns = |line: &str| {
            line.split_whitespace()
                .enumerate()
                .filter(|(n, _)| *n != 2)
                .map(|(_, word)| word.to_owned())
                .collect::<Vec<_>>()
                .join(" ")
        };
        text.lines().map(columns).collect()
    };
    let (first, volumes) = checked.split_once('\n').unwrap();
    assert_eq!(first, "the settings are valid");
    assert_eq!(columns_without_free(volumes), columns_without_free(&listed), "the free space may change");

    let json: Json = serde_json::from_str(&scene.output(&["volume", "list", "--json"])).unwrap();
    assert_eq!((&json[0]["name"], &json[0]["default"]), (&"hot".into(), &true.into()));
    assert_eq!(
        (&json[1]["buckets"], &json[1]["store"]["type"]),
        (&serde_json::json!(["old"]), &"local".into())
    );
    assert!(json[1]["store"]["free_bytes"].is_u64() && json[2]["store"]["free_bytes"].is_null(), "{json}");
}

#[test]
fn volume_show_prints_one_volume() {
    let scene = Scene::new(TWO_VOLUMES);
    let shown = scene.output(&["volume", "show", "archive"]);
    let path = scene.path("disk");
    for line in [
        "volume   archive",
        "stack    [\"disk\"]",
        "store    disk (local)",
        &format!("path     {}", path.display()),
        "buckets  old",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line} in {shown}");
    }
    let json: Json = serde_json::from_str(&scene.output(&["volume", "show", "hot", "--json"])).unwrap();
    assert_eq!(json["stack"], "[\"ssd\"]");
    let ended = scene.run(&["volume", "show", "archiv"]);
    assert_eq!(ended.status.code(), Some(2));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(said, "tradewind: there is no volume \"archiv\"; did you mean \"archive\"?\n");
}

#[test]
fn settings_check_reports_ambiguous_volumes() {
    let ambiguous = TWO_VOLUMES.replace("default_volume = \"hot\"\n", "");
    let scene = Scene::new(&ambiguous);
    for command in [&["settings", "check"][..], &["volume", "list"], &["serve", "--listen", "127.0.0.1:0"]] {
        let ended = scene.run(command);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{command:?}: {said}");
        assert!(said.contains("default_volume = \"archive\" at the top of the file"), "{command:?}: {said}");
    }
    assert!(!scene.path("ssd").exists() && !scene.path("disk").exists());
}

#[test]
fn cache_larger_than_the_free_space_is_rejected_at_the_start() {
    let scene = Scene::new(
        "[store.disk]\ntype = \"local\"\npath = \"disk\"\n\
         [volume.main]\nstack = [{ cached = { disk = \"cache\", size = \"6TiB\", memory = \"1MiB\" } }, \"disk\"]\n",
    );
    let checked = scene.run(&["settings", "check"]);
    let text = String::from_utf8_lossy(&checked.stdout);
    assert!(text.contains("note: ") && text.contains("does not fit on this machine"), "{text}");
    let started = scene.run(&["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let error = String::from_utf8_lossy(&started.stderr);
    assert_eq!(started.status.code(), Some(1), "{error}");
    assert!(error.contains("the cache has 6TiB") && error.contains("set a size of at most"), "{error}");
    assert!(!scene.path("cache/extents").exists(), "nothing is allocated");
}
