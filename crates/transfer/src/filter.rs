//! Which names a command is about: patterns that include and exclude.

use globset::{GlobBuilder, GlobMatcher};
use tradewind_core::error::{Error, Reason, Result};

/// Patterns in the order in which they were given; of those that match the last one decides.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rules: Vec<(bool, GlobMatcher)>,
}

impl Filter {
    /// A filter that takes everything.
    #[must_use]
    pub fn everything() -> Self {
        Self::default()
    }

    /// One more pattern: `*` and `?` match any characters, slashes too, as the AWS CLI has it; besides that `[ab]` and
    /// `{a,b}`.
    pub fn add(&mut self, pattern: &str, includes: bool) -> Result<()> {
        let glob = GlobBuilder::new(pattern).literal_separator(false).backslash_escape(true).build();
        let glob = glob.map_err(|e| {
            Error::with_source(Reason::InvalidArgument, format!("{pattern:?} is no pattern: {e}"), e)
        })?;
        self.rules.push((includes, glob.compile_matcher()));
        Ok(())
    }

    /// Whether a name is meant.
    #[must_use]
    pub fn takes(&self, name: &str) -> bool {
        self.rules.iter().rev().find(|(_, glob)| glob.is_match(name)).is_none_or(|(includes, _)| *includes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &[(bool, &str)]) -> Filter {
        let mut filter = Filter::everything();
        rules.iter().for_each(|(includes, pattern)| filter.add(pattern, *includes).unwrap());
        filter
    }

    #[test]
    fn the_last_pattern_that_matches_decides() {
        assert!(filter(&[]).takes("a"));
        assert!(!filter(&[(false, "*.tmp")]).takes("a/b.tmp"));
        let only_jpg = filter(&[(false, "*"), (true, "*.jpg")]);
        assert!(only_jpg.takes("x/y.jpg") && !only_jpg.takes("x/y.png"));
        assert!(!filter(&[(true, "*.jpg"), (false, "*")]).takes("y.jpg"));
        assert!(Filter::everything().add("a[", false).is_err());
    }
}
