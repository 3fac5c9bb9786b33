//! The parts of the S3 protocol that client and server share. The gateway verifies what the `s3` leaf signs; both use
//! the canonical request, the keys and the dates from here, so that they cannot drift apart.

pub mod encoded_word;
pub mod headers;
pub mod http_date;
pub mod sigv4;
