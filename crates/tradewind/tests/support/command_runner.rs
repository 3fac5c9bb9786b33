//! A runner of commands that access a store: in a temporary directory, with keys in the environment and no other
//! configuration.

use std::fs::File;
use std::io::{Read, Write as _};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value as Json;

use super::server::{root_key, tradewind};

/// Timeout of a command, on a loaded machine too.
const TIMEOUT: Duration = Duration::from_secs(120);
/// The maximum output of a command; its pipe is closed after that.
const MAX_OUTPUT_BYTES: u64 = 96 << 20;

/// A runner of commands.
#[derive(Debug)]
pub struct CommandRunner {
    directory: tempfile::TempDir,
    endpoint: SocketAddr,
    /// Environment variables of the commands.
    pub environment: Vec<(String, String)>,
    /// The limit of open files of the commands.
    open_files: Option<u32>,
    /// The program that runs the commands, and its arguments.
    wrapper: Vec<String>,
}

/// The result of a command.
#[derive(Debug)]
pub struct CommandOutput {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    /// Its standard error, with the store's address replaced by `HOST`.
    pub err: String,
}

impl CommandRunner {
    /// A runner for the store at an address, with the tests' root key.
    pub fn new(endpoint: SocketAddr) -> Self {
        let root = root_key();
        let environment = [
            ("AWS_ENDPOINT_URL_S3", format!("http://{endpoint}")),
            ("AWS_ACCESS_KEY_ID", root.id),
            ("AWS_SECRET_ACCESS_KEY", root.secret),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value)).to_vec();
        Self {
            directory: tempfile::tempdir().unwrap(),
            endpoint,
            environment,
            open_files: None,
            wrapper: Vec::new(),
        }
    }

    /// Limits the open files.
    pub fn with_open_files(self, open_files: u32) -> Self {
        Self { open_files: Some(open_files), ..self }
    }

    /// Runs the commands by another program. Its last argument precedes the command.
    pub fn set_wrapper(&mut self, words: &[&str]) {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
    }

    /// Sets an environment variable.
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.retain(|(known, _)| known != name);
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the settings file.
    pub fn with_settings(self, settings: &str) -> Self {
        self.write("settings.toml", settings);
        let path = self.path("settings.toml");
        self.with_variable("TRADEWIND_CONFIG", path.to_str().unwrap())
    }

    /// The address of the store.
    pub const fn endpoint(&self) -> SocketAddr {
        self.endpoint
    }

    /// The directory that commands run in.
    pub fn directory_path(&self) -> &Path {
        self.directory.path()
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory_path().join(name)
    }

    /// Writes a file and creates its parent directories.
    pub fn write(&self, name: impl AsRef<Path>, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// Makes the files of a tree as old as an hour, so that they are certainly older than their copies.
    pub fn set_old(&self, root: impl AsRef<Path>) {
        for entry in std::fs::read_dir(self.path(root)).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                self.set_old(&path);
            } else {
                let old = SystemTime::now() - Duration::from_secs(3600);
                File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
            }
        }
    }

    /// Runs a command to its end.
    pub fn run(&self, arguments: &[&str]) -> CommandOutput {
        self.spawn(arguments).wait_for_output()
    }

    /// Runs a command that must succeed without output on standard error. Returns its standard output.
    pub fn run_ok(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert!(ran.status.success() && ran.err.is_empty(), "{arguments:?}: {ran:?}");
        String::from_utf8(ran.out).unwrap()
    }

    /// Runs a command that must fail with exactly these errors.
    pub fn run_failing(&self, arguments: &[&str], complaints: &[&str]) {
        let ran = self.run(arguments);
        let errors: Vec<&str> = ran.err.lines().collect();
        let complaints: Vec<String> = complaints.iter().map(|line| format!("tradewind: {line}")).collect();
        assert_eq!(errors, complaints, "{arguments:?}");
        assert_eq!(ran.status.code(), Some(1), "{arguments:?}");
    }

    /// The metadata of an object, from `stat`.
    pub fn stat(&self, location: &str) -> Json {
        serde_json::from_str(&self.run_ok(&["stat", "--json", location])).unwrap()
    }

    /// The bytes of an object.
    pub fn read(&self, location: &str) -> Vec<u8> {
        let ran = self.run(&["cat", location]);
        assert!(ran.status.success() && ran.err.is_empty(), "{location}: {}", ran.err);
        ran.out
    }

    /// The keys below a location, in listing order.
    pub fn keys(&self, location: &str) -> Vec<String> {
        self.sizes(location).into_iter().map(|(key, _)| key).collect()
    }

    /// The keys and sizes of the objects below a location, in listing order.
    pub fn sizes(&self, location: &str) -> Vec<(String, u64)> {
        let read = |line: &str| {
            let line: Json = serde_json::from_str(line).unwrap();
            (line["key"].as_str().unwrap().to_owned(), line["size"].as_u64().unwrap())
        };
        self.run_ok(&["ls", "-r", "--json", location]).lines().map(read).collect()
    }

    /// Starts a command.
    pub fn spawn(&self, arguments: &[&str]) -> RunningCommand {
        let mut running = self.spawn_unread(arguments);
        running.out = Some(collect(running.child.stdout.take().unwrap()));
        running
    }

    /// Starts a command without reading its output.
    pub fn spawn_unread(&self, arguments: &[&str]) -> RunningCommand {
        let mut command = tradewind();
        if let Some(open_files) = self.open_files {
            let program = command.get_program().to_owned();
            command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {open_files} && exec \"$0\" \"$@\"")]).arg(program);
        }
        if let [wrapper, arguments @ ..] = &self.wrapper[..] {
            let program = command.get_program().to_owned();
            command = Command::new(wrapper);
            command.args(arguments).arg(program);
        }
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let is_configuration = ["AWS_", "OS_", "ST_"].iter().any(|prefix| text.starts_with(prefix));
            if is_configuration || text == "SSL_CERT_FILE" {
                command.env_remove(name);
            }
        }
        // The directory does not exist, so there is no ~/.aws.
        command.env("HOME", self.path("home")).envs(self.environment.iter().cloned());
        command.args(arguments).current_dir(self.directory_path()).process_group(0);
        RunningCommand::new(command, self.endpoint)
    }
}

