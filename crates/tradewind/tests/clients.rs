//! Third-party clients against the real binary: the suite in `tests/clients` (boto3, aws-cli, rclone and plain
//! sockets), on a new store and free ports.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::server::{Server, ServerSetup};

const SETTINGS: &str = r#"
[server]
domain = "s3.tradewind.test"

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
fn start(directory: &Path, more: &str, environment: &[(&str, &str)]) -> Server {
    std::fs::create_dir_all(directory).unwrap();
    let settings = directory.join("settings.toml");
    std::fs::write(&settings, format!("{SETTINGS}{more}")).unwrap();
    let mut start = ServerSetup::new(&directory.join("data"), &directory.join("log"))
        .flag("--config", settings.as_os_str());
    let environment = environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    start.environment.extend(environment);
    start.start().unwrap()
}

/// Runs the suite and terminates the server.
fn run_suite(server: &mut Server, is_over_service: bool) {
    let root = support::server::root_key();
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients");
    let output = Command::new("python3")
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--color=no"])
        .current_dir(suite)
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
        .env("TW_DOMAIN", "s3.tradewind.test")
        .env("TW_OVER_SERVICE", if is_over_service { "1" } else { "" })
        .stdin(Stdio::null())
        .output()
        .unwrap();
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
    support::print_uncaptured(&format!("clients: {}", text.lines().last().unwrap_or_default()));
    let status = server.terminate().unwrap();
    assert!(status.success(), "{status}:\n{}", server.logged());
}

#[test]
fn third_party_clients_are_served() {
    if let Some(reason) = missing() {
        return support::skip("clients", &reason);
    }
    let directory = tempfile::tempdir().unwrap();
    run_suite(&mut start(directory.path(), "", &[]), false);
}

/// The suite against a server whose store is another server.
#[test]
fn third_party_clients_are_served_from_a_service() {
    if let Some(reason) = missing() {
        return support::skip("clients over a service", &reason);
    }
    let directory = tempfile::tempdir().unwrap();
    let mut service = start(&directory.path().join("service"), "", &[]);
    let root = support::server::root_key();
    let store = format!(
        "\n[store.behind]\ntype = \"s3\"\nendpoint = \"http://{}\"\nregion = \"us-east-1\"\n",
        service.endpoint
    );
    let keys = [("AWS_ACCESS_KEY_ID", &*root.id), ("AWS_SECRET_ACCESS_KEY", &*root.secret)];
    let mut server = start(&directory.path().join("front"), &store, &keys);
    run_suite(&mut server, true);
    let status = service.terminate().unwrap();
    assert!(status.success(), "{status}:\n{}", service.logged());
}
