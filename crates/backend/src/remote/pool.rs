//! Connections to one store: at most so many at a time, the last one used taken first, so that those that are not
//! needed grow old and are closed.

use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;
use tradewind_core::Clock;
use tradewind_core::error::{Error, Reason, Result};

use super::payload::Payload;
use super::peer::Peer;

/// A connection that waited longer than this may be closed by the store the moment it is used.
const MOST_IDLE: Duration = Duration::from_secs(20);

/// What a connection reads at once, in bytes, and holds of what nobody has taken.
const READ_BYTES: usize = 128 << 10;

/// The pool.
pub(crate) struct Pool {
    peer: Peer,
    tls: Option<Arc<ClientConfig>>,
    connect_time: Duration,
    idle: Mutex<Vec<Idle>>,
    permits: Arc<Semaphore>,
    clock: Arc<dyn Clock>,
}

struct Idle {
    sender: SendRequest<Payload>,
    since: Duration,
}

/// A connection for one request. Dropping it closes it, unless it is given back.
pub(crate) struct Connection {
    pub sender: SendRequest<Payload>,
    /// It served a request before: the store may have closed it meanwhile.
    pub is_reused: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Pool {
    /// A pool of at most `connections`.
    pub fn new(
        peer: Peer,
        tls: Option<Arc<ClientConfig>>,
        connections: usize,
        connect_time: Duration,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS)));
        Self { peer, tls, connect_time, idle: Mutex::default(), permits, clock }
    }

    /// An error where the pool is closed.
    pub fn check(&self) -> Result<()> {
        if self.permits.is_closed() {
            return Err(Error::new(Reason::ShuttingDown, "the store is closed"));
        }
        Ok(())
    }

    /// A connection, an idle one where there is one; waits where all are in use, unless whoever asks `holds_one`: those
    /// that hold one and wait for another would wait for each other.
    pub async fn take(&self, holds_one: bool) -> Result<Connection> {
        let closed = |e| Error::with_source(Reason::ShuttingDown, "the store is closed", e);
        let permit = match holds_one {
            true => None,
            false => Some(self.permits.clone().acquire_owned().await.map_err(closed)?),
        };
        while let Some(mut sender) = self.pop() {
            // Ready at once, unless what it answered last has not been read off the wire to its end.
            if sender.ready().await.is_ok() {
                return Ok(Connection { sender, is_reused: true, _permit: permit });
            }
        }
        let sender = tokio::time::timeout(self.connect_time, self.connect()).await.map_err(|_| {
            let address = &self.peer;
            let seconds = self.connect_time.as_secs();
            Error::new(Reason::Io, format!("{address} did not answer within {seconds} s of connecting to it"))
        })??;
        Ok(Connection { sender, is_reused: false, _permit: permit })
    }

    /// Takes a connection back whose last answer was read to its end.
    pub fn give_back(&self, connection: Connection) {
        if !connection.sender.is_closed() && !self.permits.is_closed() {
            self.idle.lock().push(Idle { sender: connection.sender, since: self.clock.now() });
        }
    }

    /// Closes what is idle; nothing is connected any more.
    pub fn close(&self) {
        self.permits.close();
        self.idle.lock().clear();
    }

    fn pop(&self) -> Option<SendRequest<Payload>> {
        let now = self.clock.now();
        let mut idle = self.idle.lock();
        // They lie in order of age.
        let old = idle.partition_point(|each| each.since + MOST_IDLE < now);
        idle.drain(..old);
        idle.pop().map(|each| each.sender)
    }

    async fn connect(&self) -> Result<SendRequest<Payload>> {
        let Peer { host, port, .. } = &self.peer;
        let failed = |what: &str, e: std::io::Error| {
            Error::with_source(Reason::Io, format!("{what} {} failed: {e}", self.peer), e)
        };
        let socket =
            TcpStream::connect((host.as_str(), *port)).await.map_err(|e| failed("connecting to", e))?;
        socket.set_nodelay(true).map_err(|e| failed("setting up the connection to", e))?;
        match &self.tls {
            None => self.speak(TokioIo::new(socket)).await,
            Some(tls) => {
                let name = ServerName::try_from(host.clone()).map_err(|e| {
                    Error::with_source(Reason::InvalidArgument, format!("{host:?} is no host name"), e)
                })?;
                let secured = TlsConnector::from(tls.clone()).connect(name, socket).await;
                let secured = secured.map_err(|e| failed("TLS with", e))?;
                self.speak(TokioIo::new(secured)).await
            }
        }
    }

    async fn speak<T>(&self, io: T) -> Result<SendRequest<Payload>>
    where
        T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
    {
        let handshake = http1::Builder::new().max_buf_size(READ_BYTES).handshake(io).await;
        let (sender, connection) = handshake
            .map_err(|e| Error::with_source(Reason::Io, format!("speaking with {} failed", self.peer), e))?;
        tokio::spawn(async move {
            if let Err(e) = connection.await {
                // Whoever waits for an answer gets it as an error of its own.
                tracing::debug!(error = %e, "a connection ended");
            }
        });
        Ok(sender)
    }
}
