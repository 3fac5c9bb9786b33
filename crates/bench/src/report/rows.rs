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
        self.means(|cell| cell.operations_per_second.mean)
    }

    /// Bytes per second by concurrency, mean over the rounds.
    pub fn byte_rates(&self) -> Vec<(usize, f64)> {
        self.means(|cell| cell.bytes_per_second.mean)
    }

    /// The quantile `part` of latency by concurrency, over all rounds, in microseconds. Omits concurrencies without
    /// latencies.
    pub fn latency_quantiles(&self, part: f64) -> Vec<(usize, f64)> {
        let of_all = |cells: &[&Measurement]| -> Option<f64> {
            let mut all = new_histogram();
            for figures in cells.iter().filter_map(|cell| cell.operations.get(&self.operation)) {
                // Cannot fail: the histogram resizes automatically.
                let _ = all.add(figures.latency_us.to_histogram());
            }
            (!all.is_empty()).then(|| all.value_at_quantile(part) as f64)
        };
        self.by_concurrency.iter().filter_map(|(parallel, cells)| Some((*parallel, of_all(cells)?))).collect()
    }

    fn means(&self, figure: impl Fn(&Measurement) -> f64) -> Vec<(usize, f64)> {
        let mean = |cells: &[&Measurement]| {
            cells.iter().map(|cell| figure(cell)).sum::<f64>() / cells.len().max(1) as f64
        };
        self.by_concurrency.iter().map(|(parallel, cells)| (*parallel, mean(cells))).collect()
    }
}

/// The rows of a result, in the order of the file. Excludes mixes, open loops, traces and concurrent loads.
pub(super) fn rows(cells: &[Measurement]) -> Vec<OperationRow<'_>> {
    let mut rows: Vec<OperationRow<'_>> = Vec::new();
    for cell in cells.iter().filter(|cell| {
        cell.requests_per_second.is_none()
            && cell.trace.is_none()
            && cell.concurrent_with.is_empty()
            && !cell.is_partial()
    }) {
        let mut kinds = cell.mix.operations();
        let (Some(operation), None) = (kinds.next(), kinds.next()) else { continue };
        let size = cell.sizes.to_string();
        let found = rows.iter().position(|row| row.operation == operation && row.size == size);
        let row = found.unwrap_or_else(|| {
            rows.push(OperationRow { operation, size, by_concurrency: Vec::new() });
            rows.len() - 1
        });
        let by_parallel = &mut rows[row].by_concurrency;
        match by_parallel.iter_mut().find(|(parallel, _)| *parallel == cell.concurrency) {
            Some((_, cells)) => cells.push(cell),
            None => by_parallel.push((cell.concurrency, vec![cell])),
        }
    }
    rows.iter_mut().for_each(|row| row.by_concurrency.sort_by_key(|(parallel, _)| *parallel));
    rows
}
