//! Connections to one store: at most so many at a time, the last one used taken first, so that those that are not
//! needed grow old and are closed. Whoever asks is given one that its own runtime made: another would have to wake it for
//! whatever arrives.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio::runtime::{Handle, Id};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Clock, Traffic};

use super::payload::Payload;
use super::peer::Peer;
use super::socket::{Counted, Socket};
use super::waking::Waking;

/// A connection that waited longer than this may be closed by the store the moment it is used.
const MOST_IDLE: Duration = Duration::from_secs(20);

/// What a connection reads at once, in bytes, if nobody says otherwise. With half of it twice as many pieces are written,
/// and the kernel lets one at a time into a file.
pub(crate) const READ_BYTES: usize = 256 << 10;
/// And at the least: an answer's head must fit.
const LEAST_READ_BYTES: usize = 32 << 10;

/// How the connections of a pool are.
#[derive(Debug, Clone)]
pub(crate) struct PoolOptions {
    /// The most at a time.
    pub connections: usize,
    /// How long connecting may take.
    pub connect_time: Duration,
    /// What one reads at once, in bytes, and holds of what nobody has taken.
    pub read_bytes: usize,
    /// None serves a second request.
    pub is_fresh: bool,
    /// What they carry is counted here.
    pub traffic: Option<Arc<Traffic>>,
}

/// The pool.
pub(crate) struct Pool {
    peer: Peer,
    tls: Option<Arc<ClientConfig>>,
    options: PoolOptions,
    idle: Mutex<Vec<Idle>>,
    /// Connections that are being made before anybody asks, those that are taken first last.
    coming: Mutex<Vec<Coming>>,
    permits: Arc<Semaphore>,
    /// The least that connecting took, in nanoseconds.
    round_trip: AtomicU64,
    clock: Arc<dyn Clock>,
}

/// Nothing was connected to yet.
const UNKNOWN: u64 = u64::MAX;

struct Idle {
    link: Link,
    since: Duration,
}

/// A connection that a task makes. Dropped, it is not made.
struct Coming {
    link: AbortOnDropHandle<Result<Link>>,
    since: Duration,
    home: Option<Id>,
}

/// The runtime that a task runs in.
fn here() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// A connection for one request. Dropping it closes it, unless it is given back.
pub(crate) struct Connection {
    link: Link,
    /// It served a request before: the store may have closed it meanwhile.
    pub is_reused: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send + Sync>>;

/// The two halves of a connection: where requests go in, and what carries bytes.
struct Link {
    sender: SendRequest<Payload>,
    /// `None` where a task of its own has it, or where it has ended.
    driver: Option<Driver>,
    waking: Arc<Waking>,
    /// The runtime that it was made in.
    home: Option<Id>,
}

impl Link {
    /// Waits for what the connection brings about, and carries its bytes meanwhile: in the task of whoever waits, which
    /// costs no wake-up of another.
    async fn drive<T>(&mut self, mut what: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|cx| {
            if let Poll::Ready(done) = what.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            if !self.turn(cx) {
                return Poll::Pending;
            }
            what.as_mut().poll(cx)
        })
        .await
    }

    /// Carries what can be carried now; `false` where a task of its own does.
    fn turn(&mut self, cx: &mut std::task::Context<'_>) -> bool {
        let Some(driver) = &mut self.driver else { return false };
        if let Poll::Ready(ended) = driver.as_mut().poll(cx) {
            self.driver = None;
            log(ended);
        }
        true
    }

    /// Whether another request may be sent: not where the store closed it meanwhile.
    async fn is_ready(&mut self) -> bool {
        // Only who looks hears of it.
        poll_fn(|cx| Poll::Ready(self.turn(cx))).await;
        poll_fn(|cx| {
            if let Poll::Ready(ready) = self.sender.poll_ready(cx) {
                return Poll::Ready(ready.is_ok());
            }
            if self.turn(cx) { self.sender.poll_ready(cx).map(|ready| ready.is_ok()) } else { Poll::Pending }
        })
        .await
    }
}

