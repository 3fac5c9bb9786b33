//! Bundles: many small files in one object (Hou 2017, sections 4.1.3 and 7), which give the throughput of many small
//! requests for a fraction of the client's CPU time. Decides which members fit into a bundle, and in which ranges
//! members are fetched from it.

use std::ops::Range;

/// Maximum size of a bundle. If one of its files changes, the whole bundle is packed again; reading one member requires
/// the whole index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BundleLimits {
    /// Bytes of members, including their framing.
    pub bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
}

impl Default for BundleLimits {
    /// 1 GiB, which takes 90 s at 100 Mbit/s. An index of 2 MiB has about 30,000 members.
    fn default() -> Self {
        Self { bytes: 1 << 30, index_bytes: 2 << 20 }
    }
}

/// A bundle being filled.
#[derive(Debug, Clone, Copy)]
pub struct BundleSize {
    limits: BundleLimits,
    bytes: u64,
    index_bytes: u64,
}

impl BundleSize {
    /// An empty bundle.
    #[must_use]
    pub const fn new(limits: BundleLimits) -> Self {
        Self { limits, bytes: 0, index_bytes: 0 }
    }

    /// Returns true if a member fits; otherwise it starts the next bundle. An empty bundle takes a member of any size,
    /// so a file larger than a bundle gets one of its own.
    #[must_use]
    pub const fn fits(&self, bytes: u64, index_bytes: u64) -> bool {
        let is_empty = self.index_bytes == 0;
        let is_within = self.bytes.saturating_add(bytes) <= self.limits.bytes
            && self.index_bytes.saturating_add(index_bytes) <= self.limits.index_bytes;
        is_empty || is_within
    }

    /// Adds a member.
    pub const fn add(&mut self, bytes: u64, index_bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.index_bytes = self.index_bytes.saturating_add(index_bytes);
    }
}

/// Members fetched in one range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRange {
    /// Their indices in the list of requested members.
    pub members: Range<usize>,
    /// Offset of the first member.
    pub offset: u64,
    /// Bytes up to the end of the last member.
    pub length: u64,
}

/// Maximum bytes between two members of a range. Fetching the gap costs less than another request.
const MAX_GAP_BYTES: u64 = 64 << 10;

/// The ranges in which to fetch members, given their offsets and lengths in ascending order. A range of several members
/// has at most `max_bytes` bytes.
#[must_use]
pub fn member_ranges(spans: impl IntoIterator<Item = (u64, u64)>, max_bytes: u64) -> Vec<MemberRange> {
    let mut runs: Vec<MemberRange> = Vec::new();
    for (index, (offset, length)) in spans.into_iter().enumerate() {
        let end = offset.saturating_add(length);
        if let Some(run) = runs.last_mut() {
            let is_near = offset.saturating_sub(run.offset.saturating_add(run.length)) <= MAX_GAP_BYTES;
            let joined_length = end.saturating_sub(run.offset);
            if is_near && joined_length <= max_bytes {
                run.members.end = index + 1;
                run.length = run.length.max(joined_length);
                continue;
            }
        }
        runs.push(MemberRange { members: index..index + 1, offset, length });
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bundle_is_full_at_either_limit() {
        let limits = BundleLimits { bytes: 100, index_bytes: 30 };
        let mut filling = BundleSize::new(limits);
        assert!(filling.fits(1000, 1000));
        filling.add(60, 10);
        assert!(filling.fits(40, 20) && !filling.fits(41, 20) && !filling.fits(40, 21));
        filling.add(u64::MAX, 1);
        assert!(!filling.fits(u64::MAX, u64::MAX));
    }

    #[test]
    fn adjacent_members_are_fetched_together() {
        let spans =
            [(512, 100), (1536, 100), (1536 + MAX_GAP_BYTES + 101, 10), (200_000, 5_000_000), (5_300_000, 7)];
        let found = member_ranges(spans, 1 << 20);
        let members: Vec<_> = found.iter().map(|run| run.members.clone()).collect();
        assert_eq!(members, [0..2, 2..3, 3..4, 4..5]);
        assert_eq!((found[0].offset, found[0].length), (512, 1124));
        assert_eq!(member_ranges([(512, 0)], 1), [MemberRange { members: 0..1, offset: 512, length: 0 }]);
        assert_eq!(member_ranges([], 1), []);
    }

    proptest! {
        #[test]
        fn every_member_is_in_exactly_one_run(
            steps in proptest::collection::vec((0_u64..200_000, 0_u64..200_000), 0..60),
            max_bytes in 1_u64..1_000_000,
        ) {
            let mut at = 0;
            let spans: Vec<_> = steps.into_iter().map(|(gap, length)| {
                let offset = at + gap;
                at = offset + length;
                (offset, length)
            }).collect();
            let mut next = 0;
            for run in member_ranges(spans.iter().copied(), max_bytes) {
                prop_assert_eq!(run.members.start, next);
                prop_assert!(run.members.len() == 1 || run.length <= max_bytes);
                for (offset, length) in &spans[run.members.clone()] {
                    prop_assert!(*offset >= run.offset && offset + length <= run.offset + run.length);
                }
                next = run.members.end;
            }
            prop_assert_eq!(next, spans.len());
        }
    }
}
