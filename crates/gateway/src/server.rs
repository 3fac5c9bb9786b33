//! The HTTP/1.1 server around the operations: connections and their limits, admission, deadlines, and the headers
//! common to all responses. Each connection is one task, owned and joined here; its requests run on that task.

mod accounts;
mod admission;
mod buffers;
mod connection;
pub(crate) mod connection_state;
mod connections;
mod early_head;
mod peer;
mod service;
mod tls;
mod tracked_socket;
mod watchdog;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tradewind_core::{Budget, Clock, ObjectStore};

use crate::config::GatewayConfig;
use crate::descriptors::Descriptors;
use crate::keys::Keys;
use crate::metrics::Metrics;
use crate::s3::{Operations, Options};
use crate::sigv4::Verifier;
use accounts::Accounts;
use buffers::BufferLimits;
use connection_state::{Command, ConnectionState, Phase};
use connections::Connections;
use early_head::EarlyHeads;
use peer::Peer;

pub use tls::TlsError;

/// Time that cancelled requests get to stop before their connections are dropped.
const ABORT_TIME: Duration = Duration::from_secs(1);

/// The S3 server of one store. Cheap to clone; clones share their limits.
#[derive(Clone)]
pub struct Gateway(Arc<GatewayState>);

/// The state shared by all connections.
pub(crate) struct GatewayState {
    pub(crate) config: GatewayConfig,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) operations: Operations,
    pub(crate) verifier: Verifier,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) budget: Budget,
    pub(crate) accounts: Accounts,
    pub(crate) metrics: Arc<Metrics>,
    early_heads: EarlyHeads,
    /// Cancels the requests in flight when the grace time is over.
    pub(crate) cancel: CancellationToken,
    http: http1::Builder,
    tls: Option<TlsAcceptor>,
    connections: Connections,
    descriptors: Descriptors,
    buffers: Arc<BufferLimits>,
}

impl Gateway {
    /// A gateway over a store. Fails only if the TLS identity cannot be used.
    pub fn new(
        config: GatewayConfig,
        store: Arc<dyn ObjectStore>,
        keys: Keys,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TlsError> {
        let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
        let budget = Budget::new(config.memory_bytes);
        let mut http = http1::Builder::new();
        http.max_buf_size(connection::MAX_BUFFER_BYTES.max(config.limits.header_bytes)).half_close(false);
        // An incomplete head takes memory before its sender is authenticated, so hyper limits its size. A head slightly
        // over S3's limit is still passed on, so that the response is S3's error.
        let buffers = BufferLimits::new(&config);
        http.max_header_size(buffers.max_head_bytes());
        // hyper's default of 100 needs no allocation; any other limit allocates on every request.
        if config.limits.headers != 100 {
            http.max_headers(config.limits.headers);
        }
        Ok(Self(Arc::new(GatewayState {
            early_heads: EarlyHeads::default(),
            operations: Operations::new(
                store.clone(),
                Options { is_tls: tls.is_some(), ..config.operations.clone() },
            ),
            verifier: verifier(&config, keys, clock.clone()),
            metrics: Arc::new(Metrics::new(budget.clone())),
            store,
            clock,
            budget,
            accounts: Accounts::default(),
            cancel: CancellationToken::new(),
            http,
            tls,
            connections: Connections::default(),
            descriptors: Descriptors::new(config.limits.descriptors),
            buffers,
            config,
        })))
    }

    /// The gateway's metrics.
    #[must_use]
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.0.metrics
    }

