//! Fields of comma-separated values, as every table that is written here has them (RFC 4180).

use std::borrow::Cow;

/// A field that may hold anything.
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
    fn fields_with_commas_and_quotes_are_quoted() {
        assert_eq!(quoted("get=1,put=2"), "\"get=1,put=2\"");
        assert_eq!(quoted("a \"b\""), "\"a \"\"b\"\"\"");
        assert_eq!(quoted("4KiB"), "4KiB");
    }
}
