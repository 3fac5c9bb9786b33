//! The binary as a child process: started on free ports, awaited until it is ready, and terminated by a signal.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::sign::Credentials;

/// Timeout for a start or an end of the server.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The server's root key in tests.
pub fn root_key() -> Credentials {
    Credentials { id: "crash-root".to_owned(), secret: "root-secret-of-tests".to_owned() }
}

/// The flags and environment of a server.
#[derive(Debug, Clone)]
pub struct ServerSetup {
    /// The value of `--data`.
    pub data: PathBuf,
    /// Further flags.
    pub flags: Vec<OsString>,
    /// Variables in addition to those of the test process.
    pub environment: Vec<(String, String)>,
    /// The file of its log.
    pub log: PathBuf,
    /// The limit of open files, if lower than that of the test process.
    pub open_files: Option<u32>,
    /// The limit of the address space in KiB.
    pub address_space_kib: Option<u32>,
}

impl ServerSetup {
    /// A server on free ports with the tests' root key, logging to `log`.
    pub fn new(data: &Path, log: &Path) -> Self {
        let root = root_key();
        Self {
            data: data.to_owned(),
            flags: ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"].map(OsString::from).to_vec(),
            environment: vec![
                ("TRADEWIND_ACCESS_KEY".to_owned(), root.id),
                ("TRADEWIND_SECRET_KEY".to_owned(), root.secret),
            ],
            log: log.to_owned(),
            open_files: None,
            address_space_kib: None,
        }
    }

    pub fn flag(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.flags.extend([OsString::from(name), value.into()]);
        self
    }

    pub fn without_root_key(mut self) -> Self {
        self.environment.clear();
        self
    }

    /// The command, with its limits.
    fn command(&self) -> Command {
        let binary = tradewind();
        let files = self.open_files.map(|open_files| format!("ulimit -n {open_files} && "));
        let memory = self.address_space_kib.map(|kib| format!("ulimit -v {kib} && "));
        if files.is_none() && memory.is_none() {
            return binary;
        }
        let limits = files.unwrap_or_default() + &memory.unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("{limits}exec \"$0\" \"$@\"")).arg(binary.get_program());
        for (name, _) in binary.get_envs() {
            shell.env_remove(name);
        }
        shell
    }

    /// Starts the server and waits until it is ready.
    pub fn start(&self) -> io::Result<Server> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut child = self
            .command()
            .arg("serve")
            .arg("--data")
            .arg(&self.data)
            .args(&self.flags)
            .envs(self.environment.iter().cloned())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()?;
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        // Reads to the end, so that the server cannot block on a full pipe.
        let reader = std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                sink.lock().unwrap().push(line);
            }
        });
        let mut server = Server {
            child: Some(child),
            reader: Some(reader),
            lines,
            endpoint: SocketAddr::from(([127, 0, 0, 1], 0)),
            admin: SocketAddr::from(([127, 0, 0, 1], 0)),
            log: self.log.clone(),
        };
        server.wait_until_ready()?;
        Ok(server)
    }
}

/// A command for the binary under test, without variables that would configure it.
pub fn tradewind() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tradewind"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TRADEWIND_"))
    {
        command.env_remove(name);
    }
    // The machine that runs the tests may be an instance, and elsewhere the request would take a second.
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    command
}

/// Runs the binary to its end.
pub fn run(arguments: &[&str]) -> Output {
    tradewind().args(arguments).stdin(Stdio::null()).output().expect("the binary starts")
}

/// A running server; dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Option<Child>,
    reader: Option<JoinHandle<()>>,
    lines: Arc<Mutex<Vec<String>>>,
    pub endpoint: SocketAddr,
    pub admin: SocketAddr,
    log: PathBuf,
}

impl Server {
    /// The lines printed so far.
    pub fn printed(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Its resident memory in bytes.
    pub fn resident(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// The peak of [`resident`](Self::resident).
    pub fn peak_resident(&self) -> u64 {
        self.status("VmHWM:")
    }

    fn status(&self, name: &str) -> u64 {
        let process = self.child.as_ref().expect("it runs").id();
        let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of /proc/PID/status");
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number");
        kib << 10
    }

    /// The log, including that of earlier servers with the same file.
    pub fn logged(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// An error with the last lines of the log.
    fn failed(&self, what: &str) -> io::Error {
        let logged = self.logged();
        let last: Vec<&str> = logged.lines().rev().take(12).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        io::Error::other(format!("{what}:\n{}", last.join("\n")))
    }

    fn wait_until_ready(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        let address = |lines: &[String], name: &str| {
            let line = lines.iter().find(|line| line.trim_start().starts_with(name))?;
            line.split("://").nth(1)?.trim().parse::<SocketAddr>().ok()
        };
        while Instant::now() < deadline {
            let lines = self.printed();
            if let (Some(endpoint), Some(admin)) = (address(&lines, "endpoint"), address(&lines, "admin")) {
                (self.endpoint, self.admin) = (endpoint, admin);
                TcpStream::connect(endpoint)?;
                return Ok(());
            }
            if let Some(status) = self.child.as_mut().expect("it runs").try_wait()? {
                return Err(self.failed(&format!("the server ended with {status}")));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(self.failed("the server was not ready in time"))
    }

    /// Stops all its threads, by SIGSTOP, and returns once they have stopped.
    pub fn suspend(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.as_ref().expect("it runs").id());
        let is_stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The state follows the name, which is in parentheses.
            stat.rsplit(')').next().is_none_or(|fields| fields.trim_start().starts_with('T'))
        };
        super::eventually("all threads have stopped", || {
            std::fs::read_dir(&tasks).is_ok_and(|mut all| all.all(|task| task.is_ok_and(is_stopped)))
        });
    }

    pub fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("it can be signalled");
    }

    /// Waits until it ends.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let deadline = Instant::now() + TIMEOUT;
        let child = self.child.as_mut().expect("it runs");
        loop {
            if let Some(status) = child.try_wait()? {
                self.child = None;
                if let Some(reader) = self.reader.take() {
                    reader.join().expect("the reader does not panic");
                }
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(self.failed("the server did not end"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills it by SIGKILL.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait().expect("a killed process ends");
    }

    /// Sends SIGTERM and returns the exit status.
    pub fn terminate(&mut self) -> io::Result<ExitStatus> {
        self.signal(Signal::TERM);
        self.wait()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Ignored: the test has failed already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
