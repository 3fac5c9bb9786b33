//! Sockets as hyper and TLS see them. [`CountedStream`] counts bytes and sets the wake-up threshold. [`PlainSocket`],
//! for plain HTTP, skips `shutdown`: the drop that follows closes the connection anyway. Some services close a
//! connection after one response, and the system call would then be paid per request.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tradewind_core::Traffic;

use super::rcv_lowat::{AppliedThreshold, RcvLowat};
use super::send_queue::SocketSendQueue;

/// A TCP stream that counts the bytes in each direction and applies the wake-up threshold.
pub(super) struct CountedStream {
    stream: TcpStream,
    traffic: Option<Arc<Traffic>>,
    /// Set if traffic is counted.
    send_queue: Option<Arc<SocketSendQueue>>,
    rcv_lowat: Arc<RcvLowat>,
    applied_threshold: AppliedThreshold,
}

impl CountedStream {
    pub fn new(stream: TcpStream, traffic: Option<Arc<Traffic>>, rcv_lowat: Arc<RcvLowat>) -> Self {
        if let (Some(traffic), Ok(address)) = (&traffic, stream.peer_addr()) {
            traffic.record_connection(address);
        }
        let send_queue = traffic.is_some().then(|| Arc::new(SocketSendQueue::new(&stream)));
        let applied_threshold = AppliedThreshold::DEFAULT;
        Self { stream, traffic, send_queue, rcv_lowat, applied_threshold }
    }

    /// The bytes sent and delivered, if traffic is counted.
    pub fn send_queue(&self) -> Option<Arc<SocketSendQueue>> {
        self.send_queue.clone()
    }

    fn count_sent(&self, written: Poll<Result<usize>>) -> Poll<Result<usize>> {
        if let (Some(traffic), Poll::Ready(Ok(bytes))) = (&self.traffic, &written) {
            traffic.record_sent(*bytes);
        }
        if let (Some(queue), Poll::Ready(Ok(bytes))) = (&self.send_queue, &written) {
            queue.record_sent(*bytes);
        }
        written
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        if let Some(queue) = &self.send_queue {
            queue.close();
        }
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let Self { stream, traffic, rcv_lowat, applied_threshold, .. } = &mut *self;
        if let Err(e) = applied_threshold.apply(stream, rcv_lowat, cx) {
            tracing::debug!(error = %e, "cannot set SO_RCVLOWAT: the reader is woken for each packet");
        }
        let before = buffer.filled().len();
        let read = ready!(Pin::new(stream).poll_read(cx, buffer));
        let bytes = buffer.filled().len() - before;
        rcv_lowat.record_received(bytes);
        if let Some(traffic) = traffic {
            traffic.record_received(bytes);
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.count_sent(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.count_sent(written)
    }
}

/// A connection without TLS.
pub(super) struct PlainSocket(TokioIo<CountedStream>);

impl PlainSocket {
    pub fn new(stream: CountedStream) -> Self {
        Self(TokioIo::new(stream))
    }

    fn inner(self: Pin<&mut Self>) -> Pin<&mut TokioIo<CountedStream>> {
        Pin::new(&mut self.get_mut().0)
    }
}

impl Read for PlainSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<Result<()>> {
        self.inner().poll_read(cx, buffer)
    }
}

impl Write for PlainSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.inner().poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.inner().poll_flush(cx)
    }

    /// Does nothing: hyper drops the connection next.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.inner().poll_write_vectored(cx, slices)
    }
}
