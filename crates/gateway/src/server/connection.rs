//! One connection: TLS if configured, then HTTP/1.1 by hyper until the connection ends or gets a command to close.
//!
//! An idle connection is *parked*: it keeps its socket but drops its buffers until a request arrives.

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

use super::connection_state::{Command, ConnectionState, IdleAction, Phase, WaitingFor};
use super::tracked_socket::{AwaitRequest, PrefixedStream, TrackedSocket};
use super::{GatewayState, Registered, service};

/// hyper's limit for the read buffer of a connection, which also bounds a single read, and for the response bytes that
/// it queues before it stops polling the body (`max_buf_size`).
pub(super) const MAX_BUFFER_BYTES: usize = 128 << 10;

/// The response to a connection that is rejected or turned away.
pub(super) const SLOW_DOWN_RESPONSE: &[u8] = b"HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\n\
content-length: 138\r\nconnection: close\r\n\r\n\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
<Error><Code>SlowDown</Code><Message>The server is at a limit of its connections.</Message></Error>";

/// The response to a head with more headers or bytes than hyper accepts.
pub(super) const HEAD_TOO_LARGE_RESPONSE: &[u8] =
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/xml\r\n\
content-length: 198\r\nconnection: close\r\n\r\n\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
<Error><Code>RequestHeaderSectionTooLarge</Code>\
<Message>Your request header section exceeds the maximum allowed request header section size.</Message></Error>";

/// The reason why serving HTTP on a connection ended or was suspended.
enum HttpEnd {
    /// hyper finished.
    Finished(hyper::Result<()>),
    /// The connection received this command.
    Commanded(Command),
    /// The connection is idle and drops its buffers.
    Parked,
    /// The connection is idle and is closed to make room for another one.
    Evicted,
}

pub(super) async fn serve(registered: &Registered, socket: TcpStream, address: SocketAddr) {
    let Registered { shared, connection, .. } = registered;
    let socket = TrackedSocket::new(socket, connection.clone());
    match &shared.tls {
        None => serve_http(registered, socket, address).await,
        // Boxed: otherwise the TLS state would enlarge every connection's task.
        Some(tls) => match Box::pin(handshake_unless_closed(connection, tls.accept(socket))).await {
            Some(Ok(socket)) => {
                connection.end_request();
                Box::pin(serve_http(registered, socket, address)).await;
            }
            Some(Err(e)) => tracing::debug!(%address, error = %e, "the TLS handshake failed"),
            None if connection.command() == Command::Close => record_slow_client(shared, address),
            None => tracing::debug!(%address, "the connection was closed during its TLS handshake"),
        },
    }
}

/// Drives a TLS handshake. Returns `None` if the connection gets a command to close first.
async fn handshake_unless_closed<F: Future>(connection: &ConnectionState, handshake: F) -> Option<F::Output> {
    let mut handshake = pin!(handshake);
    std::future::poll_fn(|cx| {
        connection.waker.register(cx.waker());
        if connection.command() != Command::None {
            return Poll::Ready(None);
        }
        handshake.as_mut().poll(cx).map(Some)
    })
    .await
}

