//! A connection to the monitors within this process, by librados. A command takes about a millisecond of CPU, one of the
//! process `ceph` about 100.
//!
//! Calls of librados block for as long as no monitor responds. They run on a thread of their own, and the caller waits with a
//! deadline. A call that is late keeps the thread: the next one waits for its end first, so that a late change never follows
//! a newer one.

mod library;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::library::{Connection, Failure, Target, errno_name};
use crate::ceph_process::CephOptions;
use crate::error::{Error, Result};

pub use self::library::exit_now;

/// Time for the end of the connection, when it is not used any longer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that the library needs beyond its own deadline for the connection.
const CONNECT_GRACE: Duration = Duration::from_secs(2);

type Response = std::result::Result<Vec<u8>, Failure>;

/// Set if a call of librados was still waiting when its connection was dropped.
static HAS_ABANDONED_CALL: AtomicBool = AtomicBool::new(false);

/// Returns true if a thread of this process still waits in librados although its connection is not used any longer. Then
/// the process must end by [`exit_now`].
pub fn has_abandoned_call() -> bool {
    HAS_ABANDONED_CALL.load(Ordering::Relaxed)
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Rados {
    requests: Option<SyncSender<Request>>,
    worker: Option<JoinHandle<()>>,
    /// Disconnects when the thread has closed the connection.
    closed: Receiver<()>,
    /// The response to a command that is late.
    late: Option<Receiver<Response>>,
    timeout: Duration,
}

#[derive(Debug)]
struct Request {
    target: Target,
    command: String,
    response: SyncSender<Response>,
}

/// The reason why there is no connection.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// The library cannot be used here, or rejects the configuration. The command `ceph` may work.
    Unusable(String),
    /// No monitor responds.
    Unreachable,
}

impl Rados {
    /// Connects. Takes up to the timeout of the options.
    pub fn connect(options: &CephOptions) -> std::result::Result<Self, ConnectError> {
        let (requests, received) = sync_channel::<Request>(1);
        let (connected, is_connected) = sync_channel(1);
        let (closing, closed) = sync_channel(1);
        let timeout = options.timeout;
        let options = options.clone();
        let serve = move || {
            let _closing: SyncSender<()> = closing;
            match open(&options) {
                Ok(connection) => {
                    // Without a receiver, the connection is not used: the loop ends at once.
                    let _ = connected.send(Ok(()));
                    serve_requests(&connection, &received);
                }
                Err(e) => drop(connected.send(Err(e))),
            }
        };
        let worker = std::thread::Builder::new().name("librados".to_owned()).spawn(serve);
        let worker = worker.map_err(|e| ConnectError::Unusable(format!("cannot start a thread: {e}")))?;
        let rados = Self { requests: Some(requests), worker: Some(worker), closed, late: None, timeout };
        match is_connected.recv_timeout(timeout + CONNECT_GRACE) {
            Ok(Ok(())) => Ok(rados),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(ConnectError::Unreachable),
        }
    }

