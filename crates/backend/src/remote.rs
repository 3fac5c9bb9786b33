//! What every leaf that speaks HTTP with a service needs, whatever the protocol: connections, bodies, and sending a
//! request again where that is safe. What is the protocol's own (URLs, credentials, what a refusal means) comes in
//! through [`Protocol`](client::Protocol).

pub(crate) mod answer;
pub(crate) mod client;
pub(crate) mod fields;
pub(crate) mod payload;
mod peer;
pub(crate) mod pool;
pub(crate) mod query;
pub(crate) mod sending;
mod socket;
pub(crate) mod time;
mod waking;

pub use self::peer::Peer;
