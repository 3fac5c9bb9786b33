//! Groups the measurements of a result into rows: one operation and one object size, by concurrency.

use crate::operation::Operation;
use crate::record::new_histogram;
use crate::result::Measurement;

/// The measurements of one operation and object size, by concurrency, with one or more rounds each.
pub(super) struct OperationRow<'a> {
    pub operation: Operation,
    pub size: String,
    /// Each concurrency with its measurements, in ascending order.
    pub by_concurrency: Vec<(usize, Vec<&'a Measurement>)>,
}

impl OperationRow<'_> {
    /// Requests per second by concurrency, mean over the rounds.
    pub fn request_rates(&self) -> Vec<(usize, f64)> {
        self.means(|measurement| measurement.operations_per_second.mean)
    }

    /// Bytes per second by concurrency, mean over the rounds.
    pub fn byte_rates(&self) -> Vec<(usize, f64)> {
        self.means(|measurement| measurement.bytes_per_second.mean)
    }

    /// The quantile `fraction` of latency by concurrency, over all rounds, in microseconds. Omits concurrencies without
    /// latencies.
    pub fn latency_quantiles(&self, fraction: f64) -> Vec<(usize, f64)> {
        let of_all = |measurements: &[&Measurement]| -> Option<f64> {
            let mut all = new_histogram();
            for figures in
                measurements.iter().filter_map(|measurement| measurement.operations.get(&self.operation))
            {
                // Cannot fail: the histogram resizes automatically.
                let _ = all.add(figures.latency_us.to_histogram());
            }
            (!all.is_empty()).then(|| all.value_at_quantile(fraction) as f64)
        };
        self.by_concurrency
            .iter()
            .filter_map(|(concurrency, measurements)| Some((*concurrency, of_all(measurements)?)))
            .collect()
    }

    fn means(&self, figure: impl Fn(&Measurement) -> f64) -> Vec<(usize, f64)> {
        let mean = |measurements: &[&Measurement]| {
            measurements.iter().map(|measurement| figure(measurement)).sum::<f64>()
                / measurements.len().max(1) as f64
        };
        self.by_concurrency
            .iter()
            .map(|(concurrency, measurements)| (*concurrency, mean(measurements)))
            .collect()
    }
}

/// The rows of a result, in the order of the file. Excludes mixes, open loops, traces and concurrent loads.
pub(super) fn rows(measurements: &[Measurement]) -> Vec<OperationRow<'_>> {
    let mut rows: Vec<OperationRow<'_>> = Vec::new();
    for measurement in measurements.iter().filter(|measurement| {
        measurement.requests_per_second.is_none()
            && measurement.trace.is_none()
            && measurement.concurrent_with.is_empty()
            && !measurement.is_partial()
    }) {
        let mut operations = measurement.mix.operations();
        let (Some(operation), None) = (operations.next(), operations.next()) else { continue };
        let size = measurement.sizes.to_string();
        let found = rows.iter().position(|row| row.operation == operation && row.size == size);
        let row = found.unwrap_or_else(|| {
            rows.push(OperationRow { operation, size, by_concurrency: Vec::new() });
            rows.len() - 1
        });
        let by_concurrency = &mut rows[row].by_concurrency;
        match by_concurrency.iter_mut().find(|(concurrency, _)| *concurrency == measurement.concurrency) {
            Some((_, measurements)) => measurements.push(measurement),
            None => by_concurrency.push((measurement.concurrency, vec![measurement])),
        }
    }
    rows.iter_mut().for_each(|row| row.by_concurrency.sort_by_key(|(concurrency, _)| *concurrency));
    rows
}
