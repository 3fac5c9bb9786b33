//! Emulated worlds, in which what is fast or steady shows that it is.

pub mod device_model;
pub mod wan;