    /// Runs a command and returns its output. A command without a response in time may still be carried out later.
    pub fn run(&mut self, words: &[&str]) -> Result<Vec<u8>> {
        let deadline = Instant::now() + self.timeout;
        let shown = words.join(" ");
        let late = || Error::Timeout { command: shown.clone(), timeout: self.timeout };
        if let Some(response) = &self.late {
            match response.recv_timeout(self.timeout) {
                Err(RecvTimeoutError::Timeout) => return Err(late()),
                Ok(_) | Err(RecvTimeoutError::Disconnected) => {}
            }
        }
        let (response, received) = sync_channel(1);
        let request = Request { target: target(words), command: command(words).to_string(), response };
        let ended = || Error::Ended { output: "the thread of librados ended".to_owned() };
        self.requests.as_ref().ok_or_else(ended)?.send(request).map_err(|_| ended())?;
        let left = deadline.saturating_duration_since(Instant::now());
        match received.recv_timeout(left) {
            Ok(Ok(output)) => {
                self.late = None;
                Ok(output)
            }
            Ok(Err(failure)) => {
                self.late = None;
                Err(error(shown, &failure, self.timeout))
            }
            Err(RecvTimeoutError::Timeout) => {
                let error = late();
                self.late = Some(received);
                Err(error)
            }
            Err(RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }
}

impl Drop for Rados {
    fn drop(&mut self) {
        drop(self.requests.take());
        // A thread that waits for a monitor ends with the process.
        let is_closed = self.closed.recv_timeout(CLOSE_TIMEOUT) == Err(RecvTimeoutError::Disconnected);
        if !is_closed {
            HAS_ABANDONED_CALL.store(true, Ordering::Relaxed);
        }
        if let Some(worker) = self.worker.take().filter(|_| is_closed) {
            // Its panic was reported already.
            let _ = worker.join();
        }
    }
}

fn open(options: &CephOptions) -> std::result::Result<Connection, ConnectError> {
    let user = options.id.as_deref().unwrap_or("admin");
    let connection = Connection::create(user, options.config.as_deref()).map_err(ConnectError::Unusable)?;
    let seconds = options.timeout.as_secs().max(1).to_string();
    // Errors are returned: the library need not print them, too.
    for (option, value) in
        [("client_mount_timeout", seconds.as_str()), ("log_to_stderr", "false"), ("err_to_stderr", "false")]
    {
        connection.set(option, value).map_err(ConnectError::Unusable)?;
    }
    match connection.connect() {
        Ok(()) => Ok(connection),
        Err(failure) if failure.errno == libc::ETIMEDOUT => Err(ConnectError::Unreachable),
        Err(failure) => Err(ConnectError::Unusable(format!("cannot connect: {}", errno_name(failure.errno)))),
    }
}

fn serve_requests(connection: &Connection, requests: &Receiver<Request>) {
    for Request { target, command, response } in requests {
        // The caller may wait no longer.
        let _ = response.send(connection.command(target, &command));
    }
}

fn error(command: String, failure: &Failure, timeout: Duration) -> Error {
    if failure.errno == libc::ETIMEDOUT {
        return Error::Timeout { command, timeout };
    }
    let message = format!("{}: {}", errno_name(failure.errno), failure.message);
    Error::Rejected { command, message: message.trim_end_matches(": ").to_owned() }
}

/// The manager has the statistics of placement groups, the monitors have all else.
fn target(words: &[&str]) -> Target {
    if words.first() == Some(&"pg") { Target::Manager } else { Target::Monitors }
}

/// A command of the shell as the JSON object that monitors understand.
fn command(words: &[&str]) -> Value {
    match *words {
        ["osd", "primary-affinity", osd, affinity] => {
            // Numbers, not text: the monitors convert neither. They reject a value that is no number.
            let id: Option<u32> = osd.strip_prefix("osd.").and_then(|id| id.parse().ok());
            let weight: Option<f64> = affinity.parse().ok();
            json!({"prefix": "osd primary-affinity", "id": id, "weight": weight})
        }
        ["config-key", "set", key, value] => json!({"prefix": "config-key set", "key": key, "val": value}),
        ["config-key", verb, key] => json!({"prefix": format!("config-key {verb}"), "key": key}),
        _ => json!({"prefix": words.join(" "), "format": "json"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_names_of_their_parameters() {
        let affinity = json!({"prefix": "osd primary-affinity", "id": 3, "weight": 0.515_625});
        assert_eq!(command(&["osd", "primary-affinity", "osd.3", "0.515625"]), affinity);
        let get = json!({"prefix": "config-key get", "key": "a/b"});
        assert_eq!(command(&["config-key", "get", "a/b"]), get);
        let set = json!({"prefix": "config-key set", "key": "a/b", "val": "{\"x\":\"'\"}"});
        assert_eq!(command(&["config-key", "set", "a/b", "{\"x\":\"'\"}"]), set);
        assert_eq!(command(&["osd", "dump"]), json!({"prefix": "osd dump", "format": "json"}));
        assert_eq!(target(&["pg", "dump"]), Target::Manager);
        assert_eq!(target(&["osd", "dump"]), Target::Monitors);
    }

    #[test]
    fn errors_read_like_those_of_the_command_ceph() {
        let failure = |errno, message: &str| Failure { errno, message: message.to_owned() };
        let shown =
            |failure: &Failure| error("osd dump".to_owned(), failure, Duration::from_secs(15)).to_string();
        assert_eq!(
            shown(&failure(libc::EACCES, "access denied")),
            "\"ceph osd dump\" failed: EACCES: access denied"
        );
        assert!(shown(&failure(libc::ETIMEDOUT, "")).contains("no response"));
        let missing =
            error("config-key get x".to_owned(), &failure(libc::ENOENT, ""), Duration::from_secs(1));
        assert!(missing.is_not_found(), "{missing}");
    }

    #[test]
    fn missing_configuration_is_left_to_the_command_ceph() {
        let config = Some("/nonexistent/ceph.conf".into());
        let options = CephOptions { config, ..CephOptions::default() };
        let error = Rados::connect(&options).unwrap_err();
        assert!(matches!(error, ConnectError::Unusable(_)), "{error:?}");
    }
}
