//! A pool of connections to one store, with a maximum number in use. The most recently used connection is reused first,
//! so that surplus ones stay idle until they are closed. A connection is reused only in the runtime that created it:
//! otherwise every arriving byte would wake one runtime from the other.
//!
//! A failover of the peer, or of a device on the path, breaks all connections at once, and an idle one shows nothing of it.
//! So connections have a generation. If a request gets no byte of a response on a reused connection, its generation ends in
//! all runtimes: idle connections of it are closed, and those in use are not reused. [`evidence`] lists the exceptions. A
//! close that is noticed before a request is written ends nothing, because services close single connections, too. Nor
//! does a response that breaks: its head has shown that the connection worked.

mod connect;
mod evidence;
#[cfg(test)]
mod tests;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use hyper::client::conn::http1::SendRequest;
use parking_lot::Mutex;
use rustls::ClientConfig;
use tokio::runtime::{Handle, Id};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::send_progress::SendQueue;
use tradewind_core::{Clock, Traffic};

pub(crate) use self::evidence::LostRequest;
use self::evidence::{ConnectionLife, FailoverEvidence};
use super::payload::Payload;
use super::peer::Peer;
use super::proxy::{Proxy, ProxyRules};
use super::rcv_lowat::RcvLowat;
use super::send_queue::SocketSendQueue;

/// Maximum time that a connection stays idle. After that, the store may close it at the moment it is used.
const MAX_IDLE_TIME: Duration = Duration::from_secs(20);

/// Maximum idle time of a connection that is reused for a request that cannot be sent again.
const MAX_RECENT_IDLE_TIME: Duration = Duration::from_secs(1);

/// Default read buffer of a connection. Half of this size doubles the number of pieces written to a file, and
/// the kernel serializes the writes to one file.
const DEFAULT_READ_BYTES: usize = 256 << 10;

/// Settings of a pool.
#[derive(Debug, Clone)]
pub(crate) struct PoolOptions {
    /// Maximum number of connections.
    pub max_connections: usize,
    /// Maximum time to connect.
    pub connect_timeout: Duration,
    /// Read buffer of one connection, in bytes.
    pub read_bytes: usize,
    /// No connection is reused.
    pub is_single_use: bool,
    /// Counts the bytes of all connections.
    pub traffic: Option<Arc<Traffic>>,
    /// The proxies that peers are reached through.
    pub proxies: ProxyRules,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            max_connections: 64,
            connect_timeout: Duration::from_secs(5),
            read_bytes: DEFAULT_READ_BYTES,
            is_single_use: false,
            traffic: None,
            proxies: ProxyRules::direct(),
        }
    }
}

/// The connections that a request may reuse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// All idle ones.
    Any,
    /// Those that were idle for up to [`MAX_RECENT_IDLE_TIME`]: the request cannot be sent again if its connection turns out
    /// to be broken.
    Recent,
    /// None: the request has failed on another connection.
    Never,
}

impl Reuse {
    /// The maximum idle time of a connection that may be reused; `None` if none may be reused.
    const fn max_idle_time(self) -> Option<Duration> {
        match self {
            Self::Any => Some(MAX_IDLE_TIME),
            Self::Recent => Some(MAX_RECENT_IDLE_TIME),
            Self::Never => None,
        }
    }
}

/// Connections to one peer.
pub(crate) struct Pool {
    peer: Peer,
    /// TLS configuration; required if the peer or its proxy uses TLS.
    tls: Option<Arc<ClientConfig>>,
    /// The proxy that the peer's requests are sent to.
    forward_proxy: Option<Arc<Proxy>>,
    options: PoolOptions,
    idle: Mutex<Vec<IdleConnection>>,
    /// Connections opened in advance by [`Pool::prewarm`] and not used yet, oldest first; the oldest is taken first.
    prewarmed: Mutex<Vec<PrewarmedConnection>>,
    /// The generation of new connections: the number of earlier generations, all of which have ended.
    generation: AtomicU64,
    evidence: FailoverEvidence,
    connection_limit: Arc<Semaphore>,
    /// Lowest time that a TCP connect took, in nanoseconds.
    min_rtt_nanos: AtomicU64,
    clock: Arc<dyn Clock>,
}

/// No RTT has been measured yet.
const NO_RTT: u64 = u64::MAX;

struct IdleConnection {
    http: HttpConnection,
    since: Duration,
}

/// A connection that a task is opening, or has opened. Dropping it aborts the task.
struct PrewarmedConnection {
    task: AbortOnDropHandle<Result<HttpConnection>>,
    since: Duration,
    /// The time at which the connection was open; unset until then.
    opened_at: Arc<OnceLock<Duration>>,
    runtime: Option<Id>,
}

