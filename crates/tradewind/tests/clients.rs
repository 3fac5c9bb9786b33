//! Third-party clients against the real binary: the suite in `tests/clients` (boto3, aws-cli, rclone, s5cmd, mc, s3fs,
//! minio-js, the AWS SDK for JavaScript and plain sockets), on a new store and free ports, with versioning off, on and
//! suspended.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails")]

mod support;

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use http::{Method, Request, StatusCode};
use hyper::body::Incoming;
use support::http_server::{self, HttpServer};
use support::server::{Server, ServerSetup};

const DOMAIN: &str = "s3.tradewind.test";

const SETTINGS: &str = r#"
[bucket.e2e-public]
anonymous_read = true

[[access_key]]
id = "e2e-reader"
secret = "secret-of-the-reader"
permissions = "read"
buckets = ["e2e-shared"]

[[access_key]]
id = "e2e-writer"
secret = "secret-of-the-writer"
permissions = "read-write"
buckets = ["e2e-writer"]
"#;

/// The topics of the suite that depend on the versioning of their buckets.
const VERSIONED_TOPICS: &[&str] = &[
    "test_buckets.py",
    "test_checksums.py",
    "test_class.py",
    "test_clients_cli.py",
    "test_clients_go.py",
    "test_clients_js.py",
    "test_clients_s3fs.py",
    "test_conditions.py",
    "test_copy.py",
    "test_keys.py",
    "test_list.py",
    "test_metadata.py",
    "test_multi_delete.py",
    "test_multipart.py",
    "test_objects.py",
    "test_permissions.py",
    "test_presigned.py",
    "test_ranges.py",
    "test_tagging.py",
];

/// The topic that needs a service with slow copies.
const LONG_COPIES: &[&str] = &["test_long_copies.py"];

/// The time of a copy at that service: the server sends the head of its response after 5 s.
const LONG_OPERATION_TIME: Duration = Duration::from_secs(7);

/// One run of the suite.
#[derive(Debug, Clone, Copy)]
struct SuiteRun {
    /// The topics; all if empty.
    topics: &'static [&'static str],
    /// The versioning of the buckets; never enabled if empty.
    versioning: &'static str,
    /// The setting `server.presigned_sigv2`.
    presigned_sigv2: bool,
    /// True if the server's store is another server.
    is_over_service: bool,
}

/// All topics, without versions, on a local store.
const WHOLE_SUITE: SuiteRun =
    SuiteRun { topics: &[], versioning: "", presigned_sigv2: true, is_over_service: false };

/// The reason why the suite cannot run; `None` if it can.
fn missing() -> Option<String> {
    let runs = |module: &str| {
        Command::new("python3")
            .args(["-c", &format!("import {module}")])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map(|status| status.success())
    };
    if runs("sys").is_err() {
        return Some("python3 is not installed".to_owned());
    }
    let missing: Vec<&str> =
        ["pytest", "boto3"].into_iter().filter(|module| !runs(module).unwrap_or(false)).collect();
    (!missing.is_empty()).then(|| format!("python3 has no {}", missing.join(" and no ")))
}

/// Starts the server under test with the suite's settings and those in `more`.
fn start(directory: &Path, run: SuiteRun, more: &str, environment: &[(&str, &str)]) -> Server {
    std::fs::create_dir_all(directory).unwrap();
    let settings = directory.join("settings.toml");
    let server = format!("[server]\ndomain = \"{DOMAIN}\"\npresigned_sigv2 = {}\n", run.presigned_sigv2);
    std::fs::write(&settings, format!("{server}{SETTINGS}{more}")).unwrap();
    let mut start = ServerSetup::new(&directory.join("data"), &directory.join("log"))
        .flag("--config", settings.as_os_str());
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    start.environment.extend(environment);
    start.start().unwrap()
}

/// Starts a server whose store is the service at an address.
fn start_in_front(directory: &Path, run: SuiteRun, service: SocketAddr) -> Server {
    let root = support::server::root_key();
    let store =
        format!("\n[store.behind]\ntype = \"s3\"\nendpoint = \"http://{service}\"\nregion = \"us-east-1\"\n");
    let keys = [("AWS_ACCESS_KEY_ID", &*root.id), ("AWS_SECRET_ACCESS_KEY", &*root.secret)];
    start(&directory.join("front"), run, &store, &keys)
}

/// The command that runs the suite against a server.
fn suite(server: &Server, run: SuiteRun) -> Command {
    let root = support::server::root_key();
    let flag = |is_set: bool| if is_set { "1" } else { "" };
    let mut command = Command::new("python3");
    command
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--color=no"])
        .args(run.topics)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("TW_ENDPOINT", format!("http://{}", server.endpoint))
        .env("TW_ADMIN", format!("http://{}", server.admin))
        .env("TW_ACCESS_KEY", root.id)
        .env("TW_SECRET_KEY", root.secret)
        .env("TW_READONLY_ACCESS_KEY", "e2e-reader")
        .env("TW_READONLY_SECRET_KEY", "secret-of-the-reader")
        .env("TW_WRITER_ACCESS_KEY", "e2e-writer")
        .env("TW_WRITER_SECRET_KEY", "secret-of-the-writer")
        .env("TW_PUBLIC_BUCKET", "e2e-public")
        .env("TW_DOMAIN", DOMAIN)
        .env("TW_VERSIONING", run.versioning)
        .env("TW_NO_PRESIGNED_SIGV2", flag(!run.presigned_sigv2))
        .env("TW_OVER_SERVICE", flag(run.is_over_service))
        .env("TW_LONG_COPIES", flag(run.topics == LONG_COPIES))
        .stdin(Stdio::null());
    command
}

