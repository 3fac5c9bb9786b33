//! Leaves: stores on local disk, and clients of remote services.

pub mod local;
pub mod remote;
pub mod s3;
pub mod swift;
