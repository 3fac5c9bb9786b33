//! A thread that makes blocking calls one after the other, for a caller that waits with a deadline.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::library::{Failure, errno_name};
use super::{ConnectError, Response};
use crate::error::{Error, Result};

/// Time for the end of the connection, when it is not used any longer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time that the library needs beyond its own deadlines for the connection and for a command.
const LIBRARY_GRACE: Duration = Duration::from_secs(2);

/// The threads that still waited in librados when their connection was dropped. A channel disconnects when its thread ends.
static ABANDONED_THREADS: Mutex<Vec<Receiver<()>>> = Mutex::new(Vec::new());

/// Returns true if a thread of this process still waits in librados although its connection is not used any longer. Then
/// the process must end by [`exit_now`](super::exit_now), and its command may still be carried out.
pub fn has_abandoned_call() -> bool {
    let mut threads = ABANDONED_THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    threads.retain(|closed| closed.try_recv() == Err(TryRecvError::Empty));
    !threads.is_empty()
}

/// A connection and its thread.
#[derive(Debug)]
pub(super) struct Link {
    requests: Option<SyncSender<Request>>,
    worker: Option<JoinHandle<()>>,
    /// Disconnects when the thread has closed the connection.
    closed: Option<Receiver<()>>,
    /// The response to a command that is late.
    late: Option<Receiver<Response>>,
    timeout: Duration,
}

#[derive(Debug)]
struct Request {
    command: String,
    response: SyncSender<Response>,
}

impl Link {
    /// Starts the thread, which opens a connection and then calls `run` of the connection for each command. `timeout`
    /// limits the connection and each command.
    pub fn start<C: FnMut(&str) -> Response>(
        timeout: Duration,
        open: impl FnOnce() -> std::result::Result<C, ConnectError> + Send + 'static,
    ) -> std::result::Result<Self, ConnectError> {
        let (requests, received) = sync_channel::<Request>(1);
        let (connected, is_connected) = sync_channel(1);
        let (closing, closed) = sync_channel(1);
        let serve = move || {
            let _closing: SyncSender<()> = closing;
            match open() {
                Ok(mut run) => {
                    // Without a receiver, the connection is not used: the loop ends at once.
                    let _ = connected.send(Ok(()));
                    for Request { command, response } in received {
                        // The caller may wait no longer.
                        let _ = response.send(run(&command));
                    }
                }
                Err(e) => drop(connected.send(Err(e))),
            }
        };
        let worker = std::thread::Builder::new().name("librados".to_owned()).spawn(serve);
        let worker = worker.map_err(|e| ConnectError::Unusable(format!("cannot start a thread: {e}")))?;
        let closed = Some(closed);
        let link = Self { requests: Some(requests), worker: Some(worker), closed, late: None, timeout };
        match is_connected.recv_timeout(timeout + LIBRARY_GRACE) {
            Ok(Ok(())) => Ok(link),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(ConnectError::Unreachable),
        }
    }

    /// Runs a command, which errors show as `shown`. A command without a response in time may still be carried out later.
    pub fn run(&mut self, shown: &str, command: String) -> Result<Vec<u8>> {
        let deadline = Instant::now() + self.timeout + LIBRARY_GRACE;
        let late = || Error::Timeout { command: shown.to_owned(), timeout: self.timeout };
        if let Some(response) = &self.late {
            match response.recv_timeout(self.timeout) {
                Err(RecvTimeoutError::Timeout) => return Err(late()),
                Ok(_) | Err(RecvTimeoutError::Disconnected) => {}
            }
        }
        let (response, received) = sync_channel(1);
        let ended = || Error::Ended { output: "the thread of librados ended".to_owned() };
        let request = Request { command, response };
        self.requests.as_ref().ok_or_else(ended)?.send(request).map_err(|_| ended())?;
        let left = deadline.saturating_duration_since(Instant::now());
        match received.recv_timeout(left) {
            Ok(response) => {
                self.late = None;
                response.map_err(|failure| error(shown.to_owned(), &failure, self.timeout))
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

impl Drop for Link {
    fn drop(&mut self) {
        drop(self.requests.take());
        let Some(closed) = self.closed.take() else { return };
        if closed.recv_timeout(CLOSE_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            // A thread that waits for the cluster ends with the process at the latest.
            ABANDONED_THREADS.lock().unwrap_or_else(PoisonError::into_inner).push(closed);
        } else if let Some(worker) = self.worker.take() {
            // Its panic was reported already.
            let _ = worker.join();
        }
    }
}

fn error(command: String, failure: &Failure, timeout: Duration) -> Error {
    if failure.errno == libc::ETIMEDOUT {
        return Error::Timeout { command, timeout };
    }
    let message = format!("{}: {}", errno_name(failure.errno), failure.message);
    Error::Rejected { command, message: message.trim_end_matches(": ").to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn dropped_link_is_abandoned_until_its_call_returns() {
        let (release, released) = sync_channel::<()>(1);
        let open = move || {
            Ok(move |_: &str| {
                let _ = released.recv();
                Ok(Vec::new())
            })
        };
        let mut link = Link::start(Duration::ZERO, open).unwrap();
        assert!(matches!(link.run("osd dump", String::new()), Err(Error::Timeout { .. })));
        drop(link);
        assert!(has_abandoned_call());
        release.send(()).unwrap();
        while has_abandoned_call() {
            std::thread::yield_now();
        }
    }
}
