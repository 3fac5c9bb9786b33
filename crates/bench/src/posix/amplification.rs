//! Amplification: bytes on the wire per byte of payload, as a function of the bytes accessed (Ou 2015, section IV-F,
//! equations 1 to 3). The overhead of an access (metadata, journal, requests) is a constant: `(a + s) / s` for one
//! file of `s` KiB, `(j + m + s) / s` for files one after another, `(j + m + n s) / (n s)` for `n` threads whose
//! files share it. All are `1 + a / x`, with `x` the KiB that share the constant. Network framing also costs
//! something per byte, so a second model, `c + a / x`, is fitted as well.

use serde::{Deserialize, Serialize};

/// A measured ratio, and the KiB that share the constant overhead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatioPoint {
    /// File size times the number of concurrent files, in KiB.
    pub kib: f64,
    /// Bytes on the wire in both directions, divided by the bytes of the files.
    pub ratio: f64,
}

/// A fitted curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct AmplificationFit {
    /// `a`: constant overhead of an access, in KiB.
    pub constant_kib: f64,
    /// `c`: bytes on the wire per payload byte at any size; 1 in the paper's model.
    pub per_byte: f64,
    /// Coefficient of determination (R²): 1 if the curve passes through every point, below 0 if it is worse than the
    /// mean.
    pub r_squared: f64,
    /// Largest relative error of the curve at any point, as a fraction.
    pub max_relative_error: f64,
}

/// Largest relative error with which a curve counts as a good description of its points.
const MAX_RELATIVE_ERROR: f64 = 0.1;

impl AmplificationFit {
    /// The predicted ratio for `kib` KiB of payload.
    #[must_use]
    pub fn predict(&self, kib: f64) -> f64 {
        self.per_byte + self.constant_kib / kib
    }

    /// Returns true if the relative error is at most 10 % at every point.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.max_relative_error <= MAX_RELATIVE_ERROR
    }

    fn with_goodness(constant_kib: f64, per_byte: f64, points: &[RatioPoint]) -> Self {
        let mut fit = Self { constant_kib, per_byte, r_squared: 1.0, max_relative_error: 0.0 };
        let mean = points.iter().map(|point| point.ratio).sum::<f64>() / points.len() as f64;
        let squares =
            |error: &dyn Fn(&RatioPoint) -> f64| points.iter().map(|point| error(point).powi(2)).sum::<f64>();
        let residual = squares(&|point| point.ratio - fit.predict(point.kib));
        let total = squares(&|point| point.ratio - mean);
        let errors = points.iter().map(|point| (point.ratio / fit.predict(point.kib) - 1.0).abs());
        fit.max_relative_error = errors.fold(0.0, f64::max);
        fit.r_squared = if total > 0.0 { 1.0 - residual / total } else { 1.0 };
        fit
    }
}

/// The points with a positive payload and a positive, finite ratio.
fn usable(points: &[RatioPoint]) -> Vec<RatioPoint> {
    let is_usable = |point: &&RatioPoint| point.kib > 0.0 && point.ratio > 0.0 && point.ratio.is_finite();
    points.iter().filter(is_usable).copied().collect()
}

/// The number of different payload amounts.
fn distinct_amounts(points: &[RatioPoint]) -> usize {
    let mut amounts: Vec<f64> = points.iter().map(|point| point.kib).collect();
    amounts.sort_by(f64::total_cmp);
    amounts.dedup();
    amounts.len()
}

/// Fits the paper's model, `1 + a / x`; `None` for fewer than two different amounts. Minimizes relative errors: the
/// ratios of small files are large and would otherwise dominate.
#[must_use]
pub fn fit(points: &[RatioPoint]) -> Option<AmplificationFit> {
    let points = usable(points);
    if distinct_amounts(&points) < 2 {
        return None;
    }
    let (mut above, mut below) = (0.0, 0.0);
    for RatioPoint { kib, ratio } in &points {
        let weight = 1.0 / (ratio * ratio);
        above += weight * (ratio - 1.0) / kib;
        below += weight / (kib * kib);
    }
    Some(AmplificationFit::with_goodness(above / below, 1.0, &points))
}

