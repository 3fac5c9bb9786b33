//! AWS Signature Version 4 for requests: in the `Authorization` header or in the query (presigned).
//!
//! The verifier answers who signed a request and what the client said about its body. It requires
//! that everything that could change a request's meaning is signed: `host`, `content-md5` and every
//! `x-amz-*` and `x-dss-*` header; an unsigned one is refused, since a proxy could have added it.
//! Signing keys are cached beside their secrets; verdicts are not cached at all.

mod coverage;
mod credential;
mod verify;

pub use tradewind_wire::sigv4::ChunkSigner;
pub use verify::{Payload, Verified, Verifier};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
