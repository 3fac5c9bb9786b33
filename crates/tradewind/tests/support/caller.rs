//! Somebody who calls the commands that speak with a store: in a directory of their own, with keys in their
//! environment and nothing else that could set something.

use std::io::{Read, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;

use super::server::{root_key, tradewind};

/// A command that takes longer is stopped: the test has failed.
const PATIENCE: Duration = Duration::from_secs(40);
/// More than any command of the tests prints. What prints more is cut off, and notices.
const MOST_PRINTED: u64 = 96 << 20;

/// Who calls.
#[derive(Debug)]
pub struct Caller {
    directory: tempfile::TempDir,
    endpoint: SocketAddr,
    /// Variables of their commands.
    pub environment: Vec<(String, String)>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    /// What it complained of, where the store's address is written as `HOST`.
    pub err: String,
}

impl Caller {
    /// Calls the store at an address with the tests' root key.
    pub fn new(endpoint: SocketAddr) -> Self {
        let root = root_key();
        let environment = [
            ("AWS_ENDPOINT_URL_S3", format!("http://{endpoint}")),
            ("AWS_ACCESS_KEY_ID", root.id),
            ("AWS_SECRET_ACCESS_KEY", root.secret),
            ("AWS_REGION", "us-east-1".to_owned()),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Self { directory: tempfile::tempdir().unwrap(), endpoint, environment }
    }

    /// The same with a variable set.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same with settings.
    pub fn configured(self, settings: &str) -> Self {
        self.write("settings.toml", settings);
        let path = self.path("settings.toml");
        self.with("TRADEWIND_CONFIG", path.to_str().unwrap())
    }

    /// Where the store is that they call.
    pub const fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// The directory that commands run in.
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.root().join(name)
    }

    /// Writes a file, with the directories above it.
    pub fn write(&self, name: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        self.begin(arguments).end()
    }

    /// Runs a command that must succeed and complain of nothing; answers what it printed.
    pub fn done(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert!(ran.status.success() && ran.err.is_empty(), "{arguments:?}: {ran:?}");
        String::from_utf8(ran.out).unwrap()
    }

    /// Runs a command that must fail, and complain of just this.
    pub fn fails(&self, arguments: &[&str], complaints: &[&str]) {
        let ran = self.run(arguments);
        let said: Vec<&str> = ran.err.lines().collect();
        let complaints: Vec<String> = complaints.iter().map(|line| format!("tradewind: {line}")).collect();
        assert_eq!(said, complaints, "{arguments:?}");
        assert_eq!(ran.status.code(), Some(1), "{arguments:?}");
    }

    /// What a store knows of an object.
    pub fn known(&self, place: &str) -> Json {
        serde_json::from_str(&self.done(&["stat", "--json", place])).unwrap()
    }

    /// What an object holds.
    pub fn read(&self, place: &str) -> Vec<u8> {
        let ran = self.run(&["cat", place]);
        assert!(ran.status.success() && ran.err.is_empty(), "{place}: {}", ran.err);
        ran.out
    }

    /// The keys below a place, in the order in which they are listed.
    pub fn keys(&self, place: &str) -> Vec<String> {
        self.sizes(place).into_iter().map(|(key, _)| key).collect()
    }

    /// The same with the sizes of their objects.
    pub fn sizes(&self, place: &str) -> Vec<(String, u64)> {
        let read = |line: &str| {
            let line: Json = serde_json::from_str(line).unwrap();
            (line["key"].as_str().unwrap().to_owned(), line["size"].as_u64().unwrap())
        };
        self.done(&["ls", "-r", "--json", place]).lines().map(read).collect()
    }

    /// Starts a command.
    pub fn begin(&self, arguments: &[&str]) -> Running {
        let mut running = self.begin_unread(arguments);
        running.out = Some(collect(running.child.stdout.take().unwrap()));
        running
    }

    /// Starts a command whose output nobody reads.
    pub fn begin_unread(&self, arguments: &[&str]) -> Running {
        let mut command = tradewind();
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let is_set_up = ["AWS_", "OS_", "ST_"].iter().any(|prefix| text.starts_with(prefix));
            if is_set_up || text == "SSL_CERT_FILE" {
                command.env_remove(name);
            }
        }
        // There is no such directory, and so no ~/.aws.
        command.env("HOME", self.path("home")).envs(self.environment.iter().cloned());
        command.args(arguments).current_dir(self.root());
        Running::new(command, self.endpoint)
    }
}

/// A command under way; dropping it kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    pub stdin: Option<ChildStdin>,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
    endpoint: SocketAddr,
    deadline: Instant,
}

impl Running {
    fn new(mut command: Command, endpoint: SocketAddr) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let err = Some(collect(child.stderr.take().unwrap()));
        let stdin = child.stdin.take();
        Self { child, stdin, out: None, err, endpoint, deadline: Instant::now() + PATIENCE }
    }

    /// Gives it something to read, and the end of it.
    pub fn feed(mut self, bytes: &[u8]) -> Self {
        self.stdin.take().unwrap().write_all(bytes).unwrap();
        self
    }

    /// Its output, of one that nobody reads.
    pub fn take_out(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    pub fn end(mut self) -> Ran {
        drop(self.stdin.take());
        let status = self.wait();
        let out = self.out.take().map(|out| out.join().unwrap()).unwrap_or_default();
        let err = self.err.take().unwrap().join().unwrap();
        let err = String::from_utf8(err).unwrap().replace(&self.endpoint.to_string(), "HOST");
        Ran { status, out, err }
    }

    fn wait(&mut self) -> ExitStatus {
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < self.deadline, "a command did not end in time");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended, or the test has failed and says more than this could.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        from.take(MOST_PRINTED).read_to_end(&mut all).unwrap();
        all
    })
}
