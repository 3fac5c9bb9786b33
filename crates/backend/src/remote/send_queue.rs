//! The bytes of a connection that the peer has acknowledged: those written, without those in the socket's send queue
//! (`SIOCOUTQ`). The queue may hold megabytes, which a slow link takes seconds to transmit.

use std::os::fd::{AsFd, AsRawFd as _, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tradewind_core::send_progress::SendQueue;

/// Bytes sent and acknowledged on one socket. Shared by the socket, which closes it when it is dropped, and observers.
#[derive(Debug)]
pub(super) struct SocketSendQueue {
    sent: AtomicU64,
    /// The socket's descriptor; `None` once the socket is closed, as the number may then belong to another file.
    descriptor: Mutex<Option<RawFd>>,
    /// Acknowledged bytes when the socket was closed.
    acknowledged_at_close: AtomicU64,
}

impl SocketSendQueue {
    /// The queue of an open socket. [`close`](Self::close) must be called before the socket is closed.
    pub fn new(socket: &impl AsFd) -> Self {
        Self {
            sent: AtomicU64::new(0),
            descriptor: Mutex::new(Some(socket.as_fd().as_raw_fd())),
            acknowledged_at_close: AtomicU64::new(0),
        }
    }

    /// Records bytes written to the socket.
    pub fn record_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Ends the use of the descriptor.
    pub fn close(&self) {
        let mut descriptor = self.descriptor.lock();
        if let Some(open) = descriptor.take() {
            self.acknowledged_at_close.store(self.acknowledged(open), Ordering::Relaxed);
        }
    }

    /// Acknowledged bytes of the open socket `descriptor`. If the kernel does not report its queue, nothing is known to
    /// be queued.
    fn acknowledged(&self, descriptor: RawFd) -> u64 {
        // Read first: bytes written in between are then in the queue but not in the sum, which errs on the low side.
        let sent = self.sent.load(Ordering::Relaxed);
        sent.saturating_sub(queued_bytes(descriptor).unwrap_or(0))
    }
}

impl SendQueue for SocketSendQueue {
    fn sent_bytes(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn acknowledged_bytes(&self) -> u64 {
        // The lock keeps the socket open during the call.
        match *self.descriptor.lock() {
            Some(open) => self.acknowledged(open),
            None => self.acknowledged_at_close.load(Ordering::Relaxed),
        }
    }
}

/// Bytes in the send queue of a TCP socket: unsent ones, and those in flight. `None` if the kernel does not report it.
fn queued_bytes(descriptor: RawFd) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: `bytes` outlives the call, which writes one `int` to it. `TIOCOUTQ` has the value of `SIOCOUTQ`.
    let result = unsafe { libc::ioctl(descriptor, libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { u64::try_from(bytes).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Writes until the send queue is full. Returns the bytes written.
    fn fill(socket: &mut TcpStream) -> u64 {
        socket.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(bytes) = socket.write(&[7; 64 << 10]) {
            written += bytes as u64;
        }
        written
    }

    #[test]
    fn unread_bytes_in_the_send_queue_are_not_acknowledged() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let queue = SocketSendQueue::new(&socket);
        let written = fill(&mut socket);
        queue.record_sent(usize::try_from(written).unwrap());
        let acknowledged = queue.acknowledged_bytes();
        assert!(acknowledged < written, "{acknowledged} of {written}");
        let mut left = written;
        let mut buffer = vec![0; 1 << 20];
        while left > 0 {
            left -= peer.read(&mut buffer).unwrap() as u64;
        }
        // The last acknowledgement may be delayed.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while queue.acknowledged_bytes() < written && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert_eq!(queue.acknowledged_bytes(), written);
        queue.close();
        drop(socket);
        assert_eq!(queue.acknowledged_bytes(), written);
    }
}
