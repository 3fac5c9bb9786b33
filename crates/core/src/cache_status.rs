//! The header `Cache-Status` of a response (RFC 9211): whether a cache between this client and the store had the object.

/// The outcome of a read in the caches that it passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheOutcome {
    /// A cache had the object.
    Hit,
    /// Each cache forwarded the request.
    Miss,
}

impl CacheOutcome {
    /// Parses the header. `None` if no cache says whether it had the object.
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let mut outcome = None;
        // The first parameter of a cache follows its name.
        for parameter in split_outside_quotes(header) {
            let name = parameter.split('=').next().unwrap_or_default().trim();
            match name {
                // A structured field's boolean may have its value.
                "hit" if !parameter.contains("?0") => return Some(Self::Hit),
                "fwd" => outcome = Some(Self::Miss),
                _ => {}
            }
        }
        outcome
    }
}

/// The pieces between semicolons and commas outside of quoted strings.
fn split_outside_quotes(text: &str) -> impl Iterator<Item = &str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    text.split(move |c: char| {
        let is_end = !is_quoted && matches!(c, ';' | ',');
        if c == '"' && !is_escaped {
            is_quoted = !is_quoted;
        }
        is_escaped = is_quoted && c == '\\' && !is_escaped;
        is_end
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_hit_is_a_hit_and_text_is_ignored() {
        for (header, expected) in [
            ("tradewind; hit; detail=\"ssd, class 25, priority 3\"", Some(CacheOutcome::Hit)),
            ("tradewind; fwd=uri-miss; detail=\"backing; hit, no class\"", Some(CacheOutcome::Miss)),
            ("OriginCache; hit; ttl=1100, \"CDN; a\"; fwd=uri-miss", Some(CacheOutcome::Hit)),
            ("A; fwd=stale;fwd-status=304, B;hit=?0", Some(CacheOutcome::Miss)),
            ("A; detail=\"a \\\" ; hit\"", None),
            ("A; ttl=3", None),
            ("", None),
        ] {
            assert_eq!(CacheOutcome::parse(header), expected, "{header}");
        }
    }
}
