//! One connection: TLS where asked for, then HTTP/1.1 by hyper until it is over or told to go.
//!
//! A connection that has nothing to do is *parked*: it keeps its socket and gives up its buffers, until there is
//! something worth reading.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::watch::{Command, Phase, Wait, Watch, WhenIdle};
use super::watched::{Awaited, Replayed, Watched};
use super::{Registered, service};

/// The most bytes read of a connection at a time, and the most that hyper keeps of one.
pub(super) const BUFFER_BYTES: usize = 128 << 10;

/// What a connection over the limit is told.
pub(super) const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\n\
content-length: 125\r\nconnection: close\r\n\r\n\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
<Error><Code>SlowDown</Code><Message>There are too many connections.</Message></Error>";

/// The end, or the suspension, of a connection's HTTP.
enum Ended {
    /// It ended by itself.
    Over(hyper::Result<()>),
    /// It was told to end by this command.
    Told(Command),
    /// It waits for a request, and gives up its buffers.
    Parked,
    /// It waits for a request, and makes room for another connection.
    Left,
}

pub(super) async fn serve(registered: &Registered, socket: TcpStream, peer: SocketAddr) {
    let Registered { shared, watch, .. } = registered;
    let socket = Watched::new(socket, watch.clone());
    match &shared.tls {
        None => serve_http(registered, socket, peer).await,
        // Boxed: what TLS needs would be a part of every connection's task.
        Some(tls) => match Box::pin(until_closed(watch, tls.accept(socket))).await {
            Some(Ok(socket)) => {
                watch.end_request();
                Box::pin(serve_http(registered, socket, peer)).await;
            }
            Some(Err(e)) => tracing::debug!(%peer, error = %e, "the TLS handshake failed"),
            None => tracing::debug!(%peer, "the TLS handshake took too long"),
        },
    }
}

/// Drives a handshake unless the connection is told to go.
async fn until_closed<F: Future>(watch: &Watch, work: F) -> Option<F::Output> {
    let mut work = pin!(work);
    std::future::poll_fn(|cx| {
        watch.waker.register(cx.waker());
        if watch.command() != Command::Serve {
            return Poll::Ready(None);
        }
        work.as_mut().poll(cx).map(Some)
    })
    .await
}

async fn serve_http<T>(registered: &Registered, socket: T, peer: SocketAddr)
where
    T: Awaited + AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Registered { shared, watch, .. } = registered;
    let service = service_fn(|request| {
        let (shared, watch) = (shared.clone(), watch.clone());
        async move { Ok::<_, Infallible>(service::serve(shared, watch, request).await) }
    });
    let mut stream = Replayed { stream: socket, first: Bytes::new() };
    loop {
        if !until_request(registered, &mut stream).await {
            if watch.command() == Command::TurnAway {
                shared.metrics.refuse_connection();
                turn_away(watch, &mut stream).await;
            } else {
                shut_down(&mut stream).await;
            }
            return;
        }
        watch.set_buffers_dropped();
        let mut connection = shared.http.serve_connection(TokioIo::new(stream), &service);
        let mut finishing = false;
        let ended = std::future::poll_fn(|cx| {
            watch.waker.register(cx.waker());
            if watch.command() == Command::TurnAway && watch.is_at_work() {
                // It was told so while it waited, and does no more.
                watch.finish_instead();
                shared.connections.withdraw(registered.id);
            }
            match watch.command() {
                Command::Serve => {}
                command @ (Command::TurnAway | Command::Close) => return Poll::Ready(Ended::Told(command)),
                Command::Finish | Command::FailBody if !finishing => {
                    finishing = true;
                    Pin::new(&mut connection).graceful_shutdown();
                }
                Command::Finish | Command::FailBody => {}
            }
            if let Poll::Ready(ended) = Pin::new(&mut connection).poll(cx) {
                return Poll::Ready(Ended::Over(ended));
            }
            match watch.when_idle() {
                WhenIdle::Park if finishing => {}
                WhenIdle::Park if watch.is_idle() || T::AWAITS_HEADS && watch.is_in_small_head() => {
                    return Poll::Ready(Ended::Parked);
                }
                WhenIdle::Leave if watch.is_idle() => return Poll::Ready(Ended::Left),
                WhenIdle::Leave => shared.connections.withdraw(registered.id),
                WhenIdle::Park | WhenIdle::Stay => {}
            }
            Poll::Pending
        })
        .await;
        let rest = match ended {
            Ended::Over(Ok(())) => return,
            Ended::Over(Err(e)) => {
                tracing::debug!(%peer, error = %e, "the connection ended early");
                return;
            }
            Ended::Parked | Ended::Left | Ended::Told(Command::TurnAway) => connection.into_parts(),
            Ended::Told(_) => {
                shared.metrics.drop_slow_client();
                tracing::debug!(%peer, "the client was too slow; its connection is closed");
                return;
            }
        };
        let (io, unread) = (rest.io.into_inner(), rest.read_buf);
        // Without what else is in the library's buffer.
        let first = [unread, io.first].concat().into();
        stream = Replayed { stream: io.stream, first };
        match ended {
            Ended::Parked => watch.set_buffers_dropped(),
            Ended::Left => {
                shut_down(&mut stream).await;
                return;
            }
            _ => {
                shared.metrics.refuse_connection();
                turn_away(watch, &mut stream).await;
                return;
            }
        }
    }
}

/// Waits until there is something worth reading. Returns false if the connection is told to go instead.
async fn until_request<T: Awaited>(registered: &Registered, stream: &mut Replayed<T>) -> bool {
    let watch = &registered.watch;
    std::future::poll_fn(|cx| {
        watch.waker.register(cx.waker());
        if watch.command() != Command::Serve {
            return Poll::Ready(false);
        }
        if stream.stream.poll_request(cx, &stream.first).is_ready() {
            return Poll::Ready(true);
        }
        match watch.when_idle() {
            WhenIdle::Leave if watch.is_idle() => return Poll::Ready(false),
            WhenIdle::Leave => registered.shared.connections.withdraw(registered.id),
            WhenIdle::Park | WhenIdle::Stay => {}
        }
        Poll::Pending
    })
    .await
}

/// Answers 503 if no answer has begun. A client that does not take it at once is not waited for.
async fn turn_away<T: AsyncWrite + Unpin>(watch: &Watch, stream: &mut T) {
    let has_no_answer = matches!(watch.waits_for(), Wait::Head | Wait::Body)
        || watch.waits_for() == Wait::Nothing && watch.phase() == Phase::Admission;
    if has_no_answer {
        try_once(|cx| Pin::new(&mut *stream).poll_write(cx, TURNED_AWAY)).await;
        try_once(|cx| Pin::new(&mut *stream).poll_flush(cx)).await;
    }
    shut_down(stream).await;
}

async fn shut_down<T: AsyncWrite + Unpin>(stream: &mut T) {
    try_once(|cx| Pin::new(&mut *stream).poll_shutdown(cx)).await;
}

/// Polls once. What does not happen at once, or fails, is not worth waiting for: the socket is closed next.
async fn try_once<O>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<O>) {
    std::future::poll_fn(|cx| {
        let _done = poll(cx);
        Poll::Ready(())
    })
    .await;
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_length_is_right() {
        let text = std::str::from_utf8(super::TURNED_AWAY).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }
}
