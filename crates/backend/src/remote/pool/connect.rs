//! Opens connections of a pool: TCP to the peer or to its proxy, a tunnel, TLS and HTTP. Errors of a proxy name it.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tradewind_core::error::{Error, Reason, Result};

use super::{Driver, HttpConnection, NO_RTT, Pool, current_runtime};
use crate::remote::payload::Payload;
use crate::remote::peer::Peer;
use crate::remote::proxy::Proxy;
use crate::remote::rcv_lowat::RcvLowat;
use crate::remote::socket::{CountedStream, PlainSocket};
use crate::remote::tunnel;

/// Minimum size of a read buffer: a response head must fit.
const MIN_READ_BYTES: usize = 32 << 10;
/// Maximum number of headers of a response. Each metadata entry of an object is one.
const MAX_RESPONSE_HEADERS: usize = 300;

/// The two halves of an HTTP connection.
type Halves = (SendRequest<Payload>, Driver);

impl Pool {
    pub(super) async fn connect_with_timeout(&self) -> Result<HttpConnection> {
        let connected = tokio::time::timeout(self.options.connect_timeout, self.connect()).await;
        connected.map_err(|_| {
            let proxy = self.options.proxies.proxy_for(&self.peer).ok().flatten();
            let through = proxy.map(|proxy| format!(" through the proxy {proxy}")).unwrap_or_default();
            let (peer, seconds) = (&self.peer, self.options.connect_timeout.as_secs());
            let why = format!("connecting to {peer}{through} timed out after {seconds} s");
            Error::with_source(Reason::Io, why, io::Error::from(io::ErrorKind::TimedOut))
        })?
    }

    async fn connect(&self) -> Result<HttpConnection> {
        // Read first: a failure while the connection is being opened counts for it.
        let generation = self.generation.load(Ordering::Acquire);
        let runtime = current_runtime();
        let rcv_lowat = Arc::new(RcvLowat::default());
        let proxy = self.options.proxies.proxy_for(&self.peer)?;
        let Dialed { socket, address } = match proxy {
            None => self.dial_peer().await?,
            Some(proxy) => self.dial_proxy(proxy).await?,
        };
        let socket = CountedStream::new(socket, self.options.traffic.clone(), rcv_lowat.clone());
        let send_queue = socket.send_queue();
        let (sender, driver) = match proxy {
            None => self.handshakes(socket).await?,
            // Boxed, so that direct connections do not pay for the size of this future.
            Some(proxy) => Box::pin(self.handshakes_through(proxy, address, socket)).await?,
        };
        let life = self.evidence.add_connection(self.clock.now());
        Ok(HttpConnection { sender, driver: Some(driver), rcv_lowat, send_queue, runtime, generation, life })
    }

    async fn dial_peer(&self) -> Result<Dialed> {
        let dialed = self.dial(&self.peer).await;
        let TimedDial { dialed, took } = dialed.map_err(|e| connect_error("connecting to", &self.peer, e))?;
        self.record_connect_time(dialed.address, took);
        Ok(dialed)
    }

    /// The time of the connect is not that of the path to the peer.
    async fn dial_proxy(&self, proxy: &Proxy) -> Result<Dialed> {
        let dialed = self.dial(proxy.peer()).await;
        let TimedDial { dialed, .. } =
            dialed.map_err(|e| connect_error("connecting to the proxy", proxy, e))?;
        Ok(dialed)
    }

    async fn handshakes_through(
        &self,
        proxy: &Proxy,
        address: SocketAddr,
        socket: CountedStream,
    ) -> Result<Halves> {
        if !proxy.peer().is_tls {
            return self.proxy_handshakes(proxy, address, socket).await;
        }
        let secured = self.tls_handshake(proxy.peer(), socket).await.map_err(|e| match e {
            TlsError::Untried(e) => e,
            TlsError::NotTls => {
                let peer = Peer { is_tls: false, ..proxy.peer().clone() };
                let why = format!("the proxy {proxy} does not speak TLS; try http://{peer}");
                Error::new(Reason::InvalidArgument, why)
            }
            TlsError::Failed(e) => connect_error("TLS with the proxy", proxy, e),
        })?;
        self.proxy_handshakes(proxy, address, secured).await
    }

    /// Opens a tunnel for an https peer. An http peer's requests are sent to the proxy itself.
    async fn proxy_handshakes<S>(&self, proxy: &Proxy, address: SocketAddr, socket: S) -> Result<Halves>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + Sync + 'static,
    {
        if !self.peer.is_tls {
            return self.http_handshake(TokioIo::new(socket)).await;
        }
        let started = self.clock.now();
        let tunnel = tunnel::open(proxy, &self.peer, socket).await?;
        // The proxy responds when it has connected to the peer, so this is about one RTT of the whole path.
        self.record_connect_time(address, self.clock.now().saturating_sub(started));
        let secured = self.tls_handshake(&self.peer, tunnel).await.map_err(|e| self.tls_error(e))?;
        self.http_handshake(TokioIo::new(secured)).await
    }

