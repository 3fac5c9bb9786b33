//! Layers: stores over other stores. [`Instrumented`] measures a store, [`Scheduled`] queues its requests in lanes by
//! size and priority, [`Sliced`] schedules a rotating disk, [`ReadAhead`] reads large objects in parallel ranges, and [`Transformed`] compresses and encrypts.
//! [`Volumes`] is a store over several others by bucket, [`Routed`] by class of data.

mod capabilities;
mod dispatch_queue;
pub mod instrumented;
pub mod read_ahead;
mod relay;
pub mod routed;
pub mod scheduled;
pub mod sliced;
mod store_error;
pub mod transformed;
pub mod volumes;

pub use instrumented::Instrumented;
pub use read_ahead::ReadAhead;
pub use routed::{Routed, Tier};
pub use scheduled::Scheduled;
pub use sliced::{DiskQueue, Sliced};
pub use transformed::Transformed;
pub use volumes::{Volume, Volumes};
