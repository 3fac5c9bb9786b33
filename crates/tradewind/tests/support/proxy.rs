//! An HTTP proxy: it opens tunnels for https, and forwards requests in absolute form for http. Whatever the host, it
//! connects to one server, so that tests can use names that do not exist.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http::header::PROXY_AUTHORIZATION;
use http::{Method, Request, StatusCode, Uri};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::http_server::{AnyResponse, HttpServer, empty, forward};

/// The behaviour of a proxy.
pub struct ProxyOptions {
    /// The value of `Proxy-Authorization` without which requests get status 407.
    pub authorization: Option<&'static str>,
    /// The status of all responses.
    pub status: Option<StatusCode>,
    /// Clients connect with TLS.
    pub tls: Option<TlsAcceptor>,
}

/// A running proxy.
pub struct TestProxy {
    server: HttpServer,
    passed: Arc<Mutex<Vec<String>>>,
}

impl TestProxy {
    /// Starts a proxy in front of a server. It has no limits.
    pub fn start(target: SocketAddr) -> Self {
        Self::start_with(target, ProxyOptions { authorization: None, status: None, tls: None })
    }

    pub fn start_with(target: SocketAddr, options: ProxyOptions) -> Self {
        let ProxyOptions { authorization, status, tls } = options;
        let passed = Arc::new(Mutex::new(Vec::new()));
        let log = passed.clone();
        let server = HttpServer::start(tls, move |mut request: Request<Incoming>| {
            let log = log.clone();
            async move {
                let sent = request.headers_mut().remove(PROXY_AUTHORIZATION);
                if authorization.is_some_and(|wanted| sent.is_none_or(|sent| sent != wanted)) {
                    return empty(StatusCode::PROXY_AUTHENTICATION_REQUIRED);
                }
                log.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
                match status {
                    Some(status) => empty(status),
                    None if request.method() == Method::CONNECT => tunnel(request, target).await,
                    None => forward_absolute(request, target).await,
                }
            }
        });
        Self { server, passed }
    }

    /// Host and port.
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Method and target of all requests to the proxy, except those without the credentials.
    pub fn passed(&self) -> Vec<String> {
        self.passed.lock().unwrap().clone()
    }
}

async fn tunnel(mut request: Request<Incoming>, target: SocketAddr) -> AnyResponse {
    let Ok(mut socket) = TcpStream::connect(target).await else { return empty(StatusCode::BAD_GATEWAY) };
    tokio::spawn(async move {
        let client = hyper::upgrade::on(&mut request).await.unwrap();
        // Either side may end the tunnel.
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut socket).await;
    });
    empty(StatusCode::OK)
}

/// Rejects requests that are not in absolute form, or whose host differs from their target.
async fn forward_absolute(mut request: Request<Incoming>, target: SocketAddr) -> AnyResponse {
    let host = request.headers().get("host").and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(|authority| authority.as_str());
    if request.uri().scheme_str() != Some("http") || host != authority {
        return empty(StatusCode::BAD_REQUEST);
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    *request.uri_mut() = path.parse::<Uri>().unwrap();
    forward(request, target).await
}
