//! Conditions on reads and writes. Only the store evaluates them: a write's at the
//! commit's linearization point, a read's against the same snapshot that supplies the bytes.
//! RFC 9110 section 13 and S3's conditional requests.

use crate::clock::Timestamp;
use crate::error::{Error, Reason, Result};
use crate::object::{ETag, Generation};

/// A condition on the current state of the key that a write or a delete replaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Precondition {
    /// No condition.
    #[default]
    None,
    /// `If-None-Match: *`: the key must not exist.
    Absent,
    /// `If-Match: etag`: the key must exist with this tag.
    Matches(ETag),
    /// `If-Match: *`: the key must exist.
    Exists,
    /// The key must still be this write. For a store's own read-modify-write.
    MatchesGeneration(Generation),
}

impl Precondition {
    /// Returns `Ok` if the condition holds for the current state (`None`: the key does not exist).
    pub fn check(&self, key: &str, current: Option<(&ETag, Generation)>) -> Result<()> {
        let failed = |why: &str| Err(Error::new(Reason::PreconditionFailed, format!("key {key:?} {why}")));
        match (self, current) {
            (Self::None, _) | (Self::Absent, None) | (Self::Exists, Some(_)) => Ok(()),
            (Self::Absent, Some(_)) => failed("exists already"),
            (Self::Matches(_) | Self::Exists, None) => Err(Error::no_such_key(key)),
            (Self::Matches(wanted), Some((etag, _))) if wanted == etag => Ok(()),
            (Self::Matches(_), Some(_)) => failed("has another ETag"),
            (Self::MatchesGeneration(wanted), Some((_, generation))) if *wanted == generation => Ok(()),
            (Self::MatchesGeneration(_), _) => {
                Err(Error::new(Reason::Conflict, format!("key {key:?} was changed concurrently")))
            }
        }
    }
}

/// One side of `If-Match` / `If-None-Match`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ETagMatch {
    /// `*`.
    Any,
    /// A list of tags.
    OneOf(Vec<ETag>),
}

impl ETagMatch {
    /// Parses the header: `*` or a comma-separated list of tags, quoted or not.
    #[must_use]
    pub fn parse(header: &str) -> Self {
        if header.trim() == "*" {
            return Self::Any;
        }
        Self::OneOf(header.split(',').map(ETag::from_text).collect())
    }

    fn matches(&self, etag: &ETag) -> bool {
        match self {
            Self::Any => true,
            Self::OneOf(tags) => tags.contains(etag),
        }
    }
}

/// Conditions on a read of an existing object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadConditions {
    /// `If-Match`.
    pub if_match: Option<ETagMatch>,
    /// `If-None-Match`.
    pub if_none_match: Option<ETagMatch>,
    /// `If-Modified-Since`.
    pub if_modified_since: Option<Timestamp>,
    /// `If-Unmodified-Since`.
    pub if_unmodified_since: Option<Timestamp>,
}

impl ReadConditions {
    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Evaluates the conditions in RFC 9110's order: a true `If-Match` overrides `If-Unmodified-Since`, and
    /// `If-None-Match`, if present, overrides `If-Modified-Since`. Times compare in whole seconds.
    pub fn check(&self, etag: &ETag, modified: Timestamp) -> Result<()> {
        let failed = || Err(Error::new(Reason::PreconditionFailed, "a read condition did not hold"));
        match (&self.if_match, self.if_unmodified_since) {
            (Some(wanted), _) if !wanted.matches(etag) => return failed(),
            (None, Some(since)) if modified.seconds() > since.seconds() => return failed(),
            _ => {}
        }
        let unchanged = match (&self.if_none_match, self.if_modified_since) {
            (Some(known), _) => known.matches(etag),
            (None, Some(since)) => modified.seconds() <= since.seconds(),
            (None, None) => false,
        };
        if unchanged {
            return Err(Error::new(Reason::NotModified, "the object was not modified"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precedence_of_read_conditions() {
        let etag = ETag::from_text("\"a\"");
        let at = Timestamp::from_millis(10_500);
        let check = |c: ReadConditions| c.check(&etag, at).map_err(|e| e.reason());
        let tags = |t: &str| Some(ETagMatch::parse(t));
        let seconds = |s: i64| Some(Timestamp::from_millis(s * 1000));
        let base = ReadConditions::default;
        assert_eq!(check(base()), Ok(()));
        assert_eq!(
            check(ReadConditions { if_match: tags("\"b\""), ..base() }),
            Err(Reason::PreconditionFailed)
        );
        assert_eq!(
            check(ReadConditions {
                if_match: tags("\"b\", \"a\""),
                if_unmodified_since: seconds(1),
                ..base()
            }),
            Ok(())
        );
        assert_eq!(
            check(ReadConditions { if_unmodified_since: seconds(9), ..base() }),
            Err(Reason::PreconditionFailed)
        );
        assert_eq!(check(ReadConditions { if_unmodified_since: seconds(10), ..base() }), Ok(()));
        assert_eq!(
            check(ReadConditions { if_none_match: tags("*"), if_modified_since: seconds(1), ..base() }),
            Err(Reason::NotModified)
        );
        assert_eq!(
            check(ReadConditions { if_none_match: tags("\"b\""), if_modified_since: seconds(99), ..base() }),
            Ok(())
        );
        assert_eq!(
            check(ReadConditions { if_modified_since: seconds(10), ..base() }),
            Err(Reason::NotModified)
        );
    }

    #[test]
    fn preconditions() {
        let etag = ETag::from_text("a");
        let here = Some((&etag, Generation(7)));
        let check = |p: Precondition, now| p.check("k", now).map_err(|e| e.reason());
        assert_eq!(check(Precondition::Absent, None), Ok(()));
        assert_eq!(check(Precondition::Absent, here), Err(Reason::PreconditionFailed));
        assert_eq!(check(Precondition::Matches(etag.clone()), here), Ok(()));
        assert_eq!(check(Precondition::Matches(etag.clone()), None), Err(Reason::NoSuchKey));
        assert_eq!(check(Precondition::Matches(ETag::from_text("b")), here), Err(Reason::PreconditionFailed));
        assert_eq!(check(Precondition::MatchesGeneration(Generation(7)), here), Ok(()));
        assert_eq!(check(Precondition::MatchesGeneration(Generation(8)), here), Err(Reason::Conflict));
    }
}
