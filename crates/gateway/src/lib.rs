//! The S3 gateway: an HTTP/1.1 server that authenticates every request and decodes its body while an S3 operation
//! reads it; a fast path for plain reads; the S3 operations, with `s3s` only as router and XML codec; and the admin
//! listener.
//!
//! It depends on the port of `tradewind-core` and on no particular store. All settings are plain data from the caller;
//! nothing here reads files, flags or the environment.
//!
//! The interface between the server and the operations (`s3`): the server first calls `s3::Operations::authorize`,
//! before admission. It determines the operation, checks the permission and stores the result in the request's
//! extensions. Then the server calls
//! `s3::Operations::call(&self, http::Request<RequestBody>) -> http::Response<ResponseBody>` with an
//! [`auth::Authenticated`] and a `tradewind_core::Context` in the extensions, too, and with credentials and framing
//! removed. The response lacks only the headers common to all responses (`x-amz-request-id`, `x-amz-id-2`,
//! `Server`, `Date`), and may carry an [`outcome::OperationName`] and a [`outcome::LoggedError`].

pub mod addressing;
pub mod admin;
pub mod auth;
pub mod body;
pub mod chunked;
pub mod config;
pub mod descriptors;
pub mod error;
mod fast;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod keys;
pub mod metrics;
pub mod outcome;
mod payload;
pub mod request_id;
pub mod s3;
pub mod server;
mod sigv2;
pub mod sigv4;

pub use addressing::Domain;
pub use auth::{Buckets, Permissions};
pub use config::{GatewayConfig, Limits, TlsIdentity};
pub use keys::{AccessKey, Keys};
pub use server::{Gateway, TlsError};
