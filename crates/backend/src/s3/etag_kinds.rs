//! Kinds of ETags that have the form of an MD5. At most services, they are the MD5 of the bytes; at some others, they only look
//! like one. While checksum headers are omitted, the ETag is compared with the MD5 of the bytes, so the kind matters.
//!
//! A single match proves that a bucket has MD5s: from then on, each difference is damage. Until then, a difference is
//! taken for damage, too, unless the bytes are known to be right, or several objects differ alike. Each bucket is on its
//! own, since a service may treat them differently.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};

use parking_lot::Mutex;
use tradewind_core::Address;
use tradewind_core::multipart::{PartNumber, UploadId};

/// Maximum number of buckets with a known kind.
const MAX_KNOWN_BUCKETS: usize = 4096;
/// Number of different objects or parts that must differ from their ETags, until these count as something else.
const MIN_DIFFERENT_BODIES: usize = 3;

/// The kind of a bucket's ETags that have the form of an MD5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum ETagKind {
    /// Too little was compared yet.
    #[default]
    Unknown,
    /// A streamed body had another MD5. The next bodies are sent with Content-MD5.
    Doubtful,
    /// MD5s of the bytes.
    Md5,
    /// Probably something else: each of several objects differed, in two reads that agreed.
    LikelyOther,
    /// Something else: the bytes of an object were read back and are right, or several parts that the service had verified
    /// differed.
    Other,
}

impl ETagKind {
    /// Returns true if each body in memory is sent with Content-MD5, so that the service verifies it.
    pub const fn needs_content_md5(self) -> bool {
        matches!(self, Self::Doubtful | Self::LikelyOther)
    }
}

/// Identifies an object or a part of a bucket, to count different ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BodyId(u64);

impl BodyId {
    /// The id of an object.
    pub fn of_object(address: &Address) -> Self {
        let mut hasher = DefaultHasher::new();
        address.key.as_str().hash(&mut hasher);
        Self(hasher.finish())
    }

    /// The id of a part.
    pub fn of_part(upload: &UploadId, number: PartNumber) -> Self {
        let mut hasher = DefaultHasher::new();
        (&upload.0, number.get()).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// The result of a comparison of an ETag with the MD5 of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ETagEvidence {
    Match,
    /// A difference, although the bytes that were read back are those sent.
    ReadBackMismatch,
    /// A difference, although the service has verified the bytes. They cannot be read back.
    VerifiedMismatch(BodyId),
    /// A difference, in two reads with equal bytes.
    RepeatedMismatch(BodyId),
    /// A difference in a body that nothing else proves.
    Mismatch,
}

/// The knowledge about one bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct BucketETags {
    kind: ETagKind,
    /// Different bodies of [`ETagEvidence::VerifiedMismatch`]; at most [`MIN_DIFFERENT_BODIES`].
    verified: Vec<BodyId>,
    /// Different bodies of [`ETagEvidence::RepeatedMismatch`]; at most [`MIN_DIFFERENT_BODIES`].
    repeated: Vec<BodyId>,
}

impl BucketETags {
    /// Adds the result of a comparison.
    fn add(&mut self, evidence: ETagEvidence) {
        match (self.kind, evidence) {
            (_, ETagEvidence::Match) => *self = Self { kind: ETagKind::Md5, ..Self::default() },
            (ETagKind::Md5 | ETagKind::Other, _) => {}
            (_, ETagEvidence::ReadBackMismatch) => self.kind = ETagKind::Other,
            (_, ETagEvidence::VerifiedMismatch(body)) => {
                if are_enough(&mut self.verified, body) {
                    self.kind = ETagKind::Other;
                }
            }
            (_, ETagEvidence::RepeatedMismatch(body)) => {
                if are_enough(&mut self.repeated, body) {
                    self.kind = ETagKind::LikelyOther;
                }
            }
            (ETagKind::LikelyOther, ETagEvidence::Mismatch) => {}
            (ETagKind::Unknown | ETagKind::Doubtful, ETagEvidence::Mismatch) => {
                self.kind = ETagKind::Doubtful;
            }
        }
    }
}

/// Adds a body, if it is another one. Returns true if there are enough.
fn are_enough(bodies: &mut Vec<BodyId>, body: BodyId) -> bool {
    if bodies.len() < MIN_DIFFERENT_BODIES && !bodies.contains(&body) {
        bodies.push(body);
    }
    bodies.len() == MIN_DIFFERENT_BODIES
}

/// The kinds of ETags in a store's buckets.
#[derive(Debug, Default)]
pub(super) struct ETagKinds {
    by_bucket: Mutex<HashMap<Box<str>, BucketETags>>,
}

impl ETagKinds {
    /// The kind in a bucket.
    pub fn kind(&self, bucket: &str) -> ETagKind {
        self.by_bucket.lock().get(bucket).map(|known| known.kind).unwrap_or_default()
    }

