//! Sockets with a deadline for everything that happens on them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// A socket whose reads and writes fail after a deadline, however slowly the peer sends or accepts bytes.
#[derive(Debug)]
pub(crate) struct DeadlineSocket<S> {
    socket: S,
    deadline: Instant,
}

/// A socket with timeouts for single operations.
pub(crate) trait TimedSocket: Read + Write {
    /// Sets the timeout of a read.
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
    /// Sets the timeout of a write.
    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()>;
}

impl TimedSocket for TcpStream {
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Self::set_read_timeout(self, timeout)
    }

    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Self::set_write_timeout(self, timeout)
    }
}

impl TimedSocket for UnixStream {
    fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Self::set_read_timeout(self, timeout)
    }

    fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        Self::set_write_timeout(self, timeout)
    }
}

impl<S: TimedSocket> DeadlineSocket<S> {
    pub fn new(socket: S, deadline: Instant) -> Self {
        Self { socket, deadline }
    }

    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    pub fn socket(&self) -> &S {
        &self.socket
    }

    fn time_left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

/// The kernel reports an expired timeout as `WouldBlock`.
fn as_timeout(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

impl<S: TimedSocket> Read for DeadlineSocket<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(self.time_left()?)?;
        self.socket.read(buffer).map_err(as_timeout)
    }
}

impl<S: TimedSocket> Write for DeadlineSocket<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(self.time_left()?)?;
        self.socket.write(bytes).map_err(as_timeout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_that_sends_byte_by_byte_does_not_extend_the_deadline() {
        let (near, mut far) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            while far.write_all(b"a").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut socket = DeadlineSocket::new(near, Instant::now() + Duration::from_millis(200));
        let error = socket.read_exact(&mut vec![0; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