impl Connection {
    fn new(link: Link, is_reused: bool, permit: Option<OwnedSemaphorePermit>) -> Self {
        link.waking.begin();
        Self { link, is_reused, _permit: permit }
    }

    /// Waits for what the connection brings about. Nothing happens on it unless somebody waits, or it is driven apart.
    pub async fn drive<T>(&mut self, what: Pin<&mut impl Future<Output = T>>) -> T {
        self.link.drive(what).await
    }

    /// Lets a task of its own carry the bytes: whoever sends does other things between two pieces.
    pub fn drive_apart(&mut self) {
        if let Some(driver) = self.link.driver.take() {
            tokio::spawn(async move { log(driver.await) });
        }
    }

    /// The answer has a body of so many bytes, which are to be read in large pieces.
    pub(super) fn await_body(&self, bytes: u64) -> Arc<Waking> {
        self.link.waking.expect(bytes);
        self.link.waking.clone()
    }

    /// Where requests go in.
    pub const fn sender(&mut self) -> &mut SendRequest<Payload> {
        &mut self.link.sender
    }
}

/// Whoever waits for an answer gets it as an error of its own.
fn log(ended: hyper::Result<()>) {
    if let Err(e) = ended {
        tracing::debug!(error = %e, "a connection ended");
    }
}

