//! Selection of the kernel that hashes a given number of streams at the lowest cost on this CPU.

use crate::scalar::{self, Block, Chain};
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512, sse2};

/// The limit of streams hashed in parallel lanes.
pub(crate) const MAX_LANES: usize = 16;

/// The kernels of one instruction set. A value is proof that this CPU supports the instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes(Instructions);

#[derive(Clone, Copy, Debug)]
enum Instructions {
    #[cfg_attr(
        target_arch = "x86_64",
        allow(dead_code, reason = "the fallback of other architectures, and of tests")
    )]
    General,
    #[cfg(target_arch = "x86_64")]
    Sse2,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Lanes {
    /// The best kernels that this CPU supports.
    pub(crate) fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as detected;
            if detected!("avx512f") && detected!("avx512vl") {
                Self(Instructions::Avx512)
            } else if detected!("avx2") {
                Self(Instructions::Avx2)
            } else {
                Self(Instructions::Sse2)
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self(Instructions::General)
    }

    /// Every set of kernels that works here, the best last.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<Self> {
        let best = Self::detect();
        let mut all = vec![Self(Instructions::General)];
        #[cfg(target_arch = "x86_64")]
        {
            all.push(Self(Instructions::Sse2));
            if matches!(best.0, Instructions::Avx2 | Instructions::Avx512) {
                all.push(Self(Instructions::Avx2));
            }
        }
        all.push(best);
        all
    }

    /// Hashes as many blocks as the shortest run has into each chaining value, and returns that number.
    ///
    /// A single stream uses general registers, which on Zen 4 are faster than one lane (0.81 and 0.74 GB/s); two
    /// streams are faster in lanes (1.47 GB/s in total).
    pub(crate) fn run(self, chains: &mut [Chain], runs: &[&[Block]]) -> usize {
        debug_assert_eq!(chains.len(), runs.len());
        let length = runs.iter().map(|run| run.len()).min().unwrap_or(0);
        match (self.0, chains.len()) {
            (_, 0) => {}
            (_, 1) => scalar::run(&mut chains[0], &runs[0][..length]),
            (Instructions::General, _) => {
                for (chain, run) in chains.iter_mut().zip(runs) {
                    scalar::run(chain, &run[..length]);
                }
            }
            #[cfg(target_arch = "x86_64")]
            (Instructions::Sse2, _) => spread(chains, runs, length, |chains, runs| {
                // SAFETY: `self` proves that the CPU supports the instructions.
                unsafe { sse2::run(chains, runs) }
            }),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx2, 2..=8) => spread(chains, runs, length, |chains, runs| {
                // SAFETY: `self` proves that the CPU supports the instructions.
                unsafe { avx2::eight::run(chains, runs) }
            }),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx2, _) => spread(chains, runs, length, |chains, runs| {
                // SAFETY: `self` proves that the CPU supports the instructions.
                unsafe { avx2::sixteen::run(chains, runs) }
            }),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx512, 2..=4) => spread(chains, runs, length, |chains, runs| {
                // SAFETY: `self` proves that the CPU supports the instructions.
                unsafe { avx512::four::run(chains, runs) }
            }),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx512, 5..=8) => spread(chains, runs, length, |chains, runs| {
                // SAFETY: `self` proves that the CPU supports the instructions.
                unsafe { avx512::eight::run(chains, runs) }
            }),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx512, _) => spread(chains, runs, length, |chains, runs| {
                // SAFETY: `self` proves that the CPU supports the instructions.
                unsafe { avx512::sixteen::run(chains, runs) }
            }),
        }
        length
    }
}

/// Runs an `N`-lane kernel over the first `length` blocks, in groups of `N` streams. Unused lanes repeat the first
/// stream of the group, and their results are discarded.
#[cfg(target_arch = "x86_64")]
fn spread<const N: usize>(
    chains: &mut [Chain],
    runs: &[&[Block]],
    length: usize,
    kernel: impl Fn(&mut [[u32; N]; 4], &[&[Block]; N]),
) {
    for (chains, runs) in chains.chunks_mut(N).zip(runs.chunks(N)) {
        let source = |lane: usize| if lane < runs.len() { lane } else { 0 };
        let mut words = std::array::from_fn(|word| std::array::from_fn(|lane| chains[source(lane)][word]));
        kernel(&mut words, &std::array::from_fn(|lane| &runs[source(lane)][..length]));
        for (lane, chain) in chains.iter_mut().enumerate() {
            *chain = std::array::from_fn(|word| words[word][lane]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_agrees_with_the_scalar_one() {
        let block = |seed: usize| std::array::from_fn(|byte| (seed * 167 + byte * 31 + seed / 7) as u8);
        let streams: Vec<Vec<Block>> =
            (0..2 * MAX_LANES + 1).map(|s| (0..9).map(|b| block(s * 9 + b)).collect()).collect();
        for lanes in Lanes::all() {
            for count in 0..=streams.len() {
                let runs: Vec<&[Block]> = streams[..count].iter().map(|s| &s[..5 + s.len() % 5]).collect();
                let mut chains = vec![scalar::INITIAL_CHAIN; count];
                let hashed = lanes.run(&mut chains, &runs);
                for (chain, run) in chains.iter().zip(&runs) {
                    let mut expected = scalar::INITIAL_CHAIN;
                    scalar::run(&mut expected, &run[..hashed]);
                    assert_eq!(*chain, expected, "{lanes:?}, {count} streams");
                }
            }
        }
    }

    #[test]
    fn the_shortest_run_limits_all() {
        for lanes in Lanes::all() {
            let long = [[7; 64]; 5];
            let mut chains = [scalar::INITIAL_CHAIN; 3];
            assert_eq!(lanes.run(&mut chains, &[&long, &long[..2], &long[..4]]), 2);
            assert_eq!(chains[0], chains[1]);
            assert_eq!(chains[0], chains[2]);
        }
    }
}
