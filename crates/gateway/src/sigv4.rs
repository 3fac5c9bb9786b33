//! AWS Signature Version 4 for requests: in the `Authorization` header or in the query (presigned).
//!
//! The verifier returns the identity that signed a request, and the client's declaration about its body. Everything
//! that could change a request's meaning must be signed: `host`, `content-md5` and every `x-amz-*` and `x-dss-*`
//! header. A request with such a header unsigned is rejected, since a proxy could have added it. Signing keys are
//! cached with their secrets; results of verification are never cached.

mod coverage;
mod credential;
mod verify;

pub use tradewind_wire::sigv4::ChunkSignatureChain;
pub use verify::{BodyDeclaration, Verified, Verifier};

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
