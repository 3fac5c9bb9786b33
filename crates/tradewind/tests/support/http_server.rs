//! An HTTP server with a function for its responses, in its own runtime, and a forwarder to another server.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;

/// A response with any body.
pub type AnyResponse = Response<BoxBody<Bytes, hyper::Error>>;

/// A running server; dropping it stops it.
pub struct HttpServer {
    pub address: SocketAddr,
    runtime: Option<Runtime>,
}

impl HttpServer {
    /// Starts a server on loopback, with TLS if there is an acceptor.
    pub fn start<F, R>(acceptor: Option<TlsAcceptor>, respond: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
        R: Future<Output = AnyResponse> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let respond = Arc::new(respond);
        runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((socket, _)) = listener.accept().await {
                socket.set_nodelay(true).unwrap();
                let (acceptor, respond) = (acceptor.clone(), respond.clone());
                tokio::spawn(async move {
                    match acceptor {
                        None => serve(socket, respond).await,
                        Some(acceptor) => {
                            // A client that does not speak TLS gets no response.
                            if let Ok(secured) = acceptor.accept(socket).await {
                                serve(secured, respond).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, runtime: Some(runtime) }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve<S, F, R>(socket: S, respond: Arc<F>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Request<Incoming>) -> R + Send + Sync + 'static,
    R: Future<Output = AnyResponse> + Send + 'static,
{
    let service = service_fn(move |request| {
        let response = respond(request);
        async move { Ok::<_, std::convert::Infallible>(response.await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.max_buf_size(1 << 20).max_headers(200);
    // The client may close the connection at any time.
    let _ = builder.serve_connection(TokioIo::new(socket), service).with_upgrades().await;
}

/// A response without a body.
pub fn empty(status: StatusCode) -> AnyResponse {
    let mut response = Response::new(Full::new(Bytes::new()).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response
}

/// Sends a request in origin form to another server. A failure is status 502.
pub async fn forward(request: Request<Incoming>, to: SocketAddr) -> AnyResponse {
    let sent = async {
        let socket = TcpStream::connect(to).await.ok()?;
        socket.set_nodelay(true).ok()?;
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder.max_buf_size(1 << 20).max_headers(200);
        let (mut sender, connection) = builder.handshake(TokioIo::new(socket)).await.ok()?;
        tokio::spawn(connection);
        sender.send_request(request).await.ok()
    };
    match sent.await {
        Some(response) => response.map(BodyExt::boxed),
        None => empty(StatusCode::BAD_GATEWAY),
    }
}
