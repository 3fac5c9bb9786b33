//! Layers: stores over other stores. [`Instrumented`] measures a store, [`Scheduled`] queues its requests in lanes by
//! size and priority, [`Sliced`] schedules a rotating disk, and [`ReadAhead`] reads large objects in parallel ranges.
//! [`Transformed`] compresses and encrypts, [`Deduplicated`] stores equal chunks of objects once.
//! [`Responsive`] fails requests to a service that no longer responds.
//! [`Volumes`] is a store over several others by bucket, [`Routed`] by class of data.

mod capabilities;
pub mod deduplicated;
mod dispatch_queue;
pub mod instrumented;
pub mod read_ahead;
mod relay;
pub mod responsive;
pub mod routed;
pub mod scheduled;
pub mod sliced;
mod store_error;
pub mod transformed;
pub mod volumes;

pub use deduplicated::Deduplicated;
pub use instrumented::Instrumented;
pub use read_ahead::ReadAhead;
pub use responsive::Responsive;
pub use routed::{Routed, Tier};
pub use scheduled::Scheduled;
pub use sliced::{DiskQueue, DiskQueueReport, Sliced};
pub use transformed::Transformed;
pub use volumes::{Volume, Volumes};
