//! A connection's bytes, noted in its [`Watch`]; and the lingering close: after an answer to a request
//! whose body was not read, the client may go on sending for a while before the socket goes, so that
//! it reads the answer instead of a reset.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::watch::{Phase, Watch};

/// The most bytes thrown away while lingering.
const LINGER_BYTES: u64 = 64 << 20;

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
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, buf))?;
        self.watch.note_read(buf.filled().len() - before);
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