async fn serve_http<T>(registered: &Registered, socket: T, address: SocketAddr)
where
    T: AwaitRequest + AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Registered { shared, connection, .. } = registered;
    let service = service_fn(|request| {
        let (shared, connection) = (shared.clone(), connection.clone());
        async move { Ok::<_, Infallible>(service::serve(shared, connection, request).await) }
    });
    let mut stream = PrefixedStream { stream: socket, prefix: Bytes::new(), connection: connection.clone() };
    loop {
        if !wait_for_request(registered, &mut stream).await {
            let command = connection.command();
            if command == Command::TurnAway {
                shared.metrics.count_refused_connection();
                turn_away(connection, &mut stream).await;
                return;
            }
            if command == Command::Close {
                record_slow_client(shared, address);
            }
            shut_down(&mut stream).await;
            return;
        }
        // hyper starts with a small buffer, so a pending `IdleAction::Park` is obsolete.
        connection.reset_buffer_state();
        let mut http = shared.http.serve_connection(TokioIo::new(stream), &service);
        let mut is_finishing = false;
        let ended = std::future::poll_fn(|cx| {
            connection.waker.register(cx.waker());
            if connection.command() == Command::TurnAway && connection.is_store_working() {
                // The command was raised while the request waited, but the store has begun to work on it since.
                connection.downgrade_to_finish();
                shared.connections.withdraw_eviction(registered.id);
            }
            match connection.command() {
                Command::None => {}
                command @ (Command::TurnAway | Command::Close) => {
                    return Poll::Ready(HttpEnd::Commanded(command));
                }
                Command::Finish | Command::FailBody if !is_finishing => {
                    is_finishing = true;
                    Pin::new(&mut http).graceful_shutdown();
                }
                Command::Finish | Command::FailBody => {}
            }
            if let Poll::Ready(ended) = Pin::new(&mut http).poll(cx) {
                return Poll::Ready(HttpEnd::Finished(ended));
            }
            match connection.idle_action() {
                IdleAction::Park if is_finishing => {}
                IdleAction::Park
                    if connection.is_idle() || T::AWAITS_HEADS && connection.is_in_small_head() =>
                {
                    return Poll::Ready(HttpEnd::Parked);
                }
                IdleAction::Close if connection.is_idle() => return Poll::Ready(HttpEnd::Evicted),
                IdleAction::Close => shared.connections.withdraw_eviction(registered.id),
                IdleAction::Park | IdleAction::None => {}
            }
            Poll::Pending
        })
        .await;
        let parts = match ended {
            HttpEnd::Finished(Ok(())) => return,
            HttpEnd::Finished(Err(e)) => {
                tracing::debug!(%address, error = %e, "the connection ended early");
                return;
            }
            HttpEnd::Parked | HttpEnd::Evicted | HttpEnd::Commanded(Command::TurnAway) => http.into_parts(),
            HttpEnd::Commanded(_) => {
                record_slow_client(shared, address);
                return;
            }
        };
        let (io, unread) = (parts.io.into_inner(), parts.read_buf);
        // Copied, so that hyper's buffer is freed.
        let prefix = [unread, io.prefix].concat().into();
        stream = PrefixedStream { stream: io.stream, prefix, connection: connection.clone() };
        match ended {
            HttpEnd::Parked => connection.reset_buffer_state(),
            HttpEnd::Evicted => {
                shut_down(&mut stream).await;
                return;
            }
            _ => {
                shared.metrics.count_refused_connection();
                turn_away(connection, &mut stream).await;
                return;
            }
        }
    }
}

/// Waits until a request can be read. Returns false if the connection gets a command to close instead.
async fn wait_for_request<T: AwaitRequest>(registered: &Registered, stream: &mut PrefixedStream<T>) -> bool {
    let connection = &registered.connection;
    std::future::poll_fn(|cx| {
        connection.waker.register(cx.waker());
        if connection.command() != Command::None {
            return Poll::Ready(false);
        }
        if stream.stream.poll_request(cx, &stream.prefix).is_ready() {
            return Poll::Ready(true);
        }
        match connection.idle_action() {
            IdleAction::Close if connection.is_idle() => return Poll::Ready(false),
            IdleAction::Close => registered.shared.connections.withdraw_eviction(registered.id),
            IdleAction::Park | IdleAction::None => {}
        }
        Poll::Pending
    })
    .await
}

/// Records that a connection is closed because its client was too slow ([`Command::Close`]).
fn record_slow_client(shared: &GatewayState, address: SocketAddr) {
    shared.metrics.count_slow_client();
    tracing::debug!(%address, "the client was too slow; its connection is closed");
}

/// Responds with 503 if no response has begun, then shuts down. Makes one attempt at each step and does not wait for
/// the client.
async fn turn_away<T: AsyncWrite + Unpin>(connection: &ConnectionState, stream: &mut T) {
    let has_no_response = matches!(connection.waits_for(), WaitingFor::Head | WaitingFor::Body)
        || connection.waits_for() == WaitingFor::Nothing && connection.phase() == Phase::Admission;
    if has_no_response {
        try_once(|cx| Pin::new(&mut *stream).poll_write(cx, SLOW_DOWN_RESPONSE)).await;
        try_once(|cx| Pin::new(&mut *stream).poll_flush(cx)).await;
    }
    shut_down(stream).await;
}

async fn shut_down<T: AsyncWrite + Unpin>(stream: &mut T) {
    try_once(|cx| Pin::new(&mut *stream).poll_shutdown(cx)).await;
}

/// Polls once and ignores the result: the socket is closed next.
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
    fn constant_responses_have_the_right_content_length() {
        for response in [super::SLOW_DOWN_RESPONSE, super::HEAD_TOO_LARGE_RESPONSE] {
            let text = std::str::from_utf8(response).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
        }
    }
}
