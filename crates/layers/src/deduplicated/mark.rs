//! The set of the chunks that manifests refer to: a Bloom filter with a new seed for each collection. It takes two bytes
//! for each chunk. A chunk that it has by mistake stays until a later collection.

/// Bits for each chunk: about 0.05 % of the others are taken for marked.
const BITS_PER_CHUNK: u64 = 16;
const PROBES: u64 = 8;
const MIN_BITS: u64 = 1 << 12;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct MarkedChunks {
    words: Vec<u64>,
    mask: u64,
    seed: u64,
}

impl MarkedChunks {
    /// An empty set for that many chunks.
    pub fn new(chunks: u64, seed: u64) -> Self {
        let bits = chunks.saturating_mul(BITS_PER_CHUNK).max(MIN_BITS).next_power_of_two();
        let words = usize::try_from(bits / 64).unwrap_or(usize::MAX);
        Self { words: vec![0; words], mask: bits - 1, seed }
    }

    /// Adds the chunk with this tag.
    pub fn insert(&mut self, tag: u64) {
        for bit in self.bits(tag) {
            self.words[word(bit)] |= 1 << (bit % 64);
        }
    }

    /// Returns true for each chunk that was added, and for a few others.
    pub fn contains(&self, tag: u64) -> bool {
        self.bits(tag).all(|bit| self.words[word(bit)] >> (bit % 64) & 1 == 1)
    }

    fn bits(&self, tag: u64) -> impl Iterator<Item = u64> + use<> {
        let (first, mask) = (mix(tag ^ self.seed), self.mask);
        let step = mix(first) | 1;
        (0..PROBES).map(move |probe| first.wrapping_add(probe.wrapping_mul(step)) & mask)
    }
}

fn word(bit: u64) -> usize {
    usize::try_from(bit / 64).unwrap_or(usize::MAX)
}

/// The finalizer of SplitMix64.
const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marked_chunks_are_found_and_few_others() {
        let tag = |number: u64| mix(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for seed in [0, 7, u64::MAX] {
            let mut marked = MarkedChunks::new(20_000, seed);
            (0..10_000).for_each(|number| marked.insert(tag(number)));
            assert!((0..10_000).all(|number| marked.contains(tag(number))));
            let others = (10_000..110_000).filter(|number| marked.contains(tag(*number))).count();
            assert!(others < 100, "{others} of 100000 others are taken for marked");
        }
    }
}