/// A running command; dropping it kills it.
#[derive(Debug)]
pub struct RunningCommand {
    child: Child,
    pub stdin: Option<ChildStdin>,
    out: Option<JoinHandle<Vec<u8>>>,
    err: Option<JoinHandle<Vec<u8>>>,
    endpoint: SocketAddr,
    deadline: Instant,
}

impl RunningCommand {
    fn new(mut command: Command, endpoint: SocketAddr) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let err = Some(collect(child.stderr.take().unwrap()));
        let stdin = child.stdin.take();
        Self { child, stdin, out: None, err, endpoint, deadline: Instant::now() + TIMEOUT }
    }

    /// Writes to its standard input and closes it.
    pub fn with_stdin(mut self, bytes: &[u8]) -> Self {
        self.stdin.take().unwrap().write_all(bytes).unwrap();
        self
    }

    /// Takes its standard output, if it was started by [`CommandRunner::spawn_unread`].
    pub fn take_stdout(&mut self) -> std::process::ChildStdout {
        self.child.stdout.take().unwrap()
    }

    /// Lets it run for this time from now on, in place of the default from its start.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.deadline = Instant::now() + timeout;
        self
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends a signal to the command and to its children in its process group, as a terminal does.
    pub fn signal_group(&self, signal: Signal) {
        kill_process_group(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it ends and returns its result.
    pub fn wait_for_output(mut self) -> CommandOutput {
        drop(self.stdin.take());
        let status = self.wait();
        let out = self.out.take().map(|out| out.join().unwrap()).unwrap_or_default();
        let err = self.err.take().unwrap().join().unwrap();
        let err = String::from_utf8(err).unwrap().replace(&self.endpoint.to_string(), "HOST");
        CommandOutput { status, out, err }
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

impl Drop for RunningCommand {
    fn drop(&mut self) {
        // Ignored: it has ended, or the test has failed already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn collect(from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut all = Vec::new();
        from.take(MAX_OUTPUT_BYTES).read_to_end(&mut all).unwrap();
        all
    })
}