    /// The memory budget that requests are admitted to.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// Serves until `shutdown`. Then it accepts no more connections, lets requests in flight finish within the grace
    /// time, and cancels the rest. Returns when the last connection is closed.
    pub async fn serve(&self, listener: TcpListener, shutdown: CancellationToken) {
        let shared = &self.0;
        let mut tasks = JoinSet::new();
        let mut next_id = 0;
        let watchdog = tokio::spawn(watchdog::run(shared.clone()));
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(ended) = tasks.join_next() => log_end(ended),
                () = shared.connections.eviction_ended(), if shared.connections.is_eviction_limit_reached() => {}
                accepted = listener.accept(), if !shared.connections.is_eviction_limit_reached() => match accepted {
                    Ok((socket, address)) => {
                        next_id += 1;
                        accept(shared, &mut tasks, next_id, socket, address);
                    }
                    Err(e) => {
                        // Usually the process is out of file descriptors: without a pause, the loop would spin.
                        tracing::warn!(error = %e, "a connection could not be accepted");
                        let now = shared.clock.now();
                        shared.connections.evict_any(now);
                        shared.clock.sleep_until(now + Duration::from_millis(50)).await;
                    }
                },
            }
        }
        drop(listener);
        for (_, connection) in shared.connections.all() {
            connection.raise_command(Command::Finish);
        }
        let grace_end = shared.clock.now() + shared.config.limits.grace_time;
        let are_joined = join_until(shared, &mut tasks, shared.config.limits.grace_time).await;
        let rest = grace_end.saturating_sub(shared.clock.now());
        if !are_joined || !shared.early_heads.wait(shared, rest).await {
            tracing::warn!(
                connections = tasks.len(),
                "the grace time is over; requests in flight are cancelled"
            );
            shared.cancel.cancel();
            if !join_until(shared, &mut tasks, ABORT_TIME).await {
                tasks.shutdown().await;
            }
            shared.early_heads.wait(shared, ABORT_TIME).await;
        }
        watchdog.abort();
    }
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gateway({:?})", self.0.store)
    }
}

fn verifier(config: &GatewayConfig, keys: Keys, clock: Arc<dyn Clock>) -> Verifier {
    let verifier = Verifier::new(keys, clock, config.region.clone());
    if config.presigned_sigv2 { verifier.accepting_sigv2(config.domain.clone()) } else { verifier }
}

/// Starts a connection's task, or rejects the connection if the limit is reached and none can be evicted for it.
fn accept(
    shared: &Arc<GatewayState>,
    tasks: &mut JoinSet<()>,
    id: u64,
    socket: TcpStream,
    address: SocketAddr,
) {
    let peer = Peer::from(address.ip());
    if !has_capacity(shared, tasks.len()) && !shared.connections.evict_for_peer(peer, shared.clock.now()) {
        shared.metrics.count_refused_connection();
        // One attempt: the server does not wait for a client. A TLS client could not parse the response.
        if shared.tls.is_none() {
            let _sent = socket.try_write(connection::SLOW_DOWN_RESPONSE);
        }
        return;
    }
    if let Err(e) = socket.set_nodelay(true) {
        tracing::debug!(%address, error = %e, "a connection was closed before it was served");
        return;
    }
    let connection = Arc::new(ConnectionState::new(peer, shared.buffers.clone()));
    connection.set_waits_since(shared.clock.now());
    if shared.tls.is_none() {
        connection.set_phase(Phase::Idle);
    }
    let registered = Registered::new(shared.clone(), id, connection);
    tasks.spawn(async move {
        connection::serve(&registered, socket, address).await;
    });
}

/// Returns true if one more connection may be opened. Connections that are being evicted count as closed.
fn has_capacity(shared: &GatewayState, open: usize) -> bool {
    let connections = (open + 1).saturating_sub(shared.connections.evicting_count());
    connections <= shared.config.limits.connections && shared.descriptors.allow_connections(connections)
}

fn log_end(ended: Result<(), tokio::task::JoinError>) {
    if let Err(e) = ended
        && e.is_panic()
    {
        tracing::error!(error = %e, "a connection's task panicked");
    }
}

/// Joins all connections. Returns false if that takes longer than `timeout`.
async fn join_until(shared: &GatewayState, tasks: &mut JoinSet<()>, timeout: Duration) -> bool {
    let end = shared.clock.sleep_until(shared.clock.now() + timeout);
    tokio::pin!(end);
    loop {
        tokio::select! {
            ended = tasks.join_next() => match ended {
                Some(ended) => log_end(ended),
                None => return true,
            },
            () = &mut end => return tasks.is_empty(),
        }
    }
}

/// An entry of a connection in the gateway's table. Removed on drop.
struct Registered {
    shared: Arc<GatewayState>,
    id: u64,
    connection: Arc<ConnectionState>,
}

impl Registered {
    fn new(shared: Arc<GatewayState>, id: u64, connection: Arc<ConnectionState>) -> Self {
        shared.connections.insert(id, connection.clone());
        shared.metrics.count_opened_connection();
        Self { shared, id, connection }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.connection.end_connection();
        self.shared.connections.remove(self.id);
        self.shared.metrics.count_closed_connection();
    }
}

#[cfg(test)]
mod tests;