/// The id of the current runtime; `None` outside one.
fn current_runtime() -> Option<Id> {
    Handle::try_current().ok().map(|runtime| runtime.id())
}

/// A connection for one request. Dropping it closes the connection, unless it is returned by [`Pool::release`].
pub(crate) struct Connection {
    http: HttpConnection,
    /// The connection was opened earlier, so the store may have closed it since.
    pub is_reused: bool,
    _limit_guard: Option<OwnedSemaphorePermit>,
}

type Driver = Pin<Box<dyn Future<Output = hyper::Result<()>> + Send + Sync>>;

/// The two halves of an HTTP connection: the request sender and the driver, the future that does the socket I/O.
struct HttpConnection {
    sender: SendRequest<Payload>,
    /// `None` if a separate task drives the connection, or after it has ended.
    driver: Option<Driver>,
    rcv_lowat: Arc<RcvLowat>,
    /// Set if traffic is counted.
    send_queue: Option<Arc<SocketSendQueue>>,
    /// The runtime that opened the connection.
    runtime: Option<Id>,
    /// The pool's generation when the connection began to be opened.
    generation: u64,
    life: Arc<ConnectionLife>,
}

impl HttpConnection {
    /// Polls `work` and the connection's driver in the calling task, which saves the wake-up of a separate task.
    async fn drive<T>(&mut self, mut work: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            if !self.poll_driver(cx) {
                return Poll::Pending;
            }
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Polls the driver once. Returns false if a separate task drives the connection.
    fn poll_driver(&mut self, cx: &mut std::task::Context<'_>) -> bool {
        let Some(driver) = &mut self.driver else { return false };
        if let Poll::Ready(ended) = driver.as_mut().poll(cx) {
            self.driver = None;
            log_failure(ended);
        }
        true
    }

    /// Waits until another request can be sent. Returns false if the store has closed the connection.
    async fn is_ready(&mut self) -> bool {
        // A close is noticed only when the driver is polled.
        poll_fn(|cx| Poll::Ready(self.poll_driver(cx))).await;
        poll_fn(|cx| {
            if let Poll::Ready(ready) = self.sender.poll_ready(cx) {
                return Poll::Ready(ready.is_ok());
            }
            if self.poll_driver(cx) {
                self.sender.poll_ready(cx).map(|ready| ready.is_ok())
            } else {
                Poll::Pending
            }
        })
        .await
    }
}

impl Connection {
    fn new(http: HttpConnection, is_reused: bool, limit_guard: Option<OwnedSemaphorePermit>) -> Self {
        http.rcv_lowat.start_request();
        Self { http, is_reused, _limit_guard: limit_guard }
    }

    /// Waits for `work`, and drives the connection meanwhile. The connection makes no progress unless it is driven here
    /// or by a separate task.
    pub async fn drive<T>(&mut self, work: Pin<&mut impl Future<Output = T>>) -> T {
        self.http.drive(work).await
    }

    /// Moves the driver to a separate task, so that the sender of a body can do other work between two buffers.
    pub fn spawn_driver(&mut self) {
        if let Some(driver) = self.http.driver.take() {
            tokio::spawn(async move { log_failure(driver.await) });
        }
    }

    /// Announces a response body of `bytes` bytes and batches its wake-ups.
    pub(super) fn expect_body(&self, bytes: u64) -> Arc<RcvLowat> {
        self.http.rcv_lowat.expect_body(bytes);
        self.http.rcv_lowat.clone()
    }

    /// The delivered bytes of the connection, if its traffic is counted.
    pub fn send_queue(&self) -> Option<Arc<dyn SendQueue>> {
        self.http.send_queue.clone().map(|queue| queue as Arc<dyn SendQueue>)
    }

