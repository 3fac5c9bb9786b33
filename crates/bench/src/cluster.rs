//! Loads from several machines at once. A *coordinator* asks *agents*, each of which opens the store with its own
//! credentials, makes its own objects and measures as one machine alone does; all begin at the same moment, and what they
//! recorded is added up as histograms.
//!
//! They speak over TCP in bounded `frame`s. Both show in a `handshake` that they have the same key; every frame behind it
//! carries a code over its bytes and its number (`link`), so that nobody else can say, repeat, leave out or change
//! anything. Nothing is hidden: who can listen reads what is measured, and neither the key nor credentials travel.

pub mod agent;
mod clocks;
pub mod coordinator;
pub mod duty;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handshake;
mod link;
mod messages;
mod outcome;
mod remote;
mod session;

pub use self::handshake::Key;

#[cfg(test)]
mod tests;
