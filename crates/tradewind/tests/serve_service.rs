//! A server with another server as its store, as with any service: large objects are read in several requests, clients
//! get the same responses as from the service, and the profile of a tuned store is used from the next start on.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::content::Content;
use support::eventually;
use support::listing_habits::ListingHabit;
use support::s3::{Request, Response, S3};
use support::scripted_server::{Reply, ScriptedResponse, ScriptedServer};
use support::server::{Server, ServerSetup, root_key, tradewind};
use support::xml;

/// The size of a range in the default plan.
const RANGE_BYTES: usize = 1 << 20;

struct TestStore {
    directory: tempfile::TempDir,
    service: Server,
    /// A client of the service itself.
    direct: S3,
}

impl TestStore {
    fn new() -> Self {
        Self::with("")
    }

    /// A scene with additional settings of the store.
    fn with(more: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let service = ServerSetup::new(&at("data"), &at("log")).start().unwrap();
        write_settings(directory.path(), service.endpoint, more);
        let mut direct = S3::new(service.endpoint, root_key());
        assert_eq!(direct.put("bucket", &[]).unwrap().status, 200);
        Self { directory, service, direct }
    }

    fn environment(&self) -> [(String, String); 4] {
        environment(self.directory.path())
    }

    fn front(&self) -> Server {
        front(self.directory.path())
    }

    fn store(&mut self, key: &str, size: usize) -> Vec<u8> {
        let bytes = Content { id: size as u64, size }.bytes();
        assert_eq!(self.direct.put(&format!("bucket/{key}"), &bytes).unwrap().status, 200);
        bytes
    }

    /// The number of reads that the service has served.
    fn reads(&self) -> u64 {
        let metrics = S3::anonymous(self.service.admin).get("metrics").unwrap().text();
        let line = "tradewind_s3_requests_total{operation=\"GetObject\",status=\"2xx\"} ";
        metrics.lines().find_map(|l| l.strip_prefix(line)).map_or(0, |count| count.parse().unwrap())
    }

    /// Waits until the number of reads is `count`: an aborted read is counted with a delay.
    fn reads_become(&self, count: u64) {
        eventually(&format!("{} reads and not {count}", self.reads()), || self.reads() == count);
    }
}

/// Writes the settings of a server whose store is this service, with additional settings of the store.
fn write_settings(directory: &Path, service: SocketAddr, more: &str) {
    let text = format!(
        "[server]\nstore = \"far\"\n[store.far]\ntype = \"s3\"\nendpoint = \"http://{service}\"\nregion = \"us-east-1\"\n{more}"
    );
    std::fs::write(directory.join("settings.toml"), text).unwrap();
}

/// Variables with the store's credentials and the directory of profiles.
fn environment(directory: &Path) -> [(String, String); 4] {
    let root = root_key();
    let data = directory.join("share").display().to_string();
    [
        ("AWS_ACCESS_KEY_ID", root.id),
        ("AWS_SECRET_ACCESS_KEY", root.secret),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ("XDG_DATA_HOME", data),
    ]
    .map(|(name, value)| (name.to_owned(), value))
}

/// Starts a server with the settings in the directory.
fn front(directory: &Path) -> Server {
    let at = |name: &str| directory.join(name);
    let mut start = ServerSetup::new(&at("front"), &at("front-log")).flag("--config", at("settings.toml"));
    start.environment.extend(environment(directory));
    start.start().unwrap()
}

fn get(client: &mut S3, key: &str, headers: &[(&str, &str)]) -> Response {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    client
        .send(Request { method: "GET", path: &format!("bucket/{key}"), headers, ..Request::default() })
        .unwrap()
}

