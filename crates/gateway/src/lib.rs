//! The S3 front door: our own HTTP/1.1 server, which authenticates every request and decodes its
//! body before any S3 operation sees it; a fast path for plain reads; the S3 operations on `s3s`,
//! used as a router and XML codec only; and the admin listener.
//!
//! It knows the port of `tradewind-core` and no particular store. All settings are plain data given
//! by the caller; nothing here reads files, flags or the environment.

pub mod auth;
pub mod body;
pub mod error;
pub mod s3;
