//! Distribution of reads over the replicas of a Ceph cluster by primary affinity: which OSD leads a placement group,
//! what a change of affinities does to the load, and which change relieves the cluster most.
//!
//! Ceph clients read from the *primary* of a placement group (PG). The *primary affinity* of an OSD, from 0 to 1, is the
//! share of its PGs that it accepts to lead. A change moves no data.
//!
//! [`dlr`] is the controller of Noel and Lama (2018). [`controller`] is ours: it predicts the effect of a change before
//! it acts ([`placement`], [`queueing`], [`solver`]), and verifies it afterwards. [`replica_choice`] is for clients that
//! choose a replica for each read themselves, and need no primaries.

pub mod controller;
pub mod dlr;
pub mod hash;
pub mod placement;
pub mod queueing;
pub mod replica_choice;
pub mod solver;

use std::fmt;

/// Number of steps of [`Affinity`] from 0 to 1. All multiples of 1/64 have at most six decimal digits, so that Ceph
/// prints and parses them exactly.
pub const AFFINITY_STEPS: u32 = 64;

/// Affinity as Ceph stores it: 1 is 0x10000.
const CEPH_MAX_AFFINITY: u32 = 0x1_0000;

/// The primary affinity of an OSD: a multiple of 1/65,536 from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Affinity(u32);

impl Affinity {
    /// Ceph's default: the OSD leads every PG in which it comes first.
    pub const MAX: Self = Self(CEPH_MAX_AFFINITY);

    /// Rounds towards 0 like Ceph. Values outside of 0 to 1 are clamped; NaN is 0.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 0x10000 after the clamp"
    )]
    pub fn from_ratio(ratio: f64) -> Self {
        Self((ratio.clamp(0.0, 1.0) * f64::from(CEPH_MAX_AFFINITY)) as u32)
    }

    /// The affinity that Ceph prints like this: with six significant digits, which rounding down would lower.
    pub fn from_printed(ratio: f64) -> Self {
        Self::from_ratio(ratio + 0.25 / f64::from(CEPH_MAX_AFFINITY))
    }

    /// `steps` of 1/64; more than 64 steps are 1.
    pub fn from_steps(steps: u32) -> Self {
        Self(steps.min(AFFINITY_STEPS) * (CEPH_MAX_AFFINITY / AFFINITY_STEPS))
    }

    /// In units of 1/65,536; more than 1 is 1.
    pub fn from_raw(raw: u32) -> Self {
        Self(raw.min(CEPH_MAX_AFFINITY))
    }

    /// In units of 1/65,536.
    pub fn raw(self) -> u32 {
        self.0
    }

    /// From 0 to 1.
    pub fn ratio(self) -> f64 {
        f64::from(self.0) / f64::from(CEPH_MAX_AFFINITY)
    }

    /// Returns true if an OSD with this affinity accepts to lead the PG with this hash of PG and OSD
    /// ([`hash::primary_hash`]).
    pub fn accepts(self, hash: u16) -> bool {
        self.0 >= CEPH_MAX_AFFINITY || u32::from(hash) < self.0
    }
}

/// A multiple of 1/64 as such a fraction, for example `33/64`; 0 and 1 as integers; anything else as a decimal.
impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STEP: u32 = CEPH_MAX_AFFINITY / AFFINITY_STEPS;
        let text = match self.0 {
            0 => "0".to_owned(),
            CEPH_MAX_AFFINITY => "1".to_owned(),
            raw if raw.is_multiple_of(STEP) => format!("{}/{AFFINITY_STEPS}", raw / STEP),
            _ => format!("{:.5}", self.ratio()),
        };
        f.pad(&text)
    }
}

impl Default for Affinity {
    fn default() -> Self {
        Self::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_rounds_like_ceph_and_prints_exactly() {
        assert_eq!(Affinity::from_ratio(1.0), Affinity::MAX);
        assert_eq!(Affinity::from_ratio(7.0), Affinity::MAX);
        assert_eq!(Affinity::from_ratio(f64::NAN), Affinity::from_steps(0));
        assert_eq!(Affinity::from_ratio(0.5), Affinity(0x8000));
        assert_eq!(Affinity::from_ratio(0.1), Affinity(6553));
        assert_eq!(Affinity::from_printed(0.0999908), Affinity(6553), "6553 / 65536 in six digits");
        for steps in 0..=AFFINITY_STEPS {
            let affinity = Affinity::from_steps(steps);
            let printed = format!("{:.6}", affinity.ratio());
            assert_eq!(Affinity::from_ratio(printed.parse().unwrap()), affinity, "{printed}");
        }
    }

    #[test]
    fn affinity_is_shown_in_steps_of_one_in_64() {
        let shown = |affinity: Affinity| affinity.to_string();
        assert_eq!(
            [0, 4, 33, 64].map(|steps| shown(Affinity::from_steps(steps))),
            ["0", "4/64", "33/64", "1"]
        );
        assert_eq!(shown(Affinity::from_ratio(0.3)), "0.29999");
        assert_eq!(format!("{:>6}", Affinity::from_steps(1)), "  1/64");
    }

    #[test]
    fn affinity_one_accepts_everything_and_zero_nothing() {
        assert!(Affinity::MAX.accepts(u16::MAX) && Affinity::MAX.accepts(0));
        assert!(!Affinity::from_steps(0).accepts(0));
        assert!(Affinity::from_ratio(0.5).accepts(0x7fff) && !Affinity::from_ratio(0.5).accepts(0x8000));
    }
}
