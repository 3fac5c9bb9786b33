//! Why an exchange with a peer failed.

use std::io;

use rustls::CertificateError;
use thiserror::Error;

use super::key::Fingerprint;

/// A failed exchange with an agent or with a balancer.
#[derive(Debug, Error)]
pub enum AgentError {
    /// No connection, or a broken one.
    #[error("{0}")]
    Network(io::Error),
    /// No response, or none in full, before the deadline.
    #[error("no response in time")]
    TimedOut,
    /// It closed the connection.
    #[error("it closed the connection")]
    Closed,
    /// It does not speak TLS 1.3, or its messages are not valid.
    #[error("no TLS 1.3 connection: {0}")]
    Tls(rustls::Error),
    /// Its key is not an accepted one.
    #[error("its key {0} is not an accepted one")]
    UnknownKey(Fingerprint),
    /// It does not own the key that it presented, or the key is none.
    #[error("it does not prove that it owns its key ({0})")]
    UnprovenKey(rustls::Error),
    /// It does not accept our key.
    #[error("it does not accept this key; start it with --peer {0}")]
    Rejected(Fingerprint),
    /// A frame has this length in bytes, which exceeds a maximum.
    #[error("it announced a message of {length} bytes, but the limit is {max}")]
    TooLong {
        /// The length.
        length: usize,
        /// The maximum.
        max: usize,
    },
    /// A message has another form than expected.
    #[error("a message cannot be read: {0}")]
    Malformed(String),
    /// It answers requests with an error.
    #[error("{0}")]
    Failed(String),
}

impl From<io::Error> for AgentError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut,
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => match error.downcast::<rustls::Error>() {
                Ok(error) => Self::from(error),
                Err(other) => Self::Network(other),
            },
        }
    }
}

impl From<rustls::Error> for AgentError {
    fn from(error: rustls::Error) -> Self {
        let rustls::Error::InvalidCertificate(reason) = &error else { return Self::Tls(error) };
        let unknown = match reason {
            CertificateError::Other(other) => other.0.downcast_ref::<UnknownKey>(),
            _ => None,
        };
        unknown.map_or_else(|| Self::UnprovenKey(error.clone()), |unknown| Self::UnknownKey(unknown.0))
    }
}

/// The reason for which a handshake is rejected, within the errors of the TLS library.
#[derive(Debug, Error)]
#[error("the key {0} is not an accepted one")]
pub(super) struct UnknownKey(pub Fingerprint);
