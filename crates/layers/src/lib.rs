//! Layers: stores over one other store. [`Instrumented`] measures it, [`Scheduled`] queues its requests in lanes by
//! size and priority, and [`ReadAhead`] reads large objects in parallel ranges. [`Volumes`] is a store over several others.

pub mod instrumented;
pub mod read_ahead;
pub mod scheduled;
pub mod volumes;

pub use instrumented::Instrumented;
pub use read_ahead::ReadAhead;
pub use scheduled::Scheduled;
pub use volumes::{Volume, Volumes};
