//! Quoting of CSV fields (RFC 4180), for all CSV output of this crate.

use std::borrow::Cow;

/// Quotes a field if it contains a separator, a quote or a line break.
pub(crate) fn quoted(field: &str) -> Cow<'_, str> {
    if field.contains(['"', ',', '\r', '\n']) {
        return format!("\"{}\"", field.replace('"', "\"\"")).into();
    }
    field.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_quotes_fields_with_commas_or_quotes() {
        assert_eq!(quoted("get=1,put=2"), "\"get=1,put=2\"");
        assert_eq!(quoted("a \"b\""), "\"a \"\"b\"\"\"");
        assert_eq!(quoted("4KiB"), "4KiB");
    }
}