/// Runs the suite and terminates the server.
fn run_suite(server: &mut Server, run: SuiteRun) {
    let output = suite(server, run).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for line in text.lines().filter(|line| line.starts_with("SKIPPED")) {
        support::skip("clients", line);
    }
    assert!(
        output.status.success(),
        "{text}\n{}\nthe server's log:\n{}",
        String::from_utf8_lossy(&output.stderr),
        server.logged()
    );
    let versioning = if run.versioning.is_empty() { "Off" } else { run.versioning };
    let last = text.lines().last().unwrap_or_default();
    support::print_uncaptured(&format!("clients: versioning {versioning}: {last}"));
    let status = server.terminate().unwrap();
    assert!(status.success(), "{status}:\n{}", server.logged());
}

/// Runs the suite against a server with a local store.
fn test_local_store(run: SuiteRun) {
    if let Some(reason) = missing() {
        return support::skip("clients", &reason);
    }
    let directory = tempfile::tempdir().unwrap();
    run_suite(&mut start(directory.path(), run, "", &[]), run);
}

#[test]
fn third_party_clients_are_served() {
    test_local_store(WHOLE_SUITE);
}

#[test]
fn third_party_clients_are_served_with_versioning() {
    test_local_store(SuiteRun { topics: VERSIONED_TOPICS, versioning: "Enabled", ..WHOLE_SUITE });
}

/// Also with presigned URLs of Signature Version 2 switched off.
#[test]
fn third_party_clients_are_served_with_versioning_suspended() {
    let run = SuiteRun { topics: VERSIONED_TOPICS, versioning: "Suspended", ..WHOLE_SUITE };
    test_local_store(SuiteRun { presigned_sigv2: false, ..run });
}

/// The suite against a server with two volumes. The buckets with fixed names are in the second.
#[test]
fn third_party_clients_are_served_from_volumes() {
    if let Some(reason) = missing() {
        return support::skip("clients of volumes", &reason);
    }
    let topics =
        &["test_buckets.py", "test_copy.py", "test_list.py", "test_multipart.py", "test_permissions.py"];
    let run = SuiteRun { topics, ..WHOLE_SUITE };
    let volumes = "\n[store.ssd]\ntype = \"local\"\npath = \"ssd\"\n[store.disk]\ntype = \"local\"\npath = \"disk\"\n\
                   [volume.hot]\nstack = [\"ssd\"]\n[volume.archive]\nstack = [\"disk\"]\n\
                   [bucket.e2e-shared]\nvolume = \"archive\"\n[bucket.e2e-writer]\nvolume = \"archive\"\n";
    let directory = tempfile::tempdir().unwrap();
    let default = [("TRADEWIND_DEFAULT_VOLUME", "hot")];
    run_suite(&mut start(directory.path(), run, volumes, &default), run);
}

/// Delays copies and completions, and then rejects each whose key contains `fails`.
fn slow_service(behind: &Server) -> HttpServer {
    let behind = behind.endpoint;
    HttpServer::start(None, move |request: Request<Incoming>| async move {
        let uri = request.uri();
        let is_completion = request.method() == Method::POST
            && uri.query().is_some_and(|query| query.split('&').any(|field| field.starts_with("uploadId=")));
        if is_completion || request.headers().contains_key("x-amz-copy-source") {
            tokio::time::sleep(LONG_OPERATION_TIME).await;
            if uri.path().contains("fails") {
                return http_server::empty(StatusCode::FORBIDDEN);
            }
        }
        http_server::forward(request, behind).await
    })
}

/// Results and errors of copies and completions after the head of their response.
#[test]
fn clients_read_results_after_an_early_head() {
    if let Some(reason) = missing() {
        return support::skip("clients of long copies", &reason);
    }
    let run = SuiteRun { topics: LONG_COPIES, is_over_service: true, ..WHOLE_SUITE };
    let directory = tempfile::tempdir().unwrap();
    let mut behind = start(&directory.path().join("service"), run, "", &[]);
    let service = slow_service(&behind);
    let mut server = start_in_front(directory.path(), run, service.address);
    run_suite(&mut server, run);
    let status = behind.terminate().unwrap();
    assert!(status.success(), "{status}:\n{}", behind.logged());
}

/// The suite against a server whose store is another server.
#[test]
fn third_party_clients_are_served_from_a_service() {
    if let Some(reason) = missing() {
        return support::skip("clients over a service", &reason);
    }
    let run = SuiteRun { is_over_service: true, ..WHOLE_SUITE };
    let directory = tempfile::tempdir().unwrap();
    let mut service = start(&directory.path().join("service"), run, "", &[]);
    let mut server = start_in_front(directory.path(), run, service.endpoint);
    run_suite(&mut server, run);
    let status = service.terminate().unwrap();
    assert!(status.success(), "{status}:\n{}", service.logged());
}
