//! The measuring instrument. A *load* says what is asked of a store, how much of it at a time and for how long; it is
//! driven in a closed loop (so many workers, each asks when it has been answered) or an open one (requests start when they
//! are meant to, whatever became of those before them) over any [`ObjectStore`](tradewind_core::ObjectStore). Whatever is
//! read is compared with what was written; what a run recorded are histograms, which can be added up.
//!
//! Its first duty is to be right: a latency counts from the moment a request was meant to start, throughput is what ended
//! within the window that counts, and a run whose generator could not keep up says so (Hou 2017, section 3).

pub mod arrivals;
pub mod asked;
pub mod caches;
pub mod cluster;
pub mod compare;
pub mod course;
mod csv;
pub mod drive;
pub mod figures;
pub mod files;
pub mod interference;
pub mod load;
pub mod operation;
pub mod packets;
pub mod posix;
mod random;
pub mod record;
pub mod replay;
pub mod report;
pub mod result;
pub mod samples;
pub mod site;
pub mod sizes;
pub mod stock;
pub mod summary;
pub mod survey;
pub mod tune;
pub mod usage;

pub use self::asked::Asked;
pub use self::load::Load;
pub use self::operation::{Mix, Operation};
pub use self::sizes::Sizes;
pub use self::stock::Stock;
pub use tradewind_pattern::Content;
