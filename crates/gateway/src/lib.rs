//! The S3 front door: our own HTTP/1.1 server, which authenticates every request and decodes its
//! body before any S3 operation sees it; a fast path for plain reads; the S3 operations on `s3s`,
//! used as a router and XML codec only; and the admin listener.
//!
//! It knows the port of `tradewind-core` and no particular store. All settings are plain data given
//! by the caller; nothing here reads files, flags or the environment.
//!
//! The edge between the server and the operations (`s3`): the server calls
//! `s3::Operations::call(&self, http::Request<RequestBody>) -> http::Response<ResponseBody>` with an
//! [`auth::Authenticated`] and a `tradewind_core::Context` in the request's extensions, no credentials
//! and no framing in it. The answer lacks only what every answer gets (`x-amz-request-id`,
//! `x-amz-id-2`, `Server`, `Date`), and may carry an [`outcome::Operation`] and an
//! [`outcome::Failure`].

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
pub mod sigv4;

pub use addressing::Domain;
pub use auth::{Buckets, Permissions};
pub use config::{GatewayConfig, Limits, TlsIdentity};
pub use keys::{AccessKey, Keys};
pub use server::{Gateway, TlsError};
