//! Parallel transfers between a store and memory or files. A plan splits one object into several requests, which share
//! a pool of permits with those of other objects. Only what failed is retried.
//!
//! Also layers over a store: [`Observed`] measures it, [`Scheduled`] queues its requests in lanes by size and priority,
//! and [`Planned`] reads large objects in parallel ranges.

mod between;
pub mod buffers;
pub mod carrier;
mod copy;
pub mod fetch;
mod hedge;
mod late;
pub mod memory;
pub mod observed;
mod origin;
pub mod planned;
pub mod ranges;
pub mod scheduled;
mod sent;
pub mod sequence;
mod source;
mod steer;
pub mod store;
pub mod stream;
mod task;
mod upload;
mod whole;

pub use between::{Told, store_from};
pub use carrier::Carrier;
pub use copy::store_copy;
pub use fetch::{Fetch, Sink};
pub use memory::Memory;
pub use observed::Observed;
pub use planned::Planned;
pub use ranges::Ranges;
pub use scheduled::Scheduled;
pub use sequence::Sequence;
pub use source::Source;
pub use store::store;
pub use stream::store_stream;
