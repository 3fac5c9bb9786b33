//! The result of a comparison of policies.

use std::time::Duration;

use super::Policy;

/// Time after a change of the stores that does not count as settled.
pub(super) const SETTLE_TIME: Duration = Duration::from_secs(30);

/// The result of [`super::simulate`].
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// One per policy, in the order of [`Policy::ALL`].
    pub policies: Vec<PolicyReport>,
}

impl Report {
    /// The report of a policy, if it was simulated.
    #[must_use]
    pub fn get(&self, policy: Policy) -> Option<&PolicyReport> {
        self.policies.iter().find(|report| report.policy == policy)
    }

    /// Reads per second of a policy divided by those of another one; `None` if either was not simulated or the other
    /// one served none.
    #[must_use]
    pub fn ratio(&self, policy: Policy, other: Policy) -> Option<f64> {
        let rate = |policy| self.get(policy).map(|report| report.reads_per_second);
        rate(policy).zip(rate(other)).filter(|(_, other)| *other > 0.0).map(|(rate, other)| rate / other)
    }
}

/// The result of one policy.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyReport {
    /// The policy.
    pub policy: Policy,
    /// Successful reads per second of simulated time.
    pub reads_per_second: f64,
    /// [`Self::reads_per_second`] without the first 30 s after each change of the stores; `None` if nothing remains.
    pub settled_reads_per_second: Option<f64>,
    /// Mean latency of successful reads in seconds; `None` without any.
    pub mean_latency_seconds: Option<f64>,
    /// The 99th percentile of these latencies.
    pub p99_latency_seconds: Option<f64>,
    /// Successful reads.
    pub reads: u64,
    /// Reads that failed.
    pub errors: u64,
    /// Share of the reads that failed, of all that ended while a store failed; 0 if none did.
    pub error_share: f64,
    /// Changes of affinities, summed over the stores.
    pub affinity_changes: u64,
    /// The policy's decisions about affinities, in order.
    pub steps: Vec<AffinityStep>,
    /// Successful reads in each second of simulated time.
    pub reads_by_second: Vec<u32>,
}

/// A decision about affinities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AffinityStep {
    /// Simulated time.
    pub at: Duration,
    /// The decision.
    pub action: StepAction,
    /// Number of stores whose affinity changed.
    pub changed_stores: usize,
}

/// The kinds of [`AffinityStep`]. Gains are shares of the throughput: 0.05 is 5 %.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum StepAction {
    /// Affinities were set.
    Set {
        /// The predicted gain, of policies that predict.
        predicted_gain: Option<f64>,
    },
    /// The last step was measured and stays.
    Keep {
        /// The measured gain.
        measured_gain: f64,
    },
    /// The last step was measured and undone.
    Undo {
        /// The measured gain.
        measured_gain: f64,
    },
}

/// Counts reads during a run.
#[derive(Debug)]
pub(super) struct Recorder {
    latencies: Vec<f32>,
    errors: u64,
    /// Reads that ended while a store failed.
    reads_amid_errors: u64,
    reads_by_second: Vec<u32>,
}

/// Facts of a run, besides the recorded reads.
#[derive(Debug)]
pub(super) struct RunEnd<'a> {
    pub policy: Policy,
    pub duration: Duration,
    /// Starts of the phases.
    pub changes: &'a [Duration],
    pub steps: &'a [AffinityStep],
}

impl Recorder {
    pub fn new(duration: Duration) -> Self {
        Self {
            latencies: Vec::new(),
            errors: 0,
            reads_amid_errors: 0,
            reads_by_second: vec![0; duration.as_secs_f64().ceil() as usize],
        }
    }

    /// A read succeeded. `is_amid_errors` is true while a store fails.
    pub fn success(&mut self, now: Duration, latency: Duration, is_amid_errors: bool) {
        self.latencies.push(latency.as_secs_f32());
        self.reads_amid_errors += u64::from(is_amid_errors);
        if let Some(reads) = self.reads_by_second.get_mut(now.as_secs() as usize) {
            *reads += 1;
        }
    }

    /// A read failed.
    pub fn error(&mut self) {
        self.errors += 1;
        self.reads_amid_errors += 1;
    }

    pub fn report(mut self, run: &RunEnd<'_>) -> PolicyReport {
        let reads = self.latencies.len();
        let sum: f64 = self.latencies.iter().map(|latency| f64::from(*latency)).sum();
        PolicyReport {
            policy: run.policy,
            reads_per_second: reads as f64 / run.duration.as_secs_f64(),
            settled_reads_per_second: self.settled(run.changes),
            mean_latency_seconds: (reads > 0).then(|| sum / reads as f64),
            p99_latency_seconds: quantile(&mut self.latencies, 0.99),
            reads: reads as u64,
            errors: self.errors,
            error_share: self.errors as f64 / self.reads_amid_errors.max(1) as f64,
            affinity_changes: run.steps.iter().map(|step| step.changed_stores as u64).sum(),
            steps: run.steps.to_vec(),
            reads_by_second: self.reads_by_second,
        }
    }

    /// Mean over the seconds that do not follow a change.
    fn settled(&self, changes: &[Duration]) -> Option<f64> {
        let is_settled = |second: usize| {
            let at = Duration::from_secs(second as u64);
            !changes.iter().any(|change| *change < at + Duration::from_secs(1) && at < *change + SETTLE_TIME)
        };
        let seconds = self.reads_by_second.iter().enumerate();
        let settled: Vec<u32> =
            seconds.filter(|(second, _)| is_settled(*second)).map(|(_, reads)| *reads).collect();
        let sum: f64 = settled.iter().map(|reads| f64::from(*reads)).sum();
        (!settled.is_empty()).then(|| sum / settled.len() as f64)
    }
}

/// The exact quantile; reorders the samples.
fn quantile(samples: &mut [f32], share: f64) -> Option<f64> {
    let rank = (samples.len() as f64 * share).ceil() as usize;
    let index = rank.clamp(1, samples.len().max(1)) - 1;
    if samples.is_empty() {
        return None;
    }
    let (_, value, _) = samples.select_nth_unstable_by(index, f32::total_cmp);
    Some(f64::from(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantile_is_exact() {
        let mut samples: Vec<f32> = (1..=200_u8).rev().map(f32::from).collect();
        assert_eq!(quantile(&mut samples, 0.99), Some(198.0));
        assert_eq!(quantile(&mut samples, 0.0), Some(1.0));
        assert_eq!(quantile(&mut [], 0.5), None);
    }

    #[test]
    fn seconds_after_a_change_are_not_settled() {
        let mut recorder = Recorder::new(Duration::from_secs(90));
        for second in 0..90 {
            let reads = if (30..60).contains(&second) { 2 } else { 1 };
            (0..reads).for_each(|_| recorder.success(Duration::from_secs(second), Duration::ZERO, false));
        }
        assert_eq!(recorder.settled(&[Duration::ZERO, Duration::from_secs(60)]), Some(2.0));
        assert_eq!(recorder.settled(&[Duration::ZERO]), Some(1.5));
        assert_eq!(recorder.settled(&[0, 30, 60].map(Duration::from_secs)), None);
    }
}
