//! Statistics of what was recorded: quantiles, and how sure a rate is.

/// Neighbouring stretches share what lies in both: one has to be so many times as long as that takes.
const TIMES_AS_LONG: f64 = 4.0;

/// Stretches of a time, in seconds, that are long enough to tell something apart where each thing in it takes so long; no more than
/// are of use.
#[must_use]
pub fn stretches(seconds: f64, each: f64) -> usize {
    ((seconds / (TIMES_AS_LONG * each).max(f64::MIN_POSITIVE)) as usize).min(MOST_BATCHES)
}

/// The mean of a rate, and how far from it the true one may be with 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// The mean.
    pub mean: f64,
    /// The true mean is within so much of it.
    pub within: f64,
}

/// Fewer batches say nothing of how they vary.
const LEAST_BATCHES: usize = 5;
/// Neighbours within a run are alike; means of so few long stretches hardly are.
const MOST_BATCHES: usize = 10;

/// The rate from amounts in equal stretches of time, in units of amount per stretch, by the method of batch means. `None`
/// where there are too few of them.
#[must_use]
pub fn rate(amounts: &[f64]) -> Option<Rate> {
    rate_of(amounts, MOST_BATCHES)
}

/// The same with so many batches at the most.
#[must_use]
pub fn rate_of(amounts: &[f64], most: usize) -> Option<Rate> {
    let batches = amounts.len().min(MOST_BATCHES).min(most);
    if batches < LEAST_BATCHES {
        return None;
    }
    let bound = |n: usize| n * amounts.len() / batches;
    let mean = |n: usize| {
        let batch = &amounts[bound(n)..bound(n + 1)];
        batch.iter().sum::<f64>() / batch.len() as f64
    };
    Some(of_independent(&(0..batches).map(mean).collect::<Vec<f64>>()))
}

/// The same of values that do not depend on each other, two at the least.
#[must_use]
pub fn of_independent(values: &[f64]) -> Rate {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    Rate { mean, within: student(values.len() - 1) * (variance / count).sqrt() }
}

/// The 0.975 quantile of Student's distribution.
fn student(freedom: usize) -> f64 {
    const FIRST: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145,
        2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
        2.045, 2.042,
    ];
    match freedom {
        0 => f64::INFINITY,
        few @ 1..=30 => FIRST[few - 1],
        // Within a thousandth from there on.
        many => 1.960 + 2.4 / many as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{mix, share};

    #[test]
    fn ninety_five_of_a_hundred_intervals_hold_the_truth() {
        for count in [5, 12, 40, 200] {
            let held = (0..4000_u64).filter(|run| {
                let drawn = |n: usize| share(mix(mix(*run) ^ n as u64)) + share(mix(mix(!*run) ^ n as u64));
                let amounts: Vec<f64> = (0..count).map(drawn).collect();
                let Rate { mean, within } = rate(&amounts).unwrap();
                (mean - 1.0).abs() <= within
            });
            let held = held.count() as f64 / 4000.0;
            assert!((0.935..0.965).contains(&held), "{count}: {held}");
        }
        assert!(rate(&[1.0; 4]).is_none());
        assert_eq!([0.0, 0.01, 0.1, 0.3, 1.0].map(|each| stretches(3.0, each)), [10, 10, 7, 2, 0]);
        assert!((student(31) - 2.0395).abs() < 0.003 && (student(120) - 1.9799).abs() < 0.001);
    }
}