#[test]
fn stalled_readers_leave_connections_to_the_service() {
    let mut scene = TestStore::with("max_connections = 8\n[bucket.bucket]\nanonymous_read = true\n");
    scene.store("large", 32 << 20);
    let small = scene.store("small", 50_000);
    let mut front = scene.front();
    let mut stalled = Vec::new();
    for _ in 0..24 {
        let mut socket = TcpStream::connect(front.endpoint).unwrap();
        write!(socket, "GET /bucket/large HTTP/1.1\r\nhost: {}\r\n\r\n", front.endpoint).unwrap();
        stalled.push(socket);
    }
    let mut client = S3::new(front.endpoint, root_key());
    for _ in 0..20 {
        let started = Instant::now();
        assert_eq!(get(&mut client, "small", &[]).body, small);
        assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(stalled);
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}

/// A service that is stopped accepts connections and never responds.
#[test]
fn requests_to_a_stopped_service_fail_within_five_seconds() {
    let mut scene = TestStore::new();
    let small = scene.store("small", 50_000);
    let mut front = scene.front();
    let mut client = S3::new(front.endpoint, root_key());
    assert_eq!(get(&mut client, "small", &[]).body, small);
    scene.service.suspend();
    for (method, path, query) in [
        ("GET", "bucket/small", None),
        ("HEAD", "bucket/absent", None),
        ("GET", "bucket", Some("list-type")),
        ("GET", "bucket", Some("uploads")),
        ("GET", "", None),
        ("PUT", "bucket/new", None),
        ("POST", "bucket/new", Some("uploads")),
        ("DELETE", "bucket/small", None),
    ] {
        let started = Instant::now();
        let value = if query == Some("list-type") { "2" } else { "" };
        let query = query.into_iter().map(|name| (name, value.to_owned())).collect();
        let response = client.send(Request { method, path, query, ..Request::default() }).unwrap();
        assert_eq!(response.status, 503, "{method} {path:?}: {}", response.text());
        assert!(response.header("retry-after").is_some(), "{method} {path:?}");
        // The limit is five seconds; a busy machine may need more.
        assert!(started.elapsed() < Duration::from_secs(8), "{method} {path:?}: {:?}", started.elapsed());
    }
    scene.service.signal(Signal::CONT);
    eventually("the service responds", || get(&mut client, "small", &[]).body == small);
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}

#[test]
fn shutdown_over_a_stopped_service_ends_in_its_time() {
    let scene = TestStore::new();
    let settings = scene.directory.path().join("settings.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    std::fs::write(&settings, text.replace("[server]\n", "[server]\nshutdown_grace = \"1s\"\n")).unwrap();
    let mut front = scene.front();
    let mut client = S3::new(front.endpoint, root_key());
    scene.service.suspend();
    let writing = std::thread::spawn(move || client.put("bucket/new", &[7; 50_000]).map(|put| put.status));
    eventually("the write has begun", || {
        let metrics = S3::anonymous(front.admin).get("metrics").unwrap().text();
        metrics
            .lines()
            .any(|line| line.starts_with("tradewind_store_requests_in_flight") && !line.ends_with(" 0"))
    });
    let started = Instant::now();
    front.terminate().unwrap();
    // One second of grace, and the close of stores that have nothing to write back.
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}: {}", started.elapsed(), front.logged());
    println!("ended after {:?}", started.elapsed());
    assert!(writing.join().unwrap().is_ok_and(|status| status >= 500) || !front.logged().is_empty());
    scene.service.signal(Signal::CONT);
}

#[test]
fn large_objects_are_read_in_ranges_without_a_difference() {
    let mut scene = TestStore::new();
    let (size, small) = (20 * RANGE_BYTES + 77, 100_000);
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
    assert!(
        printed.contains("plan        default (the store was never tuned): 32 concurrent requests"),
        "{printed}"
    );
    let metrics = S3::anonymous(front.admin).get("metrics").unwrap().text();
    for line in [
        "tradewind_plan_concurrency{store=\"far\",from=\"default\",up_to_bytes=\"4096\"} 32",
        "tradewind_read_ahead_bytes{store=\"far\"} 0",
        "tradewind_store_requests_total{store=\"far\",operation=\"get\",outcome=\"cancelled\"} 2",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line} is not in\n{metrics}");
    }
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}

