//! Selection of names by include and exclude patterns.

use globset::{GlobBuilder, GlobMatcher};
use tradewind_core::error::{Error, Reason, Result};

/// Patterns in the order in which they were given; the last one that matches a name decides.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone)]
struct Rule {
    includes: bool,
    glob: Pattern,
    /// The pattern without the stars at its end, which match anything; `None` without such a star.
    begin: Option<Pattern>,
    /// The characters before the first special one: every match begins with them.
    literal_prefix: String,
}

impl Rule {
    /// Returns true if the pattern certainly matches every name that begins with `prefix`.
    fn matches_all_below(&self, prefix: &str) -> bool {
        let Some(begin) = &self.begin else { return false };
        let ends = prefix.char_indices().map(|(at, _)| at).chain([prefix.len()]);
        ends.into_iter().any(|end| begin.matches(&prefix[..end]))
    }

    /// Returns true if the pattern may match a name that begins with `prefix`.
    fn may_match_below(&self, prefix: &str) -> bool {
        self.literal_prefix.starts_with(prefix) || prefix.starts_with(&self.literal_prefix)
    }
}

/// The characters with a meaning in patterns.
const SPECIAL_CHARS: [char; 6] = ['*', '?', '[', '{', '\\', '}'];

/// A pattern. `*` and `?` match any character including `/`, like in the AWS CLI; `[ab]` and `{a,b}` are supported.
#[derive(Debug, Clone)]
pub struct Pattern(GlobMatcher);

/// Patterns are equal if they are written alike.
impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Pattern {}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// [`InvalidArgument`](Reason::InvalidArgument) with the pattern, if it is invalid.
    pub fn new(pattern: &str) -> Result<Self> {
        let invalid =
            |e| Error::with_source(Reason::InvalidArgument, format!("invalid pattern {pattern:?}: {e}"), e);
        let glob = GlobBuilder::new(pattern).literal_separator(false).backslash_escape(true).build();
        Ok(Self(glob.map_err(invalid)?.compile_matcher()))
    }

    /// The pattern as written.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.glob().glob()
    }

    /// Returns true if the pattern matches the whole text.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

/// The pattern without the stars at its end; `None` without such a star, or if the star is escaped.
fn without_final_stars(pattern: &str) -> Option<&str> {
    let begin = pattern.trim_end_matches('*');
    let backslashes = begin.len() - begin.trim_end_matches('\\').len();
    (begin.len() < pattern.len() && backslashes.is_multiple_of(2)).then_some(begin)
}

impl Filter {
    /// A filter that accepts every name.
    #[must_use]
    pub fn accept_all() -> Self {
        Self::default()
    }

    /// Adds a [`Pattern`].
    pub fn add(&mut self, pattern: &str, includes: bool) -> Result<()> {
        let glob = Pattern::new(pattern)?;
        let begin = without_final_stars(pattern).and_then(|begin| Pattern::new(begin).ok());
        let literal_prefix = pattern.split(SPECIAL_CHARS).next().unwrap_or_default().to_owned();
        self.rules.push(Rule { includes, glob, begin, literal_prefix });
        Ok(())
    }

    /// Returns true if the name is selected.
    #[must_use]
    pub fn accepts(&self, name: &str) -> bool {
        self.rules.iter().rev().find(|rule| rule.glob.matches(name)).is_none_or(|rule| rule.includes)
    }

    /// Returns true if no name below a directory is selected, so that it need not be entered. May return false in such
    /// a case too: only patterns that end with `*` are known to match everything.
    #[must_use]
    pub fn excludes_all_below(&self, directory: &str) -> bool {
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        for rule in self.rules.iter().rev() {
            match rule.includes {
                true if rule.may_match_below(&prefix) => return false,
                false if rule.matches_all_below(&prefix) => return true,
                _ => {}
            }
        }
        false
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

    #[test]
    fn directory_is_excluded_if_no_name_below_it_is_selected() {
        let all_below = |rules: &[(bool, &str)], directory: &str| filter(rules).excludes_all_below(directory);
        assert!(!all_below(&[], "d") && !all_below(&[], ""));
        for pattern in ["*", "**", "d/*", "d*", "d/**", "**/*", "*/*", "?/*", "[d]*", "{c,d}/*"] {
            assert!(all_below(&[(false, pattern)], "d"), "{pattern}");
        }
        for pattern in ["d", "d/", "d/x*", "d/*.tmp", "d/?", "e/*", "dd*", "d/\\*", "{d/*,e}", "d?*/y"] {
            assert!(!all_below(&[(false, pattern)], "d"), "{pattern}");
        }
        assert!(all_below(&[(false, "d\\\\*")], "d\\"));
        assert!(
            all_below(&[(false, "*/cache/*")], "a/b/cache") && !all_below(&[(false, "*/cache/*")], "cache")
        );
        let only_photos = [(false, "*"), (true, "photos/*")];
        assert!(all_below(&only_photos, "lost+found") && !all_below(&only_photos, "photos/2026"));
        assert!(!all_below(&only_photos, "") && !all_below(&[(false, "*"), (true, "*.jpg")], "d"));
        assert!(all_below(&[(true, "d/x"), (false, "d/*")], "d"), "the last match decides");
    }

    proptest::proptest! {
        #[test]
        fn no_name_below_an_excluded_directory_is_accepted(
            rules in proptest::collection::vec((proptest::bool::ANY, "[ab/*?\\\\]{1,5}"), 0..4),
            directory in "[ab]{0,2}",
            rest in "[ab/*\n]{1,4}",
        ) {
            let mut filter = Filter::accept_all();
            for (includes, pattern) in &rules {
                // A pattern may end with a lone backslash.
                let _ = filter.add(pattern, *includes);
            }
            let name = if directory.is_empty() { rest.clone() } else { format!("{directory}/{rest}") };
            proptest::prop_assert!(!(filter.excludes_all_below(&directory) && filter.accepts(&name)), "{rules:?} {name}");
        }
    }
}
