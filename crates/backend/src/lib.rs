//! Leaves: stores that hold bytes themselves or speak to a service that does.

pub mod local;
pub mod remote;
pub mod s3;
pub mod swift;
