//! A socket that records its bytes in the connection's [`ConnectionState`], which also bounds each read.
//!
//! It also implements the lingering close: after a response to a request whose body was not read, the client may go on
//! sending for a while before the socket is closed, so that it reads the response instead of a connection reset.

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

use super::buffers::MAX_SLOTLESS_HEAD_BYTES;
use super::connection_state::{ConnectionState, Phase};

/// The maximum number of bytes discarded while lingering.
const MAX_LINGER_BYTES: u64 = 64 << 20;

/// A stream that can be waited for without reading from it.
pub(crate) trait AwaitRequest {
    /// True if the stream can wait for a complete head, and not only for its first byte.
    const AWAITS_HEADS: bool;

    /// Ready once the stream should be read: it has a complete head, of which `first` was read already, a head larger
    /// than the initial buffer, bytes that are no head, its end, or an error.
    fn poll_request(&mut self, cx: &mut Context<'_>, first: &[u8]) -> Poll<()>;
}

/// Peeks only: the client's bytes stay in the kernel until the head is complete.
impl AwaitRequest for TrackedSocket<TcpStream> {
    const AWAITS_HEADS: bool = true;

    fn poll_request(&mut self, cx: &mut Context<'_>, first: &[u8]) -> Poll<()> {
        let Self { socket, watch, .. } = self;
        let max_head = watch.max_head_bytes();
        if HeadProgress::parse(first, &[], max_head) == HeadProgress::Ready {
            return Poll::Ready(());
        }
        loop {
            if ready!(socket.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            let mut progress = HeadProgress::Empty;
            // `WouldBlock` makes the runtime wait for bytes beyond those that were peeked.
            let peeked = socket.try_io(Interest::READABLE, || {
                let mut bytes = [0; MAX_SLOTLESS_HEAD_BYTES];
                let (_, length) = recv(&*socket, &mut bytes, RecvFlags::PEEK)?;
                progress = if length == 0 {
                    HeadProgress::Ready
                } else {
                    HeadProgress::parse(first, &bytes[..length], max_head)
                };
                if progress == HeadProgress::Partial { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match progress {
                HeadProgress::Empty if peeked.is_ok() => return Poll::Ready(()),
                HeadProgress::Empty => {}
                HeadProgress::Partial => watch.set_phase(Phase::Head),
                HeadProgress::Large => {
                    watch.set_phase(Phase::Head);
                    return if watch.take_slot() { Poll::Ready(()) } else { Poll::Pending };
                }
                HeadProgress::Ready => return Poll::Ready(()),
            }
            if peeked.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock) {
                return Poll::Ready(());
            }
        }
    }
}

impl AwaitRequest for TlsStream<TrackedSocket<TcpStream>> {
    const AWAITS_HEADS: bool = false;

    fn poll_request(&mut self, cx: &mut Context<'_>, first: &[u8]) -> Poll<()> {
        let (TrackedSocket { socket, .. }, session) = self.get_mut();
        // Does not wait while decrypted bytes are unread.
        if !first.is_empty() || !session.wants_read() {
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
    /// No byte has arrived.
    Empty,
    /// The head is incomplete.
    Partial,
    /// The head is incomplete and needs a slot.
    Large,
    /// The head is complete, or the bytes are no head or too large for one; the HTTP library responds.
    Ready,
}

impl HeadProgress {
    fn parse(first: &[u8], then: &[u8], max_head: usize) -> Self {
        let joined;
        let bytes = if first.is_empty() {
            then
        } else {
            joined = [first, then].concat();
            &joined
        };
        let Some(begin) = bytes.iter().find(|byte| !matches!(byte, b'\r' | b'\n')) else {
            return if bytes.len() < MAX_SLOTLESS_HEAD_BYTES { Self::Partial } else { Self::Ready };
        };
        let is_complete = memmem::find(bytes, b"\n\r\n").is_some() || memmem::find(bytes, b"\n\n").is_some();
        if is_complete || !begin.is_ascii_alphabetic() || bytes.len() >= max_head {
            Self::Ready
        } else if bytes.len() >= MAX_SLOTLESS_HEAD_BYTES {
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
    watch: Arc<ConnectionState>,
    lingered: Option<u64>,
}

impl<T> TrackedSocket<T> {
    pub(crate) const fn new(socket: T, watch: Arc<ConnectionState>) -> Self {
        Self { socket, watch, lingered: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for TrackedSocket<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(limit) = self.watch.read_limit() else { return Poll::Pending };
        let read = ready!(poll_read_buf(Pin::new(&mut self.socket), cx, &mut buf.limit(limit)))?;
        self.watch.record_read(read);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsFd> TrackedSocket<T> {
    fn record(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Ready(Ok(bytes)) => self.watch.record_write(Some(*bytes)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                // If the socket cannot report it, all bytes written to the kernel count as acknowledged.
                self.watch.set_unacked_bytes(unacked_bytes(&self.socket).unwrap_or(0));
                self.watch.record_write(None);
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
        self.record(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.record(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingered.is_none() {
            ready!(Pin::new(&mut self.socket).poll_shutdown(cx))?;
            if !self.watch.is_body_unread() {
                return Poll::Ready(Ok(()));
            }
            self.watch.set_phase(Phase::Lingering);
            self.lingered = Some(0);
        }
        let mut waste = [0; 16 << 10];
        loop {
            let mut buf = ReadBuf::new(&mut waste);
            let read = ready!(Pin::new(&mut self.socket).poll_read(cx, &mut buf));
            let bytes = buf.filled().len();
            self.watch.record_read(bytes);
            let lingered = self.lingered.get_or_insert(0);
            *lingered += bytes as u64;
            if read.is_err() || bytes == 0 || *lingered > MAX_LINGER_BYTES {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// A stream preceded by bytes that were read from it already.
#[derive(Debug)]
pub(crate) struct PrefixedStream<T> {
    pub(crate) stream: T,
    pub(crate) prefix: Bytes,
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
        let now = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix.split_to(now));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PrefixedStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
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
        let large = format!("GET / HTTP/1.1\r\nlong: {}", "v".repeat(MAX_SLOTLESS_HEAD_BYTES));
        for (first, then, progress) in [
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
            let found = HeadProgress::parse(first.as_bytes(), then.as_bytes(), 32 << 10);
            assert_eq!(found, progress, "{first:?} {then:?}");
        }
        assert_eq!(HeadProgress::parse(b"GET /", b"long", 9), HeadProgress::Ready);
    }
}
