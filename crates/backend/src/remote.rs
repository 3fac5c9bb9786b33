//! HTTP client shared by the leaves of remote services: pooled connections, request and response bodies, and retries
//! where they are safe. Everything specific to a protocol (URLs, credentials, error classification) is supplied by an
//! implementation of [`Protocol`](client::Protocol).

pub(crate) mod client;
pub(crate) mod client_options;
pub(crate) mod copy_source;
pub(crate) mod decimal;
pub(crate) mod header_fields;
pub(crate) mod limits;
pub(crate) mod payload;
mod peer;
pub(crate) mod peer_clock;
pub(crate) mod pool;
mod proxy;
pub(crate) mod query;
mod rcv_lowat;
pub(crate) mod renewal;
pub(crate) mod response;
mod send_queue;
mod socket;
pub(crate) mod sorted_entries;
pub(crate) mod status;
pub(crate) mod streaming_request;
pub(crate) mod time;
mod tunnel;
pub(crate) mod write_progress;

pub use self::peer::Peer;
pub use self::proxy::{NoProxy, Proxy, ProxyRules};
