//! Emulated environments for measurements: slow network links, slow disks and constrained clients.

mod cgroup;
pub mod client;
pub mod device_model;
pub mod disk;
mod failed;
mod relays;
mod running;
pub mod wan;

pub use self::failed::Failed;
