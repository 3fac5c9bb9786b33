//! Interference between loads: each is measured alone and concurrently with others (Hou 2017, section 4.4).

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

use crate::drive::EndReason;
use crate::load_spec::LoadSpec;
use crate::record::new_histogram;
use crate::result::Measurement;

/// The slowdown of a load that runs concurrently with others, compared with running alone, over all rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Slowdown {
    /// The load.
    pub load: LoadSpec,
    /// The names of the concurrent loads.
    pub concurrent_with: String,
    /// Performance alone.
    pub alone: LoadPerformance,
    /// Performance with the concurrent loads.
    pub concurrent: LoadPerformance,
}

/// The performance of a load.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LoadPerformance {
    /// Requests per second, mean over the rounds.
    pub requests_per_second: f64,
    /// Bytes per second, mean over the rounds.
    pub bytes_per_second: f64,
    /// Median latency over all rounds, in microseconds; `None` if no latency was recorded.
    pub p50: Option<f64>,
    /// 99th percentile of latency over all rounds, in microseconds.
    pub p99: Option<f64>,
}

impl Slowdown {
    /// Throughput relative to running alone, 1 for no slowdown.
    #[must_use]
    pub fn throughput_ratio(&self) -> f64 {
        // Few requests complete if they are long, and none if they are longer than the window.
        if self.alone.bytes_per_second > 0.0 {
            self.concurrent.bytes_per_second / self.alone.bytes_per_second
        } else {
            self.concurrent.requests_per_second / self.alone.requests_per_second
        }
    }

    /// Median latency relative to running alone, if both are known.
    #[must_use]
    pub fn latency_ratio(&self) -> Option<f64> {
        Some(self.concurrent.p50? / self.alone.p50?)
    }
}

/// Marks all measurements of a stage as void if one of them was overrun: it ended early, and the others ran on
/// without it.
pub(crate) fn void_stage(stage: &mut [Measurement]) {
    let Some(void) = stage
        .iter()
        .find(|measurement| measurement.is_void())
        .map(|measurement| measurement.load_spec().to_string())
    else {
        return;
    };
    for measurement in stage.iter_mut().filter(|measurement| !measurement.is_partial()) {
        measurement.end_reason = EndReason::Overrun;
        measurement.notes.push(format!(
            "this is void: the concurrent load {void} ended early, because the store was too far behind its rate, and this \
             load ran on without it"
        ));
    }
}

/// The slowdowns of all loads that were measured both alone and with others, in the order of the result.
#[must_use]
pub fn slowdowns(measurements: &[Measurement]) -> Vec<Slowdown> {
    let valid = valid_measurements(measurements);
    let mut slowdowns: Vec<Slowdown> = Vec::new();
    for measurement in valid.iter().filter(|measurement| !measurement.concurrent_with.is_empty()) {
        let (load, concurrent_with) = (measurement.load_spec(), measurement.concurrent_with.join(" and "));
        if slowdowns
            .iter()
            .any(|slowdown| slowdown.load == load && slowdown.concurrent_with == concurrent_with)
        {
            continue;
        }
        let performance_with = |concurrent_with: &[String]| {
            let same = valid.iter().filter(|measurement| {
                measurement.concurrent_with == concurrent_with && measurement.load_spec() == load
            });
            performance(&same.copied().collect::<Vec<_>>())
        };
        if let (Some(alone), Some(concurrent)) =
            (performance_with(&[]), performance_with(&measurement.concurrent_with))
        {
            slowdowns.push(Slowdown { load, concurrent_with, alone, concurrent });
        }
    }
    slowdowns
}

fn is_good(measurement: &Measurement) -> bool {
    !measurement.is_partial() && !measurement.has_no_success()
}

/// The measurements that succeeded and whose concurrent loads are all present and succeeded too. The same stage may
/// have run several times in a round, and a load may run with itself: the number of measurements is then a multiple
/// of the stage's size.
fn valid_measurements(measurements: &[Measurement]) -> Vec<&Measurement> {
    let mut stages: BTreeMap<(u32, Vec<String>), (usize, bool)> = BTreeMap::new();
    for measurement in measurements.iter().filter(|measurement| !measurement.concurrent_with.is_empty()) {
        let (count, are_good) = stages.entry((measurement.round, stage(measurement))).or_insert((0, true));
        *count += 1;
        *are_good &= is_good(measurement);
    }
    let is_stage_complete = |measurement: &Measurement| {
        let Some((count, are_good)) = stages.get(&(measurement.round, stage(measurement))) else {
            return false;
        };
        *are_good && count.is_multiple_of(1 + measurement.concurrent_with.len())
    };
    measurements
        .iter()
        .filter(|measurement| {
            is_good(measurement) && (measurement.concurrent_with.is_empty() || is_stage_complete(measurement))
        })
        .collect()
}

