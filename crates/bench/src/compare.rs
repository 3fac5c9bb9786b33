//! Whether two results differ. A difference is told where repetitions of the same measurement vary too little for chance to
//! explain it (Welch's test on logarithms, since speeds and latencies differ by factors), with all measurements of a
//! comparison judged together: of unchanged things, at most one comparison of fifty finds any difference.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use crate::operation::Operation;
use crate::result::Cell;

/// So often a comparison of the same with the same may find a difference. With one of twenty, more than one of twenty would
/// every fourth time; and two runs are farther apart than the rounds of one, which is what chance is judged by.
const CHANCE: f64 = 0.02;

/// Of more degrees of freedom nothing is seen in Student's distribution.
const MOST_FREEDOM: f64 = 1000.0;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Requests a second.
    Throughput,
    /// Half of all requests took no longer.
    Median,
    /// 99 of a hundred did not.
    P99,
    /// Bytes a second, of files.
    Bandwidth,
    /// Transactions a second.
    Transactions,
}

impl Measure {
    /// Those of requests.
    pub const ALL: [Self; 3] = [Self::Throughput, Self::Median, Self::P99];

    /// Of all requests, or of one kind of several.
    fn of(self, cell: &Cell, kind: Option<Operation>) -> Option<f64> {
        let latency = |of: fn(&crate::result::Latency) -> u64| {
            let is_meant = |operation| kind.is_none_or(|kind| kind == operation);
            let mut all = cell
                .operations
                .iter()
                .filter(|(operation, figures)| is_meant(**operation) && figures.latency_us.count > 0);
            // Those of a mix are of each kind of request.
            let (_, only) = all.next().filter(|_| all.next().is_none())?;
            Some(of(&only.latency_us) as f64)
        };
        let value = match self {
            Self::Throughput => kind.is_none().then_some(cell.operations_per_second.mean),
            Self::Median => latency(|latency| latency.p50),
            Self::P99 => latency(|latency| latency.p99),
            Self::Bandwidth | Self::Transactions => None,
        };
        value.filter(|value| *value > 0.0)
    }

    /// How finely it is told, as a part of it. Latencies are whole microseconds, and no more than a thousandth of them is kept: a
    /// step of that has the same way in all rounds.
    fn resolution(self, a: &[f64], b: &[f64]) -> f64 {
        match self {
            Self::Median | Self::P99 => mean(a).min(mean(b)).exp().recip().max(1e-3),
            Self::Throughput | Self::Bandwidth | Self::Transactions => 0.0,
        }
    }

    /// Whether more of it is better.
    #[must_use]
    pub const fn is_speed(self) -> bool {
        matches!(self, Self::Throughput | Self::Bandwidth | Self::Transactions)
    }
}

/// What came of comparing one measure of one measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Chance explains what is seen: no difference.
    Same,
    /// It does not.
    Differs,
    /// There are too few repetitions to know: two on each side at the least.
    Unknown,
}

/// A measure of a measurement on both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// What was measured, for people.
    pub what: String,
    /// Which figure of it.
    pub measure: Measure,
    /// Geometric means over the repetitions.
    pub before: f64,
    /// Of the second result.
    pub after: f64,
    /// The ratio of the two lies between these with 95 % confidence, where that can be known.
    pub ratio: Option<(f64, f64)>,
    /// A factor by which it would have to change for this comparison to find it, in one of two cases.
    pub visible: Option<f64>,
    /// What it comes to.
    pub verdict: Verdict,
}