    async fn dial(&self, to: &Peer) -> io::Result<TimedDial> {
        let addresses: Vec<_> = lookup_host((to.host.as_str(), to.port)).await?.collect();
        let started = self.clock.now();
        let socket = TcpStream::connect(&addresses[..]).await?;
        let took = self.clock.now().saturating_sub(started);
        let address = socket.peer_addr()?;
        socket.set_nodelay(true)?;
        Ok(TimedDial { dialed: Dialed { socket, address }, took })
    }

    /// Records the time that a connect took. Loopback is ignored: it may be the near end of a tunnel.
    pub(super) fn record_connect_time(&self, to: SocketAddr, took: Duration) {
        if !to.ip().to_canonical().is_loopback() {
            let took = u64::try_from(took.as_nanos()).unwrap_or(NO_RTT);
            self.min_rtt_nanos.fetch_min(took, Ordering::Relaxed);
        }
    }

    async fn handshakes(&self, socket: CountedStream) -> Result<Halves> {
        if !self.peer.is_tls {
            return self.http_handshake(PlainSocket::new(socket)).await;
        }
        // Boxed, so that plain connections do not pay for the size of this future.
        let secured =
            Box::pin(self.tls_handshake(&self.peer, socket)).await.map_err(|e| self.tls_error(e))?;
        self.http_handshake(TokioIo::new(secured)).await
    }

    async fn tls_handshake<S>(&self, with: &Peer, socket: S) -> Result<TlsStream<S>, TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let host = &with.host;
        let name = ServerName::try_from(host.clone()).map_err(|e| {
            let why = format!("{host:?} is not a host name");
            TlsError::Untried(Error::with_source(Reason::InvalidArgument, why, e))
        })?;
        let secured = TlsConnector::from(self.tls_configuration()?).connect(name, socket).await;
        secured.map_err(|e| if is_not_tls(&e) { TlsError::NotTls } else { TlsError::Failed(e) })
    }

    fn tls_configuration(&self) -> Result<Arc<ClientConfig>, TlsError> {
        // `ClientOptions::check_peer` has found it, unless the peer is of another region.
        let missing = || Error::new(Reason::InvalidArgument, "an https peer needs a TLS configuration");
        self.tls.clone().ok_or_else(|| TlsError::Untried(missing()))
    }

    /// The error of a TLS handshake with the peer. A peer that does not speak TLS will not do so on a retry.
    fn tls_error(&self, e: TlsError) -> Error {
        let peer = &self.peer;
        match e {
            TlsError::Untried(e) => e,
            TlsError::NotTls => {
                let plain = Peer { is_tls: false, ..peer.clone() };
                let why = format!("{peer} does not speak TLS; try http://{plain}");
                // The source would only repeat this in other words.
                Error::new(Reason::InvalidArgument, why)
            }
            TlsError::Failed(e) => connect_error("TLS with", peer, e),
        }
    }

    async fn http_handshake<T>(&self, io: T) -> Result<Halves>
    where
        T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + Sync + 'static,
    {
        let handshake = http1::Builder::new()
            .max_buf_size(self.options.read_bytes.max(MIN_READ_BYTES))
            .max_headers(MAX_RESPONSE_HEADERS)
            .handshake(io)
            .await;
        let (sender, connection) = handshake.map_err(|e| {
            Error::with_source(Reason::Io, format!("the HTTP handshake with {} failed", self.peer), e)
        })?;
        Ok((sender, Box::pin(connection)))
    }
}

/// A TCP connection.
struct Dialed {
    socket: TcpStream,
    address: SocketAddr,
}

/// A TCP connection, and the time that the connect took.
struct TimedDial {
    dialed: Dialed,
    took: Duration,
}

/// The failure of a TLS handshake.
enum TlsError {
    /// It could not be tried.
    Untried(Error),
    /// The other side does not speak TLS.
    NotTls,
    Failed(io::Error),
}

fn connect_error(what: &str, with: &dyn fmt::Display, e: io::Error) -> Error {
    Error::with_source(Reason::Io, format!("{what} {with} failed: {e}"), e)
}

/// Returns true if the first bytes from the peer are not a TLS record.
fn is_not_tls(e: &io::Error) -> bool {
    let cause = e.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}
