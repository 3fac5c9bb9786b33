//! Kinds of ETags that have the form of an MD5. Those of most services are the MD5 of the bytes; those of some others only
//! look like one. While checksum headers are omitted, the ETag is compared with the MD5 of the bytes, so the kind matters.
//!
//! A single match proves that a bucket has MD5s: from then on, each difference is damage. Until then, a difference proves
//! that a bucket has none only if the bytes are known to be right: the service has compared them with Content-MD5 or with
//! a checksum. Two reads that agree make it likely, and one match refutes that.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Maximum number of buckets with a known kind.
const MAX_KNOWN_BUCKETS: usize = 4096;

/// The kind of a bucket's ETags that have the form of an MD5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ETagKind {
    /// Nothing was compared yet.
    Unknown,
    /// A streamed body had another MD5. The next bodies are sent with Content-MD5, which decides.
    Doubtful,
    /// MD5s of the bytes.
    Md5,
    /// Something else, according to reads that agreed with each other.
    LikelyOther,
    /// Something else: the service itself had verified the bytes.
    Other,
}

/// The result of a comparison of an ETag with the MD5 of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ETagEvidence {
    Match,
    /// A difference, although the service has verified the bytes.
    VerifiedMismatch,
    /// A difference, in two reads with equal bytes.
    RepeatedMismatch,
    /// A difference in a body that nothing else proves.
    Mismatch,
}

impl ETagKind {
    /// The kind after a comparison.
    const fn after(self, evidence: ETagEvidence) -> Self {
        match (self, evidence) {
            (Self::Md5, _) | (Self::Unknown | Self::Doubtful | Self::LikelyOther, ETagEvidence::Match) => {
                Self::Md5
            }
            (Self::Other, _) | (_, ETagEvidence::VerifiedMismatch) => Self::Other,
            (Self::LikelyOther, _) | (_, ETagEvidence::RepeatedMismatch) => Self::LikelyOther,
            (Self::Unknown | Self::Doubtful, ETagEvidence::Mismatch) => Self::Doubtful,
        }
    }

    /// Returns true if a difference is no sign of damage.
    pub const fn is_other(self) -> bool {
        matches!(self, Self::LikelyOther | Self::Other)
    }
}

/// The kinds of ETags in a store's buckets.
#[derive(Debug, Default)]
pub(super) struct ETagKinds {
    by_bucket: Mutex<HashMap<Box<str>, ETagKind>>,
}

impl ETagKinds {
    /// The kind in a bucket. A bucket without a comparison is like the store's other ones, if these are certain and agree.
    pub fn kind(&self, bucket: &str) -> ETagKind {
        let by_bucket = self.by_bucket.lock();
        if let Some(known) = by_bucket.get(bucket) {
            return *known;
        }
        let has = |kind: ETagKind| by_bucket.values().any(|known| *known == kind);
        if has(ETagKind::Other) && !has(ETagKind::Md5) { ETagKind::Other } else { ETagKind::Unknown }
    }

    /// Records a comparison. Returns true unless a difference must be taken for damage.
    pub fn record(&self, bucket: &str, evidence: ETagEvidence) -> bool {
        if evidence == ETagEvidence::Mismatch && self.kind(bucket).is_other() {
            return true;
        }
        let mut by_bucket = self.by_bucket.lock();
        let before = by_bucket.get(bucket).copied().unwrap_or(ETagKind::Unknown);
        let after = before.after(evidence);
        if before != after {
            tracing::debug!(bucket, kind = ?after, "the ETags of a bucket were compared");
            if by_bucket.len() >= MAX_KNOWN_BUCKETS && !by_bucket.contains_key(bucket) {
                by_bucket.clear();
            }
            by_bucket.insert(bucket.into(), after);
        }
        evidence == ETagEvidence::Match || after.is_other()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn match_makes_each_difference_damage() {
        let kinds = ETagKinds::default();
        assert!(kinds.record("b", ETagEvidence::RepeatedMismatch), "two reads agree");
        assert!(kinds.record("b", ETagEvidence::Mismatch));
        assert!(kinds.record("b", ETagEvidence::Match));
        for evidence in
            [ETagEvidence::Mismatch, ETagEvidence::RepeatedMismatch, ETagEvidence::VerifiedMismatch]
        {
            assert!(!kinds.record("b", evidence), "{evidence:?}");
        }
        assert_eq!(kinds.kind("b"), ETagKind::Md5);
    }

    #[test]
    fn verified_difference_is_certain() {
        let kinds = ETagKinds::default();
        assert!(!kinds.record("b", ETagEvidence::Mismatch));
        assert_eq!(kinds.kind("b"), ETagKind::Doubtful);
        assert!(kinds.record("b", ETagEvidence::VerifiedMismatch));
        for evidence in [ETagEvidence::Match, ETagEvidence::Mismatch] {
            assert!(kinds.record("b", evidence));
        }
        assert_eq!(kinds.kind("b"), ETagKind::Other);
    }

    #[test]
    fn bucket_without_a_comparison_is_like_certain_others() {
        let kinds = ETagKinds::default();
        kinds.record("likely", ETagEvidence::RepeatedMismatch);
        assert_eq!(kinds.kind("new"), ETagKind::Unknown);
        kinds.record("certain", ETagEvidence::VerifiedMismatch);
        assert_eq!(kinds.kind("new"), ETagKind::Other);
        assert!(kinds.record("new", ETagEvidence::Mismatch));
        kinds.record("md5", ETagEvidence::Match);
        assert_eq!((kinds.kind("md5"), kinds.kind("new")), (ETagKind::Md5, ETagKind::Unknown));
    }

    #[test]
    fn known_buckets_are_bounded() {
        let kinds = ETagKinds::default();
        for number in 0..=MAX_KNOWN_BUCKETS {
            kinds.record(&format!("bucket-{number}"), ETagEvidence::Match);
        }
        assert_eq!(kinds.by_bucket.lock().len(), 1);
    }
}
