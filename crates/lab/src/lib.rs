//! Emulated environments for measurements: slow network links, slow disks and constrained clients.

mod cgroup;
pub mod client;
pub mod device_model;
pub mod disk;
mod error;
mod relay_threads;
mod running_command;
pub mod wan;

pub use self::error::LabError;
