//! The admin socket of a Ceph daemon: a JSON command, ended by a zero byte, over a Unix socket. The response is its length in
//! four bytes (big-endian) and that many bytes. No `ceph` process is needed.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};

use crate::deadline_socket::DeadlineSocket;
use crate::error::{Error, Result};

/// Maximum size of a response. `perf dump` of an OSD has about 30 KB.
const MAX_RESPONSE_BYTES: u32 = 16 << 20;

/// Runs a command such as `perf dump`. It takes at most about `timeout`.
pub fn run(path: &Path, command: &str, timeout: Duration) -> Result<Value> {
    let failed = |source| Error::AdminSocket { path: path.display().to_string(), source };
    let response = request(path, command, timeout).map_err(failed)?;
    serde_json::from_slice(&response).map_err(|e| Error::Malformed {
        command: format!("{command} on {}", path.display()),
        message: e.to_string(),
    })
}

fn request(path: &Path, command: &str, timeout: Duration) -> std::io::Result<Vec<u8>> {
    let deadline = Instant::now() + timeout;
    let mut socket = DeadlineSocket::new(open(path, timeout)?, deadline);
    let mut message = json!({ "prefix": command }).to_string().into_bytes();
    message.push(0);
    socket.write_all(&message)?;
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > MAX_RESPONSE_BYTES {
        return Err(std::io::Error::other(format!("a response of {length} bytes is too long")));
    }
    let mut response = Vec::new();
    socket.take(length.into()).read_to_end(&mut response)?;
    if response.len() < length as usize {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    Ok(response)
}

/// Connects in time. The requests of a daemon that hangs stay in its queue; once that is full, connecting would wait for ever.
/// On Linux the timeout of writes applies to it.
fn open(path: &Path, timeout: Duration) -> std::io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(UnixStream::from(socket)),
        Err(rustix::io::Errno::AGAIN) => Err(std::io::ErrorKind::TimedOut.into()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use rustix::net::{bind, listen};

    use super::*;

    /// Answers one connection with these bytes.
    fn answer(bytes: &'static [u8]) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(place.path().join("asok")).unwrap();
        std::thread::spawn(move || {
            let (mut socket, _) = listener.accept().unwrap();
            let mut request = [0; 64];
            let count = socket.read(&mut request).unwrap();
            assert_eq!(&request[..count], b"{\"prefix\":\"perf dump\"}\0");
            socket.write_all(bytes).unwrap();
            // The socket stays open: a short response is one that stalls.
            std::thread::sleep(Duration::from_secs(2));
        });
        place
    }

    fn run_on(place: &tempfile::TempDir) -> Result<Value> {
        run(&place.path().join("asok"), "perf dump", Duration::from_millis(500))
    }

    #[test]
    fn response_of_the_stated_length_is_read() {
        assert_eq!(run_on(&answer(b"\0\0\0\x07{\"a\":1}trailing")).unwrap(), json!({"a": 1}));
    }

    #[test]
    fn stalled_long_malformed_and_absent_responses_are_errors() {
        let stalled = run_on(&answer(b"\0\0\0\x07{\"a\"")).unwrap_err();
        assert!(matches!(stalled, Error::AdminSocket { .. }), "{stalled}");
        let long = run_on(&answer(b"\xff\0\0\0")).unwrap_err();
        assert!(long.to_string().contains("too long"), "{long}");
        assert!(matches!(run_on(&answer(b"\0\0\0\x02{]")).unwrap_err(), Error::Malformed { .. }));
        let place = tempfile::tempdir().unwrap();
        let absent = run_on(&place).unwrap_err();
        assert!(absent.to_string().contains("asok"), "{absent}");
    }

    #[test]
    fn daemon_that_hangs_with_a_full_queue_is_left_in_time() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("asok");
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        for _ in 0..5 {
            let error = run(&path, "perf dump", Duration::from_millis(100)).unwrap_err();
            assert!(error.to_string().contains("timed out"), "{error}");
        }
    }
}
