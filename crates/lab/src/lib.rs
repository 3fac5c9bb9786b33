//! Emulated environments for measurements: slow network links, slow disks and constrained clients; and simulations of
//! what a machine is too small for.

mod cgroup;
pub mod client;
pub mod device_model;
pub mod disk;
mod error;
mod relay_threads;
mod running_command;
pub mod simulate;
pub mod wan;

pub use self::error::LabError;
