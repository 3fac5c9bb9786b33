//! Selection of names by include and exclude patterns.

use globset::{GlobBuilder, GlobMatcher};
use tradewind_core::error::{Error, Reason, Result};

/// Patterns in the order in which they were given; the last one that matches a name decides.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rules: Vec<(bool, GlobMatcher)>,
}

impl Filter {
    /// A filter that accepts every name.
    #[must_use]
    pub fn accept_all() -> Self {
        Self::default()
    }

    /// Adds a pattern. `*` and `?` match any character including `/`, like in the AWS CLI; `[ab]` and `{a,b}` are
    /// supported.
    pub fn add(&mut self, pattern: &str, includes: bool) -> Result<()> {
        let glob = GlobBuilder::new(pattern).literal_separator(false).backslash_escape(true).build();
        let glob = glob.map_err(|e| {
            Error::with_source(Reason::InvalidArgument, format!("invalid pattern {pattern:?}: {e}"), e)
        })?;
        self.rules.push((includes, glob.compile_matcher()));
        Ok(())
    }

    /// Returns true if the name is selected.
    #[must_use]
    pub fn accepts(&self, name: &str) -> bool {
        self.rules.iter().rev().find(|(_, glob)| glob.is_match(name)).is_none_or(|(includes, _)| *includes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &[(bool, &str)]) -> Filter {
        let mut filter = Filter::accept_all();
        rules.iter().for_each(|(includes, pattern)| filter.add(pattern, *includes).unwrap());
        filter
    }

    #[test]
    fn last_matching_pattern_decides() {
        assert!(filter(&[]).accepts("a"));
        assert!(!filter(&[(false, "*.tmp")]).accepts("a/b.tmp"));
        let only_jpg = filter(&[(false, "*"), (true, "*.jpg")]);
        assert!(only_jpg.accepts("x/y.jpg") && !only_jpg.accepts("x/y.png"));
        assert!(!filter(&[(true, "*.jpg"), (false, "*")]).accepts("y.jpg"));
        assert!(Filter::accept_all().add("a[", false).is_err());
    }
}
