//! Simulations of what no test machine has: thousands of stores, and hours in seconds.
//!
//! Simulations of time run on one event loop ([`event_loop`]), without I/O and without the machine's clock. One seed is
//! one schedule: the same options give the same report, on every machine.

pub mod balance;
pub mod cache;
pub mod event_loop;
