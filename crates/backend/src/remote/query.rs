//! The query of a request.

use tradewind_wire::sigv4::encode_query;

/// A query, percent-encoded as signatures need it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<u8>);

impl Query {
    /// A parameter that has no value, as `uploads`.
    pub fn flag(mut self, name: &str) -> Self {
        self.begin(name);
        self
    }

    /// A parameter with its value.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.begin(name);
        self.0.push(b'=');
        encode_query(value, &mut self.0);
        self
    }

    /// The same where there is a value.
    pub fn with_some(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// What stands behind the question mark; empty where there is none.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn begin(&mut self, name: &str) {
        if !self.0.is_empty() {
            self.0.push(b'&');
        }
        encode_query(name, &mut self.0);
    }
}
