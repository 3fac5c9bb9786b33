//! Stamps of contents that were compared after their heads were stored: a head that returns from the SSD has the stamp of
//! its storing. A bounded table in memory; what it forgets is compared once more.
//!
//! A stamp belongs to one content, whose id is never assigned again. The head of another object, also under the same
//! key, never gets it.

use std::time::Duration;

use parking_lot::Mutex;

use crate::head::{ContentId, Stamp};

/// Stamps in a set: an id has its place in one of them.
const SET_STAMPS: usize = 8;

/// Memory of a set.
const SET_BYTES: usize = size_of::<Mutex<StampSet>>();

/// The number of sets of the smallest table.
const MIN_SETS: usize = 64;

/// Bits of a packed stamp that have the sequence number of bucket changes. The other ones have the time.
const SEQUENCE_BITS: u32 = 24;

/// Spreads ids over sets: 2^64 divided by the golden ratio, as an odd number (Knuth, volume 3, section 6.4).
const ID_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// A content and its stamp in 16 bytes. The time is in whole milliseconds, rounded down: the stamp is never younger than
/// the comparison.
#[derive(Debug, Clone, Copy, Default)]
struct PackedStamp {
    content: u64,
    /// Time and sequence number; 0 in a free place.
    packed: u64,
}

#[derive(Debug, Default)]
struct StampSet([PackedStamp; SET_STAMPS]);

/// The stamps of one session. See the module's head.
#[derive(Debug)]
pub(crate) struct StampTable {
    sets: Box<[Mutex<StampSet>]>,
    session: u64,
}

impl StampTable {
    /// An empty table of at most `bytes` of memory, or of the smallest possible size.
    pub fn new(bytes: usize, session: u64) -> Self {
        let sets = (bytes / SET_BYTES).max(MIN_SETS);
        Self { sets: (0..sets).map(|_| Mutex::default()).collect(), session }
    }

    /// Memory of the table.
    pub const fn memory_bytes(&self) -> usize {
        self.sets.len() * SET_BYTES
    }

    /// Records that a content was current. Takes the place of the oldest stamp of its set if there is no other.
    pub fn record(&self, content: ContentId, stamp: Stamp) {
        let Some(packed) = self.pack(stamp) else { return };
        let StampSet(places) = &mut *self.set(content).lock();
        let own = places.iter().position(|place| place.packed != 0 && place.content == content.0);
        let oldest = || (0..SET_STAMPS).min_by_key(|index| places[*index].packed);
        let Some(index) = own.or_else(oldest) else { return };
        if own.is_none() || places[index].packed < packed {
            places[index] = PackedStamp { content: content.0, packed };
        }
    }

    /// The last recorded stamp of a content, unless it was forgotten.
    pub fn stamp(&self, content: ContentId) -> Option<Stamp> {
        let set = self.set(content).lock();
        let found = set.0.iter().find(|place| place.packed != 0 && place.content == content.0)?;
        let time = Duration::from_millis(found.packed >> SEQUENCE_BITS);
        Some(Stamp { session: self.session, sequence: found.packed & ((1 << SEQUENCE_BITS) - 1), time })
    }

    fn set(&self, content: ContentId) -> &Mutex<StampSet> {
        // A miss may take several ids, so that those in use have a stride. The product spreads any stride over its high
        // bits, which select the set.
        let spread = u128::from(content.0.wrapping_mul(ID_MULTIPLIER));
        let index = (spread * self.sets.len() as u128) >> u64::BITS;
        &self.sets[usize::try_from(index).unwrap_or(0)]
    }

