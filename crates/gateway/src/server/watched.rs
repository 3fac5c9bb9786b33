//! A connection's bytes, noted in its [`Watch`], which also bounds how many are read at a time; and the lingering
//! close: after an answer to a request whose body was not read, the client may go on sending for a while before the
//! socket goes, so that it reads the answer instead of a reset.

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

use super::buffers::HEAD_FREE_BYTES;
use super::watch::{Phase, Watch};

/// The most bytes thrown away while lingering.
const LINGER_BYTES: u64 = 64 << 20;

/// A stream that can be waited for without reading from it.
pub(crate) trait Awaited {
    /// True if the stream can wait for a complete head, and not only for its first byte.
    const AWAITS_HEADS: bool;

    /// Ready once there is something worth reading: a whole head, of which `first` was read already; one so large that
    /// it takes more than the first buffer; what is no head; the end of the stream, or an error.
    fn poll_request(&mut self, cx: &mut Context<'_>, first: &[u8]) -> Poll<()>;
}

/// Nothing is read: what the client has sent lies in the kernel until the head is whole.
impl Awaited for Watched<TcpStream> {
    const AWAITS_HEADS: bool = true;

    fn poll_request(&mut self, cx: &mut Context<'_>, first: &[u8]) -> Poll<()> {
        let Self { socket, watch, .. } = self;
        let max_head = watch.max_head_bytes();
        if Progress::of(first, &[], max_head) == Progress::Enough {
            return Poll::Ready(());
        }
        loop {
            if ready!(socket.poll_read_ready(cx)).is_err() {
                return Poll::Ready(());
            }
            let mut found = Progress::Nothing;
            // A failed look makes the runtime wait for more than there is now.
            let looked = socket.try_io(Interest::READABLE, || {
                let mut bytes = [0; HEAD_FREE_BYTES];
                let (_, length) = recv(&*socket, &mut bytes, RecvFlags::PEEK)?;
                found = if length == 0 {
                    Progress::Enough
                } else {
                    Progress::of(first, &bytes[..length], max_head)
                };
                if found == Progress::Some { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match found {
                Progress::Nothing if looked.is_ok() => return Poll::Ready(()),
                Progress::Nothing => {}
                Progress::Some => watch.set_phase(Phase::Head),
                Progress::Large => {
                    watch.set_phase(Phase::Head);
                    return if watch.take_slot() { Poll::Ready(()) } else { Poll::Pending };
                }
                Progress::Enough => return Poll::Ready(()),
            }
            if looked.is_err_and(|e| e.kind() != io::ErrorKind::WouldBlock) {
                return Poll::Ready(());
            }
        }
    }
}

impl Awaited for TlsStream<Watched<TcpStream>> {
    const AWAITS_HEADS: bool = false;

    fn poll_request(&mut self, cx: &mut Context<'_>, first: &[u8]) -> Poll<()> {
        let (Watched { socket, .. }, session) = self.get_mut();
        // Not while there are bytes that were decrypted and not read.
        if !first.is_empty() || !session.wants_read() {
            return Poll::Ready(());
        }
        // The runtime may take a socket for readable that is not: it is asked.
        let mut byte = [0; 1];
        socket.poll_peek(cx, &mut ReadBuf::new(&mut byte)).map(|_| ())
    }
}

/// The state of a request's head in the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No byte.
    Nothing,
    /// The beginning.
    Some,
    /// A beginning that needs a slot.
    Large,
    /// All of it; or what is no head, or too large for one, and is answered so.
    Enough,
}

impl Progress {
    fn of(first: &[u8], then: &[u8], max_head: usize) -> Self {
        let joined;
        let bytes = if first.is_empty() {
            then
        } else {
            joined = [first, then].concat();
            &joined
        };
        let Some(begin) = bytes.iter().find(|byte| !matches!(byte, b'\r' | b'\n')) else {
            return if bytes.len() < HEAD_FREE_BYTES { Self::Some } else { Self::Enough };
        };
        let is_whole = memmem::find(bytes, b"\n\r\n").is_some() || memmem::find(bytes, b"\n\n").is_some();
        if is_whole || !begin.is_ascii_alphabetic() || bytes.len() >= max_head {
            Self::Enough
        } else if bytes.len() >= HEAD_FREE_BYTES {
            Self::Large
        } else {
            Self::Some
        }
    }
}

/// A socket with its watch.
#[derive(Debug)]
pub(crate) struct Watched<T> {
    socket: T,
    watch: Arc<Watch>,
    lingered: Option<u64>,
}

impl<T> Watched<T> {
    pub(crate) const fn new(socket: T, watch: Arc<Watch>) -> Self {
        Self { socket, watch, lingered: None }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Watched<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(limit) = self.watch.read_limit() else { return Poll::Pending };
        let read = ready!(poll_read_buf(Pin::new(&mut self.socket), cx, &mut buf.limit(limit)))?;
        self.watch.note_read(read);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsFd> Watched<T> {
    fn noted(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Ready(Ok(bytes)) => self.watch.note_write(Some(*bytes)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                // A socket that cannot say it counts as empty: then what went to the kernel is what moved.
                self.watch.note_untaken(untaken(&self.socket).unwrap_or(0));
                self.watch.note_write(None);
            }
        }
        result
    }
}

/// The opcode of `SIOCOUTQ`, where Linux has its generic numbers.
const SIOCOUTQ: Opcode = 0x5411;

/// Bytes written to a socket that the other side has not acknowledged.
fn untaken(socket: impl AsFd) -> io::Result<u64> {
    // SAFETY: `SIOCOUTQ` writes one `int`, and `Getter` gives it room for that.
    let bytes = unsafe { ioctl(socket, Getter::<SIOCOUTQ, c_int>::new()) }?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

impl<T: AsyncWrite + AsyncRead + AsFd + Unpin> AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.noted(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.noted(result)
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
            self.watch.note_read(bytes);
            let lingered = self.lingered.get_or_insert(0);
            *lingered += bytes as u64;
            if read.is_err() || bytes == 0 || *lingered > LINGER_BYTES {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// A stream of which some bytes were read already: they come first.
#[derive(Debug)]
pub(crate) struct Replayed<T> {
    pub(crate) stream: T,
    pub(crate) first: Bytes,
}

impl<T: AsyncRead + Unpin> AsyncRead for Replayed<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let now = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first.split_to(now));
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Replayed<T> {
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
    fn what_is_worth_reading() {
        let large = format!("GET / HTTP/1.1\r\nlong: {}", "v".repeat(HEAD_FREE_BYTES));
        for (first, then, progress) in [
            ("", "G", Progress::Some),
            ("", "\r\n", Progress::Some),
            ("", "GET / HTTP/1.1\r\nhost: a\r\n", Progress::Some),
            ("", "GET / HTTP/1.1\r\nhost: a\r\n\r\n", Progress::Enough),
            ("", "\r\nGET / HTTP/1.1\nhost: a\n\n", Progress::Enough),
            ("GET / HTTP/1.1\r\nhost: a\r", "\n\r\n", Progress::Enough),
            ("GET / HTTP/1.1\r\nhost: a\r\n\r", "", Progress::Some),
            ("GET / HTTP/1.1\r\n\r\n", "", Progress::Enough),
            ("", "\x16\x03\x01", Progress::Enough),
            ("", &large, Progress::Large),
            (&large, "", Progress::Large),
        ] {
            let found = Progress::of(first.as_bytes(), then.as_bytes(), 32 << 10);
            assert_eq!(found, progress, "{first:?} {then:?}");
        }
        assert_eq!(Progress::of(b"GET /", b"long", 9), Progress::Enough);
    }
}
