//! Simulations of what no test machine has: thousands of stores, and hours in seconds.
//!
//! All of them run on one event loop ([`event_loop`]) in simulated time, without I/O and without the machine's clock.
//! One seed is one schedule: the same options give the same report, on every machine.

pub mod balance;
pub mod event_loop;
