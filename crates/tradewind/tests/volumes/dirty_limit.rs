//! Writes at `max_dirty` while the service below is away or hangs: the client gets a 503 that says when to send them again,
//! its retries succeed, and nothing that was acknowledged is lost.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;

use super::support::content::content;
use super::support::s3::{Response, S3};
use super::support::server::{Server, ServerSetup, root_key};
use super::support::{eventually, skip};
use super::write_back::{before_service, dirty_objects};
use super::{Scene, client, metrics, put, read};

/// The largest object that is written back with the smallest `max_dirty`, which has room for eight.
const OBJECT_BYTES: usize = 8 << 20;

/// A server that writes back to a service, which can be stopped and started again.
struct Limited {
    scene: Scene,
    service: ServerSetup,
    server: Server,
    /// Numbers of the objects that were acknowledged.
    acknowledged: Vec<u64>,
}

impl Limited {
    /// Starts both. Returns the service, too.
    fn start() -> (Self, Server) {
        let scene = Scene::new("");
        let mut setup = ServerSetup::new(&scene.path("service"), &scene.path("service-log"));
        let service = setup.start().unwrap();
        let endpoint = service.endpoint.to_string();
        // It returns at the same address.
        setup.flags = ["--listen", &endpoint, "--admin", "127.0.0.1:0"].map(Into::into).to_vec();
        let back = "write = \"back\"";
        let settings = before_service(&endpoint)
            .replace(back, &format!("{back}, max_dirty = \"64MiB\""))
            .replace("[store.far]", "[limits]\nrequest_time = \"5s\"\ntransfer_time = \"5s\"\n[store.far]");
        std::fs::write(scene.settings(), settings).unwrap();
        let server = scene.start();
        let mut s3 = client(&server);
        put(&mut s3, "bkt", &[]);
        put(&mut s3, "bkt/first", b"first");
        eventually("the journal is empty", || dirty_objects(&metrics(&server)) == Some(0));
        (Self { scene, service: setup, server, acknowledged: Vec::new() }, service)
    }

    /// Writes until the limit is reached, and on until the rejection is the one of the limit.
    fn fill(&mut self) {
        let mut s3 = client(&self.server);
        eventually("a write is rejected because of the limit", || {
            let number = self.acknowledged.len() as u64;
            let response = s3.put(&format!("bkt/{number}"), &content(number, OBJECT_BYTES)).unwrap();
            if response.status == 200 {
                self.acknowledged.push(number);
                return false;
            }
            assert_unavailable(&response);
            response.code() == "SlowDown"
        });
        assert_eq!(self.acknowledged.len(), 8, "the journal has room for eight");
    }

    /// All that was acknowledged is served.
    fn check(&self) {
        let mut s3 = client(&self.server);
        for &number in &self.acknowledged {
            let is_same = read(&mut s3, &format!("bkt/{number}")) == content(number, OBJECT_BYTES);
            assert!(is_same, "object {number}");
        }
    }

    /// A client of the SDK that writes `bkt/sdk`, once it repeats its request. `None` without the SDK.
    fn begin_sdk(&self) -> Option<RetryingClient> {
        let has_boto3 = Command::new("python3").args(["-c", "import boto3"]).stderr(Stdio::null()).status();
        if !has_boto3.is_ok_and(|status| status.success()) {
            skip("retries at the limit of dirty data", "python3 has no boto3");
            return None;
        }
        Some(RetryingClient::start(&self.server))
    }

    /// The service is back: the SDK succeeds, and all is served, also after a kill.
    fn end(mut self, sdk: Option<RetryingClient>) {
        let has_sdk = sdk.is_some();
        sdk.into_iter().for_each(RetryingClient::end);
        let check = |limited: &Self| {
            limited.check();
            let mut s3 = client(&limited.server);
            assert_eq!(read(&mut s3, "bkt/first"), b"first");
            assert_eq!(s3.get("bkt/refused").unwrap().status, 404, "nothing of it was stored");
            if has_sdk {
                assert!(read(&mut s3, "bkt/sdk") == vec![b's'; OBJECT_BYTES]);
            }
        };
        check(&self);
        self.server.kill();
        self.server = self.scene.start();
        check(&self);
    }
}

/// A client of the SDK in a process of its own; dropping it ends it.
struct RetryingClient {
    child: Child,
}

impl RetryingClient {
    fn start(server: &Server) -> Self {
        let root = root_key();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/volumes/retrying_client.py");
        let child = Command::new("python3")
            .arg(script)
            .args([&format!("http://{}", server.endpoint), "bkt", "sdk", &OBJECT_BYTES.to_string()])
            .env("AWS_ACCESS_KEY_ID", root.id)
            .env("AWS_SECRET_ACCESS_KEY", root.secret)
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut client = Self { child };
        let mut line = String::new();
        BufReader::with_capacity(1, client.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        if line != "retrying\n" {
            let mut errors = String::new();
            client.child.stderr.as_mut().unwrap().read_to_string(&mut errors).unwrap();
            panic!("{line:?}: {errors}");
        }
        client
    }

    fn end(mut self) {
        let (mut attempts, mut errors) = (String::new(), String::new());
        self.child.stdout.as_mut().unwrap().read_to_string(&mut attempts).unwrap();
        self.child.stderr.as_mut().unwrap().read_to_string(&mut errors).unwrap();
        assert!(self.child.wait().unwrap().success(), "{errors}");
        assert!(attempts.trim().parse::<u32>().unwrap() > 1, "{attempts}");
    }
}

impl Drop for RetryingClient {
    fn drop(&mut self) {
        // Ignored: it has ended, or the test has failed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn assert_unavailable(response: &Response) {
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")), "{}", response.text());
}

/// A rejection that says what to do.
fn assert_limited(response: &Response) {
    assert_unavailable(response);
    let text = response.text();
    assert_eq!(response.code(), "SlowDown", "{text}");
    for part in ["journal", "Nothing was changed", "send the request again later"] {
        assert!(text.contains(part), "{text}");
    }
}

/// Writes that the limit rejects, and those that are too large for the journal.
fn assert_writes_are_rejected(server: &Server) {
    let mut s3: S3 = client(server);
    for size in [1 << 20, OBJECT_BYTES, OBJECT_BYTES + 1] {
        // Until a failure shows that the service is away, a write may reach its deadline.
        let mut response = s3.put("bkt/refused", &content(99, size)).unwrap();
        eventually("the service is taken for away", || {
            assert_unavailable(&response);
            let is_known = response.code() == "SlowDown";
            if !is_known {
                response = s3.put("bkt/refused", &content(99, size)).unwrap();
            }
            is_known
        });
        assert_limited(&response);
    }
    // Deletions need no room.
    assert_eq!(s3.delete("bkt/0").unwrap().status, 204);
    put(&mut s3, "bkt/0", &content(0, OBJECT_BYTES));
}

#[test]
fn write_at_the_limit_is_retried_until_the_service_is_back() {
    let (mut limited, mut service) = Limited::start();
    service.kill();
    limited.fill();
    assert_writes_are_rejected(&limited.server);
    limited.check();
    let sdk = limited.begin_sdk();
    let _service = limited.service.start().unwrap();
    limited.end(sdk);
}

#[test]
fn write_at_the_limit_is_retried_until_the_service_responds() {
    let (mut limited, service) = Limited::start();
    service.signal(Signal::STOP);
    limited.fill();
    assert_writes_are_rejected(&limited.server);
    limited.check();
    let sdk = limited.begin_sdk();
    service.signal(Signal::CONT);
    limited.end(sdk);
}