impl Pool {
    /// A pool without a connection yet.
    pub fn new(
        peer: Peer,
        tls: Option<Arc<ClientConfig>>,
        options: PoolOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(options.connections.clamp(1, Semaphore::MAX_PERMITS)));
        let (idle, coming, round_trip) = (Mutex::default(), Mutex::default(), AtomicU64::new(UNKNOWN));
        Self { peer, tls, options, idle, coming, permits, round_trip, clock }
    }

    /// A pool of connections to another peer, with room of its own.
    pub fn to(&self, peer: Peer) -> Self {
        Self::new(peer, self.tls.clone(), self.options.clone(), self.clock.clone())
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
        self.forget_old();
        while let Some(mut link) = self.pop() {
            // At once, unless what it answered last has not been read off the wire to its end.
            let ready = tokio::time::timeout(self.options.connect_time, link.is_ready()).await;
            if ready.unwrap_or(false) {
                return Ok(Connection::new(link, true, permit));
            }
        }
        if let Some(coming) = self.pop_coming()
            && let Ok(Ok(Ok(mut link))) = tokio::time::timeout(self.options.connect_time, coming).await
            && link.is_ready().await
        {
            // It may have lain there for a while.
            return Ok(Connection::new(link, true, permit));
        }
        let link = self.connect_in_time().await?;
        Ok(Connection::new(link, false, permit))
    }

    /// So many will be asked for soon: those that are missing are connected meanwhile.
    pub fn expect(self: &Arc<Self>, connections: usize) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.options.is_fresh || self.permits.is_closed() {
            return;
        }
        let (now, home) = (self.clock.now(), Some(runtime.id()));
        let mut coming = self.coming.lock();
        coming.retain(|each| each.since + MOST_IDLE >= now);
        let (all, own) = {
            let idle = self.idle.lock();
            (idle.len(), idle.iter().filter(|each| each.link.home == home).count())
        };
        let there = own + coming.iter().filter(|each| each.home == home).count();
        // Of those that may be, some are in use, idle or coming.
        let room = self.permits.available_permits().saturating_sub(all + coming.len());
        for _ in 0..connections.saturating_sub(there).min(room) {
            let pool = self.clone();
            let link = runtime.spawn(async move { pool.connect_in_time().await });
            coming.push(Coming { link: AbortOnDropHandle::new(link), since: now, home });
        }
        // It may have been closed since.
        if self.permits.is_closed() {
            coming.clear();
        }
    }

    /// Closes those that were made and nobody came for.
    fn forget_old(&self) {
        let now = self.clock.now();
        let mut coming = self.coming.lock();
        if coming.first().is_some_and(|each| each.since + MOST_IDLE < now) {
            coming.retain(|each| each.since + MOST_IDLE >= now);
        }
    }

    /// A connection that is being made, or was: the one that was begun first.
    fn pop_coming(&self) -> Option<AbortOnDropHandle<Result<Link>>> {
        let mut coming = self.coming.lock();
        let place = coming.iter().position(|each| each.home == here())?;
        Some(coming.remove(place).link)
    }

    async fn connect_in_time(&self) -> Result<Link> {
        let connected = tokio::time::timeout(self.options.connect_time, self.connect()).await;
        connected.map_err(|_| {
            let address = &self.peer;
            let seconds = self.options.connect_time.as_secs();
            Error::new(Reason::Io, format!("{address} did not answer within {seconds} s of connecting to it"))
        })?
    }

    /// Connecting to there took so long. What is on this machine may be the near end of a tunnel.
    fn connected(&self, to: SocketAddr, took: Duration) {
        if !to.ip().to_canonical().is_loopback() {
            let took = u64::try_from(took.as_nanos()).unwrap_or(UNKNOWN);
            self.round_trip.fetch_min(took, Ordering::Relaxed);
        }
    }

    /// How long a round trip takes, the least that connecting took.
    pub fn round_trip(&self) -> Option<Duration> {
        let least = self.round_trip.load(Ordering::Relaxed);
        (least != UNKNOWN).then(|| Duration::from_nanos(least))
    }

    /// Takes a connection back whose last answer was read to its end.
    pub fn give_back(&self, connection: Connection) {
        if !self.options.is_fresh && !connection.link.sender.is_closed() && !self.permits.is_closed() {
            self.idle.lock().push(Idle { link: connection.link, since: self.clock.now() });
        }
    }

    /// Closes what is idle; nothing is connected any more.
    pub fn close(&self) {
        self.permits.close();
        self.idle.lock().clear();
        self.coming.lock().clear();
    }

    fn pop(&self) -> Option<Link> {
        let now = self.clock.now();
        let mut idle = self.idle.lock();
        // They lie in order of age.
        let old = idle.partition_point(|each| each.since + MOST_IDLE < now);
        idle.drain(..old);
        let here = here();
        if let Some(place) = idle.iter().rposition(|each| each.link.home == here) {
            return Some(idle.remove(place).link);
        }
        // One is made; where there may be no more, it has the place of the oldest.
        let used = self.options.connections.saturating_sub(self.permits.available_permits());
        if !idle.is_empty() && idle.len() + used > self.options.connections {
            idle.remove(0);
        }
        None
    }

    async fn connect(&self) -> Result<Link> {
        let (Peer { host, port, .. }, home) = (&self.peer, here());
        let connecting = async {
            let addresses: Vec<_> = lookup_host((host.as_str(), *port)).await?.collect();
            let began = self.clock.now();
            let socket = TcpStream::connect(&addresses[..]).await?;
            self.connected(socket.peer_addr()?, self.clock.now().saturating_sub(began));
            Ok(socket)
        };
        let socket = connecting.await.map_err(|e| self.failed("connecting to", e))?;
        socket.set_nodelay(true).map_err(|e| self.failed("setting up the connection to", e))?;
        let waking = Arc::new(Waking::default());
        let socket = Counted::new(socket, self.options.traffic.clone(), waking.clone());
        let (sender, driver) = match &self.tls {
            None => self.speak(Socket::new(socket)).await?,
            // Boxed: where there is none, no connection pays for its room.
            Some(tls) => Box::pin(self.secure(tls, socket)).await?,
        };
        Ok(Link { sender, driver: Some(driver), waking, home })
    }

    async fn secure(
        &self,
        tls: &Arc<ClientConfig>,
        socket: Counted,
    ) -> Result<(SendRequest<Payload>, Driver)> {
        let host = &self.peer.host;
        let name = ServerName::try_from(host.clone()).map_err(|e| {
            Error::with_source(Reason::InvalidArgument, format!("{host:?} is no host name"), e)
        })?;
        let secured = TlsConnector::from(tls.clone()).connect(name, socket).await;
        let secured = secured.map_err(|e| self.failed("TLS with", e))?;
        self.speak(TokioIo::new(secured)).await
    }

    fn failed(&self, what: &str, e: std::io::Error) -> Error {
        Error::with_source(Reason::Io, format!("{what} {} failed: {e}", self.peer), e)
    }

    async fn speak<T>(&self, io: T) -> Result<(SendRequest<Payload>, Driver)>
    where
        T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + Sync + 'static,
    {
        let handshake = http1::Builder::new()
            .max_buf_size(self.options.read_bytes.max(LEAST_READ_BYTES))
            .handshake(io)
            .await;
        let (sender, connection) = handshake
            .map_err(|e| Error::with_source(Reason::Io, format!("speaking with {} failed", self.peer), e))?;
        Ok((sender, Box::pin(connection)))
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::{Builder, Runtime};
    use tradewind_core::SystemClock;

    use super::*;

    #[test]
    fn whoever_asks_is_given_what_its_own_runtime_made() {
        // Nobody accepts: the kernel does.
        let store = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let peer =
            Peer { is_tls: false, host: "127.0.0.1".to_owned(), port: store.local_addr().unwrap().port() };
        let pool = |connections| pool(&peer, connections);
        let (one, other) = (runtime(), runtime());
        let (few, more) = (pool(1), pool(2));
        assert_eq!([&one, &one, &other, &other].map(|home| reuses(&few, home)), [false, true, false, true]);
        assert_eq!(few.idle.lock().len(), 1, "the other's took the place of the first");
        assert_eq!([&one, &other, &one, &other].map(|home| reuses(&more, home)), [false, false, true, true]);
        drop(other);
        assert_eq!(
            [&one, &one].map(|home| reuses(&few, home)),
            [false, true],
            "nobody hears of what it made"
        );
    }

    fn pool(peer: &Peer, connections: usize) -> Arc<Pool> {
        let (connect_time, read_bytes) = (Duration::from_secs(5), READ_BYTES);
        let options = PoolOptions { connections, connect_time, read_bytes, is_fresh: false, traffic: None };
        Arc::new(Pool::new(peer.clone(), None, options, SystemClock::shared()))
    }

    #[test]
    fn a_round_trip_is_the_least_that_connecting_took() {
        let pool = pool(&Peer { is_tls: false, host: "far".to_owned(), port: 80 }, 1);
        let [here, far] = ["[::ffff:127.0.0.1]:80", "10.1.2.3:80"].map(|address| address.parse().unwrap());
        let at = Duration::from_millis;
        [(here, 1), (far, 180), (far, 176), (far, 1200)]
            .into_iter()
            .for_each(|(to, took)| pool.connected(to, at(took)));
        assert_eq!(pool.round_trip(), Some(at(176)));
    }

    #[test]
    fn those_that_are_expected_are_there_when_they_are_asked_for() {
        let store = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let peer =
            Peer { is_tls: false, host: "127.0.0.1".to_owned(), port: store.local_addr().unwrap().port() };
        let (home, pool) = (runtime(), pool(&peer, 3));
        home.block_on(async {
            let held = pool.take(false).await.unwrap();
            assert_eq!(pool.round_trip(), None, "that is this machine");
            pool.expect(2);
            // What is there already counts, and no more are made than there may be.
            pool.expect(2);
            assert_eq!(pool.coming.lock().len(), 2);
            pool.expect(100);
            assert_eq!(pool.coming.lock().len(), 2);
            let taken = [pool.take(false).await.unwrap(), pool.take(false).await.unwrap()];
            assert!(!held.is_reused && taken.iter().all(|connection| connection.is_reused));
            assert!(pool.coming.lock().is_empty());
            drop(taken);
            pool.expect(1);
            pool.close();
            assert!(pool.coming.lock().is_empty() && pool.take(false).await.is_err());
        });
        // Where nobody answers, whoever asks hears of it.
        drop(store);
        let pool = self::pool(&peer, 2);
        home.block_on(async {
            pool.expect(1);
            assert!(pool.take(false).await.is_err());
        });
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Whether a task of a runtime is given a connection that was used before.
    fn reuses(pool: &Pool, home: &Runtime) -> bool {
        home.block_on(async {
            let connection = pool.take(false).await.unwrap();
            let is_reused = connection.is_reused;
            pool.give_back(connection);
            is_reused
        })
    }
}
