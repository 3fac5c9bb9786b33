//! The server as a process: start, health, keys, the lock, shutdown, and error messages.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a panic is how a test fails")]

mod support;

#[path = "serve/classified.rs"]
mod classified;
#[path = "serve/lost.rs"]
mod lost;
#[path = "serve/lost_chunks.rs"]
mod lost_chunks;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use support::content::Content;
use support::leased_file::LeasedFile;
use support::s3::{Request, S3};
use support::server::{Server, ServerSetup, root_key, run, tradewind};
use support::sign::Credentials;
use support::{eventually, setup_with_small_segments};

struct TestDir {
    directory: tempfile::TempDir,
}

impl TestDir {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn start(&self) -> ServerSetup {
        ServerSetup::new(&self.directory.path().join("data"), &self.directory.path().join("log"))
    }
}

fn admin(server: &Server, path: &str) -> (u16, String) {
    let response = S3::anonymous(server.admin).get(path).unwrap();
    (response.status, response.text())
}

/// A client sees only that the response ends early; the log says which request it was, and why.
#[test]
fn a_body_that_fails_midway_is_logged_with_its_request() {
    let dir = TestDir::new();
    let start = dir.start();
    let mut server = start.start().unwrap();
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.put("first", &[]).unwrap().status, 200);
    let body = Content { id: 1, size: 3_000_000 }.bytes();
    assert_eq!(client.put("first/damaged", &body).unwrap().status, 200);
    let bulk = fs::read_dir(start.data.join("segments"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|extension| extension == "bulk"))
        .unwrap();
    let file = fs::OpenOptions::new().write(true).open(&bulk).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 4096], 2_500_000).unwrap();
    assert!(client.get("first/damaged").is_err(), "the connection is closed before the last byte");
    let entry = "request failed: its response ended early";
    eventually("the failure is logged", || server.logged().contains(entry));
    let logged = server.logged();
    let line = logged.lines().find(|line| line.contains(entry)).unwrap();
    let words = ["\"level\":\"WARN\"", "\"id\":", "\"operation\":\"GetObject\"", "its data is damaged"];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
    assert!(server.terminate().unwrap().success());
}

#[test]
fn the_server_starts_serves_and_stops() {
    let dir = TestDir::new();
    let mut server = dir.start().start().unwrap();
    assert_eq!(admin(&server, "health/live").0, 200);
    assert_eq!(admin(&server, "health/ready").0, 200);
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.put("first", &[]).unwrap().status, 200);
    let body = Content { id: 1, size: 300_000 }.bytes();
    assert_eq!(client.put("first/one", &body).unwrap().status, 200);
    assert_eq!(client.get("first/one").unwrap().body, body);
    let (status, metrics) = admin(&server, "metrics");
    assert!(status == 200 && metrics.contains("# TYPE tradewind_"), "{metrics}");
    for line in [
        "requests_total{store=\"local\",operation=\"put\",outcome=\"done\"} 1",
        "requests_total{store=\"local\",operation=\"get\",outcome=\"done\"} 1",
        "successful_requests_total{store=\"local\",operation=\"get\",up_to_bytes=\"524288\"} 1",
        "first_bytes_total{store=\"local\",operation=\"put\",up_to_bytes=\"524288\"} 1",
        "requests_in_flight{store=\"local\",operation=\"get\"} 0",
        "bytes_total{store=\"local\",direction=\"read\"} 300000",
        "bytes_total{store=\"local\",direction=\"write\"} 300000",
    ] {
        let line = format!("tradewind_store_{line}");
        assert!(metrics.lines().any(|l| l == line), "{line} is not in\n{metrics}");
    }
    assert!(server.terminate().unwrap().success(), "{}", server.logged());

    let mut server = dir.start().start().unwrap();
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.get("first/one").unwrap().body, body, "objects must survive a restart");
    server.signal(Signal::INT);
    assert!(server.wait().unwrap().success(), "{}", server.logged());
    for line in server.logged().lines() {
        let parsed: serde_json::Value = serde_json::from_str(line).unwrap();
        assert!(parsed["level"].is_string(), "without a terminal, every line of the log is JSON: {line}");
    }
}

