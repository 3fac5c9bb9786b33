//! Storage benchmarks. A *load* defines the request mix, object sizes, concurrency and duration. It runs against any
//! [`ObjectStore`](tradewind_core::ObjectStore), either in a closed loop (each worker sends its next request after the
//! previous response) or in an open loop (requests start on schedule, whether or not earlier ones have completed).
//! Data that is read back is compared with what was written. Results are histograms, which can be merged.
//!
//! Measurement rules (Hou 2017, section 3): latency counts from the scheduled start, throughput counts the bytes that
//! pass within the measurement window, and a run whose generator could not keep up reports it.

pub mod arrivals;
pub mod batch_means;
pub mod caches;
pub mod class_workload;
pub mod cluster;
pub mod compare;
pub mod cpu_usage;
mod csv;
pub mod drive;
pub mod figures;
pub mod files;
pub mod interference;
pub mod load;
pub mod load_spec;
pub mod object_set;
pub mod operation;
pub mod posix;
mod random;
pub mod record;
pub mod replay;
pub mod report;
pub mod result;
pub mod runner;
pub mod samples;
pub mod size_distribution;
pub mod tcp_counters;
pub mod test_plan;
pub mod tune;
pub mod workspace;

pub use self::load::Load;
pub use self::load_spec::LoadSpec;
pub use self::object_set::ObjectSet;
pub use self::operation::{Mix, Operation};
pub use self::size_distribution::SizeDistribution;
pub use tradewind_pattern::Content;
