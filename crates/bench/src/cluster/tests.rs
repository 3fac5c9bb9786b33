//! Agents and coordinators over loopback and in memory: joint measurements, the loss of one of them, and untrusted or
//! misbehaving peers.

mod strangers;
mod together;
