//! A socket that records its bytes in the connection's [`ConnectionState`], which also bounds each read.
//!
//! The socket also implements the lingering close. After a response to a request whose body was not read, further bytes
//! of the client are discarded for a while before the socket is closed. Otherwise the client would see a connection
//! reset instead of the response.

use std::ffi::c_int;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes};
use memchr::memmem;
use rustix::ioctl::{Getter, Opcode, ioctl};
use rustix::net::{RecvFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::io::poll_read_buf;

use super::buffers::INITIAL_READ_BYTES;
use super::connection::HEAD_TOO_LARGE_RESPONSE;
use super::connection_state::{ConnectionState, Phase};

/// The maximum number of bytes discarded while lingering.
const MAX_LINGER_BYTES: u64 = 64 << 20;

/// A stream on which one can wait for a request without reading from it.
pub(crate) trait AwaitRequest {
    /// True if the stream can wait for a complete head; false if it can wait only for the first byte.
    const AWAITS_HEADS: bool;

    /// Becomes ready once the stream should be read. `prefix` are bytes of the head that were read already. A stream
    /// with [`AWAITS_HEADS`](Self::AWAITS_HEADS) should be read if it has
    /// - a complete head,
    /// - a head larger than the initial read, and a slot for it,
    /// - bytes that are not the beginning of a head,
    /// - its end, or an error.
    ///
    /// Any other stream should be read once it has bytes, its end or an error.
    fn poll_request(&mut self, cx: &mut Context<'_>, prefix: &[u8]) -> Poll<()>;
}

/// Only peeks at the client's bytes, which stay in the kernel until the head is complete.
impl AwaitRequest for TrackedSocket<TcpStream> {
    const AWAITS_HEADS: bool = true;

    fn poll_request(&mut self, cx: &mut Context<'_>, prefix: &[u8]) -> Poll<()> {
        let Self { socket, connection, .. } = self;
        let max_head_bytes = connection.max_head_bytes();
        if HeadProgress::parse(prefix, &[], max_head_bytes) == HeadProgress::Ready {
            return Poll::Ready(());
        }
        loop {
            if ready!(socket.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            let peeked = socket.try_io(Interest::READABLE, || {
                let mut bytes = [0; INITIAL_READ_BYTES];
                let (_, length) = recv(&*socket, &mut bytes, RecvFlags::PEEK)?;
                // The end of the stream.
                if length == 0 {
                    return Ok(HeadProgress::Ready);
                }
                let progress = HeadProgress::parse(prefix, &bytes[..length], max_head_bytes);
                if progress == HeadProgress::Partial {
                    connection.set_phase(Phase::Head);
                    // Makes the runtime wait for bytes after those that were peeked.
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                Ok(progress)
            });
            match peeked {
                Ok(HeadProgress::Large) => {
                    connection.set_phase(Phase::Head);
                    return if connection.take_slot() { Poll::Ready(()) } else { Poll::Pending };
                }
                Ok(_) => return Poll::Ready(()),
                // The head is incomplete, or the runtime's readiness was stale.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Poll::Ready(()),
            }
        }
    }
}

impl AwaitRequest for TlsStream<TrackedSocket<TcpStream>> {
    const AWAITS_HEADS: bool = false;

    fn poll_request(&mut self, cx: &mut Context<'_>, prefix: &[u8]) -> Poll<()> {
        let (TrackedSocket { socket, .. }, session) = self.get_mut();
        // Does not wait while decrypted bytes are unread.
        if !prefix.is_empty() || !session.wants_read() {
            return Poll::Ready(());
        }
        // The runtime's readiness may be stale: peek at the socket itself.
        let mut byte = [0; 1];
        socket.poll_peek(cx, &mut ReadBuf::new(&mut byte)).map(|_| ())
    }
}

/// The state of a request's head in the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeadProgress {
    /// The head is incomplete.
    Partial,
    /// The head is incomplete and needs a slot.
    Large,
    /// The head is complete, or the bytes are no head or too large for one; the HTTP library responds.
    Ready,
}

impl HeadProgress {
    fn parse(prefix: &[u8], peeked: &[u8], max_head_bytes: usize) -> Self {
        let joined;
        let bytes = if prefix.is_empty() {
            peeked
        } else {
            joined = [prefix, peeked].concat();
            &joined
        };
        let Some(begin) = bytes.iter().find(|byte| !matches!(byte, b'\r' | b'\n')) else {
            return if bytes.len() < INITIAL_READ_BYTES { Self::Partial } else { Self::Ready };
        };
        let is_complete = memmem::find(bytes, b"\n\r\n").is_some() || memmem::find(bytes, b"\n\n").is_some();
        if is_complete || !begin.is_ascii_alphabetic() || bytes.len() >= max_head_bytes {
            Self::Ready
        } else if bytes.len() >= INITIAL_READ_BYTES {
            Self::Large
        } else {
            Self::Partial
        }
    }
}

/// A socket that records its activity in a [`ConnectionState`].
#[derive(Debug)]
pub(crate) struct TrackedSocket<T> {
    socket: T,
    connection: Arc<ConnectionState>,
    /// Bytes discarded while lingering; `None` before the lingering close begins.
    discarded_bytes: Option<u64>,
}

impl<T> TrackedSocket<T> {
    pub(crate) const fn new(socket: T, connection: Arc<ConnectionState>) -> Self {
        Self { socket, connection, discarded_bytes: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TrackedSocket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(limit) = self.connection.read_limit() else { return Poll::Pending };
        let read = ready!(poll_read_buf(Pin::new(&mut self.socket), cx, &mut buf.limit(limit)))?;
        self.connection.record_read(read);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsFd> TrackedSocket<T> {
    /// Records the result of a write.
    fn record_result(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Ready(Ok(bytes)) => self.connection.record_write(Some(*bytes)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                // If the socket cannot report it, all bytes written to the kernel count as acknowledged.
                self.connection.set_unacked_bytes(unacked_bytes(&self.socket).unwrap_or(0));
                self.connection.record_write(None);
            }
        }
        result
    }
}

/// The opcode of `SIOCOUTQ` on architectures with Linux's generic ioctl numbers.
const SIOCOUTQ: Opcode = 0x5411;

/// The number of bytes written to a socket that the other side has not acknowledged.
fn unacked_bytes(socket: impl AsFd) -> io::Result<u64> {
    // SAFETY: `SIOCOUTQ` writes one `int`, and `Getter` provides a buffer of that size.
    let bytes = unsafe { ioctl(socket, Getter::<SIOCOUTQ, c_int>::new()) }?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

impl<T: AsyncWrite + AsyncRead + AsFd + Unpin> AsyncWrite for TrackedSocket<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.record_result(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.record_result(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.discarded_bytes.is_none() {
            ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
            if !self.connection.is_body_unread() {
                return Poll::Ready(Ok(()));
            }
            self.connection.set_phase(Phase::Lingering);
            self.discarded_bytes = Some(0);
        }
        let mut scratch = [0; 16 << 10];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            let read = ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buf));
            let bytes = buf.filled().len();
            self.connection.record_read(bytes);
            let discarded = self.discarded_bytes.get_or_insert(0);
            *discarded += bytes as u64;
            if read.is_err() || bytes == 0 || *discarded > MAX_LINGER_BYTES {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// A stream preceded by bytes that were read from it already.
///
/// hyper rejects a head with too many headers or bytes by itself, without a body. The stream writes the response with an
/// error document in its place. This happens only while the connection has no response of the gateway, so the bytes
/// cannot be those of an object.
#[derive(Debug)]
pub(crate) struct PrefixedStream<T> {
    pub(crate) stream: T,
    pub(crate) prefix: Bytes,
    pub(crate) connection: Arc<ConnectionState>,
}

impl<T> PrefixedStream<T> {
    fn is_head_rejection(&self, written: &[u8]) -> bool {
        written.starts_with(b"HTTP/1.1 431 ") && !self.connection.is_responding()
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for PrefixedStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let length = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_head_rejection(buf) {
            // Fits into the empty send buffer of the socket.
            ready!(Pin::new(&mut self.stream).poll_write(cx, HEAD_TOO_LARGE_RESPONSE))?;
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(first) = bufs.iter().find(|buf| !buf.is_empty())
            && self.is_head_rejection(first)
        {
            return self.poll_write(cx, first);
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        // hyper flushes a stream only after it has written all of its buffers.
        self.connection.record_flush();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_progress_follows_the_bytes_received() {
        let large = format!("GET / HTTP/1.1\r\nlong: {}", "v".repeat(INITIAL_READ_BYTES));
        for (prefix, peeked, progress) in [
            ("", "G", HeadProgress::Partial),
            ("", "\r\n", HeadProgress::Partial),
            ("", "GET / HTTP/1.1\r\nhost: a\r\n", HeadProgress::Partial),
            ("", "GET / HTTP/1.1\r\nhost: a\r\n\r\n", HeadProgress::Ready),
            ("", "\r\nGET / HTTP/1.1\nhost: a\n\n", HeadProgress::Ready),
            ("GET / HTTP/1.1\r\nhost: a\r", "\n\r\n", HeadProgress::Ready),
            ("GET / HTTP/1.1\r\nhost: a\r\n\r", "", HeadProgress::Partial),
            ("GET / HTTP/1.1\r\n\r\n", "", HeadProgress::Ready),
            ("", "\x16\x03\x01", HeadProgress::Ready),
            ("", &large, HeadProgress::Large),
            (&large, "", HeadProgress::Large),
        ] {
            let found = HeadProgress::parse(prefix.as_bytes(), peeked.as_bytes(), 32 << 10);
            assert_eq!(found, progress, "{prefix:?} {peeked:?}");
        }
        assert_eq!(HeadProgress::parse(b"GET /", b"long", 9), HeadProgress::Ready);
    }
}
