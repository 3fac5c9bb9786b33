//! Opens a tunnel to an https peer through an HTTP proxy (`CONNECT`, RFC 9110 section 9.3.6). Failures are classified
//! like those of a direct connect: a proxy that cannot reach the peer may do so later, one that denies the tunnel will
//! not.

use std::error::Error as _;
use std::io;
use std::pin::pin;

use bytes::Bytes;
use http::header::{HOST, PROXY_AUTHORIZATION};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tradewind_core::error::{Error, Reason, Result};

use super::header_fields::host_value;
use super::peer::Peer;
use super::proxy::Proxy;

/// Opens a tunnel to `peer` on a connection to the proxy, and returns the connection. It has no deadline of its own.
///
/// # Errors
/// All messages name the proxy. [`AccessDenied`](Reason::AccessDenied) if it rejects the credentials or the tunnel,
/// [`InvalidArgument`](Reason::InvalidArgument) if it is no HTTP proxy, [`Io`](Reason::Io) if it fails or cannot reach
/// the peer. The source of the latter is an [`io::Error`] if a later attempt may succeed.
pub(super) async fn open<S>(proxy: &Proxy, peer: &Peer, stream: S) -> Result<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let request = connect_request(proxy, peer)?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|e| exchange_error(proxy, e))?;
    let mut connection = pin!(connection.with_upgrades());
    let mut exchange = pin!(async {
        let response = sender.send_request(request).await.map_err(|e| exchange_error(proxy, e))?;
        if !response.status().is_success() {
            return Err(rejection(proxy, peer, &response));
        }
        hyper::upgrade::on(response).await.map_err(|e| exchange_error(proxy, e))
    });
    let upgraded = tokio::select! {
        biased;
        upgraded = exchange.as_mut() => upgraded,
        // Its error, if any, has been passed to the exchange.
        _ = connection.as_mut() => exchange.await,
    };
    let parts = upgraded?.downcast::<TokioIo<S>>();
    let parts = parts.map_err(|_| Error::new(Reason::Defect, "the tunnel is of another type"))?;
    if !parts.read_buf.is_empty() {
        return Err(not_a_proxy(proxy));
    }
    Ok(parts.io.into_inner())
}

fn connect_request(proxy: &Proxy, peer: &Peer) -> Result<Request<Empty<Bytes>>> {
    // The port is always written here, also the default one.
    let target = if peer.host.contains(':') {
        format!("[{}]:{}", peer.host, peer.port)
    } else {
        format!("{}:{}", peer.host, peer.port)
    };
    let mut request = Request::new(Empty::new());
    *request.method_mut() = Method::CONNECT;
    *request.uri_mut() = target.parse::<Uri>().map_err(|e| {
        Error::with_source(Reason::InvalidArgument, "the endpoint is not a valid host name", e)
    })?;
    request.headers_mut().insert(HOST, host_value(target)?);
    if let Some(authorization) = proxy.authorization() {
        request.headers_mut().insert(PROXY_AUTHORIZATION, authorization.clone());
    }
    Ok(request)
}

/// The error of a response other than success.
fn rejection(proxy: &Proxy, peer: &Peer, response: &Response<Incoming>) -> Error {
    let status = response.status();
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        return credentials_rejected(proxy);
    }
    let what = format!("the proxy {proxy} rejected a tunnel to {peer} with status {status}");
    match status {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            let what = format!("the proxy {proxy} cannot reach {peer}: it responded with status {status}");
            Error::with_source(Reason::Io, what, io::Error::from(io::ErrorKind::HostUnreachable))
        }
        StatusCode::TOO_MANY_REQUESTS => Error::new(Reason::Io, what),
        _ if status.is_server_error() => Error::new(Reason::Io, what),
        _ => Error::new(
            Reason::AccessDenied,
            format!("{what}; if {peer} is reachable without it, add the host to NO_PROXY"),
        ),
    }
}

/// The error of status 407, which only a proxy sends.
pub(super) fn credentials_rejected(proxy: &Proxy) -> Error {
    let why = match proxy.authorization() {
        Some(_) => "rejects the user or password in its URL",
        None => "needs a user and password; write its URL as http://USER:PASSWORD@HOST:PORT",
    };
    let status = StatusCode::PROXY_AUTHENTICATION_REQUIRED;
    Error::new(Reason::AccessDenied, format!("the proxy {proxy} {why} (status {status})"))
}

fn not_a_proxy(proxy: &Proxy) -> Error {
    let why = format!("{proxy} does not respond like an HTTP proxy; check the proxy's URL");
    Error::new(Reason::InvalidArgument, why)
}

/// The error of an exchange without a response.
fn exchange_error(proxy: &Proxy, e: hyper::Error) -> Error {
    if e.is_parse() {
        return not_a_proxy(proxy);
    }
    let kind =
        e.source().and_then(|e| e.downcast_ref()).map_or(io::ErrorKind::UnexpectedEof, io::Error::kind);
    let what = format!("the connection to the proxy {proxy} failed: {e}");
    Error::with_source(Reason::Io, what, io::Error::new(kind, e))
}
