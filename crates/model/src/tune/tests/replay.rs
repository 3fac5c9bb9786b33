//! Stores simulated by replaying measured grids.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::tune::sampling::{self, SamplingBudget};
use crate::tune::{OperatingPoint, Prediction, Prior, Sample, Surface, TailLatency};

/// The measurement of a point.
pub struct MeasuredPoint {
    /// Mean latency, in seconds.
    pub latency: f64,
    /// p95 as a multiple of the mean.
    pub p95_ratio: f64,
    /// p99 as a multiple of the mean.
    pub p99_ratio: f64,
    /// Bytes transferred by the measurement.
    pub bytes: f64,
}

pub type Grid = BTreeMap<OperatingPoint, MeasuredPoint>;

/// A deterministic pseudo-random number from -1 to 1.
pub fn noise(seed: u64, turn: usize) -> f64 {
    let mut x = seed.wrapping_add(turn as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)) as f64 / u64::MAX as f64 * 2.0 - 1.0
}

/// Samples until the budget is spent or no probe is worth its cost.
pub fn sample(
    prior: Prior,
    points: &[OperatingPoint],
    budget: SamplingBudget,
    answer: impl Fn(OperatingPoint, usize) -> f64,
) -> Surface {
    let latency = |point, turn| Sample {
        point,
        latency: answer(point, turn),
        relative_error: 0.03,
        tail: None,
        from_transfer: false,
    };
    sample_with(prior, points, budget, latency)
}

/// Like [`sample`], of a measured grid with 3 % noise.
pub fn sample_grid(grid: &Grid, budget: SamplingBudget, seed: u64) -> Surface {
    let points: Vec<OperatingPoint> = grid.keys().copied().collect();
    let round_trip = grid.values().map(|measured| measured.latency).fold(f64::MAX, f64::min);
    sample_with(Prior::default().with_rtt(round_trip), &points, budget, |point, turn| {
        let latency = grid[&point].latency * (1.0 + 0.03 * noise(seed, turn));
        let tail =
            TailLatency { p95: grid[&point].p95_ratio * latency, p99: grid[&point].p99_ratio * latency };
        Sample { point, latency, relative_error: 0.03, tail: Some(tail), from_transfer: false }
    })
}

fn sample_with(
    prior: Prior,
    points: &[OperatingPoint],
    mut budget: SamplingBudget,
    answer: impl Fn(OperatingPoint, usize) -> Sample,
) -> Surface {
    let mut surface = Surface::new(prior, Vec::new());
    while let Some(point) = sampling::next_probe(&surface, points, &budget) {
        let mut samples = surface.samples().to_vec();
        let sample = answer(point, samples.len());
        budget = budget.minus_probe(sampling::min_cost(&Prediction {
            point,
            latency: sample.latency,
            std_dev: 0.0,
        }));
        samples.push(sample);
        surface = Surface::new(prior, samples);
    }
    surface
}

/// Payload bandwidth of a 100 Mbit/s link in MB/s: 1448 of 1500 bytes per packet. The other links have ten times as
/// much.
const SLOW_LINK_MB_PER_SECOND: f64 = 12.5 * 1448.0 / 1500.0;
const SLOW_LINKS: [&str; 3] = ["near-slow", "country", "country-lossy"];
/// Bandwidth of the slow disk in MB/s, up (it is read) and down: the best of the `hou-magnetic` profile of `lab disk`.
/// In a measurement of three seconds, caches hold a part of the data, so that some points exceed it.
const SLOW_DISK_MB_PER_SECOND: [f64; 2] = [61.59, 23.2];

/// All stored grids, by profile and direction. Requests that overlap the end of the measurement are counted by time,
/// not by bytes, so that some points exceed the bandwidth of the link; they are capped at it, and those of the slow
/// disk at the bandwidth of the disk.
pub fn grids() -> Vec<(String, Grid)> {
    let at = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../experiments/tuning/grids");
    let mut grids = BTreeMap::<String, Grid>::new();
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        let profile = path.file_stem().unwrap().to_string_lossy().into_owned();
        for line in fs::read_to_string(&path).unwrap().lines() {
            let number = |field: &str| -> f64 {
                let (_, rest) = line.split_once(&format!("\"{field}\": ")).unwrap();
                rest[..rest.find([',', '}']).unwrap()].parse().unwrap()
            };
            let direction = if line.contains("\"put\"") { "up" } else { "down" };
            let point =
                OperatingPoint { bytes: number("size") as u64, concurrency: number("concurrency") as usize };
            let max_mb_per_second = match (&*profile, direction) {
                ("slow-disk", "up") => SLOW_DISK_MB_PER_SECOND[0],
                ("slow-disk", _) => SLOW_DISK_MB_PER_SECOND[1],
                _ if SLOW_LINKS.contains(&&*profile) => SLOW_LINK_MB_PER_SECOND,
                _ => 10.0 * SLOW_LINK_MB_PER_SECOND,
            };
            let latency = point.bytes_in_flight() / (number("mb_per_second").min(max_mb_per_second) * 1e6);
            let bytes = number("size") * number("operations");
            let [p95_ratio, p99_ratio] = ["p95_ms", "p99_ms"].map(|part| number(part) / number("mean_ms"));
            if latency.is_finite() {
                let grid = grids.entry(format!("{profile} {direction}")).or_default();
                grid.insert(point, MeasuredPoint { latency, p95_ratio, p99_ratio, bytes });
            }
        }
    }
    grids.into_iter().collect()
}
