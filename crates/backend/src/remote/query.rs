//! The query string of a request, and the request target that it ends. Both are encoded as SigV4 signs them; Swift
//! decodes the same encoding.

use http::Uri;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_wire::sigv4::encode_query;

/// A query string, percent-encoded as SigV4 requires.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<u8>);

impl Query {
    /// Adds a parameter without a value, such as `uploads`.
    pub fn flag(mut self, name: &str) -> Self {
        self.start_parameter(name);
        self
    }

    /// Adds a parameter with a value.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.start_parameter(name);
        self.0.push(b'=');
        encode_query(value, &mut self.0);
        self
    }

    /// Adds a parameter if it has a value.
    pub fn with_optional(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// Length of the encoded query, in bytes.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// The encoded parameters, which are also the body of an HTML form.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The request target: an encoded path, and the query if it has parameters.
    pub fn append_to(&self, path: Vec<u8>) -> Result<Uri> {
        let mut target = path;
        if !self.0.is_empty() {
            target.push(b'?');
            target.extend_from_slice(&self.0);
        }
        Uri::try_from(target).map_err(|e| {
            Error::with_source(Reason::InvalidArgument, "the key cannot be written into a URL", e)
        })
    }

    fn start_parameter(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push(b'&');
        }
        encode_query(name, &mut self.0);
    }
}
