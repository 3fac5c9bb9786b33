//! The affinity controller of Noel and Lama, "Taming Performance Hotspots in Cloud Storage with Dynamic Load
//! Redistribution" (CLOUD 2018), Algorithm 1.

use super::Affinity;

/// The thresholds of Algorithm 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Thresholds {
    /// θ_h: above this signal, in percent, an OSD may be a hot spot.
    pub high_percent: f64,
    /// θ_i: minimum difference from the mean, relative to the OSD's own signal.
    pub imbalance: f64,
    /// θ_l: below this signal, in percent, an OSD is no hot spot.
    pub low_percent: f64,
}

impl Default for Thresholds {
    /// The paper's values (section IV.D).
    fn default() -> Self {
        Self { high_percent: 50.0, imbalance: 0.2, low_percent: 20.0 }
    }
}

/// The paper's interval between rounds, in seconds (section IV.C).
pub const INTERVAL_SECONDS: u64 = 20;

/// Lower limit of an affinity.
const MIN_AFFINITY: f64 = 0.1;

/// An OSD in one round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// %iowait of the OSD's host or a stand-in for it, from 0 to 100.
    pub signal_percent: f64,
    /// The current affinity.
    pub affinity: Affinity,
}

/// One round: the new affinities, in the order of `osds`.
pub fn adjust(osds: &[Measured], thresholds: &Thresholds) -> Vec<Affinity> {
    let mean = osds.iter().map(|osd| osd.signal_percent).sum::<f64>() / osds.len().max(1) as f64;
    osds.iter().map(|osd| adjust_one(*osd, mean, thresholds)).collect()
}

fn adjust_one(osd: Measured, mean: f64, thresholds: &Thresholds) -> Affinity {
    let Measured { signal_percent: signal, affinity } = osd;
    if signal > thresholds.high_percent {
        let excess = (signal - thresholds.high_percent) / 100.0;
        let difference = (signal - mean) / signal;
        if difference > thresholds.imbalance {
            let imbalance = difference - thresholds.imbalance;
            return Affinity::from_ratio((affinity.ratio() - (excess + imbalance)).max(MIN_AFFINITY));
        }
    } else if signal < thresholds.low_percent && affinity < Affinity::MAX {
        return Affinity::MAX;
    }
    affinity
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(signals: &[f64], affinities: &[f64]) -> Vec<f64> {
        let osds: Vec<Measured> = signals
            .iter()
            .zip(affinities)
            .map(|(signal, affinity)| Measured {
                signal_percent: *signal,
                affinity: Affinity::from_ratio(*affinity),
            })
            .collect();
        let adjusted = adjust(&osds, &Thresholds::default());
        adjusted.iter().map(|affinity| (affinity.ratio() * 1e4).round() / 1e4).collect()
    }

    #[test]
    fn hot_osd_loses_the_excess_and_the_imbalance() {
        // Mean 45: excess (80 - 50) / 100 = 0.3; imbalance (80 - 45) / 80 - 0.2 = 0.2375.
        assert_eq!(round(&[80.0, 10.0], &[1.0, 1.0]), [0.4625, 1.0]);
        assert_eq!(round(&[80.0, 10.0], &[0.4625, 1.0]), [0.1, 1.0], "not below 0.1");
        assert_eq!(round(&[80.0, 10.0], &[0.1, 1.0]), [0.1, 1.0]);
    }

    #[test]
    fn nothing_changes_between_the_thresholds_or_without_imbalance() {
        assert_eq!(round(&[50.0, 10.0], &[0.5, 1.0]), [0.5, 1.0], "50 is not above 50");
        assert_eq!(round(&[20.0, 35.0], &[0.5, 0.5]), [0.5, 0.5], "20 is not below 20");
        assert_eq!(round(&[90.0, 80.0, 85.0], &[1.0; 3]), [1.0; 3], "all are hot");
        // Mean 48: the difference of 60 is exactly 0.2.
        assert_eq!(round(&[60.0, 36.0], &[1.0, 1.0]), [1.0, 1.0], "0.2 is not above 0.2");
    }

    #[test]
    fn cool_osd_returns_to_one_at_once() {
        assert_eq!(round(&[19.9, 0.0], &[0.1, 1.0]), [1.0, 1.0]);
    }

    #[test]
    fn empty_cluster_has_no_affinities() {
        assert!(adjust(&[], &Thresholds::default()).is_empty());
    }
}
