//! The agent: answers requests for counters of this host.

use std::io::{self, Read as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::error::AgentError;
use super::frame::{read_message, write_message};
use super::key::{Fingerprint, Key};
use super::messages::{
    MAX_OSDS, MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES, OsdResponse, Request, Response, VERSION,
};
use super::strangers::{LOG_INTERVAL, Strangers};
use crate::deadline_socket::DeadlineSocket;
use crate::local_osds::LocalOsds;

/// Connections at once. Beyond, a new one replaces another: first one that is not authenticated.
const MAX_CONNECTIONS: usize = 16;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time in which a peer must send the next request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Time in which a peer must accept a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a rejected peer to read why it was.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a rejected peer that are read for that.
const MAX_FAREWELL_BYTES: u64 = 64 << 10;
/// Pause after a connection that could not be accepted, for example for lack of file descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// The connection to a peer whose key is accepted.
type PeerStream = StreamOwned<ServerConnection, DeadlineSocket<TcpStream>>;

/// Receives a line of the agent's log.
pub type LogFn = Arc<dyn Fn(&str) + Send + Sync>;

/// An agent that listens.
pub struct AgentServer {
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    config: Arc<ServerConfig>,
    osds: LocalOsds,
    connections: Mutex<Connections>,
    strangers: Strangers,
    log: LogFn,
}

impl AgentServer {
    /// Listens on an address, for peers whose keys have one of these fingerprints.
    pub fn bind(
        address: SocketAddr,
        key: &Key,
        peers: &[Fingerprint],
        osds: LocalOsds,
        log: LogFn,
    ) -> Result<Self, AgentError> {
        let config = super::tls::server_config(key, peers).map_err(AgentError::Tls)?;
        let listener = TcpListener::bind(address).map_err(AgentError::Network)?;
        let shared =
            Shared { config, osds, connections: Mutex::default(), strangers: Strangers::default(), log };
        Ok(Self { listener, shared: Arc::new(shared) })
    }

    /// The address that it listens on.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the process ends.
    pub fn serve(&self) {
        loop {
            let accepted = self.listener.accept().and_then(|(socket, _)| self.shared.clone().start(socket));
            if let Err(e) = accepted {
                (self.shared.log)(&format!("a connection could not be accepted: {e}"));
                std::thread::sleep(ACCEPT_RETRY_INTERVAL);
            }
        }
    }
}

impl Shared {
    fn start(self: Arc<Self>, socket: TcpStream) -> io::Result<()> {
        let peer = socket.peer_addr()?;
        let id = lock(&self.connections).add(socket.try_clone()?);
        let shared = self.clone();
        let started = std::thread::Builder::new().name("agent connection".to_owned()).spawn(move || {
            let served = match shared.authenticate(socket) {
                Ok(stream) => {
                    lock(&shared.connections).authenticate(id);
                    shared.serve_requests(stream)
                }
                Err(e) => {
                    lock(&shared.connections).remove(id);
                    return shared.count_stranger(peer.ip(), &e);
                }
            };
            match served {
                Ok(()) | Err(AgentError::Closed) => {}
                Err(e) => (shared.log)(&format!("{peer}: {e}")),
            }
            lock(&shared.connections).remove(id);
        });
        if started.is_err() {
            lock(&self.connections).remove(id);
        }
        started.map(drop)
    }

    /// Counts a connection that did not authenticate. If it begins a line of the log, this thread remains until no more
    /// strangers come: it writes their number once a minute.
    fn count_stranger(&self, peer: IpAddr, error: &AgentError) {
        let mut line = self.strangers.record(Instant::now(), peer, &error.to_string());
        while let Some(text) = line {
            (self.log)(&text);
            std::thread::sleep(LOG_INTERVAL);
            line = self.strangers.flush(Instant::now());
        }
    }

    /// Accepts the peer, or rejects it.
    fn authenticate(&self, socket: TcpStream) -> Result<PeerStream, AgentError> {
        socket.set_nodelay(true)?;
        let mut socket = DeadlineSocket::new(socket, Instant::now() + HANDSHAKE_TIMEOUT);
        let mut connection = ServerConnection::new(self.config.clone()).map_err(AgentError::Tls)?;
        while connection.is_handshaking() {
            if let Err(e) = connection.complete_io(&mut socket) {
                part_with(socket);
                return Err(e.into());
            }
        }
        Ok(StreamOwned::new(connection, socket))
    }

    fn serve_requests(&self, mut stream: PeerStream) -> Result<(), AgentError> {
        loop {
            stream.sock.set_deadline(Instant::now() + REQUEST_TIMEOUT);
            let request = match read_message(&mut stream, MAX_REQUEST_BYTES) {
                // The balancer has longer rounds, or is gone.
                Err(AgentError::TimedOut) => return Ok(()),
                request => request?,
            };
            let response = self.respond(&request);
            stream.sock.set_deadline(Instant::now() + RESPONSE_TIMEOUT);
            write_message(&mut stream, &response, MAX_RESPONSE_BYTES)?;
        }
    }

    fn respond(&self, request: &Request) -> Response {
        if request.version != VERSION {
            return Response::Failed(format!(
                "the agent has version {VERSION} of the protocol, not {}; use the same version of tradewind",
                request.version
            ));
        }
        if request.osds.len() > MAX_OSDS {
            return Response::Failed(format!("more than {MAX_OSDS} OSDs in a request"));
        }
        let sample = self.osds.read(&request.osds);
        let osds = sample.osds.into_iter().map(|osd| OsdResponse {
            reads: osd.reads.map_err(|e| e.to_string()),
            device: osd.device,
            age_micros: u64::try_from(osd.read_at.elapsed().as_micros()).unwrap_or(u64::MAX),
        });
        Response::Counters { host: sample.host, osds: osds.collect() }
    }
}

/// Ends a failed handshake. The peer can read the alert only if its own bytes are read first: the kernel would reset the
/// connection otherwise.
fn part_with(mut socket: DeadlineSocket<TcpStream>) {
    socket.set_deadline(Instant::now() + FAREWELL_TIMEOUT);
    // Errors do not matter: the handshake's error is reported.
    let _ = socket.socket().shutdown(Shutdown::Write);
    let _ = io::copy(&mut socket.take(MAX_FAREWELL_BYTES), &mut io::sink());
}

/// The open connections, the oldest first.
#[derive(Default)]
struct Connections {
    next_id: u64,
    open: Vec<Connection>,
}

struct Connection {
    id: u64,
    socket: TcpStream,
    is_authenticated: bool,
}

impl Connections {
    /// Adds a connection. If there are too many, closes the oldest that is not authenticated, or else the oldest.
    fn add(&mut self, socket: TcpStream) -> u64 {
        if self.open.len() >= MAX_CONNECTIONS {
            let victim = self.open.iter().position(|open| !open.is_authenticated).unwrap_or_default();
            // Fails if the peer has closed it.
            let _ = self.open.remove(victim).socket.shutdown(Shutdown::Both);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.open.push(Connection { id, socket, is_authenticated: false });
        id
    }

    fn authenticate(&mut self, id: u64) {
        if let Some(connection) = self.open.iter_mut().find(|open| open.id == id) {
            connection.is_authenticated = true;
        }
    }

    fn remove(&mut self, id: u64) {
        self.open.retain(|open| open.id != id);
    }
}

fn lock(connections: &Mutex<Connections>) -> std::sync::MutexGuard<'_, Connections> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for AgentServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentServer").field("listener", &self.listener).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_beyond_the_limit_replace_unauthenticated_ones_first() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = || TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut connections = Connections::default();
        let first = connections.add(connect());
        connections.authenticate(first);
        for _ in 1..MAX_CONNECTIONS {
            connections.add(connect());
        }
        let ids = |connections: &Connections| connections.open.iter().map(|open| open.id).collect::<Vec<_>>();
        connections.add(connect());
        assert_eq!(connections.open.len(), MAX_CONNECTIONS);
        assert_eq!(ids(&connections)[..2], [first, 2], "the oldest without authentication went");
        for id in ids(&connections) {
            connections.authenticate(id);
        }
        connections.add(connect());
        assert_eq!((connections.open.len(), ids(&connections)[0]), (MAX_CONNECTIONS, 2));
        connections.remove(2);
        assert_eq!(connections.open.len(), MAX_CONNECTIONS - 1);
    }
}