    /// The sender of requests.
    pub const fn sender(&mut self) -> &mut SendRequest<Payload> {
        &mut self.http.sender
    }
}

/// Logs a failed connection. The request that waits for a response receives the error separately.
fn log_failure(ended: hyper::Result<()>) {
    if let Err(e) = ended {
        tracing::debug!(error = %e, "a connection failed");
    }
}

impl Pool {
    /// Creates a pool without connections.
    pub fn new(
        peer: Peer,
        tls: Option<Arc<ClientConfig>>,
        options: PoolOptions,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let connection_limit =
            Arc::new(Semaphore::new(options.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        let (idle, prewarmed) = (Mutex::default(), Mutex::default());
        let (generation, min_rtt_nanos) = (AtomicU64::new(0), AtomicU64::new(NO_RTT));
        // An invalid proxy is reported by the first connect.
        let proxy = options.proxies.proxy_for(&peer).ok().flatten();
        let forward_proxy = proxy.filter(|_| !peer.is_tls).map(|proxy| Arc::new(proxy.clone()));
        Self {
            peer,
            tls,
            forward_proxy,
            options,
            idle,
            prewarmed,
            generation,
            evidence: FailoverEvidence::default(),
            connection_limit,
            min_rtt_nanos,
            clock,
        }
    }

    /// Creates a pool with the same settings for another peer; it has its own limit.
    pub fn for_peer(&self, peer: Peer) -> Self {
        Self::new(peer, self.tls.clone(), self.options.clone(), self.clock.clone())
    }

    /// The proxy that requests are sent to in absolute form; `None` if they are sent to the peer, directly or through a
    /// tunnel.
    pub const fn forward_proxy(&self) -> Option<&Arc<Proxy>> {
        self.forward_proxy.as_ref()
    }

    /// Fails if the pool is closed.
    pub fn check_open(&self) -> Result<()> {
        if self.connection_limit.is_closed() {
            return Err(Error::new(Reason::ShuttingDown, "the store is closed"));
        }
        Ok(())
    }

    /// Returns an idle connection that `reuse` permits, or a new one; waits while the maximum is in use. A caller that
    /// already holds a connection does not wait: such callers would deadlock.
    pub async fn acquire(&self, caller_holds_connection: bool, reuse: Reuse) -> Result<Connection> {
        let closed = |e| Error::with_source(Reason::ShuttingDown, "the store is closed", e);
        let limit_guard = match caller_holds_connection {
            true => None,
            false => Some(self.connection_limit.clone().acquire_owned().await.map_err(closed)?),
        };
        self.close_expired_prewarmed();
        while let Some(mut http) = self.pop_idle(reuse) {
            // Ready at once, unless the end of its last response is still unread.
            match tokio::time::timeout(self.options.connect_timeout, http.is_ready()).await {
                Ok(true) if self.is_current(&http) => return Ok(Connection::new(http, true, limit_guard)),
                Ok(_) => {}
                Err(_) => self.end_generation(http.generation),
            }
        }
        if let Some(task) = self.pop_prewarmed(reuse)
            && let Ok(Ok(Ok(mut http))) = tokio::time::timeout(self.options.connect_timeout, task).await
            && http.is_ready().await
            && self.is_current(&http)
        {
            // The connection may have been idle for a while, so it counts as reused.
            return Ok(Connection::new(http, true, limit_guard));
        }
        let http = self.connect_with_timeout().await?;
        Ok(Connection::new(http, false, limit_guard))
    }

    /// Opens a connection that does not count towards the maximum: for a request that finds out whether the peer responds at
    /// all.
    pub async fn connect_beyond_limit(&self) -> Result<Connection> {
        self.check_open()?;
        Ok(Connection::new(self.connect_with_timeout().await?, false, None))
    }

    /// Opens connections in the background, up to `connections` in this runtime and up to the pool's maximum. Returns
    /// at once.
    pub fn prewarm(self: &Arc<Self>, connections: usize) {
        let Ok(runtime) = Handle::try_current() else { return };
        if self.options.is_single_use || self.connection_limit.is_closed() {
            return;
        }
        let (now, this_runtime) = (self.clock.now(), Some(runtime.id()));
        let mut prewarmed = self.prewarmed.lock();
        prewarmed.retain(|each| each.since + MAX_IDLE_TIME >= now);
        let (idle_count, idle_in_runtime) = {
            let idle = self.idle.lock();
            (idle.len(), idle.iter().filter(|each| each.http.runtime == this_runtime).count())
        };
        let prewarmed_in_runtime = prewarmed.iter().filter(|each| each.runtime == this_runtime).count();
        let existing = idle_in_runtime + prewarmed_in_runtime;
        // Connections in use, idle and being opened all count towards the maximum.
        let room = self.connection_limit.available_permits().saturating_sub(idle_count + prewarmed.len());
        for _ in 0..connections.saturating_sub(existing).min(room) {
            let (pool, opened_at) = (self.clone(), Arc::new(OnceLock::new()));
            let opened = opened_at.clone();
            let task = runtime.spawn(async move {
                let connected = pool.connect_with_timeout().await;
                opened.get_or_init(|| pool.clock.now());
                connected
            });
            prewarmed.push(PrewarmedConnection {
                task: AbortOnDropHandle::new(task),
                since: now,
                opened_at,
                runtime: this_runtime,
            });
        }
        // The pool may have been closed concurrently.
        if self.connection_limit.is_closed() {
            prewarmed.clear();
        }
    }

    /// Closes connections that were opened in advance and not used in time.
    fn close_expired_prewarmed(&self) {
        let now = self.clock.now();
        let mut prewarmed = self.prewarmed.lock();
        if prewarmed.first().is_some_and(|each| each.since + MAX_IDLE_TIME < now) {
            prewarmed.retain(|each| each.since + MAX_IDLE_TIME >= now);
        }
    }

    /// Takes this runtime's oldest connection opened in advance that `reuse` permits, finished or not.
    fn pop_prewarmed(&self, reuse: Reuse) -> Option<AbortOnDropHandle<Result<HttpConnection>>> {
        let max_idle_time = reuse.max_idle_time()?;
        let (now, this_runtime) = (self.clock.now(), current_runtime());
        let may_reuse = |each: &PrewarmedConnection| {
            each.runtime == this_runtime
                && each.opened_at.get().is_none_or(|opened_at| *opened_at + max_idle_time >= now)
        };
        let mut prewarmed = self.prewarmed.lock();
        let index = prewarmed.iter().position(may_reuse)?;
        Some(prewarmed.remove(index).task)
    }

    /// The lowest RTT observed, measured by connects; `None` if unknown.
    pub fn min_rtt(&self) -> Option<Duration> {
        let nanos = self.min_rtt_nanos.load(Ordering::Relaxed);
        (nanos != NO_RTT).then(|| Duration::from_nanos(nanos))
    }

    /// Returns a connection to the pool. Its last response must have been read to the end.
    pub fn release(&self, connection: Connection) {
        if self.options.is_single_use
            || connection.http.sender.is_closed()
            || self.connection_limit.is_closed()
        {
            return;
        }
        let since = self.clock.now();
        let mut idle = self.idle.lock();
        // Under the lock: a generation that ends concurrently closes this connection, or is seen here.
        if self.is_current(&connection.http) {
            idle.push(IdleConnection { http: connection.http, since });
        }
    }

    /// Records that a response has begun on this connection, to an operation as in [`LostRequest`].
    pub fn record_response(&self, connection: &Connection, now: Duration, operation: impl FnOnce() -> u64) {
        connection.http.life.record_response(now);
        self.evidence.record_response(operation);
    }

    /// Records that a request got no byte of a response on this connection after it was written. If the connection was
    /// reused, and nothing else explains the loss, its generation ends.
    pub fn record_loss(&self, connection: &Connection, lost: LostRequest) {
        let generation = connection.http.generation;
        // A loss on an older connection says nothing about newer ones.
        let is_current = self.is_current(&connection.http);
        if connection.is_reused && is_current && self.evidence.shows_failover(lost, self.clock.now()) {
            self.end_generation(generation);
        }
    }

    /// Ends a generation and all earlier ones: no connection of them is reused, in any runtime. Has no effect if the
    /// generation has ended before, since a failure on an old connection says nothing about newer ones.
    fn end_generation(&self, generation: u64) {
        if self.generation.fetch_max(generation + 1, Ordering::AcqRel) > generation {
            return;
        }
        tracing::debug!(peer = %self.peer, "a reused connection failed: all others are closed, too");
        self.close_idle();
    }

    /// Returns true if the generation of a connection has not ended.
    fn is_current(&self, http: &HttpConnection) -> bool {
        http.generation >= self.generation.load(Ordering::Acquire)
    }

    /// Closes idle connections and those opened in advance. Connections in use are not affected.
    pub fn close_idle(&self) {
        self.idle.lock().clear();
        self.prewarmed.lock().clear();
    }

    /// Closes idle connections and rejects further requests. Connections in use are not affected.
    pub fn close(&self) {
        self.connection_limit.close();
        self.close_idle();
    }

    fn pop_idle(&self, reuse: Reuse) -> Option<HttpConnection> {
        let now = self.clock.now();
        let mut idle = self.idle.lock();
        // Sorted by age, oldest first.
        let expired = idle.partition_point(|each| each.since + MAX_IDLE_TIME < now);
        idle.drain(..expired);
        let this_runtime = current_runtime();
        let reused = reuse.max_idle_time().and_then(|max_idle_time| {
            idle.iter()
                .rposition(|each| each.http.runtime == this_runtime && each.since + max_idle_time >= now)
        });
        if let Some(index) = reused {
            return Some(idle.remove(index).http);
        }
        // The caller opens a new connection. At the maximum, the oldest idle one is closed to make room.
        let used = self.options.max_connections.saturating_sub(self.connection_limit.available_permits());
        if !idle.is_empty() && idle.len() + used > self.options.max_connections {
            idle.remove(0);
        }
        None
    }
}