#[test]
fn a_root_key_is_created_once_and_kept_private() {
    let dir = TestDir::new();
    let start = dir.start().without_root_key();
    let mut server = start.start().unwrap();
    let printed = server.printed().join("\n");
    let file = start.data.join("root-key");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let saved = fs::read_to_string(&file).unwrap();
    let value = |name: &str| saved.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
    let credentials =
        Credentials { id: value("AWS_ACCESS_KEY_ID="), secret: value("AWS_SECRET_ACCESS_KEY=") };
    assert!(printed.contains(&credentials.id) && printed.contains(&credentials.secret), "{printed}");
    assert!(printed.contains("aws s3 cp"), "{printed}");
    assert_eq!(S3::new(server.endpoint, credentials.clone()).put("first", &[]).unwrap().status, 200);
    let wrong = Credentials { secret: "wrong".repeat(8), ..credentials.clone() };
    assert_eq!(S3::new(server.endpoint, wrong).put("other", &[]).unwrap().code(), "SignatureDoesNotMatch");
    assert!(server.terminate().unwrap().success());

    let mut server = start.start().unwrap();
    let again = server.printed().join("\n");
    assert!(again.contains(&credentials.id) && !again.contains(&credentials.secret), "{again}");
    assert_eq!(S3::new(server.endpoint, credentials.clone()).get("first").unwrap().status, 200);
    assert!(server.terminate().unwrap().success());
    assert!(!server.logged().contains(&credentials.secret), "secrets must not be logged");
}

#[test]
fn only_one_process_may_open_a_data_directory() {
    let dir = TestDir::new();
    let start = dir.start();
    let mut server = start.start().unwrap();
    let second = ServerSetup { log: dir.directory.path().join("second"), ..start.clone() };
    let refused = second.start().unwrap_err().to_string();
    assert!(refused.contains("exit status: 1") && refused.contains("in use"), "{refused}");
    let checked = run(&["store", "check", start.data.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&checked.stderr).contains("in use"), "{checked:?}");
    server.kill();
    start.start().expect("the lock is released with the process");
}

#[test]
fn an_address_in_use_is_reported_with_the_flag() {
    let dir = TestDir::new();
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let output = tradewind()
        .args(["serve", "--listen", &address, "--admin", "127.0.0.1:0", "--data"])
        .arg(dir.directory.path().join("data"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(error.contains(&format!("cannot listen on {address}")) && error.contains("--listen"), "{error}");
}

#[test]
fn requests_in_flight_are_finished_at_shutdown() {
    let dir = TestDir::new();
    let mut server = dir.start().start().unwrap();
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.put("first", &[]).unwrap().status, 200);
    let body = Content { id: 2, size: 8 << 20 }.bytes();
    assert_eq!(client.put("first/large", &body).unwrap().status, 200);

    // A slow reader in the middle of a response.
    let settings = "[bucket.first]\nanonymous_read = true\n";
    assert!(server.terminate().unwrap().success());
    let file = dir.directory.path().join("settings.toml");
    fs::write(&file, settings).unwrap();
    let mut server = dir.start().flag("--config", file.as_os_str()).start().unwrap();
    let mut slow = TcpStream::connect(server.endpoint).unwrap();
    write!(slow, "GET /first/large HTTP/1.1\r\nhost: {}\r\n\r\n", server.endpoint).unwrap();
    let mut answer = vec![0; 1000];
    slow.read_exact(&mut answer).unwrap();
    server.signal(Signal::TERM);
    eventually("the listener closes at once", || TcpStream::connect(server.endpoint).is_err());
    slow.read_to_end(&mut answer).unwrap();
    assert!(answer.ends_with(&body), "{} bytes were received", answer.len());
    assert!(server.wait().unwrap().success(), "{}", server.logged());
}

#[test]
fn a_second_signal_stops_the_server_immediately() {
    let dir = TestDir::new();
    let mut server = dir.start().start().unwrap();
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.put("first", &[]).unwrap().status, 200);
    // An unfinished upload delays the shutdown.
    let mut stuck = TcpStream::connect(server.endpoint).unwrap();
    let head = format!("PUT /first/stuck HTTP/1.1\r\nhost: {}\r\n", server.endpoint);
    write!(stuck, "{head}content-length: 1000000\r\n\r\n").unwrap();
    let mut half_open = TcpStream::connect(server.endpoint).unwrap();
    half_open.write_all(b"GET /first/x HTTP/1.1\r\nhos").unwrap();
    server.signal(Signal::TERM);
    eventually("the listener closes", || TcpStream::connect(server.endpoint).is_err());
    let started = Instant::now();
    server.signal(Signal::TERM);
    let _ended = server.wait().unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "it took {:?}", started.elapsed());
    let mut server = dir.start().start().unwrap();
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.get("first/stuck").unwrap().status, 404, "an interrupted upload must not exist");
    assert!(server.terminate().unwrap().success());
}

