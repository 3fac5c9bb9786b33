//! A connection's bytes, noted in its [`Watch`], which also bounds how many are read at a time; and the lingering
//! close: after an answer to a request whose body was not read, the client may go on sending for a while before the
//! socket goes, so that it reads the answer instead of a reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::io::poll_read_buf;

use super::watch::{Phase, Watch};

/// The most bytes thrown away while lingering.
const LINGER_BYTES: u64 = 64 << 20;

/// A stream that can be asked whether there is something to read, without reading it.
pub(crate) trait Readable {
    /// Ready once there are bytes, or the end of the stream. Sometimes ready without either.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

impl Readable for Watched<TcpStream> {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.socket.poll_read_ready(cx).map(|_| ())
    }
}

impl Readable for TlsStream<Watched<TcpStream>> {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (socket, session) = self.get_mut();
        // Not while there are bytes that were decrypted and not read.
        if session.wants_read() { socket.poll_readable(cx) } else { Poll::Ready(()) }
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

impl<T: AsyncWrite + AsyncRead + Unpin> Watched<T> {
    fn noted(&self, result: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &result {
            Poll::Ready(Ok(bytes)) => self.watch.note_write(Some(*bytes)),
            Poll::Ready(Err(_)) => {}
            Poll::Pending => self.watch.note_write(None),
        }
        result
    }
}

impl<T: AsyncWrite + AsyncRead + Unpin> AsyncWrite for Watched<T> {
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
