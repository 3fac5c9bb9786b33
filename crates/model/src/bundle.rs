//! Bundles, many small files in one object (Hou 2017, sections 4.1.3 and 7: the bandwidth of many small requests for a
//! fraction of the client's processor time): what still goes into one, and in which ranges members are fetched from it.

use std::ops::Range;

/// Where a bundle ends and the next one begins. A bundle with a file that changed is packed again as a whole, and whoever
/// wants one member reads the whole index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of members, with what frames them.
    pub bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
}

impl Default for Limits {
    /// 1 GiB, which a line of 100 Mb/s carries in a minute and a half; an index of 2 MiB has some 30,000 members.
    fn default() -> Self {
        Self { bytes: 1 << 30, index_bytes: 2 << 20 }
    }
}

/// A bundle that is being filled.
#[derive(Debug, Clone, Copy)]
pub struct Filling {
    limits: Limits,
    bytes: u64,
    index_bytes: u64,
}

impl Filling {
    /// An empty one.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self { limits, bytes: 0, index_bytes: 0 }
    }

    /// Whether a member goes into this one; otherwise the next begins with it. An empty one takes a member of any size:
    /// what is larger than a bundle has one of its own.
    #[must_use]
    pub const fn takes(&self, bytes: u64, index_bytes: u64) -> bool {
        let is_empty = self.index_bytes == 0;
        let is_within = self.bytes.saturating_add(bytes) <= self.limits.bytes
            && self.index_bytes.saturating_add(index_bytes) <= self.limits.index_bytes;
        is_empty || is_within
    }

    /// A member went into it.
    pub const fn add(&mut self, bytes: u64, index_bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.index_bytes = self.index_bytes.saturating_add(index_bytes);
    }
}

/// Members that are fetched together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Their places in what was asked for.
    pub members: Range<usize>,
    /// Where the first one begins.
    pub offset: u64,
    /// Bytes to the end of the last one.
    pub length: u64,
}

/// Bytes between two members that are fetched with them rather than asked around: they cost less than another request.
const GAP: u64 = 64 << 10;

/// The runs in which members are fetched, given their offsets and lengths in ascending order. No run of several is
/// longer than `most` bytes.
#[must_use]
pub fn runs(spans: impl IntoIterator<Item = (u64, u64)>, most: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (place, (offset, length)) in spans.into_iter().enumerate() {
        let end = offset.saturating_add(length);
        if let Some(run) = runs.last_mut() {
            let is_near = offset.saturating_sub(run.offset.saturating_add(run.length)) <= GAP;
            let whole = end.saturating_sub(run.offset);
            if is_near && whole <= most {
                run.members.end = place + 1;
                run.length = run.length.max(whole);
                continue;
            }
        }
        runs.push(Run { members: place..place + 1, offset, length });
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bundle_ends_where_either_limit_is_reached() {
        let limits = Limits { bytes: 100, index_bytes: 30 };
        let mut filling = Filling::new(limits);
        assert!(filling.takes(1000, 1000));
        filling.add(60, 10);
        assert!(filling.takes(40, 20) && !filling.takes(41, 20) && !filling.takes(40, 21));
        filling.add(u64::MAX, 1);
        assert!(!filling.takes(u64::MAX, u64::MAX));
    }

    #[test]
    fn neighbours_are_fetched_together() {
        let spans = [(512, 100), (1536, 100), (1536 + GAP + 101, 10), (200_000, 5_000_000), (5_300_000, 7)];
        let found = runs(spans, 1 << 20);
        let members: Vec<_> = found.iter().map(|run| run.members.clone()).collect();
        assert_eq!(members, [0..2, 2..3, 3..4, 4..5]);
        assert_eq!((found[0].offset, found[0].length), (512, 1124));
        assert_eq!(runs([(512, 0)], 1), [Run { members: 0..1, offset: 512, length: 0 }]);
        assert_eq!(runs([], 1), []);
    }

    proptest! {
        #[test]
        fn every_member_is_in_one_run(
            steps in proptest::collection::vec((0_u64..200_000, 0_u64..200_000), 0..60),
            most in 1_u64..1_000_000,
        ) {
            let mut at = 0;
            let spans: Vec<_> = steps.into_iter().map(|(gap, length)| {
                let offset = at + gap;
                at = offset + length;
                (offset, length)
            }).collect();
            let mut next = 0;
            for run in runs(spans.iter().copied(), most) {
                prop_assert_eq!(run.members.start, next);
                prop_assert!(run.members.len() == 1 || run.length <= most);
                for (offset, length) in &spans[run.members.clone()] {
                    prop_assert!(*offset >= run.offset && offset + length <= run.offset + run.length);
                }
                next = run.members.end;
            }
            prop_assert_eq!(next, spans.len());
        }
    }
}
