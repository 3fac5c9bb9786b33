//! Decisions without I/O, clocks or randomness of their own: time and random numbers are arguments, so that the same
//! code runs in tests, in simulations and over real stores.

pub mod admission;
pub mod affinity;
pub mod bundle;
pub mod class_policy;
pub mod concurrency_controller;
pub mod debounce;
pub mod eviction;
pub mod hedge;
pub mod lanes;
pub mod outage;
pub mod plan;
pub mod range_growth;
pub mod retry;
pub mod slices;
pub mod store_statistics;
pub mod straggler;
pub mod token_bucket;
pub mod tune;
pub mod workload;
