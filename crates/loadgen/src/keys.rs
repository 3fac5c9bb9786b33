//! The names of the objects. A key is computed from its index, so that all processes of a run agree on the keys and the
//! order of a LIST follows without storing them.

use std::fmt::Write as _;

use anyhow::ensure;

use crate::arguments::KeyArguments;

/// The keys `prefix` + `pNNN/` + `oNNNNNNNNN` of one run.
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
    spread: u64,
    count: u64,
}

impl Keys {
    /// The keys of a run. Fails if they would need escaping in a URL, a signature or XML.
    pub fn new(arguments: &KeyArguments) -> anyhow::Result<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
        ensure!(arguments.prefix.bytes().all(plain), "--prefix may contain only letters, digits and /._-");
        ensure!(arguments.bucket.bytes().all(plain), "--bucket may contain only letters, digits and ._-");
        ensure!(
            arguments.count > 0 && arguments.count <= 1_000_000_000,
            "--count must be 1 to 1,000,000,000"
        );
        ensure!(arguments.spread <= 1000, "--spread must be at most 1,000");
        Ok(Self { prefix: arguments.prefix.clone(), spread: arguments.spread, count: arguments.count })
    }

    /// Number of keys.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Replaces `out` with the key of `index`.
    pub fn write(&self, index: u64, out: &mut String) {
        out.clear();
        self.append(index, out);
    }

    /// Appends the key of `index` to `out`.
    pub fn append(&self, index: u64, out: &mut String) {
        out.push_str(&self.prefix);
        let written = if self.spread > 0 {
            write!(out, "p{:03}/o{index:09}", index % self.spread)
        } else {
            write!(out, "o{index:09}")
        };
        debug_assert!(written.is_ok(), "writing to a String cannot fail");
    }

    /// The index of the next key in the order of LIST; `None` after the last one.
    pub fn successor(&self, index: u64) -> Option<u64> {
        let step = self.spread.max(1);
        let next = index + step;
        if next < self.count {
            return Some(next);
        }
        let group = index % step + 1;
        (group < step && group < self.count).then_some(group)
    }

    /// The numbers of common prefixes and of keys that a LIST with the prefix and the delimiter `/` returns.
    pub fn expected_listing_counts(&self) -> (u64, u64) {
        if self.spread > 0 { (self.spread.min(self.count), 0) } else { (0, self.count) }
    }

    /// The prefix of all keys.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// A pseudo-random permutation of `0..count`: an affine map modulo `count`.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    count: u64,
    step: u64,
    start: u64,
}

impl Permutation {
    /// The permutation of `count` items for `seed`.
    pub fn new(count: u64, seed: u64) -> Self {
        let start = tradewind_pattern::mix(seed) % count;
        let mut step = tradewind_pattern::mix(seed ^ 1) % count;
        while greatest_common_divisor(step, count) != 1 {
            step = (step + 1) % count.max(2);
        }
        Self { count, step, start }
    }

    /// The item at `position`.
    pub fn item(&self, position: u64) -> u64 {
        let product = u128::from(position) * u128::from(self.step) + u128::from(self.start);
        (product % u128::from(self.count)) as u64
    }
}

fn greatest_common_divisor(mut left: u64, mut right: u64) -> u64 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(spread: u64, count: u64) -> Keys {
        Keys { prefix: "x/".into(), spread, count }
    }

    #[test]
    fn successors_visit_all_keys_in_byte_order() {
        for (spread, count) in [(0, 5), (1, 5), (3, 10), (7, 7), (10, 4), (10, 1)] {
            let keys = keys(spread, count);
            let mut sorted: Vec<String> = (0..count)
                .map(|index| {
                    let mut key = String::new();
                    keys.write(index, &mut key);
                    key
                })
                .collect();
            sorted.sort();
            let mut walked = Vec::new();
            let mut next = Some(0);
            while let Some(index) = next {
                let mut key = String::new();
                keys.write(index, &mut key);
                walked.push(key);
                next = keys.successor(index);
            }
            assert_eq!(walked, sorted, "spread {spread}, count {count}");
        }
    }

    #[test]
    fn shuffle_is_a_permutation() {
        for count in [1, 2, 3, 10, 97, 1000, 4096] {
            for seed in 0..20 {
                let permutation = Permutation::new(count, seed);
                let mut seen: Vec<u64> = (0..count).map(|position| permutation.item(position)).collect();
                seen.sort_unstable();
                assert!(seen.iter().copied().eq(0..count), "count {count}, seed {seed}");
            }
        }
    }
}
