//! Emulated worlds, in which what is fast or steady shows that it is.

pub mod cgroup;
pub mod client;
pub mod device_model;
pub mod disk;
pub mod wan;