    /// `None` for a stamp of another session, or one that does not fit.
    fn pack(&self, stamp: Stamp) -> Option<u64> {
        let millis = u64::try_from(stamp.time.as_millis()).ok()?;
        let fits = millis >> (u64::BITS - SEQUENCE_BITS) == 0 && stamp.sequence >> SEQUENCE_BITS == 0;
        (fits && stamp.session == self.session).then_some(millis << SEQUENCE_BITS | stamp.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: u64 = 3;

    const fn stamp(millis: u64, sequence: u64) -> Stamp {
        Stamp { session: SESSION, sequence, time: Duration::from_millis(millis) }
    }

    /// The first `count` contents from `first` on that share its set.
    fn contents_of_a_set(table: &StampTable, first: ContentId, count: usize) -> Vec<ContentId> {
        let is_in_set = |content: &ContentId| std::ptr::eq(table.set(*content), table.set(first));
        (first.0..).map(ContentId).filter(is_in_set).take(count).collect()
    }

    #[test]
    fn stamp_belongs_to_one_content() {
        let table = StampTable::new(0, SESSION);
        table.record(ContentId(5), stamp(1000, 2));
        assert_eq!(table.stamp(ContentId(5)), Some(stamp(1000, 2)));
        for other in contents_of_a_set(&table, ContentId(5), 3).iter().skip(1) {
            assert_eq!(table.stamp(*other), None);
        }
        assert_eq!(table.stamp(ContentId(6)), None);
        // A free place has the id 0.
        assert_eq!(table.stamp(ContentId(0)), None);
        table.record(ContentId(0), stamp(7, 1));
        assert_eq!(table.stamp(ContentId(0)), Some(stamp(7, 1)));
    }

    #[test]
    fn full_set_forgets_its_oldest_stamp() {
        let table = StampTable::new(0, SESSION);
        let contents = contents_of_a_set(&table, ContentId(9), SET_STAMPS + 1);
        for (content, millis) in contents.iter().zip(1000..) {
            table.record(*content, stamp(millis, 1));
        }
        assert_eq!(table.stamp(contents[0]), None);
        for (content, millis) in contents.iter().zip(1000..).skip(1) {
            assert_eq!(table.stamp(*content), Some(stamp(millis, 1)));
        }
    }

    /// A read that misses takes an id for each head that it makes.
    #[test]
    fn ids_of_any_stride_fill_the_whole_table() {
        for sets in [64, 96, 100, 1 << 10] {
            let objects = (sets * SET_STAMPS * 3 / 4) as u64;
            for (first, stride) in [(0, 1u64), (7, 2), (7, 3), (u64::MAX - 100, 4), (1 << 40, 5), (3, 6)] {
                let table = StampTable::new(sets * SET_BYTES, SESSION);
                let content = |number: u64| ContentId(stride.wrapping_mul(number).wrapping_add(first));
                (0..objects).for_each(|number| table.record(content(number), stamp(1000 + number, 1)));
                let is_known = |number: &u64| table.stamp(content(*number)) == Some(stamp(1000 + number, 1));
                let known = (0..objects).filter(is_known).count() as u64;
                assert!(known * 100 >= objects * 97, "{known} of {objects}, {sets} sets, stride {stride}");
            }
        }
    }

    #[test]
    fn later_stamp_stays_when_an_earlier_one_arrives() {
        let table = StampTable::new(0, SESSION);
        table.record(ContentId(1), stamp(2000, 2));
        table.record(ContentId(1), stamp(1000, 2));
        assert_eq!(table.stamp(ContentId(1)), Some(stamp(2000, 2)));
        table.record(ContentId(1), stamp(3000, 2));
        assert_eq!(table.stamp(ContentId(1)), Some(stamp(3000, 2)));
    }

    #[test]
    fn time_is_rounded_down() {
        let table = StampTable::new(0, SESSION);
        table.record(ContentId(1), Stamp { time: Duration::from_micros(1999), ..stamp(0, 1) });
        assert_eq!(table.stamp(ContentId(1)), Some(stamp(1, 1)));
    }

    #[test]
    fn stamp_that_does_not_fit_is_not_recorded() {
        let table = StampTable::new(0, SESSION);
        let (far, many) = (stamp(1 << 40, 1), stamp(1, 1 << SEQUENCE_BITS));
        for stamp in [far, many, Stamp::NEVER, Stamp { session: SESSION - 1, ..stamp(1, 1) }] {
            table.record(ContentId(1), stamp);
            assert_eq!(table.stamp(ContentId(1)), None);
        }
    }

    #[test]
    fn table_stays_within_its_memory() {
        assert!(StampTable::new(1 << 20, SESSION).memory_bytes() <= 1 << 20);
        assert!(SET_BYTES <= SET_STAMPS * size_of::<PackedStamp>() + 8);
    }
}
