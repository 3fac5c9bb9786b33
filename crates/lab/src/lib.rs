//! Emulated worlds, in which what is fast or steady shows that it is.

mod cgroup;
pub mod client;
pub mod device_model;
pub mod disk;
mod failed;
mod relays;
mod running;
pub mod wan;

pub use self::failed::Failed;