/// The read of the settings file does not end, like that from a file server that does not respond.
#[test]
fn a_signal_ends_a_server_that_cannot_read_its_settings() {
    let dir = TestDir::new();
    let settings = dir.directory.path().join("settings.toml");
    fs::write(&settings, "").unwrap();
    let mut server = dir.start().flag("--config", settings.clone()).start().unwrap();
    let _lease = LeasedFile::new(&settings).unwrap();
    server.signal(Signal::HUP);
    // The reload waits for the end of the lease.
    std::thread::sleep(Duration::from_millis(300));
    server.signal(Signal::TERM);
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_budget_above_the_memory_limit_is_rejected() {
    let dir = TestDir::new();
    let data = dir.directory.path().join("data");
    let limited = ["lab", "client", "--memory", "100MiB", "--", env!("CARGO_BIN_EXE_tradewind")];
    let serve =
        ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let output = run(&[&limited[..], &serve].concat());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    if !error.contains("memory.budget") {
        println!("skipped: {error}");
        return;
    }
    let expected = "memory.budget = 128MiB, but this process may use only 100MiB";
    assert!(error.contains(expected), "{error}");
    assert!(!data.exists(), "nothing was created");
}

#[test]
fn unfinished_uploads_expire() {
    let dir = TestDir::new();
    let mut start = dir.start();
    start.environment.push(("TRADEWIND_UPLOADS_EXPIRE_AFTER".to_owned(), "1s".to_owned()));
    let mut server = start.start().unwrap();
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.put("first", &[]).unwrap().status, 200);
    let uploads = vec![("uploads", String::new())];
    let begin = Request { method: "POST", path: "first/x", query: uploads.clone(), ..Request::default() };
    assert_eq!(client.send(begin).unwrap().status, 200);
    eventually("an unfinished upload expires", || {
        let list = Request { method: "GET", path: "first", query: uploads.clone(), ..Request::default() };
        let listed = client.send(list).unwrap();
        assert_eq!(listed.status, 200, "{}", listed.text());
        !listed.text().contains("<UploadId>")
    });
    assert!(server.terminate().unwrap().success());
}

#[test]
fn usage_and_settings_errors_have_exit_status_two() {
    let dir = TestDir::new();
    let file = dir.directory.path().join("settings.toml");
    fs::write(&file, "[server]\nlisen = \"127.0.0.1:1\"\n").unwrap();
    let settings = run(&["serve", "--config", file.to_str().unwrap()]);
    assert_eq!(settings.status.code(), Some(2));
    let error = String::from_utf8_lossy(&settings.stderr).into_owned();
    assert!(error.contains("settings.toml:2") && error.contains("did you mean \"listen\""), "{error}");
    assert_eq!(run(&["serve", "--listen", "nowhere"]).status.code(), Some(2));
    assert_eq!(run(&["bench"]).status.code(), Some(2));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    let nothing = run(&["store", "check", dir.directory.path().join("nothing").to_str().unwrap()]);
    assert_eq!(nothing.status.code(), Some(1));
    assert!(!dir.directory.path().join("nothing").exists(), "a check must not create anything");
}

#[test]
fn settings_show_names_sources_and_hides_secrets() {
    let output = tradewind()
        .args(["settings", "show", "--json", "--listen", "127.0.0.1:7"])
        .env("TRADEWIND_SERVER_ADMIN", "127.0.0.1:8")
        .env("TRADEWIND_ACCESS_KEY", "somebody")
        .env("TRADEWIND_SECRET_KEY", "hush-hush-hush")
        .output()
        .unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("hush"), "{text}");
    let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
    let find = |key: &str| shown.as_array().unwrap().iter().find(|line| line["key"] == key).unwrap().clone();
    assert_eq!(find("server.listen")["location"], "--listen");
    assert_eq!(find("server.admin")["location"], "TRADEWIND_SERVER_ADMIN");
    assert_eq!(find("data")["source"], "default");
    assert_eq!(find("root_key.id")["value"], "somebody");
}

/// Opens `count` unused connections.
fn unused(server: &Server, count: usize) -> Vec<TcpStream> {
    (0..count).map(|_| TcpStream::connect(server.endpoint).unwrap()).collect()
}

