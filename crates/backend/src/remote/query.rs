//! The query string of a request.

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

    /// The encoded query, without the question mark; empty without parameters.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn start_parameter(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push(b'&');
        }
        encode_query(name, &mut self.0);
    }
}
