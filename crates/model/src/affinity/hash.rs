//! The hashes by which Ceph chooses the primary of a placement group: Robert Jenkins' 32-bit mix, as CRUSH uses it
//! (Weil et al., "CRUSH", SC 2006; type `rjenkins1` of an OSD map).

/// Initial value of CRUSH's hashes.
const SEED: u32 = 1_315_423_911;

/// One round of the mix: each step subtracts the other two words and combines with one of them, shifted.
fn mix(mut first: u32, mut second: u32, mut third: u32) -> (u32, u32, u32) {
    let step = |word: u32, subtracted: u32, mixed: u32| word.wrapping_sub(subtracted).wrapping_sub(mixed);
    for [right, left, last_right] in [[13, 8, 13], [12, 16, 5], [3, 10, 15]] {
        first = step(first, second, third) ^ (third >> right);
        second = step(second, third, first) ^ (first << left);
        third = step(third, first, second) ^ (second >> last_right);
    }
    (first, second, third)
}

/// CRUSH's hash of two words.
pub fn hash_pair(first: u32, second: u32) -> u32 {
    let (first, second, hash) = mix(first, second, SEED ^ first ^ second);
    let (_, _, hash) = mix(231_232, first, hash);
    let (_, _, hash) = mix(second, 1_232, hash);
    hash
}

/// `value` modulo `count`, such that growing `count` to the next power of two moves as few values as possible.
fn stable_modulo(value: u32, count: u32) -> u32 {
    let mask = count.max(1).next_power_of_two() - 1;
    if value & mask < count { value & mask } else { value & (mask >> 1) }
}

/// The placement seed of a PG: what CRUSH and the choice of the primary start from.
///
/// `placement_count` is the pool's `pg_placement_num`. `is_pool_hashed` is its flag `hashpspool`; without it, PGs with
/// the same number in different pools overlap.
pub fn placement_seed(pg: u32, placement_count: u32, pool: u32, is_pool_hashed: bool) -> u32 {
    let stable = stable_modulo(pg, placement_count);
    if is_pool_hashed { hash_pair(stable, pool) } else { stable.wrapping_add(pool) }
}

/// The hash that [`super::Affinity::accepts`] compares, for a PG's placement seed and an OSD.
pub fn primary_hash(seed: u32, osd: u32) -> u16 {
    (hash_pair(seed, osd) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A PG of a cluster of Ceph 16 with pool 6 of 128 PGs.
    struct Observed {
        pg: u32,
        seed: u32,
        osds: [u32; 2],
        hashes: [u16; 2],
    }

    #[test]
    fn hashes_are_those_of_a_ceph_cluster() {
        let observed = |pg, seed, osds, hashes| Observed { pg, seed, osds, hashes };
        for Observed { pg, seed, osds, hashes } in [
            observed(0x7d, 59_746_626, [3, 0], [52_043, 36_271]),
            observed(0x7b, 1_650_841_033, [3, 4], [58_425, 6_559]),
            observed(0x76, 1_629_342_571, [6, 7], [22_368, 37_286]),
            observed(0x72, 3_479_188_219, [2, 7], [4_044, 10_591]),
        ] {
            assert_eq!(placement_seed(pg, 128, 6, true), seed, "{pg:x}");
            assert_eq!(osds.map(|osd| primary_hash(seed, osd)), hashes, "{pg:x}");
        }
    }

    #[test]
    fn stable_modulo_moves_few_values_while_the_count_grows() {
        assert_eq!(
            (0..8).map(|value| stable_modulo(value, 8)).collect::<Vec<_>>(),
            (0..8).collect::<Vec<_>>()
        );
        // 6 of 8: the values 6 and 7 stay where 4 PGs placed them.
        assert_eq!((0..8).map(|value| stable_modulo(value, 6)).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 2, 3]);
        assert_eq!((stable_modulo(7, 1), stable_modulo(7, 0)), (0, 0));
        assert_eq!(placement_seed(9, 8, 5, false), 1 + 5);
    }
}