#[test]
fn unused_connections_leave_open_files_to_the_store() {
    let dir = TestDir::new();
    let data = dir.directory.path().join("data");
    let mut start = setup_with_small_segments(dir.directory.path(), &data);
    start.open_files = Some(64);
    let mut server = start.start().unwrap();
    let logged = server.logged();
    assert!(logged.contains("fewer connections") && logged.contains("\"configured\":10000"), "{logged}");
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.put("first", &[]).unwrap().status, 200);
    let mut held = unused(&server, 100);
    // The first connection was evicted, since it had been idle longest.
    client = S3::new(server.endpoint, root_key());
    // Each MiB is half a segment. The store needs more files than are reserved for it and gets them from connections.
    let body = Content { id: 3, size: 1 << 20 }.bytes();
    for n in 0..48 {
        if n > 40 {
            // A client that reconnects is admitted.
            held.extend(unused(&server, 20));
            client = S3::new(server.endpoint, root_key());
        }
        let stored = client.put(&format!("first/{n}"), &body).unwrap();
        assert_eq!(stored.status, 200, "{n}: {}\n{}", stored.text(), server.logged());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(admin(&server, "health/ready").0, 200);
    let mut client = S3::new(server.endpoint, root_key());
    for n in 0..48 {
        assert_eq!(client.get(&format!("first/{n}")).unwrap().body, body, "{n}");
    }
    assert!(server.terminate().unwrap().success(), "{}", server.logged());
}

#[test]
fn too_few_open_files_are_reported_at_the_start() {
    let dir = TestDir::new();
    let start = ServerSetup { open_files: Some(40), ..dir.start() };
    let refused = start.start().unwrap_err().to_string();
    assert!(refused.contains("exit status: 1"), "{refused}");
    assert!(refused.contains("may open 40 files") && refused.contains("ulimit -n"), "{refused}");
}

/// The C library and the allocator map much more than they use.
#[test]
fn the_server_serves_with_500_mib_of_address_space() {
    let dir = TestDir::new();
    let mut start = ServerSetup { address_space_kib: Some(500 << 10), ..dir.start() };
    start.environment.push(("TRADEWIND_SERVER_WORKERS".to_owned(), "4".to_owned()));
    let mut server = start.start().unwrap();
    assert_eq!(S3::new(server.endpoint, root_key()).put("first", &[]).unwrap().status, 200);
    let body = Content { id: 1, size: 3_000_000 }.bytes();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (endpoint, body) = (server.endpoint, &body);
            scope.spawn(move || {
                let mut client = S3::new(endpoint, root_key());
                let key = format!("first/{number}");
                assert_eq!(client.put(&key, body).unwrap().status, 200);
                assert!(client.get(&key).unwrap().body == *body);
            });
        }
    });
    assert!(server.terminate().unwrap().success(), "{}", server.logged());
}

#[test]
fn too_little_address_space_is_reported_at_the_start() {
    let dir = TestDir::new();
    let mut start = ServerSetup { address_space_kib: Some(200 << 10), ..dir.start() };
    start.environment.push(("TRADEWIND_SERVER_WORKERS".to_owned(), "4".to_owned()));
    let refused = start.start().unwrap_err().to_string();
    assert!(refused.contains("exit status: 1"), "{refused}");
    let reason =
        "may map only 200MiB of memory (ulimit -v); lower the budget, or raise the limit to at least 491MiB";
    assert!(refused.contains(reason), "{refused}");
}

#[test]
fn settings_file_that_is_a_fifo_is_rejected() {
    let dir = TestDir::new();
    let fifo = dir.directory.path().join("settings.toml");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for command in [&["serve"][..], &["settings", "check"]] {
        let ended = run(&[command, &["--config", fifo.to_str().unwrap()]].concat());
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains("it is a fifo, not a regular file; name a regular file"), "{said}");
    }
}

#[test]
fn unfinished_heads_take_little_memory() {
    let dir = TestDir::new();
    let mut server = dir.start().start().unwrap();
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.put("first", &[]).unwrap().status, 200);
    let before = server.resident();
    let head = format!("GET /first/x HTTP/1.1\r\nhost: a\r\nlong: {}", "v".repeat(35_000));
    let mut held = Vec::new();
    for _ in 0..600 {
        let mut socket = TcpStream::connect(server.endpoint).unwrap();
        // The connection may be rejected before everything is sent.
        let _sent = socket.write_all(head.as_bytes());
        held.push(socket);
    }
    let started = Instant::now();
    let mut client = S3::new(server.endpoint, root_key());
    assert_eq!(client.get("first/x").unwrap().status, 404);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    // Without a limit, each connection would take 125 KiB.
    let more = server.peak_resident().saturating_sub(before);
    assert!(more < 32 << 20, "{} KiB more", more >> 10);
    assert!(server.terminate().unwrap().success(), "{}", server.logged());
}
