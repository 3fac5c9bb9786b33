//! One connection: TLS where asked for, then HTTP/1.1 by hyper until it is over or told to go.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::watch::{Command, Phase, Watch};
use super::watched::Watched;
use super::{Shared, service};

/// The most bytes read of a connection at a time, and the most that hyper keeps of one.
pub(super) const BUFFER_BYTES: usize = 128 << 10;

/// What a connection over the limit is told.
pub(super) const TURNED_AWAY: &[u8] = b"HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\n\
content-length: 125\r\nconnection: close\r\n\r\n\
<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
<Error><Code>SlowDown</Code><Message>There are too many connections.</Message></Error>";

pub(super) async fn serve(shared: &Arc<Shared>, socket: TcpStream, peer: SocketAddr, watch: Arc<Watch>) {
    let socket = Watched::new(socket, watch.clone());
    match &shared.tls {
        None => {
            watch.set_phase(Phase::Idle);
            serve_http(shared, socket, peer, watch).await;
        }
        Some(tls) => match until_closed(&watch, tls.accept(socket)).await {
            Some(Ok(socket)) => {
                watch.set_phase(Phase::Idle);
                serve_http(shared, socket, peer, watch).await;
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

async fn serve_http<T>(shared: &Arc<Shared>, socket: T, peer: SocketAddr, watch: Arc<Watch>)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(|request| {
        let (shared, watch) = (shared.clone(), watch.clone());
        async move { Ok::<_, Infallible>(service::serve(shared, watch, request).await) }
    });
    let mut connection = pin!(shared.http.serve_connection(TokioIo::new(socket), service));
    let mut finishing = false;
    let ended = std::future::poll_fn(|cx| {
        watch.waker.register(cx.waker());
        match watch.command() {
            Command::Serve => {}
            Command::Close => return Poll::Ready(None),
            Command::Finish | Command::FailBody if !finishing => {
                finishing = true;
                connection.as_mut().graceful_shutdown();
            }
            Command::Finish | Command::FailBody => {}
        }
        connection.as_mut().poll(cx).map(Some)
    })
    .await;
    match ended {
        Some(Ok(())) => {}
        Some(Err(e)) => tracing::debug!(%peer, error = %e, "the connection ended early"),
        None => {
            shared.metrics.drop_slow_client();
            tracing::debug!(%peer, "the client was too slow; its connection is closed");
        }
    }
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