/// Compares all measurements that both results have, in the order of the first.
#[must_use]
pub fn compare(before: &[Cell], after: &[Cell]) -> Vec<Compared> {
    let mut names: Vec<(String, Option<Operation>)> = Vec::new();
    for cell in before {
        for kind in kinds(cell) {
            let name = (cell.name(), kind);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let values = |cells: &[Cell], (what, kind): &(String, Option<Operation>), measure: Measure| -> Vec<f64> {
        let mut rounds: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        for cell in cells.iter().filter(|cell| !cell.is_partial() && cell.name() == *what) {
            rounds.entry(cell.repeat).or_default().extend(measure.of(cell, *kind).map(f64::ln));
        }
        // Those of one round know of each other: a load beside itself is two, and one value.
        rounds.values().filter(|values| !values.is_empty()).map(|values| mean(values)).collect()
    };
    // Not so those that somebody ended, which says nothing of what was measured.
    let has_failed = |cells: &[Cell], what: &str| {
        let is_lost = |cell: &&Cell| cell.is_void() || (!cell.is_partial() && cell.has_nothing());
        cells.iter().filter(|cell| cell.name() == what).any(|cell| is_lost(&cell))
    };
    let mut compared = Vec::new();
    for name in names {
        for measure in Measure::ALL {
            let (mut a, mut b) = (values(before, &name, measure), values(after, &name, measure));
            if has_failed(before, &name.0) || has_failed(after, &name.0) {
                // What is left beside rounds in which nothing succeeded, or that were void, says nothing of those.
                (a, b) = (as_one(&a), as_one(&b));
            }
            if !a.is_empty() && !b.is_empty() {
                let what = match name.1 {
                    Some(kind) => format!("{kind} in {}", name.0),
                    None => name.0.clone(),
                };
                compared.push((what, measure, a, b));
            }
        }
    }
    judge(compared)
}

/// A measure of something on both sides: logarithms of what its repetitions came to, one at the least.
pub(crate) type Sample = (String, Measure, Vec<f64>, Vec<f64>);

/// Judges samples together.
pub(crate) fn judge(samples: Vec<Sample>) -> Vec<Compared> {
    let tests: Vec<Option<Welch>> =
        samples.iter().map(|(_, measure, a, b)| Welch::of(a, b, measure.resolution(a, b))).collect();
    let differs = holm(&tests);
    let count = tests.iter().flatten().count();
    (samples.into_iter().zip(tests).zip(differs))
        .map(|(((what, measure, a, b), test), differs)| Compared {
            what,
            measure,
            before: mean(&a).exp(),
            after: mean(&b).exp(),
            ratio: test.map(|test| test.interval()),
            visible: test.map(|test| test.reach(CHANCE / count as f64).exp()),
            verdict: match (test, differs) {
                (None, _) => Verdict::Unknown,
                (Some(_), true) => Verdict::Differs,
                (Some(_), false) => Verdict::Same,
            },
        })
        .collect()
}

/// What is compared of a measurement: the whole, and each of several kinds of requests, whose latencies have nothing to do
/// with each other. Where requests come at a pace of their own, throughput is what it always was, and there is nothing else.
fn kinds(cell: &Cell) -> Vec<Option<Operation>> {
    let each = cell.operations.keys().copied().map(Some);
    let is_several = cell.operations.len() > 1;
    std::iter::once(None).chain(each.filter(|_| is_several)).collect()
}

/// Of several values their mean, of which nobody can tell how sure it is.
pub(crate) fn as_one(values: &[f64]) -> Vec<f64> {
    values.first().map(|_| mean(values)).into_iter().collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Welch's test of two means.
#[derive(Debug, Clone, Copy)]
struct Welch {
    difference: f64,
    error: f64,
    freedom: f64,
}

impl Welch {
    /// `None` where either side has but one value. What is told no finer than by steps may be off by one, however often it was
    /// measured.
    fn of(a: &[f64], b: &[f64], step: f64) -> Option<Self> {
        if a.len() < 2 || b.len() < 2 {
            return None;
        }
        let part = |values: &[f64]| {
            let mean = mean(values);
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            // What is equal to the last digit was rounded.
            let variance = (squares / (values.len() - 1) as f64).max(1e-6);
            (variance / values.len() as f64, (values.len() - 1) as f64)
        };
        let ((a_part, a_freedom), (b_part, b_freedom)) = (part(a), part(b));
        let sum = a_part + b_part + step.powi(2);
        let freedom = sum.powi(2) / (a_part.powi(2) / a_freedom + b_part.powi(2) / b_freedom);
        // Behind that it is as good as normal, and what turns it round takes for ever.
        let freedom = freedom.min(MOST_FREEDOM);
        Some(Self { difference: mean(b) - mean(a), error: sum.sqrt(), freedom })
    }

    fn student(&self) -> Option<StudentsT> {
        StudentsT::new(0.0, 1.0, self.freedom).ok()
    }

    /// How likely chance alone brings about so much or more.
    fn chance(&self) -> f64 {
        let far = (self.difference / self.error).abs();
        self.student().map_or(1.0, |student| 2.0 * student.sf(far))
    }

    /// Chance alone reaches no further, but for so many cases of one.
    fn reach(&self, chance: f64) -> f64 {
        self.student().map_or(f64::INFINITY, |student| student.inverse_cdf(1.0 - chance / 2.0)) * self.error
    }

    /// The ratio, with 95 % confidence: of this figure by itself.
    fn interval(&self) -> (f64, f64) {
        let reach = self.reach(0.05);
        ((self.difference - reach).exp(), (self.difference + reach).exp())
    }
}

/// Which of several tests find a difference, so that all together err no more often than [`CHANCE`] (Holm 1979).
fn holm(tests: &[Option<Welch>]) -> Vec<bool> {
    let mut chances: Vec<(usize, f64)> =
        tests.iter().enumerate().filter_map(|(n, test)| Some((n, test.as_ref()?.chance()))).collect();
    chances.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    let mut differs = vec![false; tests.len()];
    let count = chances.len();
    for (rank, (n, chance)) in chances.into_iter().enumerate() {
        if chance > CHANCE / (count - rank) as f64 {
            break;
        }
        differs[n] = true;
    }
    differs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{mix, share};

    /// About normal: the sum of twelve even shares.
    fn normal(seed: u64) -> f64 {
        (0..12).map(|n| share(mix(mix(seed) ^ n))).sum::<f64>() - 6.0
    }

    fn values(seed: u64, count: u64, factor: f64, noise: f64) -> Vec<f64> {
        (0..count).map(|n| f64::ln(1000.0 * factor) + noise * normal(mix(seed) ^ n)).collect()
    }

    fn finds(run: u64, factor: f64) -> bool {
        let tests: Vec<Option<Welch>> = (0..24)
            .map(|cell| {
                let seed = mix(run) ^ mix(cell);
                Welch::of(&values(seed, 5, 1.0, 0.02), &values(!seed, 5, factor, 0.02), 0.0)
            })
            .collect();
        holm(&tests).contains(&true)
    }

    #[test]
    fn the_same_is_hardly_ever_told_apart_and_a_tenth_nearly_always() {
        let wrong = (0..1000).filter(|run| finds(*run, 1.0)).count();
        assert!(wrong <= 30, "{wrong} of 1000 comparisons of the same found a difference");
        let seen = (0..200).filter(|run| finds(*run, 1.1)).count();
        assert!(seen >= 198, "{seen} of 200 saw a tenth");
    }

    #[test]
    fn what_is_said_to_be_visible_is_seen_in_one_of_two_cases() {
        let seen = (0..2000_u64).filter(|run| {
            let (a, seed) = (values(*run, 5, 1.0, 0.02), mix(!run));
            let visible = Welch::of(&a, &values(seed, 5, 1.0, 0.02), 0.0).unwrap().reach(CHANCE).exp();
            let test = Welch::of(&a, &values(seed, 5, visible, 0.02), 0.0).unwrap();
            test.chance() <= CHANCE
        });
        let seen = seen.count() as f64 / 2000.0;
        assert!((0.42..0.58).contains(&seen), "{seen}");
    }

    #[test]
    fn a_step_of_what_is_told_is_no_difference() {
        let verdict = |measure, before: f64, after: f64| {
            let sample = ("x".to_owned(), measure, vec![before.ln(); 3], vec![after.ln(); 3]);
            judge(vec![sample])[0].verdict
        };
        assert_eq!(verdict(Measure::Median, 12.0, 13.0), Verdict::Same);
        assert_eq!(verdict(Measure::P99, 101.0, 100.0), Verdict::Same);
        assert_eq!(verdict(Measure::Median, 100.0, 110.0), Verdict::Differs);
        assert_eq!(verdict(Measure::Throughput, 12.0, 13.0), Verdict::Differs);
    }

    #[test]
    fn one_of_each_says_nothing() {
        assert!(Welch::of(&[1.0], &[2.0, 2.1], 0.0).is_none());
        let test = Welch::of(&[1.0, 1.0, 1.0], &[1.0, 1.0, 1.0], 0.0).unwrap();
        assert!(test.chance() > 0.99 && test.interval().0 < 1.0 && test.interval().1 > 1.0);
    }
}
