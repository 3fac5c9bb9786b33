//! Carrying objects between a store and memory or files: a plan turns one object into several requests, which take
//! turns with those of other objects; what fails is asked again, and only that.

pub mod carrier;
pub mod fetch;
pub mod store;

pub use carrier::Carrier;
pub use fetch::{Fetch, Sink};
pub use store::{Source, store};
