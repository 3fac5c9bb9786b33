//! What is going to be moved: of which sizes its requests are, which of them count, and how long all of it takes.

use std::collections::BTreeMap;

use super::{Cell, Surface};

/// A size counts that has so much of all requests, or of all bytes.
const COUNTS: f64 = 0.02;

/// Requests of one direction, by the nearest of some sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workload {
    amounts: BTreeMap<u64, Amount>,
}

/// How much is of a size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    /// Requests.
    pub requests: u64,
    /// Bytes, all of them together.
    pub bytes: u64,
}

/// A size that counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share {
    /// Bytes of a request, about.
    pub size: u64,
    /// How much of all requests, and of all bytes: 0 to 1.
    pub of_requests: f64,
    /// See above.
    pub of_bytes: f64,
}

impl Workload {
    /// Nothing yet; requests will be told apart by these sizes.
    #[must_use]
    pub fn new(sizes: &[u64]) -> Self {
        Self { amounts: sizes.iter().map(|size| (*size, Amount::default())).collect() }
    }

    /// One request more.
    pub fn add(&mut self, bytes: u64) {
        let far = |size: u64| (size.max(1) as f64 / bytes.max(1) as f64).ln().abs();
        let nearest = self.amounts.iter_mut().min_by(|a, b| far(*a.0).total_cmp(&far(*b.0)));
        if let Some((_, amount)) = nearest {
            amount.requests += 1;
            amount.bytes = amount.bytes.saturating_add(bytes);
        }
    }

    /// All of it.
    #[must_use]
    pub fn whole(&self) -> Amount {
        let add = |all: Amount, one: &Amount| Amount {
            requests: all.requests + one.requests,
            bytes: all.bytes.saturating_add(one.bytes),
        };
        self.amounts.values().fold(Amount::default(), add)
    }

    /// The sizes that count, from small to large; none where nothing is to be moved.
    #[must_use]
    pub fn shares(&self) -> Vec<Share> {
        let whole = self.whole();
        let part = |some: u64, all: u64| some as f64 / all.max(1) as f64;
        let shares = self.amounts.iter().map(|(size, amount)| Share {
            size: *size,
            of_requests: part(amount.requests, whole.requests),
            of_bytes: part(amount.bytes, whole.bytes),
        });
        shares.filter(|share| share.of_requests >= COUNTS || share.of_bytes >= COUNTS).collect()
    }

    /// How many seconds all of it takes, one size after the other, with so many at a time of each: what a queue that is never empty
    /// needs, without its end.
    #[must_use]
    pub fn seconds(&self, surface: &Surface, parallel: impl Fn(u64) -> usize) -> f64 {
        let of = |amount: &Amount| {
            let bytes = amount.bytes / amount.requests;
            let most = usize::try_from(amount.requests).unwrap_or(usize::MAX);
            let found = surface.infer(Cell { bytes, parallel: parallel(bytes).clamp(1, most) });
            amount.requests as f64 / found.rate()
        };
        self.amounts.values().filter(|amount| amount.requests > 0).map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Belief, Sample};
    use super::*;

    const SIZES: [u64; 4] = [1 << 10, 16 << 10, 256 << 10, 4 << 20];

    #[test]
    fn what_counts_is_what_there_is_much_of() {
        let mut workload = Workload::new(&SIZES);
        assert!(workload.shares().is_empty());
        (0..900).for_each(|_| workload.add(20_000));
        (0..100).for_each(|_| workload.add(5_000_000));
        workload.add(0);
        workload.add(300_000);
        assert_eq!(
            workload.whole(),
            Amount { requests: 1002, bytes: 900 * 20_000 + 100 * 5_000_000 + 300_000 }
        );
        let shares = workload.shares();
        assert_eq!(shares.iter().map(|share| share.size).collect::<Vec<_>>(), [16 << 10, 4 << 20]);
        assert!(shares[0].of_requests > 0.89 && shares[0].of_bytes < 0.04, "{shares:?}");
        assert!(shares[1].of_requests < 0.11 && shares[1].of_bytes > 0.96, "{shares:?}");
    }

    #[test]
    fn sizes_between_two_go_to_the_nearer_one() {
        let of = |bytes| {
            let mut workload = Workload::new(&SIZES);
            workload.add(bytes);
            workload.shares()[0].size
        };
        assert_eq!(
            [0, 4095, 4097, 60_000, 70_000, u64::MAX].map(of),
            [1, 1, 16, 16, 256, 4096].map(|kib| kib << 10)
        );
    }

    #[test]
    fn all_of_it_takes_as_long_as_its_parts() {
        let sample = |bytes, parallel, latency| Sample {
            cell: Cell { bytes, parallel },
            latency,
            error: 0.01,
            tail: None,
            is_seen: false,
        };
        let surface =
            Surface::new(Belief::default(), vec![sample(16 << 10, 8, 0.1), sample(4 << 20, 8, 1.0)]);
        let mut workload = Workload::new(&SIZES);
        (0..800).for_each(|_| workload.add(16 << 10));
        (0..80).for_each(|_| workload.add(4 << 20));
        let seconds = workload.seconds(&surface, |_| 8);
        assert!((seconds / 20.0 - 1.0).abs() < 0.1, "{seconds}");
        assert!(Workload::new(&SIZES).seconds(&surface, |_| 8) == 0.0);
    }
}
