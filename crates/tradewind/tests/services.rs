//! The transfer commands against third-party servers: each installed server is started on a free port, gets the same
//! requests, and is stopped. `bench/peers` builds MinIO and versitygw if Go is installed; radosgw runs with its own
//! Ceph cluster.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod support;

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::ceph::{Ceph, DOMAIN};
use support::command_runner::CommandRunner;
use support::content::content;
use support::server::{Server, ServerSetup, root_key};
use support::sign::Credentials;

/// Timeout for the start of a server.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A third-party server; dropping it kills it.
struct Service {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The path of a program: built for the benchmarks, or from `PATH`. `None` if it is not installed.
fn find(program: &str) -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/.cache/bin").join(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(built)
        .chain(std::env::split_paths(&path).map(|directory| directory.join(program)))
        .find(|candidate| candidate.is_file())
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Starts a program; `configure` sets its address and directory. `None` if it is not installed.
fn start(program: &str, configure: impl FnOnce(&mut Command, SocketAddr, &Path)) -> Option<Service> {
    let Some(path) = find(program) else {
        support::skip("services", &format!("{program} is not installed"));
        return None;
    };
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    let address = free_address();
    let mut command = Command::new(path);
    configure(&mut command, address, &data);
    let log = File::create(directory.path().join("log")).unwrap();
    command.env("HOME", directory.path()).current_dir(directory.path());
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let child = command.spawn().unwrap();
    let service = Service { child, address, _directory: directory };
    let started = Instant::now();
    while TcpStream::connect(address).is_err() {
        let log = || fs::read_to_string(service._directory.path().join("log")).unwrap_or_default();
        assert!(started.elapsed() < TIMEOUT, "{program} does not accept connections: {}", log());
        std::thread::sleep(Duration::from_millis(50));
    }
    Some(service)
}

/// Starts a Tradewind server and adds it to the caller's settings as `ours`.
fn with_tradewind_server(caller: CommandRunner) -> (Server, CommandRunner) {
    let root = root_key();
    let ours = ServerSetup::new(&caller.path("ours"), &caller.path("ours.log")).start().unwrap();
    let keys = format!("[ours]\naws_access_key_id = {}\naws_secret_access_key = {}\n", root.id, root.secret);
    caller.write("home/.aws/credentials", keys);
    let endpoint = format!("endpoint = \"http://{}\"", ours.endpoint);
    let caller =
        caller.with_settings(&format!("[store.ours]\ntype = \"s3\"\nprofile = \"ours\"\n{endpoint}\n"));
    (ours, caller)
}

/// Copies everything in the bucket to a Tradewind server and back, large objects in parts. `keeps_checksums` is false
/// for servers that store no checksums to compare.
fn check_copies_between_servers(caller: &CommandRunner, keeps_checksums: bool) {
    let done = |command: &[&str]| caller.run_ok(&[command, &["--chunk-size", "5MiB"]].concat());
    caller.run_ok(&["mb", "ours://bucket"]);
    caller.run_ok(&["mb", "s3://back"]);
    done(&["cp", "-r", "s3://bucket", "ours://bucket"]);
    done(&["cp", "-r", "ours://bucket", "s3://back"]);
    assert_eq!(caller.sizes("s3://bucket"), caller.sizes("ours://bucket"));
    assert_eq!(caller.sizes("s3://bucket"), caller.sizes("s3://back"));
    for key in ["large", "tree/a.txt", "tree/z/large"] {
        let bytes = caller.read(&format!("s3://bucket/{key}"));
        assert!(!bytes.is_empty() && bytes == caller.read(&format!("ours://bucket/{key}")), "{key}");
        assert!(bytes == caller.read(&format!("s3://back/{key}")), "{key}");
    }
    if keeps_checksums {
        for to in ["ours://bucket", "s3://back"] {
            let ended = done(&["sync", "--checksum", "--delete", "--json", "s3://bucket", to]);
            let ended: serde_json::Value = serde_json::from_str(&ended).unwrap();
            assert_eq!((&ended["copied"], &ended["removed"]), (&0.into(), &0.into()), "to {to}");
        }
    }
    caller.run_ok(&["rm", "-r", "s3://back"]);
    caller.run_ok(&["rb", "s3://back"]);
}

/// Checks all transfer commands on a server.
fn check_all_commands(caller: CommandRunner, keeps_checksums: bool) {
    let (_ours, caller) = with_tradewind_server(caller);
    // A server that accepts connections may not be ready yet.
    let started = Instant::now();
    while !caller.run(&["mb", "s3://bucket"]).status.success() {
        assert!(started.elapsed() < TIMEOUT, "{:?}", caller.run(&["mb", "s3://bucket"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    let sizes = [
        ("a.txt", 5),
        ("a/b", 0),
        ("a/c d+e&f", 1000),
        ("z/large", 9 << 20),
        ("\u{e9}/\u{65e5}.jpg", 300_000),
    ];
    for (n, (name, size)) in sizes.iter().enumerate() {
        caller.write(format!("tree/{name}"), content(n as u64 + 1, *size));
    }
    caller.set_old("tree");
    caller.run_ok(&["cp", "-r", "tree", "s3://bucket/tree"]);
    assert_eq!(caller.keys("s3://bucket/tree/"), sizes.map(|(name, _)| format!("tree/{name}")));
    caller.run_ok(&["cp", "-r", "s3://bucket/tree/", "back"]);
    for (name, _) in &sizes {
        let (there, here) = (caller.path(format!("tree/{name}")), caller.path(format!("back/{name}")));
        assert!(fs::read(there).unwrap() == fs::read(here).unwrap(), "{name}");
    }
    assert_eq!(caller.run_ok(&["sync", "--dry-run", "--delete", "tree", "s3://bucket/tree"]), "");
    fs::remove_file(caller.path("tree/a/b")).unwrap();
    caller.write("tree/a.txt", "longer than before");
    caller.run_ok(&["sync", "--delete", "tree", "s3://bucket/tree"]);
    assert_eq!(caller.run_ok(&["cat", "s3://bucket/tree/a.txt"]), "longer than before");
    assert!(!caller.run(&["stat", "s3://bucket/tree/a/b"]).status.success());

    // In parts: uploads from a file and a pipe, downloads to a file and a pipe, and copies within the store.
    let large = content(9, (16 << 20) + 3);
    caller.write("large", &large);
    let parts = ["--chunk-size", "5MiB"];
    caller.run_ok(&[&["cp", "large", "s3://bucket/large"], &parts[..]].concat());
    caller.run_ok(&[&["cp", "s3://bucket/large", "large.back"], &parts[..]].concat());
    assert!(fs::read(caller.path("large.back")).unwrap() == large);
    let sent = caller
        .spawn(&[&["cp", "-", "s3://bucket/piped"], &parts[..]].concat())
        .with_stdin(&large)
        .wait_for_output();
    assert!(sent.status.success(), "{sent:?}");
    assert!(caller.read("s3://bucket/piped") == large);
    caller.run_ok(&["cp", "s3://bucket/large", "s3://bucket/copied/"]);
    assert_eq!(caller.stat("s3://bucket/copied/large")["size"], large.len());

    caller.write("logs/one", "first\nsecond needle\n");
    caller.write("logs/two", "nothing\n");
    caller.run_ok(&["cp", "-r", "logs", "s3://bucket/logs"]);
    assert_eq!(
        caller.run_ok(&["grep", "--sort", "needle", "s3://bucket/logs/"]),
        "s3://bucket/logs/one:2:second needle\n"
    );
    check_copies_between_servers(&caller, keeps_checksums);
    assert!(!caller.run(&["rb", "s3://bucket"]).status.success(), "it is not empty");
    caller.run_ok(&["rm", "-r", "s3://bucket"]);
    caller.run_ok(&["rb", "s3://bucket"]);
    assert_eq!(caller.run(&["cat", "s3://bucket/large"]).status.code(), Some(1));
}

/// Switches a caller to virtual-hosted addressing. The names need not resolve: connections go to the endpoint.
fn with_buckets_as_hosts(caller: CommandRunner) -> CommandRunner {
    let port = caller.endpoint().port();
    caller.write("home/.aws/config", "[default]\ns3 =\n  addressing_style = virtual\n");
    caller.with_variable("AWS_ENDPOINT_URL_S3", &format!("http://{DOMAIN}:{port}"))
}

#[test]
fn commands_work_with_tradewind() {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("settings.toml");
    fs::write(&settings, format!("[server]\ndomain = {DOMAIN:?}\n")).unwrap();
    let start = ServerSetup::new(&directory.path().join("data"), &directory.path().join("log"));
    let server = start.flag("--config", settings).start().unwrap();
    check_all_commands(CommandRunner::new(server.endpoint), true);
    check_all_commands(with_buckets_as_hosts(CommandRunner::new(server.endpoint)), true);
}

#[test]
fn commands_work_with_minio() {
    let root = root_key();
    let service = start("minio", |command, address, data| {
        command.args(["server", "--quiet", "--address", &address.to_string()]).arg(data);
        command.env("MINIO_ROOT_USER", root.id).env("MINIO_ROOT_PASSWORD", root.secret);
    });
    if let Some(service) = service {
        check_all_commands(CommandRunner::new(service.address), true);
    }
}

#[test]
fn commands_work_with_versitygw() {
    let root = root_key();
    let service = start("versitygw", |command, address, data| {
        command.args(["--port", &address.to_string(), "posix"]).arg(data);
        command.env("ROOT_ACCESS_KEY", root.id).env("ROOT_SECRET_KEY", root.secret);
    });
    if let Some(service) = service {
        check_all_commands(CommandRunner::new(service.address), true);
    }
}

#[test]
fn commands_work_with_radosgw() {
    if let Some(ceph) = Ceph::start("services") {
        let Credentials { id, secret } = &ceph.key;
        let caller = || {
            let caller = CommandRunner::new(ceph.address).with_variable("AWS_ACCESS_KEY_ID", id);
            caller.with_variable("AWS_SECRET_ACCESS_KEY", secret)
        };
        check_all_commands(caller(), false);
        check_all_commands(with_buckets_as_hosts(caller()), false);
    }
}
