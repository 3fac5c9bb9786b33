//! The balancer's side: one connection to an agent, kept between rounds and made again when it breaks.

use std::net::{TcpStream, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, StreamOwned};

use super::directory::AgentEntry;
use super::error::AgentError;
use super::frame::{read_message, write_message};
use super::key::{Fingerprint, Key};
use super::messages::{
    MAX_OSDS, MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES, OsdQuery, Request, Response, VERSION,
};
use crate::deadline_socket::DeadlineSocket;
use crate::error::Error;
use crate::host::HostCounters;
use crate::local_osds::{HostSample, OsdSample};

/// TLS needs a name. It is not sent, and the agent is known by its key.
const SERVER_NAME: &str = "agent.invalid";

type TlsStream = StreamOwned<ClientConnection, DeadlineSocket<TcpStream>>;

/// The agents that a balancer uses.
#[derive(Debug, Clone, Default)]
pub struct Agents {
    clients: Arc<[AgentClient]>,
}

impl Agents {
    /// Clients of these agents, with the balancer's key.
    pub fn new(entries: Vec<AgentEntry>, key: &Key) -> Result<Self, AgentError> {
        let clients = entries.into_iter().map(|entry| AgentClient::new(entry, key));
        Ok(Self { clients: clients.collect::<Result<_, _>>()? })
    }

    pub(crate) fn clients(&self) -> &[AgentClient] {
        &self.clients
    }

    /// The position of the agent of a host.
    pub(crate) fn index_of(&self, hostname: &str) -> Option<usize> {
        self.clients.iter().position(|client| client.entry.hostname == hostname)
    }
}

/// A connection to an agent.
pub struct AgentClient {
    entry: AgentEntry,
    own: Fingerprint,
    config: Arc<ClientConfig>,
    stream: Mutex<Option<TlsStream>>,
}

impl std::fmt::Debug for AgentClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AgentClient").field("entry", &self.entry).finish_non_exhaustive()
    }
}

impl AgentClient {
    /// A client with this key. It connects when counters are requested.
    pub fn new(entry: AgentEntry, key: &Key) -> Result<Self, AgentError> {
        let config = super::tls::client_config(key, entry.fingerprint).map_err(AgentError::Tls)?;
        Ok(Self { own: key.fingerprint(), config, stream: Mutex::default(), entry })
    }

    /// The name of its host.
    pub fn hostname(&self) -> &str {
        &self.entry.hostname
    }

    /// The error of an OSD that the agent does not report.
    pub(crate) fn error(&self, message: &impl ToString) -> Error {
        Error::Agent {
            hostname: self.entry.hostname.clone(),
            address: self.entry.address.clone(),
            message: message.to_string(),
        }
    }

    /// Requests counters. Connects if necessary; all of it takes at most `timeout`.
    pub fn read(&self, osds: &[OsdQuery], timeout: Duration) -> Result<HostSample, AgentError> {
        let deadline = Instant::now() + timeout;
        let mut kept = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut stream) = kept.take() {
            stream.sock.set_deadline(deadline);
            match self.exchange(&mut stream, osds) {
                Ok(sample) => {
                    *kept = Some(stream);
                    return Ok(sample);
                }
                // The agent was restarted, or had closed an idle connection.
                Err(AgentError::Closed) => {}
                Err(e) => return Err(e),
            }
        }
        let mut stream = self.connect(deadline)?;
        let sample = self.exchange(&mut stream, osds).map_err(|e| self.explain(e))?;
        *kept = Some(stream);
        Ok(sample)
    }

    fn connect(&self, deadline: Instant) -> Result<TlsStream, AgentError> {
        let name = ServerName::try_from(SERVER_NAME).map_err(|e| AgentError::Malformed(e.to_string()))?;
        let connection = ClientConnection::new(self.config.clone(), name).map_err(AgentError::Tls)?;
        let socket = self.open_socket(deadline)?;
        socket.set_nodelay(true).map_err(AgentError::Network)?;
        let socket = DeadlineSocket::new(socket, deadline);
        let mut stream = StreamOwned::new(connection, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).map_err(|e| self.explain(e.into()))?;
        }
        Ok(stream)
    }

    /// Tries the addresses of the agent's name one after another.
    fn open_socket(&self, deadline: Instant) -> Result<TcpStream, AgentError> {
        let mut failure = AgentError::Network(std::io::ErrorKind::NotFound.into());
        for address in self.entry.address.to_socket_addrs().map_err(AgentError::Network)? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(AgentError::TimedOut);
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(socket) => return Ok(socket),
                Err(e) if e.kind() == std::io::ErrorKind::TimedOut => failure = AgentError::TimedOut,
                Err(e) => failure = AgentError::Network(e),
            }
        }
        Err(failure)
    }

    /// In TLS 1.3 the agent checks this side's key after the handshake has ended here: its alert arrives with the first
    /// response.
    fn explain(&self, error: AgentError) -> AgentError {
        let is_rejection = |alert: &AlertDescription| {
            matches!(
                alert,
                AlertDescription::AccessDenied
                    | AlertDescription::BadCertificate
                    | AlertDescription::CertificateUnknown
                    | AlertDescription::DecryptError
                    | AlertDescription::UnknownCA
            )
        };
        match error {
            AgentError::Tls(rustls::Error::AlertReceived(alert)) if is_rejection(&alert) => {
                AgentError::Rejected(self.own)
            }
            other => other,
        }
    }

    /// One request and its response, in as many messages as the number of OSDs needs.
    fn exchange(&self, stream: &mut TlsStream, osds: &[OsdQuery]) -> Result<HostSample, AgentError> {
        let mut samples = Vec::with_capacity(osds.len());
        let mut host = HostCounters::default();
        for queries in osds.chunks(MAX_OSDS) {
            let request = Request { version: VERSION, osds: queries.to_vec() };
            write_message(stream, &request, MAX_REQUEST_BYTES)?;
            let (counters, responses) = match read_message(stream, MAX_RESPONSE_BYTES)? {
                Response::Counters { host, osds } => (host, osds),
                Response::Failed(reason) => return Err(AgentError::Failed(reason)),
            };
            if responses.len() != queries.len() {
                return Err(AgentError::Malformed(format!(
                    "{} OSDs in the response to a request for {}",
                    responses.len(),
                    queries.len()
                )));
            }
            let now = Instant::now();
            samples.extend(responses.into_iter().map(|osd| OsdSample {
                reads: osd.reads.map_err(|e| self.error(&e)),
                device: osd.device,
                read_at: now.checked_sub(Duration::from_micros(osd.age_micros)).unwrap_or(now),
            }));
            host = counters;
        }
        Ok(HostSample { host, osds: samples })
    }
}
