//! Errors of a cluster's commands and signals.

use std::time::Duration;

use thiserror::Error;

/// Why the cluster could not be read or changed.
#[derive(Debug, Error)]
pub enum Error {
    /// The command `ceph` could not be started.
    #[error("cannot start the command ceph: {0}; install the package ceph-common")]
    Start(#[source] std::io::Error),
    /// The command `ceph` ended.
    #[error("the command ceph ended: {output}; check --conf, --id and that a monitor can be reached")]
    Ended {
        /// Its last lines.
        output: String,
    },
    /// No response in time.
    #[error("no response to \"ceph {command}\" within {} s; is a monitor reachable?", .timeout.as_secs())]
    Timeout {
        /// The command.
        command: String,
        /// The deadline.
        timeout: Duration,
    },
    /// The cluster rejected a command.
    #[error("\"ceph {command}\" failed: {message}")]
    Rejected {
        /// The command.
        command: String,
        /// The cluster's message, with the name of the error.
        message: String,
    },
    /// A response has another form than expected.
    #[error("cannot read the response to \"{command}\": {message}")]
    Malformed {
        /// The command or the file.
        command: String,
        /// The fault.
        message: String,
    },
    /// The admin socket of an OSD does not respond.
    #[error("admin socket {path}: {source}")]
    AdminSocket {
        /// Path of the socket.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The agent of a host does not report an OSD.
    #[error("agent of host {hostname} ({address}): {message}")]
    Agent {
        /// Name of the host.
        hostname: String,
        /// Address of the agent.
        address: String,
        /// The cause.
        message: String,
    },
    /// Something that makes balancing impossible or useless.
    #[error("{0}")]
    Unsuitable(String),
    /// The journal is not this balancer's any more: it must change nothing.
    #[error("{0}")]
    Superseded(String),
}

impl Error {
    /// Returns true if the cluster says that the named thing does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Rejected { message, .. } if message.starts_with("ENOENT"))
    }
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
