//! One long-lived `ceph` process that reads commands from standard input. A process for each command would cost half a
//! second of CPU each.
//!
//! The process answers line by line: it prints the response to a command before it reads the next. Commands without any
//! response exist, so that each command is followed by `fsid`, whose response is known and marks the end. Errors are
//! printed before that mark, to standard error: they can be read once it has arrived. Both cannot be one pipe: Ceph's library
//! makes standard error non-blocking, and long responses would be cut.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::activity::Activity;
use crate::error::{Error, Result};

/// Lines that the reader holds before it waits for the commands' caller.
const MAX_QUEUED_LINES: usize = 64;
/// Lines of a process that ended which its error quotes.
const MAX_QUOTED_LINES: usize = 3;

/// How to reach the cluster.
#[derive(Debug, Clone)]
pub struct CephOptions {
    /// The command, normally `ceph`.
    pub program: PathBuf,
    /// The configuration file; `None` for the default.
    pub config: Option<PathBuf>,
    /// The user, as in `--id`; `None` for `admin`.
    pub id: Option<String>,
    /// Time for the start, and for each command.
    pub timeout: Duration,
    /// True if commands go through librados where it can be used, and only otherwise through the program.
    pub uses_librados: bool,
    /// The command that has no response yet.
    pub activity: Activity,
}

impl Default for CephOptions {
    fn default() -> Self {
        Self {
            program: "ceph".into(),
            config: None,
            id: None,
            timeout: Duration::from_secs(15),
            uses_librados: true,
            activity: Activity::default(),
        }
    }
}

impl CephOptions {
    /// A command of this program with the flags for the cluster.
    pub(crate) fn command(&self) -> Command {
        let mut command = own_group(&self.program);
        if let Some(config) = &self.config {
            command.arg("--conf").arg(config);
        }
        if let Some(id) = &self.id {
            command.arg("--id").arg(id);
        }
        command.stdin(Stdio::null());
        command
    }
}

/// A command in its own process group: Ctrl-C in a terminal ends this process, which still needs `ceph` to restore.
pub(crate) fn own_group(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.process_group(0);
    command
}

/// A connection to the cluster's monitors.
#[derive(Debug)]
pub struct CephProcess {
    options: CephOptions,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Non-blocking.
    errors: UnixStream,
    fsid: String,
}

impl CephProcess {
    /// Starts the process and waits until it responds.
    pub fn start(options: CephOptions) -> Result<Self> {
        let running = Running::start(&options)?;
        Ok(Self { options, running: Some(running) })
    }

    /// Runs a command with a JSON response.
    pub fn json(&mut self, words: &[&str]) -> Result<Value> {
        let output = self.run(words)?;
        let malformed = |message: String| Error::Malformed { command: words.join(" "), message };
        let line = output.iter().find(|line| line.starts_with(['{', '[']));
        let line = line.ok_or_else(|| malformed(format!("no JSON in {:?}", output.join(" "))))?;
        serde_json::from_str(line).map_err(|e| malformed(e.to_string()))
    }

    /// Runs a command and returns the lines of its response.
    ///
    /// A process that does not respond in time is killed; the next command starts another. Whether the command took
    /// effect is then unknown.
    pub fn run(&mut self, words: &[&str]) -> Result<Vec<String>> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => Running::start(&self.options)?,
        };
        let result = running.run(words, self.options.timeout);
        // A rejected command leaves the process in order; after any other error, its output cannot be trusted.
        match &result {
            Ok(_) | Err(Error::Rejected { .. }) => self.running = Some(running),
            Err(_) => {}
        }
        result
    }
}

impl Running {
    fn start(options: &CephOptions) -> Result<Self> {
        let (errors, standard_error) = UnixStream::pair().map_err(Error::Start)?;
        errors.set_nonblocking(true).map_err(Error::Start)?;
        let mut command = options.command();
        let seconds = options.timeout.as_secs().max(1);
        command.args(["--format", "json", "--connect-timeout", &seconds.to_string()]);
        // Python would hold its output back until a buffer is full.
        command.env("PYTHONUNBUFFERED", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(OwnedFd::from(standard_error));
        let mut child = command.spawn().map_err(Error::Start)?;
        let missing = || Error::Start(std::io::ErrorKind::BrokenPipe.into());
        let input = child.stdin.take().ok_or_else(missing)?;
        let lines = read_lines(child.stdout.take().ok_or_else(missing)?).map_err(Error::Start)?;
        let mut running = Self { child, input, lines, errors, fsid: String::new() };
        running.write("fsid\n");
        let deadline = Instant::now() + options.timeout;
        while running.fsid.is_empty() {
            let line = running.next_line("fsid", deadline, options.timeout)?;
            running.fsid = parse_fsid(&line).unwrap_or_default();
        }
        Ok(running)
    }

    fn run(&mut self, words: &[&str], timeout: Duration) -> Result<Vec<String>> {
        let command = words.join(" ");
        let quoted: Vec<String> = words.iter().map(|word| quote(word)).collect();
        // Discards the output of earlier commands.
        self.read_errors();
        self.write(&format!("{}\nfsid\n", quoted.join(" ")));
        let deadline = Instant::now() + timeout;
        let mut lines = Vec::new();
        loop {
            let line = self.next_line(&command, deadline, timeout)?;
            if parse_fsid(&line).is_some_and(|fsid| fsid == self.fsid) {
                break;
            }
            if !line.is_empty() {
                lines.push(line);
            }
        }
        let errors = self.read_errors();
        match errors.lines().find_map(|line| line.strip_prefix("Error ")) {
            Some(message) => {
                Err(Error::Rejected { command, message: message.trim_end_matches(": ").trim().to_owned() })
            }
            None => Ok(lines),
        }
    }

    /// If the process has ended, reading its response tells why.
    fn write(&mut self, text: &str) {
        let _ = self.input.write_all(text.as_bytes()).and_then(|()| self.input.flush());
    }

    fn next_line(&mut self, command: &str, deadline: Instant, timeout: Duration) -> Result<String> {
        let left = deadline.saturating_duration_since(Instant::now());
        self.lines.recv_timeout(left).map_err(|e| match e {
            RecvTimeoutError::Timeout => Error::Timeout { command: command.to_owned(), timeout },
            RecvTimeoutError::Disconnected => {
                let errors = self.read_errors();
                let lines: Vec<&str> = errors.lines().filter(|line| !line.trim().is_empty()).collect();
                let last = lines.len().saturating_sub(MAX_QUOTED_LINES);
                Error::Ended { output: lines[last..].join("; ") }
            }
        })
    }

    /// The output of the process to standard error since the last call.
    fn read_errors(&mut self) -> String {
        let mut bytes = Vec::new();
        // Ends with an error once nothing is left; what was read stays.
        let _ = self.errors.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may hang: it holds no state that a kill could harm. Killing fails only if it ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines until the process closes its output or the receiver is dropped.
fn read_lines(reader: ChildStdout) -> std::io::Result<Receiver<String>> {
    let (sender, lines) = sync_channel(MAX_QUEUED_LINES);
    let read = move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while let Ok(1..) = reader.read_until(b'\n', &mut line) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if sender.send(text).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().spawn(read)?;
    Ok(lines)
}

fn parse_fsid(line: &str) -> Option<String> {
    let value: Value = line.starts_with("{\"fsid\"").then(|| serde_json::from_str(line).ok())??;
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.get("fsid")?.as_str().map(str::to_owned)
}

/// Quotes a word for the process, which splits lines like a POSIX shell.
fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests;
