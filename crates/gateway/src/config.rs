//! The gateway's settings: plain data with sane defaults. The binary reads them from wherever it
//! likes; nothing here does.

use std::fmt;
use std::time::Duration;

use crate::addressing::Domain;
use crate::descriptors::DescriptorLimit;
use crate::s3;

/// What the gateway is told once.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// Signatures for another region are refused; `None` takes any.
    pub region: Option<String>,
    /// Where buckets may also be named by the host; `None` takes all hosts alike.
    pub domain: Option<Domain>,
    /// What the operations are told.
    pub operations: s3::Options,
    /// TLS on the S3 listener.
    pub tls: Option<TlsIdentity>,
    /// The memory of all requests together.
    pub memory_bytes: usize,
    /// The least memory that a request is admitted with. Of a store that can work on a limited number of requests, for
    /// instance a service with that many connections: `memory_bytes` divided by that number, so that sharing the memory
    /// shares them as well.
    pub min_window_bytes: usize,
    /// Limits.
    pub limits: Limits,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            region: None,
            domain: None,
            operations: s3::Options::default(),
            tls: None,
            memory_bytes: 128 << 20,
            min_window_bytes: 0,
            limits: Limits::default(),
        }
    }
}

/// A certificate chain and its key, both as PEM.
#[derive(Clone)]
pub struct TlsIdentity {
    /// The chain, leaf first.
    pub certificates_pem: Vec<u8>,
    /// The private key. Never printed.
    pub key_pem: Vec<u8>,
}

impl fmt::Debug for TlsIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsIdentity(<redacted>)")
    }
}

/// What a client may take of the server. Beyond these it is refused or its connection is closed.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once. At the limit a new one takes the place of one without a request; where there is none it is
    /// answered 503 and closed.
    pub connections: usize,
    /// Files that the process may have open. What is open besides connections lowers the number of connections. `None`
    /// if there are enough for all of them.
    pub descriptors: Option<DescriptorLimit>,
    /// Bytes of a request's line and headers.
    pub header_bytes: usize,
    /// Headers of a request.
    pub headers: usize,
    /// Bytes of a request's body, decoded.
    pub body_bytes: u64,
    /// From a request's first byte to the last of its headers; also for a TLS handshake.
    pub header_time: Duration,
    /// A connection without a request.
    pub idle_time: Duration,
    /// A client that the server waits for must move [`slow_client_bytes`](Self::slow_client_bytes)
    /// in this time; 1 MiB, where that is more, if all the while other clients wait for its memory. Then it must
    /// move as much each second if they need it.
    pub slow_client_time: Duration,
    /// See [`slow_client_time`](Self::slow_client_time).
    pub slow_client_bytes: u64,
    /// How long a request waits for memory before it is answered 503 SlowDown.
    pub admission_time: Duration,
    /// The deadline of requests that carry no object's bytes.
    pub request_time: Duration,
    /// The deadline of requests that do: slow clients are caught by progress, not by this.
    pub transfer_time: Duration,
    /// How long requests in flight may go on when the server is shut down.
    pub grace_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            descriptors: None,
            header_bytes: 32 << 10,
            headers: 100,
            body_bytes: 5 << 30,
            header_time: Duration::from_secs(15),
            idle_time: Duration::from_secs(120),
            slow_client_time: Duration::from_secs(30),
            slow_client_bytes: 4 << 10,
            admission_time: Duration::from_secs(20),
            request_time: Duration::from_secs(300),
            transfer_time: Duration::from_secs(12 * 3600),
            grace_time: Duration::from_secs(30),
        }
    }
}
