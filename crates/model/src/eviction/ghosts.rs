//! Ghosts: the keys of entries that were evicted lately, as fingerprints in a table of fixed size.
//!
//! The table is a FIFO of a given number of blocks. A ghost is a fingerprint of 20 bits and a stamp of 12 bits in a
//! bucket of 16. Time is counted in evicted blocks; one step of a stamp is 1/1024 of the capacity. Ghosts older than the
//! capacity are expired, and overwritten when their bucket needs space. One bucket is one cache line, and one lookup.

/// Ghosts per bucket.
const WAYS: usize = 16;
/// Ghosts per bucket on average. Few buckets then overflow, and lose their oldest ghost.
const MEAN_WAYS: u64 = 8;
/// Steps of the stamp in one capacity.
const STEPS: u64 = 1024;
const STAMP_BITS: u32 = 12;
const STAMP_MASK: u32 = (1 << STAMP_BITS) - 1;
/// The most steps between the oldest and the newest ghost. Stamps wrap after twice as many.
const MAX_SPAN: u32 = 1 << (STAMP_BITS - 1);

#[derive(Debug)]
pub(super) struct Ghosts {
    /// Fingerprint in the high bits, stamp in the low ones. 0 is empty.
    buckets: Vec<[u32; WAYS]>,
    capacity_blocks: u64,
    step_blocks: u64,
    /// Blocks of the ghosts of each stamp.
    blocks_by_stamp: Vec<u64>,
    live_blocks: u64,
    oldest: u32,
    now: u32,
}

impl Ghosts {
    /// An empty table for ghosts of `blocks` blocks in sum, of which there are about `entries`.
    pub(super) fn new(blocks: u64, entries: u64) -> Self {
        let buckets = usize::try_from(entries.div_ceil(MEAN_WAYS)).unwrap_or(usize::MAX).max(1);
        Self {
            buckets: vec![[0; WAYS]; buckets],
            capacity_blocks: blocks,
            step_blocks: (blocks / STEPS).max(1),
            blocks_by_stamp: vec![0; STAMP_MASK as usize + 1],
            live_blocks: 0,
            oldest: 0,
            now: 0,
        }
    }

    /// Adds the key of an evicted entry. Until the next one, ghosts may exceed the capacity by its blocks: the entry for
    /// which it was evicted finds the ghosts from before the eviction.
    pub(super) fn push(&mut self, key: u64, blocks: u32) {
        while self.live_blocks > self.capacity_blocks && self.oldest != self.now
            || self.age(self.oldest) >= MAX_SPAN
        {
            self.expire_oldest();
        }
        let place = Place::new(key, self.buckets.len());
        let word = place.fingerprint << STAMP_BITS | self.now;
        let way = self.overwritten_way(place.bucket);
        self.buckets[place.bucket][way] = word;
        self.blocks_by_stamp[self.now as usize] += u64::from(blocks);
        self.live_blocks += u64::from(blocks);
        if self.blocks_by_stamp[self.now as usize] >= self.step_blocks {
            self.now = (self.now + 1) & STAMP_MASK;
        }
    }

    /// Removes the ghost of a key. Returns false if there is none.
    pub(super) fn take(&mut self, key: u64, blocks: u32) -> bool {
        let place = Place::new(key, self.buckets.len());
        for way in 0..WAYS {
            let word = self.buckets[place.bucket][way];
            if word >> STAMP_BITS == place.fingerprint && self.is_live(word & STAMP_MASK) {
                self.buckets[place.bucket][way] = 0;
                let of_stamp = &mut self.blocks_by_stamp[(word & STAMP_MASK) as usize];
                let removed = u64::from(blocks).min(*of_stamp);
                *of_stamp -= removed;
                self.live_blocks -= removed;
                return true;
            }
        }
        false
    }

    fn expire_oldest(&mut self) {
        let of_stamp = &mut self.blocks_by_stamp[self.oldest as usize];
        self.live_blocks -= *of_stamp;
        *of_stamp = 0;
        self.oldest = (self.oldest + 1) & STAMP_MASK;
    }

    /// Steps since a stamp.
    const fn age(&self, stamp: u32) -> u32 {
        self.now.wrapping_sub(stamp) & STAMP_MASK
    }

    const fn is_live(&self, stamp: u32) -> bool {
        self.age(stamp) <= self.age(self.oldest)
    }

    /// An empty or expired way of a bucket, or the oldest one. Clears expired ways, before their stamps wrap.
    fn overwritten_way(&mut self, bucket: usize) -> usize {
        let mut chosen = 0;
        let mut chosen_age = 0;
        for way in 0..WAYS {
            let word = self.buckets[bucket][way];
            let age = if word == 0 || !self.is_live(word & STAMP_MASK) {
                self.buckets[bucket][way] = 0;
                u32::MAX
            } else {
                self.age(word & STAMP_MASK)
            };
            if age >= chosen_age {
                (chosen, chosen_age) = (way, age);
            }
        }
        chosen
    }
}

/// Where the ghost of a key is.
struct Place {
    bucket: usize,
    fingerprint: u32,
}

impl Place {
    fn new(key: u64, buckets: usize) -> Self {
        let mixed = key.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // The high half selects the bucket, the low bits of the key itself are the fingerprint.
        let bucket = (((mixed >> 32) * buckets as u64) >> 32) as usize;
        let fingerprint = (key as u32 & (u32::MAX >> STAMP_BITS)).max(1);
        Self { bucket, fingerprint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys with uniformly distributed bits.
    fn key(number: u64) -> u64 {
        let mixed = (number + 1).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    }

    #[test]
    fn ghosts_are_the_latest_evictions_that_fit_and_one_more() {
        let mut ghosts = Ghosts::new(4, 4);
        for number in 0..8 {
            ghosts.push(key(number), 1);
        }
        let found: Vec<u64> = (0..8).filter(|&number| ghosts.take(key(number), 1)).collect();
        assert_eq!(found, [3, 4, 5, 6, 7]);
        assert!(!ghosts.take(key(7), 1), "a ghost is returned once");
    }

    #[test]
    fn removed_ghost_leaves_space_for_an_older_one() {
        let mut ghosts = Ghosts::new(2, 2);
        for number in 0..3 {
            ghosts.push(key(number), 1);
        }
        assert!(ghosts.take(key(1), 1));
        ghosts.push(key(3), 1);
        assert!(ghosts.take(key(0), 1));
    }

    #[test]
    fn large_table_keeps_nearly_all_ghosts_and_no_others() {
        let count = 100_000;
        let mut ghosts = Ghosts::new(count, count);
        for number in 0..10 * count {
            ghosts.push(key(number), 1);
        }
        let recent = (9 * count..10 * count).filter(|&number| ghosts.take(key(number), 1)).count();
        let older = (0..8 * count).filter(|&number| ghosts.take(key(number), 1)).count();
        assert!(recent > 99_000, "{recent}");
        assert!(older < 100, "{older}");
    }
}