    /// Records a comparison. Returns true unless a difference must be taken for damage.
    pub fn record(&self, bucket: &str, evidence: ETagEvidence) -> bool {
        let mut by_bucket = self.by_bucket.lock();
        let before = by_bucket.get(bucket).cloned().unwrap_or_default();
        let mut after = before.clone();
        after.add(evidence);
        let kind = after.kind;
        if before != after {
            if before.kind != kind {
                tracing::debug!(bucket, ?kind, "the ETags of a bucket were compared");
            }
            if make_room(&mut by_bucket, bucket) {
                by_bucket.insert(bucket.into(), after);
            }
        }
        match evidence {
            ETagEvidence::Match => true,
            // A stream in which nothing else proves the bytes needs certainty.
            ETagEvidence::Mismatch => kind == ETagKind::Other,
            ETagEvidence::VerifiedMismatch(_) | ETagEvidence::ReadBackMismatch => kind == ETagKind::Other,
            ETagEvidence::RepeatedMismatch(_) => matches!(kind, ETagKind::LikelyOther | ETagKind::Other),
        }
    }
}

/// Removes a bucket for a new one, if there are too many. Returns false if each of them has MD5s: this knowledge is kept,
/// because it makes damage certain.
fn make_room(by_bucket: &mut HashMap<Box<str>, BucketETags>, bucket: &str) -> bool {
    if by_bucket.len() < MAX_KNOWN_BUCKETS || by_bucket.contains_key(bucket) {
        return true;
    }
    let evicted =
        by_bucket.iter().find(|(_, known)| known.kind != ETagKind::Md5).map(|(name, _)| name.clone());
    evicted.is_some_and(|evicted| by_bucket.remove(&evicted).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differences() -> [ETagEvidence; 4] {
        let body = BodyId(9);
        [
            ETagEvidence::Mismatch,
            ETagEvidence::RepeatedMismatch(body),
            ETagEvidence::VerifiedMismatch(body),
            ETagEvidence::ReadBackMismatch,
        ]
    }

    #[test]
    fn match_makes_each_difference_damage() {
        for before in differences() {
            let kinds = ETagKinds::default();
            kinds.record("b", before);
            assert!(kinds.record("b", ETagEvidence::Match));
            for evidence in differences() {
                assert!(!kinds.record("b", evidence), "{evidence:?} after {before:?}");
            }
            assert_eq!(kinds.kind("b"), ETagKind::Md5);
        }
    }

    #[test]
    fn three_different_objects_make_other_etags_likely() {
        let kinds = ETagKinds::default();
        for (body, is_accepted) in [(1, false), (1, false), (2, false), (1, false), (3, true), (1, true)] {
            let evidence = ETagEvidence::RepeatedMismatch(BodyId(body));
            assert_eq!(kinds.record("b", evidence), is_accepted, "object {body}");
        }
        assert_eq!(kinds.kind("b"), ETagKind::LikelyOther);
        assert!(!kinds.record("b", ETagEvidence::Mismatch), "a streamed write");
        assert_eq!((kinds.kind("b"), kinds.kind("new")), (ETagKind::LikelyOther, ETagKind::Unknown));
    }

    #[test]
    fn three_different_verified_parts_make_other_etags_certain() {
        let kinds = ETagKinds::default();
        assert!(!kinds.record("b", ETagEvidence::Mismatch));
        assert_eq!(kinds.kind("b"), ETagKind::Doubtful);
        for (body, is_accepted) in [(1, false), (1, false), (2, false), (3, true), (1, true)] {
            let evidence = ETagEvidence::VerifiedMismatch(BodyId(body));
            assert_eq!(kinds.record("b", evidence), is_accepted, "part {body}");
        }
        assert!(kinds.record("b", ETagEvidence::Mismatch));
        assert_eq!((kinds.kind("b"), kinds.kind("new")), (ETagKind::Other, ETagKind::Unknown));
    }

    #[test]
    fn match_restarts_the_counts_of_differences() {
        let kinds = ETagKinds::default();
        assert!(kinds.record("b", ETagEvidence::ReadBackMismatch));
        kinds.record("b", ETagEvidence::Match);
        assert!(!kinds.record("b", ETagEvidence::ReadBackMismatch));
    }

    #[test]
    fn buckets_with_md5s_are_kept_at_the_bound() {
        let kinds = ETagKinds::default();
        kinds.record("other", ETagEvidence::ReadBackMismatch);
        for number in 0..MAX_KNOWN_BUCKETS {
            kinds.record(&format!("bucket-{number}"), ETagEvidence::Match);
        }
        assert_eq!(kinds.kind("other"), ETagKind::Unknown, "it was evicted");
        for evidence in [ETagEvidence::Match, ETagEvidence::Mismatch] {
            kinds.record("new", evidence);
        }
        assert_eq!(kinds.by_bucket.lock().len(), MAX_KNOWN_BUCKETS);
        assert_eq!(kinds.kind("new"), ETagKind::Unknown);
        assert_eq!(kinds.kind("bucket-0"), ETagKind::Md5);
    }
}
