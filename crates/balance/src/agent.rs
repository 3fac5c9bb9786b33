//! Counters of OSDs on other hosts. On each of these hosts runs an *agent*, which reads the counters of its OSDs, their
//! devices and the host. It can do nothing else: no message makes it write, or run a command that a peer chose.
//!
//! Balancer and agents communicate over TLS 1.3. Each side has an Ed25519 key pair and accepts only peers whose public
//! key has a fingerprint that it was given (`key`, `tls`). Requests and responses are JSON in bounded frames (`frame`,
//! `messages`), all with deadlines.

mod client;
mod directory;
mod error;
mod frame;
mod key;
mod messages;
mod server;
mod strangers;
mod tls;

pub use self::client::{AgentClient, Agents};
pub use self::directory::{AgentEntry, parse_agents};
pub use self::error::AgentError;
pub use self::key::{Fingerprint, Key, KeyError};
pub use self::messages::OsdQuery;
pub use self::server::{AgentServer, LogFn};

#[cfg(test)]
mod tests;
