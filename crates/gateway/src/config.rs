//! The gateway's settings: plain data with defaults. Only the binary reads them from files, flags or the environment.

use std::fmt;
use std::time::Duration;

use crate::addressing::Domain;
use crate::descriptors::DescriptorLimit;
use crate::s3;

/// The settings of a gateway.
#[derive(Debug, Clone)]
pub struct GatewayConfig {
    /// The only region whose signatures are accepted; `None` accepts any.
    pub region: Option<String>,
    /// The domain for virtual-hosted addressing; `None` ignores the host.
    pub domain: Option<Domain>,
    /// True if presigned URLs of Signature Version 2 are accepted.
    pub presigned_sigv2: bool,
    /// Settings of the operations.
    pub operations: s3::Options,
    /// The certificate of the S3 listener; `None` serves plain HTTP.
    pub tls: Option<TlsIdentity>,
    /// Size of the memory budget that all requests share, in bytes.
    pub memory_bytes: usize,
    /// The minimum memory window of a request, in bytes. If the store limits its concurrent requests (such as a service
    /// with a fixed number of connections), set it to `memory_bytes` divided by that limit. The budget then admits no
    /// more requests than the store does, and sharing the memory fairly also shares the store.
    pub min_window_bytes: usize,
    /// Time after which a copy or a completion whose result is not known gets the head of its response, and the interval of
    /// the blanks that follow.
    pub early_head_time: Duration,
    /// Limits.
    pub limits: Limits,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            region: None,
            domain: None,
            presigned_sigv2: true,
            operations: s3::Options::default(),
            tls: None,
            memory_bytes: 128 << 20,
            min_window_bytes: 0,
            early_head_time: Duration::from_secs(5),
            limits: Limits::default(),
        }
    }
}

/// A certificate chain and its private key, both in PEM.
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

/// Limits on the resources that clients may use. Beyond them a request is rejected or its connection is closed.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Maximum number of concurrent connections. At the limit, a new connection replaces an idle one, or one that the
    /// store does not work for and whose peer has more connections. If there is no such connection, the new one is
    /// rejected with a 503 response.
    pub connections: usize,
    /// Limit on the open files of the process; `None` if unlimited. Open files other than connections reduce the number
    /// of connections.
    pub descriptors: Option<DescriptorLimit>,
    /// Maximum size of a request's target and headers, in bytes.
    pub header_bytes: usize,
    /// Maximum number of headers of a request.
    pub headers: usize,
    /// Maximum size of a request's decoded body, in bytes.
    pub body_bytes: u64,
    /// Time from the first byte of a request to the end of its head; also the time for a TLS handshake.
    pub header_time: Duration,
    /// Time that a connection may stay open without a request.
    pub idle_time: Duration,
    /// Time within which a client that the server waits for must make progress. The connection of a slower client is
    /// closed. The required progress depends on the demand for its memory:
    ///
    /// - Normally, [`slow_client_bytes`](Self::slow_client_bytes) per `slow_client_time`.
    /// - While requests of tenants that hold no more than this client's tenant wait for memory: at least 1 MiB per
    ///   `slow_client_time`.
    /// - Once such a request has waited for 500 ms, `slow_client_bytes` per second. Requests of slower clients are
    ///   aborted, as many as the waiting requests need, those of the tenants with most memory first.
    pub slow_client_time: Duration,
    /// See [`slow_client_time`](Self::slow_client_time).
    pub slow_client_bytes: u64,
    /// Maximum time that a request waits for memory. After it, the request is rejected with `503 SlowDown`.
    pub admission_time: Duration,
    /// Maximum duration of a request that transfers no object data.
    pub request_time: Duration,
    /// Maximum duration of a request that transfers object data. It is long, because slow clients are detected by their
    /// progress.
    pub transfer_time: Duration,
    /// Maximum time that requests in flight may take after the shutdown begins. Then they are cancelled.
    pub grace_time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 10_000,
            descriptors: None,
            header_bytes: 32 << 10,
            headers: 200,
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
