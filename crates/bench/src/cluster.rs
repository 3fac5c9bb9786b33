//! Distributed loads. A *coordinator* controls *agents*. Each agent opens the store with its own credentials, creates
//! its own objects and measures like a single machine. All start at the same time, and their results are merged as
//! histograms.
//!
//! They communicate over TCP in bounded `frame`s. In the `handshake`, both prove that they have the same key. Every
//! later frame has a MAC over its bytes and sequence number (`link`), so that a third party cannot inject, replay, omit
//! or alter messages. Messages are not encrypted: an eavesdropper can read the results, but neither the key nor
//! credentials are sent.

pub mod agent;
pub mod assignment;
mod clocks;
pub mod coordinator;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handshake;
mod link;
mod merging;
mod messages;
mod remote_agent;
mod session;

pub use self::handshake::Key;

#[cfg(test)]
mod tests;
