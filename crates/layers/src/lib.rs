//! Layers: stores over other stores. [`Instrumented`] measures a store, [`Scheduled`] queues its requests in lanes by
//! size and priority, and [`ReadAhead`] reads large objects in parallel ranges. [`Volumes`] is a store over several
//! others by bucket, [`Routed`] by class of data.

mod capabilities;
pub mod instrumented;
pub mod read_ahead;
mod relay;
pub mod routed;
pub mod scheduled;
mod store_error;
pub mod volumes;

pub use instrumented::Instrumented;
pub use read_ahead::ReadAhead;
pub use routed::{Routed, Tier};
pub use scheduled::Scheduled;
pub use volumes::{Volume, Volumes};