/// The sorted names of all loads of the measurement's stage, including its own.
fn stage(measurement: &Measurement) -> Vec<String> {
    let mut all = measurement.concurrent_with.clone();
    all.push(measurement.load_spec().to_string());
    all.sort_unstable();
    all
}

/// The performance over several measurements of one load; `None` without measurements.
fn performance(measurements: &[&Measurement]) -> Option<LoadPerformance> {
    let count = measurements.len() as f64;
    let mean = |of: fn(&Measurement) -> f64| {
        measurements.iter().map(|measurement| of(measurement)).sum::<f64>() / count
    };
    let mut latencies: Histogram<u64> = new_histogram();
    for figures in measurements.iter().flat_map(|measurement| measurement.operations.values()) {
        // Cannot fail: the histogram resizes automatically.
        let _ = latencies.add(figures.latency_us.to_histogram());
    }
    let quantile = |part: f64| (!latencies.is_empty()).then(|| latencies.value_at_quantile(part) as f64);
    (!measurements.is_empty()).then(|| LoadPerformance {
        requests_per_second: mean(|measurement| measurement.operations_per_second.mean),
        bytes_per_second: mean(|measurement| measurement.bytes_per_second.mean),
        p50: quantile(0.5),
        p99: quantile(0.99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::measurement;

    #[test]
    fn slowdowns_compare_a_load_with_itself_alone() {
        let (put, get) = ("put 4KiB x 4", "get 4KiB x 1");
        let concurrent_with = |measurement: Measurement, name: &str| Measurement {
            concurrent_with: vec![name.to_owned()],
            ..measurement
        };
        let measurements = [
            measurement("put", 4, 1, 90.0),
            measurement("put", 4, 2, 110.0),
            concurrent_with(measurement("put", 4, 1, 20.0), get),
            concurrent_with(measurement("get", 1, 1, 5.0), put),
            concurrent_with(measurement("put", 4, 2, 30.0), get),
            concurrent_with(measurement("get", 1, 2, 5.0), put),
            // The load concurrently with itself.
            concurrent_with(measurement("put", 4, 1, 50.0), put),
            concurrent_with(measurement("put", 4, 1, 50.0), put),
            // The concurrent load had no successful request.
            measurement("get", 8, 1, 70.0),
            concurrent_with(measurement("get", 8, 1, 70.0), "put 4KiB x 16"),
            concurrent_with(measurement("put", 16, 1, 0.0), "get 4KiB x 8"),
        ];
        let slowdowns = slowdowns(&measurements);
        assert_eq!(slowdowns.len(), 2, "loads never measured alone are omitted: {slowdowns:?}");
        assert_eq!(
            (slowdowns[0].load.to_string(), &*slowdowns[0].concurrent_with),
            ("put 4KiB x 4".to_owned(), "get 4KiB x 1")
        );
        assert!(
            (slowdowns[0].throughput_ratio() - 0.25).abs() < 1e-9
                && (slowdowns[1].throughput_ratio() - 0.5).abs() < 1e-9
        );
        assert!(slowdowns[0].latency_ratio().is_some_and(|times| (times - 1.0).abs() < 1e-9));
    }

    #[test]
    fn slowdowns_require_all_concurrent_measurements() {
        let (put, get) = ("put 4KiB x 4", "get 4KiB x 1");
        let concurrent_with = |measurement: Measurement, names: &[&str]| Measurement {
            concurrent_with: names.iter().map(|name| (*name).to_owned()).collect(),
            ..measurement
        };
        let (alone, other) = (measurement("put", 4, 1, 90.0), measurement("get", 1, 1, 60.0));
        let count = |measurements: &[Measurement]| {
            slowdowns(&[&[alone.clone(), other.clone()], measurements].concat()).len()
        };
        let one = concurrent_with(measurement("put", 4, 1, 20.0), &[get]);
        let its = concurrent_with(measurement("get", 1, 1, 20.0), &[put]);
        assert_eq!(count(&[one.clone(), its.clone()]), 2);
        assert_eq!(count(std::slice::from_ref(&one)), 0, "the other measurement is missing");
        let another_round = Measurement { round: 2, ..its.clone() };
        assert_eq!(count(&[one.clone(), another_round]), 0);
        let itself = concurrent_with(measurement("put", 4, 1, 20.0), &[put]);
        assert_eq!(count(&[itself.clone(), itself.clone()]), 1);
        assert_eq!(count(&[itself]), 0, "one of two concurrent runs of the same load is missing");
        let first = concurrent_with(measurement("put", 4, 1, 20.0), &[put, get]);
        let third = concurrent_with(measurement("get", 1, 1, 20.0), &[put, put]);
        assert_eq!(count(&[first.clone(), first.clone(), third.clone()]), 2);
        assert_eq!(count(&[first, third]), 0);
        assert_eq!(count(&[one.clone(), its.clone(), its, one]), 2, "twice in a round");
    }
}