/// Like [`fit`], but with a cost per byte, `c + a / x`; `None` for fewer than three different amounts.
#[must_use]
pub fn fit_with_cost_per_byte(points: &[RatioPoint]) -> Option<AmplificationFit> {
    let points = usable(points);
    if distinct_amounts(&points) < 3 {
        return None;
    }
    let (mut all, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for RatioPoint { kib, ratio } in &points {
        let (weight, at) = (1.0 / (ratio * ratio), 1.0 / kib);
        all += weight;
        x += weight * at;
        y += weight * ratio;
        xx += weight * at * at;
        xy += weight * at * ratio;
    }
    let constant = (all * xy - x * y) / (all * xx - x * x);
    Some(AmplificationFit::with_goodness(constant, (y - constant * x) / all, &points))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{mix, unit_fraction};

    const SIZES: [f64; 8] = [4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0];

    fn points(ratio: impl Fn(f64) -> f64) -> Vec<RatioPoint> {
        SIZES.iter().map(|kib| RatioPoint { kib: *kib, ratio: ratio(*kib) }).collect()
    }

    #[test]
    fn fit_recovers_the_constants_of_the_paper() {
        for constant in [148.0, 204.0, 36.0] {
            let fit = fit(&points(|s| (constant + s) / s)).unwrap();
            assert!((fit.constant_kib - constant).abs() < 1e-6 && fit.r_squared > 0.999_999, "{fit:?}");
            assert!(fit.is_good() && fit.max_relative_error < 1e-9);
        }
        // The paper's example: 4 KiB with an overhead of 32 + 4 KiB.
        let sync = fit(&points(|s| (36.0 + s) / s)).unwrap();
        assert!((sync.predict(4.0) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn fit_divides_the_constant_overhead_among_threads() {
        let of_threads = [1.0, 2.0, 8.0, 64.0].into_iter().flat_map(|n: f64| {
            let at = move |s: f64| RatioPoint { kib: n * s, ratio: (36.0 + n * s) / (n * s) };
            [4.0, 16_384.0].map(at)
        });
        let fit = fit(&of_threads.collect::<Vec<_>>()).unwrap();
        assert!((fit.constant_kib - 36.0).abs() < 1e-6, "{fit:?}");
    }

    #[test]
    fn fit_stays_within_5_percent_under_5_percent_noise() {
        for seed in 0..200_u64 {
            let noise = |s: f64| 1.0 + 0.1 * (unit_fraction(mix(mix(seed) ^ s.to_bits())) - 0.5);
            let fit = fit(&points(|s| (204.0 + s) / s * noise(s))).unwrap();
            assert!((fit.constant_kib / 204.0 - 1.0).abs() < 0.05, "{seed}: {fit:?}");
        }
    }

    #[test]
    fn fit_with_cost_of_bytes_separates_it_from_the_constant() {
        let measured = points(|s| 1.25 + 60.0 / s);
        let plain = fit(&measured).unwrap();
        assert!(!plain.is_good(), "{plain:?}");
        let both = fit_with_cost_per_byte(&measured).unwrap();
        assert!((both.per_byte - 1.25).abs() < 1e-9 && (both.constant_kib - 60.0).abs() < 1e-6, "{both:?}");
        assert!(both.is_good() && both.r_squared > plain.r_squared);
    }

    #[test]
    fn fit_needs_enough_different_amounts() {
        let one = RatioPoint { kib: 4.0, ratio: 10.0 };
        assert_eq!(fit(&[one, one, one]), None);
        assert_eq!(fit_with_cost_per_byte(&[one, RatioPoint { kib: 8.0, ratio: 5.0 }]), None);
        assert_eq!(fit(&[one, RatioPoint { kib: 8.0, ratio: f64::NAN }]), None);
    }
}