#[test]
fn a_profile_is_used_from_the_next_start_on() {
    let mut scene = TestStore::new();
    let large = scene.store("large", 10 * RANGE_BYTES);
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
    assert!(printed.contains("plan        profile of 20"), "{printed}");
    let metrics = S3::anonymous(front.admin).get("metrics").unwrap().text();
    assert!(metrics.contains("tradewind_plan_concurrency{store=\"far\",from=\"profile\""), "{metrics}");
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}

/// Requests with permits wait for connections, so a request with a connection must not wait for a permit.
#[test]
fn many_clients_are_served_over_few_connections() {
    const CLIENTS: usize = 40;
    let mut scene = TestStore::with("max_connections = 8\n");
    let large = scene.store("large", 12 * RANGE_BYTES);
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

/// A server whose store is a scripted service with faults.
fn front_of(service: &ScriptedServer) -> (tempfile::TempDir, Server) {
    let directory = tempfile::tempdir().unwrap();
    write_settings(directory.path(), service.address, "");
    let front = front(directory.path());
    (directory, front)
}

#[test]
fn a_response_without_its_body_is_not_served_as_an_empty_object() {
    let service = ScriptedServer::start(|request, answer| {
        let answer = match (request.operation, request.key.as_str()) {
            ("GetObject", "summed") => ScriptedResponse { body: Vec::new(), ..answer },
            ("GetObject", "plain") => {
                ScriptedResponse { body: Vec::new(), ..answer }.without_header("x-amz-checksum-crc64nvme")
            }
            _ => answer,
        };
        Reply::Respond(answer)
    });
    for (key, bytes) in [("summed", &b"bytes"[..]), ("plain", b"bytes"), ("empty", b"")] {
        service.put_object(key, bytes.to_vec());
    }
    let (_directory, mut front) = front_of(&service);
    let mut client = S3::new(front.endpoint, root_key());
    for (key, status) in [("summed", 500), ("plain", 503), ("empty", 200)] {
        assert_eq!(get(&mut client, key, &[]).status, status, "{key}");
    }
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}

/// All keys of a listing in pages of five, in their order; the status of a page that is an error. `position` is the element
/// of a page, and the parameter of the next one.
fn listed_keys(client: &mut S3, version: &str, position: [&'static str; 2]) -> Result<Vec<String>, u16> {
    let [element, parameter] = position;
    let (mut keys, mut next) = (Vec::new(), None::<String>);
    loop {
        let mut query = vec![("list-type", version.to_owned()), ("max-keys", "5".to_owned())];
        query.retain(|(name, _)| *name != "list-type" || !version.is_empty());
        query.extend(next.map(|next| (parameter, next)));
        let page =
            client.send(Request { method: "GET", path: "bucket", query, ..Request::default() }).unwrap();
        if page.status != 200 {
            return Err(page.status);
        }
        let text = page.text();
        keys.extend(xml::elements(&text, "Key").into_iter().map(str::to_owned));
        // Without a delimiter, the next marker of ListObjects is the last key.
        let last = if element.is_empty() { keys.last().cloned() } else { xml::text(&text, element) };
        next = last.filter(|_| text.contains("<IsTruncated>true"));
        if next.is_none() {
            return Ok(keys);
        }
    }
}

#[test]
fn listing_of_a_service_in_another_order_is_complete_or_rejected() {
    let mixed = (0..9).flat_map(|n| ["/x", "-x", "/y/z", "0"].map(|rest| format!("d{n}{rest}"))).collect();
    // Directory by directory, each page is in order, but a name of the last page sorts before the names of earlier pages.
    let late = (0..10).map(|n| format!("logs/{n}")).chain(["logs-old".to_owned()]).collect();
    assert_listed_or_rejected(mixed);
    assert_listed_or_rejected(late);
}

fn assert_listed_or_rejected(mut sorted: Vec<String>) {
    sorted.sort();
    let objects: BTreeMap<String, Vec<u8>> = sorted.iter().map(|key| (key.clone(), Vec::new())).collect();
    for habit in ListingHabit::ALL {
        let objects = objects.clone();
        let service = ScriptedServer::start(move |request, proper| {
            Reply::Respond(match request.operation {
                "ListObjectsV2" => habit.page(&objects, request, 1000),
                _ => proper,
            })
        });
        let (_directory, mut front) = front_of(&service);
        let mut client = S3::new(front.endpoint, root_key());
        let mut found =
            listed_keys(&mut client, "2", ["NextContinuationToken", "continuation-token"]).unwrap();
        assert_eq!(found.is_sorted(), habit.is_ordered(), "{habit:?}: the order of the service");
        found.sort();
        assert_eq!(found, sorted, "{habit:?}");
        // A key is no position in another order.
        let expected = if habit.is_ordered() { Ok(sorted.clone()) } else { Err(501) };
        assert_eq!(listed_keys(&mut client, "", ["", "marker"]), expected, "{habit:?}");
        assert!(front.terminate().unwrap().success(), "{}", front.logged());
    }
}

/// The uploads that a service lists: of unknown age, of a time with an offset, and old.
const UPLOADS: &str = "<ListMultipartUploadsResult>\
    <Upload><Key>unknown</Key><UploadId>1</UploadId></Upload>\
    <Upload><Key>strange</Key><UploadId>2</UploadId><Initiated>yesterday</Initiated></Upload>\
    <Upload><Key>future</Key><UploadId>3</UploadId><Initiated>9000-01-02T03:04:05.678+00:00</Initiated></Upload>\
    <Upload><Key>old</Key><UploadId>4</UploadId><Initiated>2020-01-02T03:04:05+00:00</Initiated></Upload>\
    </ListMultipartUploadsResult>";

fn service_with_uploads() -> ScriptedServer {
    ScriptedServer::start(|request, answer| {
        let buckets = "<ListAllMyBucketsResult><Buckets><Bucket><Name>bucket</Name></Bucket></Buckets></ListAllMyBucketsResult>";
        Reply::Respond(match request.operation {
            "Other" if request.query.contains_key("uploads") => ScriptedResponse::document(UPLOADS),
            "Other" => ScriptedResponse::document(buckets),
            _ => answer,
        })
    })
}

#[test]
fn uploads_at_a_service_expire_only_if_that_is_set() {
    let service = service_with_uploads();
    let aborted = || -> Vec<String> {
        service.requests_of("AbortMultipartUpload").into_iter().map(|request| request.key).collect()
    };
    let directory = tempfile::tempdir().unwrap();
    let serve_with = |more: &str| {
        write_settings(directory.path(), service.address, more);
        front(directory.path())
    };
    let mut server = serve_with("");
    // Uploads of other programs are listed without a time that the service does not give.
    let listed = {
        let query = vec![("uploads", String::new())];
        let request = Request { method: "GET", path: "bucket", query, ..Request::default() };
        S3::new(server.endpoint, root_key()).send(request).unwrap().text()
    };
    assert_eq!(
        (listed.matches("<UploadId>").count(), listed.matches("<Initiated>").count()),
        (4, 2),
        "{listed}"
    );
    std::thread::sleep(Duration::from_secs(2));
    assert!(server.terminate().unwrap().success(), "{}", server.logged());
    assert_eq!(aborted(), [""; 0]);

    let mut server = serve_with("[uploads]\nexpire_after = \"7d\"\n");
    eventually("the old upload expires", || !aborted().is_empty());
    std::thread::sleep(Duration::from_secs(1));
    assert!(server.terminate().unwrap().success(), "{}", server.logged());
    let aborted = aborted();
    assert!(aborted.iter().all(|key| key == "old"), "{aborted:?}");
}

/// The AWS CLI fails for a bucket without a time.
#[test]
fn bucket_without_a_creation_time_is_listed_as_of_1970() {
    let service = service_with_uploads();
    let (_directory, mut front) = front_of(&service);
    let listed = S3::new(front.endpoint, root_key()).get("").unwrap().text();
    assert!(listed.contains("<CreationDate>1970-01-01T00:00:00"), "{listed}");
    assert!(front.terminate().unwrap().success(), "{}", front.logged());
}

/// An error response in which everything is secret.
fn secret_refusal(status: u16) -> ScriptedResponse {
    let code = match status {
        301 => "PermanentRedirect",
        307 => "TemporaryRedirect",
        400 => "InvalidRequest",
        403 => "SignatureDoesNotMatch",
        404 => "NoSuchKey",
        409 => "OperationAborted",
        412 => "PreconditionFailed",
        416 => "InvalidRange",
        501 => "NotImplemented",
        507 => "InsufficientStorage",
        _ => "InternalError",
    };
    let more = "<Endpoint>secret-host.internal</Endpoint><Region>secret-region</Region>\
                <Resource>/secret-bucket/k</Resource><HostId>secret-id</HostId>";
    ScriptedResponse::error_with(status, code, "secret-host.internal says no", more)
        .with_header("Location", "http://secret-host.internal/bucket/k")
        .with_header("x-amz-bucket-region", "secret-region")
        .with_header("x-amz-request-id", "secret-id")
        .with_header("x-amz-id-2", "secret-id")
        .with_header("Server", "secret-server")
}

#[test]
fn error_responses_reveal_nothing_about_the_service() {
    let service = ScriptedServer::start(|request, answer| {
        let status = request.key.strip_prefix("status-").and_then(|status| status.parse().ok());
        Reply::Respond(status.map_or(answer, secret_refusal))
    });
    let (_directory, mut front) = front_of(&service);
    let mut client = S3::new(front.endpoint, root_key());
    let address = service.address.to_string();
    let check = |what: &str, response: &Response| {
        let shown = format!("{:?}\n{}", response.headers, response.text());
        for hidden in ["secret", "s3://", &*address] {
            assert!(!shown.contains(hidden), "{what} shows {hidden}: {shown}");
        }
    };
    for status in [301, 307, 400, 403, 404, 409, 412, 416, 429, 500, 501, 503, 507] {
        let path = format!("bucket/status-{status}");
        // Transient errors are retried with backoff, which would take long for all methods.
        let methods: &[&str] =
            if matches!(status, 429 | 500 | 503) { &["GET"] } else { &["GET", "HEAD", "PUT", "DELETE"] };
        for &method in methods {
            let body: &[u8] = if method == "PUT" { b"bytes" } else { b"" };
            let response = client.send(Request { method, path: &path, body, ..Request::default() }).unwrap();
            let what = format!("{method} {status}");
            assert!(response.status >= 300, "{what}: {}", response.status);
            check(&what, &response);
            if method == "GET" {
                assert!(response.text().contains("<Message>"), "{what}: {}", response.text());
            }
        }
        let keys = format!("<Delete><Object><Key>status-{status}</Key></Object></Delete>");
        let checksum = support::scripted_server::checksum(keys.as_bytes());
        let deleted = client
            .send(Request {
                method: "POST",
                path: "bucket",
                query: vec![("delete", String::new())],
                headers: vec![("x-amz-checksum-crc64nvme", checksum)],
                body: keys.as_bytes(),
            })
            .unwrap();
        assert!(deleted.status == 200 && deleted.text().contains("<Error>"), "{}", deleted.text());
        check(&format!("DeleteObjects {status}"), &deleted);
    }
    let missing = client.get("bucket/status-404").unwrap();
    assert!(missing.text().contains("<Message>The specified key does not exist.</Message>"));
    // The operator finds it in the log.
    let logged = front.logged();
    for said in ["secret-host.internal says no", "check the secret key"] {
        assert!(logged.contains(said), "{said} is not in\n{logged}");
    }
    assert!(front.terminate().unwrap().success(), "{logged}");
}
