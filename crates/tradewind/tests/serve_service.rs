//! A server in front of another one, as it is in front of any service: what is large is read in several requests, what clients see is
//! what they would see behind it, and a store that was tuned is read by its profile from the next start on.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use support::content::Content;
use support::eventually;
use support::s3::{Request, Response, S3};
use support::server::{Server, Start, root_key, tradewind};

/// What the default plan has in one range.
const RANGE: usize = 1 << 20;

struct Scene {
    directory: tempfile::TempDir,
    behind: Server,
    /// Whoever asks the one behind.
    direct: S3,
}

impl Scene {
    fn new() -> Self {
        Self::with("")
    }

    /// With more lines for the store in the settings.
    fn with(more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let behind = Start::new(&at("data"), &at("log")).start().unwrap();
        let text = format!(
            "[server]\nstore = \"far\"\n[store.far]\ntype = \"s3\"\nendpoint = \"http://{}\"\nregion = \"us-east-1\"\n{more}",
            behind.endpoint
        );
        std::fs::write(at("settings.toml"), text).unwrap();
        let mut direct = S3::new(behind.endpoint, root_key());
        assert_eq!(direct.put("bucket", &[]).unwrap().status, 200);
        Self { directory, behind, direct }
    }

    /// What reaches the store, and where profiles are.
    fn environment(&self) -> [(String, String); 4] {
        let root = root_key();
        let data = self.directory.path().join("share").display().to_string();
        [
            ("AWS_ACCESS_KEY_ID", root.id),
            ("AWS_SECRET_ACCESS_KEY", root.secret),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
            ("XDG_DATA_HOME", data),
        ]
        .map(|(name, value)| (name.to_owned(), value))
    }

    fn front(&self) -> Server {
        let at = |name: &str| self.directory.path().join(name);
        let mut start = Start::new(&at("front"), &at("front-log")).flag("--config", at("settings.toml"));
        start.environment.extend(self.environment());
        start.start().unwrap()
    }

    fn store(&mut self, key: &str, size: usize) -> Vec<u8> {
        let bytes = Content { id: size as u64, size }.bytes();
        assert_eq!(self.direct.put(&format!("bucket/{key}"), &bytes).unwrap().status, 200);
        bytes
    }

    /// How many reads the store behind was asked for.
    fn reads(&self) -> u64 {
        let metrics = S3::anonymous(self.behind.admin).get("metrics").unwrap().text();
        let line = "tradewind_s3_requests_total{operation=\"GetObject\",status=\"2xx\"} ";
        metrics.lines().find_map(|l| l.strip_prefix(line)).map_or(0, |count| count.parse().unwrap())
    }

    /// Waits for them: one that was broken off is counted when that was noticed.
    fn reads_become(&self, count: u64) {
        eventually(&format!("{} reads and not {count}", self.reads()), || self.reads() == count);
    }
}

fn get(client: &mut S3, key: &str, headers: &[(&str, &str)]) -> Response {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    client
        .send(Request { method: "GET", path: &format!("bucket/{key}"), headers, ..Request::default() })
        .unwrap()
}

#[test]
fn what_is_large_is_read_in_ranges_and_is_what_it_was() {
    let mut scene = Scene::new();
    let (size, small) = (20 * RANGE + 77, 100_000);
    let (large, little) = (scene.store("large", size), scene.store("little", small));
    let mut front = scene.front();
    let mut client = S3::new(front.endpoint, root_key());

    let checksums = [("x-amz-checksum-mode", "ENABLED")];
    let through = get(&mut client, "large", &checksums);
    assert!(through.status == 200 && through.body == large);
    scene.reads_become(21);
    let direct = get(&mut scene.direct, "large", &checksums);
    for name in ["etag", "last-modified", "content-length", "content-type", "x-amz-checksum-crc64nvme"] {
        assert_eq!(through.header(name), direct.header(name), "{name}");
    }
    assert!(through.header("x-amz-checksum-crc64nvme").is_some());

    let part = get(&mut client, "large", &[("range", "bytes=1000-9000999")]);
    assert!(part.status == 206 && part.body == large[1000..9_001_000]);
    assert_eq!(part.header("content-range").unwrap(), format!("bytes 1000-9000999/{size}"));
    let end = get(&mut client, "large", &[("range", "bytes=-9000000")]);
    assert!(end.status == 206 && end.body == large[size - 9_000_000..]);
    assert_eq!(get(&mut client, "large", &[("range", "bytes=99999999-")]).status, 416);
    assert_eq!(get(&mut client, "large", &[("if-match", "\"another\"")]).status, 412);
    scene.reads_become(21 + 1 + 9 + 9);

    assert!(get(&mut client, "little", &[]).body == little);
    scene.reads_become(41);

    let printed = front.printed().join("\n");
    assert!(printed.contains("plan        this store was never tuned: 32 requests at a time"), "{printed}");
    let metrics = S3::anonymous(front.admin).get("metrics").unwrap().text();
    for line in [
        "tradewind_plan_requests{store=\"far\",from=\"default\",up_to_bytes=\"4096\"} 32",
        "tradewind_plan_ahead_bytes{store=\"far\"} 0",
        "tradewind_store_requests_total{store=\"far\",operation=\"get\",outcome=\"given_up\"} 2",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} is not in\n{metrics}");
    }
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}

#[test]
fn a_profile_counts_from_the_next_start_on() {
    let mut scene = Scene::new();
    let large = scene.store("large", 10 * RANGE);
    let settings = scene.directory.path().join("settings.toml");
    let tuned = tradewind()
        .args(["tune", "far://bucket", "--budget", "16MiB,3s", "--config"])
        .arg(settings)
        .envs(scene.environment())
        .output()
        .unwrap();
    assert!(tuned.status.success(), "{}", String::from_utf8_lossy(&tuned.stderr));
    let mut front = scene.front();
    let mut client = S3::new(front.endpoint, root_key());
    assert!(get(&mut client, "large", &[]).body == large);
    let printed = front.printed().join("\n");
    assert!(printed.contains("plan        by the profile of 20"), "{printed}");
    let metrics = S3::anonymous(front.admin).get("metrics").unwrap().text();
    assert!(metrics.contains("tradewind_plan_requests{store=\"far\",from=\"profile\""), "{metrics}");
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}

/// Those who have turns wait for connections: nobody who has a connection may wait for a turn.
#[test]
fn many_clients_pass_through_few_connections() {
    const CLIENTS: usize = 40;
    let mut scene = Scene::with("connections = 8\n");
    let large = scene.store("large", 12 * RANGE);
    let mut front = scene.front();
    let (sender, ended) = std::sync::mpsc::channel();
    for _ in 0..CLIENTS {
        let (sender, endpoint, large) = (sender.clone(), front.endpoint, large.clone());
        std::thread::spawn(move || {
            let mut client = S3::new(endpoint, root_key());
            let _ = sender.send(get(&mut client, "large", &[]).body == large);
        });
    }
    for n in 0..CLIENTS {
        let is_right = ended.recv_timeout(std::time::Duration::from_secs(60));
        assert!(is_right.unwrap_or_else(|e| panic!("{n} of {CLIENTS} were served: {e}")));
    }
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}
