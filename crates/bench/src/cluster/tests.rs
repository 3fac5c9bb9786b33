//! Agents and coordinators over loopback and in memory: joint measurements, the loss of one of them, and untrusted or
//! misbehaving peers.

mod end_to_end;
mod unauthenticated_peers;
