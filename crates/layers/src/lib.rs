//! Layers: stores over other stores. [`Instrumented`] measures a store, [`Scheduled`] queues its requests in lanes by
//! size and priority, [`ReadAhead`] reads large objects in parallel ranges, and [`Transformed`] compresses and encrypts.
//! [`Volumes`] is a store over several others by bucket, [`Routed`] by class of data.

mod capabilities;
pub mod instrumented;
pub mod read_ahead;
mod relay;
pub mod routed;
pub mod scheduled;
mod store_error;
pub mod transformed;
pub mod volumes;

pub use instrumented::Instrumented;
pub use read_ahead::ReadAhead;
pub use routed::{Routed, Tier};
pub use scheduled::Scheduled;
pub use transformed::Transformed;
pub use volumes::{Volume, Volumes};
