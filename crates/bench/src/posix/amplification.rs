//! How many bytes the wire carries for each byte of payload, as a function of how much is accessed (Ou 2015, section IV-F,
//! equations 1 to 3). Whatever is sent on top of the files (metadata, journal, requests) is a constant for each access:
//! `(a + s) / s` for one file of `s` KiB, `(j + m + s) / s` for files one behind the other, `(j + m + n s) / (n s)` for `n`
//! threads whose files share it. All are `1 + a / x`, with `x` the KiB that share the constant. Framing of the network
//! costs something for each byte too, so a second form, `c + a / x`, is fitted beside it.

use serde::{Deserialize, Serialize};

/// What was seen: KiB that share what is sent on top, and the ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// The size of a file, times the files at a time.
    pub kib: f64,
    /// Bytes on the wire, both ways, over those of the files.
    pub ratio: f64,
}

/// A curve through points.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    /// `a`: KiB that are sent on top each time.
    pub constant_kib: f64,
    /// `c`: bytes on the wire for each byte, whatever the size; 1 in the paper's form.
    pub per_byte: f64,
    /// The part of the scatter of the ratios that the curve explains: 1 where it goes through every point. Below 0 where a
    /// line at their mean would do better.
    pub goodness: f64,
    /// The point that lies farthest from the curve is off by this part of it.
    pub worst: f64,
}

/// A curve that misses no point by more than this describes them.
const DESCRIBES: f64 = 0.1;

impl Fit {
    /// What it says of an amount.
    #[must_use]
    pub fn at(&self, kib: f64) -> f64 {
        self.per_byte + self.constant_kib / kib
    }

    /// Whether it misses no point by more than a tenth.
    #[must_use]
    pub fn describes(&self) -> bool {
        self.worst <= DESCRIBES
    }

    fn judged(constant_kib: f64, per_byte: f64, points: &[Point]) -> Self {
        let mut fit = Self { constant_kib, per_byte, goodness: 1.0, worst: 0.0 };
        let mean = points.iter().map(|point| point.ratio).sum::<f64>() / points.len() as f64;
        let sum = |of: &dyn Fn(&Point) -> f64| points.iter().map(|point| of(point).powi(2)).sum::<f64>();
        let (left, all) = (sum(&|point| point.ratio - fit.at(point.kib)), sum(&|point| point.ratio - mean));
        let off = points.iter().map(|point| (point.ratio / fit.at(point.kib) - 1.0).abs());
        fit.worst = off.fold(0.0, f64::max);
        fit.goodness = if all > 0.0 { 1.0 - left / all } else { 1.0 };
        fit
    }
}

/// Points that can be weighed: a ratio has no sense of its own below a bit of payload.
fn usable(points: &[Point]) -> Vec<Point> {
    let is_usable = |point: &&Point| point.kib > 0.0 && point.ratio > 0.0 && point.ratio.is_finite();
    points.iter().filter(is_usable).copied().collect()
}

fn amounts(points: &[Point]) -> usize {
    let mut amounts: Vec<f64> = points.iter().map(|point| point.kib).collect();
    amounts.sort_by(f64::total_cmp);
    amounts.dedup();
    amounts.len()
}

/// The paper's form, `1 + a / x`. `None` of fewer than two different amounts. A point counts by its relative error, since
/// ratios of small files are large and would otherwise be all that counts.
#[must_use]
pub fn fit(points: &[Point]) -> Option<Fit> {
    let points = usable(points);
    if amounts(&points) < 2 {
        return None;
    }
    let (mut above, mut below) = (0.0, 0.0);
    for Point { kib, ratio } in &points {
        let weight = 1.0 / (ratio * ratio);
        above += weight * (ratio - 1.0) / kib;
        below += weight / (kib * kib);
    }
    Some(Fit::judged(above / below, 1.0, &points))
}

/// The same with a cost of each byte, `c + a / x`. `None` of fewer than three different amounts.
#[must_use]
pub fn fit_with_cost_of_bytes(points: &[Point]) -> Option<Fit> {
    let points = usable(points);
    if amounts(&points) < 3 {
        return None;
    }
    let (mut all, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for Point { kib, ratio } in &points {
        let (weight, at) = (1.0 / (ratio * ratio), 1.0 / kib);
        all += weight;
        x += weight * at;
        y += weight * ratio;
        xx += weight * at * at;
        xy += weight * at * ratio;
    }
    let constant = (all * xy - x * y) / (all * xx - x * x);
    Some(Fit::judged(constant, (y - constant * x) / all, &points))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{mix, share};

    const SIZES: [f64; 8] = [4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0];

    fn points(of: impl Fn(f64) -> f64) -> Vec<Point> {
        SIZES.iter().map(|kib| Point { kib: *kib, ratio: of(*kib) }).collect()
    }

    #[test]
    fn the_constants_of_the_paper_come_back() {
        for constant in [148.0, 204.0, 36.0] {
            let fit = fit(&points(|s| (constant + s) / s)).unwrap();
            assert!((fit.constant_kib - constant).abs() < 1e-6 && fit.goodness > 0.999_999, "{fit:?}");
            assert!(fit.describes() && fit.worst < 1e-9);
        }
        // The paper's example: 4 KiB with 32 + 4 on top.
        let sync = fit(&points(|s| (36.0 + s) / s)).unwrap();
        assert!((sync.at(4.0) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn threads_share_what_is_sent_on_top() {
        let of_threads = [1.0, 2.0, 8.0, 64.0].into_iter().flat_map(|n: f64| {
            let at = move |s: f64| Point { kib: n * s, ratio: (36.0 + n * s) / (n * s) };
            [4.0, 16_384.0].map(at)
        });
        let fit = fit(&of_threads.collect::<Vec<_>>()).unwrap();
        assert!((fit.constant_kib - 36.0).abs() < 1e-6, "{fit:?}");
    }

    #[test]
    fn noise_of_five_percent_moves_the_constant_by_less_than_five() {
        for seed in 0..200_u64 {
            let noise = |s: f64| 1.0 + 0.1 * (share(mix(mix(seed) ^ s.to_bits())) - 0.5);
            let fit = fit(&points(|s| (204.0 + s) / s * noise(s))).unwrap();
            assert!((fit.constant_kib / 204.0 - 1.0).abs() < 0.05, "{seed}: {fit:?}");
        }
    }

    #[test]
    fn a_cost_of_each_byte_is_told_apart_from_a_constant() {
        let seen = points(|s| 1.25 + 60.0 / s);
        let plain = fit(&seen).unwrap();
        assert!(!plain.describes(), "{plain:?}");
        let both = fit_with_cost_of_bytes(&seen).unwrap();
        assert!((both.per_byte - 1.25).abs() < 1e-9 && (both.constant_kib - 60.0).abs() < 1e-6, "{both:?}");
        assert!(both.describes() && both.goodness > plain.goodness);
    }

    #[test]
    fn too_few_amounts_say_nothing() {
        let one = Point { kib: 4.0, ratio: 10.0 };
        assert_eq!(fit(&[one, one, one]), None);
        assert_eq!(fit_with_cost_of_bytes(&[one, Point { kib: 8.0, ratio: 5.0 }]), None);
        assert_eq!(fit(&[one, Point { kib: 8.0, ratio: f64::NAN }]), None);
    }
}
